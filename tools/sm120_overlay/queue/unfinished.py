"""The message of a patch that is not finished: what only a person can say is marked, and lint refuses the mark."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .mail import parse_trailers
from .patch import SLUG

MARK = "TO-FILL"
SUBJECT = f"{MARK}: area: what it does"
BODY = f"{MARK}: what breaks, on which hardware, how it was established, what was not measured."
TRAILERS = {
    "Scope": "sm12x or any",
    "Upstream-Status": "Pending, Submitted [url], Backport [what, from where] or Inappropriate [why]",
    "Drop-When": "one sentence that a machine or a person can check",
    "Evidence": "reasoned, compiled, executed-cpu, or executed-h200 or executed-sm120 with a file",
}
LONGEST = 40  # characters of a slug that is made of a subject


def unfinished_message(subject: str, body: str, slug: str, origin: str, overlays: Sequence[str] = ()) -> str:
    """Subject and body as they came ("" where there is none), with every trailer a patch must have.

    Trailers that came with the body are kept; `origin` is a paragraph that says where it came from, left out where the
    letter was one of our patches already, and of its overlay files those in `overlays` are named.
    """
    said = _tidied(f"{subject or SUBJECT}\n\n{body}")
    found = parse_trailers(said)
    text = said.rstrip("\n").rpartition("\n\n")[0] if found else said.rstrip("\n")
    head, _, rest = text.partition("\n")
    named = {"Slug": slug, "Test": f"tests/patches/test_{slug.replace('-', '_')}.py"}
    kept = [(key, value) for key, value in found if key not in named and key != "Overlay"]
    kept += [("Overlay", path) for path in overlays]
    asked = [(key, f"{MARK}: {text}") for key, text in TRAILERS.items() if key not in dict(kept)]
    lines = [f"{key}: {value}" for key, value in (*named.items(), *asked, *kept)]
    paragraphs = (head, rest.strip("\n") or BODY, "" if "Slug" in dict(found) else origin, "\n".join(lines))
    return "\n\n".join(filter(None, paragraphs)) + "\n"


def _tidied(text: str) -> str:
    """Less what git itself takes out of a message: white space at line ends, and more than one blank line."""
    lines = "\n".join(line.rstrip() for line in text.replace("\0", "").split("\n"))
    return re.sub(r"\n{3,}", "\n\n", lines).strip("\n") + "\n"


def marks(message: str) -> tuple[str, ...]:
    """The lines of a message that still wait for a person."""
    return tuple(line for line in message.split("\n") if MARK in line)


def slug_of(text: str, taken: Sequence[str], group: str = "") -> str:
    """A slug that is not taken: the text where it is one, else made of its words (of a subject, behind its area).

    `group` is what the files of it have in common, where a change is split.
    """
    slug = text if re.fullmatch(SLUG, text) else _shortened(text.lower().partition(": ")[2] or text.lower())
    slug = "-".join((slug, *_words(group.lower())))
    numbered = (f"{slug}-{number}" for number in range(2, len(taken) + 3))
    return slug if slug not in taken else next(name for name in numbered if name not in taken)


def _shortened(text: str) -> str:
    first, *more = _words(text) or ["adopted"]
    slug = first[:LONGEST]
    for word in more:
        if len(slug) + len(word) >= LONGEST:
            break
        slug += f"-{word}"
    return slug


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text)
