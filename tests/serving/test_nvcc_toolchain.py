"""Finding nvcc: the most explicit that is new enough, else the pinned packages, once, whole or not at all."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from sm120_overlay.cache import publish
from sm120_overlay.errors import Missing
from sm120_overlay.serving.nvcc import toolchain
from sm120_overlay.serving.nvcc.toolchain import COMPILER_PACKAGES, PREFIX, find_toolchain


def fake_nvcc(folder: Path, version: str) -> Path:
    """A program that answers `--version` as nvcc does."""
    nvcc = folder / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True, exist_ok=True)
    release = ".".join(version.split(".")[:2])
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{version}'\n")
    nvcc.chmod(0o755)
    return nvcc


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No nvcc anywhere but where a test puts one; the cache is empty."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("SM120_OVERLAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("shutil.which", lambda _name: None)
    monkeypatch.setattr(toolchain, "_host_compiler", lambda: "g++ 12")
    monkeypatch.setattr(toolchain, "USUAL_PLACE", tmp_path / "usual" / "bin" / "nvcc")
    return tmp_path


@pytest.fixture
def fake_pip(monkeypatch: pytest.MonkeyPatch, bare_machine: Path) -> list[tuple[str, ...]]:
    """What would be installed, instead of installing it: an nvcc 13.0.88 at the packages' place."""
    installs: list[tuple[str, ...]] = []

    def install(packages: tuple[str, ...], place: Path) -> None:
        installs.append(packages)
        fake_nvcc(place / PREFIX, "13.0.88")

    monkeypatch.setattr(toolchain, "_install", install)
    return installs


def test_the_usual_place_is_found(bare_machine: Path) -> None:
    nvcc = fake_nvcc(bare_machine / "usual", "12.9.41")
    assert (find_toolchain().nvcc, find_toolchain().version) == (nvcc, "12.9.41")


def test_cuda_home_goes_before_the_usual_place(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvcc(bare_machine / "usual", "13.0.88")
    nvcc = fake_nvcc(bare_machine / "home", "12.8.61")
    monkeypatch.setenv("CUDA_HOME", str(bare_machine / "home"))
    assert find_toolchain().nvcc == nvcc


@pytest.mark.parametrize("version", ["12.7.99", "11.8.89", "9.2.148"])
def test_an_nvcc_without_sm_120a_is_passed_over(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    fake_nvcc(bare_machine / "home", version)
    nvcc = fake_nvcc(bare_machine / "usual", "12.8.61")
    monkeypatch.setenv("CUDA_HOME", str(bare_machine / "home"))
    assert find_toolchain().nvcc == nvcc


def test_without_nvcc_the_pinned_packages_are_installed_once(
    bare_machine: Path, fake_pip: list[tuple[str, ...]]
) -> None:
    first, second = find_toolchain(), find_toolchain()
    assert first == second
    assert first.nvcc.is_relative_to(bare_machine / "cache")
    assert fake_pip == [COMPILER_PACKAGES]


def test_a_broken_nvcc_is_passed_over(bare_machine: Path, fake_pip: list[tuple[str, ...]]) -> None:
    nvcc = fake_nvcc(bare_machine / "usual", "13.0.88")
    nvcc.write_text("#!/bin/sh\nexit 1\n")
    assert find_toolchain().nvcc != nvcc
    assert fake_pip == [COMPILER_PACKAGES]


def test_a_pip_that_fails_leaves_nothing_and_says_what_to_do(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = bare_machine / "python"
    pip.write_text("#!/bin/sh\necho 'no such index' >&2\nexit 1\n")
    pip.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(pip))
    with pytest.raises(Missing, match=r"nvidia-cuda-nvcc==13\.0\.88.*no such index") as refusal:
        find_toolchain()
    assert "CUDA_HOME" in refusal.value.todo
    assert [path.name for path in (bare_machine / "cache" / "toolchain").iterdir() if path.is_dir()] == []


def test_a_machine_without_a_host_compiler_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NVCC_CCBIN", str(tmp_path / "absent"))
    with pytest.raises(Missing, match="needs a host C\\+\\+ compiler"):
        find_toolchain()


def test_pip_runs_in_this_interpreter(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_options: object) -> object:
        commands.append([str(part) for part in command])
        raise KeyboardInterrupt

    monkeypatch.setattr("subprocess.run", run)
    with pytest.raises(KeyboardInterrupt):
        publish(bare_machine / "place", partial(toolchain._install, COMPILER_PACKAGES))
    assert commands[0][:4] == [sys.executable, "-m", "pip", "install"]
    assert list(bare_machine.glob(".place-*")) == []
