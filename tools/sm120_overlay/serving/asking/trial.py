"""Trying a step of upstream's, and telling its own no from what cannot be known here.

A no is an exception that upstream's code in the tree raises. What the rig refuses, or what only a real GPU could do,
is no answer, and is kept apart as unknown.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sm120_overlay.serving.rig.errors import RigError, raised
from sm120_overlay.serving.rig.tree import Standing

T = TypeVar("T")
NO = (AssertionError, ValueError, NotImplementedError, RuntimeError)
# torch's words for what a CPU cannot do: a fact of this machine, not of the server.
_OF_THIS_MACHINE = re.compile(r"not implemented for|CUDA|meta tensor|no NVIDIA|Meta backend|vllm", re.IGNORECASE)


class Ends(Exception):
    """Where upstream would end, known without running into it: its sentence, and the file of upstream's that ends."""

    def __init__(self, sentence: str, where: str, kind: type[Exception] = AssertionError) -> None:
        super().__init__(sentence)
        self.where, self.kind = where, kind


@dataclass(frozen=True)
class Fail:
    """A step at which the server would refuse or crash, in upstream's words."""

    stage: str
    kind: str
    sentence: str
    where: str
    """FILE:LINE in the tree."""


@dataclass(frozen=True)
class Unknown:
    """A step that could not be asked here, and why."""

    stage: str
    why: str


@dataclass
class Findings:
    """What the steps so far have shown."""

    standing: Standing
    choices: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    fails: list[Fail] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """All but the tree."""
        fails, unknown = [asdict(fail) for fail in self.fails], [asdict(one) for one in self.unknown]
        told = {"choices": self.choices, "arguments": self.arguments, "facts": self.facts}
        return {**told, "fails": fails, "unknown": unknown}


def attempt(found: Findings, stage: str, step: Callable[[], T], *, strict: bool = False) -> T | None:
    """The step's value; None where upstream says no (kept as a Fail) or nothing can be known (kept as Unknown).

    Args:
        strict: any exception that is not the rig's own is upstream's no: the step does what a server does before it
            looks at a GPU.
    """
    before = len(raised)
    try:
        value = step()
    except Ends as end:
        found.fails.append(Fail(stage, end.kind.__name__, str(end), end.where))
        return None
    except Exception as error:
        if len(raised) == before and _is_no(found.standing, error, strict):
            found.fails.append(Fail(stage, type(error).__name__, _sentence(error), where(found.standing, error)))
        else:
            found.unknown.append(Unknown(stage, _why(error, before)))
        return None
    if len(raised) > before:  # upstream caught it, and went on with a guess
        found.unknown.append(Unknown(stage, _first_line(raised[before])))
        return None
    return value


def _is_no(standing: Standing, error: Exception, strict: bool) -> bool:
    if isinstance(error, RigError):
        return False
    if strict:
        return True
    return isinstance(error, NO) and bool(where(standing, error)) and not _OF_THIS_MACHINE.search(str(error))


def where(standing: Standing, error: BaseException) -> str:
    """FILE:LINE of the innermost frame if that lies in the tree, else ""."""
    frames = traceback.extract_tb(error.__traceback__)
    inner = Path(frames[-1].filename).resolve() if frames else Path()
    return f"{inner.relative_to(standing.tree)}:{frames[-1].lineno}" if standing.tree in inner.parents else ""


def _sentence(error: BaseException) -> str:
    said = error.args[0] if error.args and isinstance(error.args[0], tuple) else str(error)
    text = "".join(map(str, said)) if isinstance(said, tuple) else said
    return " ".join(text.split()) or type(error).__name__


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _why(error: Exception, before: int) -> str:
    cause = raised[before] if len(raised) > before else error
    name = "" if isinstance(cause, RigError) else f"{type(cause).__name__}: "
    return f"{name}{_first_line(cause)}"
