"""Where the tree of a pin comes from: a repository the user names, upstream's own, or the wheel laid out.

Whatever is fetched goes into one bare repository per upstream in the cache, under a ref that is set last: a pin
is there whole or not at all, and once it is there it works offline.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .. import report
from ..cache import cache_dir, publish
from ..errors import Missing, OverlayError, UsageError
from .build import build_root
from .git import Repository, attempt, commit_exists, commit_named, last_words, run, set_refs
from .pins import Pin
from .wheels import Say, fetch_wheel, laid_out, suited

KINDS = ("auto", "git", "pypi")
# An unreachable host must not hang a run for minutes: under 1 kB/s for 20 s is no connection.
PATIENCE = ("-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=20")


@dataclass(frozen=True)
class Source:
    """A repository that holds the pin's tree in `commit`; `kind` is `git`, `pypi` or `path`."""

    kind: str
    repository: Path
    commit: str

    @property
    def installable(self) -> bool:
        """A tree laid out from a wheel lacks the project files that an installation needs."""
        return self.kind != "pypi"


def find_source(pin: Pin, wanted: str, say: Say) -> Source:
    """The source of a pin: `auto`, `git`, `pypi`, or the path of a repository or mirror that holds it.

    Raises:
        Missing: nothing that was allowed has the pin.
        UsageError: `wanted` is neither a kind nor a path that exists.
    """
    if wanted == "pypi":
        return _from_wheel(pin, say)
    if wanted == "git":
        return _from_git(pin, say)
    if wanted == "auto":
        return _automatic(pin, say)
    return _from_path(pin, Path(wanted).expanduser(), say)


def choose_source(pin: Pin, wanted: Sequence[str], say: Say) -> Source:
    """The first of several sources that has the pin; a repository that lacks it is passed over, aloud.

    Raises:
        Missing: none has it.
    """
    *others, last = wanted
    for source in others:
        if source in KINDS or holds(pin, Path(source).expanduser()):
            return find_source(pin, source, say)
        say(f"{pin.upstream}: {source} does not hold {pin.tag}; trying the next source")
    return find_source(pin, last, say)


def check_sources(pins: Sequence[Pin], wanted: Sequence[str]) -> list[str]:
    """The sources to try for each pin: those wanted, and `auto` for upstreams that named repositories do not hold.

    Raises:
        Missing, UsageError: a named repository is none, or holds no pin of the line at all.
    """
    for source in wanted:
        path = Path(source).expanduser()
        if source not in KINDS and not (path.is_dir() and any(holds(pin, path) for pin in pins)):
            _from_path(pins[0], path, lambda text: None)
    named_only = not any(source in KINDS for source in wanted)
    return [*wanted, "auto"] if named_only else list(wanted)


def holds(pin: Pin, path: Path) -> bool:
    """Whether the repository at `path` has the pinned commit."""
    return known_commit(pin, Repository(path.resolve())) != ""


def known_commit(pin: Pin, repo: Repository) -> str:
    """The pinned commit as the repository has it, "" where it has not; of a pin without one, what its tag names."""
    if pin.commit:
        return pin.commit if commit_exists(repo, pin.commit) else ""
    return commit_named(repo, f"refs/tags/{pin.tag}")


def _automatic(pin: Pin, say: Say) -> Source:
    try:
        return _from_git(pin, say)
    except OverlayError as error:
        say(f"{pin.upstream}: upstream's repository cannot be reached; taking the pinned wheel ({error.what})")
        return _from_wheel(pin, say)


def _from_path(pin: Pin, path: Path, say: Say) -> Source:
    if ":/" in str(path):
        # why: a mirror is read where it lies; fetching from anywhere is what `git` is for
        raise UsageError(f"--source {path}: expected a folder, found a URL.", "git clone --bare it; name that folder.")
    if not path.is_dir():
        # why: a misspelt kind of source would be taken for a path, or the other way round
        raise UsageError(f"--source {path}: expected auto, git, pypi or a repository, found no such folder.", _TODO)
    if not holds(pin, path):
        # why: a neighbouring commit is not the pin (Tanguille/cluster#4219)
        raise Missing(
            f"{path} does not hold {pin.upstream} {pin.tag} ({pin.commit or 'by its tag'}).",
            "Fetch that commit there, or name another source (auto, git, pypi).",
        )
    say(f"{pin.upstream}: {pin.tag} from {path}")
    return Source("path", path.resolve(), known_commit(pin, Repository(path.resolve())))


_TODO = "Name a repository or mirror that holds the pinned commit."


def _from_git(pin: Pin, say: Say) -> Source:
    with _cached_repository(pin) as repo:
        commit = known_commit(pin, repo)
        if not (commit and _has(repo, commit)):
            named = pin.commit or f"refs/tags/{pin.tag}:refs/tags/{pin.tag}"
            say(f"{pin.upstream}: fetching {pin.tag} ({pin.commit[:12] or 'by its tag'}) from {pin.repository}")
            fetch = ("fetch", "--progress", "--depth=1", "--no-tags", pin.repository, named)
            with report.progress(f"{pin.upstream} {pin.tag}") as update:
                code, _, err = attempt(repo, *PATIENCE, *fetch, watch=partial(_show_received, update))
            if code:
                # why: hosts refuse single commits, and networks fail; auto goes on to the wheel
                raise Missing(
                    f"{pin.repository} did not give {pin.commit[:12] or pin.tag}: {last_words(err, code)}.",
                    "Check the network, name a mirror with --source PATH, or use --source pypi.",
                )
            commit = known_commit(pin, repo)
            _keep(repo, commit)
    return Source("git", repo.path, commit)


def _show_received(update: Callable[[int, int], None], text: str) -> None:
    for found in re.findall(r"(\d+)%", text):
        update(int(found), 100)


def _from_wheel(pin: Pin, say: Say) -> Source:
    wheel = suited(pin)
    with _cached_repository(pin) as repo:
        if not (wheel.root and _has(repo, wheel.root)):
            root = lay_out(repo, pin, fetch_wheel(pin, say, wheel))
            if root != wheel.root:
                # why: the root's id is pinned, so that a changed wheel or map is a hash error
                raise Missing(
                    f"{pin.upstream} {pin.version} laid out gives {root}, and pins.toml says {wheel.root or 'none'}.",
                    "The wheel or the path map changed: check them, then pin the new root.",
                )
            _keep(repo, root)
    return Source("pypi", repo.path, wheel.root)


def lay_out(repo: Repository, pin: Pin, file: Path) -> str:
    """The commit that a wheel gives when it is laid out as the repository lays it."""
    subject = f"{pin.distribution} {pin.version}, laid out from its wheel"
    return build_root(repo, laid_out(pin, file), subject)


def laid_out_root(pin: Pin, file: Path) -> str:
    """The commit that a wheel gives when it is laid out, which is then at hand for `find_source`."""
    with _cached_repository(pin) as repo:
        root = lay_out(repo, pin, file)
        if not _has(repo, root):
            _keep(repo, root)
    return root


@contextmanager
def _cached_repository(pin: Pin) -> Iterator[Repository]:
    """The cache's repository of an upstream, held by this run alone: a second one waits for what the first fetches."""
    place = cache_dir("git", f"{pin.upstream}.git")
    if place.is_dir() and not all((place / part).is_dir() for part in ("objects", "refs")):
        shutil.rmtree(place)  # someone cleaned up half of it
    path = publish(place, _make_repository).resolve()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        for lock in (*path.glob("*.lock"), *path.glob("refs/**/*.lock")):
            lock.unlink()  # of a git that was killed: no other run holds the repository
        yield Repository(path, (descriptor,))
    finally:
        os.close(descriptor)


def _make_repository(folder: Path) -> None:
    run(Repository(folder.resolve()), "init", "--quiet", "--bare", "--template=", ".")


def _has(repo: Repository, commit: str) -> bool:
    return commit_exists(repo, _ref(commit))


def _keep(repo: Repository, commit: str) -> None:
    set_refs(repo, {_ref(commit): (commit, None)}, "pin")


def _ref(commit: str) -> str:
    return f"refs/pins/{commit}"


def pinned_roots(pin: Pin) -> tuple[str, ...]:
    """Every commit that stands for the pin: upstream's own and the laid-out wheels'."""
    return (*filter(None, [pin.commit]), *(wheel.root for wheel in pin.wheels if wheel.root))
