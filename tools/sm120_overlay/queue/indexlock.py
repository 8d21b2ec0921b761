"""Changes a checkout's index by git's own protocol: index.lock is held, a copy is made ready, a rename sets it.

git itself fills the copy. A lock that a cut run left is known for ours by what is in it, so it never blocks the next
run, and a lock of the user's own git is never touched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..cache import naming
from ..errors import Refused
from .git import Entry, Repository, index_entries, run
from .transaction import leave

MARK = b"sm120-overlay holds this lock\n"
OWN = ("index", "index.lock", "index-to-set", "lock-mark")  # in our folder, while a run is under way


@contextmanager
def index_locked(index: Path, folder: Path) -> Iterator[None]:
    """Holds `index.lock` as git would, made by a link so that it appears with our mark inside.

    Raises:
        Refused: git holds it.
    """
    lock, mark = _lock(index), folder / "lock-mark"
    try:
        folder.mkdir(exist_ok=True)
        with naming(mark):
            mark.write_bytes(MARK)
        _link(mark, lock)
        yield
    except BaseException:
        with suppress(OSError):  # what went wrong first is what must be said; the next run removes our lock
            unlock_index(index, folder)
        raise
    unlock_index(index, folder)


def _link(mark: Path, lock: Path) -> None:
    try:
        os.link(mark, lock)
    except FileExistsError:
        # why: two writers of one index lose the entries of one of them
        raise Refused(
            f"{lock} exists: git is at work in this checkout, or crashed.", "Wait for it, or remove a stale lock."
        ) from None


def unlock_index(index: Path, folder: Path) -> None:
    """Removes an index.lock that is ours: it holds our mark, or is the very index that we were about to set."""
    lock, ready = _lock(index), folder / "index"
    data = lock.read_bytes() if lock.is_file() else None
    if data == MARK or (data is not None and ready.is_file() and data == ready.read_bytes()):
        lock.unlink(missing_ok=True)
    for name in OWN:
        with suppress(OSError):  # it blocks no one, and the next run removes it
            (folder / name).unlink(missing_ok=True)
    leave(folder)


def write_index(
    repo: Repository, index: Path, attributes: Path, folder: Path, wanted: Mapping[str, Entry | None]
) -> None:
    """Sets the index to hold the files as they lie, which must be `wanted`. The caller holds the lock.

    Args:
        attributes: the repository's own info/attributes; folder: our workplace.

    Raises:
        Refused: a checkout filter or core.fileMode would make git store something else.
    """
    names = b"".join(os.fsencode(path) + b"\0" for path in wanted)
    ready = _updated(repo, index, folder, names, "--add", "--remove", "--stdin")
    if _may_filter(repo, attributes, wanted):
        _check(repo, index_entries(repo, wanted, ready), wanted)
    passing = folder / "index-to-set"
    os.link(ready, passing)  # `ready` stays, so that a lock left by a cut run is known for ours
    os.replace(passing, _lock(index))
    os.replace(_lock(index), index)


def restore_entries(repo: Repository, index: Path, folder: Path, entries: Mapping[str, Sequence[str] | None]) -> None:
    """Puts index entries back when a run is undone: path → mode and blob (None: not in the index). Takes the lock."""
    if _holds(repo, entries):  # also where a full disk has no room for a copy of the index
        unlock_index(index, folder)
        return
    rows = [
        os.fsencode(f"{mode} {blob} 0\t{path}") + b"\0"
        for path, (mode, blob) in ((path, entry or ("0", "0" * 40)) for path, entry in entries.items())
    ]
    unlock_index(index, folder)  # our own, and with it our copy, which may be the very index by now
    with index_locked(index, folder):
        os.replace(_updated(repo, index, folder, b"".join(rows), "--index-info"), index)


def _holds(repo: Repository, entries: Mapping[str, Sequence[str] | None]) -> bool:
    """Whether the index says this already."""
    found = index_entries(repo, entries) if entries else {}
    return all(found.get(path) == (Entry(*entry) if entry else None) for path, entry in entries.items())


def _updated(repo: Repository, index: Path, folder: Path, rows: bytes, *how: str) -> Path:
    """A copy of the index beside it, brought up to date by git itself."""
    ready = folder / "index"
    with naming(ready):
        ready.write_bytes(index.read_bytes())
    run(repo, "update-index", "-z", *how, stdin=rows, env={"GIT_INDEX_FILE": str(ready)})
    return ready


def _may_filter(repo: Repository, attributes: Path, paths: Mapping[str, Entry | None]) -> bool:
    """Whether attributes could change bytes on their way into the index: our settings rule out all other ways."""
    folders = {parent for path in paths for parent in (repo.path / path).parents}
    files = [folder / ".gitattributes" for folder in folders if folder == repo.path or repo.path in folder.parents]
    return any(file.is_file() for file in (*files, attributes))


def _check(repo: Repository, found: Mapping[str, Entry], wanted: Mapping[str, Entry | None]) -> None:
    for path, entry in wanted.items():
        if found.get(path) != entry:
            # why: a filter would make git commit other bytes than the series names (electron/trop#254)
            raise Refused(
                f"{repo.path / path}: git would store {found.get(path)}, expected {entry}: a checkout filter "
                f"(.gitattributes) is at work.",
                "Turn off line-end conversion and filters for this checkout; everything was put back.",
            )


def _lock(index: Path) -> Path:
    return index.with_name("index.lock")
