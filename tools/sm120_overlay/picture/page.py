"""A heat map as one page that needs nothing else: inline SVG, light and dark, for mouse, keyboard and paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from .chart import Chart, Layout, Row, Stretch, apart

STYLE = """\
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --dim: #57606a; --line: #d0d7de; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --ink: #e6edf3; --dim: #9aa4af; --line: #3a424b; } }
@media print { :root { color-scheme: light; --paper: #fff; --ink: #000; --dim: #444; --line: #bbb; }
  .tip { display: none } }
body { background: var(--paper); color: var(--ink); font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto;
  max-width: 1320px; padding: 0 1rem; }
h1 { font-size: 1.35rem; margin: 0 0 .3rem } p { margin: .15rem 0; color: var(--dim) }
p:first-of-type { color: var(--ink); font-size: 1.05rem }
figure { margin: 1rem 0; overflow-x: auto } svg { min-width: 860px; width: 100%; height: auto; display: block }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif } svg .dim { fill: var(--dim) }
svg .grid { stroke: var(--line); stroke-width: 1 }
svg .mark { stroke: var(--ink); stroke-opacity: .28; stroke-width: 1 }
.tip { visibility: hidden } g:hover > .tip, g:focus > .tip { visibility: visible }
g:focus { outline: none } g:focus > .bar { stroke: var(--ink); stroke-width: 2 }
ul { display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; list-style: none; padding: 0; margin: .6rem 0 }
li svg { display: inline; min-width: 0; width: 26px; height: 14px; vertical-align: -2px; margin-right: .4rem }
table { border-collapse: collapse; width: 100%; font-size: .9rem } th { text-align: left; color: var(--dim) }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem .3rem 0; vertical-align: top }
td:nth-child(3) { white-space: nowrap; text-align: right } a { color: inherit }
"""


@dataclass(frozen=True)
class Cell:
    """A cell of the table below the picture; with `link` it leads somewhere."""

    text: str
    link: str = ""


def page(chart: Chart, heads: Sequence[str], cells: Sequence[Sequence[Cell]]) -> str:
    """The page: what it is about, the picture, its legend, and the same as a table."""
    lines = "".join(f"<p>{escape(line)}</p>\n" for line in chart.lines)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(chart.title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{escape(chart.title)}</h1>\n{lines}"
        f"<figure>\n{svg(chart, Layout())}</figure>\n{_legend(chart)}{_table(heads, cells)}</body>\n</html>\n"
    )


def svg(chart: Chart, layout: Layout) -> str:
    """The picture alone."""
    height = layout.height(len(chart.rows))
    return (
        f'<svg viewBox="0 0 {layout.width} {height}" role="group" aria-label="{escape(chart.title)}">\n'
        f"<defs>{''.join(_hatches(chart))}</defs>\n{''.join(_axis(chart, layout))}"
        f"{''.join(_row(chart, layout, number, row) for number, row in enumerate(chart.rows))}</svg>\n"
    )


def _hatches(chart: Chart) -> Iterator[str]:
    for state, look in chart.looks.items():
        lines = (
            f'<path d="M0 {look.hatch}L{look.hatch} 0" stroke="{look.ink}" stroke-width="1.3"/>' if look.hatch else ""
        )
        size = look.hatch or 8
        yield (
            f'<pattern id="{state}" width="{size}" height="{size}" patternUnits="userSpaceOnUse">'
            f'<rect width="{size}" height="{size}" fill="{look.colour}"/>{lines}</pattern>'
        )


def _axis(chart: Chart, layout: Layout) -> Iterator[str]:
    bottom = layout.y(len(chart.rows))
    for tick in apart(chart.ticks, layout):
        x = layout.x(tick.at)
        yield f'<path class="grid" d="M{x} {layout.top - 8}V{bottom}"/>\n'
        yield f'<text class="dim" x="{x}" y="{layout.top - 14}" text-anchor="middle">{escape(tick.label)}</text>\n'
    for number, tick in enumerate(reversed(apart(chart.releases, layout, 2))):
        x, y = layout.x(tick.at), bottom + 14 + 14 * (number % 2)
        yield f'<path class="grid" stroke-dasharray="2 3" d="M{x} {layout.top}V{y - 9}"/>\n'
        yield f'<text class="dim" x="{x}" y="{y}" text-anchor="middle">{escape(tick.label)}</text>\n'


def _row(chart: Chart, layout: Layout, number: int, row: Row) -> str:
    y = layout.y(number)
    middle = y + layout.bar - 6
    parts = [f'<text x="{layout.left - 10}" y="{middle}" text-anchor="end">{escape(row.name)}</text>\n']
    parts += [_stretch(layout, stretch, y, len(chart.rows)) for stretch in row.stretches]
    for mark in row.marks:
        path = f"M{layout.x(mark.at)} {y + layout.bar - 5}v5"
        parts.append(f'<path class="mark" d="{path}"><title>{escape(mark.title)}</title></path>\n')
    parts.append(
        f'<text x="{layout.right + 12}" y="{middle}">{escape(row.state)}'
        f'<tspan class="dim" dx="8">{escape(shortened(row.note, 46))}</tspan><title>{escape(row.note)}</title></text>\n'
    )
    return "".join(parts)


def _stretch(layout: Layout, stretch: Stretch, y: int, rows: int) -> str:
    x, end = layout.x(stretch.start), layout.x(stretch.end)
    said = escape(stretch.title)
    tip = escape(shortened(stretch.title.replace("\n", " · "), 200))
    return (
        f'<g tabindex="0" role="img" aria-label="{said}"><title>{said}</title>'
        f'<rect class="bar" x="{x}" y="{y}" width="{max(round(end - x, 2), 1.5)}" height="{layout.bar}" '
        f'fill="url(#{stretch.state})"/><text class="tip" x="10" y="{layout.y(rows) + 52}">{tip}</text></g>\n'
    )


def _legend(chart: Chart) -> str:
    entries = (
        f'<li><svg viewBox="0 0 26 14" aria-hidden="true"><rect width="26" height="14" fill="url(#{state})"/></svg>'
        f"{escape(state)}: {escape(look.meaning)}</li>"
        for state, look in chart.looks.items()
    )
    return f"<ul>\n{''.join(entries)}</ul>\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in rows)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n"


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    return f'<td><a href="{escape(cell.link)}">{text}</a></td>' if cell.link else f"<td>{text}</td>"


def shortened(text: str, most: int) -> str:
    """The text, cut where it is longer than `most` letters."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"
