"""Fixtures of the queue's tests: the toy project, fresh for every test, and a cache of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from .ground import Ground, make_ground
from .toy import Toy, add_series, make_toy


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or fills the user's cache."""
    monkeypatch.setenv("SM120_OVERLAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def toy_master(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """Made once; tests take copies."""
    toy = make_toy(tmp_path_factory.mktemp("toy"))
    add_series(toy)
    return toy


@pytest.fixture
def toy(toy_master: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """The toy project as this test's own, and as the home that the verbs find."""
    root = tmp_path / "project"
    shutil.copytree(toy_master.root, root, symlinks=True)
    pins = root / "home" / "pins.toml"
    pins.write_text(pins.read_text().replace(str(toy_master.root), str(root)))
    made = Toy(root, type(toy_master.home)(root / "home"), root / "wheels")
    monkeypatch.setattr("sm120_overlay.verbs._options.find_home", lambda: made.home)
    monkeypatch.setattr("sm120_overlay.verbs.lint.find_home", lambda: made.home)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(made.wheels))
    return made


@pytest.fixture(scope="module")
def grounds(toy_master: Toy, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ground]:
    """Kind of target → one in three states, made once a file of tests."""
    return cache(lambda kind: make_ground(kind, toy_master, tmp_path_factory.mktemp(kind) / "project"))


@pytest.fixture
def ground(kind: str, grounds: Callable[[str], Ground]) -> Ground:
    """The target of a test that is parametrised by `kind`."""
    return grounds(kind)
