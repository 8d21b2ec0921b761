"""Every patch of ours, carried file by file, is what git's merge of the whole trees makes of it: on real releases."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from sm120_overlay.queue.build import Said, base_contents, build, build_on
from sm120_overlay.queue.carry import CARRIED, STOPPED, Carried, State, carry, ground_at
from sm120_overlay.queue.export import export_range, exported_series
from sm120_overlay.queue.git import Repository, attempt, diff_trees, git_path, objects_alone, read_objects, run
from sm120_overlay.queue.home import find_home
from sm120_overlay.queue.pins import Line, Pin, load_lines
from sm120_overlay.queue.series import Series, load_series
from sm120_overlay.queue.sources import find_source

from ..queue.toy import message

HOME = find_home()
LINES = load_lines(HOME.pins).lines
MOVES = [(old, new, pin.upstream) for old, new in pairwise(LINES) for pin in old.pins]
WHOM = "A <a@example.org>"
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


def check_as_git(repo: Repository, series: Series, base: str, onto: str) -> list[State]:
    """Every patch's state, after comparing each with git's merge of the whole trees."""
    built = build(repo, base, series, base_contents(repo, base, series))
    (rows,) = carry(repo, series, [ground_at(repo, base, series, onto)])
    for row, commit in zip(rows, built.commits, strict=True):
        clean, tree = merged_by_git(repo, commit, onto)
        assert (row.state not in STOPPED) == clean, (row, clean)
        if clean:
            assert left(repo, onto, tree) == taken(row), row
            onto = tree
    return [row.state for row in rows]


@pytest.mark.network
@pytest.mark.slow
def test_patches_go_where_gits_merge_of_the_whole_trees_puts_them(move: tuple[Repository, Line, Line, str]) -> None:
    repo, old, new, upstream = move
    series = load_series(HOME, old.pin(upstream))
    check_as_git(repo, series, old.pin(upstream).wheels[0].root, new.pin(upstream).wheels[0].root)


def foreign(repo: Repository, old: Pin, seed: int) -> Series:
    """A stranger's series on SGLang: 33 files, three to a patch, the first of each the last one of the patch before."""
    chance = random.Random(seed)
    base = old.wheels[0].root
    names = run(repo, "ls-tree", "-r", "--name-only", base, "python/sglang/srt").decode().split("\n")
    chosen = chance.sample([name for name in names if name.endswith(".py")], 33)
    texts = read_objects(repo, [f"{base}:{name}" for name in chosen])
    tip = base
    for number in range(16):
        files = {}
        for name in chosen[2 * number : 2 * number + 3]:
            found = texts[f"{base}:{name}"]
            assert found is not None
            files[name] = (old.mode(name), edited(found.data.decode(), chance, number).encode())
        said = Said(WHOM, WHOM, f"Mon, 2 Mar 2026 12:00:{number:02} +0000", message(f"theirs-{number}"))
        tip = build_on(repo, tip, said, files)
    return exported_series(old, export_range(repo, git_path(repo, "objects").parent, base, tip))


def edited(text: str, chance: random.Random, number: int) -> str:
    """The text with lines changed, gone and more."""
    lines = text.split("\n")
    for _ in range(2):
        at = chance.randrange(len(lines))
        lines[at : at + chance.choice((0, 1, 1))] = [f"# theirs {number} {chance.random()}"]
    return "\n".join(lines)


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_strangers_series_goes_where_gits_merge_puts_it_with_no_conflict_more(seed: int) -> None:
    old, new = (line.pin("sglang") for line in LINES[:2])
    sources = [find_source(pin, "pypi", print) for pin in (old, new)]
    with objects_alone(sources[0].repository) as repo:
        series = foreign(repo, old, seed)
        states = check_as_git(repo, series, old.wheels[0].root, new.wheels[0].root)
    assert {*states} & {*CARRIED}
    assert {*states} & {*STOPPED}


def left(repo: Repository, onto: str, tree: str) -> dict[str, str | None]:
    """What git's merge changed."""
    return {change.path: change.new.blob if change.new else None for change in diff_trees(repo, onto, tree)}


def taken(row: Carried) -> dict[str, str | None]:
    """What a patch changes there."""
    assert row.state in (*CARRIED, State.ABSORBED)
    return {path: entry.blob if entry else None for path, entry in row.files.items()}
