"""Every move that this project records, made again from its commits alone: the same series, byte for byte."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sm120_overlay.cli import main
from sm120_overlay.queue.home import Home, find_home
from sm120_overlay.queue.origin import Origin, read_origin
from sm120_overlay.queue.pins import Pin, load_lines

from .releases import tree_of

HOME = find_home()
PINS = load_lines(HOME.pins).all_pins()
MOVES = [(pin, origin) for pin in PINS if (origin := read_origin(HOME.patches(pin.line, pin.upstream)))]


@pytest.fixture(autouse=True)
def own_cache() -> None:
    """Not a cache of its own: the wheels are those of the whole suite."""


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """The project's data as a clone of its own: a move is made in build/."""
    home = Home(tmp_path / "project")
    for name in ("patches", "overlay", "tests/patches", "docs/evidence"):
        shutil.copytree(HOME.root / name, home.root / name)
    for name in ("pins.toml", "NOTICE"):
        shutil.copy(HOME.root / name, home.root / name)
    monkeypatch.setattr("sm120_overlay.verbs._options.find_home", lambda: home)
    return home


def test_every_line_but_the_first_says_where_it_comes_from() -> None:
    first = load_lines(HOME.pins).lines[0].name
    assert {(pin.line, pin.upstream) for pin, _ in MOVES} == {
        (pin.line, pin.upstream) for pin in PINS if pin.line != first
    }


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize(("pin", "origin"), MOVES, ids=[f"{pin.line}-{pin.upstream}" for pin, _ in MOVES])
def test_a_recorded_move_gives_what_the_line_holds(
    pin: Pin, origin: Origin, copy: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {name: data for name, data in tree_of(copy.root).items() if not name.startswith("build/")}
    arguments = ["rebase", pin.upstream, "--onto", pin.line, "--from", origin.line, "--source", "pypi", "--json"]
    assert main(arguments) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["changed"] is False
    assert {name: data for name, data in tree_of(copy.root).items() if not name.startswith("build/")} == before
