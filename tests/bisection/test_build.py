"""Builds: once for each key, whole or not at all, and not tried for ever."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sm120_overlay.bisection.build import build, env_folder
from sm120_overlay.bisection.command import Order
from sm120_overlay.bisection.job import Outcome

Ordered = Callable[[int, Path], Order]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return env_folder(tmp_path, "key")


@pytest.fixture
def order(folder: Path) -> Callable[..., Ordered]:
    return lambda command, limit_s=0.0: (
        lambda lock, log: Order(command, folder, os.environ, log, log, limit_s, 0.2, locks=(lock,))
    )


def test_an_environment_is_built_once_though_many_need_it(folder: Path, order: Callable[..., Ordered]) -> None:
    make = order("sleep 0.2; echo x >> made")
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda _: build(folder, make), range(4)))
    assert (folder / "made").read_text() == "x\n"
    assert [one.outcome for one in built] == [None] * 4
    assert sorted(one.seconds > 0 for one in built) == [False, False, False, True]


def test_a_build_that_fails_is_tried_once_more_and_then_remembered(folder: Path, order: Callable[..., Ordered]) -> None:
    tries = folder.parents[1] / "tries"
    fails = order(f"echo x >> {tries}; test ! -e junk; touch junk; echo no compiler; exit 1")
    first, second, third = (build(folder, fails) for _ in range(3))
    assert {one.outcome for one in (first, second, third)} == {Outcome.UNBUILT}
    assert first.why == "the build ended with exit code 1: no compiler"
    assert tries.read_text() == "x\nx\n"
    assert "failed 2 times before" in third.why
    assert Path(third.log).read_text() == "no compiler\n"


def test_a_build_that_works_the_second_time_is_used(folder: Path, order: Callable[..., Ordered]) -> None:
    assert build(folder, order("exit 1")).outcome is Outcome.UNBUILT
    assert build(folder, order("touch made")).outcome is None
    assert build(folder, order("exit 1")).outcome is None


def test_a_build_that_hangs_is_ended_at_its_limit(folder: Path, order: Callable[..., Ordered]) -> None:
    built = build(folder, order("sleep 60", 0.2))
    assert (built.outcome, built.why) == (
        Outcome.UNBUILT, "the build ran past its limit of time: (it wrote nothing)"
    )  # fmt: skip


@pytest.mark.parametrize("how", ["kill -9 $$", "exit 137"])
def test_a_build_that_is_aborted_stops_everything_and_is_not_held_against_it(
    folder: Path, order: Callable[..., Ordered], how: str
) -> None:
    assert build(folder, order(how)).outcome is Outcome.ABORTED
    assert not folder.with_name("key.failed").exists()


def test_a_build_cut_by_kill_9_is_started_anew_in_an_empty_folder(folder: Path, order: Callable[..., Ordered]) -> None:
    script = (
        "import os, sys, pathlib; from sm120_overlay.bisection.build import *; folder = pathlib.Path(sys.argv[1])\n"
        "build(folder, lambda lock, log: Order(\n"
        "    'trap \"sleep 0.5; touch late; exit\" TERM; touch half; while :; do sleep 0.05; done',\n"
        "    folder, os.environ, log, log, locks=(lock,)))"
    )
    worker = subprocess.Popen([sys.executable, "-c", script, str(folder)])
    until = time.monotonic() + 120
    while not (folder / "half").exists() and time.monotonic() < until:
        time.sleep(0.02)
    worker.kill()
    worker.wait()
    assert build(folder, order("touch made")).outcome is None
    assert sorted(file.name for file in folder.iterdir()) == ["made"]  # it waited until the other was gone
