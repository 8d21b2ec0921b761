#!/usr/bin/env python3
"""Bisects simulated histories through the real `decide()`, beside `git bisect run`; says how often it was right.

    python benchmarks/bisect.py                      every row: minutes on many cores
    python benchmarks/bisect.py --quick              fewer trials of fewer programs: about a minute on two cores
    python benchmarks/bisect.py --json               the rows as JSON
    python benchmarks/bisect.py --only traps --trials 50      one part: steps, same or traps

The culprit is one of N changes, evenly; a run gives its program's level with Gaussian noise, `d` is the step in noises.
`git, 1 run` and `git, k runs` simulate the strategy of `git bisect run` with a script that averages k runs and compares
with halfway between the ends (k runs each): the smallest k of a list that is right in 99 %, which one must know
beforehand. No git runs here. `ETA` is the formula that the tool shows, `ratio` mean runs over it. In `same` there is
no change, and right is to say so. Each trap names what is wrong with its world. `found, partly` counts answers of one
change of which the second look (the change taken back on the new end, so often as verifies it) says that it is a part.
"""

from __future__ import annotations

import os
import sys
from os.path import dirname, join, realpath

# This file is called like a module of Python's own: neither its folder nor `tools` may come before those.
HERE = dirname(realpath(__file__))
sys.path[:] = [*(entry for entry in sys.path if realpath(entry or ".") != HERE), join(dirname(HERE), "tools")]
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # the pool is what runs in parallel

import argparse  # noqa: E402
import json  # noqa: E402
import math  # noqa: E402
import multiprocessing  # noqa: E402
import time  # noqa: E402
import zlib  # noqa: E402
from collections import Counter  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from dataclasses import asdict, dataclass, field  # noqa: E402

import numpy as np  # noqa: E402

from sm120_overlay.bisection.confirm import judged  # noqa: E402
from sm120_overlay.bisection.decision.expected import expected_runs  # noqa: E402
from sm120_overlay.bisection.decision.nouns import Field, Reading, Rules, Status, Verdict  # noqa: E402
from sm120_overlay.bisection.decision.rule import decide  # noqa: E402
from sm120_overlay.bisection.events import Undoing  # noqa: E402
from sm120_overlay.bisection.job import Scale  # noqa: E402

REPEATS = (1, 2, 3, 4, 5, 7, 10, 12, 14, 16, 20, 24, 28, 40, 48, 52, 56, 64, 80, 120)
GIT_TRIALS = 4000
Trial = tuple[bool, int, int, int, str, float]  # right, runs, programs run, rounds, status, seconds of decisions


@dataclass(frozen=True)
class World:
    """A history and what is wrong with its runs, in units of the noise where nothing else is said.

    `outliers` is the share of runs that come 8 noises low, `hosts` run side by side and differ by `host_spread`,
    `drift` moves slowly (20 runs), `own` is an effect of every program's, `untestable` a share of programs. `share` of
    the step is the culprit's, the rest another's. `levels` are chances to pass.
    """

    part: str
    name: str
    last: int
    d: float
    outliers: float = 0.0
    hosts: int = 1
    host_spread: float = 0.0
    drift: float = 0.0
    own: float = 0.0
    untestable: float = 0.0
    share: float = 1.0
    levels: tuple[float, float] | None = None
    build_cost: float = 0.0
    rules: Rules = field(default_factory=lambda: Rules(scale=Scale.LINEAR))


@dataclass(frozen=True)
class Row:
    """What came of one world."""

    part: str
    name: str
    changes: int
    d: float
    trials: int
    correct: float
    runs: float
    expected: float
    built: float
    rounds: float
    statuses: dict[str, int]
    seconds: float
    ms_per_decision: float
    git_one: float | None
    git_repeats: int | None
    git_runs: float | None


class Bench:
    """One drawn history that can be run: it has the state that a machine has."""

    def __init__(self, world: World, chance: np.random.Generator) -> None:
        self.world, self.chance = world, chance
        self.culprits = [int(chance.integers(1, world.last + 1))]
        while world.share < 1 and len(self.culprits) < 2:
            other = int(chance.integers(1, world.last + 1))
            self.culprits += [other] * (other not in self.culprits)
        self.offsets = chance.normal(0, 1, world.hosts) * world.host_spread
        self.own = chance.normal(0, 1, world.last + 1) * world.own
        self.slow = float(chance.normal())
        inner = np.flatnonzero(chance.random(world.last + 1) < world.untestable).tolist()
        self.field = Field((1.0,) * world.last, frozenset(inner) - {0, world.last})

    def run(self, program: int, host: int, undone: int = -1) -> float:
        """One run of a program, perhaps with one change taken back."""
        world, chance = self.world, self.chance
        shares = (world.share, 1 - world.share)
        step = sum(
            share
            for share, culprit in zip(shares, self.culprits, strict=False)
            if program >= culprit and culprit != undone
        )
        step *= world.part != "same"
        if world.levels:
            return float(chance.random() < world.levels[int(step)])
        fade = math.exp(-1 / 20)
        self.slow = fade * self.slow + math.sqrt(1 - fade * fade) * chance.normal()
        wrong = 8.0 * (chance.random() < world.outliers)
        noise = chance.normal() + self.offsets[host] + self.own[program] + world.drift * self.slow - wrong
        return float(step + noise / world.d)


def bisect(bench: Bench) -> tuple[Verdict, int, int, int]:
    """Asks the real decision until it has a verdict; the verdict, runs, programs run, rounds."""
    world, rounds = bench.world, 0
    readings: list[Reading] = []
    built: set[int] = set()
    while True:
        fixed = frozenset(built) if world.build_cost else frozenset()
        decision = decide(bench.field, readings, world.rules, world.hosts, fixed, world.build_cost)
        if isinstance(decision.next, Verdict):
            return decision.next, len(readings), len(built), rounds
        for host, program in enumerate(decision.next.programs):
            readings.append(Reading(program, bench.run(program, host), f"host{host}", len(readings)))
            built.add(program)
        rounds += 1


def second_look(bench: Bench, verdict: Verdict) -> str:
    """The status, and whether taking the change back shows that it made a part only."""
    if verdict.status is not Status.FOUND or bench.world.part == "same" or bench.world.levels:
        return str(verdict.status.value)
    last, rules = bench.world.last, bench.world.rules
    without, new = [], []
    for _ in range(2):  # as bisection.confirm does
        without += [bench.run(last, 0, undone=verdict.culprits[0].programs[0]) for _ in range(rules.verify)]
        new += [bench.run(last, 0) for _ in range(rules.verify)]
        if judged(rules, verdict, without, new) is not Undoing.PARTLY:
            return str(verdict.status.value)
    return "found, partly"


def is_right(bench: Bench, verdict: Verdict) -> bool:
    """Whether a verdict is what the world was drawn as."""
    if bench.world.part == "same":
        return verdict.status is Status.NO_CHANGE
    if len(bench.culprits) > 1:
        named = {program for culprit in verdict.culprits for program in culprit.programs}
        return verdict.status is Status.MULTIPLE and named == set(bench.culprits)
    if bench.world.own:
        return verdict.status is Status.UNSTABLE or _names(verdict, bench.culprits[0])
    return _names(verdict, bench.culprits[0])


def _names(verdict: Verdict, culprit: int) -> bool:
    """Whether it names one change, or one block, and that is it."""
    return verdict.status in (Status.FOUND, Status.BLOCK) and culprit in verdict.culprits[0].programs


def trial(world: World, trials: int, part: int) -> list[Trial]:
    """Some trials of a world; the same arguments give the same."""
    chance, found = np.random.default_rng([zlib.crc32(repr(world).encode()), part]), []
    for _ in range(trials):
        bench, began = Bench(world, chance), time.perf_counter()
        verdict, runs, built, rounds = bisect(bench)
        seconds = time.perf_counter() - began
        found.append((is_right(bench, verdict), runs, built, rounds, second_look(bench, verdict), seconds))
    return found


def git_bisect(last: int, d: float, repeats: int) -> tuple[float, float]:
    """How often plain bisection with the mean of so many runs is right, and its runs."""
    chance = np.random.default_rng([last, round(10 * d), repeats])
    culprit = chance.integers(1, last + 1, GIT_TRIALS)
    noise = 1 / d / math.sqrt(repeats)
    middle = 0.5 + noise * chance.normal(size=(2, GIT_TRIALS)).mean(0)
    low, high = np.zeros(GIT_TRIALS, int), np.full(GIT_TRIALS, last)
    asked = np.full(GIT_TRIALS, 2.0)
    while (wide := high - low > 1).any():
        half = (low + high) // 2
        is_new = (half >= culprit) + noise * chance.normal(size=GIT_TRIALS) > middle
        high, low = np.where(wide & is_new, half, high), np.where(wide & ~is_new, half, low)
        asked += wide
    return float((high == culprit).mean()), float(asked.mean()) * repeats


def git_rows(world: World) -> tuple[float | None, int | None, float | None]:
    """How often git's strategy is right with one run, then the fewest repeats of the list for 99 % and their runs."""
    if world.part != "steps":
        return None, None, None
    one, _ = git_bisect(world.last, world.d, 1)
    for repeats in REPEATS:
        right, runs = git_bisect(world.last, world.d, repeats)
        if right >= 0.99:
            return one, repeats, runs
    return one, None, None


def worlds(quick: bool) -> Iterator[World]:
    """Every row."""
    for last in (9, 64) if quick else (9, 64, 512, 4096):
        for d in (1.0, 2.0, 4.0, 8.0):
            yield World("steps", "one change", last, d)
    for last in (9, 64) if quick else (9, 64, 512):
        yield World("same", "no change", last, 1.0)
    yield World("same", "no change, 4 hosts", 64, 1.0, hosts=4, host_spread=3.0)
    yield World("same", "no change, pass/fail .9", 64, 1.0, levels=(0.9, 0.9), rules=Rules(Scale.PASS_FAIL))
    yield World("same", "no change of 5 %, noise 3 %", 64, 1.0, rules=Rules(Scale.LINEAR, min_effect=5 / 3))
    for d in (8.0, 2.0):
        yield World("traps", "5 % outliers", 64, d, outliers=0.05)
    yield World("traps", "4 hosts differ by 3 noises", 64, 2.0, hosts=4, host_spread=3.0)
    yield World("traps", "drift of 2 noises", 64, 2.0, drift=2.0)
    yield World("traps", "drift of 2 noises, paired", 64, 2.0, drift=2.0, rules=Rules(Scale.LINEAR, paired=True))
    yield World("traps", "30 % untestable", 64, 4.0, untestable=0.3)
    for d in (16.0, 8.0):
        yield World("traps", "two changes, 60/40", 64, d, share=0.6)
    yield World("traps", "every program its own: 1", 64, 4.0, own=1.0)
    yield World("traps", "every program its own: 2", 64, 8.0, own=2.0)
    yield World("traps", "pass/fail .98 to .70", 64, 2.0, levels=(0.98, 0.7), rules=Rules(Scale.PASS_FAIL))
    yield World("traps", "a build costs 5 runs", 512, 2.0, build_cost=5.0)
    for d in (2.0, 8.0):
        yield World("traps", "8 hosts, alike", 64, d, hosts=8)


def row(world: World, found: list[Trial]) -> Row:
    """A row of its trials."""
    right, runs, built, rounds, status, seconds = zip(*found, strict=True)
    decisions = sum(rounds) + len(found)
    return Row(
        world.part, world.name, world.last, world.d, len(found), float(np.mean(right)), float(np.mean(runs)),
        expected_runs(world.last, world.d), float(np.mean(built)), float(np.mean(rounds)), dict(Counter(status)),
        float(sum(seconds)), 1e3 * sum(seconds) / decisions, *git_rows(world),
    )  # fmt: skip


HEADS = (
    "",
    "N",
    "d",
    "right",
    "runs",
    "ETA",
    "ratio",
    "built",
    "rounds",
    "git, 1 run",
    "git, k runs",
    "ms",
    "of trials",
)
WIDTHS = (34, 5, 3, 7, 6, 6, 5, 5, 6, 10, 12, 4, 0)


def cells(one: Row) -> tuple[str, ...]:
    """A row as it is printed; `ms` is the time of a decision."""
    told = one.part == "steps"
    eta, ratio = (f"{one.expected:.1f}", f"{one.runs / one.expected:.2f}") if told else ("", "")
    git = f"{one.git_one:.1%}" if one.git_one is not None else ""
    best = f"k={one.git_repeats}: {one.git_runs:.0f}" if one.git_runs else "none tried" if told else ""
    counts = ", ".join(f"{count} {status}" for status, count in sorted(one.statuses.items()))
    return (
        f"{one.part}: {one.name}", str(one.changes), f"{one.d:g}", f"{one.correct:.1%}", f"{one.runs:.1f}", eta, ratio,
        f"{one.built:.1f}", f"{one.rounds:.1f}", git, best, f"{one.ms_per_decision:.1f}", counts,
    )  # fmt: skip


def show(rows: list[Row]) -> None:
    """The table."""
    for line in (HEADS, *map(cells, rows)):
        first, *rest = (f"{text:{'<' if at == 0 else '>'}{WIDTHS[at]}}" for at, text in enumerate(line))
        print("  ".join([first, *rest]).rstrip())


def main() -> int:
    """Runs every row that is asked for."""
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--quick", action="store_true")
    reader.add_argument("--json", action="store_true")
    reader.add_argument("--trials", type=int, default=0, help="of each row (400, or 40 with --quick)")
    reader.add_argument("--only", default="", help="parts, with commas: steps, same, traps")
    reader.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    asked = reader.parse_args()
    trials = asked.trials or (40 if asked.quick else 400)
    parts = asked.only.split(",") if asked.only else ["steps", "same", "traps"]
    chosen = [world for world in worlds(asked.quick) if world.part in parts]
    each = max(1, min(20, trials))
    jobs = [(world, min(each, trials - at), at) for world in chosen for at in range(0, trials, each)]
    with multiprocessing.Pool(asked.workers) as pool:
        found = pool.starmap(trial, jobs, chunksize=1)
    done: dict[World, list[Trial]] = {world: [] for world in chosen}
    for (world, *_), some in zip(jobs, found, strict=True):
        done[world] += some
    rows = [row(*one) for one in done.items()]
    if asked.json:
        print(json.dumps([asdict(one) for one in rows], indent=1))
    else:
        show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
