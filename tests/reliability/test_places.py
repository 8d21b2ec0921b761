"""Where a fresh checkout comes from and where it goes: exactly the series there, or refused and nothing made."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ..queue.scenes import ask
from ..queue.toy import git, write
from .world import Case, World, canonical, made, marked, sentence, well_said

Arrange = Callable[[World], Sequence[object]]


def mirror(world: World, folder: Path, *flags: str) -> Path:
    """A user's repository that holds the pin."""
    git(world.root, "clone", "-q", *flags, f"file://{world.toy.upstream()}", str(folder))
    return folder


def ignoring(world: World) -> Path:
    """A repository that ignores its build/."""
    outer = world.root / "outer"
    git(world.root, "init", "-q", "-b", "main", str(outer))
    write(outer, {".gitignore": "build/\n", "build/mine.txt": "mine\n"})
    git(outer, "add", "-A")
    git(outer, "commit", "-qm", "outer")
    return outer


def from_source(path: object, into: object) -> Sequence[object]:
    return ["--source", path, "--into", into, "--only", "toy"]


def in_ignored(world: World) -> Sequence[object]:
    return from_source(world.toy.upstream(), ignoring(world) / "build/fresh")


def source_in_ignored(world: World) -> Sequence[object]:
    return from_source(mirror(world, ignoring(world) / "build/mirror"), world.root / "out")


def plain_source_in_ignored(world: World) -> Sequence[object]:
    return from_source(ignoring(world) / "build", world.root / "out")


def subfolder(world: World) -> Sequence[object]:
    return from_source(world.toy.upstream() / "python", world.root / "out")


def dirty_source(world: World) -> Sequence[object]:
    folder = mirror(world, world.root / "mirror")
    git(folder, "checkout", "-q", "-b", "mine")
    write(folder, {"python/toy/core.py": "mine\n", ".git/hooks/post-checkout": "#!/bin/sh\nexit 1\n"})
    (folder / ".git/hooks/post-checkout").chmod(0o755)
    return from_source(folder, world.root / "out")


def source_of_odd_name(world: World) -> Sequence[object]:
    return from_source(mirror(world, world.root / "ä b'\"c $HOME;é"), world.root / "out")


def source_pointing_nowhere(world: World) -> Sequence[object]:
    folder = mirror(world, world.root / "mirror")
    shutil.rmtree(folder / ".git")
    write(folder, {".git": "gitdir: /nowhere\n"})
    return from_source(folder, world.root / "out")


def source_is_a_file(world: World) -> Sequence[object]:
    return from_source(world.toy.upstream() / "README.md", world.root / "out")


def other_project(world: World) -> Sequence[object]:
    folder = world.root / "other"
    git(world.root, "init", "-q", "-b", "main", str(folder))
    write(folder, {"python/toy/core.py": "x\n"})
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "another project")
    return from_source(folder, world.root / "out")


def without_the_commit(world: World) -> Sequence[object]:
    """A shallow mirror of a later release: the pin is named in its history and is not there."""
    later = mirror(world, world.root / "later")
    git(later, "commit", "-q", "--allow-empty", "-m", "release 1.1")
    git(world.root, "clone", "-q", "--depth=1", f"file://{later}", "shallow")
    return from_source(world.root / "shallow", world.root / "out")


def to(name: str) -> Arrange:
    return lambda world: from_source(world.toy.upstream(), world.root / name)


def to_relative(world: World) -> Sequence[object]:
    world.monkeypatch.chdir(world.root)
    return from_source(world.toy.upstream(), "out/../out")


def to_linked(world: World) -> Sequence[object]:
    (world.root / "disk").mkdir()
    (world.root / "link").symlink_to(world.root / "disk")
    return from_source(world.toy.upstream(), world.root / "link/out")


def below_a_file(world: World) -> Sequence[object]:
    write(world.root, {"file": "mine\n"})
    return from_source(world.toy.upstream(), world.root / "file/out")


def onto_another_project(world: World) -> Sequence[object]:
    other_project(world)
    (world.root / "out").mkdir()
    (world.root / "other").rename(world.root / "out/toy")
    return from_source(world.toy.upstream(), world.root / "out")


def onto_an_unfinished_clone(world: World) -> Sequence[object]:
    """What a `git clone` that was killed leaves: a git directory without a commit."""
    git(world.root, "init", "-q", "out/toy")
    return from_source(world.toy.upstream(), world.root / "out")


EXACT: list[tuple[str, Arrange, str]] = [
    ("the place of a fresh checkout lies in a folder that another repository ignores", in_ignored, "oven-sh/bun#35099"),
    ("the source lies in a folder that another repository ignores", source_in_ignored, "oven-sh/bun#35099"),
    ("the source has changes, a branch and hooks of the user's", dirty_source, ""),
    ("spaces, quotes and unicode in the source's path", source_of_odd_name, ""),
    ("spaces, quotes and unicode in the target's path", to("ä b'\"c $HOME;é"), ""),
    ("a target's path that is not UTF-8", to(os.fsdecode(b"caf\xe9")), ""),
    ("a relative target", to_relative, ""),
    ("the place is reached through a link", to_linked, ""),
]
REFUSED: list[tuple[str, Arrange, tuple[str, ...], str]] = [
    ("a plain folder inside another repository that ignores it", plain_source_in_ignored, ("outer/build",), ""),
    ("a folder inside the checkout", subfolder, ("toy/python",), ""),
    ("a .git file that points nowhere", source_pointing_nowhere, ("mirror",), ""),
    ("a file is named as the target", source_is_a_file, ("README.md",), ""),
    ("a checkout of another project", other_project, ("other", "v1.0"), ""),
    ("a shallow clone without the pin", without_the_commit, ("shallow", "v1.0"), "m-ab-s/media-autobuild_suite#3168"),
    ("a line end in the target's path", to("a\nb"), ("line end",), ""),
    ("a file is in the way of the place", below_a_file, ("file",), ""),
    ("another project lies at the place", onto_another_project, ("out/toy", "v1.0"), ""),
    ("an unfinished clone lies at the place", onto_an_unfinished_clone, ("out/toy",), ""),
]
CASES = [Case(what, "source", "exact", arrange, (), source) for what, arrange, source in EXACT]
CASES += [Case(what, "source", "refused", arrange, names, source) for what, arrange, names, source in REFUSED]


@pytest.mark.parametrize("case", marked(CASES))
def test_a_fresh_checkout_is_exactly_right_or_not_made(world: World, case: Case) -> None:
    seen, said = made(world, case.arrange(world))
    assert seen == case.outcome, said
    for name in case.names:
        assert name in said, said


@pytest.mark.case("upstream cannot be reached", target="source", outcome="exact")
def test_without_upstream_the_wheels_tree_carries_the_same_series_and_says_so(world: World) -> None:
    wanted = ask("status", canonical(world, world.toy.pin())).targets["toy"]["digest"]
    world.toy.upstream().rename(world.root / "gone")
    answer = ask("apply", "--into", world.root / "out", "--only", "toy")
    assert (answer.code, answer.targets["toy"]["digest"]) == (0, wanted)
    assert (answer.targets["toy"]["source"], "taking the pinned wheel" in answer.err) == ("pypi", True)


@pytest.mark.case("neither network nor cache", target="source", outcome="refused")
def test_without_upstream_and_wheels_nothing_is_made(world: World) -> None:
    world.toy.upstream().rename(world.root / "gone")
    world.toy.wheels.rename(world.root / "gone-too")
    before = world.all()
    answer = ask("apply", "--into", world.root / "out", "--only", "toy")
    assert (answer.code, well_said(answer)) == (4, True)
    assert "toy 1.0" in sentence(answer)
    assert world.all().keys() - before.keys() == set()
