"""Resolved arguments in the place where a server's scheduler keeps them, for code of upstream's that asks there.

Three places so far: a variable of `server_args` (0.5.9), `runtime_context` holding the ServerArgs (0.5.16), and
`runtime_context` holding what was resolved by namespace, and the rank (0.5.23).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from sm120_overlay.serving.rig.resolve import Resolution
from sm120_overlay.serving.rig.tree import UPSTREAM, Standing

_CONTEXT = f"{UPSTREAM}.srt.runtime_context"


def in_effect(standing: Standing, name: str) -> Any:
    """What upstream's processes read now for one field of the published arguments; ValueError where none are."""
    if importlib.util.find_spec(_CONTEXT) is None:
        return getattr(standing.module(f"{UPSTREAM}.srt.server_args").get_global_server_args(), name)
    context = standing.module(_CONTEXT).get_context()
    return context.config_leaf(name) if hasattr(context, "config_leaf") else getattr(context.server_args, name)


@contextmanager
def _variable(module: Any) -> Iterator[None]:
    before = module._global_server_args
    try:
        yield
    finally:
        module._global_server_args = before


@contextmanager
def _context(module: Any) -> Iterator[None]:
    """An empty context of upstream's within the block, and the one that was there after it."""
    snapshot = getattr(module, "snapshot_context", None)
    context = module.get_context()
    slots = [slot for slot in type(context).__slots__ if slot != "parallel"]
    before = snapshot() if snapshot else {slot: getattr(context, slot) for slot in slots}
    module.reset_context()
    try:
        yield
    finally:
        if snapshot:
            module.restore_context(before)
        for slot in [] if snapshot else slots:
            setattr(context, slot, before[slot])


def publish(standing: Standing, record: Any) -> None:
    """Make `record` this process's arguments, as the scheduler of rank 0 does; it stays so."""
    module: Any = standing.module(_CONTEXT) if importlib.util.find_spec(_CONTEXT) else None
    if hasattr(module, "SpawnRanks"):
        module.publish(record, role="scheduler", ranks=module.SpawnRanks(world_rank=0, gpu_id=0))
    else:
        standing.module(f"{UPSTREAM}.srt.server_args").set_global_server_args_for_scheduler(record)


@contextmanager
def published(standing: Standing, resolution: Resolution) -> Iterator[None]:
    """Within the block, `resolution` is what upstream's code reads as the arguments of this process, which has rank 0.

    Its changes of the environment hold there too. RigError with upstream's words where it refused the arguments.
    """
    _ = resolution.args
    server_args = standing.module(f"{UPSTREAM}.srt.server_args")
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ))
        for name, value in resolution.environment.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})
        later = importlib.util.find_spec(_CONTEXT) is not None
        stack.enter_context(_context(standing.module(_CONTEXT)) if later else _variable(server_args))
        publish(standing, resolution.record)
        yield
