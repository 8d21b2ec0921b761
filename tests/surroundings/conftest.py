"""Fixtures of this package: the project with a patch in other alphabets, and what a round leaves in plain surroundings.

$SM120_OVERLAY_GIT names another git (say 2.34's) that is then first on every test's PATH here.
"""

from __future__ import annotations

import compileall
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.queue.scenes import Venv, copy_venv, make_venv
from tests.queue.toy import Toy, add_series, make_toy

from .world import TOOLS, World, add_odd_patch, checkout_round, copy_toy, installed_round, plain

OTHER_GIT = "SM120_OVERLAY_GIT"
Outcome = dict[str, Any]


@pytest.fixture(scope="session", autouse=True)
def other_git() -> None:
    """Puts the git that was named first on PATH."""
    named = os.environ.get(OTHER_GIT)
    if named:
        os.environ["PATH"] = os.pathsep.join([str(Path(named).parent), os.environ["PATH"]])


@pytest.fixture(scope="session")
def master(tmp_path_factory: pytest.TempPathFactory, other_git: None) -> Toy:
    """Made once; tests take copies."""
    toy = make_toy(tmp_path_factory.mktemp("master"))
    add_series(toy)
    add_odd_patch(toy)
    shutil.copytree(TOOLS, toy.home.root / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(toy.home.root / "tools", quiet=1)  # once, not by the first process of every test
    return toy


@pytest.fixture(scope="session")
def venv_master(master: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A venv with both upstreams, for copies."""
    return make_venv(tmp_path_factory.mktemp("venv") / "master", master.wheels)


@pytest.fixture
def world(master: Toy, tmp_path: Path) -> World:
    """The project as this test's own, in plain surroundings."""
    return World(copy_toy(master, tmp_path / "project"), plain(tmp_path / "project"))


@pytest.fixture
def venv(venv_master: Path, tmp_path: Path) -> Venv:
    """An environment with both upstreams installed."""
    return copy_venv(venv_master, tmp_path / "venv")


@pytest.fixture(scope="session")
def calm(master: Toy, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What a round on a checkout leaves in plain surroundings."""
    root = tmp_path_factory.mktemp("calm") / "project"
    world = World(copy_toy(master, root), plain(root))
    return checkout_round(world, world.clone())


@pytest.fixture(scope="session")
def calm_installed(master: Toy, venv_master: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The same of an installed package."""
    root = tmp_path_factory.mktemp("calm-installed") / "project"
    world = World(copy_toy(master, root), plain(root))
    return installed_round(world, copy_venv(venv_master, root / "venv"))
