"""Writes many files so that a run cut anywhere can be undone by the next one.

N renames are not one, but every single file is always whole, before or after; the journal is written first and
removed last, so that whoever finds it knows that a run was cut and can put back what was there. One lock per target,
held by the process and by every git it starts: a dead run never blocks, a living one always does.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import Refused
from .blobs import blob_of

Undo = Callable[[dict[str, Any]], None]
FOLDER = "sm120-overlay"
SCHEMA = 1
TEMPORARY = ".sm120-overlay-partial"


@dataclass(frozen=True)
class Write:
    """One file to change: `path` below the root, its bytes before and after (None: no file), a new file's mode."""

    path: str
    before: bytes | None
    after: bytes | None
    mode: int = 0o644


@dataclass(frozen=True)
class Workplace:
    """Where a target keeps lock and journal (`folder`), and the folder its files lie in (`root`)."""

    folder: Path
    root: Path

    @property
    def journal(self) -> Path:
        """Exists exactly while a run is under way or was cut."""
        return self.folder / "journal.json"


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Holds the lock of the target whose workplace is `folder`; gives the descriptor for children to inherit.

    It is a lock on the directory above (a git directory, a .dist-info), so it leaves no file behind.

    Raises:
        Refused: another run holds it.
    """
    descriptor = os.open(folder.parent, os.O_RDONLY)
    try:
        _take(descriptor, folder.parent)
        yield descriptor
    finally:
        os.close(descriptor)


def _take(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Refused(
            f"{folder}: another run of these tools is at work on this target.", "Wait for it to end."
        ) from None
    except OSError as error:
        raise Refused(
            f"{folder}: the file system does not let it be locked ({error.strerror}).", "Use a local file system."
        ) from None


def begin(place: Workplace, writes: Sequence[Write], note: dict[str, Any]) -> None:
    """Keeps what is there now, then writes the journal: from here on a cut run can be undone."""
    kept = place.folder / "before"
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    files = []
    for number, write in enumerate(writes):
        if write.before is not None:
            (kept / str(number)).write_bytes(write.before)
        files.append(_entry(place, write))
    replace_file(place.journal, json.dumps({"schema": SCHEMA, "files": files, "note": note}).encode(), durable=True)


def _entry(place: Workplace, write: Write) -> dict[str, Any]:
    """A file in the journal: what it was and becomes, its mode now, and the folders that are made for it."""
    path = place.root / write.path
    mode = path.lstat().st_mode & 0o7777 if write.before is not None else write.mode
    made = [str(folder) for folder in PurePosixPath(write.path).parents if not (place.root / folder).is_dir()]
    return {
        "path": write.path,
        "before": blob_of(write.before),
        "after": blob_of(write.after),
        "mode": mode,
        "made": made,
    }


def carry_out(place: Workplace, writes: Sequence[Write]) -> None:
    """Writes the files, each whole at once; what goes, goes first: a file may stand where a folder must be."""
    for write in sorted(writes, key=lambda write: write.after is not None):
        _put(place.root / write.path, write.after, write.mode, place.root)


def transact(
    place: Workplace,
    writes: Sequence[Write],
    note: dict[str, Any],
    undo: Undo,
    then: Callable[[], None] = lambda: None,
) -> None:
    """Writes the files and does `then`, or leaves everything as it was: what fails half way is undone at once.

    Args:
        note, undo: for `recover`, here or in a later run.
        then: what belongs to the change and is not a file.
    """
    begin(place, writes, note)
    try:
        carry_out(place, writes)
        then()
    except BaseException:
        recover(place, undo)
        raise
    finish(place)


def finish(place: Workplace) -> None:
    """Removes the journal and what it needed: the run is done (or undone)."""
    place.journal.unlink(missing_ok=True)
    shutil.rmtree(place.folder / "before", ignore_errors=True)
    leave(place.folder)


def leave(folder: Path) -> None:
    """Removes a target's workplace where nothing of ours is left in it."""
    with suppress(OSError):
        folder.rmdir()


def recover(place: Workplace, undo: Undo, done: Callable[[dict[str, Any]], bool] = lambda note: False) -> bool:
    """Undoes a run that was cut; whether there was one.

    Args:
        undo: puts back what is not a file, from the note that `begin` was given.
        done: asked first, and changes nothing: whether the run had come to its end but for the journal.

    Raises:
        Refused: a file is neither as before nor as after that run, so someone edited it since; nothing is changed.
    """
    if not place.journal.is_file():
        if place.folder.is_dir():
            finish(place)  # a run was cut while it cleaned up
        return False
    journal = _read_journal(place.journal)
    if not done(journal["note"]):
        back = [write for number, entry in enumerate(journal["files"]) if (write := _undone(place, number, entry))]
        carry_out(place, back)
        for folder in sorted({folder for entry in journal["files"] for folder in entry["made"]}, reverse=True):
            leave(place.root / folder)
        undo(journal["note"])
    finish(place)
    return True


def _read_journal(path: Path) -> dict[str, Any]:
    with suppress(ValueError, KeyError, TypeError):
        said = json.loads(path.read_bytes())
        if said["schema"] == SCHEMA:
            return dict(said)
    raise Refused(
        f"{path}: the journal of a run that was cut cannot be read by this version.",
        f"What its files held before lies in {path.parent / 'before'}: compare, then remove {path.parent}.",
    )


def _undone(place: Workplace, number: int, entry: dict[str, Any]) -> Write | None:
    path = place.root / entry["path"]
    with suppress(FileNotFoundError, NotADirectoryError):
        _temporary(path).unlink()
    now = read_file(path)
    if blob_of(now) == entry["before"]:
        return None
    if blob_of(now) != entry["after"]:
        raise Refused(
            f"{path}: a run was cut while it changed this file from blob {entry['before']} to {entry['after']}, "
            f"and it is now {blob_of(now)}.",
            f"Put the file back as it was ({place.folder / 'before' / str(number)}), then run again.",
        )
    kept = place.folder / "before" / str(number)
    before = None if entry["before"] is None else read_file(kept)
    if blob_of(before) != entry["before"]:
        raise Refused(
            f"{kept}: expected what {path} held before a run was cut, blob {entry['before']}, found {blob_of(before)}.",
            f"Restore {path} from its source (git checkout, or a reinstallation), then remove {place.folder}.",
        )
    return Write(entry["path"], now, before, entry["mode"])


def check_folders(root: Path, paths: Iterable[str]) -> None:
    """No folder between `root` and a file is a symbolic link: what is below one lies elsewhere.

    Raises:
        Refused: one is.
    """
    folders = {folder for path in paths for folder in PurePosixPath(path).parents}
    linked = next((folder for folder in sorted(folders) if str(folder) != "." and (root / folder).is_symlink()), None)
    if linked:
        raise Refused(f"{root / linked}: expected a folder, found a symbolic link.", "Replace the link by its folder.")


def read_file(path: Path) -> bytes | None:
    """The bytes of a regular file, None where there is nothing at all.

    Raises:
        Refused: something else is there, or a folder above it is a link out of the tree.
    """
    if path.is_symlink():
        raise Refused(f"{path}: expected a regular file, found a symbolic link.", "Replace the link by its file.")
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except IsADirectoryError:
        raise Refused(f"{path}: expected a regular file, found a folder.", "Move the folder away.") from None


def replace_file(
    path: Path, data: bytes, mode: int = 0o644, like: os.stat_result | None = None, durable: bool = False
) -> None:
    """`path` with these bytes, whole at once, in a new inode: package managers link files into their caches.

    Args:
        mode: of a new file, as far as its folder is open to others.
        like: whose mode and owner it keeps.
        durable: it must outlive a loss of power.
    """
    allowed = _folder(path.parent)
    temporary = _temporary(path)
    with temporary.open("wb") as file:
        os.fchmod(file.fileno(), mode & allowed)
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    if like is not None:
        os.chmod(temporary, like.st_mode & 0o7777)
        if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(temporary, like.st_uid, like.st_gid)
        # Python trusts a .pyc whose source has the same second and size: move at least one second on.
        os.utime(temporary, times=(time.time(), max(time.time(), int(like.st_mtime) + 1)))
    os.replace(temporary, path)


def _folder(path: Path) -> int:
    """Makes the folder if it is not there, as open as the one above it whatever the umask; its permissions."""
    try:
        if not path.is_dir():
            above = _folder(path.parent)
            path.mkdir(exist_ok=True)
            path.chmod(above)
    except (FileExistsError, NotADirectoryError):
        raise Refused(f"{path}: expected a folder, found something else.", "Move it away.") from None
    return path.stat().st_mode & 0o777


def _put(path: Path, data: bytes | None, mode: int, root: Path) -> None:
    if data is not None:
        like = path.lstat() if path.exists() else None
        replace_file(path, data, mode, like)
        return
    path.unlink(missing_ok=True)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink(missing_ok=True)
    for folder in path.parents:
        if folder == root or not _empty(folder):
            break
        shutil.rmtree(folder)


def _empty(folder: Path) -> bool:
    """Whether nothing is left in it, but for a __pycache__ without files."""
    left = list(folder.iterdir()) if folder.is_dir() else []
    return folder.is_dir() and all(entry.name == "__pycache__" and not any(entry.iterdir()) for entry in left)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name[:200]}{TEMPORARY}")
