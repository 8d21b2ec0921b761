"""Clones that lack objects on purpose: what they hold is enough or is missed in one sentence; nothing is fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.queue.scenes import snapshot
from tests.queue.toy import git, git_bytes

from .conftest import Outcome
from .world import World, checkout_round

FETCHES = "a partial clone lacks a blob that is needed"


def partial_clone(world: World, kind: str, *flags: str) -> Path:
    """A clone that leaves objects of this kind out, and could fetch them at any time."""
    upstream, folder = world.toy.upstream(), world.root / "partial"
    git(upstream, "config", "uploadpack.allowFilter", "true")
    git(upstream, "config", "uploadpack.allowAnySHA1InWant", "true")
    git(world.root, "clone", "-q", f"--filter={kind}", *flags, upstream.as_uri(), str(folder))
    return folder


def lacking(clone: Path) -> list[bytes]:
    """The objects that a clone does not hold."""
    listed = git_bytes(clone, "rev-list", "--objects", "--missing=print", "--all")
    return sorted(line[1:] for line in listed.splitlines() if line.startswith(b"?"))


@pytest.mark.case(FETCHES, target="checkout", outcome="refused")
@pytest.mark.parametrize("kind", ["blob:none", "tree:0"])
def test_a_partial_clone_that_lacks_what_is_touched_is_refused_and_fetches_nothing(world: World, kind: str) -> None:
    clone = partial_clone(world, kind, "--no-checkout")
    lost, before = lacking(clone), snapshot(clone, ())
    assert lost
    answer = world.ask("apply", clone)
    assert answer.code in (1, 4), answer
    assert answer.said["error"]["what"].count("\n") == 0 and "Traceback" not in answer.err
    assert "python/toy/core.py" in answer.said["error"]["what"]
    after = snapshot(clone, ())
    assert {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)} == set()
    assert lacking(clone) == lost


@pytest.mark.case("a partial clone holds every blob that is needed", target="checkout", outcome="exact")
def test_a_partial_clone_that_holds_what_is_touched_is_a_target_and_fetches_nothing(
    world: World, calm: Outcome
) -> None:
    git(world.toy.upstream(), "commit", "-q", "--allow-empty", "-m", "later")
    (world.toy.upstream() / "later.txt").write_text("later\n")
    git(world.toy.upstream(), "add", "-A")
    git(world.toy.upstream(), "commit", "-q", "-m", "later still")
    clone = partial_clone(world, "blob:none")
    git(clone, "checkout", "-q", "-B", "main", world.toy.pin().commit)  # later.txt is there, as an object
    git_bytes(clone, "branch", "-q", "--unset-upstream")
    promised = list((clone / ".git/objects/pack").glob("*.promisor"))
    found = checkout_round(world, clone)
    assert found["applied"]["files"] == calm["applied"]["files"]
    assert found["apply"] == calm["apply"] and found["exported"] == calm["exported"]
    assert list((clone / ".git/objects/pack").glob("*.promisor")) == promised


@pytest.mark.case(FETCHES, target="source", outcome="refused")
def test_a_named_repository_that_lacks_blobs_is_refused_as_a_source_and_fetches_nothing(world: World) -> None:
    source = partial_clone(world, "blob:none", "--no-checkout")
    before = snapshot(source, ())
    answer = world.ask("apply", "--into", world.root / "fresh", "--source", source, "--only", "toy")
    assert answer.code in (1, 4), answer
    assert snapshot(source, ()) == before
    assert not list((world.root / "fresh").glob("*"))  # at most an empty folder
