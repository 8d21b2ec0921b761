"""Nodes of a Dask scheduler, one run a node at a time: `dask worker --resources node=1` on each of them.

The scheduler may be anyone's; `dask ssh` starts one with workers over SSH. A node that goes away costs its run: Dask
makes it again on another node, or gives it up, and the driver books it as lost.
"""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from ... import __version__
from ...errors import Missing
from ..job import Job, Ran
from ..measure import measure

NODE = "node"  # the resource of which a run takes one
PATIENCE = "10s"  # to find a scheduler, or to find it again


@dataclass
class Dask:
    """The nodes that a scheduler has now."""

    client: Any
    executor: Any

    @property
    def width(self) -> int:
        """How many nodes there are; none without the scheduler."""
        if self.client.status != "running":
            return 0
        return len(_nodes(self.client))

    def submit(self, job: Job) -> Future[Ran]:
        """Runs a job on a node that is free, or becomes so; the tree travels with it."""
        content = job.archive if job.archive is not None else Path(job.tree_file).read_bytes()
        future: Future[Ran] = self.executor.submit(measure, replace(job, archive=content, tree_file=""))
        return future

    def close(self) -> None:
        """Lets the scheduler go. A run that a worker has begun goes on there up to its limits: Dask ends no thread."""
        with suppress(Exception):
            self.client.close(timeout=5)


def open_dask(address: str) -> Dask:
    """The nodes of the scheduler at an address.

    Raises:
        Missing: the library, the scheduler or its nodes are not there, or they have another version of this project.
    """
    try:
        distributed: Any = import_module("distributed")
        config: Any = import_module("dask.config")
    except ModuleNotFoundError:
        # why: runs on many machines are Dask's work, which few need
        raise Missing(f"--on {address}: Dask is not installed.", "pip install 'sm120-overlay[hosts]'") from None
    config.set({"distributed.comm.timeouts.connect": PATIENCE})
    try:
        client = distributed.Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:
        # why: a bisection whose hosts are not there would wait for ever
        raise Missing(f"--on {address}: no scheduler answers ({error}).", "Start it: dask scheduler.") from None
    try:
        _check(client, address)
    except BaseException:
        client.close(timeout=5)
        raise
    return Dask(client, client.get_executor(pure=False, retries=0, resources={NODE: 1}))


def _nodes(client: Any) -> list[str]:
    """The workers that declare the resource."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return [name for name, said in workers.items() if said.get("resources", {}).get(NODE)]


def _check(client: Any, address: str) -> None:
    nodes = _nodes(client)
    if not nodes:
        # why: two runs on one node at once would measure each other
        raise Missing(
            f"--on {address}: no worker there declares the resource {NODE}.",
            f"On every node: dask worker {address} --nthreads 1 --resources {NODE}=1",
        )
    try:
        found = client.run(_version, workers=nodes)
    except Exception as error:
        found = dict.fromkeys(nodes, f"{type(error).__name__}: {error}")
    wrong = next((node for node in nodes if found.get(node) != __version__), None)
    if wrong is not None:
        # why: a worker with other code measures in another way
        raise Missing(
            f"--on {address}: {wrong} has sm120-overlay {found.get(wrong)}, expected {__version__}.",
            "Install this version for the Python of every worker.",
        )


def _version() -> str:
    return __version__
