"""Moves a checkout from the series it carries to the one that is wanted: apply, upgrade and reverse are all this.

The commits are built first, as objects. Then only the files that differ are written, by our own journaled writer, then
a copy of the index, then the refs. The user's branches never move, their index is locked the whole time by git's own
protocol (`indexlock`), and whatever is not exactly as expected is refused before the first write.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import Refused
from .build import Built, base_contents, build
from .checkout import Checkout, Commit, Where, read_commits
from .clean import check_clean, check_head
from .git import Change, Entry, Repository, diff_trees, objects_alone, read_objects
from .home import command
from .indexlock import index_locked, restore_entries, unlock_index, write_index
from .manifest import manifest_write
from .refs import RefMove, branch_tip_of, move_refs, plan_refs, refs_were_done, undo_refs
from .series import Series, chains
from .transaction import Workplace, Write, recover, transact

OVERLAY_BLOB = re.compile(r"^(Overlay: .+) [0-9a-f]{40}$", re.MULTILINE)


def move(
    checkout: Checkout, series: Series, dry_run: bool = False, whole: Series | None = None
) -> tuple[Checkout, bool]:
    """Brings the checkout to exactly `series` (an empty one: back to the pin); as it is then, and whether it moved.

    The caller holds the target's lock and has recovered it. A dry run leaves no object in the repository either.

    Args:
        whole: all patches of the line, where `series` is a part of them: commits that they hold are not lost.

    Raises:
        Refused: something of the user's is in the way; nothing was changed.
    """
    check_head(checkout)
    branch_tip = branch_tip_of(checkout)
    before = base_contents(checkout.repo, checkout.base, series)
    with objects_alone(checkout.where.common) if dry_run else nullcontext(checkout.repo) as repo:
        built = build(repo, checkout.base, series, before)
        _check_ours(checkout, branch_tip, built, repo, whole or series)
        changes = _changes(checkout, series, built, repo)
    check_clean(checkout, series, changes)
    refs = plan_refs(checkout, built.tip, branch_tip)
    manifest = manifest_write(checkout, series)
    moves = bool(changes or refs.differ or manifest)
    if moves and not dry_run:
        pinned = {str(chain.points[0]): before[path] for path, chain in chains(series).items()}
        write_changes(checkout, {**pinned, **built.blobs}, changes, refs, manifest)
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


def _check_ours(checkout: Checkout, branch_tip: str | None, built: Built, repo: Repository, whole: Series) -> None:
    """Commits on our branch that someone else made must not be lost, unless the series already says the same."""
    if branch_tip in (None, built.tip):
        return
    at_head = branch_tip == checkout.head
    commits = checkout.commits if at_head else read_commits(checkout.repo, str(branch_tip), (checkout.base,))
    theirs = [commit for commit in commits if not commit.ours]
    if not theirs:
        return
    wanted = read_commits(repo, built.tip, (checkout.base,)) if built.commits else ()
    said = [_said(commit) for commit in wanted]
    if [_said(commit) for commit in commits] != said and not _are_filed(checkout, commits, whole):
        other = [commit.slug or commit.id[:12] for commit in theirs if _said(commit) not in said]
        branch, git = checkout.our_name, checkout.git
        # why: commits on our branch that another hand made are its owner's work, and would be lost
        raise Refused(
            f"{checkout.repo.path}: {branch} is not what the series says: "
            + (f"its patch {', '.join(other)} differs." if other else "its patches are others, or in another order."),
            f"Write them into the series ({command('export')}), or give them a branch of their own ({git} branch NAME "
            f"{branch}) and drop ours ({git} checkout {checkout.base[:12]} && {git} branch -D {branch}).",
        )


def _are_filed(checkout: Checkout, commits: Sequence[Commit], whole: Series) -> bool:
    """Whether these commits are just what the patch files say, of which only a part (or none) is wanted now."""
    with objects_alone(checkout.where.common) as bare:
        built = build(bare, checkout.base, whole, base_contents(checkout.repo, checkout.base, whole))
        filed = read_commits(bare, built.tip, (checkout.base,)) if built.commits else ()
    return [_said(commit) for commit in commits] == [_said(commit) for commit in filed]


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


def _writes(repo: Repository, read_already: Mapping[str, bytes | None], changes: Sequence[Change]) -> list[Write]:
    wanted = {entry.blob for change in changes for entry in (change.old, change.new) if entry}
    known = dict(read_already)
    read = read_objects(repo, sorted(wanted - known.keys()))
    lost = [blob for blob, found in read.items() if found is None]
    if lost:
        # why: a partial clone fetches while it is read, or fails half way through
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


def write_changes(
    checkout: Checkout,
    read_already: Mapping[str, bytes | None],
    changes: Sequence[Change],
    refs: RefMove,
    manifest: Write | None = None,
) -> None:
    """Files, index and refs together, as the changes say; undone whole where it fails half way.

    Args:
        read_already: blob → bytes, of those that need not be read from the repository.
        manifest: the last file that is written, or the last that goes: it never says more than there is.
    """
    writes = [*_writes(checkout.repo, read_already, changes), *filter(None, [manifest])]
    note = {
        "refs": [refs.branch, refs.branch_old, refs.branch_new, refs.head_old, refs.head_new],
        "entries": {change.path: change.old and [change.old.mode, change.old.blob] for change in changes},
    }
    place, repo, where = checkout.place, checkout.repo, checkout.where

    def then() -> None:
        wanted = {change.path: change.new for change in changes}
        write_index(repo, where.index, where.common / "info" / "attributes", place.folder, wanted)
        move_refs(repo, refs)

    with index_locked(where.index, place.folder):
        transact(place, writes, note, partial(_undo, repo, where, place), then)


def _was_done(repo: Repository, place: Workplace, note: Mapping[str, Any]) -> bool:
    return refs_were_done(repo, place, RefMove(*note["refs"]))


def _undo(repo: Repository, where: Where, place: Workplace, note: Mapping[str, Any]) -> None:
    """Puts refs and index back; the files are back already."""
    undo_refs(repo, where, place, RefMove(*note["refs"]))
    restore_entries(repo, where.index, place.folder, note["entries"])
