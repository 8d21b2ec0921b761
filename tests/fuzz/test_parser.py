"""The parser on any bytes: what git writes is read whole, anything else is refused with its line or means the same."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm120_overlay.errors import Refused, UsageError
from sm120_overlay.queue.diff import ESCAPED, parse_sections, quote, unquote
from sm120_overlay.queue.mail import FIRST, parse_patch
from sm120_overlay.queue.patch import Edit
from sm120_overlay.queue.paths import is_plain
from sm120_overlay.queue.place import place

from ..queue.toy import commit_pair, git_bytes, mail_of
from .given import NAMES, Pair, damaged, examples, pairs

SENTENCE = re.compile(r"x\.patch:(\d+): [^\n]*\.", re.DOTALL)


def check_sentence(error: UsageError, data: bytes) -> None:
    """It begins with the file and a line that the file has, is one line, and says what to do."""
    match = SENTENCE.fullmatch(error.what)
    assert match, error.what
    assert 1 <= int(match[1]) <= data.count(b"\n") + 1, error.what
    assert error.todo.endswith(".")


def header(edit: Edit) -> str:
    """The header of a section as git writes it for this edit, from the nouns alone."""
    lines = [f"diff --git {quote('a/' + edit.path)} {quote('b/' + edit.path)}"]
    if edit.old is None or edit.new is None:
        lines.append(f"{'new' if edit.old is None else 'deleted'} file mode {edit.mode}")
    index = f"index {edit.old or '0' * 40}..{edit.new or '0' * 40}"
    lines.append(index if edit.old is None or edit.new is None else f"{index} {edit.mode}")
    if edit.hunks:
        tab = "\t" if " " in edit.path else ""
        lines.append(f"--- {quote('a/' + edit.path)}{tab}" if edit.old else "--- /dev/null")
        lines.append(f"+++ {quote('b/' + edit.path)}{tab}" if edit.new else "+++ /dev/null")
    return "\n".join(lines) + "\n"


@pytest.mark.case("non-UTF-8 bytes in a file", target="series", outcome="exact", source="matiasb/python-unidiff#105")
@pytest.mark.case("CRLF line ends upstream", target="series", outcome="exact", source="electron/electron#28360")
@pytest.mark.case("no newline at the end of a file", target="series", outcome="exact")
@pytest.mark.case("lines of a file that look like headers of a diff or a mail", target="series", outcome="exact",
                  source="getpatchwork/patchwork#462")  # fmt: skip
@examples(100)
@given(found=st.lists(pairs(), min_size=1, max_size=8))
def test_every_diff_that_git_writes_is_placed_exactly_as_git_has_it(bare: Path, found: list[Pair]) -> None:
    files = {f"python/toy/{number}": pair for number, pair in enumerate(found) if pair[0] != pair[1]}
    if not files:
        return
    mail = mail_of(bare, *commit_pair(bare, files))
    diff = mail[mail.index(b"\n\ndiff --git ") + 2 :].decode("latin-1")
    sections = parse_sections("x.patch", diff)
    assert "".join(section.text for section in sections) == diff
    assert tuple(section.edit for section in sections) == parse_patch("x.patch", mail).edits
    assert [section.edit.path for section in sections] == sorted(files)
    for section in sections:
        before, after = files[section.edit.path]
        assert section.text.startswith(header(section.edit))
        assert place(section.edit, before) == after


@pytest.mark.case("a path with spaces, quotes, unicode or newlines", target="series", outcome="exact",
                  source="matiasb/python-unidiff#93")  # fmt: skip
@examples(80)
@given(
    names=st.lists(NAMES.filter(is_plain), min_size=1, max_size=6, unique=True),
    change=st.sampled_from(["edit", "new", "deleted", "empty"]),
)
def test_any_plain_path_is_read_and_written_as_git_has_it(bare: Path, names: list[str], change: str) -> None:
    pair: Pair
    pair = {"edit": (b"a\n", b"b\n"), "new": (None, b"b\n"), "deleted": (b"a\n", None)}.get(change, (None, b""))
    files = {f"{number}/{name}": pair for number, name in enumerate(names)}
    mail = mail_of(bare, *commit_pair(bare, files))
    edits = parse_patch("mail", mail).edits
    assert {edit.path for edit in edits} == files.keys()
    for edit in edits:
        assert header(edit).encode("latin-1") in mail


@examples(100)
@given(paths=st.lists(st.binary(min_size=1, max_size=12), min_size=1, max_size=10, unique=True))
def test_any_path_is_quoted_as_git_quotes_it(bare: Path, paths: list[bytes]) -> None:
    """git cannot hold every path in a tree; `ls-files` on a made-up index can hold those that it can."""
    plain = [path for path in paths if is_plain(os.fsdecode(path))]
    if not plain:
        return
    index = {"GIT_INDEX_FILE": str(bare / "index-of-paths")}
    entries = b"".join(b"100644 %s\t%d/%s\0" % (b"e" * 40, at, path) for at, path in enumerate(plain))
    git_bytes(bare, "read-tree", "--empty", env=index)
    git_bytes(bare, "update-index", "-z", "--index-info", stdin=entries, env=index)
    said = git_bytes(bare, "ls-files", env=index).decode("latin-1").split("\n")[:-1]
    named = [os.fsdecode(b"%d/%s" % (at, path)) for at, path in enumerate(plain)]
    assert sorted(said) == sorted(map(quote, named))
    assert sorted(map(unquote, said)) == sorted(named)


@examples(300)
@given(name=st.binary(min_size=1, max_size=12))
def test_quoting_a_path_loses_nothing(name: bytes) -> None:
    path = os.fsdecode(b"a/" + name)
    assert unquote(quote(path)) == path
    assert "\n" not in quote(path)


PIECES = [FIRST, "From: Ann <a@b>", "Date: Sun, 1 Mar 2026 12:00:00 +0100", "Subject: toy: it", "", "Slug: x",
          "diff --git a/p b/p", 'diff --git "a/\\377" "b/\\377"', 'diff --git "a/\\777" "b/\\777"',
          f"index {'1' * 40}..{'2' * 40} 100644", f"index {'0' * 40}..{'2' * 40}", "new file mode 100644",
          "deleted file mode 100755", "--- a/p", "+++ b/p", "--- /dev/null", "+++ /dev/null", '+++ "b/\\777"',
          "@@ -1 +1 @@", "@@ -0,0 +1 @@", "@@ -1,2 +1,9 @@ def", f"@@ -{'9' * 5000} +1 @@", "-a", "+b", " c",
          "\\ No newline at end of file"]  # fmt: skip


@examples(400)
@given(data=st.one_of(
    st.binary(max_size=300),
    st.lists(st.one_of(st.sampled_from(PIECES).map(str.encode), st.binary(max_size=5)), max_size=14).map(b"\n".join),
    st.lists(st.sampled_from(PIECES[6:]), max_size=9).map(lambda lines: "\n".join([*PIECES[:6], "", *lines]).encode()),
))  # fmt: skip
def test_any_bytes_are_a_patch_or_one_sentence_with_a_line(data: bytes) -> None:
    try:
        parse_patch("x.patch", data, 1)
    except UsageError as error:
        check_sentence(error, data)


@examples(100)
@given(data=st.data())
def test_without_a_line_no_number_is_said(data: st.DataObject) -> None:
    """Of a commit, where a line means nothing."""
    text = data.draw(damaged("\n".join(PIECES[:7]).encode()))
    with contextlib.suppress(UsageError):
        parse_patch("x.patch", text, 1)
        return
    with pytest.raises(UsageError, match=r"^commit abc: "):
        parse_patch("commit abc", text)


NUMBERS = b"".join(b"line %d\n" % number for number in range(40))
RICH: dict[str, Pair] = {
    "deleted": (b"one\ntwo\n", None),
    "emptied": (b"one\n", b""),
    "gains end": (b"a\nb", b"a\nb\n"),
    "hunks": (NUMBERS, NUMBERS.replace(b"line 5\n", b"").replace(b"line 25\n", b"x\r\ny\n")),
    "loses": (b"a\nb\n", b"a\nb"),
    "new": (None, b"\n-- \n--- a\n"),
    "void": (None, b""),
    "wöid": (b"", None),
    "zz": (b"same\n" * 8, b"same\n" * 4 + b"SAME\n" + b"same\n" * 3),
}


@pytest.fixture(scope="module")
def mails(bare: Path) -> dict[str, bytes]:
    """Path → the mail that changes it alone; and all of them in one, under an empty name."""
    alone = {path: mail_of(bare, *commit_pair(bare, {path: pair})) for path, pair in RICH.items()}
    return alone | {"": mail_of(bare, *commit_pair(bare, RICH))}


def test_the_patches_that_are_damaged_below_are_whole_before(mails: dict[str, bytes]) -> None:
    for mail in mails.values():
        for edit in parse_patch("x.patch", mail, 1).edits:
            before, after = RICH[edit.path]
            assert place(edit, before) == after


def applied_by_git(tree: Path, diff: bytes) -> dict[str, bytes] | None:
    """Path → bytes after `git apply` onto RICH's files; None where git refuses."""
    for file in tree.iterdir():
        if file.is_file():
            file.unlink()
    for path, (before, _) in RICH.items():
        if before is not None:
            (tree / path).write_bytes(before)
    try:
        git_bytes(tree, "apply", "--whitespace=nowarn", stdin=diff, env={"GIT_CEILING_DIRECTORIES": str(tree.parent)})
    except subprocess.CalledProcessError:
        return None
    return {path: (tree / path).read_bytes() for path in RICH if (tree / path).is_file()}


@examples(200)
@given(data=st.data())
def test_a_damaged_patch_is_refused_or_means_what_git_makes_of_it(
    tree: Path, mails: dict[str, bytes], data: st.DataObject
) -> None:
    mail = mails[data.draw(st.sampled_from(sorted(mails)))]
    at = mail.index(b"diff --git ")
    diff = data.draw(damaged(mail[at:]))
    try:
        edits = parse_patch("x.patch", mail[:at] + diff, 1).edits
        placed = {edit.path: place(edit, RICH.get(edit.path, (None, None))[0]) for edit in edits}
    except UsageError as error:
        check_sentence(error, mail[:at] + diff)
        return
    except Refused as error:
        assert error.what.endswith(".")
        return
    if not edits:  # its first line is none of a diff any more, so all of it is message; a series refuses it
        assert not diff.startswith(b"diff --git ")
        return
    wanted = {path: before for path, (before, _) in RICH.items()} | placed
    found = applied_by_git(tree, b"diff --git " + diff.partition(b"diff --git ")[2])
    assert found is not None, "git refuses what we take"
    assert found == {path: after for path, after in wanted.items() if after is not None}


def test_an_escape_that_git_does_not_write_is_left_as_it_is() -> None:
    assert unquote('"a/\\777"') == "a/\\777"
    assert unquote('"a/\\377"') == os.fsdecode(b"a/\xff")
    assert {unquote(f'"\\{code}"') for code in ESCAPED} == set(ESCAPED.values())
