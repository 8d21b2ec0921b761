"""Fixtures of the reliability table: the toy project of the queue's tests, and a world of one test's own around it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ..queue.conftest import own_cache, toy, toy_master
from ..queue.scenes import make_venv
from ..queue.toy import Toy
from .world import World

__all__ = ["own_cache", "toy", "toy_master"]


@pytest.fixture(scope="session")
def venv_master(toy_master: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with both upstreams, for copies."""
    return make_venv(tmp_path_factory.mktemp("venv") / "master", toy_master.wheels)


@pytest.fixture
def world(toy: Toy, venv_master: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Everything that a run could change: the project, clones of it and environments, in one folder."""
    for name in ("author-toy", "author-gear", "roots"):  # what made the series is no part of a user's world
        shutil.rmtree(toy.root / name)
    return World(tmp_path, toy, venv_master, monkeypatch)
