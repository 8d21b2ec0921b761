"""Letting upstream resolve server arguments, and keeping what came of it apart from how it was asked.

An outcome is either arguments or upstream's own refusal; anything else (a stub that was asked, an attribute that
this release does not have) is no outcome and propagates.
"""

from __future__ import annotations

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
    """Its ServerArgs, or None where it refused."""
    refusal: Exception | None
    """What it raised, or None."""
    warnings: tuple[str, ...]
    """Messages that it logged at WARNING or above."""
    environment: dict[str, str | None] = field(repr=False)
    """Environment variables that it set (or removed: None); they are put back after the call."""

    @property
    def args(self) -> Any:
        """The resolved ServerArgs; RigError with upstream's words where it refused."""
        if self.refusal is not None:
            raise RigError(f"Upstream refused {self.asked}: {self.refusal!r}") from self.refusal
        return self.outcome


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
    """Construct upstream's ServerArgs for the checkpoint in `model`, as the server does at start.

    Present a card first: without one, upstream resolves for a machine that has no GPU. `asked` are fields of
    ServerArgs. Upstream's environment changes do not outlive the call. Raises StubDecided where a stub was asked, even
    if upstream swallowed the error.
    """
    server_args = standing.module("sglang.srt.server_args").ServerArgs
    given = {"model_path": str(model), "random_seed": 0, **asked}
    outcome, refusal, before = None, None, len(raised)
    with _listening() as messages, _environment() as changes:
        try:
            outcome = server_args(**given)
        except REFUSALS as error:
            refusal = error
    if len(raised) > before:  # upstream caught it, and went on with a guess
        raise raised[before]
    return Resolution(given, outcome, refusal, tuple(messages), changes)
