"""Real processes killed at random moments: every file whole, the state told, the next apply ends exact by itself.

Most of them are killed at a change that is drawn by number, so no machine is too slow or too quick for it; the rest by
the clock. The seeds are fixed, and whatever fails names its round.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from .cuts import watch_changes
from .ground import STATES, Ground, make_ground
from .scenes import Answer, Venv, ask
from .toy import Toy, git, write

TOOLS = Path(__file__).parents[2] / "tools"
SEED = 20260301
KILLS = 100  # a kind of target
BY_THE_CLOCK = 6  # every sixth round


@dataclass(frozen=True)
class Round:
    """What is killed, where it stood and went, and how: `group` with its gits, or Python alone."""

    seed: int
    number: int
    start: str
    goal: str
    then: str
    group: bool
    change: int
    outside: bool
    pause: float

    @property
    def by_the_clock(self) -> bool:
        return self.number % BY_THE_CLOCK == 0


def drawn(seed: int, number: int) -> Round:
    """A round, by its seed and number alone."""
    dice = random.Random(f"{seed} {number}")
    start, goal = dice.sample(STATES, 2)
    then = dice.choice([goal, "pin", "newer"])
    return Round(
        seed, number, start, goal, then, dice.random() < 0.5, dice.randrange(50), dice.random() < 0.4, dice.random()
    )


@pytest.fixture
def project(toy: Toy) -> Toy:
    """The toy project with the tools in it, as a clone of the real one is."""
    copy_tools(toy.home.root)
    return toy


def copy_tools(home: Path) -> None:
    shutil.copytree(TOOLS, home / "tools", ignore=shutil.ignore_patterns("__pycache__", "serving"))


def killed(ground: Ground, drawn: Round) -> bool:
    """Runs apply and kills it; whether it was still at work."""
    return (kill_by_the_clock if drawn.by_the_clock else kill_at_a_change)(ground, drawn)


def kill_by_the_clock(ground: Ground, drawn: Round) -> bool:
    """A process of its own, killed some time after its journal appeared (or after it started)."""
    home = ground.homes["older" if drawn.goal == "older" else "newer"].root
    reverse = ["--reverse"] if drawn.goal == "pin" else []
    command = [sys.executable, str(home / "tools/apply.py"), *map(str, ground.named), *reverse]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    until = time.monotonic() + 30
    while run.poll() is None and time.monotonic() < until and not ground.journal.exists() and drawn.pause < 0.8:
        time.sleep(0.0005)
    time.sleep(drawn.pause * (0.02 if drawn.pause < 0.8 else 0.3))
    if run.poll() is None:
        (os.killpg if drawn.group else os.kill)(run.pid, signal.SIGKILL)
    return run.wait() == -signal.SIGKILL


def kill_at_a_change(ground: Ground, drawn: Round) -> bool:
    """A child that kills itself just before a change, or is killed from outside while it goes on there."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(ours)
        kill = os.killpg if drawn.group else os.kill
        sign = (lambda: os.write(theirs, b"x")) if drawn.outside else (lambda: kill(os.getpid(), signal.SIGKILL))
        quietly(drawn.change, ground, drawn.goal, sign)
    os.close(theirs)
    os.read(ours, 1)  # returns at the change, or when the child is no more
    os.close(ours)
    if drawn.outside:
        time.sleep(drawn.pause * 0.01)
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        (os.killpg if drawn.group else os.kill)(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def quietly(change: int, ground: Ground, goal: str, sign: Callable[[], object]) -> None:
    """Never returns."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        watch_changes(change, ground.target, lambda times, name: None if times else void(sign()), early=True)
        ground.bring(goal)
    finally:
        os._exit(0)


def void(_: object) -> None:
    return None


def when_free(call: Callable[[], Answer]) -> Answer:
    """A verb's answer, once no git of the killed run is alive any more."""
    until = time.monotonic() + 60
    while True:
        answer = call()
        if "another run" not in answer.said.get("error", {}).get("what", "") or time.monotonic() > until:
            return answer
        time.sleep(0.01)


def rounds(ground: Ground, seed: int, works: Callable[[str], None]) -> None:
    """Kills apply, upgrade, downgrade and reverse at random; after each the next apply must end exact."""
    cut = 0
    for home in ground.homes.values():
        copy_tools(home.root)
    for number in range(KILLS):
        this = drawn(seed, number)
        ground.fresh(this.start)
        dead = killed(ground, this)
        try:
            cut += dead and not this.outside and not this.by_the_clock
            told = ground.tell("status", this.goal)
            assert told.code in (0, 1), told
            states = set(told.states().values())
            assert (states == {"interrupted"}) == ground.journal.exists(), states
            answer = when_free(lambda this=this: ground.bring(this.then))  # type: ignore[misc]
            assert answer.code == 0, answer
            assert ground.now() == ground.facts[this.then]
            works(this.then)
        except BaseException as error:
            error.args = (f"{this}: {error}",)
            raise
    assert cut > KILLS // 5


@pytest.mark.case("200 random kills, of the process group and of Python alone", target="checkout", outcome="undone")
def test_a_checkout_survives_kills_at_random_moments(toy_master: Toy, tmp_path: Path) -> None:
    ground = make_ground("checkout", toy_master, tmp_path / "project")

    def works(_goal: str) -> None:
        git(ground.target, "fsck", "--strict", "--no-dangling")
        git(ground.target, "commit", "-q", "--allow-empty", "-m", "git works")

    rounds(ground, SEED, works)


@pytest.mark.case("200 random kills, of the process group and of Python alone", target="installed", outcome="undone")
def test_an_installed_package_survives_kills_at_random_moments(toy_master: Toy, tmp_path: Path) -> None:
    ground = make_ground("installed", toy_master, tmp_path / "project")

    def works(goal: str) -> None:
        assert Venv(ground.target).run("import toy; print(toy.answer())") == ("41" if goal == "pin" else "42")

    rounds(ground, SEED + 1, works)


def files(folder: Path) -> dict[str, bytes]:
    names = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    hidden = {".git", "__pycache__", "sm120-overlay"}
    return {str(path.relative_to(folder)): path.read_bytes() for path in names if hidden.isdisjoint(path.parts)}


def waits(pid: int) -> bool:
    """Whether a process has started its git and polls for what it says (poll or ppoll; elsewhere we cannot know)."""
    try:
        return Path(f"/proc/{pid}/syscall").read_text().split()[0] in ("7", "73", "271")
    except OSError:
        return True


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_told_to_stop_puts_back_what_it_had_done(project: Toy, tmp_path: Path, signum: int) -> None:
    """Also when its git goes on for a while: the undo waits for it, and does not meet it."""
    clone = project.clone()
    before = files(clone), git(clone, "ls-files", "-s")
    real = shutil.which("git")
    at_work, told, done = tmp_path / "at-work", tmp_path / "told", tmp_path / "done"
    wait = f'trap "" INT TERM HUP; : > {at_work}; while [ ! -e {told} ]; do sleep 0.02; done; sleep 0.5'
    busy = f'{wait}; {real} "$@"; : > {done}; exit'
    shim = f'#!/bin/sh\ncase " $* " in *" update-index "*) {busy};; esac\nexec {real} "$@"\n'
    write(tmp_path / "slow", {"git": shim})
    (tmp_path / "slow/git").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path / 'slow'}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, str(project.home.root / "tools/apply.py"), str(clone)]
    run = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    journal = clone / ".git/sm120-overlay/journal.json"
    until = time.monotonic() + 60
    while run.poll() is None and not at_work.exists():
        assert time.monotonic() < until
        time.sleep(0.005)
    while not waits(run.pid):
        assert time.monotonic() < until
        time.sleep(0.005)
    assert journal.exists() and (clone / "python/toy/extra").exists()
    run.send_signal(signum)
    told.touch()
    said = run.communicate()[1]
    assert done.exists(), "a git of ours outlives us"
    assert run.returncode == 128 + signum, said
    assert "Traceback" not in said
    assert (files(clone), git(clone, "ls-files", "-s")) == before
    assert not journal.exists()
    assert ask("apply", clone).code == 0
    assert git(clone, "status", "--porcelain") == ""
