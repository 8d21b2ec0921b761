"""The loop: what it asks for, what it does about runs that fail, hosts that go away, and being told to stop."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay.bisection.confirm import confirm, judged
from sm120_overlay.bisection.decision.nouns import Ask, Belief, Decision, Rules, Status, Verdict
from sm120_overlay.bisection.decision.rule import decide
from sm120_overlay.bisection.drive import LOST_IN_A_ROW, begin, drive
from sm120_overlay.bisection.events import (
    BESIDE,
    UNDONE,
    Concluded,
    Driven,
    Ended,
    Opened,
    Reverted,
    Skipped,
    Started,
    Undoing,
    Voided,
)
from sm120_overlay.bisection.job import Job, Outcome, Ran, Scale
from sm120_overlay.bisection.journal import NAME, append, held
from sm120_overlay.bisection.session import Session, fold, readings
from sm120_overlay.errors import Missing, Refused, UsageError

from .driven import (
    CULPRIT,
    Pool,
    events_of,
    level,
    linear,
    measured,
    room,
    run_toy,
    toy_decide,
    toy_flight,
    toy_history,
    toy_opened,
)

LINEAR = Rules(scale=Scale.LINEAR)


def runs(folder: Path) -> list[Ended]:
    return [event for event in events_of(folder) if isinstance(event, Ended)]


def when(program: int, outcome: Outcome, why: str = "it says so", times: int = 99) -> Callable[[Job], Ran]:
    """A program that ends this way so many times, and gives its number from then on."""
    left = Counter({program: times})

    def does(job: Job) -> Ran:
        if left[job.program] > 0:
            left[job.program] -= 1
            return Ran(job.number, outcome, why=why, host="here")
        return measured(job)

    return does


def test_the_culprit_is_found_and_every_run_is_written_with_its_start(tmp_path: Path) -> None:
    assert run_toy(tmp_path).why == f"program {CULPRIT}"
    opened, driven, *rest, concluded = events_of(tmp_path)
    assert isinstance(opened, Opened) and isinstance(driven, Driven) and isinstance(concluded, Concluded)
    assert [type(event) for event in rest] == [Started, Ended] * (len(rest) // 2)
    assert [event.ran.number for event in runs(tmp_path)] == list(range(1, len(rest) // 2 + 1))


def test_the_ends_come_first_in_turn(tmp_path: Path) -> None:
    run_toy(tmp_path)
    assert [event.program for event in runs(tmp_path)[:6]] == [0, 7, 0, 7, 0, 7]


def test_a_session_that_is_done_is_not_measured_again(tmp_path: Path) -> None:
    first, pool = run_toy(tmp_path), Pool()
    assert run_toy(tmp_path, pool) == first
    assert not pool.jobs


def test_all_hosts_are_kept_busy(tmp_path: Path) -> None:
    together = threading.Barrier(3)

    def does(job: Job) -> Ran:
        if job.number <= 3:
            together.wait(20)  # no one comes through before all three are at work
        return measured(job)

    run_toy(tmp_path, Pool(does, 3))
    assert {event.ran.outcome for event in runs(tmp_path)} == {Outcome.MEASURED}


def test_a_run_that_failed_is_tried_once_more_before_anything_else(tmp_path: Path) -> None:
    run_toy(tmp_path, Pool(when(4, Outcome.FAILED, times=1)))
    made = [(event.program, event.ran.outcome) for event in runs(tmp_path)]
    at = made.index((4, Outcome.FAILED))
    assert made[at + 1] == (4, Outcome.MEASURED)


def test_a_program_that_fails_twice_is_left_out_and_the_search_goes_on(tmp_path: Path) -> None:
    verdict = run_toy(tmp_path, Pool(when(4, Outcome.UNBUILT)))
    assert [event.program for event in runs(tmp_path)].count(4) == 2
    assert verdict.status is Status.BLOCK
    assert verdict.culprits[0].programs == (4, 5)


def test_an_end_that_does_not_build_is_said_after_two_tries(tmp_path: Path) -> None:
    pool = Pool(when(7, Outcome.UNBUILT, "no nvcc"))
    with pytest.raises(Missing) as missing:
        run_toy(tmp_path, pool)
    assert "The new end" in missing.value.what and "no nvcc" in missing.value.what
    assert pool.closed
    with held(tmp_path) as (journal, written):
        for event in written.events:
            if isinstance(event, Ended) and event.ran.outcome is Outcome.UNBUILT:
                append(journal, Voided(event.ran.number, "nvcc is there now"))
    assert run_toy(tmp_path).why == f"program {CULPRIT}"


def test_a_command_that_was_stopped_stops_everything_and_it_goes_on_later(tmp_path: Path) -> None:
    pool = Pool(when(4, Outcome.ABORTED, "signal 2 (SIGINT)"))
    with pytest.raises(Missing) as missing:
        run_toy(tmp_path, pool)
    assert missing.value.what.endswith("stopped the bisection: signal 2 (SIGINT).")
    assert pool.closed
    assert fold(events_of(tmp_path)).aborted == "signal 2 (SIGINT)"
    assert run_toy(tmp_path).why == f"program {CULPRIT}"


def test_a_lost_host_costs_its_run_and_nothing_else(tmp_path: Path) -> None:
    broken = Counter[int]()

    def does(job: Job) -> Ran:
        broken[job.program] += 1
        if broken[job.program] == 1:
            raise ConnectionError("the host went away")
        return measured(job)

    assert run_toy(tmp_path, Pool(does)).why == f"program {CULPRIT}"
    lost = [event.ran.why for event in runs(tmp_path) if event.ran.outcome is Outcome.LOST]
    assert lost == ["ConnectionError: the host went away"] * len(broken)


def test_a_revision_that_takes_every_host_down_is_named(tmp_path: Path) -> None:
    pool = Pool(when(4, Outcome.LOST, "the host went away"))
    with pytest.raises(Missing) as missing:
        run_toy(tmp_path, pool)
    said = f"{LOST_IN_A_ROW} runs in a row at 000000000000 lost their host: the host went away."
    assert missing.value.what == said
    assert [job.program for job in pool.jobs].count(4) == LOST_IN_A_ROW


def test_when_all_hosts_are_gone_it_says_so_and_goes_on_later(tmp_path: Path) -> None:
    pool = Pool()

    def does(job: Job) -> Ran:
        if job.number == 5:
            pool.width = 0
            return Ran(job.number, Outcome.LOST, why="the last one went away")
        return measured(job)

    pool.does = does
    with pytest.raises(Missing) as missing:
        run_toy(tmp_path, pool)
    assert missing.value.what == "All hosts are gone."
    assert run_toy(tmp_path).why == f"program {CULPRIT}"


def test_hosts_that_take_no_job_lose_it(tmp_path: Path) -> None:
    class Full(Pool):
        def submit(self, job: Job) -> Future[Ran]:
            if job.number == 3:
                raise RuntimeError("cannot schedule new futures")
            return super().submit(job)

    assert run_toy(tmp_path, Full()).why == f"program {CULPRIT}"
    assert [event.ran.outcome for event in runs(tmp_path)][2] is Outcome.LOST


def test_a_job_that_was_cancelled_is_lost(tmp_path: Path) -> None:
    class Cancelling(Pool):
        def submit(self, job: Job) -> Future[Ran]:
            if job.number != 3:
                return super().submit(job)
            future: Future[Ran] = Future()
            future.cancel()
            future.set_running_or_notify_cancel()
            return future

    run_toy(tmp_path, Cancelling())
    assert runs(tmp_path)[2].ran.why == "it was cancelled"


def test_a_refusal_of_the_measurement_is_not_taken_for_a_lost_host(tmp_path: Path) -> None:
    def does(job: Job) -> Ran:
        raise UsageError("The command has no {port}.", "Add it.")

    with pytest.raises(UsageError):
        run_toy(tmp_path, Pool(does))


def test_told_to_stop_it_ends_what_runs_and_keeps_what_came_back(tmp_path: Path) -> None:
    pool = Pool()

    def watch(session: Any, decision: Any) -> None:
        if len(session.runs) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_toy(tmp_path, pool, watch=watch)
    assert pool.closed
    assert len(runs(tmp_path)) == 4
    assert run_toy(tmp_path).why == f"program {CULPRIT}"
    assert [event.ran.number for event in runs(tmp_path)] == list(range(1, len(runs(tmp_path)) + 1))


def test_told_to_stop_while_it_waits_a_run_that_has_just_come_back_is_kept(tmp_path: Path) -> None:
    pool = Pool()
    with pytest.raises(KeyboardInterrupt), toy_flight(tmp_path, pool) as flight:
        drive(flight, toy_decide, score=linear, watch=lambda session, decision: _stop_with_one_back(flight))
    assert [event.ran.number for event in runs(tmp_path)] == [1]


def test_a_command_that_being_told_to_stop_has_killed_is_no_failure_of_its_program(tmp_path: Path) -> None:
    stopped = threading.Event()

    class Killing(Pool):
        def close(self) -> None:
            stopped.set()
            self.threads.shutdown(wait=True)

    def does(job: Job) -> Ran:
        stopped.wait(20)
        return Ran(job.number, Outcome.ABORTED, why="signal 9", host="here")

    with pytest.raises(KeyboardInterrupt), toy_flight(tmp_path, Killing(does)) as flight:
        begin(flight, 0, flight.job_for(1, 0))
        raise KeyboardInterrupt
    assert [(event.ran.outcome, event.ran.why) for event in runs(tmp_path)] == [
        (Outcome.LOST, "the bisection was stopped")
    ]


def test_a_full_disk_stops_it_with_the_journal_whole_and_it_goes_on_later(tmp_path: Path) -> None:
    run_toy(tmp_path / "whole")
    pool, size = Pool(), (tmp_path / "whole" / NAME).stat().st_size
    with pytest.raises(Missing) as missing, room(size * 3 // 4):
        run_toy(tmp_path / "full", pool)
    assert "the event could not be written" in missing.value.what
    assert pool.closed
    assert 1 <= len(runs(tmp_path / "full")) < len(runs(tmp_path / "whole"))
    assert run_toy(tmp_path / "full").why == f"program {CULPRIT}"


def test_a_disk_that_was_full_before_the_first_run_leaves_no_host_at_work(tmp_path: Path) -> None:
    with toy_flight(tmp_path, Pool()):
        pass
    pool, size = Pool(), (tmp_path / NAME).stat().st_size
    with pytest.raises(Missing), room(size):
        run_toy(tmp_path, pool)
    assert pool.closed and not pool.jobs


def _stop_with_one_back(flight: Any) -> None:
    """What ^C between a run's return and its line looks like."""
    if not flight.under_way:
        begin(flight, 0, flight.job_for(1, 0))
        next(iter(flight.under_way)).result()
        raise KeyboardInterrupt


def test_what_is_known_is_told_before_the_first_run_and_after_each(tmp_path: Path) -> None:
    seen: list[int] = []
    run_toy(tmp_path, watch=lambda session, decision: seen.append(len(session.runs)))
    assert seen == list(range(len(runs(tmp_path)) + 1))


class Clock:
    """Seconds that pass when a test says so, in place of the driver's."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        patch.setattr("sm120_overlay.bisection.drive.monotonic", lambda: self.now)

    def spent_after(self, count: int) -> Callable[[Session, Decision], None]:
        """A watcher who lets the budget of 3 s pass at so many runs."""

        def watch(session: Session, _: Decision) -> None:
            self.now = 4.0 * (len(session.runs) >= count)

        return watch


def test_a_budget_that_is_spent_gives_the_best_that_is_known_and_a_later_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Clock(monkeypatch).spent_after(8)
    assert run_toy(tmp_path, rules=LINEAR, watch=watch, budget_s=3).status is Status.CREDIBLE_SET
    assert run_toy(tmp_path).status is Status.FOUND


def test_a_budget_ends_a_run_that_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, go_on = Clock(monkeypatch), threading.Event()

    def does(job: Job) -> Ran:
        if job.number > 6:
            clock.now = 4.0
            go_on.wait(300)
        return measured(job)

    pool = Pool(does)
    assert run_toy(tmp_path, pool, budget_s=3).status is Status.CREDIBLE_SET
    assert pool.closed and not go_on.is_set()
    last = runs(tmp_path)[-1].ran
    assert (last.outcome, last.why) == (Outcome.LOST, "the budget of 3 s ended")
    go_on.set()


def test_a_budget_that_ends_before_both_ends_says_so(tmp_path: Path) -> None:
    with pytest.raises(Missing) as missing:
        run_toy(tmp_path, budget_s=0.0)
    assert missing.value.what == "The budget of 0 s ended before both ends were measured."


def test_a_run_taken_out_is_measured_again(tmp_path: Path) -> None:
    run_toy(tmp_path)
    made = len(runs(tmp_path))
    with held(tmp_path) as (journal, _):
        append(journal, Voided(1, "the fan was off"))
    run_toy(tmp_path)
    assert [event.program for event in runs(tmp_path)[made:]] == [0]


def test_a_program_that_a_person_skips_is_not_run(tmp_path: Path) -> None:
    with toy_flight(tmp_path, Pool()):
        pass
    with held(tmp_path) as (journal, _):
        append(journal, Skipped(4, "another bug"))
    run_toy(tmp_path)
    assert 4 not in {event.program for event in runs(tmp_path)}


def test_a_session_of_another_history_is_refused_and_left_alone(tmp_path: Path) -> None:
    run_toy(tmp_path)
    before = events_of(tmp_path)
    with pytest.raises(Refused) as refused:
        run_toy(tmp_path, history=toy_history(9))
    assert "another session: history differs" in refused.value.what
    assert events_of(tmp_path) == before


def test_a_decision_that_neither_asks_nor_answers_does_not_hang(tmp_path: Path) -> None:
    nothing = Decision(Belief((), 1.0), Ask((), ()), 0.0)
    with pytest.raises(RuntimeError):
        run_toy(tmp_path, decide=lambda *_: nothing)


@pytest.mark.parametrize("width", [1, 3])
def test_the_real_decision_finds_the_culprit_on_one_host_and_on_three(tmp_path: Path, width: int) -> None:
    verdict = run_toy(tmp_path, Pool(width=width), decide, rules=replace(LINEAR, min_effect=5.0))
    assert (verdict.status, verdict.culprits[0].programs) == (Status.FOUND, (CULPRIT,))
    with toy_flight(tmp_path, Pool(), replace(LINEAR, min_effect=5.0)) as flight:
        assert drive(flight, decide, score=linear) == verdict


def test_the_real_decision_leaves_programs_out_that_fail_and_names_the_block(tmp_path: Path) -> None:
    verdict = run_toy(tmp_path, Pool(when(CULPRIT, Outcome.FAILED)), decide)
    assert (verdict.status, verdict.culprits[0].programs) == (Status.BLOCK, (CULPRIT, CULPRIT + 1))


def test_the_real_decision_gives_a_credible_set_when_the_budget_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = run_toy(tmp_path, decide=decide, watch=Clock(monkeypatch).spent_after(7), budget_s=3)
    assert verdict.status is Status.CREDIBLE_SET


def test_numbers_whose_ratios_count_are_compared_by_their_logarithms(tmp_path: Path) -> None:
    pool = Pool()
    with toy_flight(tmp_path, pool, Rules()) as flight:
        verdict = drive(flight, decide)
    assert verdict.status is Status.FOUND
    assert (verdict.old.mean, verdict.new.mean) == pytest.approx((math.log(100), math.log(200)), abs=0.05)


def test_a_history_of_one_program_is_answered_without_a_run(tmp_path: Path) -> None:
    pool = Pool()
    assert run_toy(tmp_path, pool, decide, history=toy_history(1)).status is Status.NO_CHANGE
    assert not pool.jobs


def _confirmed(
    folder: Path, without: Callable[[Job], Ran], pool: Pool | None = None, rules: Rules = LINEAR
) -> Reverted:
    """A culprit that was found and is taken back; `without` is what the new end gives then."""
    history = toy_history()
    opened = toy_opened(history, rules)

    def undone(number: int) -> Job:
        return Job(number, UNDONE, "undone", "tree", "undone-key", "b", opened.cell, "work")

    pool = pool or Pool()
    pool.does = lambda job: without(job) if job.program == UNDONE else measured(job)
    with toy_flight(folder, pool, rules) as flight:
        return confirm(flight, drive(flight, toy_decide, score=linear), undone, score=linear)


def _gives(value: float) -> Callable[[Job], Ran]:
    return lambda job: Ran(job.number, Outcome.MEASURED, value + job.number % 3, host="here")


@pytest.mark.parametrize(
    ("value", "outcome"), [(100.0, Undoing.CONFIRMED), (200.0, Undoing.REFUTED), (90.0, Undoing.CONFIRMED)]
)
def test_a_culprit_taken_back_on_the_new_end_is_confirmed_or_refuted(
    tmp_path: Path, value: float, outcome: Undoing
) -> None:
    assert _confirmed(tmp_path, _gives(value)).outcome is outcome
    assert fold(events_of(tmp_path)).reverted == events_of(tmp_path)[-1]


def test_runs_without_the_culprit_and_of_the_new_end_take_turns_and_no_posterior_counts_them(tmp_path: Path) -> None:
    _confirmed(tmp_path, _gives(100.0))
    assert [event.program for event in runs(tmp_path)[-6:]] == [UNDONE, BESIDE] * 3
    session = fold(events_of(tmp_path))
    assert len(readings(session, toy_history(), linear)) == len(session.runs) - 6
    assert session.verdict is not None


def test_where_one_run_is_the_truth_one_of_each_is_enough(tmp_path: Path) -> None:
    _confirmed(tmp_path, _gives(100.0), rules=Rules(scale=Scale.EXACT))
    assert [event.program for event in runs(tmp_path)[-3:]] == [CULPRIT, UNDONE, BESIDE]


def test_a_second_look_that_was_made_is_not_made_again(tmp_path: Path) -> None:
    first, pool = _confirmed(tmp_path, _gives(100.0)), Pool()
    assert _confirmed(tmp_path, _gives(100.0), pool) == first
    assert not pool.jobs


def test_a_culprit_that_does_not_revert_cleanly_is_said_and_nothing_is_run(tmp_path: Path) -> None:
    pool = Pool()
    with toy_flight(tmp_path, pool) as flight:
        verdict = drive(flight, toy_decide, score=linear)
        made = len(pool.jobs)
        found = confirm(flight, verdict, "python/a.py conflicts", score=linear)
    assert (found.outcome, found.why, len(pool.jobs)) == (Undoing.CONFLICT, "python/a.py conflicts", made)


@pytest.mark.parametrize("kind", [Outcome.FAILED, Outcome.SKIPPED])
def test_a_new_end_without_its_culprit_that_no_run_judges_is_said(tmp_path: Path, kind: Outcome) -> None:
    found = _confirmed(tmp_path, when(UNDONE, kind, "it does not import"))
    assert found.outcome is Undoing.UNTESTABLE
    assert found.why == "no run judges the new end without it: it does not import"


def _between(old: float, new: float) -> Verdict:
    return Verdict(Status.FOUND, (), level([old] * 3), level([new] * 3), level([new - old]), 10.0, "")


def _judged(scale: Scale, verdict: Verdict, without: float, new: float) -> Undoing:
    return judged(Rules(scale, confidence=0.99), verdict, [without] * 3, [new] * 3)


def test_a_difference_that_noise_explains_decides_nothing() -> None:
    small = _between(100.0, 105.0)
    assert _judged(Scale.LINEAR, small, 100.0, 105.0) is Undoing.UNDECIDED
    assert _judged(Scale.LINEAR, small, 105.0, 105.0) is Undoing.UNDECIDED


def test_a_host_that_became_slower_meanwhile_is_in_both() -> None:
    large = _between(100.0, 200.0)
    assert _judged(Scale.LINEAR, large, 140.0, 240.0) is Undoing.CONFIRMED
    assert _judged(Scale.LINEAR, large, 140.0, 140.0) is Undoing.REFUTED


def test_a_culprit_that_makes_but_a_part_of_the_difference_shows_that_there_is_another(tmp_path: Path) -> None:
    large = _between(100.0, 200.0)
    assert _judged(Scale.LINEAR, large, 140.0, 200.0) is Undoing.PARTLY
    assert _judged(Scale.LINEAR, large, 50.0, 200.0) is Undoing.PARTLY  # another change goes the other way
    assert judged(Rules(Scale.LINEAR, min_effect=45.0), large, [140.0] * 3, [200.0] * 3) is Undoing.CONFIRMED
    found = _confirmed(tmp_path, _gives(150.0))
    assert (found.outcome, found.why) == (
        Undoing.PARTLY, "49% of the difference goes with it, and another change makes the rest (6 runs)",
    )  # fmt: skip


def test_a_third_level_is_not_said_for_one_odd_run(tmp_path: Path) -> None:
    odd = Counter({"left": 3})

    def does(job: Job) -> Ran:
        odd["left"] -= 1
        return Ran(job.number, Outcome.MEASURED, 132.0 if odd["left"] == 2 else 100.0 + job.number % 3, host="here")

    assert _confirmed(tmp_path, does).outcome is Undoing.CONFIRMED
    assert [event.program for event in runs(tmp_path)].count(UNDONE) == 6  # three more were asked for


def test_where_equality_counts_the_old_ends_number_confirms_and_a_third_one_shows_another_change() -> None:
    exact = _between(3.0, 5.0)
    assert _judged(Scale.EXACT, exact, 3.0, 5.0) is Undoing.CONFIRMED
    assert _judged(Scale.EXACT, exact, 5.0, 5.0) is Undoing.REFUTED
    assert _judged(Scale.EXACT, exact, 4.0, 5.0) is Undoing.PARTLY
