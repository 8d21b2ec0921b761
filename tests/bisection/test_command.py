"""Commands: how they ended is told, and nothing of them is left, whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sm120_overlay.bisection.command import Order, last_lines, run, start, stop

GRANDCHILD = "setsid sh -c 'echo $$ > pid; exec sleep 600' & "


@pytest.fixture
def order(tmp_path: Path) -> Callable[..., Order]:
    def make(command: str, **more: object) -> Order:
        return Order(command, tmp_path, os.environ, tmp_path / "stdout", tmp_path / "stderr", **more)  # type: ignore[arg-type]

    return make


def within(seconds: float, true: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def lives(file: Path) -> bool:
    """Whether the process whose id a file holds has not ended."""
    try:
        state = Path("/proc", file.read_text().strip(), "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_what_a_command_writes_and_how_it_ends_is_told(order: Callable[..., Order], tmp_path: Path) -> None:
    ended = run(order("echo out; echo err >&2; pwd; cat; exit 3"))
    assert (ended.exit, ended.signal, ended.why, ended.left) == (3, 0, "", ())
    assert (tmp_path / "stdout").read_text() == f"out\n{tmp_path}\n"
    assert last_lines(tmp_path / "stderr") == "err"


def test_a_signal_is_told_from_the_exit_code_that_looks_like_it(order: Callable[..., Order]) -> None:
    died, said = run(order("kill -9 $$")), run(order("exit 137"))
    assert (died.exit, died.signal) == (None, 9)
    assert (said.exit, said.signal) == (137, 0)


def test_a_command_that_hangs_is_ended_at_its_limit_with_all_it_started(
    order: Callable[..., Order], tmp_path: Path
) -> None:
    ended = run(order(GRANDCHILD + "trap '' TERM; while :; do sleep 1; done", limit_s=1.0, grace_s=0.2))
    assert ended.why == "limit"
    assert (tmp_path / "pid").exists()
    assert not lives(tmp_path / "pid")


def test_what_a_command_leaves_running_is_ended_with_it(order: Callable[..., Order], tmp_path: Path) -> None:
    ended = run(order(GRANDCHILD + "while [ ! -s pid ]; do sleep 0.01; done"))
    assert ended.exit == 0
    assert not lives(tmp_path / "pid")


def test_a_command_that_fills_the_disk_with_output_is_stopped(order: Callable[..., Order]) -> None:
    assert run(order("yes", most_output=10_000)).why == "output"


def test_a_command_whose_folder_is_gone_says_so(order: Callable[..., Order], tmp_path: Path) -> None:
    gone = Order("true", tmp_path / "gone", os.environ, tmp_path / "stdout", tmp_path / "stderr")
    assert run(gone).exit == 126


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_when_the_worker_dies_or_is_interrupted_nothing_is_left(number: int, tmp_path: Path) -> None:
    script = (
        "import os, sys, pathlib; from sm120_overlay.bisection.command import *; here = pathlib.Path(sys.argv[1])\n"
        "run(Order(sys.argv[2], here, os.environ, here / 'stdout', here / 'stderr', grace_s=0.2))"
    )
    command = GRANDCHILD + "echo $$ > shell; wait"
    worker = subprocess.Popen([sys.executable, "-c", script, str(tmp_path), command], stderr=subprocess.DEVNULL)
    assert within(120, lambda: lives(tmp_path / "pid") and lives(tmp_path / "shell"))
    worker.send_signal(number)
    worker.wait()
    assert within(120, lambda: not lives(tmp_path / "pid") and not lives(tmp_path / "shell"))


def test_a_keeper_that_is_killed_is_told_and_all_it_kept_is_ended(order: Callable[..., Order], tmp_path: Path) -> None:
    keeper = start(order(GRANDCHILD + "echo $$ > shell; exec sleep 600"))
    assert within(120, lambda: lives(tmp_path / "pid") and lives(tmp_path / "shell"))
    keeper.kill()
    ended = stop(keeper)
    assert (ended.why, ended.left) == ("keeper", ())
    assert within(120, lambda: not lives(tmp_path / "pid") and not lives(tmp_path / "shell"))


def test_a_command_is_stopped_when_the_watch_says_no(order: Callable[..., Order]) -> None:
    assert run(order("sleep 600"), watch=lambda: False).why == "stopped"


def test_the_last_lines_of_a_long_log_are_told(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("x\n" * 20000 + "a\nb\n\n")
    assert last_lines(tmp_path / "none", tmp_path / "log", lines=2) == "a\nb"
    assert last_lines(tmp_path / "none") == "(it wrote nothing)"
