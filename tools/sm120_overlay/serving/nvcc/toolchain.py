"""Finds an nvcc that can target sm_120a, or installs the pinned one from PyPI into the project's cache.

Nothing else may live here: what is compiled, and with which flags, is decided in `compile`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ... import report
from ...cache import cache_dir, publish
from ...errors import Missing
from .cache import exclusive

USUAL_PLACE = Path("/usr/local/cuda/bin/nvcc")
# sm_120a arrived with CUDA 12.8 (CUDA 12.8 release notes, nvcc).
OLDEST = (12, 8)

# Each is needed, tried by leaving it out: nvcc (cudafe++, ptxas, fatbinary), crt (the headers it includes by
# itself), nvvm (cicc), runtime (cuda_runtime.h), cccl (cuda/std, which CUTLASS includes).
COMPILER_PACKAGES = (
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-runtime==13.0.88",
    "nvidia-cuda-cccl==13.0.85",
)
# PyPI has no 13.0 disassembler; a newer one reads older cubins.
DISASSEMBLER_PACKAGES = ("nvidia-cuda-nvdisasm==13.2.51",)
# Where these packages put their files below pip's target.
PREFIX = Path("nvidia", "cu13")


@dataclass(frozen=True, slots=True)
class Toolchain:
    """An nvcc and what its output depends on besides its input."""

    nvcc: Path
    version: str
    """nvcc's full version, such as `13.0.88`."""
    host: str
    """The first line of the host compiler's `--version`."""


def find_toolchain() -> Toolchain:
    """The machine's nvcc where it is 12.8 or newer, else the pinned one, installed once (about 280 MB).

    Raises:
        Missing: no host compiler, or pip could not install.
    """
    host = _host_compiler()
    for nvcc in _candidates():
        version = _version(nvcc)
        if version is not None and _is_new_enough(version):
            return Toolchain(nvcc, version, host)
    nvcc = _installed("nvcc", COMPILER_PACKAGES) / "bin" / "nvcc"
    version = _version(nvcc)
    if version is None:
        # why: a damaged download or another kind of machine; a failing compiler is no red test
        raise Missing(
            f"The nvcc installed at {nvcc} does not run.",
            f"Delete {nvcc.parents[3]} and try again, or set CUDA_HOME to a CUDA toolkit of 12.8 or newer.",
        )
    return Toolchain(nvcc, version, host)


def describe_toolchain() -> str:
    """Which compiler `find_toolchain` gives, without installing it: part of what a cached verdict depends on."""
    versions = (_version(nvcc) for nvcc in _candidates())
    fitting = next((version for version in versions if version and _is_new_enough(version)), None)
    try:
        host = _host_compiler()
    except Missing:
        host = "no host compiler"
    return f"{fitting or COMPILER_PACKAGES[0]}, {host}"


def find_disassembler() -> Path:
    """nvdisasm, from the machine's toolkit or installed once from PyPI (about 5 MB).

    Raises:
        Missing: pip could not install it.
    """
    found = shutil.which("nvdisasm")
    beside = [nvcc.with_name("nvdisasm") for nvcc in _candidates()]
    for path in [*([Path(found)] if found else []), *beside]:
        if path.is_file():
            return path
    return _installed("nvdisasm", DISASSEMBLER_PACKAGES) / "bin" / "nvdisasm"


def _candidates() -> Iterator[Path]:
    """The places where a machine keeps its nvcc, the most explicit first."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            yield Path(home, "bin", "nvcc")
    if on_path := shutil.which("nvcc"):
        yield Path(on_path)
    yield USUAL_PLACE


def _version(nvcc: Path) -> str | None:
    """The version that an nvcc reports, None where it is absent or does not run."""
    try:
        done = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    found = re.search(r"\bV(\d+\.\d+\.\d+)", done.stdout)
    return found[1] if found and done.returncode == 0 else None


def _is_new_enough(version: str) -> bool:
    major, minor = version.split(".")[:2]
    return (int(major), int(minor)) >= OLDEST


def _host_compiler() -> str:
    """What the C++ compiler that nvcc will call says of itself."""
    name = os.environ.get("NVCC_CCBIN", "g++")
    try:
        done = subprocess.run([name, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        # why: nvcc calls it for everything but the kernels
        raise Missing(
            f"nvcc needs a host C++ compiler and {name} does not run: {error}.",
            "Install g++, or name another compiler in NVCC_CCBIN.",
        ) from error
    return done.stdout.splitlines()[0]


def _installed(name: str, packages: Sequence[str]) -> Path:
    """The prefix of packages installed by pip in the cache: whole or not there, and one install at a time."""
    place = cache_dir("toolchain", f"{name}-{packages[0].partition('==')[2]}")
    prefix = place / PREFIX
    if prefix.is_dir():
        return prefix
    with exclusive(place):
        if not prefix.is_dir():
            publish(place, partial(_install, packages))
    return prefix


def _install(packages: Sequence[str], folder: Path) -> None:
    report.say(f"installing {', '.join(packages)} into {folder.parent}")
    options = ["--disable-pip-version-check", "--quiet", "--no-deps", "--target", str(folder)]
    command = [sys.executable, "-m", "pip", "install", *options, *packages]
    done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        # why: the packages come from the user's index, which may not have them
        raise Missing(
            f"pip could not install {', '.join(packages)}: {done.stderr.strip()[-400:]}",
            "Give this machine a package index, or set CUDA_HOME to a CUDA toolkit of 12.8 or newer.",
        )
