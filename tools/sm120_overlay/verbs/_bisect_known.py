"""A session as people look at it: what its journal says, decided anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..bisection.decision.nouns import Decision
from ..bisection.events import Ended, Event, Opened, Skipped, Voided, from_json
from ..bisection.history import History
from ..bisection.journal import append, held, read
from ..bisection.session import Session, after, build_cost, built, field_of, fold, readings, untestable
from ..errors import Missing, UsageError
from ..queue.pins import Lines
from ._bisect_show import Told, program_of


def history_of(opened: Opened) -> History:
    """The history that a session is about."""
    found: History = from_json(History, opened.history)
    return found


def told_of(session: Session, history: History, decision: Decision | None, folder: Path, lines: Lines) -> Told:
    """A session as it is told."""
    opened = session.opened
    undone = session.reverted
    return Told(
        opened.upstream, opened.line, opened.old, opened.new, opened.releases, history, opened.unit, opened.rules,
        session.runs, decision, opened.terms, untestable(session, history),
        f"the culprit taken back on {opened.new}: {undone.outcome.value}, {undone.why}" if undone else "",
        {pin.distribution: pin.upstream for pin in lines.all_pins()}, str(folder), session.aborted,
    )  # fmt: skip


def decided(session: Session, history: History) -> Decision | None:
    """What is known now, and what would run next; None where an end gives no number, or nothing was measured yet.

    A verdict that was written is kept: a run that ended for want of time would decide otherwise today.
    """
    from ..bisection.decision.rule import decide

    known = readings(session, history)
    if not known or len(history.programs) == 1:
        return None
    try:
        field = field_of(session, history)
    except Missing:
        return None
    cost = build_cost(session)
    decision = decide(field, known, session.opened.rules, built=built(session, history), build_cost=cost)
    return Decision(decision.belief, session.verdict, 0.0) if session.verdict else decision


def known(folder: Path, lines: Lines) -> Told:
    """What the session in a folder has come to.

    Raises:
        Missing, Refused: there is none, or its journal is damaged.
    """
    session = fold(_begun(folder, read(folder).events))
    history = history_of(session.opened)
    return told_of(session, history, decided(session, history), folder, lines)


def replayed(folder: Path, lines: Lines) -> Iterator[Told]:
    """The same after every run, void and skip, from the first."""
    first, *rest = _begun(folder, read(folder).events)
    session = fold([first])
    history = history_of(session.opened)
    for event in rest:
        session = after(session, event)
        if isinstance(event, Ended | Voided | Skipped):
            yield told_of(session, history, decided(session, history), folder, lines)


def _begun(folder: Path, events: Sequence[Event]) -> Sequence[Event]:
    if not events:
        # why: a run that was stopped before it wrote anything has left nothing to tell
        raise Missing(f"{folder}: the session is empty.", "Begin it with run.")
    return events


def skip(folder: Path, revision: str, why: str, lifted: bool) -> None:
    """Writes that no run can judge a revision's program, or that one can after all.

    Raises:
        UsageError: there is no such revision, or more than one.
    """
    with held(folder) as (journal, written):
        session = fold(_begun(folder, written.events))
        history = history_of(session.opened)
        found = [at for at, one in enumerate(history.revisions) if one.commit.id.startswith(revision)]
        found = [at for at in found if history.revisions[at].commit.id == revision] or found
        if len(found) != 1:
            # why: another revision than the one that was meant would be left out
            raise UsageError(
                f"{revision}: expected one revision of the session, found {len(found)}.",
                "Name a commit's id, or a release, as status --json and run --dry-run show them.",
            )
        append(journal, Skipped(program_of(history)[found[0]], why, lifted, history.revisions[found[0]].commit.id))


def void(folder: Path, number: int, why: str, lifted: bool) -> None:
    """Writes that a run does not count, or that it does after all.

    Raises:
        UsageError: there is no such run.
    """
    with held(folder) as (journal, written):
        session = fold(_begun(folder, written.events))
        if not any(made.ran.number == number for made in session.runs):
            # why: a number that is mistyped would leave the run in that was meant to go
            raise UsageError(f"There is no run {number} in {folder}.", "log lists the runs with their numbers.")
        append(journal, Voided(number, why, lifted))
