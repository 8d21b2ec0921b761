"""A folder that a driver and the nodes of a queue both see: by it they know of each other where no connection is.

The driver beats there; a node that hears nothing for a while ends its run. A node that begins a run says so there: a
queue that starts a job again (a node that failed, a preemption) does not repeat the run.
"""

from __future__ import annotations

import math
import os
import shutil
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..job import Job, Ran
from ..placeholders import host_name
from .process import apart, lost
from .version import version

BEAT = 5.0  # seconds between beats
SILENCE = 180.0  # seconds without a beat after which a driver is gone: shared file systems are late by a minute
LOOK = 1.0  # seconds between looks for a beat
PREFIX = "driver-"
OVER = "-over"


@dataclass
class Mark:
    """A driver's folder; whose drivers are gone have been removed."""

    folder: Path
    ended: threading.Event = field(default_factory=threading.Event)

    def end(self) -> None:
        """Says to all nodes that nobody waits for them."""
        self.ended.set()
        shutil.rmtree(self.folder, ignore_errors=True)

    def over(self, job: Job) -> None:
        """Says that nobody waits for this run any more, should it still run somewhere."""
        with suppress(OSError):
            (self.folder / f"{job.number}{OVER}").touch()

    def host_of(self, job: Job) -> tuple[str, str]:
        """The host on which a run began, and what its queue calls it ("": it did not begin, or nobody knows)."""
        try:
            host, _, node = (self.folder / str(job.number)).read_text().partition("\n")
        except OSError:
            return "", ""
        return host, node


def begin_mark(parent: Path) -> Mark:
    """A new driver's, which beats until it ends; the caller holds the session, so all others there are of the dead."""
    for old in parent.glob(f"{PREFIX}*"):
        shutil.rmtree(old, ignore_errors=True)
    mark = Mark(parent / f"{PREFIX}{uuid.uuid4().hex}")
    mark.folder.mkdir(parents=True)
    _beat(mark, 0)
    threading.Thread(target=_beats, args=(mark,), name="bisect-beat", daemon=True).start()
    return mark


def _beats(mark: Mark) -> None:
    number = 0
    while not mark.ended.wait(BEAT):
        number += 1
        try:
            _beat(mark, number)
        except OSError:  # a disk that is full for a while: nodes wait longer than that
            continue


def _beat(mark: Mark, number: int) -> None:
    (mark.folder / "beat").write_text(f"{number}\n")


@dataclass
class Heard:
    """What a node hears of a driver: called, it says whether that one is there, and waits for this run."""

    folder: Path
    number: int
    silence_s: float
    said: bytes = b""
    at: float = field(default_factory=time.monotonic)
    looked: float = -math.inf

    def __call__(self) -> bool:
        """Whether it does, as far as its last word is no older than `silence_s`."""
        now = time.monotonic()
        if now - self.looked >= LOOK:
            self.looked = now
            self._listen(now)
        return now - self.at < self.silence_s

    def _listen(self, now: float) -> None:
        try:
            said = (self.folder / "beat").read_bytes()
            gone = (self.folder / f"{self.number}{OVER}").exists()
        except FileNotFoundError:
            said, gone = self.said, True
        except OSError:  # a file system that stumbles
            return
        if gone:
            self.at = -math.inf
        elif said != self.said:
            self.said, self.at = said, now


def measure_once(job: Job, folder: Path, expected: str, silence_s: float) -> Ran | tuple[str, str]:
    """Measures on a node of a queue, unless the run was begun before, or nobody waits for it.

    Args:
        job: what to measure.
        folder: the driver's.
        expected: its version of this project.
        silence_s: how long it may be silent.

    Returns:
        What came of it; in place of that this host and its version, if that is another.
    """
    if version() != expected:
        return host_name(), version()
    try:
        begun = os.open(folder / str(job.number), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return lost(job, "its queue began it a second time", host_name())
    except FileNotFoundError:
        return lost(job, "nobody waits for it any more", host_name())
    with os.fdopen(begun, "w") as file:
        file.write(f"{host_name()}\n{os.environ.get('SLURMD_NODENAME', '')}")
    return apart(job, Heard(folder, job.number, silence_s))
