"""Moves a checkout from the series it carries to the one that is wanted: apply, upgrade and reverse are all this.

The commits are built first, as objects. Then only the files that differ are written, by our own journaled writer, then
a copy of the index, then the refs. The user's branches never move, their index is locked the whole time by git's own
protocol (`indexlock`), and whatever is not exactly as expected is refused before the first write.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..errors import Refused
from .blobs import blob_id
from .build import Built, base_contents, build
from .checkout import Checkout, Commit, Where, read_commits, unfinished
from .diff import unquote
from .git import (
    Change,
    Entry,
    Repository,
    attempt,
    branches,
    diff_trees,
    index_entries,
    objects_alone,
    read_objects,
    run,
    set_refs,
    symbolic_head,
    tree_entries,
)
from .indexlock import index_locked, restore_entries, unlock_index, write_index
from .series import Series, chains
from .transaction import Workplace, Write, check_folders, read_file, recover, transact

OVERLAY_BLOB = re.compile(r"^(Overlay: .+) [0-9a-f]{40}$", re.MULTILINE)
COMMIT_OR_STASH = "Commit, stash or discard what is there, then run again; nothing was changed."


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


def move(checkout: Checkout, series: Series, dry_run: bool = False) -> tuple[Checkout, bool]:
    """Brings the checkout to exactly `series` (an empty one: back to the pin); as it is then, and whether it moved.

    The caller holds the target's lock and has recovered it. A dry run leaves no object in the repository either.

    Raises:
        Refused: something of the user's is in the way; nothing was changed.
    """
    _check_head(checkout)
    branch_tip = _branch_tip(checkout)
    with objects_alone(checkout.where.common) if dry_run else nullcontext(checkout.repo) as repo:
        built = build(repo, checkout.base, series, base_contents(checkout.repo, checkout.base, series))
        _check_ours(checkout, branch_tip, built, repo)
        changes = _changes(checkout, series, built, repo)
    _check_clean(checkout, series, changes)
    refs = _planned(checkout, built.tip, branch_tip)
    moves = bool(changes or refs.differ)
    if moves and not dry_run:
        _write(checkout, _writes(checkout.repo, built, changes), changes, refs)
    return (checkout if dry_run else _moved(checkout, series, built, refs)), moves


def recover_checkout(repo: Repository, where: Where, place: Workplace) -> bool:
    """Undoes a run on this checkout that was cut; whether there was one.

    Raises:
        Refused: files or refs were changed since, by hand; nothing is touched then.
    """
    unlock_index(where.index, place.folder)
    undo = partial(_undo, repo, where, place)
    return recover(place, undo, partial(_was_done, repo, place))


def _moved(checkout: Checkout, series: Series, built: Built, refs: RefMove) -> Checkout:
    """The checkout as it is after the move, without asking git again."""
    commits, parent = [], built.base
    for patch, commit in zip(series.patches, built.commits, strict=True):
        commits.append(Commit(commit, (parent,), "", patch.author, patch.message.rstrip("\n"), True))
        parent = commit
    branch = refs.head_new if refs.head_new.startswith("refs/") else None
    return replace(checkout, where=replace(checkout.where, head=built.tip, branch=branch), commits=tuple(commits))


def _check_head(checkout: Checkout) -> None:
    busy = unfinished(checkout)
    if busy:
        name, command = busy
        raise Refused(
            f"{checkout.repo.path}: a {name} of yours is unfinished there.",
            f"Finish it or end it ({command}), then run again.",
        )
    at_pin = checkout.head == checkout.base
    if not at_pin and checkout.branch != checkout.ours and not all(commit.ours for commit in checkout.commits):
        where = (checkout.branch or "a detached HEAD").removeprefix("refs/heads/")
        raise Refused(
            f"{checkout.repo.path}: HEAD is {checkout.head[:12]} on {where}; expected the pin "
            f"{checkout.base[:12]} or our branch {checkout.ours.removeprefix('refs/heads/')}.",
            f"git checkout {checkout.base[:12]} (or move your commits onto our branch), then run again.",
        )


def _branch_tip(checkout: Checkout) -> str | None:
    """Where our branch stands, None where there is none.

    Raises:
        Refused: another worktree has it checked out, or a branch of the user's takes its name.
    """
    if checkout.branch == checkout.ours:
        return checkout.head
    family = checkout.ours.rpartition("/")[0]
    found = branches(checkout.repo, family)
    if family in found:
        raise Refused(
            f"{checkout.repo.path}: a branch {family.removeprefix('refs/heads/')} of yours is in the way of "
            f"{checkout.ours.removeprefix('refs/heads/')}.",
            "Rename it (git branch -m), then run again.",
        )
    ours = found.get(checkout.ours)
    if ours is not None and ours.worktree is not None:
        raise Refused(
            f"{ours.worktree} has {checkout.ours.removeprefix('refs/heads/')} checked out, a worktree of the same "
            f"repository.",
            "Work there, or make this one a clone of its own.",
        )
    return ours.tip if ours else None


def _check_ours(checkout: Checkout, branch_tip: str | None, built: Built, repo: Repository) -> None:
    """Commits on our branch that someone else made must not be lost, unless the series already says the same."""
    if branch_tip in (None, built.tip):
        return
    at_head = branch_tip == checkout.head
    commits = checkout.commits if at_head else read_commits(checkout.repo, str(branch_tip), (checkout.base,))
    theirs = [commit for commit in commits if not commit.ours]
    if not theirs:
        return
    wanted = read_commits(repo, built.tip, (checkout.base,)) if built.commits else ()
    if [_said(commit) for commit in commits] != [_said(commit) for commit in wanted]:
        raise Refused(
            f"{checkout.repo.path}: {checkout.ours.removeprefix('refs/heads/')} holds {len(theirs)} commit(s) that "
            f"are not in the series: {', '.join(commit.slug or commit.id[:12] for commit in theirs)}.",
            "Write them into the series with tools/export.py, or keep them under another branch name.",
        )


def _said(commit: Commit) -> tuple[str, str, str]:
    """What a commit changes and says; the blob of an overlay file is export's to write, so it does not count."""
    return commit.tree, commit.author, OVERLAY_BLOB.sub(r"\1", commit.message)


def _changes(checkout: Checkout, series: Series, built: Built, repo: Repository) -> tuple[Change, ...]:
    """What differs between what is checked out and the series; from the pin the chains know it without asking git."""
    if checkout.head == built.tip:
        return ()
    if checkout.head != checkout.base:
        return diff_trees(repo, checkout.head, built.tip)
    ends = {path: (chain.mode, chain.points[0], chain.points[-1]) for path, chain in chains(series).items()}
    return tuple(
        Change(path, Entry(mode, old) if old else None, Entry(mode, new) if new else None)
        for path, (mode, old, new) in sorted(ends.items())
        if old != new
    )


def _check_clean(checkout: Checkout, series: Series, changes: Sequence[Change]) -> None:
    """The touched files, and their index entries, are exactly what HEAD says."""
    known = chains(series)
    paths = sorted({change.path for change in changes} | known.keys())
    if not paths:
        return
    if checkout.head == checkout.base:
        first = {path: (chain.mode, chain.points[0]) for path, chain in known.items()}
        committed = {path: Entry(mode, blob) for path, (mode, blob) in first.items() if blob}
    else:
        committed = tree_entries(checkout.repo, checkout.head, paths)
    staged = index_entries(checkout.repo, paths)
    check_folders(checkout.repo.path, paths)
    for path in paths:
        _check_staged(checkout, path, committed.get(path), staged.get(path))
        _check_file(checkout.repo, path, committed.get(path))
    _check_cone(checkout, [path for path in paths if path not in committed])


def _check_cone(checkout: Checkout, new: Sequence[str]) -> None:
    """New files lie inside a sparse checkout's cone; git knows that only of files it has."""
    if not new or not (checkout.where.git_dir / "info" / "sparse-checkout").is_file():
        return
    code, out, _ = attempt(checkout.repo, "sparse-checkout", "list")
    cone = [unquote(line) for line in out.decode("latin-1").splitlines()] if code == 0 else None
    for path in new if cone is not None else ():
        folder = path.rpartition("/")[0]
        inside = any(f"{folder}/".startswith(f"{part}/") or f"{part}/".startswith(f"{folder}/") for part in cone or ())
        if folder and not inside:
            raise Refused(
                f"{checkout.repo.path / path} is a new file outside the sparse cone.",
                f"git sparse-checkout add {folder}, then run again.",
            )


def _check_staged(checkout: Checkout, path: str, head: Entry | None, index: Entry | None) -> None:
    if index is not None and index.mode in ("unmerged", "sparse"):
        why = "is outside the sparse cone" if index.mode == "sparse" else "has a merge conflict"
        raise Refused(f"{checkout.repo.path / path} {why}.", f"Mend that for {path}, then run again.")
    if index != head:
        raise Refused(
            f"{checkout.repo.path / path}: the index holds {_named(index)}, expected {_named(head)}.", COMMIT_OR_STASH
        )


def _check_file(repo: Repository, path: str, head: Entry | None) -> None:
    file = repo.path / path
    found = read_file(file)
    blob = None if found is None else blob_id(found)
    if blob == (head.blob if head else None):
        return
    if head is None:
        raise Refused(
            f"{file} exists, and the series brings a new file there.", "Move it away (also if git ignores it)."
        )
    code, out, _ = attempt(repo, "hash-object", "--path", path, "--", path)
    if code == 0 and out.decode().strip() == head.blob:
        raise Refused(
            f"{file}: a checkout filter (line ends, .gitattributes) changed its bytes; expected blob {head.blob}.",
            "Check it out again without the filter (git -c core.autocrlf=false checkout -- FILE).",
        )
    raise Refused(
        f"{file} was edited: expected blob {head.blob}, as checked out, found {blob or 'no file'}.", COMMIT_OR_STASH
    )


def _named(entry: Entry | None) -> str:
    return f"blob {entry.blob} with mode {entry.mode}" if entry else "nothing"


def _planned(checkout: Checkout, tip: str, branch_tip: str | None) -> RefMove:
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
    found = read_objects(checkout.repo, [branch])[branch]
    return branch if found and found.id == checkout.base else checkout.base


def _writes(repo: Repository, built: Built, changes: Sequence[Change]) -> list[Write]:
    wanted = {entry.blob for change in changes for entry in (change.old, change.new) if entry}
    known = dict(built.blobs)
    read = read_objects(repo, sorted(wanted - known.keys()))
    lost = [blob for blob, found in read.items() if found is None]
    if lost:
        raise Refused(f"{repo.path}: blob {lost[0]} cannot be read.", "Fetch what the clone lacks, then run again.")
    known |= {blob: found.data for blob, found in read.items() if found}
    return [
        Write(
            change.path,
            known[change.old.blob] if change.old else None,
            known[change.new.blob] if change.new else None,
            0o755 if change.new and change.new.mode == "100755" else 0o644,
        )
        for change in changes
    ]


def _write(checkout: Checkout, writes: Sequence[Write], changes: Sequence[Change], refs: RefMove) -> None:
    note = {
        "refs": [refs.branch, refs.branch_old, refs.branch_new, refs.head_old, refs.head_new],
        "entries": {change.path: change.old and [change.old.mode, change.old.blob] for change in changes},
    }
    place, repo, where = checkout.place, checkout.repo, checkout.where

    def then() -> None:
        wanted = {change.path: change.new for change in changes}
        write_index(repo, where.index, where.common / "info" / "attributes", place.folder, wanted)
        _move_refs(repo, refs)

    with index_locked(where.index, place.folder):
        transact(place, writes, note, partial(_undo, repo, where, place), then)


def _move_refs(repo: Repository, refs: RefMove) -> None:
    """Our branch first, then HEAD; when the branch goes, HEAD leaves it first."""
    if refs.branch_new is not None and refs.branch_new != refs.branch_old:
        set_refs(repo, {refs.branch: (refs.branch_new, refs.branch_old)}, "sm120-overlay: apply")
    if refs.head_old != refs.head_new:
        _set_head(repo, refs.head_old, refs.head_new)
    if refs.branch_new is None and refs.branch_old is not None:
        set_refs(repo, {refs.branch: (None, refs.branch_old)}, "sm120-overlay: reverse")


def _set_head(repo: Repository, old: str, new: str) -> None:
    """Moves HEAD in git's own words, so that `git checkout -` and `@{-1}` know the way back."""
    names = (name.removeprefix("refs/heads/") for name in (old, new))
    symbolic_head(repo, new, "checkout: moving from {} to {}".format(*names))


def _head(repo: Repository) -> str:
    """HEAD's branch by its full name, or its commit where detached."""
    code, out, _ = attempt(repo, "symbolic-ref", "--quiet", "HEAD")
    return os.fsdecode(out if code == 0 else run(repo, "rev-parse", "--verify", "HEAD")).strip()


def _tip(repo: Repository, branch: str) -> str | None:
    found = branches(repo, branch).get(branch)
    return found.tip if found else None


def _was_done(repo: Repository, place: Workplace, note: Mapping[str, Any]) -> bool:
    """Whether a cut run had moved the refs, its last step, and the user has gone on from there.

    Raises:
        Refused: our branch was moved by hand while files were half changed.
    """
    refs = RefMove(*note["refs"])
    tip = _tip(repo, refs.branch)
    if tip in (refs.branch_old, refs.branch_new):
        return False
    behind = refs.branch_new is not None and attempt(repo, "merge-base", "--is-ancestor", refs.branch_new, str(tip))
    if behind and behind[0] == 0 and _head(repo) == refs.head_new:
        return True
    raise Refused(
        f"{repo.path}: {refs.branch.removeprefix('refs/heads/')} was moved to {tip or 'nothing'} after a run was cut "
        f"that took it from {refs.branch_old or 'nothing'} to {refs.branch_new or 'nothing'}.",
        f"Put it back to one of these, then run again ({place.journal} knows the files).",
    )


def _undo(repo: Repository, where: Where, place: Workplace, note: Mapping[str, Any]) -> None:
    """Puts refs and index back; the files are back already."""
    refs = RefMove(*note["refs"])
    _remove_dead_locks(where, place, refs.branch)
    tip, head = _tip(repo, refs.branch), _head(repo)
    if tip is None and refs.branch_old is not None:  # HEAD may stand on it
        set_refs(repo, {refs.branch: (refs.branch_old, None)}, "sm120-overlay: undo")
    if head == refs.head_new != refs.head_old:
        _set_head(repo, head, refs.head_old)
    if tip is not None and tip != refs.branch_old:
        set_refs(repo, {refs.branch: (refs.branch_old, tip)}, "sm120-overlay: undo")
    restore_entries(repo, where.index, place.folder, note["entries"])


def _remove_dead_locks(where: Where, place: Workplace, branch: str) -> None:
    """Locks on refs that a git of ours left when it was killed: made after the journal, and no child of ours lives."""
    since = place.journal.stat().st_mtime
    for lock in (where.git_dir / "HEAD.lock", where.common / f"{branch}.lock", where.common / "packed-refs.lock"):
        with suppress(FileNotFoundError, NotADirectoryError):
            if lock.stat().st_mtime >= since:
                lock.unlink()
