"""Says of each patch of a series how it fares on every step of a way through upstream's revisions or releases.

The steps are cut into stretches; each is carried in a repository of its own, which goes afterwards: a merge leaves
hundreds of kilobytes behind, and there are thousands of them. Two stretches at a time keep two processors busy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

from .carry import STOPPED, Carried, Ground, State, carry, distinct
from .git import Repository, objects_alone
from .patch import Patch
from .ranges import Step, first_at, underneath
from .series import Series

STRETCH = 128  # steps: fewer would start more processes, more would fill more of the disk
ENDS = (*STOPPED, State.ABSORBED)  # what a patch does not come back from by itself

Watch = Callable[[int, int], None]


@dataclass(frozen=True)
class Turn:
    """From `step` on, until the next turn, the patch is as in `carried`."""

    step: Step
    carried: Carried

    @property
    def state(self) -> State:
        """How it goes on there."""
        return self.carried.state


@dataclass(frozen=True)
class Prospect:
    """One patch on the way: its turns (the first is the old end), and the steps forward that change its files.

    `last` is how it is at the new end itself.
    """

    slug: str
    turns: tuple[Turn, ...]
    touching: tuple[Step, ...]
    last: Carried

    @property
    def now(self) -> Turn:
        """The turn that holds at the new end."""
        return self.turns[-1]

    @property
    def first(self) -> Turn | None:
        """The first turn that breaks or absorbs it; one that takes a commit back counts only where no other does."""
        ends = [turn for turn in self.turns if turn.state in ENDS]
        return min(ends, key=lambda turn: turn.step.undone, default=None)

    @property
    def stops(self) -> bool:
        """Whether it would not go onto the new end by itself."""
        return self.now.state in STOPPED


def survey(
    commons: Sequence[Path],
    series: Series,
    steps: Sequence[Step],
    watch: Watch = lambda done, total: None,
    jobs: int = 1,
) -> tuple[Prospect, ...]:
    """Every patch of the series on every step.

    Args:
        commons: git directories that hold the history, and the series as `build` made it.
        watch: hears how many steps are done, and of how many.
    """
    rows = _carried(commons, series, [step.ground for step in steps], watch, jobs)
    return tuple(
        Prospect(patch.slug, _turns(steps, [row[number] for row in rows]), _touching(patch, steps), rows[-1][number])
        for number, patch in enumerate(series.patches)
    )


def _carried(
    commons: Sequence[Path], series: Series, grounds: Sequence[Ground], watch: Watch, jobs: int
) -> list[tuple[Carried, ...]]:
    """The patches on each ground; grounds that are equal are looked at once."""
    apart, numbers = distinct(grounds)
    stretches = [apart[at : at + STRETCH] for at in range(0, len(apart), STRETCH)]
    found: list[tuple[Carried, ...]] = []
    pool = ThreadPoolExecutor(max_workers=jobs)
    try:
        for rows in pool.map(lambda stretch: _stretch(commons, series, stretch), stretches):
            found += rows
            watch(len(found), len(apart))
    finally:
        pool.shutdown(cancel_futures=True)  # told to stop: what has not begun does not begin
    return [found[number] for number in numbers]


def _stretch(commons: Sequence[Path], series: Series, grounds: Sequence[Ground]) -> list[tuple[Carried, ...]]:
    with objects_alone(*commons) as repo:
        return carry(repo, series, grounds)


def _turns(steps: Sequence[Step], carried: Sequence[Carried]) -> tuple[Turn, ...]:
    pairs = zip(steps, carried, strict=True)
    return tuple(Turn(*next(same)) for _, same in groupby(pairs, key=lambda pair: pair[1].state))


def _touching(patch: Patch, steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps forward that change a file of the patch, or its place."""
    paths = [edit.path for edit in patch.edits]
    seen = [[(step.ground.files.get(path), step.ground.place(path)) for path in paths] for step in steps]
    pairs = zip(pairwise(seen), steps[1:], strict=True)
    return tuple(step for (old, new), step in pairs if old != new and not step.undone)


def first_end(repo: Repository, series: Series, slug: str, steps: Sequence[Step]) -> Prospect:
    """One patch, searched by halves for what breaks or absorbs it: what did so is taken to stay so until the new end.

    Its turns are how it is on the step before that one, and on it; or how it is at the old end and at the new one.

    Args:
        repo: it holds the history, and the series as `build` made it.
    """
    grounds = [step.ground for step in steps]
    found = first_at(repo, series, slug, grounds, ENDS)
    first, last = (row[-1] for row in carry(repo, underneath(series, slug), [grounds[0], grounds[-1]]))
    at, pair = found or (len(steps) - 1, (first, last))
    turns = (Turn(steps[max(at - 1, 0)], pair[0]), Turn(steps[at], pair[1]))
    patch = series.patches[series.slugs.index(slug)]
    return Prospect(slug, turns if at else turns[1:], _touching(patch, steps), last)
