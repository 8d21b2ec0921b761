"""What a diff was made on: found by its blobs among pins, tags and histories, said aloud, and never made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sm120_overlay.queue.bases import Base, Known, blobs_named, find_base, fits
from sm120_overlay.queue.blobs import blob_id
from sm120_overlay.queue.git import Repository

from ..queue.scenes import Answer
from ..queue.toy import TOY, Toy, git, git_bytes, write
from .people import BARE, CORE, RUN, Stranger, adopt, at_head, edited, everything, hows, put, whys

Save = Callable[[bytes], Path]
INIT = "python/toy/__init__.py"
NEIGHBOUR = {RUN: "print('other')\n" + TOY[RUN], BARE: "zero\n" + TOY[BARE], "README.md": "newer\n"}
CHANGE = {RUN: NEIGHBOUR[RUN] + "print('theirs')\n", BARE: NEIGHBOUR[BARE].replace("two", "zwei")}


def made_on(answer: Answer) -> dict[str, object]:
    """What the first patch of an answer was made on."""
    found = answer.said["targets"][0]["patches"][0]["made_on"]
    assert isinstance(found, dict)
    return found


def neighbour(stranger: Stranger, tag: str | None = None) -> tuple[str, bytes]:
    """A commit beside the pin, and the diff of a change that was made on it."""
    commit = stranger.commit(NEIGHBOUR)
    if tag:
        git(stranger.path, "tag", tag)
    return commit, stranger.diff(CHANGE)


@pytest.mark.case("a diff made on another release than it says", target="adopt", outcome="exact")
def test_a_change_made_on_a_tag_is_merged_from_there_and_says_so(stranger: Stranger, ours: Path, saved: Save) -> None:
    commit, diff = neighbour(stranger, "v1.1")
    answer = adopt(saved(diff), ours, "--history", stranger.path)
    assert answer.code == 0, answer.err
    assert made_on(answer) == {"name": "v1.1", "commit": commit, "pinned": False, "fitting": 2, "asked": 2}
    assert hows(answer) == {BARE: "clean", RUN: "clean"}
    assert at_head(ours, BARE) == TOY[BARE].replace("two", "zwei").encode()
    assert at_head(ours, RUN) == (TOY[RUN] + "print('theirs')\n").encode()
    assert f"made on v1.1 ({commit[:12]}).\nMerged, to be reviewed: bare.txt, run.py." in git(
        ours, "log", "-1", "--format=%B"
    )


def test_the_pin_is_named_first_then_the_branch(stranger: Stranger, ours: Path, saved: Save) -> None:
    assert made_on(adopt(saved(stranger.diff({BARE: "x\n"})), ours, "--dry-run"))["pinned"] is True
    theirs = Stranger(stranger.path.parent / "fork")
    git(ours.parent, "clone", "-q", str(ours), str(theirs.path))
    diff = theirs.diff({CORE: edited(CORE, 50, ours=(ours / CORE).read_text())})
    answer = adopt(saved(diff), ours)
    assert (answer.code, made_on(answer)["name"], hows(answer)) == (0, "sm120/v1", {CORE: "exact"})


def test_a_commit_between_tags_has_the_name_that_git_describes_it_by(
    stranger: Stranger, ours: Path, saved: Save
) -> None:
    git(stranger.path, "tag", "v1.0")
    commit, diff = neighbour(stranger)
    git(stranger.path, "stash", "-q")
    stranger.commit({RUN: "print('later')\n", BARE: "later\n"})
    git(stranger.path, "tag", "v1.1")
    answer = adopt(saved(diff), ours, "--history", stranger.path)
    assert (answer.code, made_on(answer)["commit"]) == (0, commit)
    assert made_on(answer)["name"] == f"v1.0-1-g{commit[:12]}"


def test_a_commit_on_a_side_branch_or_of_a_remote_is_found(
    stranger: Stranger, toy: Toy, ours: Path, saved: Save
) -> None:
    git(stranger.path, "checkout", "-q", "-b", "side")
    commit, diff = neighbour(stranger)
    git(stranger.path, "checkout", "-q", "-f", "main")
    assert made_on(adopt(saved(diff), ours, "--history", stranger.path, "--dry-run"))["commit"] == commit
    git(toy.root, "clone", "-q", str(stranger.path), str(toy.root / "again"))
    assert made_on(adopt(saved(diff), ours, "--history", toy.root / "again", "--dry-run"))["commit"] == commit


def test_of_two_releases_that_fit_the_same_one_is_named_and_the_bytes_are_the_same(
    stranger: Stranger, ours: Path, saved: Save
) -> None:
    _, diff = neighbour(stranger, "v1.1")
    git(stranger.path, "stash", "-q")
    stranger.commit({"README.md": "no touched file\n"})
    git(stranger.path, "tag", "v1.2")
    answer = adopt(saved(diff), ours, "--history", stranger.path)
    assert (answer.code, made_on(answer)["name"] in ("v1.1", "v1.2")) == (0, True)
    assert at_head(ours, RUN) == (TOY[RUN] + "print('theirs')\n").encode()


@pytest.mark.case("a diff whose base is nowhere at hand", target="adopt", outcome="refused")
@pytest.mark.parametrize(
    "options", [(), ("--history", "upstream/toy"), ("--dry-run",)], ids=["alone", "elsewhere", "dry"]
)
def test_a_change_made_on_nothing_at_hand_is_refused_and_lists_the_files(
    stranger: Stranger, toy: Toy, ours: Path, saved: Save, options: tuple[str, ...]
) -> None:
    _, diff = neighbour(stranger)
    before = everything(ours)
    answer = adopt(saved(diff), ours, *(str(toy.root / part) if "/" in part else part for part in options))
    assert answer.code == 1
    assert hows(answer) == {BARE: "unknown", RUN: "unknown"}
    assert f"was made on blob {blob_id(NEIGHBOUR[RUN].encode())[:7]}, which nothing at hand has" in whys(answer)
    assert answer.said["targets"][0]["patches"][0]["made_on"] is None
    assert everything(ours) == before


def test_files_that_fit_no_one_commit_are_listed_and_the_best_is_named(
    stranger: Stranger, ours: Path, saved: Save
) -> None:
    neighbour(stranger, "v1.1")
    git(stranger.path, "stash", "-q")
    local = {INIT: "import os\n" + TOY[INIT]}
    stranger.commit(local)
    git(stranger.path, "stash", "pop", "-q")
    diff = stranger.diff({INIT: local[INIT] + "theirs = 1\n"})
    git(stranger.path, "reset", "-q", "--hard", "v1.1")
    git(stranger.path, "reflog", "expire", "--expire=all", "--all")
    git(stranger.path, "gc", "-q", "--prune=now")
    answer = adopt(saved(diff), ours, "--history", stranger.path)
    assert (answer.code, hows(answer)[INIT], hows(answer)[RUN]) == (1, "unknown", "clean")
    assert (made_on(answer)["name"], made_on(answer)["fitting"], made_on(answer)["asked"]) == ("v1.1", 2, 3)
    assert at_head(ours, RUN) == TOY[RUN].encode()


def shallow(stranger: Stranger, folder: Path) -> None:
    git(folder.parent, "clone", "-q", "--depth=1", f"file://{stranger.path}", str(folder))


def blobless(stranger: Stranger, folder: Path) -> None:
    git(stranger.path, "config", "uploadpack.allowFilter", "true")
    git(folder.parent, "clone", "-q", "--bare", "--filter=blob:none", f"file://{stranger.path}", str(folder))


def empty(_stranger: Stranger, folder: Path) -> None:
    git(folder.parent, "init", "-q", str(folder))


POOR = {"shallow": (shallow, 0), "blobless": (blobless, 1), "empty": (empty, 1)}


@pytest.mark.case("shallow or blobless clone as a history", target="adopt", outcome="refused",
                  source="m-ab-s/media-autobuild_suite#3168")  # fmt: skip
@pytest.mark.parametrize("make, code", POOR.values(), ids=POOR)
def test_a_history_that_lacks_things_gives_what_it_has_and_nothing_is_fetched(
    stranger: Stranger, ours: Path, saved: Save, make: Callable[[Stranger, Path], None], code: int
) -> None:
    _, diff = neighbour(stranger, "v1.1")
    poor = stranger.path.parent / "poor"
    make(stranger, poor)
    there = git(poor, "count-objects", "-v")
    answer = adopt(saved(diff), ours, "--history", poor)
    assert answer.code == code
    assert set(hows(answer).values()) == ({"unknown"} if code else {"clean"})
    assert git(poor, "count-objects", "-v") == there


@pytest.mark.parametrize("kind", ["no repository", "a file", "nothing"])
def test_a_history_that_is_none_is_named(stranger: Stranger, toy: Toy, ours: Path, saved: Save, kind: str) -> None:
    _, diff = neighbour(stranger)
    named = toy.root / "named"
    write(toy.root, {"named" if kind == "a file" else "named/x": "x"} if kind != "nothing" else {})
    before = everything(ours)
    answer = adopt(saved(diff), ours, "--history", named)
    assert answer.code in (2, 4)
    assert str(named) in answer.err
    assert everything(ours) == before


def test_of_blobs_that_begin_alike_the_one_is_taken_that_keeps_the_promise(tmp_path: Path) -> None:
    old, new = b"a\nb\n", b"a\nc\n"
    other = b"x\ny\n"
    prefix = blob_id(old)[:4]
    head = f"diff --git a/x b/x\nindex {prefix}..{blob_id(new)[:7]} 100644\n"
    diff = head + "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"
    (placed,) = put(diff.encode(), {"x": b"a\nb\nmore\n"}, {"one": other, "two": old})
    assert placed.base.data == old
    assert blob_id(b"a\nb\nmore\n")[:4] != prefix


def test_a_short_prefix_names_no_blob_by_itself(stranger: Stranger) -> None:
    repo = Repository(stranger.path)
    blob = blob_id(TOY[RUN].encode())
    assert list(blobs_named([repo], blob[:7])) == [TOY[RUN].encode()]
    assert list(blobs_named([repo], blob[:4])) == []
    assert list(blobs_named([repo], "0" * 12)) == []


def test_four_digits_are_enough_where_the_whole_base_fits(stranger: Stranger, ours: Path, saved: Save) -> None:
    diff = stranger.diff({RUN: "print('theirs')\n"}, "--abbrev=4")
    assert f"index {blob_id(TOY[RUN].encode())[:4]}.." in diff.decode()
    assert hows(adopt(saved(diff), ours)) == {RUN: "exact"}


def test_a_deletion_can_be_the_last_step_to_the_base(stranger: Stranger, ours: Path, saved: Save) -> None:
    stranger.commit({**NEIGHBOUR, INIT: None})
    base = stranger.head
    git(stranger.path, "tag", "v0.1", "HEAD~1")
    diff = stranger.diff({INIT: "from .core import other\n", RUN: CHANGE[RUN]})
    git(stranger.path, "stash", "-q")
    stranger.commit({INIT: "later\n", RUN: "later\n"})
    answer = adopt(saved(diff), ours, "--history", stranger.path)
    assert (made_on(answer)["commit"], made_on(answer)["fitting"]) == (base, 2)
    assert hows(answer) == {INIT: "conflict", RUN: "clean"}


def found(repo: Repository, wanted: dict[str, str | None], *known: Known) -> Base | None:
    return find_base(wanted, known, [repo])


def test_no_file_that_fits_is_no_base(stranger: Stranger) -> None:
    repo = Repository(stranger.path)
    pin = Known(repo, stranger.head, "pin")
    assert found(repo, {"python/toy/new.py": None, RUN: "1234567"}, pin) is None
    assert found(repo, {}, pin) is None
    best = found(repo, {"python/toy/new.py": None, RUN: blob_id(TOY[RUN].encode())[:7]}, pin)
    assert best is not None
    assert (best.name, best.whole) == ("pin", True)


def test_fits_means_the_same_file_or_none_on_both_sides() -> None:
    assert fits("abc123", "abc")
    assert fits(None, None)
    assert not fits("abc123", None)
    assert not fits(None, "abc")
    assert not fits("abc123", "")


def test_names_in_a_tree_are_read_whatever_bytes_they_have(stranger: Stranger) -> None:
    name = "python/toy/\udcff ä\n.py"
    commit = stranger.commit({name: "x\n"})
    base = found(Repository(stranger.path), {name: blob_id(b"x\n")[:7]})
    assert base is not None
    assert base.known.commit == commit
    assert git_bytes(stranger.path, "rev-parse", "HEAD").decode().strip() == commit
