"""Finds the commit that a foreign diff was made on, by the blobs that it names (abbreviated or whole).

The pins are asked first, then the release tags of the histories at hand, then commits near the best of them, then all:
only one that gave a touched file a blob that is named can be the last step to the base, so one `git log` over the
touched paths gives every candidate. What a diff says of itself ("for v0.5.7") is never believed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .diff import unquote
from .git import Repository, attempt, commit_exists, read_objects, run

RAW = re.compile(r":\d{6} \d{6} [0-9a-f]{40} ([0-9a-f]{40}) [A-Z]\t(.+)")
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"  # git knows it everywhere
NEAR_S = 60 * 86400  # seconds before and after a release
RAW_FORM = ("--raw", "--no-renames", "--no-abbrev", "--root", "-r")


@dataclass(frozen=True)
class Known:
    """A commit at hand that a diff may have been made on.

    `name` is what a person calls it ("" where that is to be found), `when` a release's time (Unix seconds; 0: unknown).
    """

    repo: Repository
    commit: str
    name: str = ""
    when: int = 0


@dataclass(frozen=True)
class Base:
    """The commit that fits a diff best.

    `blobs` has those of the touched files in it, `fitting` the paths at which they are as the diff says, of `asked`.
    """

    known: Known
    blobs: Mapping[str, str]
    fitting: frozenset[str]
    asked: int

    @property
    def name(self) -> str:
        """What a person calls it."""
        return self.known.name

    @property
    def described(self) -> str:
        """Its name and its commit, once where they are one."""
        short = self.known.commit[:12]
        return self.name if short in self.name else f"{self.name} ({short})"

    @property
    def whole(self) -> bool:
        """Whether every file fits."""
        return len(self.fitting) == self.asked


def find_base(wanted: Mapping[str, str | None], known: Sequence[Known], histories: Sequence[Repository]) -> Base | None:
    """The commit at which most of the touched files are as the diff says; None where no file fits anywhere.

    Args:
        wanted: repository path → blob that the diff was made on (None: no such file).
        known: commits to ask first; of two that fit the same, the first is taken.
        histories: repositories to look through, where nothing known fits every file.
    """
    best: Base | None = None
    for one in known:
        best = best if best and best.whole else _better(best, _at(one, wanted), wanted)
    for look in (_releases, _near, _everywhere):
        for repo in () if best and best.whole else histories:
            best = _better(best, _blobs(repo, look(repo, wanted, best), wanted), wanted)
    if best is None or not any(wanted[path] for path in best.fitting):
        return None
    return best if best.name else replace(best, known=_described(best.known))


def _better(
    best: Base | None, several: Iterable[tuple[Known, Mapping[str, str]]], wanted: Mapping[str, str | None]
) -> Base | None:
    """The best of these and the one before; the first of equals."""
    for known, blobs in several:
        fitting = frozenset(path for path, old in wanted.items() if fits(blobs.get(path), old))
        if best is None or len(fitting) > len(best.fitting):
            best = Base(known, blobs, fitting, len(wanted))
    return best


def fits(blob: str | None, old: str | None) -> bool:
    """Whether a file of a tree can be the one that a diff was made on."""
    if not old or blob is None:
        return old is None and blob is None
    return blob.startswith(old)


def _at(known: Known, wanted: Mapping[str, str | None]) -> Iterator[tuple[Known, Mapping[str, str]]]:
    if commit_exists(known.repo, known.commit):
        tree = run(known.repo, "rev-parse", f"{known.commit}^{{tree}}").decode().strip()
        yield from _blobs(known.repo, {tree: known}, wanted)


def _releases(repo: Repository, _wanted: Mapping[str, str | None], _best: Base | None) -> dict[str, Known]:
    """Tree → tag, newest first."""
    fields = ("objectname", "tree", "*objectname", "*tree", "creatordate:unix", "refname:short")
    form = "--format=" + "%00".join(f"%({field})" for field in fields)
    rows = run(repo, "for-each-ref", "--sort=-creatordate", form, "refs/tags").decode("utf-8", "replace").splitlines()
    found: dict[str, Known] = {}
    for commit, tree, peeled, peeled_tree, when, name in (row.split("\0") for row in rows):
        if tree or peeled_tree:
            found.setdefault(peeled_tree or tree, Known(repo, peeled or commit, name, int(when or 0)))
    return found


def _near(repo: Repository, wanted: Mapping[str, str | None], best: Base | None) -> dict[str, Known]:
    """Commits around the release that fits best: there the true base lies nearly always, and it takes no second."""
    when = (best.known.when or _time(best.known)) if best else 0
    near = (f"--since={when - NEAR_S}", f"--until={when + NEAR_S}")
    return _introducing(repo, wanted, "--first-parent", *near) if when else {}


def _time(known: Known) -> int:
    """A commit's time in Unix seconds; 0 of a wheel's, which has none."""
    return int(run(known.repo, "show", "--no-patch", "--format=%ct", known.commit).strip() or 0)


def _everywhere(repo: Repository, wanted: Mapping[str, str | None], best: Base | None) -> dict[str, Known]:
    """Commits of the whole history, where a blob that is still sought lies in it at all."""
    sought = [old for path, old in wanted.items() if old and not (best and path in best.fitting)]
    there = any(attempt(repo, "rev-parse", f"--disambiguate={old}")[1] for old in sought)
    return _introducing(repo, wanted) if there else {}


def _introducing(repo: Repository, wanted: Mapping[str, str | None], *which: str) -> dict[str, Known]:
    """Tree → commit, of those that gave a touched file the blob that is wanted, newest first."""
    code, out, _ = attempt(
        repo, "--literal-pathspecs", "log", "--branches", "--tags", "--remotes", "-m", *RAW_FORM, "--no-notes",
        "--no-decorate", "--no-color", "--no-show-signature", "--format=%x00%H %T", *which, "--", *wanted,
    )  # fmt: skip
    found: dict[str, Known] = {}
    for record in out.decode("latin-1").split("\0")[1:] if code == 0 else ():
        head, *rows = record.split("\n")
        commit, tree = head.split()
        if any(path in wanted and fits(blob, wanted[path]) for path, blob in _rows(rows)):
            found.setdefault(tree, Known(repo, commit))
    return found


def _blobs(
    repo: Repository, trees: Mapping[str, Known], paths: Iterable[str]
) -> Iterator[tuple[Known, Mapping[str, str]]]:
    """The blobs of each tree at these paths; one process, and no blob is read (a partial clone may lack it)."""
    asked = "".join(f"{EMPTY_TREE} {tree}\n" for tree in trees).encode()
    out = run(repo, "--literal-pathspecs", "diff-tree", "--stdin", *RAW_FORM, "--", *paths, stdin=asked)
    parts = re.split(rf"^{EMPTY_TREE} ([0-9a-f]{{40}})\n", out.decode("latin-1"), flags=re.MULTILINE)[1:]
    said = {tree: _rows(rows.split("\n")) for tree, rows in zip(parts[::2], parts[1::2], strict=True)}
    return (
        (known, {path: blob for path, blob in said.get(tree, ()) if blob is not None}) for tree, known in trees.items()
    )


def _rows(rows: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Path and new blob (None: deleted) of each raw row."""
    found = (match for match in map(RAW.fullmatch, rows) if match)
    return ((unquote(match[2]), match[1] if match[1].strip("0") else None) for match in found)


def _described(known: Known) -> Known:
    """A commit with the name that git gives it."""
    _, out, _ = attempt(known.repo, "describe", "--tags", "--always", "--abbrev=12", "--exclude=*/*", known.commit)
    return Known(known.repo, known.commit, out.decode().strip() or known.commit[:12])


def blobs_named(repos: Iterable[Repository], prefix: str) -> Iterator[bytes]:
    """The bytes of every blob at hand whose id begins so (none for a prefix too short to mean anything)."""
    for repo in repos if len(prefix) >= 7 else ():
        code, out, _ = attempt(repo, "rev-parse", f"--disambiguate={prefix}")
        for found in read_objects(repo, out.decode().split() if code == 0 else ()).values():
            if found is not None and found.kind == "blob":
                yield found.data
