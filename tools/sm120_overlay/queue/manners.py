"""What upstream's people read of a patch: its message without our trailers, and the text of a pull request.

The text is upstream's own template, filled from the patch's body. What was not measured is said where upstream asks
for measurements, and a box is ticked only where this run did what it says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .mail import parse_trailers
from .patch import Patch

TEMPLATE = ".github/pull_request_template.md"
# Where neither upstream's tree nor this project has a template for it.
PLAIN = "## Description\n\n## Tests\n\n## Measurements\n"
COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
HEADING = re.compile(r"^(#{1,6}) (.*)$", re.MULTILINE)
# What a heading of a template asks for, by words in it; the first that fits.
ASKED = (
    ("motivation", r"motivation"),
    ("whole", r"description|summary"),
    ("changes", r"modification|changes"),
    ("shown", r"accuracy"),
    ("unmeasured", r"speed|benchmark|profiling|performance|measurements"),
    ("issues", r"related issues"),
    ("notes", r"reviewer notes"),
)
# A box, and what of this run ticks it.
BOXES = (("tested", r"add unit tests|tests have been added"), ("formatted", r"format your code"))
SHOWN = re.compile(r"(how )?established\b", re.IGNORECASE)
NOT_MEASURED = re.compile(r"not (measured|shown|tested)\b|nothing was measured", re.IGNORECASE)
EVIDENCE = {
    "reasoned": "Reasoned from the source; nothing of it was run.",
    "compiled": "Compiled; not run on a GPU.",
    "executed-cpu": "Run on a CPU with faked device capabilities; not run on a GPU.",
    "executed-h200": "Run on an H200; not run on an SM12x card.",
    "executed-sm120": "Run on an SM12x card.",
}
# Words of this project: a line that has one means nothing to upstream.
OURS = re.compile(r"\b(overlay|slug|this series|the rig|v0\.5\.9's (patch|series)|than on v\d)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Facts:
    """What this run knows of the branch: the files of the patch, its test's path ("" where it has none), and the rest.

    `tested` the test failed without the patch and passed with it, `ran` how and on what, `formatted` all of upstream's
    formatters ran, `notes` sentences for the reviewer, `repositories` upstream → `OWNER/NAME`.
    """

    files: Sequence[str]
    test: str
    tested: bool
    formatted: bool
    notes: Sequence[str]
    repositories: Mapping[str, str]
    ran: str = ""


def paragraphs(patch: Patch) -> list[str]:
    """The body's paragraphs, less the trailers."""
    parts = patch.message.rstrip("\n").split("\n\n")[1:]
    return parts[:-1] if parse_trailers(patch.message) else parts


def for_upstream(patch: Patch, signer: str = "") -> str:
    """The commit message: subject and body, and who signed it off."""
    signed = (signer,) if signer else patch.all("Signed-off-by")
    return (
        "\n\n".join(filter(None, [patch.subject, *paragraphs(patch), *(f"Signed-off-by: {who}" for who in signed)]))
        + "\n"
    )


def means_nothing(patch: Patch) -> tuple[str, ...]:
    """Lines of subject and body that speak of this project: a person should reword them before it is sent."""
    lines = "\n\n".join([patch.subject, *paragraphs(patch)]).split("\n")
    return tuple(line for line in lines if OURS.search(line))


def pull_request(template: str, patch: Patch, facts: Facts) -> str:
    """The text of a pull request: each heading of the template with what it asks for, where a patch can say it."""
    parts = _parts(patch, facts)
    text = COMMENT.sub("", template)
    starts = [*HEADING.finditer(text)]
    ends = [*(match.start() for match in starts[1:]), *([len(text)] if starts else [])]
    filled = [text[: starts[0].start()]] if starts else [text]
    used = set()
    for match, end in zip(starts, ends, strict=True):
        kind = next((name for name, words in ASKED if re.search(words, match[2], re.IGNORECASE)), "")
        used.add(kind)
        said = parts.get(kind, "")
        filled.append(f"{match[0]}\n\n{said}\n\n" if said else text[match.start() : end])
    left = () if used & {"shown", "unmeasured", "whole"} else ("whole",)
    more = "".join(f"{parts[kind]}\n\n" for kind in left)
    return _ticked(re.sub(r"\n{3,}", "\n\n", more + "".join(filled)).strip("\n") + "\n", facts)


def _parts(patch: Patch, facts: Facts) -> dict[str, str]:
    said = [_unwrapped(part) for part in paragraphs(patch)]
    shown = [part for part in said if SHOWN.match(part)]
    unmeasured = [part for part in said if NOT_MEASURED.match(part)]
    rest = [part for part in said if part not in (*shown, *unmeasured)]
    evidence = EVIDENCE.get((patch.trailer("Evidence") or "").partition(" ")[0], "")
    missing = unmeasured or ["Not measured: no accuracy and no speed; the patch's author names nothing else."]
    where = [f"Changed: {', '.join(f'`{path}`' for path in facts.files)}.", _tests(facts)]
    return {
        "motivation": "\n\n".join(rest[:1]),
        "changes": "\n\n".join([*rest[1:], *where]),
        "shown": "\n\n".join(filter(None, [*shown, evidence, *missing])),
        "unmeasured": "\n\n".join(["Not measured: no benchmark was run.", *missing]),
        "whole": "\n\n".join(filter(None, [*rest, *where, *shown, evidence, *missing])),
        "issues": "\n".join(f"- {_reference(issue, facts.repositories)}" for issue in patch.all("Issue"))
        or "None known.",
        "notes": "\n".join(f"- {note}" for note in facts.notes),
    }


def _tests(facts: Facts) -> str:
    if not facts.test:
        return "No test in the form of this project's suite comes with it."
    unproved = "it ran here, and does not prove the change yet" if facts.ran else "it was not run for this branch"
    proved = "it fails without the change and passes with it" if facts.tested else unproved
    return f"Test: `{facts.test}` (CPU only); {proved}{f' ({facts.ran})' if facts.ran else ''}."


def _unwrapped(part: str) -> str:
    """A paragraph whose lines a page may wrap anew; what is indented or listed stays."""
    return re.sub(r"\n(?!\s|[-*] )", " ", part)


def _reference(issue: str, repositories: Mapping[str, str]) -> str:
    project, _, number = issue.partition("#")
    return f"{repositories.get(project, project)}#{number}"


def _ticked(text: str, facts: Facts) -> str:
    done = {"tested": facts.tested, "formatted": facts.formatted}

    def tick(match: re.Match[str]) -> str:
        fits = any(done[fact] and re.search(words, match[2], re.IGNORECASE) for fact, words in BOXES)
        return f"{match[1]}[{'x' if fits else ' '}]{match[2]}"

    return re.sub(r"^(\s*[-*] )\[[ xX]\](.*)$", tick, text, flags=re.MULTILINE)
