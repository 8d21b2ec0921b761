"""Where the patches of a line come from: what the move from another line gave, and what a person decided there.

`patches/LINE/UPSTREAM/origin.toml` is written by `rebase`, which reads it when it makes the same move again: a decision
holds while the merge that it was made for is the same, and the patch in the folder is that decision.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .carry import State
from .patch import SLUG
from .toml import BadToml, parse_toml
from .transaction import read_file

NAME = "origin.toml"
SCHEMA = 1
NEW = "new"  # a patch that the line before has not
HEADER = """\
# Written by tools/rebase.py: how each patch came here from the line before. `state` is what the merge gave, `merge` the
# name of its inputs; `decided` patches are as a person made them then: the same merge takes the same decision again.
"""


@dataclass(frozen=True)
class Row:
    """How one patch came: the state of its merge (or `new`), the name of the merge, whether a person changed it."""

    slug: str
    state: str
    merge: str = ""
    decided: bool = False


@dataclass(frozen=True)
class Origin:
    """The move that made a series: the line it came from, and its patches in order."""

    line: str
    rows: tuple[Row, ...]

    def row(self, slug: str) -> Row | None:
        """How a patch came, None where it is not of this series."""
        return next((row for row in self.rows if row.slug == slug), None)


def read_origin(folder: Path) -> Origin | None:
    """The origin in the folder of a series, None where there is none: the series was not made by a move.

    Raises:
        UsageError: the file is not as `origin_text` writes it.
    """
    file = folder / NAME
    data = read_file(file)
    if data is None:
        return None
    try:
        origin = _origin(parse_toml(data)[1])
    except (BadToml, KeyError, TypeError, ValueError, AttributeError):
        origin = None
    if origin is None or origin_text(origin).encode() != data:
        # why: a decision that is half read would be taken for another merge
        raise UsageError(
            f"{file}: expected what tools/rebase.py writes, found something else.",
            "Bring the file back (git checkout), or remove it: rebase then asks for every decision again.",
        )
    return origin


def _origin(said: dict[str, Any]) -> Origin | None:
    if said["schema"] != SCHEMA:
        return None
    rows = tuple(
        Row(slug, row["state"], row.get("merge", ""), row.get("decided", False)) for slug, row in said["patch"].items()
    )
    states = {*(state.value for state in State), NEW}
    sound = all(row.state in states and re.fullmatch(SLUG, row.slug) for row in rows)
    return Origin(said["from"], rows) if sound else None


def origin_text(origin: Origin) -> str:
    """The file that says so."""
    rows = (
        f'{row.slug} = {{ state = "{row.state}"'
        + (f', merge = "{row.merge}"' if row.merge else "")
        + (", decided = true" if row.decided else "")
        + " }\n"
        for row in origin.rows
    )
    return f'{HEADER}\nschema = {SCHEMA}\nfrom = "{origin.line}"\n\n[patch]\n{"".join(rows)}'
