"""The mail of a patch file, with real git as the oracle: `git am` and `git interpret-trailers` read the same in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm120_overlay.errors import OverlayError, UsageError
from sm120_overlay.queue.build import base_contents, build
from sm120_overlay.queue.export import export_commits
from sm120_overlay.queue.git import Repository
from sm120_overlay.queue.lint import lint_series
from sm120_overlay.queue.mail import parse_patch, parse_trailers, read_patch
from sm120_overlay.queue.series import Series

from .toy import Toy, author_clone, git_bytes, history, message, opened, say, taken_by_am, write

MAIL = """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: Ann <ann@example.org>
Date: Sun, 1 Mar 2026 12:00:00 +0100
Subject: toy: do it

What breaks.

Slug: do-it
Scope: any

diff --git a/p b/p
index 78981922613b2afb6025042ff6bd878ac1994e85..61780798228d17af2d34fce4cfbdf35556832472 100644
--- a/p
+++ b/p
@@ -1 +1 @@
-a
+b
"""


def parsed(old: str = "", new: str = "") -> tuple[str, str, str]:
    """Author, date and message of the mail with one thing replaced."""
    assert old in MAIL
    patch = parse_patch("some.patch", MAIL.replace(old, new, 1).encode())
    return patch.author, patch.date, patch.message


def test_a_mail_is_read_as_author_date_message_trailers_and_edits() -> None:
    patch = parse_patch("some.patch", MAIL.encode())
    assert (patch.slug, patch.author, patch.date) == (
        "do-it", "Ann <ann@example.org>", "Sun, 1 Mar 2026 12:00:00 +0100"
    )  # fmt: skip
    assert patch.message == "toy: do it\n\nWhat breaks.\n\nSlug: do-it\nScope: any\n"
    assert patch.subject == "toy: do it"
    assert [edit.path for edit in patch.edits] == ["p"]
    assert (patch.trailer("Scope"), patch.trailer("Issue"), patch.all("Slug")) == ("any", None, ("do-it",))


@pytest.mark.parametrize(
    ("header", "author"),
    [
        ("From: Zoë Müller <z@example.org>", "Zoë Müller <z@example.org>"),
        ('From: "Doe, John Q." <j@example.org>', "Doe, John Q. <j@example.org>"),
        (r'From: "Jo \"the pin\" \\ Doe" <j@example.org>', r'Jo "the pin" \ Doe <j@example.org>'),
        ("From: 山田\n 太郎 <y@example.org>", "山田 太郎 <y@example.org>"),
        ("From: Ann <>", "Ann <>"),
    ],
)
def test_author_names_come_out_as_they_were_meant(header: str, author: str) -> None:
    assert parsed("From: Ann <ann@example.org>", header)[0] == author


def test_folded_subjects_are_one_line() -> None:
    assert parsed("toy: do it", "toy: do\n it")[2].startswith("toy: do it\n\n")


def test_the_mime_headers_that_git_adds_for_other_alphabets_are_read() -> None:
    mime = "MIME-Version: 1.0\nContent-Type: text/plain; charset=UTF-8\nContent-Transfer-Encoding: 8bit\n"
    assert parsed("\nWhat breaks.", mime + "\nWas brécht.")[2].startswith("toy: do it\n\nWas brécht.\n")


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("From 0000000", "From 1234567", "expected the first line"),
        ("From: Ann <ann@example.org>\n", "", "missing From"),
        ("Date: Sun, 1 Mar 2026 12:00:00 +0100\n", "", "missing Date"),
        ("Subject: toy: do it\n", "", "missing Subject"),
        ("Subject: toy: do it\n", "Subject: \n", "missing Subject"),
        ("Subject:", "Cc: x <x@y>\nSubject:", "not understood Cc"),
        ("Subject:", "Content-Type: text/plain; charset=ISO-8859-1\nSubject:", "not understood Content-Type"),
        ("Subject:", "Content-Transfer-Encoding: quoted-printable\nSubject:", "Content-Transfer-Encoding"),
        ("Subject:", "Content-Type: multipart/mixed; boundary=x\nSubject:", "not understood Content-Type"),
        ("From: Ann <ann@example.org>", "From: ann@example.org", "expected `From: NAME <MAIL>`"),
        ("From: Ann <ann@example.org>", "From: <ann@example.org>", "expected `From: NAME <MAIL>`"),
        ("From: Ann <ann@example.org>", 'From: "Ann <ann@example.org>', "expected `From: NAME <MAIL>`"),
        ("Sun, 1 Mar 2026 12:00:00 +0100", "2026-03-01T12:00:00+0100", "expected a date as git writes it"),
        ("Sun, 1 Mar 2026 12:00:00 +0100", "Son, 1 Mrz 2026 12:00:00 +0100", "expected a date"),
        ("Sun, 1 Mar 2026 12:00:00 +0100", "Sun, 1 Mar 2026 12:00:00", "expected a date"),
        ("Sun, 1 Mar 2026 12:00:00 +0100", "Sun, 1 Mar 2026 12:00:00 +0100 ", "expected a date"),
    ],
)
def test_a_mail_of_another_form_is_refused_and_the_part_is_named(old: str, new: str, named: str) -> None:
    with pytest.raises(UsageError) as error:
        parsed(old, new)
    assert "some.patch" in error.value.what
    assert named in error.value.what


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1 Mar 2026", "31 Feb 2026"),
        ("1 Mar 2026 12:00:00", "1 Mrz 2026 99:99:99"),
        ("Subject:", "Subject: another\nSubject:"),
        ("Subject:", "From: Bob <b@c>\nSubject:"),
    ],
)
def test_dates_that_do_not_exist_and_headers_that_come_twice_are_refused(old: str, new: str) -> None:
    with pytest.raises(UsageError):
        parsed(old, new)


def test_a_message_in_another_encoding_is_refused() -> None:
    with pytest.raises(UsageError, match="not UTF-8"):
        parse_patch("some.patch", MAIL.replace("breaks", "bréaks").encode("latin-1"))


def test_the_text_of_a_diff_may_be_in_any_encoding() -> None:
    diff = MAIL.replace("\n+b\n", "\n+\xe9\xff\x85\r\n").encode("latin-1")
    assert parse_patch("some.patch", diff).edits[0].hunks[0].new == (b"\xe9\xff\x85\r\n",)


def test_a_patch_without_a_diff_is_read() -> None:
    patch = parse_patch("some.patch", MAIL[: MAIL.index("diff --git")].encode())
    assert (patch.slug, patch.edits) == ("do-it", ())


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.patch: the series names this patch, and there is no such file"):
        read_patch(tmp_path / "gone.patch")


# ---- trailers, beside git's own reading of them


def trailers_of_git(folder: Path, text: str) -> tuple[tuple[str, str], ...]:
    out = git_bytes(folder, "interpret-trailers", "--parse", stdin=text.encode()).decode()
    return tuple((key, value) for key, _, value in (line.partition(": ") for line in out.split("\n")[:-1]))


@pytest.mark.parametrize(
    ("block", "found"),
    [
        ("Slug: x\nScope: any", (("Slug", "x"), ("Scope", "any"))),
        ("Slug: x", (("Slug", "x"),)),
        ("Drop-When: One\n sentence", (("Drop-When", "One sentence"),)),
        ("Drop-When: One\n  long\n  sentence\nSlug: x", (("Drop-When", "One long sentence"), ("Slug", "x"))),
        ("Issue: a#1\nIssue: b#2", (("Issue", "a#1"), ("Issue", "b#2"))),
        ("Signed-off-by: Ann <a@b>\nSlug: x", (("Signed-off-by", "Ann <a@b>"), ("Slug", "x"))),
        ("Slug: x: y", (("Slug", "x: y"),)),
        ("words alone", ()),
        ("Slug:", ()),
    ],
)
def test_trailers_are_those_that_git_finds(tmp_path: Path, block: str, found: tuple[tuple[str, str], ...]) -> None:
    text = f"toy: it\n\nWords: not a trailer.\nmore.\n\n{block}\n"
    assert parse_trailers(text) == found
    if block != "Slug:":
        assert trailers_of_git(tmp_path, text) == found


ROWS = st.sampled_from([
    "Slug: x", "Scope: any", "Signed-off-by: Ann <a@b>", "Drop-When: One", " more", "words", "Key-: v", "", "Slug: x  ",
    "A: é", "Fixes: #1: y",
])  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(ROWS, min_size=1, max_size=7))
def test_whatever_we_take_for_trailers_git_does_too(tmp_path_factory: pytest.TempPathFactory, rows: list[str]) -> None:
    """We may be stricter (a block with other lines in it has none); never laxer, never with other values."""
    text = "toy: it\n\n" + "\n".join(rows) + "\n"
    ours = parse_trailers(text)
    if ours:
        theirs = trailers_of_git(tmp_path_factory.getbasetemp(), text)
        assert [(key, value.rstrip()) for key, value in ours] == list(theirs)


def test_a_subject_alone_has_no_trailers_even_if_it_looks_like_one() -> None:
    assert parse_trailers("Slug: x\n") == ()
    assert parse_trailers("Slug: x") == ()


# ---- git am, as a stranger would use the patch files


AUTHORS = {
    "plain": ("Ann", "ann@example.org"),
    "umlaut": ("Zoë Müller", "z@example.org"),
    "comma": ("Doe, John Q.", "j@example.org"),
    "quotes": ('Jo "the pin" Doe', "j@example.org"),
    "backslash": ("back\\slash", "b@example.org"),
    "kanji": ("山田太郎", "y@example.org"),
    "folded": ("Überaus Langer Name Von Und Zu Hohen Bergen", "a-long-name-with-many-parts@mail.example.org"),
    "brackets": ("Ann (tools)", "a@example.org"),
    "apostrophe": ("O'Neil", "o'neil@example.org"),
    "at": ("ann@example.org", "ann@example.org"),
}
DATES = ["2026-03-01T12:00:00+0100", "2001-09-09T01:46:40+0000", "2026-12-31T23:59:59-1130", "2026-02-28T00:00:00+1400",
         "1999-12-31T23:59:59+0000"]  # fmt: skip


def exported(toy: Toy, clone: Path) -> tuple[Series, list[bytes]]:
    """The series that the clone's branch exports to, and its mails, in order."""
    made = export_commits(opened(toy, clone))
    names = made.files["series"].decode().split()
    mails = [made.files[f"{name}.patch"] for name in names]
    patches = tuple(parse_patch(name, mail) for name, mail in zip(names, mails, strict=True))
    return Series(toy.pin(), patches), mails


def built(toy: Toy, clone: Path, series: Series) -> list[tuple[str, ...]]:
    """The history that `build` makes of the series."""
    repo, base = Repository(clone), toy.pin().commit
    made = build(repo, base, series, base_contents(repo, base, series))
    return history(clone, base, made.tip)


def test_git_am_makes_of_every_patch_file_what_apply_makes_of_it(toy: Toy) -> None:
    """Author, date, message and tree, over every kind of name, date and message; and the commit was the same before."""
    clone = author_clone(toy)
    for number, (name, (who, mail)) in enumerate(AUTHORS.items()):
        env = {"GIT_AUTHOR_NAME": who, "GIT_AUTHOR_EMAIL": mail, "GIT_AUTHOR_DATE": DATES[number % len(DATES)]}
        say(clone, message(f"author-{name}"), env)
    for name, subject in (
        ("long-subject", "toy: " + "very " * 40 + "long"),
        ("kanji", "toy: 山田" * 12),
        ("q", 'toy: "x" <y>'),
    ):
        say(clone, message(name, subject))
    say(
        clone,
        message("indented").replace("What breaks", "    diff --git a/x b/x\n    --- a/x\n\tcode\n\n> What breaks"),
    )
    say(clone, message("folded", Drop_When="One sentence\n that is long."))
    write(
        clone,
        {
            "python/toy/dos.py": b"A = 9\r\nB = 2\r\nC = 3\r\n",
            "python/toy/bare.txt": "one\ntwo\nfour",
            "python/toy/core.py": None,
        },
    )
    write(clone, {"python/toy/new file é.py": b"\xe9\n", "python/toy/core.py": "back\n", "python/toy/void.py": ""})
    say(clone, message("files"))
    series, mails = exported(toy, clone)
    ours = built(toy, clone, series)
    assert history(taken_by_am(toy, mails), toy.pin().commit) == ours
    assert history(clone, toy.pin().commit) == ours


LINES = [
    "From the start", ">From x", "From: x <x@y>", "from: x <x@y>", "Subject: x", "subject: x", "Date: x", "date: x",
    "---",
    "--- x", "---  ", "----", "-- ", "--", "diff -u x", "diff --git a/x b/x", "Diff -u", "Index: x", "index: x",
    "[PATCH] x",
    "-- >8 --", "8< ---- 8<", "# ---- >8 ----", "blanks  ", "\tx", "a\r", "Cc: x <x@y>", "Content-Type: text/html",
    "*** x",
    "> quoted", "@@ -1 +1 @@", "\x0c", "+++ b/x", "Signed-off-by: Ann <a@b>", "Slug: other", "Message-ID: <x>",
    "first\n\n\nsecond",
]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("place", ["first", "inside"])
def test_what_lint_lets_pass_git_am_takes_unchanged(toy: Toy, line: str, place: str) -> None:
    words = "What breaks, and how it is known.\n"
    body = f"{line}\n{words}" if place == "first" else f"{words}{line}\n{words}"
    _check_am(toy, message("right-answer").replace(words, body))


@pytest.mark.parametrize(
    "subject",
    ["re: it", "Re: it", "toy: [PATCH] it", "toy:  two  blanks", "a.b/c-d: it", "toy: =?UTF-8?q?x?=", "toy: =?a?="],
)
def test_a_subject_that_lint_lets_pass_git_am_takes_unchanged(toy: Toy, subject: str) -> None:
    _check_am(toy, message("right-answer", subject))


def _check_am(toy: Toy, text: str) -> None:
    clone = author_clone(toy)
    say(clone, text)
    try:
        series, mails = exported(toy, clone)
        if lint_series(toy.home, series):
            return
    except OverlayError:
        return
    found = history(taken_by_am(toy, mails), toy.pin().commit)
    assert found == built(toy, clone, series)


def test_git_finds_the_same_trailers_in_every_patch_of_the_toy(toy: Toy) -> None:
    for patch in (*toy.series().patches, *toy.series("gear").patches):
        assert trailers_of_git(toy.root, patch.message) == patch.trailers


def test_a_patch_read_from_its_file_is_the_same_as_from_the_series(toy: Toy) -> None:
    patch = read_patch(toy.home.patches("v1", "toy") / "bring-hook.patch")
    whole = toy.series().patches[1]
    assert patch == replace(whole, edits=tuple(edit for edit in whole.edits if edit.whole is None))
