"""A session on disk: one file to which every event is appended as one line, and from which all else follows.

A line is on the disk before its event counts, so kill -9 loses at most the run in flight. One driver at a time holds
the lock; anyone may read.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import Missing, Refused
from ..stops import held_back
from .events import SCHEMA, Event, Opened, event_from, event_json

NAME = "journal.jsonl"
LOCK = "lock"


@dataclass(frozen=True)
class Journal:
    """An open journal, held by this process."""

    path: Path
    descriptor: int


@dataclass(frozen=True)
class Written:
    """What a journal says. `torn` is the length of a last line that was never written to its end (0: there is none)."""

    events: tuple[Event, ...]
    torn: int = 0


def read(folder: Path) -> Written:
    """What the session in a folder has come to, whoever is at work on it.

    Raises:
        Missing: there is no session.
        Refused: a line is none of ours.
    """
    path = folder / NAME
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        # why: a session that is made up on the spot has no runs, and would look like one that lost them
        raise Missing(f"{path} is not there.", "Name the session's folder, or begin one with run.") from None
    whole, torn = _whole(data)
    return Written(tuple(_events(path, data[:whole])), torn)


@contextmanager
def held(folder: Path) -> Iterator[tuple[Journal, Written]]:
    """The journal of a folder, made where there is none, and what it says; a torn last line is cut off.

    Raises:
        Refused: another process is at work on the session, or a line is none of ours.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _take(lock, folder)
        descriptor = os.open(folder / NAME, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            _sync_folder(folder)
            written = read(folder)
            if written.torn:
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - written.torn)
                os.fsync(descriptor)
            yield Journal(folder / NAME, descriptor), written
        finally:
            os.close(descriptor)
    finally:
        os.close(lock)


def append(journal: Journal, event: Event) -> None:
    """Writes an event; it is on the disk when this returns, and no part of it is left when this raises.

    Raises:
        Missing: there is no room for it, or the file system fails.
    """
    line = json.dumps(event_json(event), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    with held_back():
        size = os.fstat(journal.descriptor).st_size
        if reason := _lacks(journal, line):
            _cut(journal, size)
            # why: an event that is not kept would be missing from every later answer
            raise Missing(
                f"{journal.path}: the event could not be written ({reason}); what was there before is whole.",
                "Free space there (df -h shows it), then run again: it goes on from there.",
            )


def _lacks(journal: Journal, line: bytes) -> str:
    """Writes a line; why it is not on the disk ("": it is)."""
    try:
        taken = os.write(journal.descriptor, line)
        if taken < len(line):  # a disk that fills up takes a part first, and says why when it is given the rest
            taken += os.write(journal.descriptor, line[taken:])
        os.fsync(journal.descriptor)
    except OSError as error:
        return error.strerror or str(error)
    return "" if taken == len(line) else "the disk takes no more"


def _cut(journal: Journal, size: int) -> None:
    with suppress(OSError):  # if this fails too, the torn line is cut off by the next to hold the journal
        os.ftruncate(journal.descriptor, size)
        os.fsync(journal.descriptor)


def _take(lock: int, folder: Path) -> None:
    """Takes the lock and leaves our process id in it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.read(lock, 20).decode(errors="replace").strip() or "unknown"
        # why: two drivers would give the same numbers to different runs
        raise Refused(
            f"{folder}: another bisect is at work on this session, process {pid}.",
            "Wait for it to end, or stop it (^C there, or SIGTERM).",
        ) from None
    with suppress(OSError):  # a full disk: the lock holds without its name
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _whole(data: bytes) -> tuple[int, int]:
    """How much of the file is whole lines, and how much is a last one that is not.

    A line that power was lost over may have its length, and zeros in place of its text.
    """
    end = data.rfind(b"\n") + 1
    last = data.rfind(b"\n", 0, max(end - 1, 0)) + 1
    if b"\0" in data[last:end]:
        end = last
    return end, len(data) - end


def _events(path: Path, data: bytes) -> Iterator[Event]:
    for number, line in enumerate(data.splitlines(), 1):
        try:
            found = json.loads(line)
            schema = found.get("schema", SCHEMA) if isinstance(found, dict) else SCHEMA
        except (ValueError, RecursionError):
            found, schema = None, SCHEMA
        if schema != SCHEMA:
            # why: the same words may mean something else there
            raise Refused(
                f"{path}:{number}: a session of schema {schema}, expected {SCHEMA}.",
                "Go on with the version of these tools that began it, or begin another session.",
            )
        try:
            event = event_from(found)
            if isinstance(event, Opened) != (number == 1):
                raise ValueError("a session is opened once, by the first line")
            yield event
        except ValueError as error:
            # why: a line that is passed over is a run that is lost in silence
            raise Refused(
                f"{path}:{number}: {error}.",
                "Put the line back as it was; void and skip are how runs and revisions are taken out.",
            ) from None
