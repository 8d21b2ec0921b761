"""What can happen in a session, as nouns, and as one JSON object each: what comes back is what went in, bit for bit.

An object is read by its noun's annotations, so a noun's fields are all that there is to keep. Numbers that JSON lacks
(an open interval's inf) are strings.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from .decision.nouns import Rules, Verdict
from .job import Cell, Ran

SCHEMA = 1
# in place of a program's number; no posterior counts these
UNDONE = -1  # the new end without its culprit
BESIDE = -2  # the new end, run beside that


class Undoing(str, Enum):
    """What became of the new end when its culprit was taken back there."""

    CONFIRMED = "confirmed"  # it gives the old end's level again
    REFUTED = "refuted"  # it stays as it was: something else did it, or did it too
    PARTLY = "partly"  # it gives a third level for sure: another change makes the rest
    UNDECIDED = "undecided"  # the noise hides which
    CONFLICT = "conflict"  # the culprit does not revert cleanly there
    UNTESTABLE = "untestable"  # it reverts, and no run judges what comes out


@dataclass(frozen=True)
class Opened:
    """A session begins: all that makes it what it is.

    `history` is bisection.timeline's, `unit` the metric as it was typed, `terms` what the sides are called, `asked` the
    options that a later run must repeat.
    """

    upstream: str
    old: str
    new: str
    cell: Cell
    rules: Rules
    history: Mapping[str, Any]
    line: str = ""
    unit: str = ""
    terms: tuple[str, str] = ("", "")
    releases: bool = False
    asked: Mapping[str, str] = field(default_factory=dict)
    at: float = 0.0
    schema: int = SCHEMA


@dataclass(frozen=True)
class Driven:
    """A driver takes the session up; what another had started and not ended is lost."""

    pid: int
    host: str = ""
    at: float = 0.0


@dataclass(frozen=True)
class Ruled:
    """From here on other limits hold: how sure is sure enough, and how many runs may be made."""

    rules: Rules


@dataclass(frozen=True)
class Started:
    """A run is given to the hosts."""

    number: int
    program: int
    at: float = 0.0


@dataclass(frozen=True)
class Ended:
    """A run came back. `key` names what it ran."""

    program: int
    key: str
    ran: Ran


@dataclass(frozen=True)
class Voided:
    """A person takes a run out, or (`lifted`) in again."""

    number: int
    why: str = ""
    lifted: bool = False


@dataclass(frozen=True)
class Skipped:
    """A person says that a program cannot be judged, or (`lifted`) that it can after all."""

    program: int
    why: str = ""
    lifted: bool = False
    revision: str = ""


@dataclass(frozen=True)
class Concluded:
    """The answer, as it was given then."""

    verdict: Verdict


@dataclass(frozen=True)
class Reverted:
    """What taking the culprit back on the new end showed; `key` names that program, `why` is a sentence."""

    outcome: Undoing
    why: str
    key: str = ""


Event = Opened | Driven | Ruled | Started | Ended | Voided | Skipped | Concluded | Reverted
KINDS: Mapping[str, type[Any]] = {
    "session": Opened,
    "driver": Driven,
    "rules": Ruled,
    "start": Started,
    "run": Ended,
    "void": Voided,
    "skip": Skipped,
    "verdict": Concluded,
    "reverted": Reverted,
}
NAMES = {noun: name for name, noun in KINDS.items()}


def as_json(value: object) -> Any:
    """Nouns, enumerations, tuples and numbers as JSON has them."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {each.name: as_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: as_json(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [as_json(each) for each in value]
    return value if not isinstance(value, float) or math.isfinite(value) else repr(value)


def from_json(kind: Any, value: Any) -> Any:
    """A value of an annotated type, from what `as_json` made of it.

    Raises:
        ValueError: it is of another form; the sentence says where.
    """
    if kind is Any:
        return value
    if get_origin(kind) is not None:
        return _made_of(get_origin(kind), get_args(kind), value)
    if is_dataclass(kind):
        return _noun(kind, value)
    if issubclass(kind, Enum):
        return kind(value)
    return float(_typed((int, float, str), value)) if kind is float else _typed(kind, value)


def _made_of(origin: Any, inner: tuple[Any, ...], value: Any) -> Any:
    """A value of `X | None`, of a tuple or of a mapping."""
    if origin in (Union, types.UnionType):
        return None if value is None else from_json(inner[0], value)
    if origin is tuple:
        kinds = inner[:1] * len(_typed(list, value)) if inner[-1] is Ellipsis else inner
        return tuple(from_json(kind, each) for kind, each in zip(kinds, _typed(list, value), strict=True))
    return {str(key): from_json(inner[1], each) for key, each in _typed(dict, value).items()}


def _noun(kind: Any, value: Any) -> Any:
    hints = _hints(kind)
    if unknown := sorted(_typed(dict, value).keys() - hints.keys()):
        raise ValueError(f"{kind.__name__} has no {', '.join(unknown)}")
    try:
        return kind(**{name: from_json(hints[name], each) for name, each in value.items()})
    except TypeError:
        raise ValueError(f"{kind.__name__} is not whole") from None


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _typed(kind: Any, value: Any) -> Any:
    """The value, if it is of the kind; true and false are no numbers."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"expected {getattr(kind, '__name__', 'a number')}, found {value!r}")
    return value


def event_json(event: Event) -> dict[str, Any]:
    """The object of an event; `event` is its kind."""
    return {"event": NAMES[type(event)], **as_json(event)}


def event_from(value: Any) -> Event:
    """The event of an object.

    Raises:
        ValueError: it is none of ours, or not whole.
    """
    if not isinstance(value, dict) or value.get("event") not in KINDS:
        raise ValueError("no event of a bisection")
    event: Event = from_json(KINDS[value["event"]], {key: each for key, each in value.items() if key != "event"})
    return event
