"""The trees of a session on a host: unpacked once each, the least recently used removed, never one that is in use."""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..cache import publish
from .job import Job

KEPT = 8


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
