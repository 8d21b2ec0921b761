"""kill -9 at any moment: at most the run in flight is lost, and the session ends as if nothing had happened."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay.bisection.decision.nouns import Decision, Verdict
from sm120_overlay.bisection.decision.rule import decide
from sm120_overlay.bisection.events import Driven, Ended, Event, Started
from sm120_overlay.bisection.job import Job, Outcome, Ran
from sm120_overlay.bisection.session import Session, fold, readings

from .driven import CULPRIT, Pool, events_of, linear, run_toy, toy_decide, toy_history, value_of

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])


def nth(folder: Path, seconds: float = 0.0) -> Callable[[Job], Ran]:
    """The n-th number of a program is the same whenever it is measured, and by which run."""

    def does(job: Job) -> Ran:
        time.sleep(random.random() * seconds)
        made = [event for event in events_of(folder) if isinstance(event, Ended) and event.program == job.program]
        return Ran(job.number, Outcome.MEASURED, value_of(len(made), job.program), host="here")

    return does


def known(folder: Path) -> list[tuple[int, float]]:
    """The numbers that a decision is made on."""
    found = readings(fold(events_of(folder)), toy_history(), linear)
    return [(each.program, each.value) for each in found]


def dies(folder: Path, event: int, share: float, decide: Any = toy_decide) -> None:
    """A driver that is killed when so much of an event's line is written, counted from 0."""
    left = [event]

    def write(descriptor: int, line: Any, /) -> int:
        if left[0] == 0:
            written(descriptor, line[: round(len(line) * share)])
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return written(descriptor, line)

    written, os.write = os.write, write
    run_toy(folder, Pool(nth(folder)), decide)


def in_a_process(does: Callable[..., None], *arguments: Any) -> Any:
    process = CONTEXT.Process(target=does, args=arguments)
    process.start()
    return process


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Verdict, list[tuple[int, float]], tuple[Event, ...]]:
    """The session that nothing cuts."""
    folder = tmp_path_factory.mktemp("whole")
    return run_toy(folder, Pool(nth(folder))), known(folder), events_of(folder)


@pytest.mark.parametrize(("share", "step"), [(0.0, 9), (0.5, 4), (1.0, 1)])
def test_a_driver_killed_before_in_or_after_any_line_ends_in_the_same_posterior(
    tmp_path: Path, whole: tuple[Verdict, list[tuple[int, float]], tuple[Event, ...]], share: float, step: int
) -> None:
    verdict, numbers, events = whole
    for event in range(0, len(events), step):
        folder = tmp_path / str(event)
        process = in_a_process(dies, folder, event, share)
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        assert events_of(folder) == () or _same(events_of(folder), events[: event + (share == 1.0)])
        assert run_toy(folder, Pool(nth(folder))) == verdict
        assert known(folder) == numbers
        assert len(fold(events_of(folder)).lost) <= 1


def _same(left: tuple[Event, ...], right: tuple[Event, ...]) -> bool:
    """The same events, at whatever time and by whatever process."""
    kept = [[event for event in side if not isinstance(event, Driven | Started)] for side in (left, right)]
    return kept[0] == kept[1] and len(left) == len(right)


def test_the_real_decision_of_a_driver_killed_at_every_fourth_run_is_that_of_one_that_was_not(tmp_path: Path) -> None:
    decided: list[Decision] = []

    def watch(session: Session, decision: Decision) -> None:
        decided.append(decision)

    run_toy(tmp_path / "whole", Pool(nth(tmp_path / "whole")), decide, watch=watch)
    kills = len(events_of(tmp_path / "whole")) // 8
    for _ in range(kills):
        in_a_process(dies, tmp_path / "cut", 8, 0.5, decide).join(60)
    run_toy(tmp_path / "cut", Pool(nth(tmp_path / "cut")), decide, watch=watch)
    whole, cut = (decision for decision in decided if isinstance(decision.next, Verdict))
    assert cut == whole
    assert known(tmp_path / "cut") == known(tmp_path / "whole")
    assert kills >= 2 and len(fold(events_of(tmp_path / "cut")).lost) >= 1


def slow(folder: Path) -> None:
    run_toy(folder, Pool(nth(folder, 0.02), 3))


def test_a_driver_of_three_hosts_killed_again_and_again_loses_the_runs_in_flight_alone(tmp_path: Path) -> None:
    luck, kills = random.Random(7), 5
    for _ in range(kills):
        process = in_a_process(slow, tmp_path)
        process.join(0.03 + luck.random() * 0.1)
        process.kill()
        process.join(60)
    process = in_a_process(slow, tmp_path)
    process.join(60)
    assert process.exitcode == 0
    events = events_of(tmp_path)
    session = fold(events)
    started = [event.number for event in events if isinstance(event, Started)]
    assert started == list(range(1, len(started) + 1)), "no number is given twice"
    assert len(session.lost) <= 3 * kills
    assert len(session.lost) + len(session.runs) == len(started)
    assert session.verdict is not None and session.verdict.why == f"program {CULPRIT}"
