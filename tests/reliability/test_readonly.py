"""Targets on a file system that is mounted read-only, wholly or in part: a sentence, and not one byte changed.

A mount of a user namespace's own makes it so: permissions would not stop root.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..queue.scenes import Answer
from .world import World, sentence, well_said

# The verb as its user runs it, with the test's own pins and patches.
DRIVER = """
import sys
from pathlib import Path
from unittest import mock
from sm120_overlay.cli import main
from sm120_overlay.queue.home import Home
with mock.patch("sm120_overlay.verbs._options.find_home", lambda: Home(Path(sys.argv[1]))):
    sys.exit(main(sys.argv[2:]))
"""
MOUNT = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
ALONE = ["unshare", "--user", "--map-root-user", "--mount"]


@pytest.fixture(scope="module", autouse=True)
def namespace() -> None:
    """Skips where a user namespace with mounts cannot be had."""
    probe = [*ALONE, "sh", "-c", MOUNT, "/tmp", "true"]
    if shutil.which("unshare") is None or subprocess.run(probe, check=False, capture_output=True).returncode:
        pytest.skip("no user namespace in which to mount something read-only")


def run_beside(world: World, frozen: Path, *arguments: object) -> Answer:
    """A verb in a process that sees `frozen` read-only."""
    command = [sys.executable, "-c", DRIVER, world.toy.home.root, *arguments, "--json"]
    done = subprocess.run(
        [*ALONE, "sh", "-c", MOUNT, str(frozen), *map(str, command)], check=False, capture_output=True, text=True
    )
    assert done.stdout, done.stderr
    return Answer(done.returncode, json.loads(done.stdout), done.stderr)


KINDS = ("checkout", "installed")
WHOLE = "the target lies on a read-only file system"
PART = "a touched file lies on a read-only file system"
OURS = "git's or pip's own folder lies on a read-only file system"


def named(world: World, kind: str) -> tuple[Path, list[object]]:
    """The folder of the files, and the arguments that name a target of a kind."""
    if kind == "checkout":
        clone = world.toy.clone()
        return clone, [clone]
    venv = world.venv()
    return venv.site, ["--installed", venv.python, "--only", "toy"]


def cell(kind: str, frozen: str, what: str, outcome: str) -> object:
    """A part of a target that is read-only, with its mark."""
    return pytest.param(kind, frozen, marks=pytest.mark.case(what, target=kind, outcome=outcome))


@pytest.mark.parametrize(
    ("kind", "frozen"),
    [
        cell("checkout", ".", WHOLE, "refused"),
        cell("checkout", ".git", OURS, "refused"),
        cell("checkout", "python", PART, "undone"),
        cell("checkout", "python/toy/dos.py", PART, "undone"),
        cell("installed", ".", WHOLE, "refused"),
        cell("installed", "toy-1.0.dist-info", OURS, "refused"),
        cell("installed", "toy", PART, "undone"),
        cell("installed", "toy/dos.py", PART, "undone"),
    ],
)
def test_a_read_only_target_is_refused_by_name_and_nothing_is_left_half_done(
    world: World, kind: str, frozen: str
) -> None:
    folder, arguments = named(world, kind)
    before = world.all()
    answer = run_beside(world, folder / frozen, "apply", *arguments)
    assert (answer.code in (1, 4), well_said(answer)) == (True, True), answer
    assert str(folder) in answer.said["error"]["what"]
    assert world.all() == before
    again = run_beside(world, world.toy.wheels, "apply", *arguments)
    assert again.code == 0, "and nothing of the failed run is in the way"


TOLD = [pytest.param(kind, marks=pytest.mark.case(WHOLE, target=kind, outcome="told")) for kind in KINDS]


@pytest.mark.parametrize("kind", TOLD)
def test_status_verify_and_a_dry_run_of_a_read_only_target_answer(world: World, kind: str) -> None:
    folder, arguments = named(world, kind)
    for verb, code in (("status", 1), ("verify", 1)):
        answer = run_beside(world, folder, verb, *arguments)
        assert (answer.code, answer.states()["right-answer"]) == (code, "pending"), sentence(answer)
    answer = run_beside(world, folder, "apply", *arguments, "--dry-run")
    assert (answer.code, answer.targets["toy"]["would_change"]) == (0, True), sentence(answer)
