"""A rebase that has begun: what was asked, and what a person decided since. One JSON file in the git directory of the
work repository; everything else is computed anew from it, so that a run which was killed goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import Refused
from .home import Home
from .moving import Decided
from .pinning import as_table, from_table
from .pins import Pin
from .transaction import read_file, replace_file

SCHEMA = 1


@dataclass(frozen=True)
class Begun:
    """A rebase under way.

    `line` is the line that the series comes from, `pin` where it goes, `joint` and `default` what pins.toml
    is to say of a new line, `sources` where the user said upstream is, `offered` the commit
    whose series a person was asked to mend, `taken` the checkout whose branch was made by hand.
    """

    line: str
    pin: Pin
    sources: tuple[str, ...] = ()
    joint: Mapping[str, str] = field(default_factory=dict)
    default: bool = False
    decided: Mapping[str, Decided] = field(default_factory=dict)
    offered: str = ""
    taken: str = ""


def workshop_folder(home: Home, upstream: str) -> Path:
    """Where rebases of an upstream are made: below build/, which git ignores."""
    return home.root / "build" / "rebase" / upstream


def state_file(home: Home, upstream: str) -> Path:
    """Exists exactly while a rebase is under way."""
    return workshop_folder(home, upstream) / "repo.git" / "sm120-rebase.json"


def read_begun(home: Home, upstream: str) -> Begun | None:
    """The rebase that is under way, None where there is none.

    Raises:
        Refused: its file cannot be read by this version.
    """
    file = state_file(home, upstream)
    data = read_file(file)
    if data is None:
        return None
    try:
        return _begun(upstream, json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # why: decisions that are half read would be asked for again, and the first ones lost
        raise Refused(
            f"{file}: the state of a rebase that this version cannot read ({type(error).__name__}).",
            "Use the version that began it, or remove the file: resolutions are remembered by git's rerere beside it.",
        ) from None


def _begun(upstream: str, said: dict[str, Any]) -> Begun:
    if said["schema"] != SCHEMA:
        raise ValueError(said["schema"])
    return Begun(
        said["from"],
        from_table(said["line"], upstream, said["pin"]),
        tuple(said["sources"]),
        dict(said["joint"]),
        bool(said["default"]),
        {slug: Decided(**one) for slug, one in said["decided"].items()},
        str(said["offered"]),
        str(said["taken"]),
    )


def write_begun(home: Home, begun: Begun) -> None:
    """Keeps it, so that it outlives a loss of power."""
    said = {
        "schema": SCHEMA,
        "from": begun.line,
        "line": begun.pin.line,
        "pin": as_table(begun.pin),
        "sources": list(begun.sources),
        "joint": dict(begun.joint),
        "default": begun.default,
        "decided": {slug: asdict(one) for slug, one in begun.decided.items()},
        "offered": begun.offered,
        "taken": begun.taken,
    }
    replace_file(state_file(home, begun.pin.upstream), json.dumps(said, indent=1).encode(), durable=True)


def forget(home: Home, upstream: str) -> None:
    """The rebase is over."""
    state_file(home, upstream).unlink(missing_ok=True)
