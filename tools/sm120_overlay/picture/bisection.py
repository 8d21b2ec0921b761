"""A bisection as one figure (every run a dot by revision, both levels, the posterior below), as a PNG or as a page.

It knows neither git nor what a decision is: places by number, values in the user's own unit, sentences.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from ..errors import Missing
from .page import STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER, INK, DIM, LINE = "#ffffff", "#1b1f24", "#57606a", "#d0d7de"
OLD, NEW, BAR = "#0072b2", "#d55e00", "#5d7f3f"  # the colour-blind tell them apart
VARIABLE = {PAPER: "var(--paper)", INK: "var(--ink)", DIM: "var(--dim)", LINE: "var(--line)"}
OWN_STYLE = """\
h2 { font-size: 1.05rem; margin: 1.4rem 0 .2rem } td:nth-child(3) { text-align: left }
td:last-child { overflow-wrap: anywhere; min-width: 18rem } tr.dim td { color: var(--dim) }
"""
LABELS = 12  # names of places that fit below the axis
FADED = 0.35


@dataclass(frozen=True)
class Place:
    """A revision on the axis, by its number; `culled` and `untestable` say why none is run there ("": one may be)."""

    name: str
    title: str
    culled: str = ""
    untestable: str = ""


@dataclass(frozen=True)
class Dot:
    """A run: where, and the value; `void` ones do not count."""

    at: int
    value: float
    void: bool = False


@dataclass(frozen=True)
class Side:
    """A level from one place to another, with its interval."""

    first: int
    last: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Bar:
    """How probable it is that the change into a place did it, from 0 to 1."""

    at: int
    weight: float


@dataclass(frozen=True)
class Table:
    """A table of the page: its heading, the heads of the columns, the cells, and the numbers of rows that are grey."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    dim: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Picture:
    """All that is drawn: `lines` begin with the verdict, `none` is the probability of no change, `unit` the metric."""

    title: str
    lines: tuple[str, ...]
    unit: str
    places: tuple[Place, ...]
    dots: tuple[Dot, ...]
    sides: tuple[Side, ...] = ()
    bars: tuple[Bar, ...] = ()
    none: float = 0.0
    tables: tuple[Table, ...] = ()


def check_matplotlib() -> None:
    """Asked before the work that the figure would show.

    Raises:
        Missing: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        # why: only a picture needs it, and it is large
        raise Missing(
            f"matplotlib is not installed for {sys.executable}.",
            f"{sys.executable} -m pip install matplotlib, or leave --png and --html out.",
        ) from None


def image(picture: Picture) -> bytes:
    """The figure as a PNG, with its title and its verdict."""
    return _saved(_figure(picture, titled=True), format="png", dpi=160, metadata={"Software": None})


def svg(picture: Picture) -> str:
    """The figure to stand in a page: its colours are the page's, its letters text."""
    text = _saved(_figure(picture, titled=False), format="svg", metadata={"Date": None}).decode()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg") :], flags=re.DOTALL)
    for colour, variable in VARIABLE.items():
        text = text.replace(colour, variable)
    head, rest = text.split(">", 1)
    head = re.sub(r' (xmlns(:\w+)?|width|height)="[^"]*"', "", head)
    said = escape(" ".join((picture.title, *picture.lines)))
    return f'{head} role="img" aria-label="{said}">\n<title>{said}</title>{rest.replace("xlink:href", "href")}'


def page(picture: Picture) -> str:
    """One page that needs nothing else: what was found, the figure, and the same as tables."""
    lines = "".join(f"<p>{escape(line)}</p>\n" for line in picture.lines)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(picture.title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>\n{STYLE}{OWN_STYLE}"
        "</style>\n</head>\n<body>\n"
        f"<h1>{escape(picture.title)}</h1>\n{lines}<figure>\n{svg(picture)}</figure>\n"
        f"{''.join(_table(table) for table in picture.tables if table.rows)}</body>\n</html>\n"
    )


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.heads)
    body = "".join(
        f"<tr{' class=dim' * (number in table.dim)}>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n"
        for number, row in enumerate(table.rows)
    )
    return (
        f"<h2>{escape(table.title)}</h2>\n<figure><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n"
        "</table></figure>\n"
    )


def _saved(figure: Figure, **how: Any) -> bytes:
    import matplotlib

    out = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "bisection", "font.family": "sans-serif"}):
        figure.savefig(out, facecolor=PAPER, **how)
    return out.getvalue()


def _figure(picture: Picture, titled: bool) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.6 if titled else 5.8), layout="constrained", facecolor=PAPER)
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    _culled(picture, above)
    _runs(picture, above)
    _posterior(picture, below)
    _names(picture, below)
    for axes in (above, below):
        _plain(axes)
    if titled:
        said = _wrapped("\n".join(picture.lines[:1]), 120)
        figure.suptitle(_literal(f"{picture.title}\n{said}"), fontsize=10, color=INK, x=0.02, ha="left")
    return figure


def _wrapped(text: str, width: int) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, width))


def _literal(text: str) -> str:
    """The text with nothing in it that matplotlib would take for mathematics."""
    return text.replace("$", r"\$")


def _plain(axes: Axes) -> None:
    axes.set_facecolor(PAPER)
    axes.tick_params(colors=DIM, labelsize=8)
    axes.yaxis.label.set_color(INK)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(LINE)


def _culled(picture: Picture, axes: Axes) -> None:
    """Grey where a revision is the same program as the one before; lines across it where none can be judged."""
    for at, place in enumerate(picture.places):
        if place.culled or place.untestable:
            hatch = "////" if place.untestable else None
            axes.axvspan(at - 0.5, at + 0.5, facecolor=LINE, alpha=0.45, hatch=hatch, edgecolor=DIM, linewidth=0)


def _runs(picture: Picture, axes: Axes) -> None:
    for number, side in enumerate(picture.sides):
        colour = (OLD, NEW)[number % 2]
        ends = [side.first - 0.4, side.last + 0.4]
        axes.fill_between(ends, side.low, side.high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(ends, [side.mean, side.mean], color=colour, linewidth=1.6)
    for void, look in ((False, "o"), (True, "x")):
        dots = [dot for dot in picture.dots if dot.void is void]
        at = [place + offset for place, offset in _apart([dot.at for dot in dots])]
        axes.plot(at, [dot.value for dot in dots], look, color=INK, markersize=4, alpha=FADED if void else 0.75)
    axes.set_ylabel(_literal(picture.unit), fontsize=9)


def _apart(places: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Each place with a small step aside, so that runs of one revision with like values do not hide each other."""
    seen: dict[int, int] = {}
    for place in places:
        number = seen[place] = seen.get(place, -1) + 1
        yield place, ((number + 1) // 2) * (0.05 if number % 2 else -0.05) if number < 12 else 0.0


def _posterior(picture: Picture, axes: Axes) -> None:
    width = max(0.7, len(picture.places) / 250)  # so that one among a thousand is seen
    axes.bar([bar.at - 0.5 for bar in picture.bars], [bar.weight for bar in picture.bars], width=width, color=BAR)
    axes.set_ylim(0, 1)
    axes.set_ylabel("posterior", fontsize=9)
    if picture.bars:
        said = f"no change: {picture.none:.1%}"
        axes.text(0.995, 0.9, said, transform=axes.transAxes, ha="right", va="top", fontsize=8, color=INK)


def _names(picture: Picture, axes: Axes) -> None:
    """The names of both ends, of what is probable, and of what else there is room for."""
    last = len(picture.places) - 1
    likely = [bar.at for bar in sorted(picture.bars, key=lambda bar: -bar.weight)[:2]]
    wanted = [0, last, *likely, *(at - 1 for at in likely), *sorted({dot.at for dot in picture.dots}), *range(last)]
    room = max(last / LABELS, 1)
    kept: list[int] = []
    for at in wanted:
        if all(abs(at - other) >= room for other in kept):
            kept.append(at)
    margin = max(0.6, last / 100)
    axes.set_xlim(-margin, last + margin)
    names = [_literal(picture.places[at].name) for at in kept]
    axes.set_xticks(kept, names, rotation=30, ha="right", fontsize=8)
