"""Upstream's own object for the machine that it runs on: `sglang.srt.platforms.current_platform`, in later releases.

It is made at the first question, and bound by name in every module that imports it: while modules load, that is, when
the rig has withdrawn the card. Unlike the flags of `flags.py` it is one object, and stands for a server's whole
process: a presented card takes its place wherever it is bound.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from sm120_overlay.serving.rig.tree import UPSTREAM

_MODULE = f"{UPSTREAM}.srt.platforms"
_BOUND = "current_platform"
_KEPT = "_current_platform"
_on_card: dict[ModuleType, Any] = {}


def _rebind(module: ModuleType, old: Any, new: Any) -> None:
    """Put `new` in the place of `old`, where the module keeps it and wherever other modules have bound it."""
    setattr(module, _KEPT, new)
    for name, other in list(sys.modules.items()):
        if name.partition(".")[0] == UPSTREAM and isinstance(other, ModuleType) and vars(other).get(_BOUND) is old:
            setattr(other, _BOUND, new)


def asked() -> ModuleType | None:
    """Upstream's module, once it has said what the machine is without a card; None where none is loaded."""
    module = sys.modules.get(_MODULE)
    if not isinstance(module, ModuleType) or not hasattr(module, "_resolve_platform"):
        return None
    getattr(module, _BOUND)
    return module


@contextmanager
def presented(module: ModuleType | None) -> Iterator[None]:
    """Within the block, the machine is what upstream makes of the card that is presented around it."""
    if module is None:
        yield
        return
    without = getattr(module, _KEPT)
    if module not in _on_card:
        _on_card[module] = module._resolve_platform()
    _rebind(module, without, _on_card[module])
    try:
        yield
    finally:
        _rebind(module, _on_card[module], without)
