"""`status --upstream`: where every patch stands with its upstream, on every line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .. import report
from ..errors import UsageError
from ..queue.export import check_whole
from ..queue.pins import Lines, load_lines
from ..queue.statuses import Standing, standings
from ._options import own_home


def add_upstream(made: argparse.ArgumentParser) -> None:
    """The option."""
    made.add_argument(
        "--upstream", action="store_true",
        help="instead of targets: the Upstream-Status of every patch on every line (--line, --only: of these)",
    )  # fmt: skip


def submitted(options: argparse.Namespace) -> int:
    """Shows it: 0, whatever it is.

    Raises:
        UsageError: a target was named too, or there is no such line or upstream.
    """
    if options.checkouts or options.installed or options.into or options.at or options.through or options.without:
        # why: what is said of patch files is not said of a target
        raise UsageError(
            "--upstream is about patch files, and a target or a part of a series was named too.", "Name one."
        )
    home = own_home()
    check_whole(home)
    lines = load_lines(home.pins)
    chosen = Lines(lines.default, (lines.line(options.line),) if options.line else lines.lines)
    for upstream in options.only:
        chosen.lines[-1].pin(upstream)
    rows = [row for row in standings(home, chosen) if not options.only or row.upstream in options.only]
    if options.json:
        said: dict[str, Any] = {"line": options.line, "ok": True, "targets": [], "standings": list(map(asdict, rows))}
        report.show_json("status", said)
    else:
        _show(chosen, rows)
    return 0


def _show(lines: Lines, rows: Sequence[Standing]) -> None:
    names = [line.name for line in lines.lines]
    said = {(row.slug, row.line): row.absent or row.status for row in rows}
    upstreams = dict.fromkeys(row.upstream for row in rows)
    for upstream in upstreams:
        slugs = dict.fromkeys(row.slug for row in rows if row.upstream == upstream)
        table = [(slug, *(_cut(said.get((slug, name), "")) for name in names)) for slug in slugs]
        report.show_table(upstream, ("patch", *names), table)


def _cut(text: str) -> str:
    """A cell: a reason is long, and --json has it whole."""
    return text if len(text) <= 60 else text[:57] + "..."
