"""What there is to bisect: the range with the series on it as a history, and how many runs a search of it takes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

from .. import report
from ..bisection.decision.nouns import Rules
from ..bisection.history import History, Revision
from ..bisection.keys import keys_of_commits, keys_of_releases
from ..bisection.reach import judge
from ..bisection.reach.rules import Rules as ReachRules
from ..bisection.sees import Sees, rules_seeing, seen_by
from ..bisection.timeline import commits_between, releases_between, uncull, with_reach
from ..bisection.trees import archive, python_path, submodules
from ..bisection.undoing import undone_on_new
from ..errors import Refused
from ..picture.page import shortened
from ..queue.build import base_contents, build
from ..queue.export import check_whole
from ..queue.git import Repository, git_path, objects_alone
from ..queue.home import Home, command
from ..queue.merging import check_git
from ..queue.pins import Lines, Pin, load_lines
from ..queue.series import Series, load_series, select
from ..queue.sources import find_source
from ..serving.launch import launch_of
from ._bisect_json import as_object
from ._bisect_show import PLAN_HEADS, Told, plan_rows
from ._options import own_home
from ._ranges import Range, find_releases, find_stretch, typed_range

WHY = 120  # letters of a reason in the table; --json and --html have all of it
TARS = 8  # of trees that are kept: ends and neighbours are run again and again
EFFECTS = (0.5, 1.0, 2.0, 4.0, 8.0)  # in units of the noise, which is not known yet


@dataclass(frozen=True)
class Found:
    """The range that was asked for: its history, and the tar of a tree of it, in which packages begin at a folder.

    The ends are called as they were typed, `line` is the one whose series is on every revision. `undone` is the new
    end without the change into a program, None where that does not come off it cleanly.
    """

    lines: Lines
    line: str
    old: str
    new: str
    history: History
    archive: Callable[[str], bytes]
    python_path: str
    undone: Callable[[int], Revision | None]


@contextmanager
def finding(options: argparse.Namespace, home: Home) -> Iterator[Found]:
    """The range that was asked for, with the series on it, as long as its objects are at hand.

    Raises:
        OverlayError: it is not there, or a patch does not go onto a revision and that was to end all.
    """
    check_whole(home)
    check_git(Repository(home.root))
    lines = load_lines(home.pins)
    asked = Range(lines, options.upstream, *typed_range(options.range), options.line, tuple(options.history))
    with _releases(asked, options, home) if options.releases else _commits(asked, options, home) as found:
        yield found


@contextmanager
def _commits(asked: Range, options: argparse.Namespace, home: Home) -> Iterator[Found]:
    stretch = find_stretch(asked)
    series = _series(stretch.pin, options, home)
    with objects_alone(*stretch.commons) as repo:
        build(repo, stretch.base, series, base_contents(repo, stretch.base, series))
        sees = _seen(options, stretch.pin)
        history = commits_between(repo, stretch.base, series, stretch.span, options.on_conflict, sees.paths)
        judged = _judged(repo, history, options, stretch.pin, sees)
        left = submodules(repo, history.revisions[-1].tree)
        if left:
            report.say(f"{', '.join(left)}: submodules, which {{tree}} lacks: what builds or runs it must fetch them")
        yield _found(asked, repo, judged, stretch.pin, (stretch.old, stretch.new), sees)


@contextmanager
def _releases(asked: Range, options: argparse.Namespace, home: Home) -> Iterator[Found]:
    pin, between = find_releases(asked)
    source = find_source(pin, "pypi", report.say)
    series = _series(pin, options, home)
    with objects_alone(git_path(Repository(source.repository), "objects").parent) as repo:
        build(repo, source.commit, series, base_contents(repo, source.commit, series))
        history = releases_between(repo, source.commit, series, between, asked.pins, options.on_conflict, report.say)
        judged = _judged(repo, history, options, pin, _seen(options, pin))
        yield _found(asked, repo, judged, pin, (between[0], between[-1]), None)


def _series(pin: Pin, options: argparse.Namespace, home: Home) -> Series:
    """What goes onto every revision."""
    series = load_series(home, pin)
    return replace(series, patches=()) if options.no_series else select(series, None, tuple(options.without))


def _rules(options: argparse.Namespace, pin: Pin) -> ReachRules | None:
    """What a launch of this upstream loads, where that is known."""
    models = [options.model] if options.model else ()
    return launch_of(pin.upstream, models, options.loads, python_path(pin, options.releases))


def _seen(options: argparse.Namespace, pin: Pin) -> Sees:
    """What the commands run of the tree besides."""
    rules = _rules(options, pin)
    packages = rules.packages if rules else tuple(place.strip("/") for _, place in pin.paths)
    folder = rules.folder if rules else python_path(pin, options.releases).removeprefix(".")
    commands = (text for text in (options.cmd, options.server, options.build) if text)
    return seen_by(commands, folder, packages, rules.scripts if rules else ())


def _judged(repo: Repository, history: History, options: argparse.Namespace, pin: Pin, sees: Sees) -> History:
    """The history with what no launch can reach culled, where it is known what a launch of this upstream loads."""
    rules = _rules(options, pin)
    if rules is None:
        return history
    trees = [revision.tree for revision in history.revisions]
    try:
        judged = judge(repo, trees, rules_seeing(repo, (trees[0], trees[-1]), rules, sees))
    except Refused as error:
        if not options.no_cull:
            raise
        report.say(f"{error.what} So it is not known what a launch reaches.")
        return history
    reached = with_reach(history, judged)
    return uncull(reached) if options.no_cull else reached


def _found(
    asked: Range, repo: Repository, history: History, pin: Pin, ends: tuple[str, str], sees: Sees | None
) -> Found:
    """Joins it; releases see all that is installed."""

    def undone(program: int) -> Revision | None:
        tree = undone_on_new(repo, history, program)
        if tree is None:
            return None
        (keys,) = keys_of_commits(repo, pin, [tree], sees.paths) if sees else keys_of_releases(repo, [tree])
        return Revision(history.revisions[-1].commit, tree, keys.key, keys.build_key)

    @lru_cache(maxsize=TARS)
    def tar(tree: str) -> bytes:
        return archive(repo, tree)

    return Found(asked.lines, pin.line, *ends, history, tar, python_path(pin, not sees), undone)


def expected(history: History) -> dict[float, float]:
    """About how many runs it takes, by the effect in units of the noise."""
    from ..bisection.decision.expected import expected_runs

    return {d: expected_runs(len(history.programs) - 1, d) for d in EFFECTS}


def plan(options: argparse.Namespace) -> int:
    """The dry run; the exit code."""
    with finding(options, own_home()) as found:
        told = Told(
            options.upstream, found.line, found.old, found.new, options.releases, found.history, options.metric or "",
            Rules(),
        )  # fmt: skip
        minutes = options.run_minutes / 60 if options.run_minutes else None
        return show_plan(told, minutes, options.json)


def show_plan(told: Told, minutes: float | None, as_json: bool = False) -> int:
    """Prints the dry run's table; the exit code.

    Args:
        minutes: how long a run takes, about.
    """
    history, runs = told.history, expected(told.history)
    if as_json:
        hours = {d: number * minutes / 60 if minutes else None for d, number in runs.items()}
        table = [{"effect": d, "runs": number, "hours": hours[d]} for d, number in runs.items()]
        report.show_json("bisect", {**as_object(told), "ok": True, "says": "a dry run", "expected": table})
        return 0
    report.show_table(
        f"{told.what}: what would be measured",
        PLAN_HEADS,
        [(*row[:-1], shortened(row[-1], WHY)) for row in plan_rows(history)],
        [number for number, change in enumerate(history.changes, 1) if change.culled],
    )
    culled = sum(bool(change.culled) for change in history.changes)
    report.show(f"  {len(history.changes)} changes, {culled} culled: {len(history.programs)} programs")
    for which, revision in (("old", history.revisions[0]), ("new", history.revisions[-1])):
        if revision.untestable:
            report.show(
                f"  the {which} end cannot be judged: {revision.untestable}; --line, --without or --on-conflict"
            )
    if len(history.programs) == 1:
        report.show("  nothing that a run can see changes: the answer is no-change without a run")
    else:
        for d, number in runs.items():
            took = f", {number * minutes / 60:.1f} h" if minutes else ""
            report.show(f"  an effect of {d:g} times the noise: about {number:.0f} runs{took}")
    report.show(f"  nothing was run; {command('bisect')} run without --dry-run measures")
    return 0
