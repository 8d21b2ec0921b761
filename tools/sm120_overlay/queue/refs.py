"""Our branch and HEAD: where they go, how they get there, and how a run that was cut is taken back.

HEAD's move is worded as `git checkout` words it, so that git's own reflog (`@{-1}`) is the way back on reverse.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

from ..errors import Refused
from .checkout import Checkout, Where
from .git import Repository, attempt, branches, run, set_refs, symbolic_head, tip_of
from .transaction import Workplace


@dataclass(frozen=True)
class RefMove:
    """Where our branch and HEAD are and where they go; HEAD is a full branch name, or a commit where detached."""

    branch: str
    branch_old: str | None
    branch_new: str | None
    head_old: str
    head_new: str

    @property
    def differ(self) -> bool:
        """Whether anything moves."""
        return self.branch_old != self.branch_new or self.head_old != self.head_new


def branch_tip_of(checkout: Checkout) -> str | None:
    """Where our branch stands, None where there is none.

    Raises:
        Refused: another worktree has it checked out, or a branch of the user's takes its name.
    """
    if checkout.branch == checkout.ours:
        return checkout.head
    family = checkout.ours.rpartition("/")[0]
    found = branches(checkout.repo, family)
    if family in found:
        # why: git keeps branches as files: sm120 and sm120/LINE cannot both be
        raise Refused(
            f"{checkout.repo.path}: a branch {family.removeprefix('refs/heads/')} of yours is in the way of "
            f"{checkout.our_name}.",
            "Rename it (git branch -m), then run again.",
        )
    ours = found.get(checkout.ours)
    if ours is not None and ours.worktree is not None:
        # why: moving a branch below another worktree makes all of its files look edited
        raise Refused(
            f"{ours.worktree} has {checkout.our_name} checked out, a worktree of the same repository.",
            "Work there, or make this one a clone of its own.",
        )
    return ours.tip if ours else None


def plan_refs(checkout: Checkout, tip: str, branch_tip: str | None) -> RefMove:
    """Our branch at the tip with HEAD on it; or, on the bare pin, no branch and HEAD where the user was."""
    head_old = checkout.branch or checkout.head
    if tip != checkout.base:
        return RefMove(checkout.ours, branch_tip, tip, head_old, checkout.ours)
    if checkout.head == checkout.base and checkout.branch != checkout.ours:
        return RefMove(checkout.ours, branch_tip, branch_tip, head_old, head_old)
    return RefMove(checkout.ours, branch_tip, None, head_old, _way_back(checkout))


def _way_back(checkout: Checkout) -> str:
    """The branch that HEAD was on before, by git's own reflog, where it still stands at the pin; else the pin."""
    code, out, _ = attempt(checkout.repo, "rev-parse", "--symbolic-full-name", "@{-1}")
    branch = os.fsdecode(out).strip()
    if code or not branch.startswith("refs/heads/"):
        return checkout.base
    return branch if tip_of(checkout.repo, branch) == checkout.base else checkout.base


def move_refs(repo: Repository, refs: RefMove) -> None:
    """Our branch first, then HEAD; when the branch goes, HEAD leaves it first."""
    if refs.branch_new is not None and refs.branch_new != refs.branch_old:
        set_refs(repo, {refs.branch: (refs.branch_new, refs.branch_old)}, "sm120-overlay: apply")
    if refs.head_old != refs.head_new:
        _set_head(repo, refs.head_old, refs.head_new)
    if refs.branch_new is None and refs.branch_old is not None:
        set_refs(repo, {refs.branch: (None, refs.branch_old)}, "sm120-overlay: reverse")


def refs_were_done(repo: Repository, place: Workplace, refs: RefMove) -> bool:
    """Whether a cut run had moved the refs, its last step, and the user has gone on from there.

    Raises:
        Refused: our branch was moved by hand while files were half changed.
    """
    tip = tip_of(repo, refs.branch)
    if tip in (refs.branch_old, refs.branch_new):
        return False
    behind = refs.branch_new is not None and attempt(repo, "merge-base", "--is-ancestor", refs.branch_new, str(tip))
    if behind and behind[0] == 0 and _head(repo) == refs.head_new:
        return True
    # why: undoing would take the branch from under what was done to it since
    raise Refused(
        f"{repo.path}: {refs.branch.removeprefix('refs/heads/')} was moved to {tip or 'nothing'} after a run was cut "
        f"that took it from {refs.branch_old or 'nothing'} to {refs.branch_new or 'nothing'}.",
        f"Put it back to one of these, then run again ({place.journal} knows the files).",
    )


def undo_refs(repo: Repository, where: Where, place: Workplace, refs: RefMove) -> None:
    """Puts our branch and HEAD back where a cut run found them; HEAD only where that run had moved it."""
    _remove_dead_locks(where, place, refs.branch)
    tip, head = tip_of(repo, refs.branch), _head(repo)
    if tip is None and refs.branch_old is not None:  # HEAD may stand on it
        set_refs(repo, {refs.branch: (refs.branch_old, None)}, "sm120-overlay: undo")
    if head == refs.head_new != refs.head_old:
        _set_head(repo, head, refs.head_old)
    if tip is not None and tip != refs.branch_old:
        set_refs(repo, {refs.branch: (refs.branch_old, tip)}, "sm120-overlay: undo")


def _remove_dead_locks(where: Where, place: Workplace, branch: str) -> None:
    """Locks on refs that a git of ours left when it was killed: made after the journal, and no child of ours lives."""
    since = place.journal.stat().st_mtime
    for lock in (where.git_dir / "HEAD.lock", where.common / f"{branch}.lock", where.common / "packed-refs.lock"):
        with suppress(FileNotFoundError, NotADirectoryError):
            if lock.stat().st_mtime >= since:
                lock.unlink()


def _set_head(repo: Repository, old: str, new: str) -> None:
    """Moves HEAD in git's own words, so that `git checkout -` and `@{-1}` know the way back."""
    names = (name.removeprefix("refs/heads/") for name in (old, new))
    symbolic_head(repo, new, "checkout: moving from {} to {}".format(*names))


def _head(repo: Repository) -> str:
    """HEAD's branch by its full name, or its commit where detached."""
    code, out, _ = attempt(repo, "symbolic-ref", "--quiet", "HEAD")
    return os.fsdecode(out if code == 0 else run(repo, "rev-parse", "--verify", "HEAD")).strip()
