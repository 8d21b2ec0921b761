"""A survey as a heat map: patches by time, each in one state from here to there."""

from __future__ import annotations

from collections.abc import Iterator

from ..picture.chart import Chart, Look, Mark, Row, Stretch, Tick
from ..picture.image import image
from ..picture.page import Cell, page
from ..queue.carry import State
from ..queue.ranges import Step
from ..queue.survey import Prospect, Turn
from ._surveyed import HEADS, Surveyed, by, lines, rows

# Okabe and Ito's colours, which the colour-blind tell apart; what stops a patch is hatched too.
LOOKS = {
    State.CLEAN.value: Look("#009e73", "#ffffff", 0, "goes in by itself"),
    State.MOVED.value: Look("#56b4e9", "#ffffff", 0, "goes in, and wants a look"),
    State.ABSORBED.value: Look("#d9d9d9", "#ffffff", 0, "upstream has it"),
    State.CONFLICT.value: Look("#d55e00", "#ffffff", 8, "upstream changed the same lines"),
    State.GONE.value: Look("#5b3a7d", "#ffffff", 4, "upstream has no such file any more"),
}


def page_of(found: Surveyed) -> str:
    """The page, with the table below the picture."""
    web = found.series.pin.repository.removesuffix(".git")
    cells = [[*map(Cell, row[:-1]), Cell(row[-1], _link(web, prospect))] for row, prospect in _paired(found)]
    return page(chart_of(found), [head.replace("NEW", found.new) for head in HEADS], cells)


def picture_of(found: Surveyed) -> bytes:
    """The PNG."""
    return image(chart_of(found))


def _paired(found: Surveyed) -> Iterator[tuple[tuple[str, ...], Prospect]]:
    return zip(rows(found), found.prospects, strict=True)


def _link(web: str, prospect: Prospect) -> str:
    """Where upstream has the change that ends a patch."""
    commit = prospect.first.step.commit if prospect.first else None
    if commit is None or not commit.subject or not web.startswith("https://"):
        return ""
    return f"{web}/pull/{commit.number}" if commit.number else f"{web}/commit/{commit.id}"


def chart_of(found: Surveyed) -> Chart:
    """What is drawn."""
    at = _places(found)
    charted = tuple(_row(prospect, at) for prospect in found.prospects)
    named = tuple(Tick(at[id, False], name) for name, id in found.releases.items())
    ticks = tuple(_months(found, at)) if found.span else tuple(Tick(_place(at, s), s.commit.id) for s in found.steps)
    title = f"What upstream does to the patches of {found.series.pin.line}: {found.what}"
    return Chart(title, tuple(lines(found)), LOOKS, charted, ticks, named)


def _places(found: Surveyed) -> dict[tuple[str, bool], float]:
    """Commit, and whether it is taken back → where it lies on the axis; the old end is at 0."""
    if found.span:
        events = [(commit, True) for commit in reversed(found.span.undone)]
        events += [(commit, False) for commit in found.span.commits]
    else:
        events = [(step.commit, False) for step in found.steps[1:]]
    return {(commit.id, back): number / (len(events) + 1) for number, (commit, back) in enumerate(events, 1)}


def _place(at: dict[tuple[str, bool], float], step: Step) -> float:
    return at.get((step.commit.id, step.undone), 0.0)


def _row(prospect: Prospect, at: dict[tuple[str, bool], float]) -> Row:
    starts = [0.0, *(_place(at, turn.step) for turn in prospect.turns[1:])]
    ends = [*starts[1:], 1.0]
    stretches = tuple(
        Stretch(start, end, turn.state.value, _title(prospect, turn))
        for turn, start, end in zip(prospect.turns, starts, ends, strict=True)
    )
    marks = tuple(Mark(_place(at, step), step.commit.named) for step in prospect.touching)
    first = prospect.first
    note = f"{first.step.commit.date} {by(first)}".strip() if first else ""
    return Row(prospect.slug, prospect.now.state.value, note, stretches, marks)


def _title(prospect: Prospect, turn: Turn) -> str:
    commit, carried = turn.step.commit, turn.carried
    since = f"since {commit.named} was taken back" if turn.step.undone else f"since {commit.named}"
    why = [carried.why, f"stopped at {', '.join(carried.stopped)}" if carried.stopped else ""]
    return "\n".join(filter(None, [f"{prospect.slug}: {turn.state.value}", since, *why]))


def _months(found: Surveyed, at: dict[tuple[str, bool], float]) -> Iterator[Tick]:
    """The first commit of each month."""
    known: set[str] = set()
    for commit in found.span.commits if found.span else ():
        month = commit.date[:7]
        if month not in known:
            known.add(month)
            yield Tick(at[commit.id, False], month)
