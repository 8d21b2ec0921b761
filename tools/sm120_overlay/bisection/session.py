"""What a session has come to: a fold of its events, and what a decision is made on.

Nothing here is kept anywhere. Taking a run out, going on after a crash and looking back are all the same fold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from pathlib import Path

from ..errors import Missing, Refused
from .decision.nouns import Field, Reading, Verdict
from .events import (
    Concluded,
    Driven,
    Ended,
    Event,
    Opened,
    Reverted,
    Ruled,
    Skipped,
    Started,
    Voided,
    as_json,
)
from .history import History, Program, Revision
from .job import Metric, Outcome, Ran

Score = Callable[[Metric, float], float]
FAILURES = (Outcome.FAILED, Outcome.UNBUILT)
SAID_SO = (Outcome.SKIPPED, Outcome.SKIP_RANGE)
BY_HAND = "it was skipped by hand"
LIMITS = ("confidence", "ends", "verify", "most_runs")  # of the rules: they change no number and no question
TRIES = 2  # failures in a row after which no run can judge a program


@dataclass(frozen=True)
class Made:
    """A run that ended; `void` says why a person took it out (None: it counts)."""

    program: int
    key: str
    ran: Ran
    void: str | None = None


@dataclass(frozen=True)
class Session:
    """A session now.

    `runs` are in the order in which they ended, `flying` the programs of runs that a driver has started and that have
    not ended, by number, `lost` those whose driver is gone. `skips` are programs that a person took out, with why.
    `verdict` and `reverted` are the last that were written, as long as nothing was measured or changed since;
    `aborted` is why the last run stopped it all ("": it did not).
    """

    opened: Opened
    runs: tuple[Made, ...] = ()
    flying: Mapping[int, int] = field(default_factory=dict)
    lost: Mapping[int, int] = field(default_factory=dict)
    skips: Mapping[int, str] = field(default_factory=dict)
    verdict: Verdict | None = None
    reverted: Reverted | None = None
    aborted: str = ""
    drivers: int = 0

    @property
    def next_number(self) -> int:
        """The number of the next run."""
        return 1 + max((*(made.ran.number for made in self.runs), *self.flying, *self.lost), default=0)


def fold(events: Iterable[Event]) -> Session:
    """The session of all its events; the first opens it."""
    first, *rest = events
    if not isinstance(first, Opened):
        raise TypeError(f"expected the event that opens a session, found {first}")
    return reduce(after, rest, Session(first))


def after(session: Session, event: Event) -> Session:
    """The session after one more event."""
    match event:
        case Driven():
            lost = {**session.lost, **session.flying}
            return replace(session, flying={}, lost=lost, aborted="", drivers=session.drivers + 1)
        case Ruled():
            return replace(session, opened=replace(session.opened, rules=event.rules), verdict=None)
        case Started() | Ended():
            session = replace(session, verdict=session.verdict if event.program < 0 else None)
            return _started(session, event) if isinstance(event, Started) else _ended(session, event)
        case Voided() | Skipped():
            session = replace(session, verdict=None, reverted=None)
            return _voided(session, event) if isinstance(event, Voided) else _skipped(session, event)
        case Concluded():
            return replace(session, verdict=event.verdict)
        case Reverted():
            return replace(session, reverted=event)
    raise TypeError(f"{event} follows no session")


def _started(session: Session, event: Started) -> Session:
    return replace(session, flying={**session.flying, event.number: event.program})


def _ended(session: Session, event: Ended) -> Session:
    """A run counts once, however often it is told."""
    ran = event.ran
    if any(made.ran.number == ran.number for made in session.runs):
        return session
    flying = {number: program for number, program in session.flying.items() if number != ran.number}
    lost = {number: program for number, program in session.lost.items() if number != ran.number}
    aborted = ran.why if ran.outcome is Outcome.ABORTED else session.aborted
    runs = (*session.runs, Made(event.program, event.key, ran))
    return replace(session, runs=runs, flying=flying, lost=lost, aborted=aborted)


def _voided(session: Session, event: Voided) -> Session:
    void = None if event.lifted else event.why
    runs = (replace(made, void=void) if made.ran.number == event.number else made for made in session.runs)
    return replace(session, runs=tuple(runs))


def _skipped(session: Session, event: Skipped) -> Session:
    skips = {program: why for program, why in session.skips.items() if program != event.program}
    return replace(session, skips=skips if event.lifted else {**skips, event.program: event.why or BY_HAND})


def check_same(found: Opened, wanted: Opened, folder: Path) -> None:
    """Sees that a session is the one that is asked for: the same cell, history and rules, but for their limits.

    Raises:
        Refused: it is another.
    """
    found = replace(found, rules=replace(found.rules, **{name: getattr(wanted.rules, name) for name in LIMITS}))
    differ = [
        each.name
        for each in fields(Opened)
        if each.name != "at" and as_json(getattr(found, each.name)) != as_json(getattr(wanted, each.name))
    ]
    if differ:
        names = ", ".join(differ)
        # why: runs of another command or another history say nothing about this one
        raise Refused(
            f"{folder} is another session: {names} {'differs' if len(differ) == 1 else 'differ'}.",
            "Repeat what that session was begun with (an end that is a branch may have moved: name the commit), or "
            "begin another one (--session FOLDER).",
        )


def new_limits(found: Opened, wanted: Opened) -> dict[str, tuple[float, float]]:
    """The limits that another run of the same session sets anew: what they were and what they are."""
    both = {name: (getattr(found.rules, name), getattr(wanted.rules, name)) for name in LIMITS}
    return {name: pair for name, pair in both.items() if pair[0] != pair[1]}


def measured_at(history: History, program: int) -> Revision:
    """The revision that stands for a program: its first one that a run can judge."""
    return _standing(history, history.programs[program])


def stand_ins(history: History) -> tuple[Revision, ...]:
    """The revision that stands for each program."""
    return tuple(_standing(history, span) for span in history.programs)


def _standing(history: History, span: Program) -> Revision:
    revisions = history.revisions[span.first : span.last + 1]
    return next((each for each in revisions if not each.untestable), revisions[0])


def in_a_row(session: Session, program: int, key: str | None = None) -> tuple[Ran, ...]:
    """The failures of a program since its last run that did not fail; lost runs are neither."""
    found: list[Ran] = []
    for made in session.runs:
        if made.program != program or made.void is not None or (key is not None and made.key != key):
            continue
        if made.ran.outcome in FAILURES:
            found.append(made.ran)
        elif made.ran.outcome not in (Outcome.LOST, Outcome.ABORTED):
            found.clear()
    return tuple(found)


def to_retry(session: Session, history: History) -> tuple[int, ...]:
    """Programs whose last run failed, and that get one more."""
    out, flying = untestable(session, history), session.flying.values()
    return tuple(one for one in _failing(session) if one not in out and one not in flying)


def _failing(session: Session) -> dict[int, tuple[Ran, ...]]:
    """The programs whose last run failed, each with its failures in a row."""
    ever = sorted({made.program for made in session.runs if made.ran.outcome in FAILURES and made.program >= 0})
    return {program: row for program in ever if (row := in_a_row(session, program))}


def untestable(session: Session, history: History) -> dict[int, str]:
    """The programs that no run can judge, and why."""
    stand = stand_ins(history)
    out = {one: revision.untestable for one, revision in enumerate(stand) if revision.untestable}
    for one, failed in _failing(session).items():
        if len(failed) >= TRIES:
            out.setdefault(one, f"{len(failed)} runs in a row gave no number: {failed[-1].why}")
    counted = [made for made in session.runs if made.void is None and made.program >= 0]
    numbers = {made.program for made in counted if made.ran.outcome is Outcome.MEASURED}
    for made in counted:
        if made.ran.outcome in SAID_SO:
            out.setdefault(made.program, made.ran.why or "the command skips it")
        if made.ran.outcome is Outcome.SKIP_RANGE:
            for one in _around(made.program, numbers, len(stand) - 1):
                out.setdefault(one, f"run {made.ran.number} at program {made.program} skips the range around it")
    return {**out, **session.skips}


def _around(program: int, numbers: set[int], last: int) -> range:
    """The programs inside both ends, up to the next ones on either side that were measured."""
    below = max((one for one in numbers if one < program), default=0)
    above = min((one for one in numbers if one > program), default=last)
    return range(max(below, 0) + 1, min(above, last))


def scored(metric: Metric, value: float) -> float:
    """A value on the scale of the decision."""
    from .metric import score

    return score(metric, value)


def readings(session: Session, history: History, score: Score = scored) -> tuple[Reading, ...]:
    """The numbers that count, in the order in which the runs were started."""
    metric, out = session.opened.cell.metric, untestable(session, history)
    made = sorted(session.runs, key=lambda each: each.ran.number)
    return tuple(
        Reading(each.program, score(metric, each.ran.value), each.ran.host, each.ran.number)
        for each in made
        if each.ran.outcome is Outcome.MEASURED and each.ran.value is not None
        and each.void is None and each.program >= 0 and each.program not in out
    )  # fmt: skip


def check_ends(history: History) -> None:
    """A run can judge both ends, as far as that is known before any.

    Raises:
        Missing: the series does not go onto one of them.
    """
    stand = stand_ins(history)
    for which, end in (("old", stand[0]), ("new", stand[-1])):
        if end.untestable:
            # why: an end without the whole series is another program than the one that is asked about
            raise Missing(
                f"The {which} end {end.commit.short} cannot be judged: {end.untestable.rstrip('.')}.",
                "Measure without it (--on-conflict drop, or --without SLUG), upstream alone (--no-series), or with "
                "another line's series (--line).",
            )


def field_of(session: Session, history: History) -> Field:
    """The programs as a decision sees them.

    Raises:
        Missing: an end gives no number.
    """
    check_ends(history)
    out, stand = untestable(session, history), stand_ins(history)
    for end, which in ((0, "old"), (len(stand) - 1, "new")):
        if end in out:
            revision, why = stand[end].commit.short, out[end].rstrip(".")
            # why: with one level alone there is no difference to look for
            raise Missing(
                f"The {which} end {revision} gives no number: {why}.",
                "Choose another end, or mend the command and take those runs out (void NUMBER), then run again.",
            )
    return Field(tuple(change.prior for change in history.changes if not change.culled), frozenset(out))


def built(session: Session, history: History) -> frozenset[int]:
    """The programs whose environment is built: no run of them pays for that."""
    stand = stand_ins(history)
    keys = {stand[made.program].build_key for made in session.runs if _built(made)}
    return frozenset(one for one, revision in enumerate(stand) if revision.build_key in keys)


def _built(made: Made) -> bool:
    return made.program >= 0 and made.ran.outcome in (Outcome.MEASURED, *SAID_SO)


def build_cost(session: Session) -> float:
    """What a build costs, in runs (0: not known yet, or there is none)."""
    ran = [made.ran for made in session.runs if made.ran.outcome is Outcome.MEASURED]
    builds = [each.build_seconds for each in ran if each.build_seconds > 0]
    took = sum(each.seconds for each in ran)
    return (sum(builds) / len(builds)) / (took / len(ran)) if builds and took > 0 else 0.0
