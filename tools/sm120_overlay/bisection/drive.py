"""The loop: what to run next is asked of the decision, runs are given to the hosts, what they tell is written down.

It keeps no state of its own that matters: killed at any moment, it goes on from the journal.
"""

from __future__ import annotations

import math
import os
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, time
from typing import Protocol

from ..errors import Missing, OverlayError
from ..stops import held_back
from .decision.nouns import Ask, Decision, Field, Reading, Rules, Verdict
from .events import Concluded, Driven, Ended, Event, Opened, Ruled, Started
from .history import History
from .job import Job, Outcome, Ran
from .journal import Journal, append, held
from .lanes import lanes, paired
from .session import (
    Score,
    Session,
    after,
    build_cost,
    built,
    check_same,
    field_of,
    fold,
    new_limits,
    readings,
    scored,
    to_retry,
)

LOST_IN_A_ROW = 5  # runs of one program that took their host away, one after the other, before that is said
TICK = 1.0  # seconds between looks at the clock while runs are under way


class Hosts(Protocol):
    """Where jobs run (bisection.hosts): so many at once (less when hosts are lost), until it is closed."""

    @property
    def width(self) -> int:
        """How many jobs can run at once now."""

    def submit(self, job: Job) -> Future[Ran]:
        """Gives it to a host."""

    def close(self) -> None:
        """Ends what still runs."""


class Decide(Protocol):
    """The decision (bisection.decision.rule)."""

    def __call__(
        self,
        field: Field,
        readings: Sequence[Reading],
        rules: Rules,
        batch: int = 1,
        built: frozenset[int] = frozenset(),
        build_cost: float = 0.0,
        pending: Sequence[int] = (),
    ) -> Decision:
        """What is believed, and what to do next."""


Watch = Callable[[Session, Decision], None]


@dataclass
class Flight:
    """A driver at work: its session as it is now, and what each run under way is booked on.

    `gone` counts the runs in a row that took their host away, by program; `before` the runs of drivers before this one.
    """

    journal: Journal
    session: Session
    history: History
    hosts: Hosts
    job_for: Callable[[int, int], Job]
    under_way: dict[Future[Ran], tuple[int, Job]] = field(default_factory=dict)
    gone: Counter[int] = field(default_factory=Counter)
    before: int = 0

    @property
    def free(self) -> int:
        """How many jobs more can run now."""
        return self.hosts.width - len(self.under_way)


@contextmanager
def taken_up(folder: Path, wanted: Opened) -> Iterator[tuple[Journal, Session, tuple[str, ...]]]:
    """The session of a folder, begun or gone on with, and what a person should know of that.

    Raises:
        Refused: another process is at work on it, it is another session, or a line of it is none of ours.
    """
    with held(folder) as (journal, written):
        said: tuple[str, ...] = (
            (f"its last line, which was cut, is left off ({written.torn} bytes)",) if written.torn else ()
        )
        if written.events:
            session = fold(written.events)
            check_same(session.opened, wanted, folder)
            limits = new_limits(session.opened, wanted)
            if limits:
                append(journal, ruled := Ruled(wanted.rules))
                session = after(session, ruled)
            said += tuple(
                f"--{name.replace('_', '-')} is {now:g} from here on, it was {was:g}"
                for name, (was, now) in limits.items()
            )
        else:
            append(journal, wanted)
            session = Session(wanted)
        yield journal, session, said


def note(flight: Flight, event: Event) -> None:
    """Writes an event down, then counts it."""
    with held_back():
        append(flight.journal, event)
        flight.session = after(flight.session, event)


@contextmanager
def flown(flight: Flight) -> Iterator[Flight]:
    """A driver takes the session up; whatever ends it early, runs that have come back are written down first."""
    try:
        note(flight, Driven(os.getpid(), platform.node(), time()))
        flight.before = len(flight.session.runs)
        yield flight
    except BaseException:
        with held_back(), suppress(OverlayError):  # a full disk; what ended it is said instead
            let_go(flight, "the bisection was stopped")
        raise


def let_go(flight: Flight, why: str) -> None:
    """Ends all that runs; what had come back by then is written down as it is, the rest as lost."""
    back = [each for each in flight.under_way if each.done() and not each.cancelled()]
    flight.hosts.close()  # a command that is killed by this tells nothing of its program
    ended = [(program, job) for each, (program, job) in flight.under_way.items() if each not in back]
    try:
        write_down(flight, back)
    finally:
        flight.under_way.clear()
        for program, job in ended:
            note(flight, Ended(program, job.key, Ran(job.number, Outcome.LOST, why=why)))


def drive(
    flight: Flight, decide: Decide, watch: Watch = lambda session, decision: None,
    score: Score = scored, budget_s: float = math.inf,
) -> Verdict:  # fmt: skip
    """Measures until the decision has its answer.

    Args:
        watch: is told after every run, and before the first, what is known.
        budget_s: after so many seconds no run is begun, those under way are ended, and the answer is what is known.

    Raises:
        Missing: an end gives no number, a run stopped it all, all hosts are gone, or the budget ended too early.
    """
    until = monotonic() + budget_s
    while True:
        decision = _asked(flight, decide, score)
        watch(flight.session, decision)
        if isinstance(decision.next, Verdict) and not flight.under_way:
            break
        if monotonic() >= until:
            decision = _spent(flight, decide, score, budget_s)
            watch(flight.session, decision)
            break
        if isinstance(decision.next, Ask) and flight.free > 0:
            _begin(flight, decision.next)
        land(flight, until)
    assert isinstance(decision.next, Verdict)
    note(flight, Concluded(decision.next))
    return decision.next


def _asked(flight: Flight, decide: Decide, score: Score) -> Decision:
    """The decision on what is known now."""
    session, history, rules = flight.session, flight.history, flight.session.opened.rules
    batch = max(flight.free, 1) * (2 if paired(rules) else 1)  # pairs: the old end and another program
    return decide(
        field_of(session, history), readings(session, history, score), rules, batch,
        built(session, history), build_cost(session), tuple(program for program, _ in flight.under_way.values()),
    )  # fmt: skip


def _spent(flight: Flight, decide: Decide, score: Score, budget_s: float) -> Decision:
    """The decision when no more can be measured."""
    let_go(flight, f"the budget of {budget_s:g} s ended")
    session, history = flight.session, flight.history
    known, rules = readings(session, history, score), session.opened.rules
    ends = {0, len(history.programs) - 1}
    if ends <= {each.program for each in known}:
        found = decide(field_of(session, history), known, replace(rules, most_runs=len(known)))
        if isinstance(found.next, Verdict):
            return found
    # why: with one level alone there is nothing to say, not even that nothing changed
    raise Missing(
        f"The budget of {budget_s:g} s ended before both ends were measured.",
        "Run again with a larger --budget: it goes on from there.",
    )


def _begin(flight: Flight, ask: Ask) -> None:
    """Starts as many runs as there is room for; a program whose last run failed comes first."""
    session = flight.session
    again = to_retry(session, flight.history)
    wanted = (*again, *(program for program in ask.programs if program not in again))
    under_way = [job for _, job in flight.under_way.values()]
    for lane in lanes(session.opened.rules, session.runs[flight.before :], wanted, flight.free, under_way):
        job = flight.job_for(flight.session.next_number, lane.program)
        begin(flight, lane.program, replace(job, host=lane.host, shun=lane.shun))


def begin(flight: Flight, program: int, job: Job) -> None:
    """Starts a run that is booked on this program."""
    with held_back():  # a job that is given away and not known here could not be ended
        note(flight, Started(job.number, program, time()))
        flight.under_way[_submitted(flight.hosts, job)] = (program, job)


def _submitted(hosts: Hosts, job: Job) -> Future[Ran]:
    try:
        return hosts.submit(job)
    except (RuntimeError, OSError) as error:  # a pool that broke, a host that does not answer
        lost: Future[Ran] = Future()
        lost.set_exception(error)
        return lost


def land(flight: Flight, until: float = math.inf) -> None:
    """Waits for a run to come back, and writes down all that have.

    Raises:
        Missing: it stopped everything, all hosts are gone, or a program takes every host away.
    """
    while not (done := [each for each in flight.under_way if each.done()]) and monotonic() < until:
        if flight.hosts.width <= 0:
            # why: a bisection that waits for hosts that do not come back never ends
            raise Missing("All hosts are gone.", "See to the hosts, then run again: it goes on from there.")
        if not flight.under_way:
            raise RuntimeError("the decision asks for no run and gives no answer")
        wait(flight.under_way, min(TICK, max(until - monotonic(), 0.0)), FIRST_COMPLETED)
    write_down(flight, done)


def write_down(flight: Flight, done: Sequence[Future[Ran]]) -> None:
    """Writes down what runs told, then sees whether one of them ends it all."""
    told = []
    for future in sorted(done, key=lambda each: flight.under_way[each][1].number):
        program, job = flight.under_way[future]
        ran = _told(future, job)
        note(flight, Ended(program, job.key, ran))
        del flight.under_way[future]
        told.append((program, job, ran))
    for program, job, ran in told:
        _go_on(flight, program, job, ran)


def _told(future: Future[Ran], job: Job) -> Ran:
    """What a run told; a host that told nothing is lost."""
    try:
        return future.result()
    except OverlayError:
        raise
    except CancelledError:
        return Ran(job.number, Outcome.LOST, why="it was cancelled")
    except Exception as error:  # whatever a pool or a scheduler says when a host goes away
        return Ran(job.number, Outcome.LOST, why=f"{type(error).__name__}: {error}")


def _go_on(flight: Flight, program: int, job: Job, ran: Ran) -> None:
    if ran.outcome is Outcome.LOST:
        flight.gone[program] += 1
    else:
        del flight.gone[program]
    times = flight.gone[program]
    revision, why = job.revision[:12], ran.why.rstrip(".")
    if ran.outcome is Outcome.ABORTED:
        # why: a command that was stopped by a signal or by its own word asks for no other run
        raise Missing(
            f"Run {ran.number} at {revision} stopped the bisection: {why}.",
            "See its log, mend what stopped it, then run again: it goes on from there.",
        )
    if times >= LOST_IN_A_ROW:
        # why: a revision that takes its host down each time would take them all
        raise Missing(
            f"{times} runs in a row at {revision} lost their host: {why}.",
            "See to the hosts, or leave the revision out (skip REVISION), then run again: it goes on from there.",
        )
