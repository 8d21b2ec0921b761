"""Real processes killed at random moments: every file whole, the state told, the next apply ends exact by itself."""

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

from .scenes import Answer, Venv, ask, copy_venv, make_newer, make_venv, use_series
from .toy import Toy, git, write

TOOLS = Path(__file__).parents[2] / "tools"
SEED = 20260301
KILLS = 20  # a kind of target


@dataclass(frozen=True)
class Scene:
    """A target between an old and a new state: how it is named on the command line, and where its files lie."""

    named: tuple[str, ...]
    files: Path
    journal: Path
    whole: dict[str, set[bytes | None]]


@pytest.fixture(scope="module")
def venv_master(toy_master: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_venv(tmp_path_factory.mktemp("venv") / "master", toy_master.wheels)


@pytest.fixture
def project(toy: Toy) -> Toy:
    """The toy project with the tools in it, as a clone of the real one is."""
    shutil.copytree(TOOLS, toy.home.root / "tools", ignore=shutil.ignore_patterns("__pycache__", "serving"))
    return toy


SLOW_PYTHON = """\
import sys, time
SLOW = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link")
sys.addaudithook(lambda event, arguments: event in SLOW and time.sleep(0.005))
"""


@pytest.fixture
def slow(tmp_path: Path) -> dict[str, str]:
    """An environment in which git takes longer, before and after its work, and Python before it changes a folder."""
    real = shutil.which("git")
    write(tmp_path / "slow", {"git": f'#!/bin/sh\nsleep 0.01\n{real} "$@"\ncode=$?\nsleep 0.01\nexit $code\n'})
    (tmp_path / "slow" / "git").chmod(0o755)
    write(tmp_path / "slow", {"sitecustomize.py": SLOW_PYTHON})
    return {**os.environ, "PATH": f"{tmp_path / 'slow'}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path / "slow")}


def files(folder: Path) -> dict[str, bytes]:
    names = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    hidden = {".git", "__pycache__", "sm120-overlay"}
    return {str(path.relative_to(folder)): path.read_bytes() for path in names if hidden.isdisjoint(path.parts)}


def kill_a_run(toy: Toy, scene: Scene, arguments: list[str], dice: random.Random, env: dict[str, str]) -> str:
    """Starts apply as its own process group and kills it somewhere; what was killed."""
    command = [sys.executable, str(toy.home.root / "tools" / "apply.py"), *scene.named, *arguments]
    run = subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    if dice.random() < 0.7:  # most of the work is before the journal; most of the danger is after it
        until = time.monotonic() + 30
        while run.poll() is None and time.monotonic() < until and not scene.journal.exists():
            time.sleep(0.001)
        time.sleep(dice.random() * 0.15)
    else:
        time.sleep(dice.random() * 0.6)
    group = dice.random() < 0.5
    if run.poll() is None:
        (os.killpg if group else os.kill)(run.pid, signal.SIGKILL)
    run.wait()
    return f"{'group' if group else 'python'} {'after' if run.returncode == 0 else 'during'} {arguments}"


def ask_when_free(*arguments: object) -> Answer:
    """A verb, once no git of the killed run is alive any more."""
    until = time.monotonic() + 10
    while True:
        answer = ask(*arguments)
        if "another run" not in answer.said.get("error", {}).get("what", "") or time.monotonic() > until:
            return answer
        time.sleep(0.02)


def check_whole(scene: Scene, what: str) -> None:
    now = files(scene.files)
    for path, states in scene.whole.items():
        assert now.get(path) in states, (what, path)
    strange = {path for path in now if path not in scene.whole and "sm120-overlay-partial" not in path}
    assert strange <= {"toy/mine.txt", "mine.txt"}, (what, strange)


def rounds(
    toy: Toy, scene: Scene, older: Path, newer: Path, env: dict[str, str], exact: Callable[[str, str], None], seed: int
) -> None:
    """Kills apply, upgrade, downgrade and reverse in turn; after each the next apply must end exact."""
    dice, cut = random.Random(seed), 0
    for number in range(KILLS):
        start, goal = dice.sample(["pin", "older", "newer"], 2)
        bring(toy, scene, start, older, newer)
        arguments = bring_arguments(toy, goal, older, newer)
        what = f"{number}: {start} to {goal}, {kill_a_run(toy, scene, arguments, dice, env)}"
        check_whole(scene, what)
        told = ask("status", *scene.named)
        assert told.code in (0, 1), (what, told)
        states = set(told.states().values())
        assert len(states) == 1 or not scene.journal.exists(), (what, states)
        cut += states == {"interrupted"}
        then = dice.choice([goal, "pin", "newer"])
        answer = ask_when_free("apply", *scene.named, *bring_arguments(toy, then, older, newer))
        assert answer.code == 0, (what, then, answer)
        exact(then, what)
    assert cut >= KILLS // 5, "the kills missed the work"


def bring_arguments(toy: Toy, goal: str, older: Path, newer: Path) -> list[str]:
    use_series(toy, older if goal == "older" else newer)
    return ["--reverse"] if goal == "pin" else []


def bring(toy: Toy, scene: Scene, goal: str, older: Path, newer: Path) -> None:
    answer = ask("apply", *scene.named, *bring_arguments(toy, goal, older, newer))
    assert answer.code == 0, answer


def both_series(toy: Toy) -> tuple[Path, Path]:
    """Homes with the older and the newer series."""
    older = make_newer(toy)
    newer = toy.root / "newer"
    shutil.copytree(toy.home.root, newer, ignore=shutil.ignore_patterns("tools"))
    return older, newer


def possible(states: dict[str, dict[str, bytes]]) -> dict[str, set[bytes | None]]:
    paths = {path for found in states.values() for path in found}
    return {path: {found.get(path) for found in states.values()} for path in paths}


def test_a_checkout_survives_kills_at_random_moments(project: Toy, slow: dict[str, str]) -> None:
    older, newer = both_series(project)
    clone = project.clone()
    scene = Scene((str(clone),), clone, clone / ".git/sm120-overlay/journal.json", {})
    states = {}
    for goal in ("pin", "older", "newer"):
        bring(project, scene, goal, older, newer)
        states[goal] = files(clone)
    scene.whole.update(possible(states))
    write(clone, {"mine.txt": "mine\n"})
    stashed = git(clone, "rev-parse", "main")

    def exact(goal: str, what: str) -> None:
        found = files(clone)
        assert found.pop("mine.txt") == b"mine\n", what
        assert found == states[goal], what
        assert git(clone, "status", "--porcelain") == "?? mine.txt\n", what
        assert git(clone, "rev-parse", "main") == stashed, what
        assert git(clone, "rev-parse", "--symbolic-full-name", "HEAD").strip() == (
            "refs/heads/main" if goal == "pin" else "refs/heads/sm120/v1"
        ), what
        assert not list((clone / ".git").rglob("*.lock")), what
        git(clone, "fsck", "--strict", "--no-dangling")
        git(clone, "commit", "-q", "--allow-empty", "-m", "git works")
        git(clone, "reset", "-q", "--soft", "HEAD~1")

    rounds(project, scene, older, newer, slow, exact, SEED)


def test_an_installed_package_survives_kills_at_random_moments(
    project: Toy, venv_master: Path, tmp_path: Path, slow: dict[str, str]
) -> None:
    older, newer = both_series(project)
    venv: Venv = copy_venv(venv_master, tmp_path / "venv")
    named = ("--installed", str(venv.python), "--only", "toy")
    scene = Scene(named, venv.site, venv.info() / "sm120-overlay/journal.json", {})
    states = {}
    for goal in ("pin", "older", "newer"):
        bring(project, scene, goal, older, newer)
        states[goal] = files(venv.site)
    scene.whole.update(possible(states))
    write(venv.site, {"toy/mine.txt": "mine\n"})

    def exact(goal: str, what: str) -> None:
        found = files(venv.site)
        assert found.pop("toy/mine.txt") == b"mine\n", what
        assert found == states[goal], what
        assert venv.run("import toy; print(toy.answer())") == ("41" if goal == "pin" else "42"), what

    rounds(project, scene, older, newer, slow, exact, SEED + 1)


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
