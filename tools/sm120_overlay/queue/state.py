"""Where a target stands, computed from its files alone: nothing about state is ever stored.

Each touched file is at one point of its chain, or drifted. A patch whose files are at or past it is applied; one
whose files are all before it is pending; one with some of each was cut by an interruption.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from .series import Chain, Series, chains


class State(str, Enum):
    """Of one patch on one target."""

    APPLIED = "applied"
    PENDING = "pending"
    INTERRUPTED = "interrupted"
    DRIFTED = "drifted"


@dataclass(frozen=True)
class PatchState:
    """The state of one patch, the reason where it is not plain, and its commit where the target is a checkout."""

    slug: str
    state: State
    reason: str | None = None
    commit: str | None = None


def patch_states(
    series: Series, found: Mapping[str, str | None], shown: Callable[[str], str] = str
) -> tuple[PatchState, ...]:
    """The state of every patch of `series`.

    Args:
        found: touched path → blob id on the target (None: no such file).
        shown: how a reason names a path.
    """
    known = chains(series)
    return tuple(
        _state(patch.slug, {edit.path: known[edit.path] for edit in patch.edits}, found, shown)
        for patch in series.patches
    )


def _state(
    slug: str, files: Mapping[str, Chain], found: Mapping[str, str | None], shown: Callable[[str], str]
) -> PatchState:
    drifted = [_drift(shown(path), chain, found.get(path)) for path, chain in files.items()]
    reasons = [reason for reason in drifted if reason]
    if reasons:
        return PatchState(slug, State.DRIFTED, "; ".join(reasons))
    reached = {path: chain.points.index(found.get(path)) > chain.slugs.index(slug) for path, chain in files.items()}
    if reached and all(reached.values()):
        return PatchState(slug, State.APPLIED)
    if not any(reached.values()):
        return PatchState(slug, State.PENDING)
    missing = ", ".join(shown(path) for path, there in reached.items() if not there)
    return PatchState(slug, State.INTERRUPTED, f"not yet in {missing}")


def _drift(path: str, chain: Chain, blob: str | None) -> str | None:
    if blob in chain.points:
        return None
    return f"{path}: expected blob {chain.points[-1] or 'none'}, found {blob or 'no file'}"
