"""What leaves this project: a patch's branch in a worktree of our own, its mails, and upstream's page for it.

The work repository is ours, so the user's clone is never changed; nothing is sent anywhere but by `open_request`.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..cache import publish_file
from ..errors import Missing, Refused
from .git import Repository, run, set_refs, tip_of
from .home import Home


@dataclass(frozen=True)
class Desk:
    """Where a patch is made ready: `repo` holds the branch `name`, `tree` is the worktree with it checked out."""

    repo: Repository
    slug: str

    @property
    def name(self) -> str:
        """The branch's short name."""
        return f"sm120-{self.slug}"

    @property
    def tree(self) -> Repository:
        """The worktree."""
        return Repository(self.repo.path.parent / self.slug)

    @property
    def page(self) -> Path:
        """The text of the pull request."""
        return self.repo.path.parent / f"{self.slug}.md"

    @property
    def _made(self) -> str:
        """What we made of the branch last: another tip is somebody's own work."""
        return f"refs/sm120-made/{self.slug}"


def outbox_folder(home: Home, upstream: str) -> Path:
    """Where patches of an upstream are made ready: below build/, which git ignores."""
    return home.root / "build" / "upstream" / upstream


def open_desk(repo: Repository, slug: str) -> Desk:
    """The desk of a patch, with nothing on it that is not ours.

    Raises:
        Refused: its branch or its worktree holds what somebody else made there.
    """
    desk = Desk(repo, slug)
    there, made = tip_of(desk.repo, f"refs/heads/{desk.name}"), tip_of(desk.repo, desk._made)
    if there and there != made:
        # why: the branch would be set back, and the commits on it lost from sight
        raise Refused(
            f"{desk.tree.path}: {desk.name} is at {there[:12]}, and these tools left it at {(made or 'nothing')[:12]}.",
            f"Keep your commits under another name (git -C {desk.tree.path} branch -m NAME), then run again.",
        )
    if (desk.tree.path / ".git").is_file():
        said = run(desk.tree, "status", "--porcelain", "--untracked-files=all", "-z").decode("utf-8", "replace")
        changed = [row[3:] for row in said.split("\0") if row]
        if changed:
            # why: the next checkout would be laid over them
            raise Refused(
                f"{desk.tree.path}: changes that no commit has: {', '.join(changed[:5])}.",
                "Move them away or restore them, then run again.",
            )
    elif desk.tree.path.exists():
        # why: what lies there was never ours
        raise Refused(f"{desk.tree.path}: expected our worktree or nothing.", "Move it away, then run again.")
    return desk


def put_on(desk: Desk, commit: str) -> None:
    """The branch and its worktree at a commit, whatever the files were: `open_desk` has looked at them."""
    if (desk.tree.path / ".git").is_file():
        run(desk.tree, "checkout", "--quiet", "--force", "-B", desk.name, commit)
    else:
        run(desk.repo, "worktree", "prune")
        run(desk.repo, "worktree", "add", "--quiet", "--force", "-B", desk.name, str(desk.tree.path), commit)
    set_refs(desk.repo, {desk._made: (commit, tip_of(desk.repo, desk._made))}, "made")


def mails(repo: Repository, before: str, tip: str) -> dict[str, bytes]:
    """The commits before..tip as git mails them: file name → bytes."""
    with tempfile.TemporaryDirectory(prefix="sm120-overlay-") as folder:
        run(repo, "format-patch", "--quiet", "--no-signature", "--output-directory", folder, f"{before}..{tip}")
        return {file.name: file.read_bytes() for file in sorted(Path(folder).iterdir())}


def check_mails(folder: Path, wanted: dict[str, bytes]) -> None:
    """No file of another content lies where a mail would go.

    Raises:
        Refused: one does.
    """
    for name, data in wanted.items():
        place = folder / name
        if place.exists() and (not place.is_file() or place.read_bytes() != data):
            # why: it may be the mail of another day, with a cover letter's worth of edits
            raise Refused(f"{place}: something else is there already.", "Move it away, or name another folder.")


def write_mails(folder: Path, wanted: dict[str, bytes]) -> list[Path]:
    """The mails as files."""
    check_mails(folder, wanted)
    for name, data in wanted.items():
        publish_file(folder / name, data)
    return [folder / name for name in wanted]


def check_gh() -> None:
    """GitHub's command line tool is there.

    Raises:
        Missing: it is not.
    """
    if shutil.which("gh") is None:
        # why: the branch would be pushed, and nobody told of it
        raise Missing(
            "gh, GitHub's command line tool, is not on PATH.", "Install it and `gh auth login`, or leave --gh out."
        )


def request_commands(desk: Desk, repository: str, fork: str, title: str) -> list[list[str]]:
    """What `open_request` runs: the branch to the fork, then the pull request.

    Args:
        repository: upstream's `OWNER/NAME`; fork: the one that the branch goes to.
    """
    push = ["git", "-C", str(desk.tree.path), "push", f"https://github.com/{fork}.git", f"{desk.name}:{desk.name}"]
    head = f"{fork.partition('/')[0]}:{desk.name}"
    create = ["gh", "pr", "create", "--repo", repository, "--head", head, "--title", title]
    return [push, [*create, "--body-file", str(desk.page)]]


def open_request(desk: Desk, commands: Sequence[Sequence[str]]) -> str:
    """Pushes the branch and opens the pull request; what gh answers, which is its address.

    Raises:
        GitError: the push was refused.
        Missing: gh failed.
    """
    push, create = commands
    run(desk.tree, *push[3:])
    done = subprocess.run(create, cwd=desk.tree.path, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit {done.returncode}").splitlines()[0]
        # why: the branch is pushed and the request is not there
        raise Missing(f"gh pr create failed: {said}", "Mend what it names and run again; the branch is pushed already.")
    return done.stdout.strip()
