"""A bisection as a figure: every run by revision, both levels, the posterior, and tables of it all."""

from __future__ import annotations

from collections.abc import Iterator

from ..bisection.decision.nouns import Level
from ..bisection.history import History
from ..bisection.job import Scale
from ..bisection.session import measured_at
from ..picture.bisection import Bar, Dot, Picture, Place, Side, Table
from ._bisect_show import (
    PLAN_HEADS,
    RUN_HEADS,
    YES,
    Told,
    belief_rows,
    lines,
    named,
    plan_rows,
    run_rows,
    sentence,
    user,
)


def figure_of(told: Told) -> Picture:
    """What is drawn."""
    history = told.history
    belief = told.decision.belief if told.decision else None
    bars = tuple(Bar(_first(history, j + 1), weight) for j, weight in enumerate(belief.changes)) if belief else ()
    return Picture(
        f"Bisection of {told.what} ({_with(told)})",
        (sentence(told), *lines(told)), told.unit, tuple(_places(history)), tuple(_dots(told)), tuple(_sides(told)),
        bars, belief.none if belief else 0.0, tuple(_tables(told)),
    )  # fmt: skip


def _with(told: Told) -> str:
    """What is on every revision."""
    patched = any(revision.patches for revision in told.history.revisions)
    return f"with the series of {told.line}" if patched else "upstream alone"


def _first(history: History, program: int) -> int:
    return history.programs[program].first


def _places(history: History) -> Iterator[Place]:
    for at, revision in enumerate(history.revisions):
        culled = history.changes[at - 1].culled if at else ""
        title = named(history.changes[at - 1]) if at else revision.commit.named
        yield Place(revision.commit.short, title, culled, revision.untestable)


def _dots(told: Told) -> Iterator[Dot]:
    for made in told.made:
        value = made.ran.value
        if value is not None and made.program >= 0:
            at = told.history.revisions.index(measured_at(told.history, made.program))
            yield Dot(at, value, made.void is not None)


def _sides(told: Told) -> Iterator[Side]:
    """The level from one culprit to the next; of the ends alone where nothing was found."""
    verdict, history = told.verdict, told.history
    if verdict is None or (told.rules.scale is Scale.EXACT and not verdict.culprits):
        return
    last = len(history.revisions) - 1
    if verdict.status not in YES:
        yield _side(told, 0, 0, verdict.old)
        yield _side(told, last, last, verdict.new)
        return
    culprits = sorted(verdict.culprits, key=lambda culprit: culprit.programs)
    start = 0
    for culprit in culprits:
        first = _first(history, min(culprit.programs))
        yield _side(told, start, first - 1, culprit.before)
        start = _first(history, max(culprit.programs))
    yield _side(told, start, last, culprits[-1].after)


def _side(told: Told, first: int, last: int, level: Level) -> Side:
    return Side(first, last, *(user(told.rules, value) for value in (level.mean, level.low, level.high)))


def _tables(told: Told) -> Iterator[Table]:
    if told.decision:
        rows = tuple((weight.strip(), change) for weight, _, change in belief_rows(told, told.decision))
        yield Table("Posterior", ("probability", "change"), rows)
    yield Table("Runs", RUN_HEADS, tuple(run_rows(told)))
    culled = frozenset(at for at, change in enumerate(told.history.changes, 1) if change.culled)
    yield Table("Revisions", PLAN_HEADS, tuple(plan_rows(told.history)), culled)
