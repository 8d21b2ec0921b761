"""`--at REV`: a series on a commit near its pin, carried there by rebase's merge; there it is a line of its own."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import report
from ..errors import UsageError
from ..queue.build import COMMITTER
from ..queue.carry import STOPPED, Carried, State, touched
from ..queue.checkout import find_checkout
from ..queue.export import export_range, exported_series
from ..queue.git import Repository, commit_named, git_path, objects_alone, run, tree_entries
from ..queue.handoff import HandOff
from ..queue.home import command
from ..queue.merging import check_git
from ..queue.moving import Move, Moved, advance, left_out
from ..queue.pins import Line, Lines, Pin
from ..queue.series import Series, check_needs
from ..queue.sources import choose_source, holds
from ._options import Wanted, given
from ._show import short


def add_at(made: argparse.ArgumentParser) -> None:
    """The option."""
    made.add_argument(
        "--at", type=given, metavar="REV",
        help="the checkout stands at this commit, near the line's pin: the series is carried there by git's merge",
    )  # fmt: skip


def at_commit(asked: Wanted, options: argparse.Namespace) -> Wanted:
    """What was asked, with the commit as a line of its own that carries the series; the same where --at is not given.

    Raises:
        HandOff: a patch does not go in there; nothing is written.
        UsageError: no single checkout was named, or it has no such commit.
    """
    if not options.at:
        return asked
    if len(options.checkouts) != 1 or options.installed:
        # why: a commit is one of one repository
        raise UsageError("--at REV: expected one checkout.", "Name the checkout that stands at that commit.")
    repo = Repository(options.checkouts[0].resolve())
    common = find_checkout(options.checkouts[0]).common
    check_git(repo)
    commit = _commit(repo, options.at)
    line = asked.lines.line(asked.line)
    who = run(repo, "show", "--no-patch", "--format=%cn <%ce>", commit).decode("utf-8", "replace").strip()
    if who == COMMITTER:
        # why: the series would be carried onto itself, and everything be called absorbed
        raise UsageError(
            f"--at {options.at}: {commit[:12]} is a commit of the series itself.",
            "Name the commit of upstream's below it.",
        )
    pin = _upstream(asked, line, repo, commit)
    there = replace(pin, line=f"{pin.line}-at-{commit[:12]}", commit=commit, at=commit, wheels=(), absent=())
    source = None if holds(pin, repo.path) else choose_source(pin, ["auto"], report.say)
    commons = [common] if source is None else [common, git_path(Repository(source.repository), "objects").parent]
    move = Move(asked.series(pin), there, source.commit if source else pin.commit, commit, Series(there, ()))
    moved, series = _carried(move, commons, options.without)
    if not options.json:
        _show(there, moved)
    _check_whole(moved, commit)
    absorbed = [row.slug for row in moved.rows if row.state is State.ABSORBED]
    check_needs(series.patches, move.old, absorbed)
    alone = Lines(there.line, (Line(there.line, (there,), line.joint),))
    return replace(asked, lines=alone, line=None, without=(), loaded={there: series}, carried=moved.rows)


def _commit(repo: Repository, revision: str) -> str:
    commit = commit_named(repo, revision)
    if not commit:
        # why: a neighbouring commit is not the one that was asked for
        raise UsageError(f"{repo.path} has no commit {revision}.", "Fetch it there, or name one that it has.")
    return commit


def _upstream(asked: Wanted, line: Line, repo: Repository, commit: str) -> Pin:
    """The upstream whose touched files the commit has."""
    counts = {pin: len(tree_entries(repo, commit, touched(asked.series(pin)))) for pin in asked.pins(line)}
    best = max(counts, key=lambda pin: counts[pin])
    if not counts[best]:
        names = " or ".join(pin.upstream for pin in counts)
        # why: a series that is carried into another project's tree would be conflicts alone
        raise UsageError(
            f"{repo.path}: {commit[:12]} has none of the files that the series of {names} touches.",
            "Name a checkout of upstream.",
        )
    return best


def _carried(move: Move, commons: Sequence[Path], without: Sequence[str]) -> tuple[Moved, Series]:
    """How the series comes there, and what of it goes in."""
    with objects_alone(*commons) as alone:
        moved = advance(alone, move, left_out(without), stop=False)
        exported = export_range(alone, git_path(alone, "objects").parent, moved.base, moved.tip)
    return moved, exported_series(move.new, exported)


def _check_whole(moved: Moved, commit: str) -> None:
    waits = [row.slug for row in moved.rows if row.state in STOPPED and not row.decided]
    if waits:
        # why: a series that is on in part runs as nobody proved it
        raise HandOff(
            f"{', '.join(waits)}: not onto {commit[:12]} by itself; nothing was written.",
            f"Leave out by name what you can do without (--without SLUG), or move the series: {command('rebase')}.",
        )


def _state(row: Carried) -> str:
    return "left out" if row.decided else row.state.value


def _show(pin: Pin, moved: Moved) -> None:
    rows = [
        (row.slug, _state(row), short("; ".join(filter(None, [", ".join(row.stopped), row.why])))) for row in moved.rows
    ]
    title = f"{pin.upstream}: how the series comes to {pin.commit[:12]}"
    report.show_table(title, ("patch", "state", "what to know"), rows)


def carried_json(rows: Sequence[Carried]) -> list[dict[str, Any]]:
    """The patches' states on that commit, as docs/json.md has them."""
    return [{"slug": row.slug, "state": _state(row), "reason": row.why or None} for row in rows]
