"""What lies between two revisions, as a bisection sees it: revisions, the changes between them, and programs.

Neighbours between which nothing changes that a run can see are one program: it is measured as one, and the change
between them is culled, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from ..queue.carry import State
from ..queue.ranges import Commit


class Reach(str, Enum):
    """How far a launch comes to what a change touches."""

    LOADED = "loaded"  # a file that every such launch imports
    LAZY = "lazy"  # a file that it may load: imported inside a function, by name, or read as data
    NONE = "none"  # no file that it can load


@dataclass(frozen=True)
class PatchState:
    """How one patch of ours comes to a revision; `left_out` where the revision is measured without it."""

    slug: str
    state: State
    left_out: bool = False
    why: str = ""


@dataclass(frozen=True)
class Revision:
    """One revision with the series on it.

    `tree` is the id of that tree in the session's repository, `key` names what a run can see of it (the package with
    the patches on it, and the pins), `build_key` what an environment is built from. `pins` are the exact versions that
    it requires, by distribution. `untestable` says why no run can judge it ("": one can).
    """

    commit: Commit
    tree: str
    key: str
    build_key: str
    patches: tuple[PatchState, ...] = ()
    pins: Mapping[str, str] = field(default_factory=dict)
    untestable: str = ""


@dataclass(frozen=True)
class Change:
    """The step from the revision before to the one of `commit`.

    `paths` are the files that differ with the series on both sides, `reach` the nearest that a launch comes to one of
    them, `culled` why the program is the same as before ("": it may be another), `why` what `prior` stands on.
    `prior` is a weight relative to the other changes, over 0. `turned` are patches of ours whose state changes here:
    slug, before, after. `moved_pins` are dependencies: distribution, version before, version after ("": none).
    `undone`: the change takes the commit back (one of the old release's branch).
    """

    commit: Commit
    paths: tuple[str, ...]
    reach: Reach = Reach.LOADED
    culled: str = ""
    why: str = ""
    prior: float = 1.0
    turned: tuple[tuple[str, State, State], ...] = ()
    moved_pins: tuple[tuple[str, str, str], ...] = ()
    undone: bool = False


@dataclass(frozen=True)
class Program:
    """Consecutive revisions, by their numbers, that are one program to a run; the first change of it is not culled."""

    first: int
    last: int


@dataclass(frozen=True)
class History:
    """All revisions from the old end to the new one; `changes[i]` leads from revision i to revision i + 1."""

    revisions: tuple[Revision, ...]
    changes: tuple[Change, ...]

    @cached_property
    def programs(self) -> tuple[Program, ...]:
        """The programs in order; number 0 is the old end's, the last one the new end's."""
        firsts = [0, *(number + 1 for number, change in enumerate(self.changes) if not change.culled)]
        lasts = [*(first - 1 for first in firsts[1:]), len(self.revisions) - 1]
        return tuple(Program(first, last) for first, last in zip(firsts, lasts, strict=True))

    def change_into(self, program: int) -> Change:
        """The one change that makes this program of the one before; programs are counted from 0, which has none."""
        return self.changes[self.programs[program].first - 1]
