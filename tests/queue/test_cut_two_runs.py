"""Two runs at once on one target: one waits or is refused in a sentence, and what comes out is exact."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from .cuts import watch_changes
from .ground import Ground, bringing
from .scenes import Answer, ask, snapshot
from .toy import Toy, git, write

CASE = "two runs at once"


class Held:
    """A run in a child that stops at a change until it is let go."""

    def __init__(self, step: int, below: Path, work: Callable[[], Answer], early: bool = False) -> None:
        here, there = os.pipe()
        go, self._go = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._go)
            _stop_at(step, below, work, early, there, go)
        os.close(there)
        os.close(go)
        assert os.read(here, 1) == b"x", "the run ended before that change"
        os.close(here)

    def let_go(self) -> int:
        """Its exit code."""
        os.write(self._go, b"x")
        return self._end()

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        self._end()

    def _end(self) -> int:
        os.close(self._go)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def _stop_at(step: int, below: Path, work: Callable[[], Answer], early: bool, there: int, go: int) -> None:
    """Never returns."""
    code = 99

    def stop(times: int, _name: str) -> None:
        if not times:
            os.write(there, b"x")
            os.read(go, 1)

    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        watch_changes(step, below, stop, early)
        code = work().code
    finally:
        os._exit(code)


def refused(answer: Answer) -> bool:
    told = answer.err.strip().splitlines()[-2:]
    return answer.code == 1 and "another run" in told[0] and "→" in told[1] and "Traceback" not in answer.err


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("checkout", marks=pytest.mark.case(CASE, target="checkout", outcome="refused")),
        pytest.param("installed", marks=pytest.mark.case(CASE, target="installed", outcome="refused")),
    ],
)
@pytest.mark.parametrize("step", [1, 12, 25])
def test_a_second_run_on_a_target_is_refused_while_the_first_is_at_work(ground: Ground, step: int) -> None:
    """Before it writes, half way, and near its end; status only looks, and changes nothing."""
    ground.fresh("older")
    first = Held(step, ground.target, bringing(ground, "newer"))
    held = snapshot(ground.target, skip=("__pycache__",), stats=True)
    for goal in ("newer", "older", "pin"):
        assert refused(ground.bring(goal))
    told = ground.tell("status", "newer")
    assert told.code in (0, 1) and (set(told.states().values()) == {"interrupted"}) == ground.journal.exists()
    assert snapshot(ground.target, skip=("__pycache__",), stats=True) == held
    assert first.let_go() == 0
    assert ground.now() == ground.facts["newer"]
    assert ground.bring("pin").code == 0
    assert ground.now() == ground.facts["pin"]


@pytest.mark.parametrize("kind", ["checkout", "installed"])
def test_the_lock_of_a_run_that_was_killed_never_blocks(ground: Ground) -> None:
    ground.fresh("older")
    first = Held(12, ground.target, bringing(ground, "newer"))
    assert refused(ground.bring("newer"))
    first.kill()
    assert ground.bring("newer").code == 0
    assert ground.now() == ground.facts["newer"]


@pytest.mark.parametrize("kind", ["checkout"])
def test_a_git_that_outlives_its_killed_run_blocks_until_it_ends(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.fresh("older")
    at_work, go, done = tmp_path / "at-work", tmp_path / "go", tmp_path / "done"
    real = subprocess.run(["which", "git"], capture_output=True, text=True, check=True).stdout.strip()
    wait = f": > {at_work}; while [ ! -e {go} ]; do sleep 0.02; done"
    busy = f'{wait}; {real} "$@"; : > {done}; exit'
    shim = f'#!/bin/sh\ncase " $* " in *" update-index "*) {busy};; esac\nexec {real} "$@"\n'
    write(tmp_path / "slow", {"git": shim})
    (tmp_path / "slow/git").chmod(0o755)
    child = os.fork()
    if child == 0:
        os.environ["PATH"] = f"{tmp_path / 'slow'}{os.pathsep}{os.environ['PATH']}"
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        ground.bring("newer")
        os._exit(0)
    until = time.monotonic() + 60
    while not at_work.exists():
        assert time.monotonic() < until
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert refused(ground.bring("newer"))
    go.touch()
    while refused(answer := ground.bring("newer")):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert done.exists()
    assert answer.code == 0
    assert ground.now() == ground.facts["newer"]


@pytest.mark.case(CASE, target="export", outcome="refused")
def test_a_second_export_is_refused_while_the_first_is_at_work(toy: Toy) -> None:
    clone, home = toy.root / "author-toy", toy.home.root
    wanted = snapshot(home)
    for name in ("right-answer", "bring-hook"):
        (home / f"patches/v1/toy/{name}.patch").write_text("old\n")
    first = Held(9, home, partial(ask, "export", clone))
    held = snapshot(home, stats=True)
    assert refused(ask("export", clone))
    assert snapshot(home, stats=True) == held
    assert first.let_go() == 0
    assert snapshot(home) == wanted


@pytest.mark.case(CASE, target="source", outcome="refused")
@pytest.mark.parametrize("step", [3, 5])
def test_a_second_fresh_checkout_of_one_place_is_refused_while_the_first_is_made(
    toy: Toy, tmp_path: Path, step: int
) -> None:
    apply = partial(ask, "apply", "--into", tmp_path / "fresh", "--only", "toy", "--source", toy.upstream())
    first = Held(step, tmp_path / "fresh", apply)
    assert refused(apply())
    assert first.let_go() == 0
    assert ask("status", tmp_path / "fresh/toy").code == 0
    assert git(tmp_path / "fresh/toy", "status", "--porcelain") == ""
    assert sorted(path.name for path in (tmp_path / "fresh").iterdir()) == ["toy"]


@pytest.mark.case("two runs fill the cache at once", target="source", outcome="exact")
def test_a_run_waits_for_another_one_that_fills_the_cache(toy: Toy, tmp_path: Path, own_cache: Path) -> None:
    first = Held(
        8, own_cache, partial(ask, "apply", "--into", tmp_path / "one", "--only", "toy", "--source", "pypi"), early=True
    )
    code = f"import sys; from sm120_overlay.queue import sources; {WAITS}"
    second = subprocess.Popen([sys.executable, "-c", code, str(toy.home.pins)], stdout=subprocess.PIPE, text=True)
    assert second.stdout is not None
    assert second.stdout.readline() == "asking\n"
    assert first.let_go() == 0
    assert second.communicate()[0].strip() == toy.pin().wheels[0].root
    assert second.returncode == 0
    assert ask("status", tmp_path / "one/toy").code == 0
    assert not [path for path in own_cache.rglob(".*") if path.is_dir()], "something half is left in the cache"


WAITS = (
    "from pathlib import Path; from sm120_overlay.queue.pins import load_lines; "
    "pin = load_lines(Path(sys.argv[1])).line('v1').pin('toy'); print('asking', flush=True); "
    "print(sources.find_source(pin, 'pypi', lambda text: None).commit)"
)
