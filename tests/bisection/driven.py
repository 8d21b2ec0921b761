"""A toy session: a history, values that depend on program and run number alone, a decision of a few lines, hosts."""

from __future__ import annotations

import random
import resource
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from sm120_overlay.bisection.decision.nouns import (
    Ask,
    Belief,
    Culprit,
    Decision,
    Field,
    Level,
    Reading,
    Rules,
    Status,
    Verdict,
)
from sm120_overlay.bisection.drive import Flight, drive, flown, taken_up
from sm120_overlay.bisection.events import Event, Opened, as_json
from sm120_overlay.bisection.history import Change, History, Revision
from sm120_overlay.bisection.job import Cell, How, Job, Metric, Outcome, Ran, Scale
from sm120_overlay.bisection.journal import read
from sm120_overlay.queue.ranges import Commit

CULPRIT = 5
PROGRAMS = 8


def toy_history(programs: int = PROGRAMS) -> History:
    commits = [Commit(f"{number:040x}", "2026-01-01", f"change {number}") for number in range(programs)]
    revisions = tuple(Revision(each, f"t{each.id}", f"k{each.id}", "b") for each in commits)
    return History(revisions, tuple(Change(each, ("python/a.py",)) for each in commits[1:]))


def toy_opened(history: History, rules: Rules = Rules(scale=Scale.LINEAR)) -> Opened:  # noqa: B008
    cell = Cell("measure", Metric(How.JSON, "speed", scale=rules.scale))
    return Opened("toy", "v1", "v2", cell, rules, as_json(history))


def jobs(history: History, opened: Opened) -> Callable[[int, int], Job]:
    def job_for(number: int, program: int) -> Job:
        revision = history.revisions[history.programs[program].first]
        return Job(number, program, revision.commit.id, revision.tree, revision.key, "b", opened.cell, "work")

    return job_for


def value_of(number: int, program: int) -> float:
    return (100.0 if program < CULPRIT else 200.0) + random.Random(f"{number} {program}").gauss(0, 3)


def measured(job: Job) -> Ran:
    value = value_of(job.number, job.program)
    return Ran(job.number, Outcome.MEASURED, value, exit=0, host="here", seconds=1.0)


@dataclass
class Pool:
    """Threads that call a function, as many as `width` says."""

    does: Callable[[Job], Ran] = measured
    width: int = 1
    jobs: list[Job] = field(default_factory=list)
    closed: bool = False
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(8))

    def submit(self, job: Job) -> Future[Ran]:
        self.jobs.append(job)
        return self.threads.submit(self.does, job)

    def close(self) -> None:
        self.closed = True
        self.threads.shutdown(wait=False, cancel_futures=True)


def level(values: Sequence[float]) -> Level:
    mean = fmean(values)
    return Level(mean, mean, mean, len(values))


def toy_decide(
    field: Field, readings: Sequence[Reading], rules: Rules, batch: int = 1,
    built: frozenset[int] = frozenset(), build_cost: float = 0.0, pending: Sequence[int] = (),
) -> Decision:  # fmt: skip
    """Bisection with `rules.verify` runs of each program."""
    by: dict[int, list[float]] = {}
    for each in readings:
        by.setdefault(each.program, []).append(each.value)
    none = Belief((1 / field.last,) * field.last, 0.0)
    low, high = 0, field.last
    while True:
        inside = [one for one in range(low + 1, high) if one not in field.untestable]
        wanted = [one for one in (0, field.last) if len(by.get(one, [])) < rules.ends]
        wanted = sorted(wanted, key=lambda one: len(by.get(one, [])) + list(pending).count(one))
        if not wanted and inside:
            middle = inside[len(inside) // 2]
            if len(by.get(middle, [])) >= rules.verify:
                near_old = abs(fmean(by[middle]) - fmean(by[0])) < abs(fmean(by[middle]) - fmean(by[field.last]))
                low, high = (middle, high) if near_old else (low, middle)
                continue
            wanted = [middle]
        if wanted and len(readings) < rules.most_runs:
            return Decision(none, Ask(tuple(wanted * batch)[:batch], ("toy",) * batch), 1.0)
        return Decision(none, _verdict(field, by, low, high, bool(wanted)), 0.0)


def _verdict(field: Field, by: dict[int, list[float]], low: int, high: int, open_: bool) -> Verdict:
    old, new = level(by[0]), level(by[field.last])
    status = Status.CREDIBLE_SET if open_ else Status.FOUND if high == low + 1 else Status.BLOCK
    culprit = Culprit(tuple(range(low + 1, high + 1)), 1.0, old, new)
    return Verdict(status, (culprit,), old, new, level([new.mean - old.mean]), 3.0, f"program {high}")


def linear(metric: Metric, value: float) -> float:
    return value


@contextmanager
def toy_flight(folder: Path, pool: Any, rules: Rules | None = None, history: History | None = None) -> Iterator[Flight]:
    history = history or toy_history()
    opened = toy_opened(history, rules or Rules(scale=Scale.LINEAR))
    with (
        taken_up(folder, opened) as (journal, session, _),
        flown(Flight(journal, session, history, pool, jobs(history, opened))) as flight,
    ):
        yield flight


def run_toy(folder: Path, pool: Any | None = None, decide: Any = toy_decide, **options: Any) -> Verdict:
    pool = pool or Pool()
    known = {key: options.pop(key) for key in ("rules", "history") if key in options}
    with toy_flight(folder, pool, **known) as flight:
        verdict = drive(flight, decide, score=linear, **options)
    pool.close()
    return verdict


def events_of(folder: Path) -> tuple[Event, ...]:
    return read(folder).events


@contextmanager
def room(size: int) -> Iterator[None]:
    """No file of this process can become larger: what a full disk does to a write, it does too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
