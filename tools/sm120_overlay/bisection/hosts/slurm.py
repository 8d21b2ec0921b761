"""Runs as Slurm's jobs, through submitit: they and what they tell outlive the driver. The folder must be shared."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import Missing, UsageError
from ..job import Job, Ran
from ..measure import measure

LOOK = 0.5  # seconds between looks at the queue
TIME = 24 * 60  # minutes that a job may take, where --on does not say: the run's own limits are less
LOCAL = "local"  # submitit's own stand-in for a cluster: processes on this machine


@dataclass
class Slurm:
    """So many jobs at once in a queue."""

    executor: Any
    width: int
    jobs: dict[Any, Future[Ran]] = field(default_factory=dict)

    def submit(self, job: Job) -> Future[Ran]:
        """Puts a job into the queue."""
        future: Future[Ran] = Future()
        sent = self.executor.submit(measure, job)
        self.jobs[sent] = future
        threading.Thread(target=self._follow, args=(sent, future), daemon=True).start()
        return future

    def close(self) -> None:
        """Takes what waits and what runs out of the queue."""
        self.width = 0
        for sent, future in list(self.jobs.items()):
            with suppress(Exception):
                sent.cancel()
            future.cancel()
        self.jobs.clear()

    def _follow(self, sent: Any, future: Future[Ran]) -> None:
        """Waits for a job; its future is never left without an answer."""
        try:
            while not sent.done():
                if future.cancelled():
                    return
                time.sleep(LOOK)
            told = sent.result()
        except Exception as error:  # whatever Slurm, or a job that is gone, says
            _answer(future, error)
        else:
            _answer(future, told)
        finally:
            self.jobs.pop(sent, None)


def _answer(future: Future[Ran], told: Ran | Exception) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(told, Exception):
        future.set_exception(told)
    else:
        future.set_result(told)


def open_slurm(text: str, folder: Path) -> Slurm:
    """Slurm's queue, as `PARTITION[,nodes=N][,key=value...]`; `local` for processes on this machine.

    Args:
        text: the partition; `nodes` is how many runs there are at once (1), the other keys are submitit's.
        folder: where submitit keeps what it sends: every node must see it.

    Raises:
        UsageError: a key has no value, or submitit knows none of that name.
        Missing: submitit or Slurm is not there.
    """
    partition, *rest = text.split(",")
    words = dict(word.partition("=")[::2] for word in rest)
    if not partition or not all(words.values()) or not words.get("nodes", "1").isdigit():
        # why: a value that is guessed asks the queue for other machines
        raise UsageError(f"--on slurm:{text}: expected PARTITION[,nodes=N][,key=value].", "Such as slurm:gpu,nodes=4")
    width = int(words.pop("nodes", "1"))
    asked: dict[str, int | str] = {"timeout_min": TIME}  # submitit's own default is five minutes
    asked |= {key: int(value) if value.isdigit() else value for key, value in words.items()}
    try:
        import submitit
    except ModuleNotFoundError:
        # why: Slurm is spoken to through submitit, which few need
        raise Missing(f"--on slurm:{text}: submitit is not installed.", "pip install 'sm120-overlay[hosts]'") from None
    cluster = LOCAL if partition == LOCAL else "slurm"
    try:
        executor = submitit.AutoExecutor(folder=str(folder / "slurm"), cluster=cluster)
        executor.update_parameters(**asked, **({} if cluster == LOCAL else {"slurm_partition": partition}))
    except (RuntimeError, NameError, TypeError, AssertionError) as error:
        # why: a queue that cannot take a job would never run one
        raise Missing(f"--on slurm:{text}: {error}.", "See that sbatch is there and what its options are.") from None
    return Slurm(executor, width)
