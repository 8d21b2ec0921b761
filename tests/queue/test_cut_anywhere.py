"""Runs cut before, in and after every change they make: whole files, the state told, the next verb ends exact."""

from __future__ import annotations

import errno

import pytest
from _pytest.mark import ParameterSet

from .cuts import Fault, die, failing, raising, run_failing, short, tear, two_sentences
from .ground import MOVES, Ground, bringing

CASE = "the run is killed at any change"


def kinds(case: str) -> list[ParameterSet]:
    """Both kinds of target, marked as cells of one row."""
    return [
        pytest.param(kind, marks=pytest.mark.case(case, target=kind, outcome="undone"))
        for kind in ("checkout", "installed")
    ]


def check_told(ground: Ground, goal: str, where: object) -> None:
    """status and verify say `interrupted` exactly while the journal is there, and change nothing."""
    for verb in ("status", "verify"):
        told = ground.tell(verb, goal)
        cut = ground.journal.exists()
        assert (set(told.states().values()) == {"interrupted"}) == cut, (where, told)
        assert told.code == 1 or not cut, (where, told)


@pytest.mark.parametrize("kind", kinds(CASE))
@pytest.mark.parametrize("move", MOVES, ids="-to-".join)
def test_a_run_cut_before_any_change_is_undone_by_the_next(ground: Ground, move: tuple[str, str]) -> None:
    """Which is also after any other one."""
    assert cut_everywhere(ground, *move, die) > 15


@pytest.mark.parametrize("kind", kinds(CASE))
@pytest.mark.parametrize("move", MOVES[1:], ids="-to-".join)
def test_a_run_cut_in_the_middle_of_any_write_is_undone_by_the_next(ground: Ground, move: tuple[str, str]) -> None:
    """Its own, or that of a git that it started."""
    assert cut_everywhere(ground, *move, tear, writes=True) > 2


def cut_everywhere(ground: Ground, start: str, goal: str, fault: Fault, writes: bool = False) -> int:
    """How many of the runs were cut with their journal there."""
    cuts, step = 0, 0
    while True:
        ground.fresh(start)
        ended = run_failing(step, ground.target, bringing(ground, goal), fault, writes=writes)
        ground.whole(start, goal)
        if fault is die and step % 4 == 0:
            check_told(ground, goal, step)
        cuts += ground.journal.exists()
        if not ended.reached:
            assert ground.now() == ground.facts[goal]
            return cuts
        then = (goal, start, "older")[step % 3]
        answer = ground.bring(then)
        assert answer.code == 0, (step, then, answer)
        assert ground.now() == ground.facts[then], (step, then)
        step += 1


@pytest.mark.case(CASE, target="checkout", outcome="undone")
@pytest.mark.parametrize("kind", ["checkout"])
@pytest.mark.parametrize("fault", [die, tear])
def test_a_run_cut_while_git_builds_the_commits_has_changed_nothing(ground: Ground, fault: Fault) -> None:
    step = 0
    while True:
        ground.fresh("older")
        run_failing(step, ground.target, bringing(ground, "newer"), fault, early=True)
        if {path.name for path in ground.workplace.iterdir()} != {"manifest.json"}:  # it has begun to write
            break
        assert ground.now() == ground.facts["older"], step
        step += 1
    assert step > 5
    assert ground.bring("newer").code == 0
    assert ground.now() == ground.facts["newer"]


@pytest.mark.parametrize("kind", kinds("the undo of a cut run is killed as well"))
def test_an_undo_cut_at_any_change_also_twice_is_finished_by_the_next(ground: Ground) -> None:
    late, step = last_cut(ground, "older", "newer"), 0
    while True:
        ground.fresh("older")
        assert run_failing(late, ground.target, bringing(ground, "newer"), die).died
        ended = run_failing(step, ground.target, bringing(ground, "older"), (die, tear)[step % 2])
        if not ended.reached:
            assert ground.now() == ground.facts["older"]
            break
        ground.whole("older", "newer")
        if step % 3 == 0:
            run_failing(step // 2, ground.target, bringing(ground, "older"), die)
            ground.whole("older", "newer")
        then = ("newer", "older", "pin")[step % 3]
        answer = ground.bring(then)
        assert answer.code == 0, (step, then, answer)
        assert ground.now() == ground.facts[then], (step, then)
        step += 1
    assert step > 15


def last_cut(ground: Ground, start: str, goal: str) -> int:
    """The last change before the journal goes: there all is done, and all must be undone."""
    step = 20
    while True:
        ground.fresh(start)
        run_failing(step, ground.target, bringing(ground, goal), die)
        if step > 20 and not ground.journal.exists():
            return step - 1
        step += 1


ONCE = [failing(errno.ENOSPC), failing(errno.EROFS), short(lasting=False), failing(errno.EIO)]


@pytest.mark.parametrize("kind", kinds("one change fails (a full disk, a read-only one, a broken one)"))
@pytest.mark.parametrize("turn", [0, 1])
def test_a_change_that_fails_once_is_undone_at_once(ground: Ground, turn: int) -> None:
    refused, step = 0, 0
    while True:
        ground.fresh("older")
        ended = run_failing(step, ground.target, bringing(ground, "newer"), ONCE[(step + 2 * turn + step // 4) % 4])
        assert ended.gave.code in (0, 4), (step, ended)
        if ended.gave.code:
            assert two_sentences(ended.gave), (step, ended)
            assert ground.now() == ground.facts["older"], (step, ended)
            refused += 1
        if not ended.reached or step % 5 == 0:
            assert ground.bring("newer").code == 0
            assert ground.now() == ground.facts["newer"], step
        if not ended.reached:
            break
        step += 1
    assert refused > 5


@pytest.mark.parametrize("kind", kinds("the run is told to stop, or has no memory left"))
def test_a_run_stopped_at_any_change_undoes_at_once(ground: Ground) -> None:
    """Once the journal is gone the run is done, and stopping it then only leaves less cleaned up."""
    undone, step = 0, 0
    while True:
        ground.fresh("older")
        stop, code = ((KeyboardInterrupt, 130), (MemoryError, 4))[step % 2]
        ended = run_failing(step, ground.target, bringing(ground, "newer"), raising(stop))
        assert not ground.journal.exists(), step
        if ended.gave.code:
            assert (ended.gave.code, two_sentences(ended.gave)) == (code, True), (step, ended)
            undone += ground.now() == ground.facts["older"]
            if ground.now() != ground.facts["older"]:
                assert ground.bring("newer").code == 0
                assert ground.now() == ground.facts["newer"], step
        if not ended.reached:
            break
        step += 1
    assert undone > 15


LASTING = [failing(errno.ENOSPC, lasting=True), failing(errno.EROFS, lasting=True), short(lasting=True)]


@pytest.mark.parametrize("kind", kinds("the disk stays full or read-only, so that the undo fails too"))
def test_where_the_undo_fails_too_that_is_said_and_the_next_run_undoes(ground: Ground) -> None:
    step = 0
    while True:
        ground.fresh("older")
        ended = run_failing(step, ground.target, bringing(ground, "newer"), LASTING[step % 3])
        ground.whole("older", "newer")
        assert ended.gave.code in (0, 4), (step, ended)
        if ended.gave.code:
            assert two_sentences(ended.gave), (step, ended)
            assert ("cannot be undone now" in ended.gave.err) == ground.journal.exists(), (step, ended)
        then = "newer" if step % 2 or not ended.reached else "older"
        assert ground.bring(then).code == 0
        assert ground.now() == ground.facts[then], step
        if not ended.reached:
            break
        step += 1
    assert step > 15
