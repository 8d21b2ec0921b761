"""What holds of every decision, whatever was read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm120_overlay.bisection.decision.nouns import Ask, Field, Reading, Rules, Verdict
from sm120_overlay.bisection.decision.rule import decide
from sm120_overlay.bisection.job import Scale

LINEAR = Rules(scale=Scale.LINEAR)
SCALES = st.sampled_from([Scale.LINEAR, Scale.PASS_FAIL, Scale.EXACT])


@st.composite
def cases(draw: st.DrawFn) -> tuple[Field, list[Reading]]:
    """A field and readings of it, of two hosts, rounded so that equal ones occur."""
    changes = draw(st.integers(1, 30))
    inner = draw(st.frozensets(st.integers(1, max(changes - 1, 1)), max_size=5)) - {changes}
    priors = tuple(draw(st.lists(st.sampled_from([0.1, 1.0, 3.0]), min_size=changes, max_size=changes)))
    programs = draw(st.lists(st.sampled_from(sorted(set(range(changes + 1)) - inner)), max_size=25))
    seed, culprit = draw(st.integers(0, 999)), draw(st.integers(1, changes))
    noise = np.random.default_rng(seed).normal(size=len(programs)) * draw(st.sampled_from([0.0, 0.1, 1.0]))
    values = [round(float((program >= culprit) + more), 2) for program, more in zip(programs, noise, strict=True)]
    found = [
        Reading(program, value, "ab"[at % 2], at)
        for at, (program, value) in enumerate(zip(programs, values, strict=True))
    ]
    return Field(priors, inner), found


def told(scale: Scale, readings: list[Reading]) -> list[Reading]:
    """The readings as that scale has them."""
    return [replace(one, value=float(one.value > 0.5)) for one in readings] if scale is Scale.PASS_FAIL else readings


@settings(max_examples=60, deadline=None)
@given(cases(), SCALES, st.integers(1, 4), st.booleans())
def test_beliefs_sum_to_one_and_no_untestable_program_is_asked(
    case: tuple[Field, list[Reading]], scale: Scale, batch: int, paired: bool
) -> None:
    field, readings = case
    rules = Rules(scale=scale, paired=paired)
    pending = tuple(reading.program for reading in readings[:2])
    one = decide(field, told(scale, readings), rules, batch, pending=pending)
    assert sum(one.belief.changes) + one.belief.none == pytest.approx(1)
    assert min(one.belief.changes) >= 0
    assert len(one.belief.changes) == field.last
    if isinstance(one.next, Ask):
        assert 1 <= len(one.next.programs) <= batch
        assert not set(one.next.programs) & field.untestable
        assert one.more_runs >= 1
    assert one == decide(field, told(scale, readings), rules, batch, pending=pending)


@settings(max_examples=30, deadline=None)
@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_readings_does_not_matter(case: tuple[Field, list[Reading]], chance: object) -> None:
    field, readings = case
    mixed = list(readings)
    chance.shuffle(mixed)  # type: ignore[attr-defined]
    assert decide(field, readings, LINEAR) == decide(field, mixed, LINEAR)


@settings(max_examples=30, deadline=None)
@given(cases(), st.sampled_from([-100.0, 0.0, 1e4]), st.sampled_from([0.001, -1.0, 1000.0]))
def test_units_do_not_matter(case: tuple[Field, list[Reading]], shift: float, scale: float) -> None:
    field, readings = case
    moved = [replace(one, value=one.value * scale + shift) for one in readings]
    one, other = decide(field, readings, LINEAR), decide(field, moved, LINEAR)
    assert other.belief.changes == pytest.approx(one.belief.changes, abs=1e-5)
    if isinstance(one.next, Verdict):
        assert isinstance(other.next, Verdict)
        assert other.next.status is one.next.status


@settings(max_examples=30, deadline=None)
@given(cases(), st.sampled_from([Scale.LINEAR, Scale.PASS_FAIL]))
def test_a_history_the_other_way_round_is_believed_the_other_way_round(
    case: tuple[Field, list[Reading]], scale: Scale
) -> None:
    field, readings = case
    last, readings = field.last, told(scale, readings)
    turned = Field(field.priors[::-1], frozenset(last - one for one in field.untestable))
    back = [replace(one, program=last - one.program) for one in readings]
    rules = Rules(scale=scale)
    assert decide(turned, back, rules).belief.changes[::-1] == pytest.approx(
        decide(field, readings, rules).belief.changes, abs=1e-7
    )
