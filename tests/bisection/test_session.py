"""What a session has come to, as a fold of what happened: runs taken out and in, programs that no run can judge."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from sm120_overlay.bisection.decision.nouns import Level, Rules, Status, Verdict
from sm120_overlay.bisection.events import (
    BESIDE,
    UNDONE,
    Concluded,
    Driven,
    Ended,
    Event,
    Ruled,
    Skipped,
    Started,
    Voided,
)
from sm120_overlay.bisection.history import History
from sm120_overlay.bisection.job import Outcome, Ran, Scale
from sm120_overlay.bisection.session import (
    Session,
    build_cost,
    built,
    check_same,
    field_of,
    fold,
    measured_at,
    new_limits,
    readings,
    to_retry,
    untestable,
)
from sm120_overlay.errors import Missing, Refused

from .driven import linear, run_toy, toy_history, toy_opened

HISTORY = toy_history()
OPENED = toy_opened(HISTORY)
NOWHERE = Level(0.0, 0.0, 0.0, 0)
VERDICT = Verdict(Status.CREDIBLE_SET, (), NOWHERE, NOWHERE, NOWHERE, 0.0, "the runs were spent")


def run(number: int, program: int, outcome: Outcome = Outcome.MEASURED, why: str = "", **more: float) -> Ended:
    value = float(number) if outcome is Outcome.MEASURED else None
    return Ended(program, f"k{program}", Ran(number, outcome, value, why, **more))  # type: ignore[arg-type]


def folded(*events: Event) -> Session:
    return fold([OPENED, *events])


def out(*events: Event) -> dict[int, str]:
    return untestable(folded(*events), HISTORY)


def test_readings_stand_in_the_order_in_which_their_runs_were_started() -> None:
    session = folded(Started(1, 0), Started(2, 7), run(2, 7), run(1, 0))
    assert [(each.at, each.program, each.value) for each in readings(session, HISTORY, linear)] == [
        (1, 0, 1.0),
        (2, 7, 2.0),
    ]


def test_a_run_that_was_taken_out_counts_again_when_it_is_put_back() -> None:
    events: list[Event] = [run(1, 0), run(2, 0), Voided(1, "the fan was off")]
    assert [each.at for each in readings(folded(*events), HISTORY, linear)] == [2]
    assert folded(*events).runs[0].void == "the fan was off"
    assert [each.at for each in readings(folded(*events, Voided(1, lifted=True)), HISTORY, linear)] == [1, 2]


def test_a_run_counts_once_however_often_it_is_told() -> None:
    assert len(folded(run(1, 0), run(1, 0)).runs) == 1


def test_runs_in_flight_when_a_driver_died_are_lost_and_their_numbers_are_not_given_again() -> None:
    session = folded(Driven(1), Started(1, 0), run(1, 0), Started(2, 7))
    assert (session.flying, session.lost) == ({2: 7}, {})
    again = folded(Driven(1), Started(1, 0), run(1, 0), Started(2, 7), Driven(2))
    assert (again.flying, again.lost, again.next_number, again.drivers) == ({}, {2: 7}, 3, 2)


def test_a_skipped_program_comes_back_when_the_skip_is_lifted_and_its_readings_with_it() -> None:
    events: list[Event] = [run(1, 3), Skipped(3, "flaky")]
    assert out(*events) == {3: "flaky"}
    assert not readings(folded(*events), HISTORY, linear)
    assert not out(*events, Skipped(3, lifted=True))
    assert readings(folded(*events, Skipped(3, lifted=True)), HISTORY, linear)


@pytest.mark.parametrize("kind", [Outcome.FAILED, Outcome.UNBUILT])
def test_a_program_that_fails_gets_one_more_run_and_then_no_other(kind: Outcome) -> None:
    once = folded(run(1, 3, kind, "exit code 2"))
    assert (untestable(once, HISTORY), to_retry(once, HISTORY)) == ({}, (3,))
    twice = folded(run(1, 3, kind, "exit code 2"), run(2, 3, kind, "exit code 2"))
    assert untestable(twice, HISTORY) == {3: "2 runs in a row gave no number: exit code 2"}
    assert to_retry(twice, HISTORY) == ()


def test_failures_with_a_number_between_them_are_not_in_a_row() -> None:
    session = folded(run(1, 3, Outcome.FAILED), run(2, 3), run(3, 3, Outcome.FAILED))
    assert (untestable(session, HISTORY), to_retry(session, HISTORY)) == ({}, (3,))


def test_a_failure_that_was_taken_out_does_not_count() -> None:
    assert not out(run(1, 3, Outcome.FAILED), run(2, 3, Outcome.FAILED), Voided(1, "disk full"))


def test_a_lost_run_is_no_failure_and_parts_none() -> None:
    assert not out(*(run(number, 3, Outcome.LOST) for number in range(1, 9)))
    assert out(run(1, 3, Outcome.FAILED), run(2, 3, Outcome.LOST), run(3, 3, Outcome.FAILED)).keys() == {3}


def test_a_program_that_is_being_run_is_not_retried_beside_that() -> None:
    assert to_retry(folded(run(1, 3, Outcome.FAILED), Started(2, 3)), HISTORY) == ()


def test_a_program_that_the_command_skips_is_out_at_once_with_its_reason() -> None:
    assert out(run(1, 3, Outcome.SKIPPED, "no such model")) == {3: "no such model"}


def test_a_skipped_range_reaches_to_the_next_programs_that_were_measured() -> None:
    found = out(run(1, 2), run(2, 4, Outcome.SKIP_RANGE, "exit code 129"), run(3, 0), run(4, 7))
    assert found.keys() == {3, 4, 5, 6}
    assert found[4] == "exit code 129"
    assert found[5] == "run 2 at program 4 skips the range around it"
    assert out(run(2, 4, Outcome.SKIP_RANGE)).keys() == {1, 2, 3, 4, 5, 6}, "never an end that was not tried"


def test_a_revision_that_cannot_be_had_is_untestable_unless_its_program_has_another() -> None:
    alone = replace(HISTORY.revisions[3], untestable="a patch does not go in")
    revisions = (*HISTORY.revisions[:3], alone, *HISTORY.revisions[4:])
    assert untestable(folded(), History(revisions, HISTORY.changes)) == {3: "a patch does not go in"}
    culled = (*HISTORY.changes[:3], replace(HISTORY.changes[3], culled="same"), *HISTORY.changes[4:])
    history = History(revisions, culled)
    assert untestable(folded(), history) == {}
    assert measured_at(history, 3) is revisions[4]


@pytest.mark.parametrize(("end", "which"), [(0, "old"), (7, "new")])
def test_an_end_that_gives_no_number_ends_it_with_what_was_found(end: int, which: str) -> None:
    session = folded(run(1, end, Outcome.UNBUILT, "no nvcc"), run(2, end, Outcome.UNBUILT, "no nvcc"))
    with pytest.raises(Missing) as missing:
        field_of(session, HISTORY)
    short = HISTORY.revisions[end].commit.short
    assert missing.value.what == f"The {which} end {short} gives no number: 2 runs in a row gave no number: no nvcc."
    assert "void NUMBER" in missing.value.todo


def test_the_field_carries_the_priors_and_what_is_out() -> None:
    changes = tuple(replace(each, prior=number + 1.0) for number, each in enumerate(HISTORY.changes))
    found = field_of(folded(Skipped(3)), History(HISTORY.revisions, changes))
    assert (found.priors, found.untestable) == ((1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0), frozenset({3}))


def test_an_environment_that_was_built_serves_every_program_of_its_key() -> None:
    keys = [replace(each, build_key=str(number // 4)) for number, each in enumerate(HISTORY.revisions)]
    history = History(tuple(keys), HISTORY.changes)
    session = folded(run(1, 1, seconds=10.0, build_seconds=50.0), run(2, 2, seconds=10.0))
    assert built(session, history) == {0, 1, 2, 3}
    assert build_cost(session) == 5.0
    assert build_cost(folded()) == 0.0


def test_runs_beside_the_undone_culprit_are_in_no_posterior() -> None:
    session = folded(run(1, UNDONE), run(2, BESIDE), run(3, 0))
    assert [each.at for each in readings(session, HISTORY, linear)] == [3]


def test_a_verdict_holds_until_something_is_measured_or_taken_out(tmp_path: Path) -> None:
    told = Concluded(run_toy(tmp_path))
    assert folded(run(1, 0), told).verdict is told.verdict
    assert folded(run(1, 0), told, Started(2, UNDONE), run(2, UNDONE)).verdict is told.verdict
    for later in (Started(2, 0), Voided(1), Skipped(3)):
        assert folded(run(1, 0), told, later).verdict is None


def test_a_run_that_stopped_it_all_is_known_until_the_next_driver() -> None:
    events = [run(1, 0, Outcome.ABORTED, "signal 9")]
    assert folded(*events).aborted == "signal 9"
    assert folded(*events, Driven(2)).aborted == ""
    assert not untestable(folded(*events), HISTORY)


def test_a_session_of_another_history_or_command_is_refused(tmp_path: Path) -> None:
    check_same(OPENED, replace(OPENED, at=7.0), tmp_path)
    other = replace(OPENED, cell=replace(OPENED.cell, command="other"), history={"revisions": []})
    with pytest.raises(Refused) as refused:
        check_same(OPENED, other, tmp_path)
    assert refused.value.what == f"{tmp_path} is another session: cell, history differ."


def test_other_limits_are_no_other_session_and_an_answer_that_they_gave_is_open_again(tmp_path: Path) -> None:
    wanted = replace(OPENED, rules=replace(OPENED.rules, most_runs=7, confidence=0.999))
    check_same(OPENED, wanted, tmp_path)
    assert new_limits(OPENED, wanted) == {"confidence": (0.99, 0.999), "most_runs": (2000, 7)}
    answered = folded(Concluded(VERDICT))
    assert answered.verdict == VERDICT
    ruled = folded(Concluded(VERDICT), Ruled(wanted.rules))
    assert (ruled.opened.rules, ruled.verdict) == (wanted.rules, None)


@pytest.mark.parametrize("rules", [Rules(Scale.LOG), Rules(Scale.LINEAR, paired=True), Rules(Scale.LINEAR, 0.5)])
def test_other_rules_are_another_session(tmp_path: Path, rules: Rules) -> None:
    with pytest.raises(Refused) as refused:
        check_same(replace(OPENED, rules=Rules(Scale.LINEAR)), replace(OPENED, rules=rules), tmp_path)
    assert refused.value.what == f"{tmp_path} is another session: rules differs."


def test_thousands_of_programs_are_looked_at_at_once() -> None:
    history = toy_history(4096)
    session = fold([toy_opened(history), *(run(number, number, Outcome.FAILED) for number in range(1, 300))])
    began = time.process_time()
    assert len(field_of(session, history).priors) == 4095
    assert (readings(session, history, linear), built(session, history)) == ((), frozenset())
    assert len(to_retry(session, history)) == 299
    assert time.process_time() - began < 2, "a look that goes through all programs for each takes a minute"


def test_an_end_that_a_person_skips_is_named_even_without_a_reason() -> None:
    with pytest.raises(Missing) as missing:
        field_of(folded(Skipped(0)), HISTORY)
    assert missing.value.what == "The old end 000000000000 gives no number: it was skipped by hand."


def test_a_fold_of_what_is_no_session_is_an_error_of_the_caller() -> None:
    with pytest.raises(TypeError):
        fold([Started(1, 0)])
    with pytest.raises(TypeError):
        folded(OPENED)
