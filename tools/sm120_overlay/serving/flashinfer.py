"""FlashInfer's Python on a machine without a GPU: imports it from a tree, and gives its code a capability to see.

What a patch must do with that capability belongs in its test.
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from packaging.version import Version

from ..errors import Missing

# What FlashInfer's generators are told where they ask which CUDA they write for: the release of the pinned nvcc.
CUDA_VERSION = "13.0"

# FlashInfer's own headers and the CUTLASS it ships, as its JIT passes them (flashinfer/jit/cpp_ext.py, 0.6.3).
INCLUDES = (
    "flashinfer/data/include",
    "flashinfer/data/csrc",
    "flashinfer/data/cutlass/include",
    "flashinfer/data/cutlass/tools/util/include",
)

# What flashinfer.comm imports of cuda-python, which needs no GPU to be imported but is no small package.
CUDA_PYTHON = ("cuda", "cuda.bindings", "cuda.bindings.driver", "cuda.bindings.nvrtc", "cuda.bindings.runtime")


def import_flashinfer(tree: Path, workspace: Path) -> ModuleType:
    """`flashinfer` from this tree, with its caches in `workspace`; the tree is not written to.

    It is told which CUDA there is, as it would ask an nvcc on PATH or a CUDA build of torch, and needs neither here.

    Raises:
        Missing: a package that FlashInfer imports is not installed, or another FlashInfer is already loaded.
    """
    loaded = sys.modules.get("flashinfer")
    if loaded is None:
        with (
            mock.patch.object(sys, "path", [str(tree), *sys.path]),
            mock.patch.object(sys, "dont_write_bytecode", True),
        ):
            os.environ["FLASHINFER_WORKSPACE_BASE"] = str(workspace)
            loaded = _import("flashinfer")
        sys.modules["flashinfer.jit.cpp_ext"].get_cuda_version = lambda: Version(CUDA_VERSION)  # type: ignore[attr-defined]
    found = Path(str(loaded.__file__)).resolve().parents[1]
    if found != tree.resolve():
        # why: Python keeps the first one that was imported: the verdict would be about it
        raise Missing(f"flashinfer is loaded from {found}, not from {tree}.", "Judge one tree a process.")
    return loaded


def version_of(tree: Path) -> Version:
    """Which FlashInfer a tree is, by the name of its dist-info."""
    (found,) = tree.glob("flashinfer_python-*.dist-info")
    return Version(found.name.removesuffix(".dist-info").partition("-")[2])


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        # why: an import that breaks must not count as red
        raise Missing(
            f"FlashInfer cannot be imported: {error}.", "Install the project with its `rig` extra."
        ) from error


def import_comm(tree: Path, workspace: Path) -> ModuleType:
    """`flashinfer.comm` from this tree: it asks for cuda-python, and for the libcudart that this process has mapped.

    Both are fabricated, and refuse to answer once it is imported.

    Raises:
        Missing: as import_flashinfer.
    """
    # Seconds that a compile proof need not pay.
    from .rig import phase

    import_flashinfer(tree, workspace)
    with _cuda_python(), _mapped_cudart(workspace), phase.load():
        return _import("flashinfer.comm")


@contextmanager
def _cuda_python() -> Iterator[None]:
    """Modules of cuda-python to import from, where there are none; gone again afterwards."""
    from .rig import stubs

    absent = [name for name in CUDA_PYTHON if name not in sys.modules]
    for name in absent:
        module = sys.modules[name] = stubs.StubModule(name)
        module.__dict__.update(__path__=[], __spec__=ModuleSpec(name, None, is_package=True))
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


@contextmanager
def _mapped_cudart(workspace: Path) -> Iterator[None]:
    """A libcudart in this process's memory map, where flashinfer.comm looks for one; loading it gives a stub."""
    from .rig import stubs

    library = workspace / "libcudart_standin.so"
    library.write_bytes(b"no library")
    real = ctypes.CDLL

    def load(name: Any, *args: Any, **kwargs: Any) -> Any:
        return stubs.Stub("libcudart") if "libcudart" in str(name) else real(name, *args, **kwargs)

    with (
        library.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ),
        mock.patch.object(ctypes, "CDLL", load),
    ):
        yield


@contextmanager
def capability(major: int, minor: int) -> Iterator[None]:
    """FlashInfer sees a CUDA device of this compute capability; what it memoised of another is forgotten."""
    with mock.patch("flashinfer.utils.get_compute_capability", lambda _device: (major, minor)):
        _forget()
        try:
            yield
        finally:
            _forget()


def _forget() -> None:
    """Empties every `functools` cache of flashinfer.utils: they are keyed by device, not by capability."""
    for function in vars(sys.modules["flashinfer.utils"]).values():
        clear = getattr(function, "cache_clear", None)
        if clear is not None and getattr(function, "__module__", None) == "flashinfer.utils":
            clear()
