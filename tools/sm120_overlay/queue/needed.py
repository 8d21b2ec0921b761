"""Since when a test passes without its patch: which change of upstream's made it so, found by trying it by halves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import Refused
from .causes import first_release
from .git import Repository, commit_exists
from .pins import Pin
from .ranges import Commit, find_span

BESIDE = 8  # how many neighbours of a revision that cannot be tried are tried in its place
Outcome = Callable[[str], str]


@dataclass(frozen=True)
class Fixed:
    """The first change with which the test passes; `reference` is how pins.toml names it, "" where it has no number or
    no release has it.

    `apart` are changes between it and the last that is known to fail, on which the test could not be run.
    """

    commit: Commit
    reference: str
    apart: int = 0


def oldest_known(repo: Repository, pins: Sequence[Pin]) -> str:
    """The newest pinned commit that the history holds, of these pins (newest first); "" where it holds none."""
    return next((pin.commit for pin in pins if pin.commit and commit_exists(repo, pin.commit)), "")


def first_passing(repo: Repository, pin: Pin, old: str, new: str, outcome: Outcome) -> Fixed | None:
    """The first change between two revisions with which a test passes; None where it cannot be told.

    It is taken that the test passes at `new`, and that what passes goes on passing.

    Args:
        outcome: what the test shows at a commit: passed, failed, or something else that says nothing.
    """
    try:
        commits = find_span(repo, old, new).commits
    except Refused:
        return None
    if outcome(old) != "failed":
        return None
    low, high = -1, len(commits) - 1
    while high - low > 1:
        told = _tried_near(commits, low, high, outcome)
        if told is None:
            break
        at, passes = told
        low, high = (low, at) if passes else (at, high)
    found = commits[high]
    release = first_release(repo, found.id)
    named = f"{pin.upstream}#{found.number}, {release}" if found.number and release else ""
    return Fixed(found, named, high - low - 1)


def _tried_near(commits: Sequence[Commit], low: int, high: int, outcome: Outcome) -> tuple[int, bool] | None:
    """A place between both, as near to the middle as one can be tried, and whether the test passes there."""
    middle = (low + high) // 2
    places = sorted(range(low + 1, high), key=lambda at: abs(at - middle))[:BESIDE]
    for at in places:
        said = outcome(commits[at].id)
        if said in ("passed", "failed"):
            return at, said == "passed"
    return None
