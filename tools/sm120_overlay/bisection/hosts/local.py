"""Runs on this machine, one at a time, each in a process of its own: what it breaks is that run and nothing else."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..job import Job, Outcome, Ran

WORKER = Path(__file__).with_name("worker.py")


@dataclass
class Local:
    """This machine as a host. A worker lives as long as the pipe to it: it ends with us, even killed."""

    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "bisect-local"))
    running: set[subprocess.Popen[bytes]] = field(default_factory=set)
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
        for process in list(self.running):
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        self.pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, job: Job) -> Ran:
        if self.closed:
            return _lost(job, "this machine was let go")
        command = [sys.executable, str(WORKER)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self.running.add(process)
        if self.closed:  # meanwhile: then nobody else has ended it
            process.terminate()
        try:
            return _told(job, process)
        finally:
            self.running.discard(process)


def _told(job: Job, process: subprocess.Popen[bytes]) -> Ran:
    """What a worker says of a job; its standard input stays open until it has said it."""
    assert process.stdin
    assert process.stdout
    with process:
        try:
            pickle.dump(job, process.stdin)
            process.stdin.flush()
            said = process.stdout.read()
        except BrokenPipeError:
            said = b""
        finally:
            with suppress(OSError):
                process.stdin.close()
        code = process.wait()
    if not said:
        return _lost(job, f"its process ended with {-code and signal.Signals(-code).name if code < 0 else code}")
    ran: Ran = pickle.loads(said)
    return ran


def _lost(job: Job, why: str) -> Ran:
    return Ran(job.number, Outcome.LOST, why=why)
