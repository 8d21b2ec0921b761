"""Nodes of a Dask scheduler, one run a host at a time: `dask worker --resources node=1` on each of them.

We say which worker makes a run: so each run is tried once, two workers on one host do not measure side by side, and a
worker that goes away costs its run at once, whatever the scheduler would do about it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from ...errors import Missing
from ..job import Job, Outcome, Ran
from ..measure import to_end
from .nodes import about, measure_there, running
from .process import lost
from .version import another, version

NODE = "node"  # the resource of a worker that a bisection may use
PATIENCE = 10.0  # seconds to find a scheduler, or for it to answer
LOOK = 0.3  # seconds between looks at workers and runs


@dataclass(frozen=True)
class Node:
    """A worker: its address, its host, its version of this project, and its identity (new with every start)."""

    address: str
    host: str
    version: str
    identity: str = ""


@dataclass(frozen=True)
class Run:
    """A run that a worker has."""

    job: Job
    node: Node
    future: Future[Ran]
    task: Any


@dataclass
class Dask:
    """The hosts of a scheduler: one worker on each of them is used.

    `known` are the workers, by address, as they said who they are; `there` those that are used now, by host.
    """

    client: Any
    shut: Callable[[], None] = lambda: None
    known: dict[str, Node] = field(default_factory=dict)
    there: Mapping[str, Node] = field(default_factory=dict)
    waiting: list[tuple[Job, Future[Ran]]] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def width(self) -> int:
        """How many hosts there are; none without the scheduler."""
        return len(self.there) if self.client.status == "running" else 0

    def submit(self, job: Job) -> Future[Ran]:
        """Runs a job on a host that is free, or becomes so; the tree travels with it."""
        future: Future[Ran] = Future()
        future.set_running_or_notify_cancel()  # from here on it is told, never cancelled
        with self.lock:
            self.waiting.append((job, future))
            self._assign()
        return future

    def close(self) -> None:
        """Ends all runs, waits until hosts say so, and lets the scheduler go; may be called again."""
        if self.ended.is_set():
            return
        self.ended.set()
        with self.lock:
            self.there = {}
            runs, self.runs = self.runs, []
            waiting, self.waiting = self.waiting, []
        longest = max((to_end(run.job) for run in runs), default=0.0)
        if runs:
            within(PATIENCE, lambda: self.client.cancel([run.task for run in runs]))
            within(longest, lambda: _until_idle(self.client, [run.node.address for run in runs]))
        for job, future in waiting:
            future.set_result(lost(job, "it was not begun"))
        for run in runs:
            run.future.set_result(lost(run.job, "it was ended", run.node.host))
        within(PATIENCE, lambda: self.client.close(timeout=5))
        self.shut()

    def look(self) -> None:
        """Once: which workers there are, and what became of the runs."""
        addresses = workers_of(self.client) if self.client.status == "running" else []
        self.known = {one: self.known.get(one) or asked(self.client, one) for one in addresses}
        nodes = list(self.known.values())
        with self.lock:
            if self.ended.is_set():
                return
            self.there = used(nodes, self.there)
            for run in list(self.runs):
                if run.node in nodes and not run.task.done():
                    continue
                self.runs.remove(run)
                ran = told(run, run.node in nodes)
                if ran.outcome is Outcome.LOST:  # perhaps another worker is at its address
                    self.known.pop(run.node.address, None)
                run.future.set_result(ran)
            self._assign()

    def watch(self) -> None:
        """Looks until it is closed."""
        while not self.ended.wait(LOOK):
            with suppress(Exception):  # a scheduler that does not answer: its client says so next time
                self.look()

    def _assign(self) -> None:
        """Gives what waits to hosts that are free."""
        for job, future in list(self.waiting):
            if self.width == 0:
                return
            busy = {run.node.host for run in self.runs}
            fit = fit_for(job, list(self.there))
            free = [host for host in fit if host not in busy]
            if fit and not free:
                continue
            self.waiting.remove((job, future))
            if not fit:
                future.set_result(lost(job, f"{job.host} is not there", job.host))
                continue
            node = self.there[free[0]]
            try:
                self.runs.append(Run(job, node, future, started(self.client, job, node)))
            except Exception as error:  # a scheduler that went away just now
                future.set_result(lost(job, f"{type(error).__name__}: {error}", node.host))


def open_dask(address: str, shut: Callable[[], None] = lambda: None, expected: int = 0) -> Dask:
    """The hosts of the scheduler at an address.

    Args:
        address: as tcp://HOST:PORT.
        shut: is called when these hosts are let go.
        expected: so many workers are on their way, and are waited for.

    Raises:
        Missing: the library, the scheduler or its workers are not there, or they have another version of this project.
    """
    try:
        distributed: Any = import_module("distributed")
        config: Any = import_module("dask.config")
    except ModuleNotFoundError:
        # why: runs on many machines are Dask's work, which few need
        raise Missing(f"--on {address}: Dask is not installed.", "pip install 'sm120-overlay[hosts]'") from None
    quiet("distributed")
    config.set({"distributed.comm.timeouts.connect": f"{PATIENCE:g}s"})
    try:
        client = distributed.Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:
        # why: a bisection whose hosts are not there would wait for ever
        raise Missing(f"--on {address}: no scheduler answers ({error}).", "Start it: dask scheduler.") from None
    hosts = Dask(client, shut)
    try:
        if expected:
            client.wait_for_workers(expected, timeout=6 * PATIENCE)
        hosts.look()
        _check(hosts, address)
    except BaseException:
        client.close(timeout=5)
        raise
    threading.Thread(target=hosts.watch, name="bisect-dask", daemon=True).start()
    return hosts


def quiet(*libraries: str) -> None:
    """These libraries print nothing: report.py is the one place that does, and what they know is in what we say."""
    for name in [*libraries, *logging.root.manager.loggerDict]:
        if name.partition(".")[0] in libraries:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def _check(hosts: Dask, address: str) -> None:
    for node in hosts.known.values():
        if node.version != version():
            raise another(address, f"{node.host} ({node.address})", node.version)
    if not hosts.there:
        # why: two runs on one host at once would measure each other
        raise Missing(
            f"--on {address}: no worker there declares the resource {NODE}.",
            f"On every host: dask worker {address} --nthreads 1 --resources {NODE}=1",
        )


def workers_of(client: Any) -> list[str]:
    """The addresses of the workers that declare the resource."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return sorted(address for address, said in workers.items() if said.get("resources", {}).get(NODE))


def asked(client: Any, address: str) -> Node:
    """A worker, as it says itself who it is."""
    try:
        identity, host, found = client.run(about, workers=[address])[address]
    except Exception as error:
        return Node(address, address, f"{type(error).__name__}: {error}")
    return Node(address, host, found, identity)


def used(nodes: list[Node], before: Mapping[str, Node]) -> dict[str, Node]:
    """One worker of this version for each host: the one that was used before, if it is there, else the first."""
    fit = [node for node in nodes if node.version == version()]
    first = {node.host: node for node in reversed(fit)}
    return {**first, **{host: node for host, node in before.items() if node in fit}}


def fit_for(job: Job, there: Sequence[str]) -> list[str]:
    """The hosts on which a job may run: the one it must, else those that it need not shun, else any."""
    if job.host:
        return [host for host in there if host == job.host]
    return [host for host in there if host not in job.shun] or list(there)


def started(client: Any, job: Job, node: Node) -> Any:
    """The task of a job, on that worker and no other."""
    content = job.archive if job.archive is not None else Path(job.tree_file).read_bytes()
    return client.submit(
        measure_there, replace(job, archive=content, tree_file=""), node.identity, workers=[node.address],
        allow_other_workers=False, pure=False, retries=0, resources={NODE: 1},
    )  # fmt: skip


def told(run: Run, there: bool) -> Ran:
    """What became of a run whose task is done, or whose worker is not there any more."""
    if not there and run.task.status != "finished":
        run.task.release()
        return lost(run.job, f"{run.node.host}, or the scheduler, went away ({run.node.address})", run.node.host)
    try:
        ran: Ran = run.task.result(timeout=PATIENCE)
    except BaseException as error:  # its scheduler or its worker went away: Dask has many names for that
        return lost(run.job, f"{run.node.host}: {type(error).__name__}: {error}", run.node.host)
    return ran


def within(seconds: float, does: Callable[[], object]) -> None:
    """Does it, for so long at most: a scheduler that is gone answers late or never."""

    def quietly() -> None:
        with suppress(Exception):
            does()

    thread = threading.Thread(target=quietly, daemon=True)
    thread.start()
    thread.join(seconds)


def _until_idle(client: Any, workers: list[str]) -> None:
    while any(client.run(running, workers=workers).values()):
        time.sleep(LOOK)
