"""3-way merges of many files at once, in memory, by git's own merge: one process for a whole wave of them.

Every file is merged by itself, as a tree of one file whose commits share a parent: so the result does not depend on
what else changed, and a merge that was made once need not be made again. Where a file went (renames) is asked apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import Missing
from .build import COMMITTER, SCRATCH, import_commits
from .diff import quote
from .git import Entry, GitError, Repository, git_version, object_ids, run

NEEDED = (2, 39)  # the first git whose merge-tree makes many merges in one process
NAME = "file"  # what a file is called while it is merged
SIMILAR = "50%"  # git's own measure of a rename
# A hunk's line, and the lines that a hunk of a diff in a diff could not begin with.
HUNK = re.compile(r"^@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@ ?(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Sides:
    """One file to merge: what both sides started from, and what each made of it."""

    base: Entry
    ours: Entry
    theirs: Entry


def check_git(repo: Repository) -> None:
    """git is new enough to merge in memory.

    Raises:
        Missing: it is not.
    """
    found = git_version(repo)
    if found[:2] < NEEDED:
        # why: an older one merges in the work tree alone, and there one file at a time
        raise Missing(
            f"git {'.'.join(map(str, found))}: moving a series between commits needs {'.'.join(map(str, NEEDED))}.",
            "Install a newer git for this verb; apply, status and export go on with the one you have.",
        )


def merge_files(repo: Repository, wanted: Iterable[Sides]) -> dict[Sides, Entry | None]:
    """Sides → the file that holds both sides' changes, None where they conflict; all blobs must be in `repo`."""
    asked = list(dict.fromkeys(wanted))
    if not asked:
        return {}
    commits = _as_commits(repo, asked)
    pairs = "".join(f"{ours} {theirs}\n" for ours, theirs in zip(commits[1::3], commits[2::3], strict=True))
    how = ("--write-tree", "--stdin", "--name-only", "--no-messages")
    out = run(repo, "-c", "core.looseCompression=0", "merge-tree", *how, stdin=pairs.encode())
    found = re.findall(rb"(?:^|\0)([01])\0([0-9a-f]{40})\0", out)
    if len(found) != len(asked):
        # why: an answer that is taken for the merge of another file is a wrong tree
        raise GitError(
            f"git merge-tree gave {len(found)} answers to {len(asked)} merges.", "Report it with git's version."
        )
    trees = [tree.decode() if clean == b"1" else None for clean, tree in found]
    blobs = object_ids(repo, [f"{tree}:{NAME}" for tree in trees if tree])
    return {
        sides: None if tree is None else Entry(_mode(sides), str(blobs[f"{tree}:{NAME}"]))
        for sides, tree in zip(asked, trees, strict=True)
    }


def _mode(sides: Sides) -> str:
    """The mode that one side changed, or the common one."""
    return sides.theirs.mode if sides.ours.mode == sides.base.mode else sides.ours.mode


def _as_commits(repo: Repository, asked: Sequence[Sides]) -> tuple[str, ...]:
    """Three commits for each: the base, and ours and theirs on it."""
    stream = []
    for number, sides in enumerate(asked):
        base = 3 * number + 1
        stream.append(f"reset {SCRATCH}\n\n".encode() + _commit(base, 0, {NAME: sides.base}))
        stream += [_commit(base + 1, base, {NAME: sides.ours}), _commit(base + 2, base, {NAME: sides.theirs})]
    return import_commits(repo, stream, 3 * len(asked))


def _commit(mark: int, parent: int, files: Mapping[str, Entry]) -> bytes:
    who = f"committer {COMMITTER} Thu, 1 Jan 1970 00:00:00 +0000"
    above = f"from :{parent}\n" if parent else ""
    rows = "".join(f"M {entry.mode} {entry.blob} {quote(path)}\n" for path, entry in files.items())
    return f"commit {SCRATCH}\nmark :{mark}\n{who}\ndata 0\n{above}{rows}\n".encode("latin-1")


def sections_between(repo: Repository, pairs: Iterable[tuple[Entry, Entry]]) -> dict[tuple[Entry, Entry], list[str]]:
    """(before, after) of a file → the function that each hunk of its diff stands in, as git finds it."""
    asked = list(dict.fromkeys(pairs))
    if not asked:
        return {}
    rows = b"".join(f"{entry.mode} blob {entry.blob}\t{NAME}\n\n".encode() for pair in asked for entry in pair)
    trees = run(repo, "mktree", "--batch", stdin=rows).decode().split()
    lines = [f"{old} {new}" for old, new in zip(trees[::2], trees[1::2], strict=True)]
    how = ("--stdin", "-p", "--unified=3", "--diff-algorithm=myers", "--no-renames", "--no-ext-diff", "--no-textconv")
    out = run(repo, "diff-tree", *how, stdin="".join(f"{line}\n" for line in lines).encode()).decode("latin-1")
    parts = re.split(r"^[0-9a-f]{40} [0-9a-f]{40}\n", out, flags=re.MULTILINE)[1:]
    return {pair: HUNK.findall(part) for pair, part in zip(asked, parts, strict=True)}


def renamed(repo: Repository, old: Mapping[str, Entry], added: Mapping[str, Entry]) -> dict[str, str]:
    """Path of a file that went → the added path that git takes for its new place; only those that have one."""
    if not old or not added:
        return {}
    one, other = import_commits(
        repo,
        [
            f"reset {SCRATCH}\n\n".encode() + _commit(1, 0, old),
            f"reset {SCRATCH}\n\n".encode() + _commit(2, 0, added),
        ],
        2,
    )
    how = ("-r", "-z", f"--find-renames={SIMILAR}", "-l0", "--diff-filter=R", "--name-status")
    parts = run(repo, "diff-tree", *how, one, other).decode("utf-8", "surrogateescape").split("\0")
    return dict(zip(parts[1::3], parts[2::3], strict=False))
