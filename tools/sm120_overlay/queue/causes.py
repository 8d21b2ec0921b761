"""Which change of upstream's is behind what became of a patch: found in a history, where one is at hand."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .build import base_contents, build
from .carry import State
from .git import Repository, attempt, commit_exists, git_path, objects_alone
from .moving import Move
from .ranges import Commit, find_span, first_break


@dataclass(frozen=True)
class Cause:
    """The change after which a patch is as it is; `reference` is how pins.toml names it, "" where it has no number."""

    commit: Commit
    reference: str


def find_cause(history: Path | None, move: Move, slug: str, state: State) -> Cause | None:
    """The first change between both pins after which the patch is in that state; None where it cannot be told.

    Args:
        history: a clone that may hold both pinned commits.
    """
    old, new = move.old.pin, move.new
    if history is None or slug not in move.old.slugs:
        return None
    repo = Repository(history.resolve())
    if not all(commit and commit_exists(repo, commit) for commit in (old.commit, new.commit)):
        return None
    span = find_span(repo, old.commit, new.commit)
    with objects_alone(git_path(repo, "objects").parent) as alone:
        build(alone, old.commit, move.old, base_contents(alone, old.commit, move.old))
        changes = [commit.id for commit in span.commits]
        found = first_break(alone, old.commit, move.old, slug, changes, states=(state,))
    if found is None or found.commit is None:
        return None
    release = first_release(repo, found.commit.id) or new.tag
    number = found.commit.number
    return Cause(found.commit, f"{old.upstream}#{number}, {release}" if number else "")


def first_release(repo: Repository, commit: str) -> str:
    """The first release tag that has a commit, by version; "" where none has."""
    code, out, _ = attempt(repo, "tag", "--contains", commit, "--sort=version:refname", "--list", "v*")
    names = out.decode("utf-8", "replace").split() if code == 0 else []
    return next((name for name in names if re.fullmatch(r"v\d+(\.\d+)*(\.post\d+)?", name)), "")
