"""The one place that prints: tables and sentences for people, one JSON object for programs.

With --json standard output holds that object and nothing else; what is said meanwhile goes to standard error. Plain
text where it is not a terminal, or where NO_COLOR is set.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from .errors import OverlayError

SCHEMA = 1


def escape_what_cannot_be_shown() -> None:
    """A path that is no text, or a terminal that shows ASCII alone, must not break an answer: it is written \\xff."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """What is going on, for a person, while it goes on."""
    if sys.stderr is not None:  # closed: print would take standard output, which is the answer's
        print(text, file=sys.stderr, flush=True)


@contextmanager
def progress(text: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for what takes longer than a moment: the function it gives takes what is done, and of how much.

    Only where standard error is a terminal; elsewhere `say` has said it.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task(text, total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)


@contextmanager
def live() -> Iterator[Callable[[Sequence[str], Sequence[Sequence[str]]], None] | None]:
    """A part of the terminal that is drawn anew: the function it gives takes lines, and the rows of a table below them.

    None where standard error is no terminal: then what happens is to be said line by line.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    def drawn(lines: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        table = Table(box=None, show_header=False, padding=(0, 0, 0, 2))
        for row in rows:
            table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
        shown.update(Group(*map(Text, lines), table))

    with Live(console=Console(stderr=True), transient=True, refresh_per_second=4) as shown:
        yield drawn


def show(text: str = "") -> None:
    """A line of the answer."""
    print(text)


def show_json(verb: str, said: Mapping[str, Any]) -> None:
    """The answer as one object (docs/json.md)."""
    print(json.dumps({"schema": SCHEMA, "verb": verb, **said}, indent=2))


def show_table(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], dim: Collection[int] = ()
) -> None:  # fmt: skip
    """A table: of rich where a person looks at a terminal, else columns of plain text.

    Args:
        dim: the numbers of rows that matter less.
    """
    columns = [number for number in range(len(heads)) if any(row[number] for row in rows)]
    heads = [heads[number] for number in columns]
    rows = [[row[number] for number in columns] for row in rows]
    print(title)
    if _colourful():
        _rich_table(heads, rows, dim)
        return
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows) if rows else ():
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def show_error(error: OverlayError) -> None:
    """What is wrong, and what to do."""
    say(f"{error.what}\n  → {error.todo}")


def error_json(error: OverlayError) -> dict[str, Any]:
    """An error inside a JSON answer."""
    return {"what": error.what, "todo": error.todo, "exit": error.exit_code}


def _colourful() -> bool:
    return sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _rich_table(heads: Sequence[str], rows: Sequence[Sequence[str]], dim: Collection[int]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {
        "applied": "green",
        "pending": "yellow",
        "WRONG": "bold red",
        "as it should be": "green",
        "drifted": "red",
        "interrupted": "red",
    }
    table = Table(box=None, padding=(0, 0, 0, 2))
    for head in heads:
        table.add_column(head)
    for number, row in enumerate(rows):
        table.add_row(
            *(Text(cell, style=colours.get(cell, "")) for cell in row), style="dim" if number in dim else None
        )
    Console().print(table)
