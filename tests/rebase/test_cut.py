"""A rebase that dies anywhere goes on where it was: the same series comes out, and half of it never lands."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sm120_overlay.queue.export import workplace
from sm120_overlay.queue.pins import load_lines
from sm120_overlay.queue.rebasing import state_file
from sm120_overlay.queue.series import load_series

from ..queue.cuts import cut_at
from ..queue.toy import Toy, git
from .releases import CORE, core, project, rebase, release, worktree

BEGIN = ("--onto", "2.0", "--source", "pypi", "--unproved")
STEPS = (1, 2, 3, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35, 38, 41, 45, 50, 60)


def end(toy: Toy) -> dict[str, bytes]:
    """The move brought to its end, by whatever call goes on from here."""
    code = rebase("--continue", "--unproved") if state_file(toy.home, "toy").is_file() else rebase(*BEGIN)
    if code == 3:
        resolve(toy)
        code = rebase("--continue", "--unproved")
    assert code == 0
    return project(toy)


def resolve(toy: Toy) -> None:
    """The conflict resolved and staged, as a person does it."""
    (worktree(toy) / CORE).write_text(core(("return 41", "return 43"))[CORE])
    git(worktree(toy), "add", CORE)


def half_landed(toy: Toy) -> bool:
    """Whether the project holds a part of the new line, and no journal that says so."""
    pins = any(line.name == "v2.0" for line in load_lines(toy.home.pins).lines)
    series = (toy.home.patches("v2.0", "toy") / "series").is_file()
    return pins != series and not workplace(toy.home).journal.is_file()


@pytest.mark.parametrize("step", STEPS)
def test_a_move_that_dies_goes_on(toy: Toy, step: int) -> None:
    release(toy, "2.0", core(("# line 10\n", "# line ten\n")))
    died = cut_at(step, toy.home.root, lambda: rebase(*BEGIN))
    assert not half_landed(toy)
    after = end(toy) if died or not (toy.home.patches("v2.0", "toy") / "series").is_file() else project(toy)
    series = load_series(toy.home, load_lines(toy.home.pins).line("v2.0").pin("toy"))
    assert series.slugs == ("right-answer", "bring-hook")
    assert not [name for name in after if "sm120-overlay" in name]


@pytest.mark.parametrize("step", (*STEPS, 70, 80, 90, 100, 110, 120, 140))
def test_going_on_that_dies_keeps_the_resolution(toy: Toy, step: int) -> None:
    release(toy, "2.0", core(("return 41", "return 40")))
    assert rebase(*BEGIN) == 3
    resolve(toy)
    cut_at(step, toy.home.root, lambda: rebase("--continue", "--unproved"))
    assert not half_landed(toy)
    if not (toy.home.patches("v2.0", "toy") / "series").is_file() or state_file(toy.home, "toy").is_file():
        end(toy)
    series = load_series(toy.home, load_lines(toy.home.pins).line("v2.0").pin("toy"))
    assert b"    return 43\n" in series.patches[0].edits[0].hunks[0].new


@pytest.mark.parametrize("step", STEPS)
def test_a_hand_off_that_dies_is_made_again(toy: Toy, step: int) -> None:
    release(toy, "2.0", core(("return 41", "return 40")))
    cut_at(step, toy.home.root, lambda: rebase(*BEGIN))
    end(toy)


@pytest.mark.parametrize("step", STEPS[:8])
def test_an_abort_that_dies_is_an_abort(toy: Toy, step: int) -> None:
    release(toy, "2.0", core(("return 41", "return 40")))
    before = project(toy)
    assert rebase(*BEGIN) == 3
    cut_at(step, toy.home.root, lambda: rebase("--abort"))
    if state_file(toy.home, "toy").is_file():
        assert rebase("--abort") == 0
    assert project(toy) == before
    assert rebase(*BEGIN) == 3


def test_a_work_repository_that_is_gone_is_made_again(toy: Toy) -> None:
    release(toy, "2.0", core(("return 41", "return 40")))
    assert rebase(*BEGIN) == 3
    shutil.rmtree(Path(toy.home.root, "build"))
    assert rebase(*BEGIN) == 3
