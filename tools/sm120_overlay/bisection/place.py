"""A session on a host: its turn there, one run at a time, and its trees.

Trees are unpacked once each, the least recently used removed, never one that is in use.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import shutil
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..cache import publish
from .job import Job
from .placeholders import host_name

KEPT = 8
LOOK_S = 0.1


@contextmanager
def locked(file: Path, how: int) -> Iterator[int]:
    """A lock on a file that is made for it, as a descriptor: `fcntl.LOCK_EX` or `LOCK_SH`, `| LOCK_NB` not to wait.

    Raises:
        BlockingIOError: another holds it, and it was not to wait.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, how)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def turn(job: Job, limit_s: float) -> Iterator[int]:
    """This host's turn in a session, as a descriptor: who keeps it lets no other run of the session begin here.

    The keepers of a run's commands keep it too, so that it comes back when all that the run started is gone, whoever
    killed the run itself.

    Args:
        job: any of the session.
        limit_s: how long to wait for it.

    Raises:
        BlockingIOError: another run still has it.
    """
    name = re.sub(r"[^\w.-]", "_", host_name())
    until = time.monotonic() + limit_s
    while True:
        try:
            with locked(Path(job.work, "locks", f"host-{name}"), fcntl.LOCK_EX | fcntl.LOCK_NB) as descriptor:
                yield descriptor
                return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise
        time.sleep(LOOK_S)


@contextmanager
def placed(job: Job, kept: int = KEPT) -> Iterator[tuple[Path, int]]:
    """The job's tree as a folder that stays while this lasts, and the lock that keeps it.

    Raises:
        OSError: it cannot be read or written.
        tarfile.TarError: it is no tar, or a member of it would leave the folder.
    """
    trees = Path(job.work, "trees")
    lock = _lock(trees, job.tree)
    with locked(lock, fcntl.LOCK_SH) as descriptor:
        os.utime(lock)
        folder = publish(trees / job.tree, lambda partial: _unpack(job, partial))
        _tidy(trees, kept)
        yield folder, descriptor


def _unpack(job: Job, folder: Path) -> None:
    source = io.BytesIO(job.archive) if job.archive is not None else None
    with tarfile.open(None if source else job.tree_file, fileobj=source) as archive:
        archive.extractall(folder, filter="data")
    folder.chmod(0o755)


def _tidy(trees: Path, kept: int) -> None:
    """Remove all but the last used, and what a run that was killed left half unpacked."""
    folders = [folder for folder in trees.iterdir() if folder.is_dir()]
    whole = [folder for folder in folders if not folder.name.startswith(".")]
    whole.sort(key=lambda folder: _used(_lock(trees, folder.name)), reverse=True)
    for folder in [*(folder for folder in folders if folder not in whole), *whole[kept:]]:
        tree = folder.name.lstrip(".").partition("-")[0]
        try:
            with locked(_lock(trees, tree), fcntl.LOCK_EX | fcntl.LOCK_NB):
                _remove(folder, folder.with_name(f".{tree}-old"))
        except BlockingIOError:
            continue


def _remove(folder: Path, aside: Path) -> None:
    """Remove a folder; under another name first, so that a tree that is there is whole."""
    if folder.name.startswith("."):
        aside = folder
    elif folder.exists():  # else another run removed it before we had the lock
        folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _lock(trees: Path, tree: str) -> Path:
    return trees.with_name("locks") / f"tree-{tree[:40]}"


def _used(lock: Path) -> float:
    return lock.stat().st_mtime if lock.exists() else 0.0
