"""A patch that does not go in by itself, in the hands of a person: a linked worktree, git's own cherry-pick, and back.

The work repository is our own, so nothing of the user's is touched; it remembers how conflicts were resolved (rerere),
over every run.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from ..errors import OverlayError, Refused
from .git import Repository, attempt, borrow_objects, diff_trees, is_repository, read_objects, run
from .mail import slug_in
from .moving import Decided, Moved, message_of

MARKERS = (b"<<<<<<< ", b"||||||| ", b">>>>>>> ")
# What decides how a conflict looks and is remembered; also for the user's own git there.
KEPT = {
    "merge.conflictStyle": "zdiff3",
    "merge.renames": "true",
    "merge.renameLimit": "100000",
    "rerere.enabled": "true",
    "rerere.autoUpdate": "true",
    "gc.auto": "0",
}


_WHO = {
    f"GIT_{role}_{name}": value
    for role in ("AUTHOR", "COMMITTER")
    for name, value in (("NAME", "SM120 Overlay"), ("EMAIL", "overlay@sm120-overlay.invalid"))
}


class HandOff(OverlayError):
    """A person must go on; `todo` says how."""

    exit_code = 3


@dataclass(frozen=True)
class Workshop:
    """Where a move is made: `repo` holds its objects, `tree` is the worktree for what a person must do."""

    folder: Path

    @property
    def repo(self) -> Repository:
        """The bare repository of all moves of an upstream."""
        return Repository(self.folder / "repo.git")

    @property
    def tree(self) -> Repository:
        """Its linked worktree."""
        return Repository(self.folder / "worktree")

    @property
    def git(self) -> str:
        """How a person's command line begins that runs git there."""
        return f"git -C {quote(str(self.tree.path))}"


def open_workshop(folder: Path, commons: tuple[Path, ...]) -> Workshop:
    """The workshop in a folder, made where there is none, with the objects of other repositories in sight."""
    shop = Workshop(folder.resolve())
    shop.repo.path.mkdir(parents=True, exist_ok=True)
    if not is_repository(shop.repo.path):
        if (shop.tree.path / ".git").exists():
            # why: git would say of every step there that it is no repository
            raise Refused(
                f"{shop.tree.path}: its repository, {shop.repo.path}, is gone.",
                "Save what you want to keep of the folder, remove it, then run again.",
            )
        run(shop.repo, "init", "--quiet", "--bare", "--template=", ".")
    for key, value in KEPT.items():
        run(shop.repo, "config", key, value)
    borrow_objects(shop.repo, commons)
    return shop


def standing_on(shop: Workshop, moved: Moved, branch: str) -> str | None:
    """The patch whose conflict lies in the worktree now, None where it is not the one that stops the move."""
    if moved.stopped is None or not (shop.tree.path / ".git").is_file():
        return None
    code, out, _ = attempt(shop.tree, "rev-parse", "--symbolic-full-name", "HEAD")
    return (
        moved.stopped.slug
        if code == 0 and out.decode().strip() == f"refs/heads/{branch}" and _mark(shop) == _wanted(moved)
        else None
    )


def _wanted(moved: Moved) -> str:
    """What is being resolved: a patch, and the merge of it."""
    assert moved.stopped is not None
    return f"{moved.stopped.slug} {moved.stopped.merge} {moved.tip}"


def _mark_file(shop: Workshop) -> Path:
    return shop.repo.path / "sm120-handed-off"


def _mark(shop: Workshop) -> str:
    return _mark_file(shop).read_text() if _mark_file(shop).is_file() else ""


def check_out(shop: Workshop, branch: str, commit: str) -> None:
    """Puts the worktree on a branch at a commit.

    Raises:
        Refused: a person changed something there that no commit has.
    """
    if _mark(shop):
        check_committed(shop)
    _mark_file(shop).unlink(missing_ok=True)  # from here on what lies there is ours, until it is handed over
    if not (shop.tree.path / ".git").is_file():
        run(shop.repo, "worktree", "prune")
        run(shop.repo, "worktree", "add", "--quiet", "--force", "-B", branch, str(shop.tree.path), commit)
        return
    for name in ("index.lock", "HEAD.lock"):  # of a git that was killed together with us
        (shop.repo.path / "worktrees" / shop.tree.path.name / name).unlink(missing_ok=True)
    attempt(shop.tree, "cherry-pick", "--quit")
    run(shop.tree, "checkout", "--quiet", "--force", "-B", branch, commit)


def hand_off(shop: Workshop, moved: Moved, branch: str) -> bool:
    """Leaves the conflict of the patch that stops to a person; whether rerere knew how it was resolved before."""
    assert moved.stopped is not None
    check_out(shop, branch, moved.tip)
    settings = [part for key, value in KEPT.items() for part in ("-c", f"{key}={value}")]
    code, _, _ = attempt(shop.tree, *settings, "cherry-pick", moved.made_on[moved.stopped.slug], env=_WHO)
    _mark_file(shop).write_text(_wanted(moved))
    left = run(shop.tree, "ls-files", "--unmerged").strip()
    picking, _, _ = attempt(shop.tree, "rev-parse", "--verify", "--quiet", "CHERRY_PICK_HEAD")
    return code != 0 and picking == 0 and not left


def resolution(shop: Workshop, moved: Moved) -> Decided:
    """What the person made of it in the worktree, checked.

    Raises:
        HandOff: it is not done yet, or not what can be taken: what is missing is said, and nothing is changed.
    """
    stopped = moved.stopped
    assert stopped is not None
    head = run(shop.tree, "rev-parse", "HEAD").decode().strip()
    picking = attempt(shop.tree, "rev-parse", "--verify", "--quiet", "CHERRY_PICK_HEAD")[0] == 0
    _check_index(shop, stopped.slug)
    _check_added(shop, stopped.slug)
    if picking or head == moved.tip:
        if head != moved.tip:
            raise _elsewhere(shop, moved, head)
        tree = run(shop.tree, "write-tree").decode().strip()
        message = message_of(shop.repo, moved.made_on[stopped.slug])
        commit = run(shop.tree, "commit-tree", tree, "-p", head, stdin=message.encode(), env=_WHO).decode().strip()
    else:
        commit = head
        parents = run(shop.tree, "rev-list", "--parents", "--max-count=1", head).decode().split()[1:]
        if parents != [moved.tip]:
            raise _elsewhere(shop, moved, head)
    _check_result(shop, moved, commit)
    _check_message(shop, stopped.slug, commit)
    return Decided(stopped.merge, commit)


def _check_index(shop: Workshop, slug: str) -> None:
    """Everything is resolved and staged."""
    unmerged = run(shop.tree, "diff", "--name-only", "--diff-filter=U", "-z").decode("utf-8", "replace").split("\0")
    left = [path for path in dict.fromkeys(unmerged) if path]
    if left:
        # why: a file that is half merged would be taken for the patch
        raise HandOff(
            f"{slug}: not resolved yet in {shop.tree.path}: {', '.join(left)}.",
            f"Resolve each, {shop.git} add FILE (or rm FILE), then --continue.",
        )
    unstaged = run(shop.tree, "diff", "--name-only", "-z").decode("utf-8", "replace").split("\0")
    changed = [path for path in unstaged if path]
    if changed:
        # why: what is not staged would be left out of the patch, and lost with the next conflict
        raise HandOff(
            f"{slug}: changed in {shop.tree.path} and not staged: {', '.join(changed)}.",
            f"{shop.git} add FILE (or restore FILE), then --continue.",
        )


def _check_added(shop: Workshop, slug: str) -> None:
    """No file lies there that the resolution would leave behind."""
    out = os.fsdecode(run(shop.tree, "ls-files", "--others", "--exclude-standard", "-z"))
    new = [path for path in out.split("\0") if path]
    if new:
        # why: a new file that was not added would be missing from the patch, and gone with the worktree
        raise HandOff(
            f"{slug}: new in {shop.tree.path} and not added: {', '.join(new[:5])}.",
            f"{shop.git} add FILE, or move it away, then --continue.",
        )


def _elsewhere(shop: Workshop, moved: Moved, head: str) -> OverlayError:
    assert moved.stopped is not None
    # why: a resolution that was made on another commit is a patch for another tree
    return HandOff(
        f"{moved.stopped.slug}: expected one commit on {moved.tip[:12]} in {shop.tree.path}, HEAD is {head[:12]}.",
        f"{shop.git} reset --soft {moved.tip} keeps your files and stages them; then --continue.",
    )


def _check_result(shop: Workshop, moved: Moved, commit: str) -> None:
    """The resolution changes something, and no conflict marker is left in it."""
    assert moved.stopped is not None
    changes = diff_trees(shop.tree, moved.tip, commit)
    if not changes:
        # why: an empty patch would be carried on for ever, and prove nothing
        raise HandOff(
            f"{moved.stopped.slug}: the resolution leaves nothing of the patch.",
            "Upstream has it? --skip 'absorbed: PROJECT#NUMBER, vVERSION'. It has no place? --skip 'n/a: REASON'.",
        )
    names = {f"{commit}:{change.path}": change.path for change in changes if change.new}
    before = read_objects(shop.tree, [f"{moved.tip}:{path}" for path in names.values()])
    for name, found in read_objects(shop.tree, names).items():
        old = before[f"{moved.tip}:{names[name]}"]
        had = set((old.data if old else b"").split(b"\n"))
        lines = enumerate((found.data if found else b"").split(b"\n"), 1)
        at = next((line for line, text in lines if text.startswith(MARKERS) and text not in had), None)
        if at:
            # why: a marker is a syntax error at best
            raise HandOff(
                f"{shop.tree.path / names[name]}:{at}: a conflict marker is left.",
                f"Resolve it, {shop.git} add {names[name]}, then --continue.",
            )


def _check_message(shop: Workshop, slug: str, commit: str) -> None:
    if slug_in(message_of(shop.repo, commit)) != slug:
        # why: once the decision is taken the patch has no name any more, and the move could never end
        raise HandOff(
            f"{slug}: expected `Slug: {slug}` among the last lines of the message of {commit[:12]}, found none there.",
            f"{shop.git} commit --amend, then --continue.",
        )


def close_workshop(shop: Workshop) -> None:
    """Takes the worktree away; the repository stays, with what it remembers of resolutions."""
    _mark_file(shop).unlink(missing_ok=True)
    if (shop.tree.path / ".git").is_file():
        attempt(shop.tree, "rerere")  # what was resolved and not committed is remembered too
    shutil.rmtree(shop.tree.path, ignore_errors=True)
    run(shop.repo, "worktree", "prune")


def check_committed(shop: Workshop) -> None:
    """Every change in the worktree is in a commit.

    Raises:
        Refused: one is not.
    """
    if not (shop.tree.path / ".git").is_file():
        return
    found = (
        run(shop.tree, "status", "--porcelain", "--untracked-files=all", "-z").decode("utf-8", "replace").split("\0")
    )
    changed = [row[3:] for row in found if row[3:]]
    if changed:
        # why: the next conflict would be laid over them
        raise Refused(
            f"{shop.tree.path}: changes that no commit has: {', '.join(changed[:5])}.",
            f"Commit them, or {shop.git} restore --staged --worktree them, then run again.",
        )


def taken(shop: Workshop, commit: str) -> None:
    """The resolution is this commit: the worktree stands on it, with nothing of it left over."""
    attempt(shop.tree, "cherry-pick", "--quit")
    run(shop.tree, "reset", "--quiet", "--soft", commit)


def given_up(shop: Workshop) -> None:
    """What lies in the worktree is not wanted: the user said so."""
    _mark_file(shop).unlink(missing_ok=True)


def check_untouched(shop: Workshop) -> None:
    """The worktree holds no file of the user's own.

    Raises:
        Refused: it does.
    """
    if not (shop.tree.path / ".git").is_file():
        return
    found = os.fsdecode(run(shop.tree, "status", "--porcelain", "--untracked-files=all", "-z")).split("\0")
    mine = [row[3:] for row in found if row.startswith("??")]
    if mine:
        # why: files that no commit has would be gone with the worktree
        raise Refused(
            f"{shop.tree.path}: files that no commit has: {', '.join(mine[:5])}.", "Move them away, then run again."
        )
