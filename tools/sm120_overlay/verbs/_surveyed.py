"""What survey answers: a row for every patch, with the commit that breaks or absorbs it first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from .. import report
from ..queue.carry import State
from ..queue.ranges import Commit, Span, Step
from ..queue.series import Series
from ..queue.survey import Prospect, Turn

HEADS = ("patch", "at NEW", "changes", "first", "on", "by")


@dataclass(frozen=True)
class Surveyed:
    """A survey: the series, the steps of the way, and what becomes of each patch.

    `span` has the commits (None: the steps are releases), `releases` the last commit on the way of each tag between;
    `halved` says that one patch was searched by halves; the ends are called as they were asked for.
    """

    series: Series
    steps: tuple[Step, ...]
    prospects: tuple[Prospect, ...]
    span: Span | None
    halved: bool
    old: str
    new: str
    releases: Mapping[str, str] = field(default_factory=dict)

    @property
    def what(self) -> str:
        """What was looked at, for a title."""
        return f"{self.series.pin.upstream} {self.old}..{self.new}"

    @property
    def stops(self) -> bool:
        """Whether a patch would not go onto the new end by itself."""
        return any(prospect.stops for prospect in self.prospects)


def show_surveyed(found: Surveyed, as_json: bool, written: Sequence[Path]) -> int:
    """Prints it; the exit code."""
    if as_json:
        said = {"line": found.series.pin.line, "ok": not found.stops, "targets": [], **_as_json(found)}
        report.show_json("survey", {**said, "written": [str(path) for path in written]})
    else:
        title = f"{found.what} (the series of {found.series.pin.line})"
        report.show_table(title, [head.replace("NEW", found.new) for head in HEADS], list(rows(found)))
        for line in lines(found):
            report.show(f"  {line}")
        for path in written:
            report.show(f"  written: {path}")
    return 1 if found.stops else 0


def rows(found: Surveyed) -> Iterator[tuple[str, ...]]:
    """The cells of each patch: its name, how it is at the new end, how often its files change, and who ends it."""
    for prospect in found.prospects:
        first = prospect.first
        ends = (first.state.value, first.step.commit.date, by(first)) if first else ("", "", "")
        yield (prospect.slug, prospect.now.state.value, str(len(prospect.touching)), *ends)


def by(turn: Turn) -> str:
    """What made it so, in a few words."""
    commit = turn.step.commit
    number = f"#{commit.number} " if commit.number else ""
    subject = commit.subject.removesuffix(f"(#{commit.number})").strip()
    taken = "taken back: " if turn.step.undone else ""
    return f"{taken}{number}{commit.short} {subject}".strip()


def lines(found: Surveyed) -> Iterator[str]:
    """How stale the line is, what the move will cost, and what was looked at, a sentence each."""
    states = Counter(prospect.now.state for prospect in found.prospects)
    counted = ", ".join(f"{states[state]} {state.value}" for state in State if states[state])
    alone = states[State.CLEAN] + states[State.MOVED]
    yield f"{alone} of {len(found.prospects)} go onto {found.new} by themselves ({counted or 'no patch at all'})"
    ends = [(first.step.commit.date, prospect.slug, first) for prospect in found.prospects if (first := prospect.first)]
    oldest = min(ends, key=lambda end: (not end[2].step.undone, end[0]), default=None)
    if oldest:
        yield f"the first to end was {oldest[1]} ({oldest[2].state.value}), on {oldest[0]} by {by(oldest[2])}"
    if found.span:
        yield from _of_span(found, found.span)
    else:
        yield f"{found.new} is {len(found.steps) - 1} releases{_days(*ends_of(found))} after {found.old}"
    if found.halved:
        yield "searched by halves: what ended it is taken to stay so; that change and the one before were looked at"


def _of_span(found: Surveyed, span: Span) -> Iterator[str]:
    changing = sum(not step.undone for step in found.steps[1:])
    later = f"{found.new} is {len(span.commits)} commits{_days(span.start, span.new)} after {found.old}"
    yield f"{later}, since {span.start.short}; {changing} of them change a file of the series"
    if span.undone:
        yield f"{len(span.undone)} commits are on the release branch of {found.old} alone, and were taken back first"
    if span.branched:
        yield f"the last {span.branched} commits are on the release branch of {found.new}"


def ends_of(found: Surveyed) -> tuple[Commit, Commit]:
    """The old end and the new one."""
    span = found.span
    return (span.old, span.new) if span else (found.steps[0].commit, found.steps[-1].commit)


def _days(old: Commit, new: Commit) -> str:
    """The time between them, where both have a day."""
    if not (old.date and new.date):
        return ""
    return f" and {(date.fromisoformat(new.date) - date.fromisoformat(old.date)).days} days"


def _as_json(found: Surveyed) -> dict[str, Any]:
    span, (old, new) = found.span, ends_of(found)
    return {
        "upstream": found.series.pin.upstream,
        "kind": "commits" if span else "releases",
        "old": as_commit(old),
        "new": as_commit(new),
        "start": as_commit(span.start) if span else None,
        "commits": len(span.commits) if span else len(found.steps) - 1,
        "undone": len(span.undone) if span else 0,
        "branched": span.branched if span else 0,
        "halved": found.halved,
        "patches": [_prospect(prospect) for prospect in found.prospects],
    }


def _prospect(prospect: Prospect) -> dict[str, Any]:
    now = prospect.last
    return {
        "slug": prospect.slug,
        "state": now.state.value,
        "reason": now.why or None,
        "stopped": list(now.stopped),
        "changes": len(prospect.touching),
        "first": _turn(prospect.first) if prospect.first else None,
        "turns": [_turn(turn) for turn in prospect.turns],
    }


def _turn(turn: Turn) -> dict[str, Any]:
    return {"state": turn.state.value, "undone": turn.step.undone, **as_commit(turn.step.commit)}


def as_commit(commit: Commit) -> dict[str, Any]:
    """A commit, or a release, in the JSON contract."""
    return {
        "commit": commit.id,
        "date": commit.date or None,
        "number": commit.number,
        "subject": commit.subject or None,
    }
