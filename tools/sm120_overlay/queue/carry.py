"""Carries a series to other revisions of its upstream, patch by patch, without writing anything.

A patch is the step between two trees of the old pin; on another revision the same step is merged in, file by file, on
top of the patches before it. What comes out is one of five states, and the files. A patch that does not go in is left
out, and those after it are merged without it, as they would be after a `--skip`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from .git import Change, Entry, Repository, diff_trees, tree_entries
from .merging import Sides, merge_files, renamed, sections_between
from .patch import Edit, Patch
from .sections import moved_into
from .series import Series

Files = Mapping[str, Entry | None]


class State(str, Enum):
    """How a patch goes onto another revision."""

    CLEAN = "clean"
    MOVED = "moved"  # clean, but a function around it has another header now, or the file another name: look at it
    ABSORBED = "absorbed"  # nothing is left to do: upstream has it
    CONFLICT = "conflict"
    GONE = "gone"  # upstream has no such file any more


CARRIED = (State.CLEAN, State.MOVED)
STOPPED = (State.CONFLICT, State.GONE)


@dataclass(frozen=True)
class Ground:
    """A revision of upstream, as far as a series is concerned.

    `files` are the touched files there, by their path at the pin; `places` where upstream has put those that moved.
    """

    revision: str
    files: Files
    places: Mapping[str, str] = field(default_factory=dict)

    def place(self, path: str) -> str:
        """Where a file of the pin lies at this revision."""
        return self.places.get(path, path)


@dataclass(frozen=True)
class Carried:
    """One patch on another revision.

    `files` is what it makes of the files there (by their path there; empty where it is left out), `stopped` the paths
    that do not go in, `why` what a person should know. `merge` names the inputs of all its merges: a decision that a
    person made for these holds as long as they are the same.
    """

    slug: str
    state: State
    merge: str
    files: Files = field(default_factory=dict)
    stopped: tuple[str, ...] = ()
    why: str = ""
    decided: bool = False


@dataclass(frozen=True)
class Decision:
    """What a person decided for a patch, for one merge: from `before` to `files` (path → entry); none: left out."""

    before: Files = field(default_factory=dict)
    files: Files = field(default_factory=dict)


Decide = Callable[[str, str], Decision | None]


def touched(series: Series) -> tuple[str, ...]:
    """Every path that a patch of the series changes."""
    return tuple(dict.fromkeys(edit.path for patch in series.patches for edit in patch.edits))


def ground_at(repo: Repository, pin: str, series: Series, revision: str, more: Iterable[str] = ()) -> Ground:
    """The touched files at a revision, those that upstream has moved since `pin` found by git's own measure.

    Args:
        more: further paths to know of.
    """
    paths = {*touched(series), *more}
    if not paths:  # to git no path at all means every one
        return Ground(revision, {})
    files: dict[str, Entry | None] = dict.fromkeys(paths) | dict(tree_entries(repo, revision, paths))
    lost = [path for path in paths if files[path] is None]
    at_pin = tree_entries(repo, pin, lost) if lost else {}
    places = moved_to(repo, at_pin, diff_trees(repo, pin, revision)) if at_pin else {}
    there = tree_entries(repo, revision, places.values()) if places else {}
    return Ground(revision, files | {path: there[place] for path, place in places.items()}, places)


def moved_to(repo: Repository, lost: Mapping[str, Entry], changes: Iterable[Change]) -> dict[str, str]:
    """Path of a lost file → its new place among the files that `changes` add."""
    added = {change.path: change.new for change in changes if change.old is None and change.new is not None}
    return renamed(repo, lost, added)


def distinct(grounds: Sequence[Ground]) -> tuple[list[Ground], list[int]]:
    """The grounds that differ in what lies there, and for each ground the number of the one that is like it."""
    keys = [(tuple(ground.files.items()), tuple(sorted(ground.places.items()))) for ground in grounds]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return list(dict(zip(keys, grounds, strict=True)).values()), [numbers[key] for key in keys]


def carry(
    repo: Repository, series: Series, grounds: Sequence[Ground], decide: Decide = lambda slug, merge: None
) -> list[tuple[Carried, ...]]:
    """For each ground the series' patches on it, in order; `decide` is asked what a person said of a merge."""
    now = [dict(ground.files) for ground in grounds]
    rows: list[list[Carried]] = [[] for _ in grounds]
    for patch in series.patches:
        found = _wave(repo, patch, grounds, now, decide)
        for row, files, ground, carried in zip(rows, now, grounds, found, strict=True):
            back = {place: path for path, place in ground.places.items()}
            files.update({back.get(path, path): entry for path, entry in carried.files.items()})
            row.append(carried)
    return [tuple(row) for row in rows]


def _wave(
    repo: Repository, patch: Patch, grounds: Sequence[Ground], now: Sequence[Files], decide: Decide
) -> list[Carried]:
    """One patch on every ground: all merges that differ in one process, then all diffs."""
    asked = [_merges(patch, files) for files in now]
    merged = merge_files(repo, (sides for sides in (_real(one) for row in asked for one in row.values()) if sides))
    results = [_result(row, merged) for row in asked]
    pairs = [pair for files, result in zip(now, results, strict=True) for pair in _changed(patch, files, result)]
    sections = sections_between(repo, pairs)
    carried = []
    for ground, files, row, result in zip(grounds, now, asked, results, strict=True):
        said = _judged(patch, ground, files, result, sections)
        merge = _named(row)
        carried.append(_decided(said, merge, ground, files, decide(patch.slug, merge)))
    return carried


@dataclass(frozen=True)
class _Merge:
    """The three versions of a file; any of them may be missing."""

    base: Entry | None
    ours: Entry | None
    theirs: Entry | None


def _merges(patch: Patch, files: Files) -> dict[str, _Merge]:
    return {
        edit.path: _Merge(_entry(edit, edit.old), files.get(edit.path), _entry(edit, edit.new)) for edit in patch.edits
    }


def _entry(edit: Edit, blob: str | None) -> Entry | None:
    return None if blob is None else Entry(edit.mode, blob)


def _blob(entry: Entry | None) -> str | None:
    return entry.blob if entry else None


def _real(merge: _Merge) -> Sides | None:
    """What git has to merge; None where nothing, or no merge, is left to do."""
    base, ours, theirs = merge.base, merge.ours, merge.theirs
    if base is None or ours is None or theirs is None or ours.blob in (base.blob, theirs.blob):
        return None
    return Sides(base, ours, theirs)


STOP = object()


def _result(row: Mapping[str, _Merge], merged: Mapping[Sides, Entry | None]) -> dict[str, Entry | object | None]:
    """Path → the file afterwards, STOP where it does not go in."""
    found: dict[str, Entry | object | None] = {}
    for path, one in row.items():
        sides = _real(one)
        if sides:
            found[path] = merged[sides] or STOP
        elif _blob(one.ours) == _blob(one.base):
            found[path] = Entry(one.ours.mode, one.theirs.blob) if one.ours and one.theirs else one.theirs
        else:
            found[path] = one.ours if _blob(one.ours) == _blob(one.theirs) else STOP
    return found


def _changed(patch: Patch, files: Files, result: Mapping[str, Entry | object | None]) -> list[tuple[Entry, Entry]]:
    """Before and after of every file that upstream has changed since: of the others the patch itself is the diff."""
    pairs = [(edit, files.get(edit.path), result[edit.path]) for edit in patch.edits]
    return [
        (old, new) for edit, old, new in pairs if old and isinstance(new, Entry) and old != new and old.blob != edit.old
    ]


def _judged(
    patch: Patch,
    ground: Ground,
    files: Files,
    result: Mapping[str, Entry | object | None],
    sections: Mapping[tuple[Entry, Entry], list[str]],
) -> Carried:
    stopped = [path for path, entry in result.items() if entry is STOP]
    if stopped:
        return _stopped(patch, ground, files, stopped)
    after = {path: entry for path, entry in result.items() if entry is None or isinstance(entry, Entry)}
    left = {path: entry for path, entry in after.items() if entry != files.get(path)}
    if not left:
        return Carried(patch.slug, State.ABSORBED, "", why="upstream has all of it")
    why = [*_renames(ground, left), *_elsewhere(patch, files, left, sections), *_empty_folder(ground, files, left)]
    state = State.MOVED if why else State.CLEAN
    why += _in_part(patch, files, left, sections)
    return Carried(
        patch.slug, state, "", {ground.place(path): entry for path, entry in left.items()}, (), "; ".join(why)
    )


def _stopped(patch: Patch, ground: Ground, files: Files, stopped: Sequence[str]) -> Carried:
    gone = [edit.path for edit in patch.edits if edit.path in stopped and edit.old and files.get(edit.path) is None]
    state = State.GONE if len(gone) == len(stopped) else State.CONFLICT
    why = f"upstream has no {', '.join(gone)} any more" if gone else ""
    return Carried(patch.slug, state, "", {}, tuple(ground.place(path) for path in stopped), why)


def _renames(ground: Ground, left: Files) -> list[str]:
    return [f"upstream calls {path} {ground.places[path]} now" for path in left if path in ground.places]


def _empty_folder(ground: Ground, files: Files, left: Files) -> list[str]:
    """New files whose neighbours upstream has moved: they would lie alone in a folder that nothing reads."""
    folders = {path.rpartition("/")[0]: place.rpartition("/")[0] for path, place in ground.places.items()}
    new = [path for path in left if files.get(path) is None and folders.get(path.rpartition("/")[0])]
    return [f"{path} is new, and upstream has moved files of its folder" for path in new]


def _elsewhere(patch: Patch, files: Files, left: Files, sections: Mapping[tuple[Entry, Entry], list[str]]) -> list[str]:
    """Hunks that stand in another function than the patch says."""
    found = []
    for edit in patch.edits:
        other = moved_into((hunk.section for hunk in edit.hunks), _sections_of(edit, files, left, sections))
        if other is not None:
            found.append(f"in {edit.path} it stands in {other or 'no function'!r} now")
    return found


def _in_part(patch: Patch, files: Files, left: Files, sections: Mapping[tuple[Entry, Entry], list[str]]) -> list[str]:
    """What upstream has taken of the patch already."""
    before = sum(len(edit.hunks) for edit in patch.edits if edit.old)
    after = sum(len(_sections_of(edit, files, left, sections)) for edit in patch.edits if edit.old)
    lost = [edit.path for edit in patch.edits if edit.path not in left]
    if lost:
        return [f"upstream has its change of {', '.join(lost)}"]
    return (
        [f"{before} hunks are {after} now: upstream has a part of it, or they grew together"] if after < before else []
    )


def _sections_of(edit: Edit, files: Files, left: Files, sections: Mapping[tuple[Entry, Entry], list[str]]) -> list[str]:
    """The function that each hunk stands in there; as the patch says where the file is the one that it was made on."""
    old, new = files.get(edit.path), left.get(edit.path)
    if not old or not new:
        return []
    return [hunk.section for hunk in edit.hunks] if old.blob == edit.old else sections[old, new]


def _named(row: Mapping[str, _Merge]) -> str:
    lines = (
        f"{path}\0{_blob(one.base)}\0{_blob(one.ours)}\0{_blob(one.theirs)}\n" for path, one in sorted(row.items())
    )
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _decided(said: Carried, merge: str, ground: Ground, files: Files, decision: Decision | None) -> Carried:
    """With what a person decided, where that was decided for the very files that are there now."""
    back = {place: path for path, place in ground.places.items()}
    if decision is None or any(files.get(back.get(path, path)) != entry for path, entry in decision.before.items()):
        return replace(said, merge=merge)
    if said.state in CARRIED and dict(decision.files) == dict(said.files):
        return replace(said, merge=merge)  # the merge gives it by itself
    return replace(said, merge=merge, files=decision.files, decided=True)
