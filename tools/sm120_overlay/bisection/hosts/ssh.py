"""Hosts that we reach over SSH: a Dask scheduler on the first, a worker on each, for as long as the bisection lasts.

How a host is reached (user, port, key, known hosts, jump hosts) is in `~/.ssh/config`, as for `ssh HOST`.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ...errors import Missing, UsageError
from .clusters import NODE, PATIENCE, Dask, open_dask, quiet, within
from .version import another, version

HERE = __name__.rpartition(".")[0]
ASK = f"import distributed; from {HERE}.version import version; print(version())"
TIED = f"{HERE}.tied"
ALIVE = {"keepalive_interval": 30, "keepalive_count_max": 10}  # no router forgets a connection that says nothing
START = 60.0  # seconds for a Python to start and to import Dask, perhaps from a slow file system


@dataclass(frozen=True)
class Wanted:
    """The hosts of `--on ssh:`, and the Python that runs on them, as a shell there takes it."""

    text: str
    hosts: tuple[str, ...]
    python: str


def open_ssh(text: str) -> Dask:
    """Starts a cluster, as `HOST1,HOST2[,python=PATH]`; closing it ends all of it.

    Raises:
        UsageError: no host is named, one is named twice, or a word means nothing.
        Missing: a library or a host is not there, or a host has another version of this project.
    """
    wanted = parsed(text)
    try:
        distributed: Any = import_module("distributed")
        import_module("asyncssh")
    except ModuleNotFoundError as error:
        # why: SSH is spoken without the ssh command, by a library that few need
        raise Missing(
            f"--on ssh:{text}: {error.name} is not installed.", "pip install 'sm120-overlay[hosts]'"
        ) from None
    quiet("distributed", "asyncssh")
    asyncio.run(_check(wanted))
    worker = {"nthreads": 1, "resources": {NODE: 1}, "memory_limit": 0, "dashboard": False}
    try:
        cluster = distributed.SSHCluster(
            [wanted.hosts[0], *wanted.hosts],
            worker_options={**worker, "preload_nanny": [TIED]},
            scheduler_options={"port": 0, "dashboard": False, "allowed_failures": 0, "preload": [TIED]},
            remote_python=wanted.python,
            connect_options=ALIVE,
        )
    except Exception as error:
        # why: without its scheduler and its workers there is nothing to measure on
        raise Missing(
            f"--on ssh:{text}: the cluster did not start: {error}.",
            "See that they reach each other's TCP ports, and what `python -m distributed.cli.dask_spec` says there.",
        ) from None
    try:
        _drain(cluster)
        return open_dask(cluster.scheduler_address, lambda: within(PATIENCE, cluster.close), len(wanted.hosts))
    except BaseException:
        within(PATIENCE, cluster.close)
        raise


def parsed(text: str) -> Wanted:
    """What `--on ssh:` names.

    Raises:
        UsageError: no host, a host twice, or a word that means nothing.
    """
    words = text.split(",")
    hosts = tuple(word for word in words if "=" not in word)
    more = dict(word.split("=", 1) for word in words if "=" in word)
    python = more.pop("python", sys.executable)
    if not all(hosts) or not hosts or more or not python or len(set(hosts)) < len(hosts):
        # why: a host that is named twice would measure two runs at once, and a word that is guessed another machine
        raise UsageError(
            f"--on ssh:{text}: expected HOST[,HOST...][,python=PATH], each host once.",
            "Such as ssh:gpu1,gpu2; ports, users and keys go into ~/.ssh/config.",
        )
    home = "~/" if python.startswith("~/") else ""  # which the shell there knows
    return Wanted(text, hosts, home + shlex.quote(python.removeprefix("~/")))


async def _check(wanted: Wanted) -> None:
    """Every host can be reached, and runs this version.

    Raises:
        Missing: one cannot, or does not.
    """
    said = await asyncio.gather(*(_asked(host, wanted.python) for host in wanted.hosts))
    for host, (found, why) in zip(wanted.hosts, said, strict=True):
        if why:
            # why: a bisection on fewer hosts than were named takes longer, and nobody is told
            raise Missing(f"--on ssh:{wanted.text}: {host}: {why}.", f"See what `ssh {host}` says.")
        if found != version():
            raise another(f"ssh:{wanted.text}", host, found)


async def _asked(host: str, python: str) -> tuple[str, str]:
    """What a host says of its version, and why it cannot be reached ("": it can)."""
    import asyncssh

    try:
        async with asyncssh.connect(host, connect_timeout=PATIENCE) as connection:
            command = f"{python} -c {shlex.quote(ASK)}"
            answer = await connection.run(command, timeout=START, stdin=asyncssh.DEVNULL)
    except (OSError, asyncssh.Error, asyncio.TimeoutError) as error:
        return "", f"{type(error).__name__}: {error}".rstrip(": .")
    last = (str(answer.stderr or "").strip().splitlines() or ["it says nothing"])[-1]
    return (str(answer.stdout).strip(), "") if answer.exit_status == 0 else (f"({last})", "")


def _drain(cluster: Any) -> None:
    """Reads what scheduler and workers print: one that nobody listens to stands still when the pipe is full."""

    async def drained(stream: Any) -> None:
        while await stream.read(65536):
            pass

    for process in (cluster.scheduler, *cluster.workers.values()):
        cluster.loop.add_callback(drained, process.proc.stderr)
        cluster.loop.add_callback(drained, process.proc.stdout)
