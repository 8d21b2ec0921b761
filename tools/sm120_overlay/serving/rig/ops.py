"""Upstream's custom operators on a machine without a GPU: it registers them for CUDA alone.

What runs here is the function that upstream registered, and nothing else; its tensors lie on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sm120_overlay.serving.rig.tree import UPSTREAM


@contextmanager
def on_cpu(*names: str) -> Iterator[None]:
    """Within the block, `torch.ops.sglang.NAME` takes CPU tensors too. The modules that register them are loaded."""
    import torch  # seconds, and the `rig` extra: only when an operator is asked for

    make: Any = torch.library.Library  # torch gives it no types
    library = make(UPSTREAM, "IMPL")
    keys = torch._C._dispatch_keys(torch.empty(0))
    for name in names:
        kernel = torch.library.get_kernel(f"{UPSTREAM}::{name}", "CUDA")

        def run(*args: Any, kernel: Any = kernel) -> Any:
            return kernel.call_boxed(keys, *args)

        library.impl(name, run, "CPU")
    try:
        yield
    finally:
        library._destroy()
