"""Which patch `upstream` is asked about, from which line, and the revision of upstream that it is to go to."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .. import report
from ..errors import Missing, UsageError
from ..queue.git import Repository, commit_exists, git_path, is_repository, run
from ..queue.home import Home, command
from ..queue.moving import Move
from ..queue.patch import Patch
from ..queue.pins import Lines, Pin
from ..queue.ranges import Commit, find_commits, main_of
from ..queue.series import Series, load_series
from ..queue.sources import KINDS, Source, choose_source
from ..queue.statuses import carriers, newness


@dataclass(frozen=True)
class Target:
    """A revision of upstream: its commit, the repository that holds it, and the pin whose wheel is nearest to it.

    `cloned` is false where no clone was named: then it is a pin, and `installable` says whether from upstream's own
    history or laid out from a wheel.
    """

    commit: Commit
    repository: Path
    pin: Pin
    cloned: bool
    installable: bool


@dataclass(frozen=True)
class Asked:
    """What was asked, opened: the patch, the move of its series, where it goes, and where all objects of it lie."""

    options: argparse.Namespace
    home: Home
    lines: Lines
    patch: Patch
    move: Move
    target: Target
    commons: tuple[Path, ...]

    @property
    def pin(self) -> Pin:
        """The pin that the patch comes from."""
        return self.move.old.pin


def destined(options: argparse.Namespace, home: Home, lines: Lines) -> Asked:
    """What the command line names.

    Raises:
        Missing: no source has the patch's pin, or the revision.
        UsageError: no line carries the patch, or what was named as a clone is none.
    """
    pin = _carrier(options, home, lines)
    clones = _clones(options.source)
    kinds = [source for source in options.source if source in KINDS]
    wanted = [*map(str, clones), *(kinds or ["auto"])]
    target = _in_clones(options, lines, pin, clones) or _of_line(options, lines, pin, wanted, clones)
    before = choose_source(pin, wanted, report.say)
    series = load_series(home, pin)
    at = target.commit.id
    there = replace(pin, line=f"{pin.line}-at-{at[:12]}", commit=at, at=at, wheels=(), absent=())
    commons = (git_path(Repository(path), "objects").parent for path in (target.repository, before.repository))
    move = Move(series, there, before.commit, at, Series(there, ()))
    patch = series.patches[series.slugs.index(options.slug)]
    return Asked(options, home, lines, patch, move, target, tuple(dict.fromkeys(commons)))


def _carrier(options: argparse.Namespace, home: Home, lines: Lines) -> Pin:
    """The pin whose series has the patch: of the line that is named, or of the newest that does."""
    asked = (lines.line(options.line),) if options.line else lines.lines
    pins = {pin for line in asked for pin in line.pins}
    found = next((pin for pin in carriers(home, lines, options.slug) if pin in pins), None)
    if found is not None:
        return found
    absent = next((one for pin in pins for one in pin.absent if one.slug == options.slug), None)
    said = f": {absent.state}: {absent.why}" if absent else ""
    # why: a patch that is guessed, or that a line does without, is not the one that was meant
    raise UsageError(
        f"{options.line or 'No line'} {'does not carry' if options.line else 'carries'} {options.slug}{said}.",
        f"{command('status')} --upstream lists what each line carries.",
    )


def _clones(sources: Sequence[str]) -> list[Path]:
    found = [Path(source).expanduser() for source in sources if source not in KINDS]
    for path in found:
        if not is_repository(path):
            # why: a clone that is passed over makes the answer one about another revision
            raise UsageError(
                f"--source {path}: expected auto, git, pypi or a repository, found none.", "Name a clone or a mirror."
            )
    return [path.resolve() for path in found]


def _in_clones(options: argparse.Namespace, lines: Lines, pin: Pin, clones: Sequence[Path]) -> Target | None:
    """The revision in the first clone that has it; None where none was named, or what was named is a line's pin."""
    for path in clones:
        repo = Repository(path)
        name = _revision(repo, lines, pin, options.onto) if options.onto else main_of(repo)
        if name:
            (commit,) = find_commits(repo, [name])
            return Target(commit, path, _nearest(repo, commit.id, lines, pin), cloned=True, installable=True)
    return None


def _revision(repo: Repository, lines: Lines, pin: Pin, text: str) -> str | None:
    """What it is called there: as it was typed, as a release's tag, or as the commit of a pin of ours."""
    names = [text, f"v{text}", *(one.commit for one in _known(lines, pin, text) if one.commit)]
    return next((name for name in names if not name.startswith("-") and commit_exists(repo, name)), None)


def _known(lines: Lines, pin: Pin, text: str) -> list[Pin]:
    """The pins of the same upstream that go by this name."""
    pins = (other for other in lines.all_pins() if other.upstream == pin.upstream)
    return [other for other in pins if text in (other.line, other.tag, other.version, other.commit)]


def _newest(lines: Lines, pin: Pin) -> Pin:
    """The newest pin of this upstream."""
    pins = [other for other in lines.all_pins() if other.upstream == pin.upstream]
    return max(pins, key=lambda other: newness(other.version))


def _nearest(repo: Repository, commit: str, lines: Lines, pin: Pin) -> Pin:
    """The pin of this upstream that is the fewest commits away, of those that the clone holds; else the newest."""
    pins = [other for other in lines.all_pins() if other.upstream == pin.upstream]
    held = [other for other in pins if other.commit and commit_exists(repo, other.commit)]
    away = {other: int(run(repo, "rev-list", "--count", f"{other.commit}...{commit}")) for other in held}
    return min(held, key=lambda other: away[other], default=_newest(lines, pin))


def _of_line(
    options: argparse.Namespace, lines: Lines, pin: Pin, wanted: Sequence[str], clones: Sequence[Path]
) -> Target:
    """The pin that is named, or the newest, from its own source."""
    found = _known(lines, pin, options.onto) if options.onto else [_newest(lines, pin)]
    if not found:
        where = ", ".join(map(str, clones)) or "no clone was named, and no line"
        # why: a neighbouring revision is not the one that was asked for
        raise Missing(
            f"--onto {options.onto}: {where} has it not.", "Fetch it there, or name a clone that has it: --source PATH."
        )
    source: Source = choose_source(found[0], wanted, report.say)
    (commit,) = find_commits(Repository(source.repository), [source.commit])
    return Target(commit, source.repository, found[0], cloned=False, installable=source.installable)
