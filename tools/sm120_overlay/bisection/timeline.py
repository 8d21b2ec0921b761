"""A range of upstream's as a history: every revision with the series on it, what changes from each to the next.

A commit between revisions whose keys are equal changes nothing that a run can see, and is culled with the reason. What
no launch can reach is culled by `with_reach`, from what the import graph says.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import Refused
from ..queue.build import build_root, build_trees
from ..queue.carry import STOPPED, Carried, Ground, State, carry, distinct
from ..queue.git import Change as Differs
from ..queue.git import Entry, Repository
from ..queue.pins import Pin
from ..queue.ranges import Commit, Span, way
from ..queue.releases import release_steps, wheel_of
from ..queue.series import Series
from ..queue.wheels import Say
from .history import Change, History, PatchState, Reach, Revision
from .keys import Keys, keys_of_commits, keys_of_releases
from .reach.steps import differences

if TYPE_CHECKING:
    from .reach import Judged

LAZY_PRIOR = 0.5  # of a change that a launch may load, beside one that it does: by judgement, not measured
SKIP, DROP, STOP = "skip", "drop", "stop"


@dataclass(frozen=True)
class _Place:
    """One revision on the way: its commit, the one that is put on or taken back to come there, what lies there."""

    at: Commit
    commit: Commit
    ground: Ground
    undone: bool = False

    @property
    def revision(self) -> str:
        """Its id."""
        return self.at.id


def commits_between(
    repo: Repository, pin_commit: str, series: Series, span: Span, on_conflict: str = SKIP, sees: Sequence[str] = ()
) -> History:  # fmt: skip
    """Every commit of a range along first parents, from the old end back to main and on to the new one.

    Args:
        repo: it holds the history and the series as `build` made it; trees are written into it.
        pin_commit: the commit that the series is made on.
        on_conflict: of a revision that a patch does not go onto: "skip" no run can judge it, "drop" it is measured
            without the patch, "stop" refuse.
        sees: paths outside the packages that a run sees, too.

    Raises:
        Refused: a patch does not go onto a revision, and that was to be refused.
    """
    places = tuple(_places(repo, pin_commit, series, span))
    rows = _carried(repo, series, [place.ground for place in places])
    _check(places, rows, on_conflict)
    files = [_files(row) for row in rows]
    trees = build_trees(repo, [(place.revision, changed) for place, changed in zip(places, files, strict=True)])
    keys = keys_of_commits(repo, series.pin, trees, sees)
    return _history(repo, places, rows, trees, keys, on_conflict)


def releases_between(
    repo: Repository, pin_commit: str, series: Series, versions: Sequence[str], pins: Sequence[Pin],
    on_conflict: str, say: Say,
) -> History:  # fmt: skip
    """Releases of the package index, each as its wheel is installed.

    Args:
        repo: as in `commits_between`.
        pin_commit: the commit that the series is made on.
        series: the patches.
        versions: the releases, oldest first.
        pins: those of every line: a release that is one is fetched by its hash.
        on_conflict: as in `commits_between`.
        say: is told what is downloaded.

    Raises:
        Missing, Refused: a wheel cannot be had, or a patch does not go onto one and that was to be refused.
    """
    steps = release_steps(repo, pin_commit, series, versions, pins, say)
    places = tuple(_Place(step.commit, step.commit, step.ground) for step in steps)
    rows = _carried(repo, series, [place.ground for place in places])
    _check(places, rows, on_conflict)
    trees: list[str] = []
    for place, row in zip(places, rows, strict=True):
        root = _installed(repo, series.pin, place, pins, say)
        mapped = {series.pin.installed_path(path): entry for path, entry in _files(row).items()}
        trees += build_trees(repo, [(root, {path: entry for path, entry in mapped.items() if path})])
    keys = keys_of_releases(repo, trees)
    return _history(repo, places, rows, trees, keys, on_conflict)


def with_reach(history: History, judged: Sequence[Judged]) -> History:
    """The history with what a launch cannot reach culled, and what it may reach less probable.

    Args:
        judged: one for each change.
    """
    pairs = zip(history.changes, judged, strict=True)
    return replace(history, changes=tuple(_reached(change, said) for change, said in pairs))


def uncull(history: History) -> History:
    """The history with every change that was culled by reach measured after all; equal keys stay one program."""
    firsts = zip(history.changes, history.revisions, history.revisions[1:], strict=False)
    return replace(
        history,
        changes=tuple(
            replace(change, culled="", why=change.culled) if change.culled and old.key != new.key else change
            for change, old, new in firsts
        ),
    )


def _reached(change: Change, said: Judged) -> Change:
    if change.culled:
        return replace(change, reach=said.reach)
    if said.reach is Reach.NONE and not change.moved_pins:
        return replace(change, reach=said.reach, culled=f"no launch reaches it: {said.why}")
    prior = LAZY_PRIOR if said.reach is Reach.LAZY and not change.moved_pins else change.prior
    return replace(change, reach=said.reach, why=said.why, prior=prior)


def _places(repo: Repository, pin_commit: str, series: Series, span: Span) -> Iterator[_Place]:
    """The revisions in order: from the old end back to where both left main, then on."""
    first, *steps = way(repo, pin_commit, series, span)
    grounds = {(step.commit.id, step.undone): step.ground for step in steps}
    ground = first.ground
    yield _Place(span.old, span.old, ground)
    parents = [span.start, *span.undone]
    for parent, gone in reversed(list(zip(parents, span.undone, strict=False))):
        ground = grounds.get((gone.id, True), ground)
        yield _Place(parent, gone, ground, undone=True)
    for commit in span.commits:
        ground = grounds.get((commit.id, False), ground)
        yield _Place(commit, commit, ground)


def _carried(repo: Repository, series: Series, grounds: Sequence[Ground]) -> list[tuple[Carried, ...]]:
    """The patches on each ground; grounds that are equal are looked at once."""
    apart, numbers = distinct(grounds)
    found = carry(repo, series, apart)
    return [found[number] for number in numbers]


def _check(places: Sequence[_Place], rows: Sequence[Sequence[Carried]], on_conflict: str) -> None:
    for place, row in zip(places, rows, strict=True):
        bad = [one.slug for one in row if one.state in STOPPED]
        if bad and on_conflict == STOP:
            # why: a series that is on in part is another program on each side
            raise Refused(
                f"{', '.join(bad)}: not onto {place.at.named} by itself.",
                "Leave it out everywhere (--without SLUG), or choose --on-conflict skip or drop.",
            )


def _files(row: Iterable[Carried]) -> dict[str, Entry | None]:
    found: dict[str, Entry | None] = {}
    for one in row:
        found.update(one.files)
    return found


def _history(
    repo: Repository, places: Sequence[_Place], rows: Sequence[Sequence[Carried]], trees: Sequence[str],
    keys: Sequence[Keys], on_conflict: str,
) -> History:  # fmt: skip
    told = zip(places, rows, trees, keys, strict=True)
    revisions = tuple(_revision(place, row, tree, key, on_conflict) for place, row, tree, key in told)
    named = zip(places[1:], differences(repo, trees), revisions, revisions[1:], strict=False)
    return History(revisions, tuple(_change(*one) for one in named))


def _revision(place: _Place, row: Sequence[Carried], tree: str, keys: Keys, on_conflict: str) -> Revision:
    left = on_conflict == DROP
    patches = tuple(PatchState(one.slug, one.state, one.state in STOPPED and left, one.why) for one in row)
    bad = [one.slug for one in row if one.state in STOPPED]
    untestable = f"{', '.join(bad)} does not go onto it" if bad and not left else ""
    return Revision(place.at, tree, keys.key, keys.build_key, patches, keys.pins, untestable)


def _change(place: _Place, step: Sequence[Differs], old: Revision, new: Revision) -> Change:
    pairs = zip(old.patches, new.patches, strict=True)
    turned = tuple((one.slug, one.state, other.state) for one, other in pairs if one.state is not other.state)
    names = sorted({*old.pins, *new.pins})
    pins = ((name, old.pins.get(name, ""), new.pins.get(name, "")) for name in names)
    moved = tuple(row for row in pins if row[1] != row[2])
    paths = tuple(change.path for change in step)
    culled = _why_equal(paths, turned) if old.key == new.key else ""
    return Change(place.commit, paths, Reach.LOADED, culled, "", 1.0, turned, moved, place.undone)


def _why_equal(paths: Sequence[str], turned: Sequence[tuple[str, State, State]]) -> str:
    """Why two revisions are one program to a run."""
    taken = [slug for slug, _, state in turned if state is State.ABSORBED]
    said = f"upstream takes in what our {', '.join(taken)} does" if taken else ""
    if not paths:
        return said or "no file differs"
    outside = f"only files outside the package: {', '.join(paths[:3])}"
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return "; ".join(filter(None, (said, outside + more)))


def _installed(repo: Repository, pin: Pin, place: _Place, pins: Sequence[Pin], say: Say) -> str:
    """A commit with all that a wheel installs."""
    with zipfile.ZipFile(wheel_of(pin, place.revision, pins, say)) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        files: Mapping[str, tuple[str, bytes]] = {name: ("100644", archive.read(name)) for name in names}
    return build_root(repo, files, f"{pin.distribution} {place.revision}, installed")
