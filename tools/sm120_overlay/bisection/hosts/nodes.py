"""What a Dask worker does for a bisection: it says who it is, measures, and ends a run that nobody waits for.

A worker cannot interrupt its thread, so a run is a process beside it. When a driver lets a run go, or is gone itself,
the scheduler takes the task from the worker, and the thread, which looks for that, ends the process.
"""

from __future__ import annotations

import uuid
from typing import Any

from ..job import Job, Ran
from ..placeholders import host_name
from .process import apart, lost
from .version import version

IDENTITY = uuid.uuid4().hex  # of this worker: another one at the same address has another
RUNNING: set[int] = set()  # numbers of the runs that this worker is at


def about() -> tuple[str, str, str]:
    """This worker's identity, its host, and its version of this project."""
    return IDENTITY, host_name(), version()


def running() -> int:
    """How many runs this worker has not ended."""
    return len(RUNNING)


def measure_there(job: Job, identity: str) -> Ran:
    """Measures on the worker that was meant, and on no other: a worker that takes its place does not repeat a run.

    Args:
        job: what to measure.
        identity: the worker's.
    """
    from distributed import get_worker

    worker: Any = get_worker()
    key = worker.get_current_task()
    if identity != IDENTITY:
        return lost(job, "its worker was started again", host_name())
    RUNNING.add(job.number)
    try:
        return apart(job, lambda: wanted(worker, key))
    finally:
        RUNNING.discard(job.number)


def wanted(worker: Any, key: str) -> bool:
    """Whether the scheduler still wants a task that this worker is at, and is there."""
    task = worker.state.tasks.get(key)
    return worker.status.name == "running" and task is not None and task.state == "executing"
