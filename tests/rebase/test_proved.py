"""The end of a move: every patch is proved on its new pin before anything is written, and what fails can be mended."""

from __future__ import annotations

import json

import pytest

from sm120_overlay.queue.origin import read_origin
from sm120_overlay.queue.pins import load_lines
from sm120_overlay.queue.series import load_series

from ..queue.toy import SHOWS_42, Toy, git, write
from .releases import CORE, core, project, rebase, release, worktree

HAS_HOOK = "def test_hook(tree):\n    assert (tree / 'toy/extra/hook.py').is_file()\n"
TREE = """\
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, os.environ["SM120_OVERLAY_TREE"])


@pytest.fixture
def tree():
    return Path(os.environ["SM120_OVERLAY_TREE"])
"""


@pytest.fixture
def proved(toy: Toy) -> Toy:
    """The toy, whose patches have tests that are red without them."""
    tests = {"test_right_answer.py": SHOWS_42, "test_bring_hook.py": HAS_HOOK, "conftest.py": TREE}
    write(toy.home.root, {f"tests/patches/{name}": text for name, text in tests.items()})
    return toy


def fixed_elsewhere(toy: Toy) -> None:
    """A release in which the answer is right in another way: the patch goes in, and is not needed."""
    release(toy, "2.0", {"python/toy/core.py": core()[CORE] + "\n\ndef answer():\n    return 42\n"})


def test_a_series_is_written_when_every_patch_is_red_without_and_green_with(
    proved: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    release(proved, "2.0", core(("# line 10\n", "# line ten\n")))
    assert rebase("--onto", "2.0", "--source", "pypi") == 0
    said = capsys.readouterr()
    assert "every patch is red without and green with" in said.out
    assert "right-answer: failed on the bare pin" in said.err


def test_a_patch_that_is_not_needed_any_more_is_found_out_and_nothing_is_written(
    proved: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed_elsewhere(proved)
    before = project(proved)
    assert rebase("--onto", "2.0", "--source", "pypi", "--json") == 1
    said = json.loads(capsys.readouterr().out)
    assert [finding["where"] for finding in said["findings"]] == ["right-answer"]
    assert "its test is not red" in said["findings"][0]["what"]
    assert project(proved) == before
    assert git(worktree(proved), "log", "--format=%s", "-2").splitlines() == [
        "toy: do bring-hook",
        "toy: do right-answer",
    ]
    assert rebase("--slug", "right-answer", "--skip", "absorbed: toy#201, v2.0") == 0
    assert load_series(proved.home, load_lines(proved.home.pins).line("v2.0").pin("toy")).slugs == ("bring-hook",)


def test_a_commit_that_was_mended_in_the_worktree_is_what_is_written(proved: Toy) -> None:
    mended = "def test_hook(tree):\n    assert '# line 30!' in (tree / 'toy/core.py').read_text()\n"
    write(proved.home.root, {"tests/patches/test_bring_hook.py": mended})
    release(proved, "2.0", core(("# line 10\n", "# line ten\n")))
    assert rebase("--onto", "2.0", "--source", "pypi") == 1
    tree = worktree(proved)
    write(tree, {CORE: (tree / CORE).read_text().replace("# line thirty\n", "# line 30!\n")})
    git(tree, "commit", "-q", "-a", "--amend", "--no-edit")
    assert rebase("--continue") == 0
    origin = read_origin(proved.home.patches("v2.0", "toy"))
    assert origin is not None
    assert [(row.state, row.decided) for row in origin.rows] == [("clean", False), ("clean", True)]
    before = project(proved)
    assert rebase("--onto", "2.0", "--from", "v1", "--source", "pypi") == 0
    assert project(proved) == before


def test_what_is_not_committed_in_the_worktree_is_not_passed_over(
    proved: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed_elsewhere(proved)
    assert rebase("--onto", "2.0", "--source", "pypi") == 1
    write(worktree(proved), {CORE: "mine\n"})
    capsys.readouterr()
    assert rebase("--continue") == 3
    assert f"changed and not committed: {CORE}" in capsys.readouterr().err
    assert (worktree(proved) / CORE).read_text() == "mine\n"


def test_a_series_that_lint_does_not_take_is_not_written(proved: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    release(proved, "2.0", core(("# line 10\n", "# line ten\n")))
    (proved.home.root / "tests/patches/test_bring_hook.py").unlink()
    assert rebase("--onto", "2.0", "--source", "pypi", "--unproved") == 1
    assert "its test tests/patches/test_bring_hook.py does not exist" in capsys.readouterr().out
    write(proved.home.root, {"tests/patches/test_bring_hook.py": HAS_HOOK})
    assert rebase("--continue", "--unproved") == 0


def offered(toy: Toy) -> None:
    """A series that waits in the worktree, since one test is wrong."""
    write(toy.home.root, {"tests/patches/test_bring_hook.py": "def test_hook(tree):\n    assert False\n"})
    release(toy, "2.0", core(("# line 10\n", "# line ten\n")))
    assert rebase("--onto", "2.0", "--source", "pypi") == 1
    write(toy.home.root, {"tests/patches/test_bring_hook.py": HAS_HOOK})


def test_a_patch_that_was_lost_in_the_worktree_is_asked_for(proved: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    offered(proved)
    git(worktree(proved), "checkout", "-q", "HEAD~1")
    assert rebase("--continue", "--unproved") == 3
    assert "has no commit of bring-hook" in capsys.readouterr().err
    assert not proved.home.patches("v2.0", "toy").exists()


def test_files_of_the_users_in_the_worktree_outlive_the_end(proved: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    offered(proved)
    write(worktree(proved), {"NOTES.md": "mine\n"})
    assert rebase("--continue", "--unproved") == 1
    assert "NOTES.md" in capsys.readouterr().err
    assert (worktree(proved) / "NOTES.md").read_text() == "mine\n"


def test_a_skip_does_not_throw_away_what_was_amended(proved: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    offered(proved)
    tree = worktree(proved)
    git(tree, "commit", "-q", "--amend", "-m", git(tree, "log", "-1", "--format=%B").replace("do bring", "do amended"))
    assert rebase("--slug", "right-answer", "--skip", "absorbed: toy#201, v2.0") == 3
    assert "commits that you amended" in capsys.readouterr().err
    assert "do amended" in git(tree, "log", "-1", "--format=%s")
