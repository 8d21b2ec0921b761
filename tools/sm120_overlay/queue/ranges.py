"""Upstream's own commits: what a range between revisions means, what it does to a series' files, who broke a patch.

Releases are cut on branches of their own, so one is not an ancestor of the next: a range starts where both left main,
is walked along first parents, and what only the old release's branch has is said apart. A commit that changes no
touched file changes no answer, and is never looked at again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ..errors import Missing, Refused
from .carry import STOPPED, Carried, Files, Ground, State, carry, ground_at, moved_to, touched
from .git import Entry, GitError, Repository, attempt, diff_trees, object_ids, run, tree_entries
from .series import Series

NUMBER = re.compile(r"\(#(\d+)\)|^Merge pull request #(\d+) ")
# What upstream's own branch is called in a clone or a mirror: the first that is there.
MAIN = ("refs/remotes/origin/HEAD", "refs/remotes/origin/main", "refs/heads/main", "refs/heads/master", "HEAD")
RELEASE = re.compile(r"v?\d+(\.\d+)+(\.?post\d+)?")
NO_FILE = "000000"  # the mode that git gives a file that is not there
PROBES = (
    3  # revisions that are looked at in one round of processes: fewer merges than with more, fewer rounds than with 1
)


@dataclass(frozen=True)
class Commit:
    """One commit of upstream's: its id, the day it was committed (YYYY-MM-DD) and its subject.

    A release stands for one too: then `id` is its version, and the subject is empty.
    """

    id: str
    date: str
    subject: str

    @property
    def number(self) -> int | None:
        """Its pull request: the last `(#NNN)` of the subject (a cherry-pick's first one is the original's)."""
        found = NUMBER.findall(self.subject)
        return int("".join(found[-1])) if found else None

    @property
    def short(self) -> str:
        """Its id as a person compares it."""
        return self.id[:12] if len(self.id) == 40 else self.id

    @property
    def named(self) -> str:
        """Id, day and subject, for a sentence."""
        return f"{self.short} ({self.date}) {self.subject}".strip()


@dataclass(frozen=True)
class Span:
    """A range, from where both ends left main.

    `commits` are first parents from there to the new end, oldest first; the last `branched` of them lie on the new
    end's release branch, and `undone` (oldest first) on the old end's alone: a move to the new end takes them back.
    """

    old: Commit
    new: Commit
    start: Commit
    commits: tuple[Commit, ...]
    branched: int
    undone: tuple[Commit, ...]


@dataclass(frozen=True)
class Step:
    """One step of the way from the old end to the new one: `commit` is put on, or taken back where it is `undone`.

    `ground` is what lies there afterwards. The first step of a way is the old end itself.
    """

    commit: Commit
    ground: Ground
    undone: bool = False


@dataclass(frozen=True)
class Break:
    """The first revision at which a patch is in one of the states that were asked for.

    `commit` is None where it was so before the first revision already. `before` is what it was at the revision before.
    """

    commit: Commit | None
    carried: Carried
    before: State


def find_commits(repo: Repository, revisions: Sequence[str]) -> tuple[Commit, ...]:
    """The commits of these revisions (ids or names), in their order.

    Raises:
        Missing: the repository has no such commit.
    """
    if not revisions:
        return ()
    ids = object_ids(repo, [f"{revision}^{{commit}}" for revision in revisions])
    lost = next((name.removesuffix("^{commit}") for name, found in ids.items() if found is None), None)
    if lost is not None:
        # why: a range to a commit that is not at hand is another range
        raise Missing(f"{repo.path}: there is no commit {lost}.", "Fetch it there (git fetch --tags), or name another.")
    asked = "".join(f"{found}\n" for found in ids.values()).encode()
    known = {commit.id: commit for commit in _commits(run(repo, "log", "--no-walk", "--stdin", *_FORM, stdin=asked))}
    return tuple(known[str(ids[f"{revision}^{{commit}}"])] for revision in revisions)


def first_parents(repo: Repository, old: str, new: str) -> tuple[Commit, ...]:
    """The commits that `new` has and `old` has not, along first parents, oldest first."""
    return tuple(_commits(run(repo, "log", "--first-parent", "--reverse", *_FORM, f"{old}..{new}")))


_FORM = ("--no-patch", "--no-show-signature", "--no-notes", "--no-decorate", "--format=%H%x00%cs%x00%s%x00")


def _commits(out: bytes) -> Iterator[Commit]:
    parts = out.decode("utf-8", "replace").split("\0")
    return (Commit(*(part.strip("\n") for part in parts[at : at + 3])) for at in range(0, len(parts) - 1, 3))


def main_of(repo: Repository) -> str | None:
    """The ref that upstream's own branch has in a clone or a mirror, None where nothing looks like it."""
    known = object_ids(repo, [f"{name}^{{commit}}" for name in MAIN])
    return next((name for name in MAIN if known[f"{name}^{{commit}}"]), None)


def find_span(repo: Repository, old: str, new: str) -> Span:
    """What lies between two revisions.

    Args:
        repo: the clone or mirror itself: its refs say what upstream's main is.

    Raises:
        Missing: a commit of the history is not there.
        Refused: they have no common commit, or nothing of `new` is not in `old` already.
    """
    first, last = find_commits(repo, (old, new))
    try:
        return _span(repo, first, last, old, new)
    except (GitError, Refused):
        _check_whole(repo, (first.id, last.id))
        raise


def _span(repo: Repository, first: Commit, last: Commit, old: str, new: str) -> Span:
    code, out, _ = attempt(repo, "merge-base", first.id, last.id)
    if code:
        # why: two wheels laid out, or a shallow clone, have no range of commits between them
        raise Refused(
            f"{repo.path}: {old} and {new} have no commit in common there.",
            "Fetch the history between them (git fetch --unshallow --tags), or ask about releases.",
        )
    base = out.decode().strip()
    commits = first_parents(repo, base, last.id)
    if not commits:
        # why: a range the wrong way round would say that every patch goes in
        raise Refused(f"{old}..{new}: expected commits between them, found none.", "Name two, the older one first.")
    (start,) = find_commits(repo, [f"{commits[0].id}^"])
    return Span(first, last, start, commits, _branched(repo, last.id, commits), first_parents(repo, base, first.id))


def _check_whole(repo: Repository, ends: Sequence[str]) -> None:
    """No commit on the way back from the ends has vanished; a shallow clone, which says where it begins, is whole."""
    code, _, err = attempt(repo, "rev-list", "--count", *ends)
    known = object_ids(repo, re.findall(r"\b[0-9a-f]{40}\b", err)) if code else {}
    lost = next((commit for commit, found in known.items() if found is None), None)
    if lost:
        # why: git takes what lies behind it for another history, or for none
        raise Missing(
            f"{repo.path}: commit {lost[:12]} is not there, and a commit that is there comes after it.",
            f"git -C {repo.path} fetch --refetch (git 2.36 or newer), or name a whole clone.",
        )


def _branched(repo: Repository, new: str, commits: Sequence[Commit]) -> int:
    """How many commits at the end are on a branch of their own."""
    main = main_of(repo) or new
    return min(int(run(repo, "rev-list", "--first-parent", "--count", f"{main}..{new}")), len(commits))


def releases_along(repo: Repository, span: Span) -> dict[str, str]:
    """Tag of each release whose branch left the way → the last commit that both have, in the order of the way."""
    out = run(repo, "for-each-ref", "--format=%(refname:short) %(creatordate:short)", "refs/tags").decode(
        "utf-8", "replace"
    )
    tags = [name for name, _, day in (row.partition(" ") for row in out.splitlines()) if day >= span.start.date]
    left = ((name, attempt(repo, "merge-base", name, span.new.id)) for name in tags if RELEASE.fullmatch(name))
    bases = {name: out.decode().strip() for name, (code, out, _) in left if code == 0}
    order = {commit.id: number for number, commit in enumerate(span.commits)}
    on_way = sorted((order[base], name) for name, base in bases.items() if base in order)
    return {name: span.commits[number].id for number, name in on_way}


def underneath(series: Series, slug: str) -> Series:
    """The patch and those before it that can change how it goes in: they share a file with it, or with each other."""
    at = series.slugs.index(slug)
    paths = {edit.path for edit in series.patches[at].edits}
    kept = [series.patches[at]]
    for patch in reversed(series.patches[:at]):
        own = {edit.path for edit in patch.edits}
        if own & paths:
            paths |= own
            kept.insert(0, patch)
    return replace(series, patches=tuple(kept))


def way(repo: Repository, pin: str, series: Series, span: Span) -> tuple[Step, ...]:
    """The steps from the old end to the new one that change a touched file: back to main first, then along it.

    Args:
        repo: it holds the history and the pin's tree, such as `objects_alone` gives.
        pin: the commit that the series is made on.
    """
    named = {commit.id: commit for commit in (*span.undone, *span.commits)}
    back = grounds_along(repo, pin, series, span.start.id, [commit.id for commit in span.undone])
    forth = grounds_along(repo, pin, series, span.start.id, [commit.id for commit in span.commits])
    left = [Step(named[gone.revision], kept, undone=True) for kept, gone in pairwise(back)]
    return (Step(span.old, back[-1]), *reversed(left), *(Step(named[one.revision], one) for one in forth[1:]))


def grounds_along(
    repo: Repository, pin: str, series: Series, start: str, revisions: Sequence[str]
) -> tuple[Ground, ...]:
    """The ground at `start`, then at every revision that changes a touched file, in order.

    A touched file that upstream moves is followed to its new place: the one that it has at the last revision by git's
    measure, else the one that the commit which took it away gave it.

    Args:
        pin: the commit that the series is made on.
        start: the first parent of the first revision.
        revisions: ids, each the first parent of the next.
    """
    (begin,) = find_commits(repo, [start])
    first, last = (ground_at(repo, pin, series, revision) for revision in (begin.id, [begin.id, *revisions][-1]))
    watched = {*touched(series), *first.places.values(), *last.places.values()}
    if not watched:  # to git no path at all means every one
        return (first,)
    moves: dict[tuple[str, str], str] = {}  # revision and path at the pin → where that revision puts it
    while True:
        there: dict[str, Entry | None] = dict(tree_entries(repo, begin.id, watched))
        changes = _changes(repo, begin.id, revisions, watched)
        grounds = tuple(_walk(repo, first, there, changes, last.places, moves))
        if watched.issuperset(moves.values()):
            return grounds
        watched.update(moves.values())


def _changes(repo: Repository, start: str, revisions: Sequence[str], paths: Iterable[str]) -> dict[str, Files]:
    """The revisions that change any of the paths, against those before them; one process, and no blob is read."""
    asked = "".join(f"{new} {old}\n" for old, new in zip([start, *revisions], revisions, strict=False)).encode()
    how = ("--stdin", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", "--no-ext-diff")
    out = run(repo, "--literal-pathspecs", "diff-tree", *how, "--", *sorted(paths), stdin=asked)
    found: dict[str, dict[str, Entry | None]] = {}
    parts, revision = iter(out.split(b"\0")[:-1]), ""
    for part in parts:
        if part.startswith(b":"):
            _, mode, _, blob, _ = part.decode().split(" ")
            found[revision][os.fsdecode(next(parts))] = None if mode == NO_FILE else Entry(mode, blob)
        else:
            revision = part.decode()
            found[revision] = {}
    return dict(found)


def _walk(
    repo: Repository,
    first: Ground,
    there: dict[str, Entry | None],
    changes: Mapping[str, Files],
    at_last: Mapping[str, str],
    moves: dict[tuple[str, str], str],
) -> Iterator[Ground]:
    """The grounds of the revisions; where one puts a file that is lost otherwise is noted in `moves`.

    Args:
        there: what lies at every watched path before the first revision; it is brought along.
        at_last: path → its place at the last revision.
    """
    yield first
    files, places = dict(first.files), dict(first.places)
    for revision, changed in changes.items():
        there.update(changed)
        before, files = files, {}
        for path, old in before.items():
            known = [path, at_last.get(path, ""), places.pop(path, "")]
            if old and not any(map(there.get, known)):
                moves |= {} if (revision, path) in moves else _moved(repo, revision, {path: old})
                known.append(moves.get((revision, path), ""))
            place = next(filter(there.get, known), None)
            if place and place != path:
                places[path] = place
            files[path] = there[place] if place else None
        yield Ground(revision, files, dict(places))


def _moved(repo: Repository, revision: str, lost: Mapping[str, Entry]) -> dict[tuple[str, str], str]:
    found = moved_to(repo, lost, diff_trees(repo, f"{revision}^", revision))
    return {(revision, path): place for path, place in found.items()}


def first_break(
    repo: Repository,
    pin: str,
    series: Series,
    slug: str,
    revisions: Sequence[str],
    states: Collection[State] = STOPPED,
) -> Break | None:
    """The first of the revisions at which the patch is in one of `states`; None where it is not at the last one.

    It is searched for by halves, about a dozen merges for thousands of commits: what was so is taken to stay so until
    the last one, and only the revision that is named and the one before it are certain.

    Args:
        repo: it holds the history and the series' blobs (`build` made them), such as `objects_alone` gives.
        pin: the commit that the series is made on.
        revisions: ids, oldest first, each the first parent of the next.
    """
    part = underneath(series, slug)
    grounds = grounds_along(repo, pin, part, f"{revisions[0]}^", revisions)
    found = first_at(repo, part, slug, grounds, states)
    if found is None:
        return None
    at, (before, carried) = found
    commit = find_commits(repo, [grounds[at].revision])[0] if at else None
    return Break(commit, carried, before.state)


def first_at(
    repo: Repository, series: Series, slug: str, grounds: Sequence[Ground], states: Collection[State] = STOPPED
) -> tuple[int, tuple[Carried, Carried]] | None:
    """The first ground on which the patch is in one of `states`: its number, and how it is on the one before and there.

    What was so is taken to stay so until the last ground; None where it is not so there. Before number 0 is nothing.
    """
    part = underneath(series, slug)
    known: dict[int, Carried] = {}

    def so(*numbers: int) -> list[bool]:
        new = [number for number in numbers if number not in known]
        rows = carry(repo, part, [grounds[number] for number in new])
        known.update({number: row[-1] for number, row in zip(new, rows, strict=True)})
        return [known[number].state in states for number in numbers]

    low, high = 0, len(grounds) - 1
    if not so(low, high)[1]:
        return None
    if known[low].state in states:
        return 0, (known[low], known[low])
    while high - low > 1:
        probes = sorted({low + (high - low) * number // (PROBES + 1) for number in range(1, PROBES + 1)} - {low})
        told = dict(zip(probes, so(*probes), strict=True))
        high = min((probe for probe in probes if told[probe]), default=high)
        low = max((probe for probe in probes if probe < high and not told[probe]), default=low)
    return high, (known[low], known[high])
