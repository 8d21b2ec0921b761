"""A series on its way to another pin: recomputed from the two pins and from what a person decided, whenever asked.

Nothing of a move is stored but decisions. So a run that was killed is no special case, and a move that was made once is
made again from the commits of this repository alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .build import COMMITTER, Said, base_contents, build, build_steps
from .carry import STOPPED, Carried, Decision, Files, State, carry, ground_at, touched
from .export import Exported, export_range, exported_series
from .git import Entry, Repository, diff_trees, run
from .origin import NEW, Origin, Row
from .patch import Patch
from .pins import Absent, Pin
from .series import Series

CONFLICTS = re.compile(r"\n(\S+) Conflicts:\n(?:\1\t.*\n)+\Z")  # what `git commit --no-edit` leaves of a cherry-pick


@dataclass(frozen=True)
class Move:
    """What moves: a series, the commits of its old pin and of the new one, and what the new line has already.

    `landed` is the new line's series as it lies there (empty where there is none), `origin` how that came about.
    """

    old: Series
    new: Pin
    before: str
    after: str
    landed: Series
    origin: Origin | None = None

    @property
    def added(self) -> tuple[Patch, ...]:
        """The patches of the new line that the old one has not; without an origin nothing is known of them."""
        new = {row.slug for row in self.origin.rows if row.state == NEW} if self.origin else set()
        return tuple(patch for patch in self.landed.patches if patch.slug in new)

    @property
    def whole(self) -> Series:
        """Every patch that is to be carried, in order."""
        return replace(self.old, patches=(*self.old.patches, *self.added))


def resolved_by(move: Move, exported: Exported) -> Move:
    """The same move with the patches of a branch that somebody made by hand: what differs there was decided there."""
    landed = exported_series(move.new, exported)
    old = set(move.old.slugs)
    rows = (
        Row(slug, State.CONFLICT.value, "", decided=True) if slug in old else Row(slug, NEW) for slug in landed.slugs
    )
    return replace(move, landed=landed, origin=Origin(move.old.pin.line, tuple(rows)))


@dataclass(frozen=True)
class Decided:
    """What a person decided in this run: for one merge of a patch, its commit, or why the line does without it."""

    merge: str
    commit: str = ""
    absent: str = ""


@dataclass(frozen=True)
class Step:
    """One patch that goes in: how, and the commit that it is on the new pin."""

    patch: Patch
    carried: Carried
    commit: str


@dataclass(frozen=True)
class Moved:
    """How far a move comes, from the commit `base`: a row for every patch, a commit for each that goes in.

    `made_on` has each patch as a commit on the pin that it comes from; `stopped` is the first patch that a person must
    decide on, and the rows after it are as if it were left out.
    """

    base: str
    made_on: Mapping[str, str]
    rows: tuple[Carried, ...]
    steps: tuple[Step, ...]
    absent: tuple[Absent, ...] = ()
    stopped: Carried | None = None

    @property
    def tip(self) -> str:
        """The commit to go on from: the last that went in before what stops, or the new pin."""
        return self.steps[-1].commit if self.steps else self.base


def left_out(slugs: Sequence[str]) -> dict[str, Decided]:
    """These patches left out, whatever their merge gives."""
    return {slug: Decided("", absent="n/a: left out by name, by the user") for slug in slugs}


def advance(repo: Repository, move: Move, decided: Mapping[str, Decided], stop: bool = True) -> Moved:
    """The move as far as it goes, all objects of it written into `repo`.

    Args:
        stop: a patch that a person must decide on ends it; else it is passed over, and its row says so.

    Raises:
        Refused: a series does not fit its own pin.
    """
    made_on = {
        **_commits(repo, move.after, move.landed),
        **_commits(repo, move.before, move.old),
    }
    ground = ground_at(repo, move.before, move.whole, move.after, touched(move.landed))
    taken = _Decisions(repo, move, decided)
    (rows,) = carry(repo, move.whole, [ground], taken.of)
    stopped = next((row for row in rows if stop and _waits(row)), None)
    until = rows.index(stopped) if stopped else len(rows)
    patches = dict(zip(move.whole.slugs, move.whole.patches, strict=True))
    going = [(patches[row.slug], row) for row in rows[:until] if row.files]
    commits = (
        build_steps(repo, move.after, [(taken.said(patch, row), row.files) for patch, row in going]) if going else ()
    )
    steps = tuple(Step(patch, row, commit) for (patch, row), commit in zip(going, commits, strict=True))
    return Moved(move.after, made_on, rows, steps, taken.absent(rows[:until]), stopped)


def _commits(repo: Repository, base: str, series: Series) -> dict[str, str]:
    """Slug → the patch as a commit on its own pin."""
    built = build(repo, base, series, base_contents(repo, base, series)).commits
    return dict(zip(series.slugs, built, strict=True))


def _waits(row: Carried) -> bool:
    """Whether a person has to say something: how it goes in, or which change of upstream's is the same."""
    return row.state in (*STOPPED, State.ABSORBED) and not row.decided


@dataclass(frozen=True)
class _Decisions:
    """What was decided, in this run and when the line was made."""

    repo: Repository
    move: Move
    now: Mapping[str, Decided]

    def of(self, slug: str, merge: str) -> Decision | None:
        """What a person said of this merge of this patch."""
        said = self.now.get(slug)
        if said and said.merge in (merge, ""):
            return self._of_commit(said.commit) if said.commit else Decision()
        if self._recorded(slug):
            return Decision()
        row, patch = self._landed(slug)
        if row and patch and row.decided and row.merge in (merge, ""):
            return Decision(*_sides(patch))
        return None

    def _recorded(self, slug: str) -> Absent | None:
        return next((one for one in self.move.new.absent if one.slug == slug), None)

    def _landed(self, slug: str) -> tuple[Row | None, Patch | None]:
        patch = next((patch for patch in self.move.landed.patches if patch.slug == slug), None)
        return (self.move.origin.row(slug) if self.move.origin else None), patch

    def _of_commit(self, commit: str) -> Decision:
        changes = diff_trees(self.repo, f"{commit}^", commit)
        before, after = ({c.path: c.old for c in changes}, {c.path: c.new for c in changes})
        return Decision(before, after)

    def said(self, patch: Patch, row: Carried) -> Said:
        """Author, date and message of a patch on the new line: its own there, where it has been there before."""
        said, landed = self.now.get(patch.slug), self._landed(patch.slug)[1]
        kept = landed or patch
        message = kept.message
        if said and said.commit and said.merge == row.merge:
            message = message_of(self.repo, said.commit)
        return Said(kept.author, COMMITTER, kept.date, message)

    def absent(self, rows: Sequence[Carried]) -> tuple[Absent, ...]:
        """The patches that the new line does without, and why."""
        found = []
        for row in rows:
            said, recorded = self.now.get(row.slug), self._recorded(row.slug)
            if said and said.absent and said.merge in (row.merge, ""):
                state, _, why = said.absent.partition(": ")
                found.append(Absent(row.slug, state, why))
            elif recorded:
                found.append(recorded)
        return tuple(found)


def _sides(patch: Patch) -> tuple[Files, Files]:
    def side(blob: str | None, mode: str) -> Entry | None:
        return None if blob is None else Entry(mode, blob)

    return (
        {edit.path: side(edit.old, edit.mode) for edit in patch.edits},
        {edit.path: side(edit.new, edit.mode) for edit in patch.edits},
    )


def message_of(repo: Repository, commit: str) -> str:
    """A commit's message, as a patch has it."""
    said = run(repo, "show", "--no-patch", "--format=%B", commit).decode("utf-8", "replace").rstrip("\n") + "\n"
    return CONFLICTS.sub("", said)


def finished(repo: Repository, common: Path, move: Move, moved: Moved, tip: str) -> tuple[Exported, Origin]:
    """The new line's series as files, from the commits up to `tip`, and where its patches come from."""
    exported = export_range(repo, common, moved.base, tip)
    steps = {step.patch.slug: step for step in moved.steps}
    new = {patch.slug for patch in move.added}
    series = exported_series(move.new, exported)
    rows = tuple(_row(patch, steps.get(patch.slug), patch.slug in new) for patch in series.patches)
    return exported, Origin(move.old.pin.line, rows)


def _row(patch: Patch, step: Step | None, new: bool) -> Row:
    if step is None or new:
        return Row(patch.slug, NEW)
    decided = step.carried.decided or _sides(patch)[1] != step.carried.files
    return Row(patch.slug, step.carried.state.value, step.carried.merge, decided)
