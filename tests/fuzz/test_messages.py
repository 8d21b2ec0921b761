"""Commit messages: what we read in one git reads too, and a message that lint accepts survives export and build."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from sm120_overlay.errors import OverlayError
from sm120_overlay.queue.build import Said, base_contents, build, build_on
from sm120_overlay.queue.git import Repository
from sm120_overlay.queue.lint import lint_series
from sm120_overlay.queue.mail import parse_patch, parse_trailers
from sm120_overlay.queue.series import Series

from ..queue.toy import TOY, Toy, git_bytes, mail_of, message
from .given import examples

CORE = "python/toy/core.py"
KEYS = st.sampled_from(["Slug", "Scope", "Issue", "Needs", "Drop-When", "Evidence", "Key-", "A", "key", "Cc", "See 1"])
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
ROWS = st.one_of(
    st.tuples(KEYS, st.sampled_from([": ", ":", " : ", "=", ":\t"]), WORDS).map("".join),
    st.sampled_from(["Slug: x", "Scope: any", "Signed-off-by: Ann <a@b>", "(cherry picked from commit 1)", " more",
                     "\tmore", "", " ", "# Slug: no", "---", "-- ", "words", "Slug:", "A: b  ", "A: \x0cb", "A: b\x0b",
                     "A: \u2028b", "A: b\x85", "A: \xa0", "A: b\r", "A: b\rC: d"]),
    WORDS,
)  # fmt: skip


def trailers_of_git(folder: Path, text: str) -> list[tuple[str, str]]:
    out = git_bytes(folder, "interpret-trailers", "--parse", stdin=text.encode()).decode()
    return [(key, value) for key, _, value in (line.partition(": ") for line in out.split("\n")[:-1])]


@examples(250)
@given(rows=st.lists(ROWS, min_size=1, max_size=7))
def test_whatever_we_take_for_trailers_git_does_too(tree: Path, rows: list[str]) -> None:
    """We may be stricter (a block with other lines in it has none); never laxer, never with other values."""
    text = "toy: it\n\n" + "\n".join(rows) + "\n"
    ours = parse_trailers(text)
    lines = text.rstrip("\n").split("\n")
    clean = all(line == line.rstrip() and not line.startswith("---") for line in lines)  # as lint demands
    if ours and clean:
        assert trailers_of_git(tree, text) == list(ours)


BODY = st.lists(
    st.one_of(
        WORDS,
        st.sampled_from(["From x", ">From x", "> quoted", "    indented", "\tcode", "diff of it", "- item", "* item",
                         "--",
                         "--- a", "+++ b", "@@ -1 +1 @@", "index 1..2", "é", "山田太郎", "Slug: other", "=?UTF-8?q?x?=",
                         "> > \x0c", "\x1b[31m", "\u2028", "\ufeff", "From: x", "a\rb", "8<", "[PATCH] x", "# note"]),
    ),
    min_size=1, max_size=6,
)  # fmt: skip
AREAS = st.sampled_from(["toy: do it", "toy: é ü", "a/b: do [it]", 'toy: "it"', "toy: it, then", "toy: \\ it",
                         "toy: \x1b",
                         "toy: =?x", "toy: " + "ü" * 60, "toy: a\tb", "toy: #1", "toy: a\u2028b",
                         "toy: a\x85b"])  # fmt: skip
AUTHORS = st.sampled_from(["Ann <ann@example.org>", "Zoë Müller <z@x>", 'Jo "pin" Doe <j@x>', "Doe, J. <j@x>",
                           "A\\B <>",
                           "(a) <a@b>", "a@b <a@b>", "Ann; B <a@b>", "é" * 40 + " <e@x>"])  # fmt: skip


@examples(40)
@example(subject="toy: do it", body=["\r"], why="", author="Ann <ann@example.org>")  # found by a long run
@given(subject=AREAS, body=BODY, why=WORDS, author=AUTHORS)
def test_the_export_of_a_message_that_lint_accepts_is_a_fixed_point(
    toy: Toy, subject: str, body: list[str], why: str, author: str
) -> None:
    """Commit, mail, parse, build, mail: the mail and the message are the same the second time."""
    repo, base = Repository(toy.upstream()), toy.pin().commit
    text = message("right-answer", subject).replace("What breaks", "\n".join(body) + "\n\nWhat breaks", 1)
    text = text.replace("The toy answers by itself", f"The toy answers by itself {why}")
    files: dict[str, tuple[str, bytes | None]] = {CORE: ("100644", TOY[CORE].encode() + b"# more\n")}
    date = "Sun, 1 Mar 2026 12:00:00 +0100"
    try:
        tip = build_on(repo, base, Said(author, author, date, text), files)
        mail = mail_of(toy.upstream(), base, tip)
        series = Series(toy.pin(), (parse_patch("x.patch", mail, 1),))
    except OverlayError:
        assume(False)
        return
    assume(not lint_series(toy.home, series))
    again = build(repo, base, series, base_contents(repo, base, series)).tip
    assert mail_of(toy.upstream(), base, again) == mail
    # White space at line ends, and blank lines above the body, are none to git's mails.
    words = "\n".join(line.rstrip(" \t\r") for line in text.partition("\n")[2].split("\n")).lstrip("\n")
    assert series.patches[0].message == f"{subject}\n\n{words}"
    assert series.patches[0].author == author
    assert replace(series, patches=(parse_patch("x.patch", mail_of(toy.upstream(), base, again), 1),)) == series


@pytest.mark.parametrize("subject", ["toy: do it", "toy: é ü"])
def test_the_messages_above_are_not_all_refused(toy: Toy, subject: str) -> None:
    """Else the property would hold of nothing."""
    repo, base = Repository(toy.upstream()), toy.pin().commit
    said = Said("Zoë <z@x>", "Ann <a@b>", "Sun, 1 Mar 2026 12:00:00 +0100", message("right-answer", subject))
    tip = build_on(repo, base, said, {CORE: ("100644", TOY[CORE].encode() + b"# more\n")})
    series = Series(toy.pin(), (parse_patch("x.patch", mail_of(toy.upstream(), base, tip), 1),))
    assert lint_series(toy.home, series) == ()
