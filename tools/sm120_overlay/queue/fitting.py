"""Places the files of a foreign change: each exactly, by a 3-way merge from its true base, or not at all.

A file's base is bytes whose blob the diff names, onto which its hunks go at the very lines they say, to the blob it
promises. What stands on the branch then decides: the same bytes (exact), others (a merge), the change itself
(absorbed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from ..errors import Refused
from .blobs import blob_id, blob_of
from .foreign import Foreign
from .merge import merge
from .patch import Hunk
from .pins import Pin
from .place import place_hunks


class How(str, Enum):
    """How one file of a foreign change gets onto the branch, or why it does not."""

    EXACT = "exact"
    CLEAN = "clean"
    MOVED = "moved"
    ABSORBED = "absorbed"
    CONFLICT = "conflict"
    GONE = "gone"
    UNKNOWN = "unknown"
    DAMAGED = "damaged"
    REFUSED = "refused"


PLACED = (How.EXACT, How.CLEAN, How.MOVED, How.ABSORBED)
HANDED_OFF = (How.CONFLICT, How.GONE)


@dataclass(frozen=True)
class File:
    """A file as it is somewhere: its mode and bytes (None: not there)."""

    mode: str = "100644"
    data: bytes | None = None


@dataclass(frozen=True)
class Placed:
    """One file of a foreign change on the branch.

    `base` and `theirs` are what the diff was made on and what it makes of that, `after` what the branch then has (where
    it is not placed: what it has now); `why` says what a person must know. `sections` are the functions that the diff
    says its hunks stand in, in order; `pair` is the other path of a rename.
    """

    path: str
    how: How
    why: str = ""
    base: File = File()
    theirs: File = File()
    after: File = File()
    sections: tuple[str, ...] = ()
    pair: str = ""


@dataclass(frozen=True)
class Ground:
    """What files may have been made on: the branch as it is now, the base that was found, and all that is at hand.

    `now`, `at_base` and `at_pin` give a file by its path (`at_base` where the base fits), `before` what it was before
    this very change (git takes the sources of renames and copies from there), `named` every blob with a prefix;
    `overlays` are the paths that patches bring as whole files.
    """

    pin: Pin
    now: Callable[[str], File]
    before: Callable[[str], File]
    at_base: Callable[[str], bytes | None]
    at_pin: Callable[[str], bytes | None]
    named: Callable[[str], Iterator[bytes]]
    overlays: frozenset[str] = frozenset()


def place_foreign(found: Foreign, ground: Ground) -> tuple[Placed, ...]:
    """The file of a foreign change, whose names are repository paths, on the branch: two entries for a rename."""
    if found.problem:
        return (Placed(found.name, How.REFUSED, found.problem),)
    return tuple(_beside_overlays(one, ground) for one in _placed(found, found.source, found.path, ground))


def _placed(found: Foreign, source: str | None, path: str | None, ground: Ground) -> tuple[Placed, ...]:
    if source is None:
        return (_created(found, str(path), ground),)
    if path is None or path == source:
        return (_changed(found, source, ground),)
    return _renamed(found, source, path, ground)


def _beside_overlays(placed: Placed, ground: Ground) -> Placed:
    if placed.path not in ground.overlays or placed.how is How.ABSORBED:
        return placed
    return Placed(placed.path, How.REFUSED, "is an overlay file of the series: edit the file itself, never by a diff")


def _created(found: Foreign, path: str, ground: Ground) -> Placed:
    wrong = _misfit(found, path, b"")
    if wrong:
        return Placed(path, How.DAMAGED, wrong)
    return _new(path, File(found.mode or "100644", place_hunks(path, found.hunks, b"")), ground.now(path))


def _new(path: str, theirs: File, now: File) -> Placed:
    """A file that comes with the change."""
    if now.data is None:
        why = "is new and executable: lint wants a new file plain" if theirs.mode == "100755" else ""
        return Placed(path, How.EXACT, why, File(), theirs, theirs)
    if now == theirs:
        return Placed(path, How.ABSORBED, "is there already, the very same", File(), theirs, now)
    return Placed(path, How.CONFLICT, "would be new, and another file is there", File(), theirs, now)


def _changed(found: Foreign, source: str, ground: Ground) -> Placed:
    """A file that is changed, or deleted (`found.path` None)."""
    now = ground.now(source)
    base, why = _base(found, source, now, ground)
    if base is None:
        return _baseless(found, source, source, now, why)
    before = File(now.mode, base)
    theirs = File(now.mode, None if found.path is None else place_hunks(source, found.hunks, base))
    if now.data is None:
        how = How.ABSORBED if theirs.data is None else How.GONE
        return Placed(source, how, f"{ground.pin.tag} has no such file (any more)", before, theirs, now)
    sections = tuple(hunk.section for hunk in found.hunks)
    return replace(_joined(source, before, theirs, now), sections=sections)


def _renamed(found: Foreign, source: str, path: str, ground: Ground) -> tuple[Placed, ...]:
    """The new place of a file that is renamed or copied, and its old one where it is renamed."""
    now, at = ground.before(source), ground.now(path)
    base, why = _base(found, source, now, ground)
    if base is None:
        new = _baseless(found, source, path, now, why)
        return (new,) if found.kept else _paired(new, Placed(source, new.how, f"renamed to {path}"))
    before, theirs = File(now.mode, base), File(now.mode, place_hunks(source, found.hunks, base))
    if found.kept:
        return (_new(path, theirs, at),)  # git merges no copy with what became of its source
    if at.data is not None:
        new = _new(path, theirs, at)
    elif now.data is None:
        new = Placed(path, How.GONE, f"{ground.pin.tag} has no {source} (any more)", File(), theirs, at)
    else:
        new = _moved(path, before, theirs, now)
    how = new.how if new.how not in PLACED else How.ABSORBED if now.data is None else How.EXACT
    if how is How.EXACT and new.how is How.ABSORBED and now.data != base:
        how = How.CONFLICT
    return _paired(new, Placed(source, how, f"renamed to {path}", before, File(), File()))


def _paired(new: Placed, old: Placed) -> tuple[Placed, Placed]:
    return replace(new, pair=old.path), replace(old, pair=new.path)


def _moved(path: str, before: File, theirs: File, now: File) -> Placed:
    """The new place of a renamed file; nothing was there."""
    joined = _joined(path, before, theirs, now)
    if joined.how is How.ABSORBED:
        joined = replace(joined, how=How.CLEAN, why="has the change already, at its old place", after=now)
    return replace(joined, base=File())


def _baseless(found: Foreign, source: str, path: str, now: File, why: str) -> Placed:
    """A file whose base is not at hand, or does not take the hunks."""
    if found.old:
        there = blob_of(now.data) or "no such file"
        unknown = f"was made on blob {found.old}, which nothing at hand has; the branch has {there}"
        return Placed(path, How.DAMAGED if why else How.UNKNOWN, why or unknown)
    why = why or f"there is no {source}"
    return Placed(path, How.UNKNOWN, f"names no blob that it was made on, and {why}")


def _joined(path: str, base: File, theirs: File, now: File) -> Placed:
    assert base.data is not None and now.data is not None
    if now.data == base.data:
        return Placed(path, How.EXACT, "", base, theirs, theirs)
    if now.data == theirs.data:
        return Placed(path, How.ABSORBED, "is so already", base, theirs, now)
    if theirs.data is None:
        return Placed(path, How.CONFLICT, "would be deleted, and was changed since", base, theirs, now)
    merged = merge(base.data, now.data, theirs.data)
    if merged is None:
        why = "is no text on one side" if b"\0" in base.data + now.data + theirs.data else "both changed the same lines"
        return Placed(path, How.CONFLICT, why, base, theirs, now)
    if merged == now.data:
        return Placed(path, How.ABSORBED, "has the change already, with others", base, theirs, now)
    return Placed(path, How.CLEAN, "merged", base, theirs, File(now.mode, merged))


def _base(found: Foreign, source: str, now: File, ground: Ground) -> tuple[bytes | None, str]:
    """The bytes that the file was made on, or what is wrong with those at hand that could be it."""
    why = ""
    for data in _befores(found, source, now, ground):
        wrong = _misfit(found, source, data) or ("" if found.old else _unsure(found, data))
        if not wrong:
            return data, ""
        why = why or wrong
    return None, why


def _befores(found: Foreign, source: str, now: File, ground: Ground) -> Iterator[bytes]:
    """Bytes at hand that are the blob the diff names; where it names none, what is on the branch and at the pin."""
    likely = (now.data, ground.at_base(source) if found.old else ground.at_pin(source))
    yield from (data for data in likely if data is not None and blob_id(data).startswith(found.old))
    if found.old:
        yield from ground.named(found.old)


def _misfit(found: Foreign, source: str, data: bytes) -> str:
    """Why these bytes cannot be what a file was made on."""
    try:
        made = place_hunks(source, found.hunks, data)
    except Refused as error:
        return error.what.removeprefix(f"{source}: ").rstrip(".")
    if found.path is None and made:
        return f"it is deleted, and {len(made)} bytes are left of it"
    if found.path is not None and not blob_id(made).startswith(found.new):
        return f"the diff promises blob {found.new} and gives {blob_id(made)}: a hunk is missing, or was edited by hand"
    return ""


def _unsure(found: Foreign, data: bytes) -> str:
    """Why nothing but line numbers says where a hunk goes: then no blob tells a wrong place from the right one."""
    text = b"\n" + data
    for hunk in found.hunks:
        old = b"\n" + b"".join(hunk.old)
        if not hunk.old and data:
            return f"the hunk at line {hunk.start} has no line to know its place by"
        if text.find(old, text.find(old) + 1) >= 0:
            return f"the lines of the hunk at line {hunk.start} stand at more than one place"
        if not data.endswith(b"".join(hunk.old)) and _ends_the_file(hunk):
            return f"the hunk at line {hunk.start} is at the end of its file, and those lines are not at the end here"
    return ""


def _ends_the_file(hunk: Hunk) -> bool:
    """Whether no line of the file can follow: none does in the diff, or the last one has no line end."""
    return hunk.old[-1:] != hunk.new[-1:] or any(not line.endswith(b"\n") for line in hunk.new)


def wanted_blobs(foreign: Iterable[Foreign]) -> dict[str, str | None]:
    """Repository path → blob that the files of a change were made on, as `find_base` takes it."""
    found: dict[str, str | None] = {}
    for one in foreign:
        if not one.problem and (one.old or not one.source):
            found.setdefault(one.source or one.name, one.old if one.source else None)
    return found


def groups(placed: Sequence[Placed], pin: Pin, depth: int) -> dict[str, tuple[Placed, ...]]:
    """Files by the folder they lie in, at most `depth` folders below the package."""
    found: dict[str, list[Placed]] = {}
    for one in placed:
        # The old place of a renamed file goes with the new one.
        path = one.pair if one.pair and one.after.data is None else one.path
        found.setdefault(_folder(pin, path, depth), []).append(one)
    return {name: tuple(files) for name, files in sorted(found.items())}


def _folder(pin: Pin, path: str, depth: int) -> str:
    prefix = max((here for here, _ in pin.paths if path.startswith(here)), key=len, default="")
    folders = path.removeprefix(prefix).split("/")[:-1]
    return "-".join(folders[:depth]) or prefix.strip("/").rpartition("/")[2]


def changed_files(placed: Iterable[Placed]) -> Mapping[str, tuple[str, bytes | None]]:
    """What a commit of these files changes: path → mode and bytes."""
    return {one.path: (one.after.mode, one.after.data) for one in placed if one.how is not How.ABSORBED}
