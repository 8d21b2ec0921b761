"""Letting upstream resolve server arguments, and keeping what came of it apart from how it was asked.

An outcome is either arguments or upstream's own refusal; anything else (a stub that was asked, an attribute that
this release does not have) is no outcome and propagates.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sm120_overlay.serving.rig.errors import RigError, raised
from sm120_overlay.serving.rig.tree import Standing

# How upstream says no to arguments. A TypeError or an AttributeError is a release that the caller does not know.
REFUSALS = (AssertionError, ValueError, NotImplementedError)


@dataclass(frozen=True)
class Resolution:
    """What upstream made of the arguments it was given."""

    asked: dict[str, Any]
    """What it was given."""
    outcome: Any
    """Its resolved arguments, or None where it refused."""
    refusal: Exception | None
    """What it raised, or None."""
    warnings: tuple[str, ...]
    """Messages that it logged at WARNING or above."""
    environment: dict[str, str | None] = field(repr=False)
    """Environment variables that it set (or removed: None); they are put back after the call."""
    record: Any = field(default=None, repr=False)
    """Its ServerArgs, which the server hands to its processes, or None where it refused."""

    @property
    def args(self) -> Any:
        """The resolved arguments, read-only; RigError with upstream's words where it refused.

        Every field is what the server's processes read. That is the ServerArgs itself, except in a release whose
        ServerArgs keeps what was asked (0.5.23): there it is upstream's own view of it.
        """
        self._check()
        return self.outcome

    @property
    def model_config(self) -> Any:
        """Upstream's ModelConfig of these arguments; RigError with upstream's words where it refused them."""
        self._check()
        return model_config(self.record)

    @property
    def attention_backends(self) -> tuple[str, str]:
        """Attention backend of the prefill, and of the decode; RigError with upstream's words where it refused."""
        return attention_backends(self.args)

    def _check(self) -> None:
        if self.refusal is not None:
            raise RigError(f"Upstream refused {self.asked}: {self.refusal!r}") from self.refusal


def _overrides() -> Any:
    """The module of later releases in which what was asked is told from what is resolved."""
    return importlib.import_module("sglang.srt.arg_groups.overrides")


def model_config(record: Any) -> Any:
    """Upstream's ModelConfig of resolved arguments, given its ServerArgs; made once, and kept by upstream."""
    own = getattr(record, "get_model_config", None)
    return own() if own else _overrides().model_config_of(record)


def attention_backends(args: Any) -> tuple[str, str]:
    """Attention backend of the prefill, and of the decode, of resolved arguments."""
    own = getattr(args, "get_attention_backends", None)
    prefill, decode = own() if own else _overrides().attention_backends_of(args)
    return prefill, decode


def resolved(record: Any) -> Any:
    """The arguments that a server has after its start, given its ServerArgs: upstream resolves them here if not yet.

    Up to 0.5.16 construction resolves, and the fields hold the result. Later a launcher calls `resolve_once`, the
    fields keep what was asked, and `runtime_context.publish` reads each field by `resolution_result`.
    """
    if not hasattr(record, "resolve_once"):
        return record
    record.resolve_once()
    overrides = _overrides()
    fields = importlib.import_module("sglang.srt.arg_groups.arg_utils").field_names(type(record))
    return overrides.ResolvedView(record, {name: overrides.resolution_result(record, name) for name in fields})


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def _listening() -> Iterator[list[str]]:
    handler = _Warnings()
    logger = logging.getLogger("sglang")
    logger.addHandler(handler)
    try:
        yield handler.messages
    finally:
        logger.removeHandler(handler)


@contextmanager
def _environment() -> Iterator[dict[str, str | None]]:
    """Give upstream the environment as it is, note what it changes, and put it back."""
    before = dict(os.environ)
    changes: dict[str, str | None] = {}
    try:
        yield changes
    finally:
        after = dict(os.environ)
        changes.update(
            {key: after.get(key) for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        )
        os.environ.clear()
        os.environ.update(before)


def resolve(standing: Standing, model: Path, **asked: Any) -> Resolution:
    """Construct and resolve upstream's ServerArgs for the checkpoint in `model`, as the server does at start.

    Present a card first: without one, upstream resolves for a machine that has no GPU. `asked` are fields of
    ServerArgs. Upstream's environment changes do not outlive the call. Raises StubDecided where a stub was asked, even
    if upstream swallowed the error.
    """
    server_args = standing.module("sglang.srt.server_args").ServerArgs
    given = {"model_path": str(model), "random_seed": 0, **asked}
    record, outcome, refusal, before = None, None, None, len(raised)
    with _listening() as messages, _environment() as changes:
        try:
            record = server_args(**given)
            outcome = resolved(record)
        except REFUSALS as error:
            refusal = error
    if len(raised) > before:  # upstream caught it, and went on with a guess
        raise raised[before]
    return Resolution(given, outcome, refusal, tuple(messages), changes, None if refusal else record)
