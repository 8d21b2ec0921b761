"""Diffs that are not whole, or do not say enough: refused by name, and never half of them taken."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from sm120_overlay.errors import UsageError
from sm120_overlay.queue.blobs import blob_id
from sm120_overlay.queue.fitting import PLACED, How

from ..queue.toy import git, git_bytes, write
from .people import parse, put

LINES = b"".join(b"line %d\n" % number for number in range(1, 41))
NEW = LINES.replace(b"line 5\n", b"line five\n").replace(b"line 35\n", b"line 35\n- \n")


@pytest.fixture(scope="module")
def diff(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A diff of two files with two hunks each, with abbreviated blobs."""
    folder = tmp_path_factory.mktemp("repo")
    git(folder, "init", "-q")
    for text in (LINES, NEW):
        write(folder, {"a.py": text, "b.py": text})
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", "x")
    return git_bytes(folder, "diff", "HEAD~1")


TREE = {"a.py": LINES, "b.py": LINES}


def hashless(diff: bytes) -> bytes:
    """The same without headings and blobs."""
    lines = (line for line in diff.splitlines(True) if not line.startswith((b"diff --git", b"index ")))
    return b"".join(re.sub(rb"^(--- |\+\+\+ )[ab]/", rb"\1", line) for line in lines)


def refused(diff: bytes) -> str:
    """The sentence with which a diff is refused: by the parser, or by the file that does not go on."""
    try:
        placed = put(diff, TREE)
    except UsageError as error:
        assert error.todo
        return str(error)
    wrong = [one for one in placed if one.how not in PLACED]
    assert wrong, [(one.path, one.how.value, one.after.data) for one in placed]
    return wrong[0].why


@pytest.mark.case("a damaged diff", target="adopt", outcome="refused", source="PaperMC/paperweight#75")
def test_a_diff_that_is_cut_at_any_line_is_refused_or_loses_whole_files_alone(diff: bytes) -> None:
    lines = diff.splitlines(True)
    second = lines.index(b"diff --git a/b.py b/b.py\n")
    for plain in (False, True):
        for at in range(1, len(lines)):
            cut = b"".join(lines[:at])
            cut = hashless(cut) if plain else cut
            if at == second or (plain and not cut) or (plain and cut == hashless(b"".join(lines[: at - 1]))):
                continue
            if plain and parses(cut):  # cut between two hunks or files, which only blobs can tell
                assert lines[at].startswith((b"@@", b"diff", b"index", b"---")) or lines[at] == lines[-1]
                continue
            assert refused(cut)


def parses(diff: bytes) -> bool:
    """Whether every file of it goes on."""
    try:
        return all(one.how in PLACED for one in put(diff, TREE))
    except UsageError:
        return False


def test_a_diff_whose_beginning_is_lost_is_refused(diff: bytes) -> None:
    lines = diff.splitlines(True)
    second = lines.index(b"diff --git a/b.py b/b.py\n")
    last_hunk = max(at for at in range(second) if lines[at].startswith(b"@@"))
    for at in range(1, last_hunk + 1):
        rest = b"".join(lines[at:])
        if not rest.startswith(b"--- "):  # from there on it is a whole diff, which names no blob
            assert refused(rest)


@pytest.mark.parametrize("number", range(1, 5))
@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("plain", [False, True], ids=["with blobs", "without"])
def test_a_hunk_whose_head_counts_wrong_is_refused(diff: bytes, number: int, by: int, side: int, plain: bool) -> None:
    heads = [line for line in diff.splitlines() if line.startswith(b"@@")]
    spans = heads[number - 1].split(b" ")
    start, count = spans[1 + side].split(b",")
    spans[1 + side] = start + b",%d" % (int(count) + by)
    parts = diff.split(heads[number - 1]) if heads.count(heads[number - 1]) == 1 else cut_at(diff, heads, number)
    assert refused((hashless if plain else bytes)(parts[0] + b" ".join(spans) + parts[1]))


def cut_at(diff: bytes, heads: list[bytes], number: int) -> list[bytes]:
    """Before and behind the head of one hunk."""
    at = [at for at in range(len(diff)) if diff.startswith(b"\n@@", at)][number - 1] + 1
    return [diff[:at], diff[at + len(heads[number - 1]) :]]


def test_a_hunk_that_a_hand_took_out_or_edited_breaks_the_promise(diff: bytes) -> None:
    assert "promises blob" in refused(diff.replace(b"+line five\n", b"+line 5.0\n", 1))
    first, second = (at for at in range(len(diff)) if diff.startswith(b"\n@@", at) and at < diff.index(b"a/b.py"))
    end = diff.index(b"\ndiff --git a/b.py")
    assert "promises blob" in refused(diff[:second] + diff[end:])
    assert refused(diff[:first] + diff[second:end] + b"\n" + diff[first + 1 : second] + diff[end:])  # out of order


ODD = {
    "tabs that a mailer made spaces": (b" line 4\n", b"  line 4\n"),
    "a wrapped line": (b"+line five\n", b"+line\nfive\n"),
    "a line that someone wrote in": (b"+line five\n", b"+line five\nsee here\n"),
    "a line too much behind a hunk": (b" line 8\n", b" line 8\n+line nine\n"),
    "a removed line too much": (b" line 8\n", b" line 8\n-line 9\n"),
    "a quoted line": (b"+line five\n", b"> +line five\n"),
    "no names at all": (b"diff --git a/a.py b/a.py\n", b"--- \n+++ \n@@ -0,0 +1 @@\n+x\ndiff --git a/a.py b/a.py\n"),
    "neither file": (b"diff --git a/a.py", b"--- /dev/null\n+++ /dev/null\n@@ -0,0 +1 @@\n+x\ndiff --git a/a.py"),
    "a symbolic link's mode that is none": (b" 100644\n--- a/a.py", b" 100644\nnew file mode 100999\n--- a/a.py"),
    "a merge's combined diff": (b"diff --git a/a.py b/a.py\n", b"diff --cc a.py\n"),
    "a binary named before": (b"diff --git a/a.py", b"Binary files old/x.so and new/x.so differ\ndiff --git a/a.py"),
    "a file named before": (b"diff --git a/a.py", b"Only in new/srt: x.py\ndiff --git a/a.py"),
    "a submodule's log before": (b"diff --git a/a.py", b"Submodule sgl 1234567..7654321:\ndiff --git a/a.py"),
    "a rename without its heading": (b"diff --git a/a.py", b"rename from c.py\nrename to d.py\ndiff --git a/a.py"),
    "a new file that is cut": (b"diff --git a/a.py", b"diff --git a/c b/c\nnew file mode 100644\ndiff --git a/a.py"),
    "another name than the heading's": (b"+++ b/a.py", b"+++ b/c.py"),
    "two names and no rename": (b"diff --git a/a.py b/a.py\n", b"diff --git a/a.py b/c.py\n"),
    "a heading that names one file": (b"diff --git a/a.py b/a.py\n", b"diff --git a/a.py\n"),
    "a second file whose heading is lost": (
        b"diff --git a/a.py",
        b"diff --git a/c b/c\nnew file mode 100644\nindex 0000000..e69de29\nnew file mode 100644\n"
        b"index 0000000..e69de29\ndiff --git a/a.py",
    ),
    "a name alone": (b"diff --git a/a.py", b"diff --git a/c.py b/c.py\ndiff --git a/a.py"),
    "a rename that is cut": (
        b"diff --git a/a.py",
        b"diff --git a/b.py b/c.py\nsimilarity index 90%\nrename from b.py\nrename to c.py\ndiff --git a/a.py",
    ),
    "a file behind a signature that is cut": (b" line 8\n", b" line 8\n-- \n2.39.5\n"),
}


@pytest.mark.parametrize("old, new", ODD.values(), ids=ODD)
def test_what_is_no_diff_is_never_passed_over(diff: bytes, old: bytes, new: bytes) -> None:
    damaged = diff.replace(old, new, 1)
    assert damaged != diff
    assert refused(damaged)


def test_a_file_behind_a_signature_is_not_lost_where_it_has_no_heading(diff: bytes) -> None:
    plain = hashless(diff)
    second = plain.index(b"--- b.py")
    boxed = plain[:second] + b"-- \nAnn\n\nthe next one\n" + plain[second:]
    assert [(one.path, one.after.data) for one in put(boxed, TREE)] == [("a.py", NEW), ("b.py", NEW)]


def test_a_second_commit_in_a_log_is_refused_with_the_way_to_adopt_it(diff: bytes) -> None:
    with pytest.raises(UsageError) as caught:
        parse(b"commit " + b"1" * 40 + b"\n\n    x\n\n" + diff + b"\ncommit " + b"2" * 40 + b"\n\n    y\n\n" + diff)
    assert "second commit" in caught.value.what
    assert "A..B" in caught.value.todo


def test_colour_codes_are_named(tmp_path: Path) -> None:
    write(tmp_path, {"a": "1\n", "b": "2\n"})
    done = subprocess.run(
        ["git", "diff", "--color=always", "--no-index", "a", "b"], cwd=tmp_path, capture_output=True, check=False
    )
    with pytest.raises(UsageError) as caught:
        parse(done.stdout)
    assert "colour codes" in caught.value.what


@pytest.mark.parametrize(
    "change", [b"--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-a\n+b\n", b"", b"nothing here\n", b"\xff\xfed\0i\0f\0f\0"],
    ids=["short", "empty", "prose", "utf-16"],
)  # fmt: skip
def test_what_is_no_diff_is_said_to_be_none(change: bytes) -> None:
    with pytest.raises(UsageError):
        parse(change)


TWICE = LINES + LINES


@pytest.mark.case("moved or duplicated context", target="adopt", outcome="refused",
                  source="landley/toybox#533")  # fmt: skip
@pytest.mark.parametrize("hunk, said", [
    (b"@@ -4,3 +4,4 @@\n line 4\n line 5\n line 6\n+new\n", "more than one place"),
    (b"@@ -4,0 +5 @@\n+new\n", "no line to know its place by"),
    (b"@@ -5,3 +5,4 @@\n line 4\n line 5\n line 6\n+new\n", "does not fit"),
    (b"@@ -39,2 +39,3 @@\n line 39\n line 40\n+new\n\\ No newline at end of file\n", "is at the end of its file"),
])  # fmt: skip
def test_a_hunk_without_blobs_goes_where_only_it_can_stand_or_nowhere(hunk: bytes, said: str) -> None:
    text = LINES + b"x\n" if "at the end" in said else TWICE
    (placed,) = put(b"--- x\n+++ x\n" + hunk, {"x": text})
    assert (placed.how, said in placed.why) == (How.UNKNOWN, True), placed


def test_with_blobs_a_hunk_among_its_like_is_exact() -> None:
    made = TWICE.replace(b"line 6\n", b"line 6\nnew\n", 1)
    index = f"index {blob_id(TWICE)[:7]}..{blob_id(made)[:7]} 100644\n".encode()
    hunk = b"@@ -4,3 +4,4 @@\n line 4\n line 5\n line 6\n+new\n"
    (placed,) = put(b"diff --git a/x b/x\n" + index + b"--- a/x\n+++ b/x\n" + hunk, {"x": TWICE})
    assert (placed.how, placed.after.data) == (How.EXACT, made)


@pytest.mark.parametrize("options", [("-w",), ("-b", "-U1"), ("--ignore-blank-lines",)], ids=" ".join)
def test_a_diff_that_leaves_white_space_out_is_refused_or_right(options: tuple[str, ...], tmp_path: Path) -> None:
    old = b"def f():\n    a\n    b\n\n    c\n"
    new = b"def f():\n        a\n    b\n    c\n    d\n"
    git(tmp_path, "init", "-q")
    for text in (old, new):
        write(tmp_path, {"x": text})
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-q", "-m", "x")
    (placed,) = put(git_bytes(tmp_path, "diff", *options, "HEAD~1"), {"x": old})
    assert placed.how is How.DAMAGED or placed.after.data == new


def test_a_deletion_without_its_lines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        parse(b"diff --git a/x b/x\ndeleted file mode 100644\nindex 5626abf..0000000\n")


def test_a_new_file_whose_hunk_has_old_lines_is_damaged() -> None:
    diff = (
        b"diff --git a/x b/x\nnew file mode 100644\nindex 0000000..5626abf\n--- /dev/null\n+++ b/x\n@@ -1,2 +1,2 @@\n"
    )
    (placed,) = put(diff + b" one\n-two\n+three\n", {})
    assert (placed.how, "does not fit" in placed.why) == (How.DAMAGED, True)
