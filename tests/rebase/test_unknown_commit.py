"""A pin whose commit nobody here knows: its tag is asked once, and what it names is written down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sm120_overlay.cli import main
from sm120_overlay.queue.pins import load_lines

from ..queue.toy import Toy, git


@pytest.fixture
def commit(toy: Toy) -> str:
    """The commit that the tag names and pins.toml does not."""
    found = git(toy.upstream(), "rev-parse", "HEAD").strip()
    git(toy.upstream(), "tag", "v1.0")
    toy.home.pins.write_text(toy.home.pins.read_text().replace(f'commit = "{found}"', 'commit = ""', 1))
    assert toy.pin().commit == ""
    return found


def test_the_first_fetch_writes_it_into_pins_toml_of_a_clone(toy: Toy, commit: str, tmp_path: Path) -> None:
    git(toy.home.root, "init", "-q")
    before = toy.home.pins.read_text()
    assert main(["apply", "--only", "toy", "--source", "git", "--into", str(tmp_path / "out")]) == 0
    assert toy.home.pins.read_text() == before.replace('commit = ""', f'commit = "{commit}"', 1)
    assert git(tmp_path / "out" / "toy", "rev-parse", "HEAD~2").strip() == commit


def test_elsewhere_the_checkout_is_known_by_its_tag(
    toy: Toy, commit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out" / "toy"
    assert main(["apply", "--only", "toy", "--source", "git", "--into", str(out.parent)]) == 0
    assert load_lines(toy.home.pins).line("v1").pin("toy").commit == ""
    capsys.readouterr()
    assert main(["status", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["targets"][0]["base"] == commit


def test_a_clone_of_the_users_that_has_the_tag_is_a_source_and_a_target(toy: Toy, commit: str, tmp_path: Path) -> None:
    clone = toy.clone()
    assert main(["apply", str(clone)]) == 0
    assert git(clone, "rev-parse", "HEAD~2").strip() == commit
    out = tmp_path / "out"
    assert main(["apply", "--only", "toy", "--source", str(toy.upstream()), "--into", str(out)]) == 0


def test_the_wheel_does_without_it(toy: Toy, commit: str, tmp_path: Path) -> None:
    assert main(["apply", "--only", "toy", "--source", "pypi", "--into", str(tmp_path / "out")]) == 0
    assert toy.pin().commit == ""


def test_a_repository_without_the_tag_is_no_source(
    toy: Toy, commit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(toy.upstream(), "tag", "-d", "v1.0")
    arguments = ["apply", "--only", "toy", "--source", str(toy.upstream()), "--into", str(tmp_path / "out")]
    assert main(arguments) == 4
    assert "does not hold toy v1.0 (by its tag)" in capsys.readouterr().err
