"""What to run next and when it is enough: the ends, the choice, the verdicts, on readings made up here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from sm120_overlay.bisection.decision.expected import capacity, expected_runs
from sm120_overlay.bisection.decision.line import line_of, runs_of
from sm120_overlay.bisection.decision.nouns import Ask, Decision, Field, Reading, Rules, Status, Verdict
from sm120_overlay.bisection.decision.posterior import gaps_of
from sm120_overlay.bisection.decision.rule import decide
from sm120_overlay.bisection.job import Scale

LINEAR = Rules(scale=Scale.LINEAR)
PASS_FAIL = Rules(scale=Scale.PASS_FAIL)
EXACT = Rules(scale=Scale.EXACT)
Machine = Callable[[int, int], float]


def even(changes: int, *untestable: int) -> Field:
    """A field of changes that are all as likely."""
    return Field((1.0,) * changes, frozenset(untestable))


def asked(decision: Decision) -> tuple[int, ...]:
    """The programs to run next."""
    assert isinstance(decision.next, Ask), decision.next
    assert len(decision.next.why) == len(decision.next.programs)
    return decision.next.programs


def bisect(
    field: Field, machine: Machine, rules: Rules = LINEAR, hosts: int = 1, most: int = 600
) -> tuple[Verdict, list[Reading]]:
    """Runs what is asked for, a round at a time, on as many hosts; the verdict and all readings."""
    readings: list[Reading] = []
    while len(readings) < most:
        decision = decide(field, readings, rules, hosts)
        if isinstance(decision.next, Verdict):
            assert decision.more_runs == 0
            return decision.next, readings
        assert decision.more_runs >= 1
        assert not field.untestable & set(decision.next.programs)
        for host, program in enumerate(decision.next.programs):
            readings.append(Reading(program, machine(program, host), f"host{host}", len(readings)))
    raise AssertionError("no verdict")


def step(culprit: int, d: float, seed: int = 1, second: int = 0) -> Machine:
    """A machine whose metric rises by 1 at a change; `d` is that in noises (0: no noise)."""
    chance = np.random.default_rng(seed)
    noise = 1 / d if d else 0.0
    return lambda program, _: float((program >= culprit) + (second > 0) * (program >= second) + noise * chance.normal())


def readings(*values: tuple[int, float]) -> list[Reading]:
    """Readings in this order on one host."""
    return [Reading(program, value, "", at) for at, (program, value) in enumerate(values)]


ENDS = readings((0, 0.0), (64, 1.0), (64, 1.01), (0, 0.02), (64, 0.99), (0, 0.01))


def test_ends_are_run_first_and_in_turns_that_no_drift_follows() -> None:
    order: list[int] = []
    for at in range(6):
        done = [Reading(program, 0.1 * at, "", at) for at, program in enumerate(order)]
        order += asked(decide(even(64), done, LINEAR))
    assert order == [0, 64, 64, 0, 64, 0]
    assert asked(decide(even(64), [], LINEAR, batch=4)) == (0, 64, 64, 0)
    assert asked(decide(even(64), [], LINEAR, pending=(0,))) == (64,)


def test_ends_that_do_not_differ_surely_yet_are_run_again() -> None:
    unsure = readings((0, 0.0), (9, 0.9), (9, 0.1), (0, 1.0), (9, 1.2), (0, 0.4))
    assert asked(decide(even(9), unsure, LINEAR))[0] in (0, 9)


def test_a_clear_difference_of_the_ends_sends_the_next_run_to_the_middle() -> None:
    (program,) = asked(decide(even(64), ENDS, LINEAR))
    assert 16 <= program <= 48


def test_the_middle_is_by_prior_not_by_number() -> None:
    field = Field((*(0.01,) * 50, *(1.0,) * 14))
    (program,) = asked(decide(field, ENDS, LINEAR))
    assert 53 <= program <= 61


def test_several_hosts_are_sent_to_different_programs() -> None:
    programs = asked(decide(even(64), ENDS, LINEAR, batch=3))
    assert len(set(programs)) == 3
    assert set(programs) <= set(range(8, 57))
    assert set(asked(decide(even(64), ENDS, LINEAR, pending=programs))) - set(programs)


def test_a_program_that_is_built_is_run_rather_than_one_that_costs_a_build() -> None:
    noisy = readings((0, 0.0), (64, 1.0), (64, 1.4), (0, 0.4), (64, 0.8), (0, -0.3), (32, 0.5), (64, 1.2), (0, 0.1))
    free = asked(decide(even(64), noisy, LINEAR))
    dear = asked(decide(even(64), noisy, LINEAR, built=frozenset({0, 32, 64}), build_cost=50.0))
    assert dear[0] in (0, 32, 64)
    assert free[0] not in (0, 64)


@pytest.mark.parametrize(("changes", "d"), [(1, 4.0), (9, 2.0), (64, 4.0), (512, 8.0), (64, 0.0)])
def test_one_change_is_found_with_its_levels(changes: int, d: float) -> None:
    culprit = changes // 3 + 1
    verdict, runs = bisect(even(changes), step(culprit, d))
    assert verdict.status is Status.FOUND
    (found,) = verdict.culprits
    assert found.programs == (culprit,)
    assert found.probability >= 0.99
    assert min(sum(run.program == side for run in runs) for side in (culprit - 1, culprit)) >= 3
    assert found.after.mean - found.before.mean == pytest.approx(1.0, abs=0.5)
    assert found.before.low <= found.before.mean <= found.before.high
    assert found.before.runs + found.after.runs == len(runs)
    assert verdict.effect.low <= 1.0 <= verdict.effect.high
    assert len(runs) <= 2 * expected_runs(changes, d or 16)


def test_a_metric_without_noise_needs_hardly_more_than_bisection() -> None:
    verdict, runs = bisect(even(4096), step(1234, 0))
    assert verdict.culprits[0].programs == (1234,)
    assert len(runs) <= 6 + 14 + 4
    assert verdict.noise == pytest.approx(0, abs=1e-9)


def test_simulated_culprits_are_right_about_as_soon_as_the_formula_says() -> None:
    chance = np.random.default_rng(6)
    right, made = 0, 0
    for seed in range(25):
        culprit = int(chance.integers(1, 65))
        verdict, runs = bisect(even(64), step(culprit, 2.0, seed))
        right += verdict.status is Status.FOUND and verdict.culprits[0].programs == (culprit,)
        made += len(runs)
    assert right >= 24
    assert made / 25 <= 1.2 * expected_runs(64, 2.0)


def test_ends_that_are_the_same_are_no_change() -> None:
    answers = [bisect(even(64), step(99, 2.0, seed))[0] for seed in range(8)]
    assert [answer.status for answer in answers] == [Status.NO_CHANGE] * 8
    assert not answers[0].culprits
    assert answers[0].effect.low < 0 < answers[0].effect.high


def test_ends_that_are_identical_are_no_change_at_once() -> None:
    verdict, runs = bisect(even(64), lambda program, host: 353.0)
    assert (verdict.status, len(runs)) == (Status.NO_CHANGE, 6)


def test_a_difference_smaller_than_was_asked_about_is_no_change_however_sure() -> None:
    verdict, runs = bisect(even(64), step(20, 50.0), replace(LINEAR, min_effect=1.5))
    assert verdict.status is Status.NO_CHANGE
    assert "1.5" in verdict.why
    assert len(runs) == 6
    assert bisect(even(64), step(20, 50.0), replace(LINEAR, min_effect=0.5))[0].status is Status.FOUND


def test_nothing_between_the_ends_is_no_change_without_a_run() -> None:
    for rules in (LINEAR, PASS_FAIL, EXACT):
        verdict, runs = bisect(Field(()), step(1, 1), rules)
        assert (verdict.status, runs) == (Status.NO_CHANGE, [])


def test_untestable_programs_beside_the_change_make_a_block() -> None:
    verdict, runs = bisect(even(20, 9, 10, 11, 15), step(11, 8.0))
    assert verdict.status is Status.BLOCK
    assert verdict.culprits[0].programs == (9, 10, 11, 12)
    assert not {run.program for run in runs} & {9, 10, 11, 15}


def test_all_programs_between_being_untestable_is_a_block_of_everything() -> None:
    verdict, _ = bisect(even(4, 1, 2, 3), step(2, 8.0))
    assert (verdict.status, verdict.culprits[0].programs) == (Status.BLOCK, (1, 2, 3, 4))


def test_an_untestable_program_keeps_its_prior_and_its_runs_do_not_count() -> None:
    belief = decide(even(20, 9, 10), ENDS[:0], LINEAR).belief
    assert belief.changes[8] == pytest.approx(belief.changes[0])
    told = decide(even(64, 32), [*ENDS, Reading(32, 500.0, "", 9)], LINEAR)
    assert told.belief == decide(even(64, 32), ENDS, LINEAR).belief


def test_runs_that_are_spent_leave_the_smallest_credible_set() -> None:
    verdict, runs = bisect(even(64), step(20, 2.0), replace(LINEAR, most_runs=14))
    assert verdict.status is Status.CREDIBLE_SET
    assert len(runs) == 14
    chances = [culprit.probability for culprit in verdict.culprits]
    assert chances == sorted(chances, reverse=True)
    assert 1 < len(chances) < 64
    assert "14" in verdict.why


def test_two_changes_are_both_found() -> None:
    verdict, _ = bisect(even(64), step(12, 12.0, 3, second=45))
    assert verdict.status is Status.MULTIPLE
    assert {culprit.programs for culprit in verdict.culprits} == {(12,), (45,)}
    first, second = sorted(verdict.culprits, key=lambda culprit: culprit.programs)
    assert first.before.mean == pytest.approx(0, abs=0.2)
    assert first.after.mean == second.before.mean == pytest.approx(1, abs=0.2)


def test_programs_that_each_have_a_level_of_their_own_are_unstable() -> None:
    own = np.random.default_rng(3).normal(size=65) * 0.3
    chance = np.random.default_rng(4)
    verdict, _ = bisect(even(64), lambda at, _: float((at > 30) + own[at] + 0.02 * chance.normal()))
    assert verdict.status is Status.UNSTABLE


@pytest.mark.parametrize("noise", [0.0, 0.0005])
def test_programs_that_differ_by_less_than_the_least_effect_are_of_one_level(noise: float) -> None:
    own = np.random.default_rng(3).uniform(0, 0.04, size=65)
    chance = np.random.default_rng(4)
    rules = replace(LINEAR, min_effect=0.05)
    verdict, _ = bisect(even(64), lambda at, _: float((at > 30) + own[at] + noise * chance.normal()), rules)
    assert (verdict.status, verdict.culprits[0].programs) == (Status.FOUND, (31,))


def test_disturbed_runs_do_not_name_another_change() -> None:
    def disturbed(seed: int) -> Machine:
        calm, chance = step(33, 8.0, seed), np.random.default_rng(seed)
        return lambda at, host: calm(at, host) - float(chance.random() < 0.05)

    for seed in range(6):
        assert bisect(even(64), disturbed(seed))[0].culprits[0].programs == (33,)


def test_a_slow_host_shifts_nothing() -> None:
    calm = step(20, 3.0, 5)
    offsets = (0.0, 3.0, -2.0, 5.0)
    verdict, runs = bisect(even(64), lambda at, host: calm(at, host) + offsets[host], hosts=4)
    assert verdict.culprits[0].programs == (20,)
    assert verdict.culprits[0].after.mean - verdict.culprits[0].before.mean == pytest.approx(1, abs=0.3)
    assert len(runs) < 80


def test_offsets_of_hosts_fall_out_exactly() -> None:
    chance = np.random.default_rng(1)
    runs = [Reading(int(at % 9), float(chance.normal()), f"host{at % 2}", at) for at in range(40)]
    moved = [replace(run, value=run.value + 7 * (run.host == "host1")) for run in runs]
    line = line_of(even(8))
    one, other = (gaps_of(runs_of(line, some, paired=False)) for some in (runs, moved))
    assert other.step == pytest.approx(one.step)


def test_drift_is_paired_out_with_the_old_end_beside_every_run() -> None:
    def drifting(seed: int) -> Machine:
        calm, count = step(40, 4.0, seed), iter(range(10**6))
        return lambda at, host: calm(at, host) + 0.15 * next(count)

    verdict, runs = bisect(even(64), drifting(2), replace(LINEAR, paired=True))
    assert verdict.culprits[0].programs == (40,)
    others = [run.at for run in runs if run.program]
    olds = {run.at for run in runs if not run.program}
    assert all({at - 1, at + 1} & olds for at in others)


def test_a_share_that_falls_is_found_and_one_that_does_not_is_no_change() -> None:
    chance = np.random.default_rng(8)
    verdict, _ = bisect(even(32), lambda at, _: float(chance.random() < (0.98 if at < 21 else 0.4)), PASS_FAIL)
    assert (verdict.status, verdict.culprits[0].programs) == (Status.FOUND, (21,))
    assert verdict.culprits[0].before.mean - verdict.culprits[0].after.mean > 0.3
    verdict, runs = bisect(even(32), lambda at, _: 1.0, PASS_FAIL)
    assert verdict.status is Status.NO_CHANGE
    assert len(runs) <= 30


def test_exact_values_take_one_run_each_and_the_ends_two() -> None:
    verdict, runs = bisect(even(4096), lambda at, _: 7.0 if at < 3000 else 8.0, EXACT)
    assert (verdict.status, verdict.culprits[0].programs) == (Status.FOUND, (3000,))
    assert len(runs) == 4 + 12
    assert (verdict.culprits[0].before.mean, verdict.culprits[0].after.mean) == (7, 8)


def test_an_exact_value_that_is_neither_ends_is_a_second_change() -> None:
    values = [1.0] * 10 + [5.0] * 10 + [2.0] * 10
    verdict, _ = bisect(even(29), lambda at, _: values[at], EXACT)
    assert verdict.status is Status.MULTIPLE
    assert [culprit.programs for culprit in verdict.culprits] == [(10,), (20,)]


def test_exact_values_that_are_not_are_unstable_and_equal_ends_no_change() -> None:
    assert bisect(even(9), lambda at, _: 4.0, EXACT)[0].status is Status.NO_CHANGE
    told = decide(even(9), readings((0, 1.0), (9, 2.0), (9, 3.0)), EXACT)
    assert isinstance(told.next, Verdict)
    assert told.next.status is Status.UNSTABLE
    assert "program 9" in told.next.why


SEEN_16 = ((0, 0.0), (16, 1.0))


def test_an_exact_value_is_looked_at_twice_before_it_is_trusted() -> None:
    assert asked(decide(even(9), readings(), EXACT, batch=4)) == (0, 9, 0, 9)
    assert asked(decide(even(9), readings((0, 1.0), (9, 2.0)), EXACT)) == (0,)
    assert asked(decide(even(9), readings((0, 1.0), (9, 2.0), (0, 1.0)), EXACT, pending=(9,))) == (9,)
    noise = iter(range(99))
    verdict, runs = bisect(even(9), lambda at, _: at + 0.1 * next(noise), EXACT)
    assert (verdict.status, len(runs)) == (Status.UNSTABLE, 3)


def test_exact_bisection_goes_around_untestable_programs_and_spreads_hosts() -> None:
    verdict, runs = bisect(even(16, 7, 8, 9), lambda at, _: float(at >= 8), EXACT)
    assert (verdict.status, verdict.culprits[0].programs) == (Status.BLOCK, (7, 8, 9, 10))
    assert not {7, 8, 9} & {run.program for run in runs}
    assert asked(decide(even(16), readings((0, 0.0), (16, 1.0), *SEEN_16), EXACT, batch=3)) == (8, 4, 12)
    assert asked(decide(even(16), readings((0, 0.0), (16, 1.0), *SEEN_16), EXACT, pending=(8,)))[0] in (4, 12)
    assert asked(decide(even(2), readings((0, 0.0), (2, 1.0), (0, 0.0), (2, 1.0)), EXACT, pending=(1,))) == (1,)


def test_exact_runs_that_are_spent_leave_what_is_between_them() -> None:
    verdict, _ = bisect(even(16), lambda at, _: float(at >= 8), replace(EXACT, most_runs=5))
    assert (verdict.status, verdict.culprits[0].programs) == (Status.CREDIBLE_SET, tuple(range(1, 9)))


def test_the_formula_knows_what_a_run_can_tell() -> None:
    assert [round(capacity(d), 3) for d in (0.5, 1.0, 2.0, 4.0, 8.0)] == [0.044, 0.161, 0.486, 0.913, 1.0]
    assert expected_runs(64, 2.0) == pytest.approx(1.3 * 6 / 0.486 + 12.5 + 7, rel=0.01)
    assert expected_runs(1, 0.0) == expected_runs(1, 1e-9) == expected_runs(1, 0.25)


@pytest.mark.parametrize("rules", [LINEAR, PASS_FAIL, EXACT])
@pytest.mark.parametrize("made", [0, 1, 2, 3])
def test_what_is_known_can_be_asked_for_after_any_number_of_runs(rules: Rules, made: int) -> None:
    known = readings((0, 0.0), (64, 1.0), (32, 1.0))[:made]
    told = decide(even(64), known, replace(rules, most_runs=made))
    assert isinstance(told.next, Verdict)
    assert told.next.status is Status.CREDIBLE_SET
    assert told.next.why.startswith(f"{made} runs were made")


def test_while_the_ends_may_be_the_same_no_more_is_expected_than_settles_that() -> None:
    known = readings((0, 1.0), (64, 1.01), (64, 0.98), (0, 1.02), (64, 1.0), (0, 0.975), (0, 1.01), (64, 1.015))
    assert 1 <= decide(even(64), known, LINEAR).more_runs <= 2 * 60 - len(known)


def test_shares_of_runs_that_pass_differ_by_1_at_most() -> None:
    verdict, _ = bisect(even(9), lambda at, _: float(at < 5), PASS_FAIL)
    assert verdict.status is Status.FOUND
    assert -1 <= verdict.effect.low < verdict.effect.mean < 0
