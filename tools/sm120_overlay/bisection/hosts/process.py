"""A run in a process of its own: what it breaks is that run and nothing else, and it can be ended at any moment.

The process lives as long as the pipe to it, so it ends with whoever started it, even killed; what it started is ended
by its keepers, and nothing begins on this host before that is done.
"""

from __future__ import annotations

import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..job import Job, Outcome, Ran
from ..measure import to_end
from ..place import turn
from ..placeholders import host_name

WORKER = Path(__file__).with_name("worker.py")
LOOK = 0.2  # seconds between looks at whether a run is still wanted
LAST = 5.0  # seconds that a process has to end once it has said all


def apart(job: Job, wanted: Callable[[], bool]) -> Ran:
    """Measures in a process of its own, which ends as soon as `wanted` says no; all that it started is gone then."""
    process = subprocess.Popen(
        [sys.executable, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    said = b""
    with process:
        try:
            said = _told(job, process, wanted)
            if wanted():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(LAST)
        finally:
            process.kill()
            code = process.wait()
            with suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]
    if said:
        ran: Ran = pickle.loads(said)
        return ran
    with suppress(BlockingIOError), turn(job, to_end(job)):
        pass
    if not wanted():
        return lost(job, "it was ended: nobody waits for it any more", host_name())
    how = signal.Signals(-code).name if code < 0 else str(code)
    return lost(job, f"its process ended with {how}", host_name())


def lost(job: Job, why: str, host: str = "") -> Ran:
    """A run that told nothing, and why; the host that it was on, as far as that is known."""
    return Ran(job.number, Outcome.LOST, why=why, host=host)


def _told(job: Job, process: subprocess.Popen[bytes], wanted: Callable[[], bool]) -> bytes:
    """What the process says of the job; its standard input stays open until it has said it."""
    assert process.stdin
    assert process.stdout
    try:
        pickle.dump(job, process.stdin)
        process.stdin.flush()
        while wanted():
            if select.select([process.stdout], [], [], LOOK)[0]:
                return process.stdout.read()
    except BrokenPipeError:
        pass
    return b""
