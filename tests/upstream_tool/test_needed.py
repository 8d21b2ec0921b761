"""`--check`: is the patch still needed there, and if not, since which change of upstream's?"""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120_overlay.queue import needed
from sm120_overlay.queue.git import Repository

from ..queue.toy import TOY, Toy, git, write
from ..rebase.releases import CORE, core, project, release
from .conftest import go_on
from .said import answer, upstream

ELSEWHERE = TOY[CORE] + "\n\ndef answer():\n    return 42\n"


def steps(*texts: str) -> list[dict[str, str]]:
    return [{CORE: text} for text in texts]


def test_it_is_needed_while_its_test_fails_without_it(
    clone: Path, toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    before = project(toy)
    assert upstream("--source", clone, "--check") == 0
    assert "right-answer is still needed there" in capsys.readouterr().out
    said = answer(capsys, "--source", clone, "--check")
    assert (said["needed"], said["fixed"], said["absent"]) == (True, None, None)
    assert project(toy) == before


def test_a_fix_in_other_words_is_found_by_trying(clone: Path, toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    """The merge sees nothing of it: the patch would still go in."""
    release(toy, "3.0", *steps(TOY[CORE] + "\n# one\n", TOY[CORE] + "\n# two\n", ELSEWHERE, ELSEWHERE + "\n# after\n"))
    git(clone, "pull", "-q", "--tags")
    said = answer(capsys, "--source", clone, "--check", code=1)
    assert said["needed"] is False
    assert said["fixed"]["subject"] == "Change 3 of 3.0 (#303)"
    assert said["absent"] == "absorbed: toy#303, v3.0"
    assert upstream("--source", clone, "--check") == 1
    assert "--slug right-answer --skip 'absorbed: toy#303, v3.0'" in capsys.readouterr().out


def test_the_same_fix_is_named_by_the_merge(clone: Path, toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    release(toy, "3.0", core(("return 41", "return 42")), core(("return 41", "return 42"), ("# line 50", "# fifty")))
    git(clone, "pull", "-q", "--tags")
    assert answer(capsys, "--source", clone, "--check", code=1)["absent"] == "absorbed: toy#301, v3.0"


def test_a_fix_that_no_release_has_is_named_without_a_reference(
    clone: Path, toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    go_on(toy, clone, {CORE: ELSEWHERE}, "Right")
    assert upstream("--source", clone, "--check") == 1
    said = capsys.readouterr().out
    assert "no release has it yet" in said
    assert "--skip" not in said


def test_our_own_test_is_asked_where_none_is_in_upstreams_form(
    clone: Path, toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    (toy.home.root / "upstream/toy/right-answer/tests/test_answer.py").unlink()
    conftest = "import os, sys\nsys.path.insert(0, os.environ['SM120_OVERLAY_TREE'])\n"
    test = "from toy.core import answer\n\n\ndef test_answer():\n    assert answer() == 42\n"
    write(toy.home.root, {"tests/patches/conftest.py": conftest, "tests/patches/test_right_answer.py": test})
    said = answer(capsys, "--source", clone, "--check")
    assert said["test"]["path"] == "tests/patches/test_right_answer.py"
    assert said["test"]["outcome"] == "failed"


def test_a_test_that_breaks_says_neither(clone: Path, toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    write(toy.home.root, {"upstream/toy/right-answer/tests/test_answer.py": "import missing\n"})
    assert answer(capsys, "--source", clone, "--check", code=4)["needed"] is None
    assert upstream("--source", clone, "--check") == 4
    assert "it could not be told" in capsys.readouterr().out


def test_a_test_that_never_ends_says_neither(
    clone: Path, toy: Toy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sm120_overlay.verbs._tried.LIMIT_S", 0.01)
    assert "did not end within" in answer(capsys, "--source", clone, "--check", code=4)["test"]["detail"]


def test_without_a_history_the_change_is_not_known(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    write(toy.home.root, {"upstream/toy/right-answer/tests/test_answer.py": "def test_answer():\n    pass\n"})
    assert upstream("--source", "pypi", "--check") == 1
    assert "a clone with the history" in capsys.readouterr().out


@pytest.fixture
def history(tmp_path: Path) -> tuple[Repository, list[str]]:
    """Twelve commits."""
    git(tmp_path, "init", "-q", "-b", "main", "h")
    folder = tmp_path / "h"
    for number in range(12):
        git(folder, "commit", "-q", "--allow-empty", "-m", f"Change (#{number})")
    ids = git(folder, "rev-list", "--reverse", "HEAD").split()
    return Repository(folder), ids


def test_changes_that_cannot_be_tried_are_counted(history: tuple[Repository, list[str]], toy: Toy) -> None:
    repo, ids = history

    def outcome(commit: str) -> str:
        at = ids.index(commit)
        return "error" if at in (5, 6, 7) else "passed" if at >= 8 else "failed"

    found = needed.first_passing(repo, toy.pin(), ids[0], ids[-1], outcome)
    assert found is not None
    assert (found.commit.id, found.apart, found.reference) == (ids[8], 3, "")


def test_a_start_that_passes_or_has_no_way_to_the_end_says_nothing(
    history: tuple[Repository, list[str]], toy: Toy
) -> None:
    repo, ids = history
    assert needed.first_passing(repo, toy.pin(), ids[0], ids[-1], lambda commit: "passed") is None
    assert needed.first_passing(repo, toy.pin(), ids[-1], ids[0], lambda commit: "failed") is None
