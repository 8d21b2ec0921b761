"""bisect run: what was asked as a cell and rules, the range as a history, and the loop over hosts, joined."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from .. import report
from ..bisection.confirm import confirm
from ..bisection.decision.nouns import Decision, Rules, Status
from ..bisection.drive import Flight, Watch, drive, flown, taken_up
from ..bisection.events import UNDONE, Opened, as_json
from ..bisection.history import History, Revision
from ..bisection.hosts import open_hosts
from ..bisection.job import Cell, Job, Scale, Server
from ..bisection.journal import Journal
from ..bisection.metric import parse_metric
from ..bisection.placeholders import check_placeholders
from ..bisection.session import Session, check_ends, measured_at
from ..queue.pins import Lines
from ._bisect_known import history_of, known, told_of
from ._bisect_live import watching
from ._bisect_options import check_effect, fixed, session_of_run
from ._bisect_plan import Found, finding
from ._bisect_show import Told
from ._options import own_home


def run(options: argparse.Namespace) -> Told:
    """Measures until it is known, or goes on with it; what is known then.

    Raises:
        OverlayError: the range, the command or the hosts are not there, an end gives no number, or a run said stop.
    """
    home = own_home()
    folder = session_of_run(home, options)
    cell = cell_of(options)
    rules = rules_of(options, cell.metric.scale)
    with finding(options, home) as found:
        check_ends(found.history)
        opened = Opened(
            options.upstream, found.old, found.new, cell, rules, as_json(found.history), found.line,
            unit_of(options.metric), (options.term_old or "", options.term_new or ""), options.releases, fixed(options),
            time.time(),
        )  # fmt: skip
        with taken_up(folder, opened) as (journal, session, known_of_it):
            report.say("; ".join((f"{folder}: {len(session.runs)} runs so far", *known_of_it)))
            if len(found.history.programs) > 1:
                _measure(options, found, journal, session, folder)
    return known(folder, found.lines)


def _measure(options: argparse.Namespace, found: Found, journal: Journal, session: Session, folder: Path) -> None:
    """The loop, watched; then the culprit is taken back on the new end, where that was not done yet."""
    from ..bisection.decision.rule import decide

    history, cell = history_of(session.opened), session.opened.cell
    hosts = open_hosts(options.on, folder)

    def job_for(number: int, program: int) -> Job:
        return _job(found, cell, folder, number, program, measured_at(history, program))

    flight = Flight(journal, session, history, hosts, job_for)
    with watching() as watch, flown(flight):
        verdict = drive(
            flight, decide, _watch(watch, history, folder, found.lines), budget_s=options.budget or math.inf
        )
        if verdict.status is Status.FOUND and flight.session.reverted is None:
            report.say("found; the culprit is taken back on the new end")
            confirm(flight, verdict, _undone(found, cell, folder, verdict.culprits[0].programs[0]))
    hosts.close()


def _undone(found: Found, cell: Cell, folder: Path, program: int) -> Callable[[int], Job] | str:
    """The job of a run number on the new end without a culprit, or why there is none."""
    revision = found.undone(program)
    if revision is None:
        return "it does not come off the new end cleanly"
    return lambda number: _job(found, cell, folder, number, UNDONE, revision)


def _watch(watch: Callable[[Told], None], history: History, folder: Path, lines: Lines) -> Watch:
    def told(session: Session, decision: Decision) -> None:
        watch(told_of(session, history, decision, folder, lines))

    return told


def _job(found: Found, cell: Cell, folder: Path, number: int, program: int, revision: Revision) -> Job:
    work = str((folder / "work").resolve())
    return Job(
        number, program, revision.commit.id, revision.tree, revision.key, revision.build_key, cell, work,
        found.python_path, archive=found.archive(revision.tree),
    )  # fmt: skip


def cell_of(options: argparse.Namespace) -> Cell:
    """What is measured.

    Raises:
        UsageError: the metric, or a placeholder of a command, means nothing.
    """
    for text in (options.cmd, options.build, options.server, options.health):
        check_placeholders(text or "")
    metric = parse_metric(options.metric)
    metric = replace(metric, scale=Scale(options.scale)) if options.scale else metric
    check_placeholders(metric.file)
    server = Server(options.server, options.health, options.ready) if options.server else None
    return Cell(options.cmd, metric, options.build or "", server, options.limit)


def rules_of(options: argparse.Namespace, scale: Scale) -> Rules:
    """How sure is sure enough.

    Raises:
        UsageError: --min-effect is of another scale.
    """
    check_effect(options.min_effect, scale)
    return Rules(
        scale, options.min_effect.on(scale), options.confidence, options.ends, options.verify, options.paired,
        most_runs=options.most_runs,
    )  # fmt: skip


def unit_of(metric: str) -> str:
    """What a metric is called: its name or pattern, without where it stands."""
    kind, _, name = metric.partition(":")
    return name.rpartition("@")[0] or name if kind in ("bench", "json", "jsonl", "regex") else metric
