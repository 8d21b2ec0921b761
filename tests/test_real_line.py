"""The default line on real upstream: wheels from the index, installed packages, and upstream's own commits."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name

from sm120_overlay.cli import main
from sm120_overlay.queue.home import find_home
from sm120_overlay.queue.pins import Line, Pin, load_lines
from sm120_overlay.queue.wheels import fetch_wheel, suited

pytestmark = [pytest.mark.slow, pytest.mark.network]
LINES = load_lines(find_home().pins)
LINE = LINES.line(None)
PINS = pytest.mark.parametrize("pin", LINES.all_pins(), ids=lambda pin: f"{pin.line}-{pin.upstream}")


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def by_upstream(found: dict[str, Any], key: str) -> dict[str, Any]:
    return {target["upstream"]: target[key] for target in found["targets"]}


def tree_of(folder: Path, skip: tuple[str, ...] = (".git", "__pycache__")) -> dict[str, str]:
    """Path → hash of every file, for comparing whole trees."""
    files = (path for path in folder.rglob("*") if path.is_file() and not set(skip) & set(path.parts))
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkouts of the default line, from the pinned wheels, with the whole series on."""
    into = tmp_path_factory.mktemp("fresh")
    assert main(["apply", "--line", LINE.name, "--source", "pypi", "--into", str(into)]) == 0
    return into


def test_the_default_line_applies_to_the_pinned_wheels_with_the_same_ids_every_time(
    fresh: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, first = answer(capsys, "status", "--into", str(fresh))
    assert code == 0
    assert all(patch["state"] == "applied" for target in first["targets"] for patch in target["patches"])
    code, second = answer(capsys, "apply", "--source", "pypi", "--into", str(tmp_path))
    assert code == 0
    assert by_upstream(first, "head") == by_upstream(second, "head")
    assert answer(capsys, "verify", "--into", str(tmp_path))[0] == 0


def test_export_of_the_applied_series_changes_nothing(fresh: Path) -> None:
    assert main(["export", "--into", str(fresh), "--check"]) == 0


def test_reverse_restores_the_bytes_of_the_pin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apply", "--source", "pypi", "--into", str(tmp_path)]) == 0
    assert main(["apply", "--into", str(tmp_path), "--reverse"]) == 0
    code, found = answer(capsys, "status", "--into", str(tmp_path))
    assert code == 1
    for target in found["targets"]:
        assert target["head"] == target["base"]
        done = subprocess.run(
            ["git", "status", "--porcelain", "--ignored"], cwd=target["path"], capture_output=True, check=True
        )
        assert done.stdout == b""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A virtual environment with the line's upstreams as pip installs them: its interpreter and its site-packages."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    wheels = [str(fetch_wheel(pin, lambda text: None)) for pin in LINE.pins]
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*command, *wheels], check=True, capture_output=True)
    yield python, next(folder.glob("lib/python*/site-packages"))


def test_an_installed_line_has_the_same_digest_and_gives_back_every_byte(
    fresh: Path, environment: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    python, site = environment
    before = tree_of(site)
    _, checkout = answer(capsys, "status", "--into", str(fresh))
    code, installed = answer(capsys, "apply", "--installed", str(python))
    assert code == 0
    assert by_upstream(installed, "digest") == by_upstream(checkout, "digest")
    assert by_upstream(installed, "base") == {pin.upstream: f"{pin.version} {suited(pin).tag}" for pin in LINE.pins}
    assert answer(capsys, "verify", "--installed", str(python))[0] == 0
    assert answer(capsys, "apply", "--installed", str(python))[1]["targets"][0]["changed"] is False
    assert tree_of(site) != before
    assert answer(capsys, "apply", "--installed", str(python), "--reverse")[0] == 0
    assert tree_of(site) == before


def test_upstreams_own_commit_has_the_same_digest_as_the_wheel(
    upstream_repo: tuple[str, Path], fresh: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, repository = upstream_repo
    arguments = ("apply", "--only", name, "--source", str(repository), "--into", str(tmp_path))
    code, found = answer(capsys, *arguments)
    assert code == 0
    assert found["targets"][0]["base"] == LINE.pin(name).commit
    _, wheel = answer(capsys, "status", "--into", str(fresh), "--only", name)
    assert by_upstream(found, "digest") == by_upstream(wheel, "digest")
    assert main(["export", str(tmp_path / name), "--check"]) == 0
    mapped = set(tree_of(fresh / name))
    own = tree_of(tmp_path / name)
    assert {path: own.get(path) for path in mapped} == tree_of(fresh / name)
    modes = {path: (tmp_path / name / path).stat().st_mode & 0o111 for path in mapped}
    assert modes == {path: (fresh / name / path).stat().st_mode & 0o111 for path in mapped}


def metadata(pin: Pin) -> str:
    with zipfile.ZipFile(fetch_wheel(pin, lambda text: None)) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()


@PINS
def test_the_joint_versions_are_those_that_the_wheel_requires(pin: Pin) -> None:
    line: Line = LINES.line(pin.line)
    known = {canonicalize_name(name): version for name, version in line.joint}
    known |= {canonicalize_name(other.distribution): other.version for other in line.pins}
    required = re.findall(r"^Requires-Dist: ([\w.-]+)(?:\[[^]]*\])?\s*==\s*([\w.]+)\s*$", metadata(pin), re.MULTILINE)
    exact = {canonicalize_name(name): version for name, version in required if canonicalize_name(name) in known}
    assert exact == {name: known[name] for name in exact}
    assert pin.upstream != "sglang" or {"torch", "flashinfer-python"} <= exact.keys()


@PINS
def test_a_wheel_that_names_its_commit_names_the_pinned_one(pin: Pin) -> None:
    with zipfile.ZipFile(fetch_wheel(pin, lambda text: None)) as archive:
        built = [name for name in archive.namelist() if name.endswith("_build_meta.py")]
        said = [archive.read(name).decode() for name in built]
    assert all(pin.commit in text for text in said)
