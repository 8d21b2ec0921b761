"""Recognises a git checkout: which pin it stands on, what of ours is on top, and what is in its files. Reads only."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from ..errors import Missing, OverlayError, Refused
from .blobs import blob_of
from .build import COMMITTER
from .git import OLDEST, Repository, attempt, git_version, last_words, run
from .home import command
from .mail import slug_in
from .pins import Lines, Pin
from .sources import known_commit, pinned_roots
from .transaction import FOLDER, Workplace, read_file

# What git leaves in its directory while one of its own operations waits for the user, and how that is ended.
UNFINISHED = {
    "rebase-merge": ("rebase", "git rebase --abort"),
    "rebase-apply/applying": ("am", "git am --abort"),
    "rebase-apply": ("rebase", "git rebase --abort"),
    "MERGE_HEAD": ("merge", "git merge --abort"),
    "CHERRY_PICK_HEAD": ("cherry-pick", "git cherry-pick --abort"),
    "REVERT_HEAD": ("revert", "git revert --abort"),
    "BISECT_LOG": ("bisect", "git bisect reset"),
}
FAR = 2000  # commits above a pin that are looked through


@dataclass(frozen=True)
class Commit:
    """A commit above the pin: what it says, and whether these tools made it (the committer says so)."""

    id: str
    parents: tuple[str, ...]
    tree: str
    author: str
    message: str
    ours: bool

    @property
    def parent(self) -> str:
        """Its first parent."""
        return self.parents[0] if self.parents else ""

    @property
    def slug(self) -> str | None:
        """The slug in its trailers."""
        return slug_in(self.message)


@dataclass(frozen=True)
class Where:
    """What git says of a checkout's top folder; `branch` is HEAD's full name, None where detached."""

    git_dir: Path
    index: Path
    head: str
    branch: str | None

    @property
    def common(self) -> Path:
        """The git directory that all worktrees of the repository share."""
        pointer = self.git_dir / "commondir"
        return self.git_dir / pointer.read_text().strip() if pointer.is_file() else self.git_dir


@dataclass(frozen=True)
class Checkout:
    """A checkout on a pin; `commits` are pin..HEAD."""

    repo: Repository
    where: Where
    pin: Pin
    base: str
    commits: tuple[Commit, ...]

    @property
    def head(self) -> str:
        """The commit that is checked out."""
        return self.where.head

    @property
    def branch(self) -> str | None:
        """The full name of HEAD's branch, None where detached."""
        return self.where.branch

    @property
    def place(self) -> Workplace:
        """Where its lock and journal lie: in its own git directory (a linked worktree has its own)."""
        return Workplace(self.where.git_dir / FOLDER, self.repo.path)

    @property
    def ours(self) -> str:
        """The branch that these tools keep in this checkout."""
        return our_branch(self.pin)

    @property
    def our_name(self) -> str:
        """The same as a person writes it."""
        return self.ours.removeprefix("refs/heads/")

    @property
    def standing(self) -> str:
        """Where HEAD is, in words: on a branch, or detached."""
        return f"on {self.branch.removeprefix('refs/heads/')}" if self.branch else "detached"

    @property
    def git(self) -> str:
        """How a person's command line begins that runs git there."""
        return f"git -C {quote(str(self.repo.path))}"

    @property
    def laid_out(self) -> bool:
        """Whether it stands on a wheel laid out as a tree, not on upstream's own commit."""
        return self.base in {wheel.root for wheel in self.pin.wheels}


def our_branch(pin: Pin) -> str:
    """The full name of the branch that carries a line's series."""
    return f"refs/heads/sm120/{pin.line}"


def find_checkout(path: Path) -> Where:
    """Asks git about the folder, which must be a checkout's top folder.

    Raises:
        Refused: it is none (also when it only lies inside one), or has no commit yet.
    """
    if not path.is_dir():
        # why: git would go up and find another repository (oven-sh/bun#35099)
        raise Refused(f"{path} does not exist or is no folder.", "Name the top folder of a checkout.")
    check_one_line(path)
    repo = Repository(path.resolve())
    code, out, err = attempt(
        repo, "rev-parse", "--path-format=absolute", "--show-toplevel", "--absolute-git-dir",
        "--git-path", "index", "HEAD", "--symbolic-full-name", "HEAD",
    )  # fmt: skip
    lines = os.fsdecode(out).splitlines()
    if code or len(lines) != 5 or Path(lines[0]).resolve() != repo.path:
        raise _no_checkout(repo, err, code)
    return Where(Path(lines[1]), Path(lines[2]), lines[3], None if lines[4] == "HEAD" else lines[4])


def check_one_line(path: Path) -> None:
    """git can name the place: it tells places one a line, and keeps some of them so.

    Raises:
        Refused: there is a line end in it.
    """
    if "\n" in str(path.resolve()):
        # why: git names its folders line by line; a name of two lines would be read as another folder
        raise Refused(f"{path}: expected a path on one line, found a line end in it.", "Rename that folder.")


def _no_checkout(repo: Repository, err: str, code: int) -> OverlayError:
    """What a folder is that git does not take for a checkout's top folder."""
    version = git_version(repo)
    if version < OLDEST:
        # why: an older git does not know the options that keep its answers apart from the user's settings
        return Missing(
            f"git {'.'.join(map(str, version))} is too old; expected {'.'.join(map(str, OLDEST))} or newer.",
            "Install a newer git, and put it first on PATH.",
        )
    if "safe.directory" in err:
        add = f"git config --global --add safe.directory {repo.path}"
        # why: git's guard against foreign hooks and settings is the user's to lift (GitPython#1616)
        return Refused(f"{repo.path} belongs to another user, and git refuses it.", f"If you trust it: {add}")
    # Discovery is off where we look (a folder that another repository ignores is not that repository's).
    _, out, _ = attempt(repo, "rev-parse", "--show-toplevel", env={"GIT_CEILING_DIRECTORIES": ""})
    above = os.fsdecode(out).removesuffix("\n")
    if above and Path(above).resolve() in repo.path.parents:
        # why: git apply in such a folder changes nothing and exits 0 (kata-containers#3690)
        return Refused(
            f"{repo.path} is not the top folder of a checkout: it lies inside {above}.", "Name the top folder."
        )
    if above and Path(above).resolve() != repo.path:
        # why: git's answers would be about the files of another folder than the one that is named
        return Refused(
            f"{repo.path}: its git directory keeps the files of another folder, {above} (core.worktree).",
            f"Name {above}, or take the setting away (git config --unset core.worktree).",
        )
    if (repo.path / "pyvenv.cfg").is_file():
        # why: a venv inside a checkout is no checkout, and what is wanted there is --installed
        return Refused(
            f"{repo.path} is a Python environment, not a checkout.", f"Use --installed {repo.path / 'bin' / 'python'}"
        )
    # why: without a commit there is nothing that a series could be made on
    return Refused(
        f"{repo.path}: expected the top folder of a git checkout with a commit, found none ({last_words(err, code)}).",
        "Name a checkout, an empty place for a fresh one (--into), or --installed for a package.",
    )


def open_checkout(path: Path, lines: Lines, where: Where | None = None, locks: tuple[int, ...] = ()) -> Checkout:
    """The checkout at `path`; `where` is what `find_checkout` said, if it was asked already.

    Raises:
        Refused: it is not a checkout's top folder, or HEAD stands on no pin of any line.
    """
    repo = Repository(path.resolve(), locks)
    where = where or find_checkout(path)
    roots = {root: pin for pin in lines.all_pins() for root in pinned_roots(pin)}
    roots |= {known: pin for pin in lines.all_pins() if not pin.commit and (known := known_commit(pin, repo))}
    commits = () if where.head in roots else read_commits(repo, where.head, roots)
    base = commits[0].parent if commits else where.head
    if base not in roots:
        known = ", ".join(f"{pin.upstream} {pin.tag} ({pin.commit[:12] or 'its tag'})" for pin in lines.all_pins())
        # why: a series made for one commit hits the wrong place on another (Hyperloom#205)
        raise Refused(
            f"{path}: HEAD is {where.head[:12]}, which stands on no pin; expected one of {known}.",
            f"git -C {path} checkout TAG_OF_THE_PIN, or let {command('apply')} make a fresh one (no path, or --into).",
        )
    return Checkout(repo, where, roots[base], base, commits)


def read_commits(repo: Repository, tip: str, stops: Iterable[str]) -> tuple[Commit, ...]:
    """The commits from a pin (not with it) to `tip`, first parents only, oldest first."""
    out = run(
        repo, "log", "--first-parent", f"--max-count={FAR}", "--ignore-missing", "-z",
        "--format=%H%x01%P%x01%T%x01%an <%ae>%x01%cn <%ce>%x01%B", tip, *(f"^{stop}" for stop in stops), "--",
    )  # fmt: skip
    rows = [row.split("\x01", 5) for row in out.decode("utf-8", "replace").split("\0") if row]
    return tuple(
        Commit(id, tuple(parents.split()), tree, author, message.rstrip("\n"), committer == COMMITTER)
        for id, parents, tree, author, committer, message in reversed(rows)
    )


def unfinished(checkout: Checkout) -> tuple[str, str] | None:
    """The operation of git's own that waits for the user there, and the command that ends it, if there is one."""
    return next((names for entry, names in UNFINISHED.items() if (checkout.where.git_dir / entry).exists()), None)


def observe_files(root: Path, paths: Iterable[str]) -> dict[str, str | None]:
    """Path → blob id of the file as it lies there (None: no file); nothing but these files is read."""
    return {path: blob_of(read_file(root / path)) for path in paths}
