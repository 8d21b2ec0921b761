"""What a heat map says, before it is drawn: rows, each in one state from here to there, over one axis from 0 to 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LETTER = 7  # pixels of a letter, about


@dataclass(frozen=True)
class Look:
    """How a state looks: two colours that the colour-blind tell apart too, and lines across it for print.

    `hatch` is the distance of the lines in pixels, 0 for none; `meaning` is for the legend.
    """

    colour: str
    ink: str
    hatch: int
    meaning: str


@dataclass(frozen=True)
class Stretch:
    """A part of a row that is in one state; `title` is what a reader who points at it is told."""

    start: float
    end: float
    state: str
    title: str


@dataclass(frozen=True)
class Mark:
    """Something that happened to a row at one place."""

    at: float
    title: str


@dataclass(frozen=True)
class Row:
    """One row: its name, what it is in at the end and why, and what is drawn."""

    name: str
    state: str
    note: str
    stretches: tuple[Stretch, ...]
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class Tick:
    """A place of the axis that has a name."""

    at: float
    label: str


@dataclass(frozen=True)
class Chart:
    """A heat map: `lines` are sentences above it, `ticks` lie above the rows and `releases` below them."""

    title: str
    lines: tuple[str, ...]
    looks: dict[str, Look]
    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]
    releases: tuple[Tick, ...] = ()


@dataclass(frozen=True)
class Layout:
    """Where things lie, in pixels of a drawing `width` wide."""

    width: int = 1280
    left: int = 230  # the names end there
    right: int = 900  # what holds at the end begins there
    top: int = 34  # the first row begins there
    row: int = 26  # from row to row
    bar: int = 20  # the height of a row

    def x(self, at: float) -> float:
        """A place on the axis."""
        return round(self.left + at * (self.right - self.left), 2)

    def y(self, number: int) -> int:
        """The top of a row."""
        return self.top + number * self.row

    def height(self, rows: int) -> int:
        """All of it: the axis above, the rows, the releases below."""
        return self.y(rows) + 58


def apart(ticks: Sequence[Tick], layout: Layout, lines: int = 1) -> tuple[Tick, ...]:
    """The ticks that can be labelled without one label on another, from the last one back.

    Args:
        lines: how many lines the labels take turns on.
    """
    kept: list[Tick] = []
    for tick in sorted(ticks, key=lambda tick: -tick.at):
        before = kept[-lines] if len(kept) >= lines else None
        room = LETTER * (len(tick.label) + len(before.label) + 2) / 2 if before else 0
        if before is None or layout.x(before.at) - layout.x(tick.at) >= room:
            kept.append(tick)
    return tuple(reversed(kept))
