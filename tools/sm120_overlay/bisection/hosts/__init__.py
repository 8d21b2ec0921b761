"""Where runs are made: this machine, a Dask scheduler's hosts, Slurm. To a driver all are one: so many runs at once."""

from __future__ import annotations

from pathlib import Path

from ...errors import UsageError
from ..drive import Hosts
from .local import Local

__all__ = ["Hosts", "open_hosts"]


def open_hosts(text: str, folder: Path) -> Hosts:
    """The hosts that `--on` names.

    Args:
        text: local, ssh:HOST,HOST, tcp://HOST:PORT (a Dask scheduler), or slurm:PARTITION.
        folder: the session's, for what a cluster keeps of its jobs.

    Raises:
        UsageError: it names none.
        Missing: a library or a scheduler is not there.
    """
    if text == "local":
        return Local()
    if text.startswith(("tcp://", "tls://")):
        from .clusters import open_dask

        return open_dask(text)
    if text.startswith("ssh:"):
        from .ssh import open_ssh

        return open_ssh(text.removeprefix("ssh:"))
    if text.startswith("slurm:"):
        from .slurm import open_slurm

        return open_slurm(text.removeprefix("slurm:"), folder)
    # why: runs on another machine than was meant measure something else
    raise UsageError(
        f"--on {text}: expected local, ssh:HOST,HOST, tcp://HOST:PORT or slurm:PARTITION.",
        "docs/bisecting.md says how hosts are set up.",
    )
