"""A command of the user's, run to its end under a keeper: exit code, signal, and nothing left of it.

Its standard output and its standard error are files. A command that writes more than `MOST_OUTPUT` bytes to them is
stopped: a run that fills the disk costs all the others.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

GRACE_S = 5.0
SWEEP_S = 10.0
MOST_OUTPUT = 2**30
LAST_BYTES = 16384
MARK = "SM120_BISECT_RUN"  # a variable of all that a command starts, by which it is found if its keeper is killed


@dataclass(frozen=True)
class Order:
    """A shell command and its surroundings. `locks` are descriptors held until all of it is gone; no limit is 0."""

    command: str
    folder: Path
    env: Mapping[str, str]
    stdout: Path
    stderr: Path
    limit_s: float = 0.0
    grace_s: float = GRACE_S
    most_output: int = MOST_OUTPUT
    locks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Ended:
    """How a command ended: the shell's exit code, or the signal that it died of; neither where we ended it.

    `why` is "" when it ended by itself, "limit", "output", "stopped" (we asked for it), or "keeper" (the process above
    it died). `left` are processes that outlive KILL.
    """

    exit: int | None = None
    signal: int = 0
    why: str = ""
    seconds: float = 0.0
    left: tuple[int, ...] = ()


def run(order: Order, watch: Callable[[], bool] = lambda: True) -> Ended:
    """Run a command to its end; it is stopped when `watch`, asked twice a second, says no, and when we are stopped."""
    keeper = start(order)
    try:
        while not _told(keeper, 0.5):
            if not watch():
                break
        return stop(keeper)
    finally:
        stop(keeper)


def start(order: Order) -> subprocess.Popen[bytes]:
    """Start a command under its keeper, which ends it when its input is closed."""
    mark = uuid.uuid4().hex
    keeper = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py")), mark],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=order.locks, start_new_session=True,
    )  # fmt: skip
    told = {
        "command": order.command, "cwd": str(order.folder), "env": {**order.env, MARK: mark}, "parent": os.getpid(),
        "stdout": str(order.stdout), "stderr": str(order.stderr), "limit_s": order.limit_s, "grace_s": order.grace_s,
        "most": order.most_output, "locks": order.locks,
    }  # fmt: skip
    assert keeper.stdin
    try:
        keeper.stdin.write(json.dumps(told).encode() + b"\n")
        keeper.stdin.flush()
    except BrokenPipeError:  # it died at once: `stop` tells
        return keeper
    except BaseException:
        stop(keeper)
        raise
    return keeper


def stop(keeper: subprocess.Popen[bytes]) -> Ended:
    """End a command that has not ended, and tell how it did."""
    assert keeper.stdin and keeper.stdout
    if keeper.stdout.closed:
        return Ended(why="stopped")
    if not keeper.stdin.closed:
        with contextlib.suppress(BrokenPipeError):
            keeper.stdin.close()
    told = keeper.stdout.read()
    keeper.stdout.close()
    keeper.wait()
    if not told.strip():
        return Ended(why="keeper", left=_swept(str(list(keeper.args)[-1])))  # type: ignore[arg-type]
    found = json.loads(told)
    return Ended(found["exit"], found["signal"], found["why"], found["seconds"], tuple(found["left"]))


def runs(keeper: subprocess.Popen[bytes]) -> bool:
    """Whether a command that was started has not ended."""
    return not _told(keeper, 0)


def last_lines(*logs: Path, lines: int = 5) -> str:
    """The last lines of the first of these logs that says anything."""
    for log in logs:
        try:
            with log.open("rb") as file:
                file.seek(max(0, log.stat().st_size - LAST_BYTES))
                text = file.read().decode(errors="replace").strip()
        except FileNotFoundError:
            continue
        if text:
            return "\n".join(text.splitlines()[-lines:])
    return "(it wrote nothing)"


def _swept(mark: str) -> tuple[int, ...]:
    """End what a keeper that was killed left behind; what outlives that."""
    needle = f"{MARK}={mark}".encode()
    until = time.monotonic() + SWEEP_S
    while (left := _marked(needle)) and time.monotonic() < until:
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)
    return left


def _marked(needle: bytes) -> tuple[int, ...]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # another user's, or it has just ended; one that ended has none to read
            if needle in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return tuple(found)


def _told(keeper: subprocess.Popen[bytes], seconds: float) -> bool:
    assert keeper.stdout
    return keeper.stdout.closed or bool(select.select([keeper.stdout], [], [], seconds)[0])
