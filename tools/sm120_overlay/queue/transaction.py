"""Writes many files so that a run cut anywhere can be undone by the next one.

N renames are not one, but every single file is always whole, before or after; the journal is written first and
removed last, so that whoever finds it knows that a run was cut and can put back what was there. One lock per target,
held by the process and by every git it starts: a dead run never blocks, a living one always does.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ..cache import naming
from ..errors import Missing, OverlayError, Refused
from .blobs import blob_of

Undo = Callable[[dict[str, Any]], None]
FOLDER = "sm120-overlay"
SCHEMA = 1
TEMPORARY = ".sm120-overlay-partial"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Write:
    """One file to change: `path` below the root, its bytes before and after (None: no file), a new file's mode.

    `spare` holds the bytes after as well: a full disk has no room for them once more.
    """

    path: str
    before: bytes | None
    after: bytes | None
    mode: int = 0o644
    spare: Path | None = None


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
        Refused: another run holds it, or has just renamed the directory to its place.
    """
    # why: the lock is on a folder: on one that is gone it holds nobody off
    moved = Refused(f"{folder.parent}: another run of these tools has just moved or removed it.", "Run again.")
    try:
        descriptor = os.open(folder.parent, os.O_RDONLY)
    except FileNotFoundError:
        raise moved from None
    try:
        _take(descriptor, folder.parent)
        if not (folder.parent.is_dir() and os.path.samestat(os.fstat(descriptor), folder.parent.stat())):
            raise moved
        yield descriptor
    finally:
        os.close(descriptor)


def _take(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # why: two runs would undo each other's files
        raise Refused(
            f"{folder}: another run of these tools is at work on this target.", "Wait for it to end."
        ) from None
    except OSError as error:
        # why: without a lock two runs could write at once (NFS without lockd)
        raise Refused(
            f"{folder}: the file system does not let it be locked ({error.strerror}).", "Use a local file system."
        ) from None


def begin(place: Workplace, writes: Sequence[Write], note: dict[str, Any]) -> None:
    """Keeps what is there now, then writes the journal: from here on a cut run can be undone."""
    kept = place.folder / "before"
    shutil.rmtree(kept, ignore_errors=True)
    _folder(kept)
    files = []
    for number, write in enumerate(writes):
        if write.before is not None:
            with naming(kept / str(number)):
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
        _put(place.root, write)


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
    try:
        begin(place, writes, note)
        carry_out(place, writes)
        then()
        finish(place)
    except BaseException as error:
        _take_back(place, undo, error)
        raise


def _take_back(place: Workplace, undo: Undo, cause: BaseException) -> None:
    """Undoes at once what failed half way; where that fails too (a disk stays full), the journal stays for the next."""
    if not place.journal.is_file():  # nothing was changed yet, or all is done
        _clean(place)
        return
    try:
        recover(place, undo)
    except (OSError, OverlayError, MemoryError) as error:
        # why: the disk that was full is full for the undoing too; the journal stays for the next run
        raise Missing(
            f"{place.root}: half done ({_said(cause)}), and it cannot be undone now ({_said(error)}).",
            f"Mend that, then run apply or export again: it undoes this first. {place.folder / 'before'} keeps what "
            f"the files held; leave it there.",
        ) from cause


def _said(error: BaseException) -> str:
    """An error inside a sentence."""
    if isinstance(error, OverlayError):
        return error.what.rstrip(".")
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
    return {KeyboardInterrupt: "told to stop", MemoryError: "out of memory"}.get(type(error)) or type(error).__name__


def finish(place: Workplace) -> None:
    """Removes the journal and what it needed: the run is done (or undone)."""
    place.journal.unlink(missing_ok=True)
    with suppress(OSError):
        _temporary(place.journal).unlink(missing_ok=True)
    shutil.rmtree(place.folder / "before", ignore_errors=True)
    leave(place.folder)


def _clean(place: Workplace) -> None:
    """Removes what a run left that was cut before it had a journal, or when it had none any more."""
    if (place.folder / "before").is_dir() or _temporary(place.journal).exists() or _empty(place.folder):
        with suppress(OSError):  # it blocks no one, and a later run removes it
            finish(place)


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
        _clean(place)
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
    # why: a newer version's journal may mean something else
    raise Refused(
        f"{path}: the journal of a run that was cut cannot be read by this version.",
        f"What its files held before lies in {path.parent / 'before'}: compare, then remove {path.parent}.",
    )


def _undone(place: Workplace, number: int, entry: dict[str, Any]) -> Write | None:
    path = place.root / entry["path"]
    if _temporary(path).exists():  # a read-only file system says no before it says that nothing is there
        _temporary(path).unlink()
    now = read_file(path)
    if blob_of(now) == entry["before"]:
        return None
    if blob_of(now) != entry["after"]:
        # why: someone edited the file after the cut: undoing would lose the edit
        raise Refused(
            f"{path}: a run was cut while it changed this file from blob {entry['before']} to {entry['after']}, "
            f"and it is now {blob_of(now)}.",
            f"Put the file back as it was ({place.folder / 'before' / str(number)}), then run again; where all was "
            f"installed or checked out anew since, remove {place.folder} instead.",
        )
    kept = place.folder / "before" / str(number)
    before = None if entry["before"] is None else read_file(kept)
    if blob_of(before) != entry["before"]:
        # why: what is put back must be what was there, byte for byte
        raise Refused(
            f"{kept}: expected what {path} held before a run was cut, blob {entry['before']}, found {blob_of(before)}.",
            f"Restore {path} from its source (git checkout, or a reinstallation), then remove {place.folder}.",
        )
    return Write(entry["path"], now, before, entry["mode"], kept)


def check_folders(root: Path, paths: Iterable[str]) -> None:
    """No folder between `root` and a file is a symbolic link: what is below one lies elsewhere.

    Raises:
        Refused: one is.
    """
    folders = {folder for path in paths for folder in PurePosixPath(path).parents}
    linked = next((folder for folder in sorted(folders) if str(folder) != "." and (root / folder).is_symlink()), None)
    if linked:
        # why: what is written below a link lies in somebody else's tree
        raise Refused(f"{root / linked}: expected a folder, found a symbolic link.", "Replace the link by its folder.")


def read_file(path: Path) -> bytes | None:
    """The bytes of a regular file, None where there is nothing at all.

    Raises:
        Refused: something else is there, or a folder above it is a link out of the tree.
    """
    try:
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode):
            return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(mode):
        # why: package managers link into caches that others share (patch-package#135)
        raise Refused(f"{path}: expected a regular file, found a symbolic link.", "Replace the link by its file.")
    found = "a folder" if stat.S_ISDIR(mode) else "a pipe, a socket or a device"
    # why: a folder holds files that no patch knows, and a pipe would be waited for without end
    raise Refused(f"{path}: expected a regular file, found {found}.", "Move it away.")


def replace_file(
    path: Path,
    data: bytes,
    mode: int = 0o644,
    like: os.stat_result | None = None,
    durable: bool = False,
    spare: Path | None = None,
) -> None:
    """`path` with these bytes, whole at once, in a new inode: package managers link files into their caches.

    Args:
        mode: of a new file, as far as its folder is open to others.
        like: whose mode and owner it keeps.
        durable: it must outlive a loss of power.
        spare: a file that holds these bytes already, to link where the disk is too full to write them again.
    """
    mode &= _folder(path.parent)
    temporary = _temporary(path)
    try:
        try:
            _fill(temporary, data, mode, durable)
        except OSError as error:
            if error.errno not in FULL or spare is None:
                raise
            temporary.unlink(missing_ok=True)
            os.link(spare, temporary)
            os.chmod(temporary, mode)
        _resemble(temporary, like)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def _fill(path: Path, data: bytes, mode: int, durable: bool) -> None:
    with naming(path), path.open("wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def _resemble(temporary: Path, like: os.stat_result | None) -> None:
    """Mode and owner of the file that is replaced, and a time that Python sees."""
    if like is not None:
        os.chmod(temporary, like.st_mode & 0o7777)
        if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(temporary, like.st_uid, like.st_gid)
        # Python trusts a .pyc whose source has the same second and size: move at least one second on.
        os.utime(temporary, times=(time.time(), max(time.time(), int(like.st_mtime) + 1)))


def _folder(path: Path) -> int:
    """Makes the folder if it is not there, as open as the one above it whatever the umask; its permissions."""
    try:
        if not path.is_dir():
            above = _folder(path.parent)
            path.mkdir(exist_ok=True)
            path.chmod(above)
    except (FileExistsError, NotADirectoryError):
        # why: a file of the user's stands where the series needs a folder
        raise Refused(f"{path}: expected a folder, found something else.", "Move it away.") from None
    return path.stat().st_mode & 0o777


def _put(root: Path, write: Write) -> None:
    path = root / write.path
    if write.after is not None:
        like = path.lstat() if path.exists() else None
        replace_file(path, write.after, write.mode, like, spare=write.spare)
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
