"""Runs as Slurm's jobs, through submitit. The session's folder must be on a file system that driver and nodes share."""

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
from .mark import SILENCE, Mark, begin_mark, measure_once
from .process import lost
from .version import another, version

LOOK = 0.5  # seconds between looks at the queue
TIME = 24 * 60  # minutes that a job may take, where --on does not say: the run's own limits are less
LOCAL = "local"  # submitit's own stand-in for a cluster: processes on this machine


@dataclass
class Slurm:
    """So many jobs at once in a queue; `nodes` is what the queue calls hosts that are known by now."""

    executor: Any
    width: int
    on: str
    mark: Mark
    jobs: dict[Any, Future[Ran]] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)

    def submit(self, job: Job) -> Future[Ran]:
        """Puts a job into the queue; on a node of its own where it must run there."""
        future: Future[Ran] = Future()
        if self.executor.cluster == "slurm":
            self.executor.update_parameters(slurm_nodelist=self.nodes.get(job.host) or None)
        sent = self.executor.submit(measure_once, job, self.mark.folder, version(), SILENCE)
        self.jobs[sent] = future
        threading.Thread(target=self._follow, args=(sent, future, job), daemon=True).start()
        return future

    def close(self) -> None:
        """Takes what waits and what runs out of the queue."""
        self.width = 0
        self.mark.end()
        for sent, future in list(self.jobs.items()):
            with suppress(Exception):
                sent.cancel()
            future.cancel()
        self.jobs.clear()

    def _follow(self, sent: Any, future: Future[Ran], job: Job) -> None:
        """Waits for a job; its future is never left without an answer."""
        try:
            while not sent.done():
                if future.cancelled():
                    return
                time.sleep(LOOK)
            told: Ran | tuple[str, str] = sent.result()
        except Exception as error:  # whatever Slurm, or a job that is gone, says
            self.mark.over(job)
            first = (str(error).strip().splitlines() or [""])[0]
            told = lost(job, f"{type(error).__name__}: {first}", self.mark.host_of(job)[0])
        finally:
            self.jobs.pop(sent, None)
        if isinstance(told, tuple):
            _answer(future, another(self.on, *told))
            return
        host, node = self.mark.host_of(job)
        self.nodes[host] = node
        _answer(future, told)


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
    asked: dict[str, Any] = {"timeout_min": TIME}  # submitit's own default is five minutes
    asked |= {key: int(value) if value.isdigit() else value for key, value in words.items()}
    try:
        import submitit
    except ModuleNotFoundError:
        # why: Slurm is spoken to through submitit, which few need
        raise Missing(f"--on slurm:{text}: submitit is not installed.", "pip install 'sm120-overlay[hosts]'") from None
    cluster = LOCAL if partition == LOCAL else "slurm"
    try:
        executor = submitit.AutoExecutor(folder=str(folder / "slurm"), cluster=cluster)
        if cluster != LOCAL:
            asked |= {"slurm_partition": partition, "slurm_additional_parameters": {"no_requeue": True}}
        executor.update_parameters(**asked)
    except (RuntimeError, NameError, TypeError, AssertionError) as error:
        # why: a queue that cannot take a job would never run one
        raise Missing(f"--on slurm:{text}: {error}.", "See that sbatch is there and what its options are.") from None
    return Slurm(executor, width, f"slurm:{text}", begin_mark(folder / "slurm"))
