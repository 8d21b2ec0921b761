"""FlashInfer's Python on a machine without a GPU: imports it from a tree, and gives its code a capability to see.

What a patch must do with that capability belongs in its test.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
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
            loaded = _import()
        sys.modules["flashinfer.jit.cpp_ext"].get_cuda_version = lambda: Version(CUDA_VERSION)  # type: ignore[attr-defined]
    found = Path(str(loaded.__file__)).resolve().parents[1]
    if found != tree.resolve():
        # why: Python keeps the first one that was imported: the verdict would be about it
        raise Missing(f"flashinfer is loaded from {found}, not from {tree}.", "Judge one tree a process.")
    return loaded


def _import() -> ModuleType:
    try:
        return importlib.import_module("flashinfer")
    except ImportError as error:
        # why: an import that breaks must not count as red
        raise Missing(
            f"FlashInfer cannot be imported: {error}.", "Install the project with its `rig` extra."
        ) from error


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
