"""Every patch of ours, carried file by file, is what git's merge of the whole trees makes of it: on real releases."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from sm120_overlay.queue.build import base_contents, build
from sm120_overlay.queue.carry import CARRIED, STOPPED, Carried, State, carry, ground_at
from sm120_overlay.queue.git import Repository, attempt, diff_trees, objects_alone, run
from sm120_overlay.queue.home import find_home
from sm120_overlay.queue.pins import Line, load_lines
from sm120_overlay.queue.series import load_series
from sm120_overlay.queue.sources import find_source

HOME = find_home()
LINES = load_lines(HOME.pins).lines
MOVES = [(old, new, pin.upstream) for old, new in pairwise(LINES) for pin in old.pins]
WHO = {f"GIT_{role}_{name}": "a@b" for role in ("AUTHOR", "COMMITTER") for name in ("NAME", "EMAIL")}
ORT = ("-c", "merge.renames=true", "-c", "merge.renameLimit=100000", "-c", "merge.directoryRenames=false")


@pytest.fixture(autouse=True)
def own_cache() -> None:
    """Not a cache of its own: the wheels are those of the whole suite."""


@pytest.fixture(params=MOVES, ids=[f"{old.name}-{new.name}-{upstream}" for old, new, upstream in MOVES])
def move(request: pytest.FixtureRequest) -> Iterator[tuple[Repository, Line, Line, str]]:
    """A move from a line to the next, and a repository that holds both pins."""
    old, new, upstream = request.param
    sources = [find_source(line.pin(upstream), "pypi", print) for line in (old, new)]
    with objects_alone(sources[0].repository) as repo:
        yield repo, old, new, upstream


def merged_by_git(repo: Repository, patch: str, onto: str) -> tuple[bool, str]:
    """Whether git merges the patch (a commit) with a tree by itself, and the tree that it makes."""
    tree = run(repo, "rev-parse", f"{onto}^{{tree}}").decode().strip()
    ours = run(repo, "commit-tree", tree, "-p", f"{patch}^", stdin=b"ours", env=WHO).decode().strip()
    code, out, _ = attempt(repo, *ORT, "merge-tree", "--write-tree", "--no-messages", ours, patch)
    return code == 0, out.decode().split()[0]


@pytest.mark.network
@pytest.mark.slow
def test_patches_go_where_gits_merge_of_the_whole_trees_puts_them(move: tuple[Repository, Line, Line, str]) -> None:
    repo, old, new, upstream = move
    series, base = load_series(HOME, old.pin(upstream)), old.pin(upstream).wheels[0].root
    onto = new.pin(upstream).wheels[0].root
    built = build(repo, base, series, base_contents(repo, base, series))
    (rows,) = carry(repo, series, [ground_at(repo, base, series, onto)])
    for row, commit in zip(rows, built.commits, strict=True):
        clean, tree = merged_by_git(repo, commit, onto)
        assert (row.state not in STOPPED) == clean, (row, clean)
        if clean:
            assert left(repo, onto, tree) == taken(row), row
            onto = tree


def left(repo: Repository, onto: str, tree: str) -> dict[str, str | None]:
    """What git's merge changed."""
    return {change.path: change.new.blob if change.new else None for change in diff_trees(repo, onto, tree)}


def taken(row: Carried) -> dict[str, str | None]:
    """What a patch changes there."""
    assert row.state in (*CARRIED, State.ABSORBED)
    return {path: entry.blob if entry else None for path, entry in row.files.items()}
