"""Runs on this machine, one at a time."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from ..job import Job, Ran
from ..placeholders import host_name
from .process import apart, lost


@dataclass
class Local:
    """This machine as a host."""

    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "bisect-local"))
    closed: bool = False

    @property
    def width(self) -> int:
        """One, until it is closed."""
        return 0 if self.closed else 1

    def submit(self, job: Job) -> Future[Ran]:
        """Runs a job when the one before has ended."""
        return self.pool.submit(self._run, job)

    def close(self) -> None:
        """Ends the run that is under way and all that it started; may be called again."""
        self.closed = True
        self.pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, job: Job) -> Ran:
        if self.closed:
            return lost(job, "this machine was let go", host_name())
        return apart(job, lambda: not self.closed)
