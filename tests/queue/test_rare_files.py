"""Files that few users meet: pins and patches that are wrong in rare ways, mails and files that git cannot read."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from git.exc import GitCommandError

from sm120_overlay.errors import Missing
from sm120_overlay.queue.git import GitError, _no_library
from sm120_overlay.queue.merge import merge
from sm120_overlay.queue.transaction import Workplace, Write, transact

from .scenes import ask
from .test_rare import error
from .toy import Toy, git, write

PLAIN = "--- a/python/toy/bare.txt\n+++ b/python/toy/bare.txt\n@@ -1,2 +1,2 @@\n-one\n+ONE\n two\n"
PINS = {
    "a line's name": ("[line.v1", '[line."v 1"', "expected a name of letters, digits"),
    "a line of nothing": ('default = "v1"', 'default = "v1"\n[line.v2.joint]\ntorch = "1"', "at least one upstream"),
    "one place for two": ('"include/" = "gear/data/include/"', '"include/" = "gear/data/csrc/"', "expected one place"),
    "a path outside": ('excluded = ["gear/data/"]', 'excluded = ["../gear"]', "expected plain paths inside the tree"),
}


@pytest.mark.parametrize(("text", "instead", "said"), PINS.values(), ids=PINS)
def test_pins_that_are_wrong_are_refused_with_their_line(toy: Toy, text: str, instead: str, said: str) -> None:
    pins = toy.home.pins.read_text()
    assert text in pins
    toy.home.pins.write_text(pins.replace(text, instead))
    for verb in ("status", "lint"):
        code, what = error(verb)
        assert code == 2
        assert what.startswith(f"{toy.home.pins}:")
        assert said in what


def test_a_patch_that_changes_a_file_twice_is_refused_with_the_line_of_the_second(toy: Toy) -> None:
    file = toy.home.patches("v1", "toy") / "right-answer.patch"
    text = file.read_text()
    section = text[text.index("diff --git ") :]
    file.write_text(text.rstrip("\n") + "\n" + section)
    line = text.count("\n") + 1
    code, what = error("status", toy.clone())
    assert (code, what) == (2, f"{file}:{line}: expected one section for each file, found a second one of "
                               "python/toy/core.py.")  # fmt: skip


def test_a_machine_without_memory_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: list[str]) -> int:
        raise MemoryError

    monkeypatch.setattr("sm120_overlay.cli.import_module", lambda name: SimpleNamespace(main=fail))
    code, what = error("lint")
    assert code == 4
    assert "memory" in what


def test_a_binary_file_is_not_merged() -> None:
    assert merge(b"a\0b\n", b"a\0c\n", b"a\0d\n") is None


def test_a_merge_that_git_could_not_do_is_no_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sm120_overlay.queue.merge.attempt", lambda *_: (255, b"", "error: No space left on device"))
    with pytest.raises(GitError, match="git merge-file failed: No space left"):
        merge(b"a\n", b"b\n", b"a\n")


def test_a_closed_standard_input_is_no_change_to_adopt(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = toy.clone()
    assert ask("apply", clone).code == 0
    before = git(clone, "log", "--all", "--format=%H")
    monkeypatch.setattr(sys, "stdin", None)
    assert error("adopt", "-", clone) == (2, "-: standard input is closed.")
    assert git(clone, "log", "--all", "--format=%H") == before


def test_what_cannot_be_undone_at_once_is_kept_and_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"before")
    place = Workplace(tmp_path / "git" / "ours", tmp_path)
    place.folder.parent.mkdir()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "elsewhere")

    with pytest.raises(Missing, match=r"half done .* and it cannot be undone now"):
        transact(place, [Write("file", b"before", b"after")], {}, full, full)
    assert place.journal.is_file()
    assert (place.folder / "before" / "0").read_bytes() == b"before"


def test_file_names_that_are_not_utf8_are_refused(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    assert error("lint") == (4, "Python takes file names for ascii here, expected utf-8.")


def test_a_git_that_is_too_old_is_told_from_a_folder_that_is_no_checkout(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sm120_overlay.queue.checkout.git_version", lambda repo: (2, 25, 1))
    assert error("status", toy.root) == (4, "git 2.25.1 is too old; expected 2.34 or newer.")


def test_a_git_that_is_there_and_broken_is_told_from_one_that_is_missing() -> None:
    broken = ImportError("git executable")
    broken.__cause__ = GitCommandError("git version", 128, b"fatal: bad config line 1")
    said = _no_library(broken)
    assert (said.exit_code, said.what) == (4, "git does not run: bad config line 1.")


def test_a_mail_that_git_cannot_read_is_refused_by_its_name(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sm120_overlay.queue.letter.attempt", lambda *_, **__: (128, b"", "fatal: too many headers"))
    mail = toy.root / "odd.eml"
    mail.write_bytes(b"From: Ann <ann@example.org>\nSubject: x\n\nBody.\n")
    code, what = error("adopt", mail, toy.clone())
    assert (code, what.endswith("git cannot read the mail: too many headers.")) == (2, True)


def test_a_file_that_a_partial_clone_lacks_is_not_merged_by_guess(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = toy.clone()
    assert ask("apply", clone).code == 0
    write(toy.root, {"x.patch": PLAIN})
    monkeypatch.setattr("sm120_overlay.queue.adoption.read_objects", lambda repo, names: dict.fromkeys(names))
    code, what = error("adopt", toy.root / "x.patch", clone)
    assert (code, "bare.txt cannot be read: a partial clone." in what) == (1, True)


def test_a_branch_in_the_way_of_a_hand_off_is_named(toy: Toy) -> None:
    clone = toy.clone()
    assert ask("apply", clone).code == 0
    git(clone, "branch", "adopt")
    stranger = toy.clone(into="stranger")
    write(stranger, {"python/toy/core.py": "def answer():\n    return 43\n"})
    write(toy.root, {"x.patch": git(stranger, "diff")})
    code, what = error("adopt", toy.root / "x.patch", clone)
    assert (code, "a branch adopt of yours is in the way of adopt/x" in what) == (1, True)
