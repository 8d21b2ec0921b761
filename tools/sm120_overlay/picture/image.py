"""A heat map as a PNG, drawn by Pillow: for a chat, an issue, a slide."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import Missing
from .chart import Chart, Layout, Look, apart
from .page import shortened

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

PAPER, INK, DIM, LINE = "#ffffff", "#1b1f24", "#57606a", "#d0d7de"
SCALE = 2  # pixels for one of the layout's: sharp on today's screens
HEAD = 64  # room above the picture for its title and first line


def check_pillow() -> None:
    """Asked before the work that the image would show.

    Raises:
        Missing: Pillow is not installed.
    """
    try:
        import PIL  # noqa: F401
    except ImportError:
        # why: the tools themselves do without it
        raise Missing(
            f"Pillow is not installed for {sys.executable}.", f"{sys.executable} -m pip install pillow, or use --html."
        ) from None


def image(chart: Chart) -> bytes:
    """The PNG."""
    from PIL import Image, ImageDraw

    layout = Layout(top=34 + HEAD)
    height = layout.height(len(chart.rows)) + 26
    picture = Image.new("RGB", (layout.width * SCALE, height * SCALE), PAPER)
    canvas = _Canvas(picture, ImageDraw.Draw(picture), layout)
    _text(canvas, 16, 12, chart.title, 20)
    _text(canvas, 16, 40, chart.lines[0] if chart.lines else "", 13, DIM)
    _axis(canvas, chart)
    for number in range(len(chart.rows)):
        _row(canvas, chart, number)
    _legend(canvas, chart, height - 22)
    out = io.BytesIO()
    picture.save(out, "PNG", optimize=True)
    return out.getvalue()


@dataclass(frozen=True)
class _Canvas:
    """Where it is drawn, by places of the layout."""

    picture: Image
    draw: ImageDraw
    layout: Layout


def _text(
    canvas: _Canvas, x: float, y: float, text: str, size: int = 12, colour: str = INK, anchor: str = "la"
) -> float:
    """Writes it; its width."""
    from PIL import ImageFont

    font = ImageFont.load_default(size * SCALE)
    canvas.draw.text((x * SCALE, y * SCALE), text, fill=colour, font=font, anchor=anchor)
    return canvas.draw.textlength(text, font=font) / SCALE


def _line(canvas: _Canvas, x: float, y: float, to: float, colour: str = LINE) -> None:
    canvas.draw.line([(x * SCALE, y * SCALE), (x * SCALE, to * SCALE)], fill=colour, width=SCALE)


def _box(canvas: _Canvas, x: float, y: float, width: float, height: float, look: Look) -> None:
    """A box of that look: drawn apart, so that the lines across it end at its border."""
    from PIL import Image, ImageDraw

    size = (max(round(width * SCALE), SCALE), round(height * SCALE))
    part = Image.new("RGB", size, look.colour)
    draw, step = ImageDraw.Draw(part), look.hatch * SCALE
    for start in range(-size[1], size[0], step) if step else ():
        draw.line([(start, size[1]), (start + size[1], 0)], fill=look.ink, width=SCALE)
    canvas.picture.paste(part, (round(x * SCALE), round(y * SCALE)))


def _axis(canvas: _Canvas, chart: Chart) -> None:
    layout = canvas.layout
    bottom = layout.y(len(chart.rows))
    for tick in apart(chart.ticks, layout):
        _line(canvas, layout.x(tick.at), layout.top - 8, bottom)
        _text(canvas, layout.x(tick.at), layout.top - 24, tick.label, colour=DIM, anchor="ma")
    for number, tick in enumerate(reversed(apart(chart.releases, layout, 2))):
        y = bottom + 4 + 14 * (number % 2)
        _line(canvas, layout.x(tick.at), layout.top, y)
        _text(canvas, layout.x(tick.at), y, tick.label, 11, DIM, "ma")


def _row(canvas: _Canvas, chart: Chart, number: int) -> None:
    layout, row = canvas.layout, chart.rows[number]
    y = layout.y(number)
    _text(canvas, layout.left - 10, y + 3, row.name, anchor="ra")
    for stretch in row.stretches:
        x = layout.x(stretch.start)
        _box(canvas, x, y, layout.x(stretch.end) - x, layout.bar, chart.looks[stretch.state])
    for mark in row.marks:
        _line(canvas, layout.x(mark.at), y + layout.bar - 5, y + layout.bar, DIM)
    width = _text(canvas, layout.right + 12, y + 3, row.state)
    _text(canvas, layout.right + 20 + width, y + 3, shortened(row.note, 46), colour=DIM)


def _legend(canvas: _Canvas, chart: Chart, y: float) -> None:
    x = 16.0
    for state, look in chart.looks.items():
        _box(canvas, x, y, 24, 12, look)
        x += 30 + _text(canvas, x + 30, y - 1, f"{state}: {look.meaning}", 11, DIM) + 18
