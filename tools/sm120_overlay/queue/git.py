"""The one gateway to git. GitPython runs it; this module decides in which surroundings.

No GIT_* variable of the caller's reaches git, and no setting of the user's can change what we write: hooks, signing,
line ends, white space, renames and prefixes are fixed here. The user's configuration stays readable, because
their `safe.directory` lives there. Bytes in, bytes out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, TYPE_CHECKING, BinaryIO

from ..errors import Missing, OverlayError
from ..stops import held_back

if TYPE_CHECKING:
    from git import Git

SETTINGS = {
    "commit.gpgSign": "false",
    "core.autocrlf": "false",
    "core.attributesFile": os.devnull,
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.logAllRefUpdates": "true",  # HEAD's reflog is the way back on reverse
    "core.quotePath": "true",
    "core.safecrlf": "false",
    "diff.mnemonicPrefix": "false",
    "diff.noprefix": "false",
    "diff.orderFile": os.devnull,
    "diff.renames": "false",
    "diff.suppressBlankEmpty": "false",
    "fastimport.unpackLimit": "0",
    "format.signOff": "false",
    "gc.auto": "0",
    "i18n.commitEncoding": "UTF-8",
    "init.defaultBranch": "main",  # a name that is none would end every init, also where no branch is born
    "init.defaultObjectFormat": "sha1",
    "init.defaultRefFormat": "files",
    "i18n.logOutputEncoding": "UTF-8",
    "log.showSignature": "false",
    "mailinfo.quotedCr": "nowarn",
    "mailinfo.scissors": "false",
    "maintenance.auto": "false",
    "pack.compression": "0",  # a second saved for a hundred patches is worth a few megabytes until the next gc
    "protocol.version": "2",
    "safe.bareRepository": "all",  # our own are bare; the ceiling keeps git from finding any but the one that is named
    "splitIndex.sharedIndexExpire": "never",  # the user's index may still stand on the file that would go
    "submodule.recurse": "false",
}
OLDEST = (2, 34)  # of Ubuntu 22.04; tests/surroundings/git_2_34.txt has what is used of it
ENVIRONMENT = {
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_LAZY_FETCH": "1",  # a partial clone must say what it lacks, not fetch it silently
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
}
# The same for git < 2.45, which does not know that variable: nothing but a fetch or push by name may reach any remote.
ALONE = {"GIT_ALLOW_PROTOCOL": ""}


class GitError(OverlayError):
    """git itself said no; `what` carries its words."""

    exit_code = 4


@dataclass(frozen=True)
class Repository:
    """A git repository at a folder. `locks` are file descriptors that git's children hold while they run."""

    path: Path
    locks: tuple[int, ...] = ()


def scrub_environment() -> None:
    """Takes every GIT_* variable out of this process: GitPython copies os.environ into every call."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        del os.environ[name]


@cache
def _library() -> type[Git]:
    scrub_environment()  # before the import: GitPython reads GIT_PYTHON_* then
    try:
        from git import Git

        found = hasattr(Git, "execute")
    except Exception as error:  # whatever lies there under this name
        if "git executable" in str(error):
            # why: every source and every checkout is read by git
            raise Missing("git is not on PATH.", "Install git 2.34 or newer.") from None
        raise _no_library(error) from None
    if not found:
        raise _no_library(ImportError("it is another module"))
    return Git


def _no_library(error: Exception) -> OverlayError:
    cause = error.__cause__
    if cause is not None:  # GitPython is there, and asked git for its version
        said, status = getattr(cause, "stderr", str(cause)), getattr(cause, "status", None)
        why = last_words(str(said).strip().removeprefix("stderr: '").removesuffix("'"), status or 0)
        # why: a git that is there and broken is another fault than one that is missing
        return GitError(f"git does not run: {why}.", "Mend what git names and run again.")
    spec = find_spec("git")
    what = f"GitPython cannot be imported ({error}): " + (f"found {spec.origin}." if spec else "there is none.")
    # why: all of git is reached through it
    return Missing(what, "Install this project's requirements; take other modules named git off PYTHONPATH.")


def run(repo: Repository, *arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> bytes:
    """What `git ARGUMENTS` prints in `repo`.

    Raises:
        GitError: git exits other than 0.
    """
    code, out, err = attempt(repo, *arguments, stdin=stdin, env=env)
    if code:
        trust = f"If you trust it: git config --global --add safe.directory {repo.path}"
        todo = trust if "safe.directory" in err else "Mend what git names and run again."
        command = next((part for part in arguments if not part.startswith("-")), "")
        # why: git's own words are the best there are; its exit code alone says nothing
        raise GitError(f"{repo.path}: git {command} failed: {last_words(err, code)}.", todo)
    return out


def attempt(
    repo: Repository,
    *arguments: str,
    stdin: bytes = b"",
    env: dict[str, str] | None = None,
    watch: Callable[[str], None] | None = None,
) -> tuple[int, bytes, str]:
    """Exit code, standard output and standard error of `git ARGUMENTS`; `watch` hears the latter as it comes."""
    scrub_environment()
    if not repo.path.is_dir():
        # why: GitPython would run in the current folder instead
        raise Missing(f"{repo.path} does not exist.", "Name a folder that does.")
    git = _library()
    settings = [part for key, value in SETTINGS.items() for part in ("-c", f"{key}={value}")]
    surroundings = ENVIRONMENT | {"GIT_CEILING_DIRECTORIES": str(repo.path.parent)} | (env or {})
    if not {"fetch", "push"}.intersection(arguments):
        surroundings |= ALONE
    command = [git.GIT_PYTHON_GIT_EXECUTABLE or "git", *settings, *arguments]
    with _as_file(stdin) as stream:
        process = None
        try:
            with held_back():  # a stop between its start and here would lose hold of it
                started = git(repo.path).execute(
                    command, istream=stream, as_process=True, env=surroundings, pass_fds=repo.locks
                )
                process = started.proc
            assert process is not None  # execute() just started it
            heard = b"".join(_heard(process.stderr, watch)) if watch and process.stderr else b""
            out, err = process.communicate()
        except BaseException:  # told to stop: whoever undoes what we did must not meet a git that is still at work
            if process is not None:
                process.terminate()
                process.communicate()  # ends when no one writes there any more, so also what a wrapper of git started
            raise
    return process.returncode, out, (heard + err).decode("utf-8", "replace")


def _heard(stream: IO[bytes], watch: Callable[[str], None]) -> Iterator[bytes]:
    """What comes from a stream, piece by piece; only for commands that print nothing else."""
    while piece := os.read(stream.fileno(), 4096):
        watch(piece.decode("utf-8", "replace"))
        yield piece


@contextmanager
def _as_file(data: bytes) -> Iterator[BinaryIO | None]:
    """Input as a file that git reads by itself: megabytes through a pipe would cost a wake-up every 64 KB."""
    if not data:
        yield None
        return
    with TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        yield file


def git_version(repo: Repository) -> tuple[int, ...]:
    """The version of the git that runs here, such as (2, 34, 1)."""
    return tuple(map(int, re.findall(r"\d+", run(repo, "version").decode())[:3]))


def last_words(err: str, code: int) -> str:
    """git's own sentence about what went wrong, without its advice."""
    lines = [line for line in err.splitlines() if line.strip()]
    marked = [line for line in lines if line.startswith(("fatal: ", "error: "))]
    said = (marked or lines[-1:] or [f"exit code {code}"])[0]
    return said.removeprefix("fatal: ").removeprefix("error: ").strip().rstrip(".")


@dataclass(frozen=True)
class Entry:
    """A file in a tree or in the index."""

    mode: str
    blob: str


@dataclass(frozen=True)
class Change:
    """One path that differs between two commits (None: not there)."""

    path: str
    old: Entry | None
    new: Entry | None


def diff_trees(repo: Repository, old: str, new: str) -> tuple[Change, ...]:
    """Every path that differs between the trees of two commits."""
    out = run(repo, "diff-tree", "-r", "-z", "--no-renames", "--full-index", "--no-ext-diff", old, new)
    parts = out.split(b"\0")
    changes = []
    for head, path in zip(parts[:-1:2], parts[1::2], strict=True):
        old_mode, new_mode, old_blob, new_blob, _ = head.decode().lstrip(":").split(" ")
        before = None if old_mode == "000000" else Entry(old_mode, old_blob)
        after = None if new_mode == "000000" else Entry(new_mode, new_blob)
        changes.append(Change(os.fsdecode(path), before, after))
    return tuple(changes)


@dataclass(frozen=True)
class Object:
    """An object of the repository: its id, its kind (`blob`, `commit`, …) and its bytes."""

    id: str
    kind: str
    data: bytes


def read_objects(repo: Repository, names: Iterable[str]) -> dict[str, Object | None]:
    """Name → object for every object name (an id, a ref, or REVISION:PATH), None where there is none; one process.

    The bytes of a blob asked for by path are as in the tree, whatever its attributes say.
    """
    wanted = list(dict.fromkeys(names))
    stream = b"".join(os.fsencode(name) + b"\n" for name in wanted)
    out = _cat_file(repo, "--batch", stream) if wanted else b""
    found: dict[str, Object | None] = {}
    at = 0
    for name in wanted:
        end = out.index(b"\n", at)
        head, at = out[at:end].rsplit(b" ", 2), end + 1
        if head[-1] == b"missing":
            found[name] = None
            continue
        size = int(head[2])
        found[name] = Object(head[0].decode(), head[1].decode(), out[at : at + size])
        at += size + 1
    return found


def _cat_file(repo: Repository, how: str, names: bytes) -> bytes:
    """What cat-file says of every name.

    At the first object that a partial clone lacks git may end (since 2.39) instead of going on; what the clone holds is
    then asked for in a repository that knows of no remote.
    """
    try:
        return run(repo, "cat-file", how, stdin=names)
    except GitError:
        partial, _, _ = attempt(repo, "config", "--get-regexp", r"^remote\..*\.promisor$|^extensions\.partialclone$")
        if partial != 0:
            raise
    common = run(repo, "rev-parse", "--path-format=absolute", "--git-common-dir")
    with objects_alone(Path(os.fsdecode(common).rstrip("\n"))) as alone:
        return run(alone, "cat-file", how, stdin=names)


def object_ids(repo: Repository, names: Iterable[str]) -> dict[str, str | None]:
    """Name → id for every object name, None where there is none; one process, and no object's bytes are read."""
    wanted = list(dict.fromkeys(names))
    out = _cat_file(repo, "--batch-check=%(objectname)", b"".join(os.fsencode(name) + b"\n" for name in wanted))
    said = out.decode("utf-8", "replace").splitlines() if wanted else []
    return {name: None if line.endswith(" missing") else line for name, line in zip(wanted, said, strict=True)}


def tree_entries(repo: Repository, revision: str, paths: Iterable[str]) -> dict[str, Entry]:
    """Path → entry of a revision's tree, for those of `paths` that are files in it."""
    out = run(repo, "--literal-pathspecs", "ls-tree", "-r", "-z", "--full-tree", revision, "--", *paths)
    rows = (row.partition(b"\t") for row in out.split(b"\0") if row)
    return {os.fsdecode(path): Entry(*head.decode().split(" ")[::2]) for head, _, path in rows}


def index_entries(repo: Repository, paths: Iterable[str], index: Path | None = None) -> dict[str, Entry]:
    """Path → entry of the index.

    A path with conflicts has mode `unmerged`, one outside a sparse cone `sparse`, one marked assume-unchanged
    `assumed`.
    """
    env = {"GIT_INDEX_FILE": str(index)} if index else None
    out = run(repo, "--literal-pathspecs", "ls-files", "-v", "-s", "-z", "--full-name", "--", *paths, env=env)
    found: dict[str, Entry] = {}
    for row in filter(None, out.split(b"\0")):
        head, _, path = row.partition(b"\t")
        tag, mode, blob, stage = head.decode().split(" ")
        odd = "sparse" if tag in "Ss" else "assumed" if tag.islower() else mode
        mode = "unmerged" if stage != "0" else odd
        found[os.fsdecode(path)] = Entry(mode, blob)
    return found


def git_path(repo: Repository, name: str) -> Path:
    """Where git keeps a file or folder of its own, such as `objects`."""
    return repo.path / os.fsdecode(run(repo, "rev-parse", "--git-path", name)).removesuffix("\n")


def is_repository(path: Path) -> bool:
    """Whether a folder is a repository of git's, bare or not, itself."""
    return path.is_dir() and attempt(Repository(path.resolve()), "rev-parse", "--git-dir")[0] == 0


def commit_exists(repo: Repository, commit: str) -> bool:
    """Whether the repository holds the commit (its id, or a ref to it) and its tree."""
    out = _cat_file(repo, "--batch-check", f"{commit}^{{tree}}\n".encode())
    return not out.endswith(b" missing\n")


def commit_named(repo: Repository, revision: str) -> str:
    """The id of the commit that a revision names, "" where it names none."""
    how = ("--verify", "--quiet", "--end-of-options")
    code, out, _ = attempt(repo, "rev-parse", *how, f"{revision}^{{commit}}")
    return out.decode().strip() if code == 0 else ""


@dataclass(frozen=True)
class Branch:
    """A branch: its full name, its tip, and the worktree that has it checked out (None: no one)."""

    name: str
    tip: str
    worktree: Path | None


def branches(repo: Repository, pattern: str) -> dict[str, Branch]:
    """Full name → branch, of those that are `pattern` or lie below it."""
    out = run(repo, "for-each-ref", "--format=%(refname)%00%(objectname)%00%(worktreepath)", pattern)
    rows = [os.fsdecode(row).split("\0") for row in out.splitlines()]
    return {name: Branch(name, tip, Path(worktree) if worktree else None) for name, tip, worktree in rows}


def tip_of(repo: Repository, branch: str) -> str | None:
    """Where a branch (its full name) stands, None where there is none."""
    found = branches(repo, branch).get(branch)
    return found.tip if found else None


@contextmanager
def objects_alone(*commons: Path) -> Iterator[Repository]:
    """The objects of clones seen from one empty bare repository, which goes afterwards.

    The clones' attributes and settings have no say there, and whatever is written stays out of them.

    Args:
        commons: of each clone the git directory that all its worktrees share.
    """
    with TemporaryDirectory(prefix="sm120-overlay-") as folder:
        bare = Repository(Path(folder).resolve())
        run(bare, "init", "--quiet", "--bare", "--template=", ".")
        borrow_objects(bare, commons)
        yield bare


def borrow_objects(bare: Repository, commons: Sequence[Path]) -> None:
    """Lets a bare repository see the objects of clones, and where their histories are cut short; those of before go."""
    alternates = bare.path / "objects" / "info" / "alternates"
    alternates.parent.mkdir(exist_ok=True)
    alternates.write_text("".join(f"{common.resolve() / 'objects'}\n" for common in commons))
    cut = b"".join(shallow.read_bytes() for common in commons if (shallow := common / "shallow").is_file())
    (bare.path / "shallow").write_bytes(cut) if cut else (bare.path / "shallow").unlink(missing_ok=True)


def symbolic_head(repo: Repository, target: str, why: str) -> None:
    """Puts HEAD on a branch (its full name), or detached on a commit; files and index stay."""
    if target.startswith("refs/"):
        run(repo, "symbolic-ref", "-m", why, "HEAD", target)
    else:
        run(repo, "update-ref", "--no-deref", "-m", why, "HEAD", target)


def set_refs(repo: Repository, refs: Mapping[str, tuple[str | None, str | None]], why: str) -> None:
    """Moves refs from one id to another in one transaction (None: no such ref).

    Raises:
        GitError: a ref was not where it was said to be; then none moved.
    """
    commands = []
    for ref, (new, old) in refs.items():
        if new is None:
            commands.append(f"delete {ref}\0{old}\0")
        else:
            commands.append(f"update {ref}\0{new}\0{old or '0' * 40}\0")
    run(repo, "update-ref", "--create-reflog", "-m", why, "-z", "--stdin", stdin="".join(commands).encode())
