"""The stored corpus: one hazard a file, read or refused as tests/corpus/expected.toml says, on every run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay.errors import UsageError
from sm120_overlay.queue.blobs import blob_id
from sm120_overlay.queue.mail import read_patch
from sm120_overlay.queue.pins import load_lines
from sm120_overlay.queue.place import place
from sm120_overlay.queue.series import series_names

from ..queue.scenes import ask, snapshot
from ..queue.toy import Toy
from .test_files import check_sentence

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CORPUS = Path(__file__).resolve().parents[1] / "corpus"
EXPECTED: dict[str, dict[str, Any]] = tomllib.loads((CORPUS / "expected.toml").read_text(encoding="utf-8"))
FILES = [(kind, name) for kind, files in EXPECTED.items() for name in files]
# What the patches that are read were made on.
BEFORE = {blob_id(data): data for data in (
    b"a\n", b"A = 1\r\nB = 2\r\n", b"a", b"a\nz", b"\xe9\xff\n", b"a\x0c\rb\n", b"a\xe2\x80\xa8\xc2\x85b\n", b"-- a\n",
    b"",
)}  # fmt: skip
LINES = {
    "right-answer\nbring-hook": {"plain", "line-ends-of-windows", "no-last-line-end", "blank-lines"},
    "": {"empty"},
}
HAZARDS = {
    "line-ends-of-windows-in-the-file.patch": ("CRLF line ends upstream", "electron/electron#28360"),
    "no-last-line-end.patch": ("no newline at the end of a file", ""),
    "bytes-that-are-no-text.patch": ("non-UTF-8 bytes in a file", "matiasb/python-unidiff#105"),
    "a-path-with-quotes-and-line-end.patch": (
        "a path with spaces, quotes, unicode or newlines", "matiasb/python-unidiff#93"
    ),
    "an-empty-file-comes.patch": ("an empty file", "libgit2/libgit2#5460"),
    "a-path-that-leaves-the-tree.patch": ("a path that leaves the tree", ""),
    "a-rename.patch": ("a rename", "libgit2/libgit2#5460"),
    "a-binary-patch.patch": ("a binary patch", "cruft/cruft#131"),
    "a-mode-change.patch": ("a mode change", "ds300/patch-package#118"),
    "a-symlink.patch": ("a symlink", "conan-io/python-patch-ng#23"),
    "a-submodule.patch": ("a submodule's commit", ""),
    "short-blobs.patch": ("abbreviated blob ids", "pulumi/ci-mgmt#2469"),
    "a-diff-in-the-message.patch": ("a diff in the message", "getpatchwork/patchwork#462"),
    "line-ends-of-windows-all-over.patch": ("a patch file with its line ends changed", "electron/trop#254"),
    "a-message-in-latin-1.patch": ("a message that is not UTF-8", ""),
    "marks-of-a-conflict.patch": ("conflict markers in a file of the series", ""),
    "marks-of-a-conflict.toml": ("conflict markers in a file of the series", ""),
    "marks-of-a-conflict": ("conflict markers in a file of the series", ""),
}  # fmt: skip


def read_placed(file: Path) -> None:
    """Reads a patch, and places it on what it was made on; `place` compares the outcome with the promised blob."""
    for edit in read_patch(file).edits:
        place(edit, None if edit.old is None else BEFORE[edit.old])


def read_listing(file: Path) -> None:
    assert file.name in LINES["\n".join(series_names(file))]


READ: dict[str, Callable[[Path], object]] = {"patch": read_placed, "pins": load_lines, "series": read_listing}


def _marked(kind: str, name: str, refused: bool) -> object:
    what, source = HAZARDS.get(name, ("", ""))
    outcome = "refused" if refused else "exact"
    marks = [pytest.mark.case(what, target="series", outcome=outcome, source=source)] if what else []
    return pytest.param(kind, name, id=f"{kind}-{name}", marks=marks)


def _is_refused(kind: str, name: str) -> bool:
    return bool(EXPECTED[kind][name] != "read")


@pytest.mark.parametrize(("kind", "name"), [_marked(*file, False) for file in FILES if not _is_refused(*file)])
def test_every_stored_file_that_is_right_is_read_and_placed_exactly(kind: str, name: str) -> None:
    READ[kind](CORPUS / kind / name)


@pytest.mark.parametrize(("kind", "name"), [file for file in FILES if _is_refused(*file)])
def test_every_stored_file_that_is_wrong_is_refused_by_its_line(kind: str, name: str) -> None:
    file, expected = CORPUS / kind / name, EXPECTED[kind][name]
    with pytest.raises(UsageError) as error:
        READ[kind](file)
    assert check_sentence(error.value, file, file.read_bytes()) == expected["line"]
    assert expected.get("says", "") in error.value.what


WRONG = [_marked(*file, True) for file in FILES if file[1] in HAZARDS and _is_refused(*file)]


@pytest.mark.parametrize(("kind", "name"), WRONG)
def test_a_wrong_file_in_the_project_is_named_by_apply_and_status_and_nothing_changes(
    toy: Toy, kind: str, name: str
) -> None:
    clone, folder = toy.clone(), toy.home.patches("v1", "toy")
    file = {"patch": folder / "right-answer.patch", "pins": toy.home.pins, "series": folder / "series"}[kind]
    file.write_bytes((CORPUS / kind / name).read_bytes())
    before = snapshot(toy.root, skip=())
    for verb in ("apply", "status"):
        answer = ask(verb, clone)
        assert answer.code == 2
        assert answer.said["error"]["what"].startswith(f"{file}:{EXPECTED[kind][name]['line']}: ")
        assert answer.said["error"]["todo"]
    assert snapshot(toy.root, skip=()) == before


def test_every_file_of_the_corpus_is_in_the_index_and_the_other_way_round() -> None:
    there = {(file.parent.name, file.name) for file in CORPUS.glob("*/*")}
    assert there == set(FILES)
    assert {file.name for file in CORPUS.iterdir()} == {*EXPECTED, "expected.toml"}
    assert HAZARDS.keys() <= {name for _, name in FILES}


def test_git_leaves_the_bytes_of_the_corpus_alone() -> None:
    """A checkout that changed line ends would turn one hazard into another."""
    attributes = (CORPUS.parents[1] / ".gitattributes").read_text(encoding="utf-8")
    assert "/tests/corpus/** -text\n" in attributes
