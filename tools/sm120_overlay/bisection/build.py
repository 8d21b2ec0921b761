"""The environments of a session on a host: built once for each build key, in a folder that stays.

A build that fails is tried once more, by the next job that needs it; then its failure is remembered until the file
`<key>.failed` beside the folder is deleted. A build that was cut, even by kill -9, is started anew in an empty folder.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..cache import publish_file
from .command import Ended, Order, last_lines, run
from .job import Outcome
from .place import locked

TRIES = 2


@dataclass(frozen=True)
class Built:
    """What became of a build; `seconds` is 0 where it was there. `outcome` is None where it can be used."""

    outcome: Outcome | None = None
    why: str = ""
    ended: Ended = field(default_factory=Ended)
    seconds: float = 0.0
    log: str = ""


def env_folder(work: Path, key: str) -> Path:
    """Where the environment of a build key is."""
    return work / "envs" / key


def build(folder: Path, order: Callable[[int, Path], Order]) -> Built:
    """Build an environment unless it is there; one at a time, the others wait for it.

    Args:
        folder: the environment's.
        order: what builds it, told the lock that it keeps and its log.

    Raises:
        OSError: this host cannot write it.
    """
    done, failed, log = (folder.with_name(folder.name + end) for end in (".built", ".failed", ".log"))
    with locked(folder.with_name("locks") / folder.name, fcntl.LOCK_EX) as lock:
        if done.exists():
            return Built(log=str(log))
        before = json.loads(failed.read_text()) if failed.exists() else []
        if len(before) >= TRIES:
            why = f"the build failed {len(before)} times before (delete {failed} to try again): {before[-1]}"
            return Built(Outcome.UNBUILT, why, log=str(log))
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        log.unlink(missing_ok=True)
        ended = run(order(lock, log))
        outcome, why = _judged(ended, log)
        if outcome is None:
            publish_file(done, b"")
        elif outcome is Outcome.UNBUILT:
            publish_file(failed, json.dumps([*before, why]).encode())
        return Built(outcome, why, ended, ended.seconds, str(log))


def _judged(ended: Ended, log: Path) -> tuple[Outcome | None, str]:
    if ended.why in ("keeper", "stopped"):
        return Outcome.LOST, f"the build was stopped from outside ({ended.why})"
    if not ended.why and (ended.signal or (ended.exit or 0) >= 130):
        how = f"died of signal {ended.signal}" if ended.signal else f"ended with exit code {ended.exit}"
        return Outcome.ABORTED, f"the build {how}: {last_lines(log)}"
    if ended.why or ended.exit:
        ways = {"limit": "ran past its limit of time", "output": "wrote too much output"}
        how = ways.get(ended.why, f"ended with exit code {ended.exit}")
        return Outcome.UNBUILT, f"the build {how}: {last_lines(log)}"
    return None, ""
