"""Which packages are fabricated, and how Python is made to find them.

Only what a GPU server has and this machine has not: a package of the table below that cannot be imported here, and
that the tree's own metadata requires. That makes "is it installed, and which version?" a fact of the tree and not
of the stub: upstream's wheel pins `sgl-kernel` and `flashinfer_python` exactly, so a server that runs it has them.
What such a package *does* is nobody's fact here; see stubs.py.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from sm120_overlay.serving.rig import newer, phase
from sm120_overlay.serving.rig.stubs import StubModule


@dataclass(frozen=True)
class GpuPackage:
    """A package that needs a GPU, or gigabytes of CUDA, to install or to import."""

    module: str
    """Top-level module."""
    distribution: str
    """Name on PyPI, normalised with `-`."""
    with_torch: Mapping[str, str] = field(default_factory=dict)
    """Version to present where the tree's metadata gives none: the tree's torch → what that torch comes with."""
    needed_through: str | None = None
    """The requirement that brings it, where the tree does not name it itself."""

    def version(self, requirements: Mapping[str, str | None]) -> str | None:
        """Version that a server has on which these requirements (normalised name → exact version) are installed."""
        return requirements.get(self.distribution) or self.with_torch.get(requirements.get("torch") or "")


# Neither is pinned by a tree itself, but both by its torch: the torchvision that requires that torch (0.29.1: at least
# 2.14.0, the newest of its day), and what the CUDA build of that torch requires (2.14.1: any triton 3.8).
_TORCHVISION = {"2.9.1": "0.24.1", "2.11.0": "0.26.0", "2.14.1": "0.29.1"}
_TRITON = {"2.9.1": "3.5.1", "2.11.0": "3.6.0", "2.14.1": "3.8.0"}

# CUDA of a server's torch: for 2.9.1 that of SGLang's own image, later that of the package index's builds.
CUDA = {"2.9.1": "12.9", "2.11.0": "13.0", "2.14.1": "13.0"}

GPU_PACKAGES = (
    # One package under two names: sgl-kernel to SGLang 0.5.9, sglang-kernel later.
    GpuPackage("sgl_kernel", "sgl-kernel"),
    GpuPackage("sgl_kernel", "sglang-kernel"),
    GpuPackage("flashinfer", "flashinfer-python"),
    GpuPackage("torchvision", "torchvision", with_torch=_TORCHVISION),
    GpuPackage("triton", "triton", with_torch=_TRITON, needed_through="torch"),
    # Needs no GPU to run, but triton to install.
    GpuPackage("xgrammar", "xgrammar"),
)


@dataclass(frozen=True)
class Stubbed:
    """One fabricated package: its module and the version that it is presented in, if any is known."""

    package: GpuPackage
    version: str | None


def canonicalize_name(name: str) -> str:
    """A distribution's name, normalised as PyPI does; `packaging` is not installed where the rig extra is not."""
    return re.sub(r"[-_.]+", "-", name).lower()


def missing(requirements: Mapping[str, str | None]) -> tuple[Stubbed, ...]:
    """The packages to fabricate, given the tree's requirements (normalised name → exact version, or None).

    Call it before anything is installed on `sys.meta_path`: a package counts as missing if Python cannot find it.
    """
    wanted = [p for p in GPU_PACKAGES if (p.needed_through or p.distribution) in requirements]
    absent = [p for p in wanted if p.module not in sys.modules and PathFinder.find_spec(p.module) is None]
    return tuple(Stubbed(p, p.version(requirements)) for p in absent)


class _NoDriver:
    """Triton's driver on a machine without a GPU: it raises, and upstream's fallback for that is the right one."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError("0 active drivers ([]). There should only be one.")


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length() if n > 0 else 0


# Members that are plain host arithmetic, or the behaviour of the real package on a machine without a GPU: known, so
# given. Everything else of these modules is a stub.
KNOWN: Mapping[str, Mapping[str, object]] = {
    "triton": {"cdiv": _cdiv, "next_power_of_2": _next_power_of_2},
    "triton.runtime": {"driver": _NoDriver()},
}


class _StubLoader(Loader):
    def __init__(self, version: str | None) -> None:
        self._version = version

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if self._version is not None and "." not in module.__name__:
            module.__dict__["__version__"] = self._version
        module.__dict__.update(KNOWN.get(module.__name__, {}))
        for submodule in KNOWN:
            if submodule.rpartition(".")[0] == module.__name__:
                importlib.import_module(submodule)


class _StubDistribution(metadata.Distribution):
    """What `importlib.metadata` says of a fabricated package: a name and the version that the tree pins."""

    def __init__(self, name: str, version: str) -> None:
        self._text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return Path("fabricated") / path


class StubFinder(MetaPathFinder):
    """Finds the fabricated packages, their submodules and their metadata."""

    def __init__(self, stubbed: Sequence[Stubbed]) -> None:
        """Answer for these packages, and for no others."""
        self._stubbed = {stub.package.module: stub for stub in stubbed}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a fabricated package or submodule; every one is a package, so that all of them nest."""
        del path, target
        top = fullname.partition(".")[0]
        if top not in self._stubbed:
            return None
        return ModuleSpec(fullname, _StubLoader(self._stubbed[top].version), is_package=True)

    def find_distributions(
        self, context: metadata.DistributionFinder.Context | None = None
    ) -> Iterator[metadata.Distribution]:
        """The metadata of the fabricated packages whose version is known."""
        name = context.name if context else None
        for stub in self._stubbed.values():
            if stub.version and (name is None or canonicalize_name(name) == stub.package.distribution):
                yield _StubDistribution(stub.package.distribution, stub.version)


class LoadWatcher(MetaPathFinder):
    """Finds what `sys.path` has, exactly as Python would, and marks the running of each module's body as loading."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """PathFinder's spec, with a loader that tells `phase` when it executes the module."""
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            _watch(spec.loader)
        return spec


def _nothing(module: ModuleType) -> None:
    del module


def _watch(loader: Loader) -> None:
    """Wrap `exec_module` on the loader itself: its other abilities (source, resources) stay what they are."""
    run: Callable[[ModuleType], None] = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        with phase.load():
            run(module)
            newer.AFTER.get(module.__name__, _nothing)(module)

    loader.exec_module = exec_module  # type: ignore[method-assign]
