"""Diffs that are whole, in the forms in which people make them: each gives the very bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sm120_overlay.queue.diff import unquote
from sm120_overlay.queue.fitting import How

from ..queue.toy import git, git_bytes, write
from .people import after, parse, put

BEFORE = {
    "core.py": b"".join(b"def f%d():\n    return %d\n" % (number, number) for number in range(20)),
    "dos.py": b"A = 1\r\nB = 2\r\nC = 3\r\n",
    "bare.txt": b"one\ntwo\nthree",
    "latin.py": b"# caf\xe9\nx = 1\n",
    "gone.py": b"x = 1\n",
    "empty.py": b"",
    "to/be/moved.py": b"".join(b"line %d\n" % number for number in range(30)),
}
AFTER = {
    "core.py": BEFORE["core.py"].replace(b"return 7", b"return 77").replace(b"return 17\n", b""),
    "dos.py": b"A = 1\r\nB = 22\r\nC = 3\r\n",
    "bare.txt": b"one\ntwo\nfour\n",
    "latin.py": b"# th\xe9\nx = 1\n",
    "empty.py": b"no longer",
    "moved.py": BEFORE["to/be/moved.py"].replace(b"line 20\n", b"line twenty\n"),
    "new.py": b"brand\nnew\n",
    "new/__init__.py": b"",
}


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository at BEFORE, with AFTER in work tree and index."""
    folder = tmp_path_factory.mktemp("repo")
    git(folder, "init", "-q")
    write(folder, BEFORE)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "before")
    write(folder, {**dict.fromkeys(BEFORE.keys() - AFTER.keys()), **AFTER})
    git(folder, "add", "-A")
    return folder


FORMS = {
    "as it comes": (),
    "whole blobs": ("--full-index",),
    "four digits": ("--abbrev=4",),
    "renames": ("-M",),
    "no renames": ("--no-renames",),
    "copies": ("-C", "--find-copies-harder"),
    "no prefix": ("--no-prefix",),
    "other prefixes": ("--src-prefix=i/", "--dst-prefix=w/"),
    "no context": ("-U0",),
    "much context": ("-U40",),
    "whole functions": ("-W",),
    "patience": ("--patience", "--inter-hunk-context=5"),
    "with a summary": ("--stat", "--summary", "-p"),
    "with raw lines": ("--patch-with-raw",),
}


@pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)
def test_a_diff_of_gits_gives_the_very_files_whatever_its_form(repo: Path, options: tuple[str, ...]) -> None:
    diff = git_bytes(repo, "diff", "--cached", *options)
    placed = put(diff, BEFORE)
    assert {one.how for one in placed} == {How.EXACT}
    assert after(placed, BEFORE) == AFTER


def test_mnemonic_prefixes_are_no_part_of_the_name(repo: Path) -> None:
    diff = git_bytes(repo, "-c", "diff.mnemonicPrefix=true", "diff", "--cached")
    assert b"diff --git c/core.py i/core.py" in diff
    assert after(put(diff, BEFORE), BEFORE) == AFTER


@pytest.mark.parametrize(
    "said", [("show",), ("log", "-p", "-1"), ("stash", "show", "-p")], ids=["show", "log -p", "stash show -p"]
)
def test_a_commit_that_git_shows_is_read_behind_its_message(repo: Path, said: tuple[str, ...], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(repo, copy)
    git(copy, *(("stash",) if said[0] == "stash" else ("commit", "-q", "-m", "after\n\n- one\n+ two\n--- three")))
    diff = git_bytes(copy, *said)
    assert after(put(diff, BEFORE), BEFORE) == AFTER


def test_a_diff_behind_prose_and_before_a_signature_is_whole(repo: Path) -> None:
    diff = git_bytes(repo, "diff", "--cached")
    prose = b"Hi all,\n\n- this mends it\n* tested\n@@ me if it does not\n\n"
    assert after(put(prose + diff + b"-- \nAnn, Example Ltd\n+49 123\n", BEFORE), BEFORE) == AFTER


def test_two_diffs_in_one_file_go_on_one_after_the_other(repo: Path) -> None:
    first = git_bytes(repo, "diff", "--cached", "core.py")
    index = git(repo, "rev-parse", ":core.py").strip()
    twice = AFTER["core.py"].replace(b"return 77", b"return 777")
    blob = git_bytes(repo, "hash-object", "-w", "--stdin", stdin=twice).decode().strip()
    second = git_bytes(repo, "diff", index, blob).replace(index.encode(), b"core.py").replace(blob.encode(), b"core.py")
    found = parse(first + b"-- \n2.39.5\n\nand then\n\n" + second)
    assert [one.path for one in found] == ["core.py", "core.py"]
    (one,) = put(second, {"core.py": AFTER["core.py"]})
    assert one.after.data == twice


NAMES = [
    "a b.py",
    "é.py",
    'q"uote.py',
    "tab\there.py",
    "back\\slash.py",
    "x b/x.py",
    "new\nline.py",
    "\udcff.py",
    " lead.py",
]


@pytest.mark.case("a path with spaces, quotes, unicode or newlines", target="adopt", outcome="exact")
@pytest.mark.case("non-UTF-8 bytes in a file", target="adopt", outcome="exact")
@pytest.mark.case("a foreign diff with a rename or an empty file", target="adopt", outcome="exact")
@pytest.mark.parametrize("kind", ["changed", "new", "gone", "renamed", "emptied"])
def test_any_name_is_read_as_git_means_it(kind: str, tmp_path: Path) -> None:
    texts = {name: b"".join(b"%d \xe9%d\n" % (number, at) for number in range(9)) for at, name in enumerate(NAMES)}
    before: dict[str, bytes] = {} if kind == "new" else texts
    wanted = {name: text + b"10\n" for name, text in texts.items()}
    if kind == "renamed":
        wanted = {f"in/{name}": text for name, text in wanted.items()}
    elif kind in ("gone", "emptied"):
        wanted = dict.fromkeys(texts, b"") if kind == "emptied" else {}
    git(tmp_path, "init", "-q")
    for files in (before, wanted):
        write(tmp_path, {**dict.fromkeys(before.keys() - files.keys()), **files})
        git(tmp_path, "add", "-A")
        if files is before:
            git(tmp_path, "commit", "-q", "--allow-empty", "-m", "x")
    for quoting in ("true", "false"):
        diff = git_bytes(tmp_path, "-c", f"core.quotePath={quoting}", "diff", "--cached", "-M")
        assert after(put(diff, before), before) == wanted


def test_an_executable_new_file_is_taken_and_said(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    write(tmp_path, {"run.sh": "#!/bin/sh\n"})
    (tmp_path / "run.sh").chmod(0o755)
    git(tmp_path, "add", "-A")
    (placed,) = put(git_bytes(tmp_path, "diff", "--cached", git_bytes(tmp_path, "mktree").decode().strip()), {})
    assert (placed.how, placed.after.mode) == (How.EXACT, "100755")
    assert "executable" in placed.why


def test_the_mode_of_a_file_that_is_there_never_changes() -> None:
    diff = b"diff --git a/x b/x\nindex 5626abf..814f4a4 100755\n--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n one\n+two\n"
    (placed,) = put(diff, {"x": b"one\n"})
    assert (placed.how, placed.after.mode, placed.after.data) == (How.EXACT, "100644", b"one\ntwo\n")


def gnu_diff(folder: Path, *options: str) -> bytes:
    """`diff OPTIONS old new`, which exits 1 where there are differences."""
    env = {**os.environ, "LC_ALL": "C", "TZ": "America/New_York"}
    done = subprocess.run(["diff", *options, "old", "new"], cwd=folder, env=env, capture_output=True, check=False)
    return done.stdout


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """The folders `old` and `new`, as people keep a copy aside."""
    write(tmp_path / "old", {path: data for path, data in BEFORE.items() if path != "to/be/moved.py"})
    write(tmp_path / "new", {path: data for path, data in AFTER.items() if path not in ("moved.py", "new/__init__.py")})
    return tmp_path


@pytest.mark.parametrize("options", [("-ruN",), ("-rupN",), ("-r", "-U5", "-N")], ids=" ".join)
def test_a_plain_diff_of_two_folders_knows_new_and_deleted_files_by_their_date(
    pair: Path, options: tuple[str, ...]
) -> None:
    (pair / "new" / "bare.txt").write_bytes(b"one\ntwo\nfour")
    (pair / "old" / "empty.py").write_bytes(b"x\n")
    before = {str(path.relative_to(pair / "old")): path.read_bytes() for path in (pair / "old").rglob("*.*")}
    wanted = {str(path.relative_to(pair / "new")): path.read_bytes() for path in (pair / "new").rglob("*.*")}
    found = parse(gnu_diff(pair, *options))
    assert {one.path: one.source is None for one in found if one.path} == {
        "new/bare.txt": False, "new/core.py": False, "new/dos.py": False, "new/empty.py": False,
        "new/latin.py": False, "new/new.py": True,
    }  # fmt: skip
    placed = put(gnu_diff(pair, *options).replace(b" old/", b" ").replace(b" new/", b" "), before)
    assert after(placed, before) == wanted


def test_a_copy_kept_aside_is_the_same_file() -> None:
    diff = b"--- x.py.orig\t2026-01-01 00:00:00\n+++ x.py\t2026-01-02 00:00:00\n@@ -1 +1 @@\n-one\n+two\n"
    (placed,) = put(diff, {"x.py": b"one\n"})
    assert (placed.path, placed.after.data) == ("x.py", b"two\n")


def test_a_diff_of_subversions_is_read() -> None:
    diff = (
        b"Index: x.py\n" + b"=" * 67 + b"\n--- x.py\t(revision 1)\n+++ x.py\t(working copy)\n@@ -1 +1 @@\n-one\n+two\n"
    )
    (placed,) = put(diff, {"x.py": b"one\n"})
    assert placed.after.data == b"two\n"


def test_white_space_that_an_editor_took_off_empty_lines_is_put_back() -> None:
    diff = b"diff --git a/x b/x\nindex 814f4a4..1 100644\n--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n one\n\n-two\n+three\n"
    diff = diff.replace(b"814f4a4..1 ", b"b2ca1a6..7dea3a4 ")
    (placed,) = put(diff.replace(b"index b2ca1a6..7dea3a4 100644\n", b""), {"x": b"one\n\ntwo\n"})
    assert placed.after.data == b"one\n\nthree\n"


def test_a_name_that_is_quoted_and_has_a_space_is_read() -> None:
    assert unquote('"a/sp ace\\303\\251"') == "a/sp aceé"
    diff = '--- "a/sp ac\\303\\251.py"\t\n+++ "b/sp ac\\303\\251.py"\t\n@@ -1 +1 @@\n-one\n+two\n'
    heading = 'diff --git "a/sp ac\\303\\251.py" "b/sp ac\\303\\251.py"\n'
    (found,) = parse((heading + diff).encode())
    assert found.path == "sp acé.py"
