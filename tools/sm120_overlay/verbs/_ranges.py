"""What a range of upstream's means as it was typed: in whose history, from which commit to which, by whose series."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import report
from ..errors import Missing, UsageError
from ..queue.git import Repository, commit_exists, git_path, is_repository, object_ids, run
from ..queue.pins import Lines, Pin
from ..queue.ranges import Span, Step, find_span, main_of
from ..queue.releases import chosen, released
from ..queue.series import Series
from ..queue.sources import find_source


@dataclass(frozen=True)
class Range:
    """A range as it was typed ("": an end that is left out), the line that was named, and where histories lie."""

    lines: Lines
    upstream: str
    old: str
    new: str
    line: str | None = None
    histories: tuple[Path, ...] = ()

    @property
    def pins(self) -> tuple[Pin, ...]:
        """The pins of this upstream, of the line that is named or of all of them; the default line's comes first."""
        first = self.lines.line(self.line).pin(self.upstream)
        others = () if self.line else self.lines.all_pins()
        return tuple(dict.fromkeys((first, *(pin for pin in others if pin.upstream == first.upstream))))


@dataclass(frozen=True)
class Stretch:
    """The commits of a range: `pin` is the one whose series goes onto them, `base` its commit in one of `commons`.

    The ends are called as they were typed, else by their tag or branch.
    """

    history: Repository
    pin: Pin
    base: str
    commons: tuple[Path, ...]
    span: Span
    old: str
    new: str


def typed_range(text: str) -> tuple[str, str]:
    """Both ends of OLD..NEW, OLD.. or ..NEW.

    Raises:
        UsageError: it is not of that form.
    """
    old, dots, new = text.partition("..")
    if not dots or ".." in new or new.startswith("."):
        # why: one revision alone, or `...`, would be taken for another range
        raise UsageError(f"{text}: expected OLD..NEW, OLD.. or ..NEW.", "Such as v0.5.9..v0.5.16, or v0.5.16..")
    return old, new


def find_stretch(asked: Range) -> Stretch:
    """What a range of commits is.

    Raises:
        Missing, UsageError, Refused: there is no history, it lacks an end, or nothing lies between them.
    """
    history, old, new = _history(asked)
    pin = _nearest(history, asked, old)
    span = find_span(history, old or _of_pin(history, pin), new)
    commons = [git_path(history, "objects").parent]
    base = pin.commit
    if not (base and commit_exists(history, base)):
        source = find_source(pin, "pypi", report.say)
        base = source.commit
        commons.append(git_path(Repository(source.repository), "objects").parent)
    names = asked.old or pin.tag, asked.new or re.sub("^refs/(heads|remotes)/", "", new)
    return Stretch(history, pin, base, tuple(commons), span, *names)


def _history(asked: Range) -> tuple[Repository, str, str]:
    """The first repository that has both ends, and what they are called there ("": the old end is the pin)."""
    if not asked.histories:
        # why: what upstream's commits did is nowhere but in its history
        raise Missing(
            f"{asked.upstream}: a range of commits needs its history, and none was named.",
            f"git clone --bare {asked.pins[0].repository}; name that folder with --history. Or ask about --releases.",
        )
    for path in asked.histories:
        if not is_repository(path):
            # why: a history that is passed over makes the range another one
            raise UsageError(f"--history {path}: expected a git repository, found none.", "Name a clone or a mirror.")
    tried = []
    for path in asked.histories:
        repo = Repository(path.resolve())
        old = _revision(repo, asked, asked.old) if asked.old else ""
        new = _revision(repo, asked, asked.new) if asked.new else main_of(repo)
        if old is not None and new is not None:
            return repo, old, new
        tried.append(f"{path} lacks {asked.old if old is None else asked.new or 'a main branch'}")
    # why: the commit beside the one that was meant gives another answer
    raise Missing(f"--history: {'; '.join(tried)}.", "Fetch it there (git fetch --tags), or name another end.")


def _revision(repo: Repository, asked: Range, text: str) -> str | None:
    """What an end is called in a repository: as it was typed, as a release's tag, or as the commit of a pin of ours."""
    pinned = [pin.commit for pin in asked.pins if text in (pin.line, pin.tag, pin.version) and pin.commit]
    names = [text, f"v{text}", *pinned]
    return next((name for name in names if not name.startswith("-") and commit_exists(repo, name)), None)


def _nearest(history: Repository, asked: Range, old: str) -> Pin:
    """The pin that the old end is, or that is the fewest commits away from it."""
    pins = asked.pins
    if not old or len(pins) == 1:
        return pins[0]
    known = [pin for pin in pins if pin.commit and commit_exists(history, pin.commit)]
    if not known:
        report.say(
            f"{history.path} has none of the commits that the lines of {asked.upstream} are pinned to: the series of "
            f"{pins[0].line}, the default line, goes onto the range (--line names another)"
        )
    away = {pin: run(history, "rev-list", "--count", f"{pin.commit}...{old}") for pin in known}
    return min(known, key=lambda pin: int(away[pin]), default=pins[0])


def _of_pin(history: Repository, pin: Pin) -> str:
    """The pinned commit, which is the old end where none is named."""
    if not (pin.commit and commit_exists(history, pin.commit)):
        # why: a range must begin somewhere
        raise Missing(
            f"{history.path} does not hold {pin.upstream} {pin.tag} ({pin.commit or 'its commit is not known yet'}).",
            "Fetch it there (git fetch --tags), or name where to begin: OLD..",
        )
    return pin.commit


def check_same_upstream(history: Repository, series: Series, first: Step) -> None:
    """The history is this upstream's: the old end has one of the touched files at least.

    Raises:
        UsageError: it has none.
    """
    files = first.ground.files
    if files and not any(files.values()) and any(edit.old for patch in series.patches for edit in patch.edits):
        # why: in another project's history every patch would be `gone`
        raise UsageError(
            f"{history.path}: {first.commit.short} has none of the {len(files)} files that {series.pin.upstream}'s "
            f"patches change.",
            f"Name a history of {series.pin.upstream}.",
        )


def check_blobs(history: Repository, repo: Repository, steps: Sequence[Step]) -> None:
    """Every version of the touched files is there.

    Raises:
        Missing: it is a partial clone.
    """
    blobs = {entry.blob for step in steps for entry in step.ground.files.values() if entry}
    lost = [blob for blob, found in object_ids(repo, sorted(blobs)).items() if found is None]
    if lost:
        # why: a partial clone would fetch them one by one, silently, for hours
        raise Missing(
            f"{history.path}: a partial clone; it lacks {len(lost)} of {len(blobs)} versions of the touched files.",
            f"git -C {history.path} fetch --refetch --no-filter, or name a whole clone.",
        )


def find_releases(asked: Range, early: bool = False) -> tuple[Pin, tuple[str, ...]]:
    """The pin whose series goes onto a range of releases, and their versions, oldest first.

    Args:
        early: release candidates too.

    Raises:
        Missing, UsageError: the package index cannot be asked, or an end is not among its releases.
    """
    distribution = asked.pins[0].distribution
    versions = released(distribution, early)
    old, new = (_version(asked, end) for end in (asked.old, asked.new))
    pin = _nearest_release(asked, versions, old)
    return pin, chosen(versions, old or pin.version, new, distribution)


def _version(asked: Range, text: str) -> str:
    """The version that a release's tag, or a line of ours, names."""
    known = next((pin.version for pin in asked.pins if text in (pin.line, pin.tag)), text)
    return known.removeprefix("v")


def _nearest_release(asked: Range, versions: Sequence[str], old: str) -> Pin:
    """The pin that the old end is, else the last before it, else the first of all."""
    pins = [pin for pin in asked.pins if pin.version in versions]
    if not old or old not in versions or not pins:
        return asked.pins[0]
    before = [pin for pin in pins if versions.index(pin.version) <= versions.index(old)]
    ordered = sorted(before or pins, key=lambda pin: versions.index(pin.version))
    return ordered[-1] if before else ordered[0]
