"""One patch with what it needs, and nothing else of its series, as commits on another revision of its upstream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .build import COMMITTER, Said, build_on
from .carry import Carried, Files
from .git import Repository, read_objects
from .manners import for_upstream
from .moving import Move, Step, advance, left_out
from .series import OVERLAY_MODE, Series

Contents = Mapping[str, bytes | None]


@dataclass(frozen=True)
class Alone:
    """How a patch comes to a revision by itself: a row for it and for each patch that it needs, its own the last.

    `base` is the revision, `steps` what goes in there.
    """

    slug: str
    base: str
    rows: tuple[Carried, ...]
    steps: tuple[Step, ...]

    @property
    def own(self) -> Carried:
        """The patch's own row."""
        return self.rows[-1]


@dataclass(frozen=True)
class Branch:
    """The commits of it: `before` is the last one without the patch, `tip` the patch with its test."""

    before: str
    tip: str


def with_needs(series: Series, slug: str) -> tuple[str, ...]:
    """The patch and all that it needs, directly or not, in the order of the series."""
    found = {slug}
    for patch in reversed(series.patches):
        if patch.slug in found:
            found |= set(patch.all("Needs"))
    return tuple(name for name in series.slugs if name in found)


def carry_alone(repo: Repository, move: Move, slug: str) -> Alone:
    """The patch at the new pin of `move`, where every patch that it does not need is left out.

    Raises:
        Refused: the series does not fit its own pin.
    """
    kept = with_needs(move.old, slug)
    moved = advance(repo, move, left_out([name for name in move.old.slugs if name not in kept]), stop=False)
    return Alone(slug, moved.base, tuple(row for row in moved.rows if row.slug in kept), moved.steps)


def commit_alone(
    repo: Repository, alone: Alone, tests: Mapping[str, bytes], signer: str = "", instead: Contents | None = None
) -> Branch:
    """The commits, written as objects only: the patch's own carries `tests` (path → bytes) too.

    Args:
        signer: `NAME <MAIL>` of who sends it, and becomes its author; else the patch's author stays.
        instead: files of the patch's own commit as a formatter left them.
    """
    parent = before = alone.base
    for step in alone.steps:
        own = step.patch.slug == alone.slug
        files = _with_bytes(repo, step.carried.files)
        if own:
            before = parent
            files |= {path: (OVERLAY_MODE, data) for path, data in tests.items()}
            files |= {path: (files[path][0], data) for path, data in (instead or {}).items()}
        who = signer or step.patch.author
        said = Said(who, signer or COMMITTER, step.patch.date, for_upstream(step.patch, signer))
        parent = build_on(repo, parent, said, files)
    return Branch(before, parent)


def _with_bytes(repo: Repository, files: Files) -> dict[str, tuple[str, bytes | None]]:
    read = read_objects(repo, [entry.blob for entry in files.values() if entry])
    found: dict[str, tuple[str, bytes | None]] = {}
    for path, entry in files.items():
        data = read[entry.blob] if entry else None
        found[path] = (entry.mode if entry else OVERLAY_MODE, data.data if data else None)
    return found
