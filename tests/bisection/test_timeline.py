"""A range as a history: the series on every revision, what a run can see of it, and what it cannot."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm120_overlay.bisection.history import Change, History, Program, Reach, Revision
from sm120_overlay.bisection.reach import Judged
from sm120_overlay.bisection.timeline import LAZY_PRIOR, commits_between, releases_between, uncull, with_reach
from sm120_overlay.bisection.trees import archive, python_path, submodules
from sm120_overlay.bisection.undoing import undone_on_new
from sm120_overlay.errors import Refused
from sm120_overlay.queue.build import base_contents, build, build_root
from sm120_overlay.queue.carry import State
from sm120_overlay.queue.git import Repository, git_path, objects_alone, read_objects
from sm120_overlay.queue.moving import Move, advance, left_out
from sm120_overlay.queue.ranges import Commit, find_span
from sm120_overlay.queue.series import Series

from ..queue.toy import TOY, Toy, git
from ..rebase.releases import release
from ..survey.upstream import CLASH, CORE, NEAR, QUIET, RENAMED, TAKEN, Upstream

PROJECT = "[project]\nname = 'toy'\ndependencies = ['gear == {}', 'numpy']\n"


@pytest.fixture
def scratch(toy: Toy, upstream: Upstream) -> Iterator[Repository]:
    """Upstream's objects and the series', in a repository of their own."""
    with objects_alone(git_path(Repository(upstream.path.resolve()), "objects").parent) as repo:
        pin = toy.pin()
        build(repo, pin.commit, toy.series(), base_contents(repo, pin.commit, toy.series()))
        yield repo


def history_of(scratch: Repository, toy: Toy, upstream: Upstream, on_conflict: str = "skip") -> History:
    span = find_span(Repository(upstream.path.resolve()), "v1.0", "main")
    return commits_between(scratch, toy.pin().commit, toy.series(), span, on_conflict)


def text(repo: Repository, tree: str, path: str) -> str:
    found = read_objects(repo, [f"{tree}:{path}"])[f"{tree}:{path}"]
    assert found
    return found.data.decode()


def test_commits_that_a_run_cannot_see_are_one_program(scratch: Repository, toy: Toy, upstream: Upstream) -> None:
    upstream.commit(QUIET, 1)
    near = upstream.commit(NEAR, 2)
    upstream.commit({"docs/x.md": "x\n"}, 3)
    history = history_of(scratch, toy, upstream)
    assert [change.culled for change in history.changes] == [
        "only files outside the package: README.md", "", "only files outside the package: docs/x.md",
    ]  # fmt: skip
    assert history.programs == (Program(0, 1), Program(2, 3))
    assert history.change_into(1).commit.id == near
    assert history.change_into(1).paths == (CORE,)


def test_the_series_is_on_every_revision_as_a_move_there_makes_it(
    scratch: Repository, toy: Toy, upstream: Upstream
) -> None:
    ids = [upstream.commit(files, number) for number, files in enumerate((QUIET, NEAR, CLASH), 1)]
    history = history_of(scratch, toy, upstream, "drop")
    for revision, commit in zip(history.revisions[1:], ids, strict=True):
        move = Move(toy.series(), toy.pin(), toy.pin().commit, commit, Series(toy.pin(), ()))
        without = left_out([patch.slug for patch in revision.patches if patch.left_out])
        tip = advance(scratch, move, without, stop=False).tip
        assert git(scratch.path, "rev-parse", f"{tip}^{{tree}}").strip() == revision.tree


def test_a_revision_that_a_patch_does_not_go_onto_is_what_was_asked_for(
    scratch: Repository, toy: Toy, upstream: Upstream
) -> None:
    clash = upstream.commit(CLASH, 1)
    skipped = history_of(scratch, toy, upstream).revisions[1]
    assert "right-answer" in skipped.untestable
    dropped = history_of(scratch, toy, upstream, "drop").revisions[1]
    assert not dropped.untestable
    assert [patch.slug for patch in dropped.patches if patch.left_out] == ["right-answer"]
    with pytest.raises(Refused, match=f"right-answer: not onto {clash[:12]}"):
        history_of(scratch, toy, upstream, "stop")


def test_a_commit_that_takes_in_our_patch_is_no_change_and_says_so(
    scratch: Repository, toy: Toy, upstream: Upstream
) -> None:
    upstream.commit(TAKEN, 1)
    (change,) = history_of(scratch, toy, upstream).changes
    assert change.culled.startswith("upstream takes in what our right-answer does")
    assert ("right-answer", State.CLEAN, State.ABSORBED) in change.turned


def test_a_dependency_that_moves_is_a_change(scratch: Repository, toy: Toy, upstream: Upstream) -> None:
    upstream.commit({"python/pyproject.toml": PROJECT.format("1.0")}, 1)
    upstream.commit({"python/pyproject.toml": PROJECT.format("1.1")}, 2)
    upstream.commit({"python/pyproject.toml": PROJECT.format("1.1") + "# a comment\n"}, 3)
    upstream.commit({"python/pyproject.toml": "[project\n"}, 4)
    history = history_of(scratch, toy, upstream)
    assert [change.moved_pins for change in history.changes] == [
        (("gear", "", "1.0"),), (("gear", "1.0", "1.1"),), (), (("gear", "1.1", ""),),
    ]  # fmt: skip
    assert history.revisions[2].key == history.revisions[3].key
    assert history.revisions[2].build_key != history.revisions[3].build_key
    assert history.revisions[3].key != history.revisions[4].key


def test_commits_of_the_old_release_are_taken_back_on_the_way(
    scratch: Repository, toy: Toy, upstream: Upstream
) -> None:
    upstream.on("release-1.1", new=True)
    own = upstream.commit(NEAR, 2)
    upstream.tag("v1.1").on("main")
    upstream.commit({"python/toy/more.py": "X = 1\n"}, 3)
    span = find_span(Repository(upstream.path.resolve()), "v1.1", "main")
    history = commits_between(scratch, toy.pin().commit, toy.series(), span)
    assert [(change.commit.number, change.undone) for change in history.changes] == [(2, True), (3, False)]
    assert [revision.commit.id for revision in history.revisions[:2]] == [own, toy.pin().commit]
    assert history.revisions[1].commit.number != 2
    assert "# line fifty" in text(scratch, history.revisions[0].tree, CORE)
    assert "# line fifty" not in text(scratch, history.revisions[1].tree, CORE)


def test_what_no_launch_reaches_is_culled_unless_it_was_asked_for() -> None:
    commits = [Commit(letter * 40, "2026-03-01", f"Change (#{letter})") for letter in "abcd"]
    revisions = tuple(Revision(commit, "t", commit.id, "b") for commit in commits)
    pins = (("gear", "1", "2"),)
    changes = (Change(commits[1], ("x.py",)), Change(commits[2], ("y.py",)), Change(commits[3], (), moved_pins=pins))
    history = History(revisions, changes)
    judged = (Judged(Reach.NONE, "only tests"), Judged(Reach.LAZY, "inside a function"), Judged(Reach.NONE, "no file"))
    found = with_reach(history, judged)
    assert [change.culled for change in found.changes] == ["no launch reaches it: only tests", "", ""]
    assert [change.prior for change in found.changes] == [1.0, LAZY_PRIOR, 1.0]
    assert found.programs == (Program(0, 1), Program(2, 2), Program(3, 3))
    assert len(uncull(found).programs) == 4
    assert uncull(found).changes[0].why == "no launch reaches it: only tests"


def test_a_culprit_is_taken_back_on_the_new_end_where_that_is_clean(
    scratch: Repository, toy: Toy, upstream: Upstream
) -> None:
    upstream.commit(NEAR, 1)
    upstream.commit({"python/toy/more.py": "X = 1\n"}, 2)
    history = history_of(scratch, toy, upstream)
    tree = undone_on_new(scratch, history, 1)
    assert tree
    assert "# line fifty" not in text(scratch, tree, CORE)
    assert text(scratch, tree, "python/toy/more.py") == "X = 1\n"
    upstream.commit({CORE: TOY[CORE].replace("# line 50\n", "# line FIFTY\n")}, 3)
    assert undone_on_new(scratch, history_of(scratch, toy, upstream), 1) is None


def test_a_tree_travels_whole_and_is_the_same_bytes_every_time(scratch: Repository, toy: Toy) -> None:
    files = {".gitattributes": ("100644", b"* export-ignore\n"), "run.sh": ("100755", b"#!/bin/sh\n"),
             "here": ("120000", b"run.sh")}  # fmt: skip
    root = build_root(scratch, files, "root")
    tree = git(scratch.path, "rev-parse", f"{root}^{{tree}}").strip()
    made = archive(scratch, tree)
    assert made == archive(scratch, tree)
    with tarfile.open(fileobj=io.BytesIO(made)) as tar:
        assert sorted(tar.getnames()) == [".gitattributes", "here", "run.sh"]
        assert tar.getmember("run.sh").mode == 0o755
        assert tar.getmember("here").linkname == "run.sh"
    assert python_path(toy.pin(), releases=False) == "python"
    assert python_path(toy.pin(), releases=True) == "."


@pytest.mark.parametrize("target", [b"/etc/passwd", b"../x", b"a/../../x"])
def test_a_link_out_of_the_tree_is_refused(scratch: Repository, target: bytes) -> None:
    root = build_root(scratch, {"link": ("120000", target)}, "root")
    with pytest.raises(Refused, match="is a link out of the tree"):
        archive(scratch, root)


def test_a_tree_that_lacks_a_file_is_refused(scratch: Repository, tmp_path: Path) -> None:
    root = build_root(scratch, {"a.txt": ("100644", b"a\n")}, "root")
    shallow = Repository((tmp_path / "less.git").resolve())
    shallow.path.mkdir()
    git(shallow.path, "init", "-q", "--bare", ".")
    for name in (root, git(scratch.path, "rev-parse", f"{root}^{{tree}}").strip()):
        kind = git(scratch.path, "cat-file", "-t", name).strip()
        (tmp_path / "one").write_bytes(read_objects(scratch, [name])[name].data)  # type: ignore[union-attr]
        git(shallow.path, "hash-object", "-w", "-t", kind, "--literally", str(tmp_path / "one"))
    with pytest.raises(Refused, match=r"a\.txt of .* cannot be read"):
        archive(shallow, root)


def test_upstream_alone_is_a_history_too(scratch: Repository, toy: Toy, upstream: Upstream) -> None:
    near = upstream.commit(NEAR, 1)
    upstream.commit(QUIET, 2)
    span = find_span(Repository(upstream.path.resolve()), "v1.0", "main")
    history = commits_between(scratch, toy.pin().commit, Series(toy.pin(), ()), span)
    assert [bool(change.culled) for change in history.changes] == [False, True]
    assert history.revisions[1].tree == git(upstream.path, "rev-parse", f"{near}^{{tree}}").strip()


def test_what_the_files_beside_the_project_require_is_seen(scratch: Repository, toy: Toy, upstream: Upstream) -> None:
    dynamic = "[project]\nname = 'toy'\ndynamic = ['dependencies']\n[tool.setuptools.dynamic]\n"
    upstream.commit({"python/pyproject.toml": dynamic, "python/requirements.txt": "gear\n"}, 1)
    upstream.commit({"python/requirements.txt": "gear[more]\n"}, 2)
    upstream.commit({"python/pyproject.toml": dynamic + "[build-system]\nrequires = ['setuptools==80']\n"}, 3)
    upstream.commit({"python/pyproject.toml": dynamic + "[project.optional-dependencies]\nsrt = ['gear==2']\n"}, 4)
    assert not any(change.culled for change in history_of(scratch, toy, upstream).changes)


def test_a_submodule_that_moves_is_a_change_and_is_named_as_missing(
    scratch: Repository, toy: Toy, upstream: Upstream
) -> None:
    upstream.commit({".gitmodules": '[submodule "c"]\n\tpath = 3rdparty/c\n\turl = x\n'}, 1)
    for letter in "ab":
        git(upstream.path, "update-index", "--add", "--cacheinfo", f"160000,{letter * 40},3rdparty/c")
        git(upstream.path, "commit", "-q", "-m", "Move c")
    history = history_of(scratch, toy, upstream)
    assert not any(change.culled for change in history.changes)
    assert submodules(scratch, history.revisions[-1].tree) == ("3rdparty/c",)


@pytest.mark.parametrize(
    ("need", "pin"),
    [
        ("a-b.c_d[x] == 1.2 ; python_version > '3'", {"a-b-c-d": "1.2"}), ("torch (==2.9.1)", {"torch": "2.9.1"}),
        ("x==1.*", {}), ("x>=1,==2", {}), ("x", {}), ("A__b===1+cu", {"a-b": "1+cu"}),
    ],
)  # fmt: skip
def test_only_exact_versions_are_pins(
    need: str, pin: dict[str, str], scratch: Repository, toy: Toy, upstream: Upstream
) -> None:
    upstream.commit({"python/pyproject.toml": f"[project]\nname = 'toy'\ndependencies = ['''{need}''']\n"}, 1)
    assert history_of(scratch, toy, upstream).revisions[1].pins == pin


HEART = "python/toy/heart.py"


def releases_of(scratch: Repository, toy: Toy, on_conflict: str, *versions: str) -> History:
    """The toy's releases, from its pin on."""
    pin = toy.pin()
    return releases_between(scratch, pin.commit, toy.series(), ["1.0", *versions], [pin], on_conflict, print)


def test_every_release_says_what_each_patch_is_there_and_carries_what_goes_on(scratch: Repository, toy: Toy) -> None:
    release(toy, "1.1", NEAR)
    release(toy, "1.2", RENAMED)
    release(toy, "1.3", {HEART: TAKEN[CORE]})
    release(toy, "2.0", {HEART: CLASH[CORE]})
    release(toy, "3.0", {HEART: None})
    history = releases_of(scratch, toy, "drop", "1.1", "1.2", "1.3", "2.0", "3.0")
    seen = [{patch.slug: (patch.state, patch.left_out) for patch in one.patches} for one in history.revisions]
    answers = [each["right-answer"] for each in seen]
    assert [state for state, _ in answers] == [
        State.CLEAN, State.CLEAN, State.MOVED, State.ABSORBED, State.CONFLICT, State.GONE,
    ]  # fmt: skip
    assert [out for _, out in answers] == [False, False, False, False, True, True]
    trees = [one.tree for one in history.revisions]
    places = ["toy/core.py", "toy/core.py", "toy/heart.py", "toy/heart.py", "toy/heart.py"]
    made = [text(scratch, tree, place).split("\n")[1] for tree, place in zip(trees, places, strict=False)]
    assert made == ["    return 42"] * 4 + ["    return 40"]
    assert all(text(scratch, tree, "toy/extra/hook.py") == "HOOK = True\n" for tree in trees[:4])
    assert ("right-answer", State.ABSORBED, State.CONFLICT) in history.changes[3].turned
    assert not any(one.untestable for one in history.revisions)


def test_a_release_that_a_patch_does_not_go_onto_is_what_was_asked_for(scratch: Repository, toy: Toy) -> None:
    release(toy, "2.0", CLASH)
    assert [bool(one.untestable) for one in releases_of(scratch, toy, "skip", "2.0").revisions] == [False, True]
    with pytest.raises(Refused, match=r"right-answer: not onto 2\.0"):
        releases_of(scratch, toy, "stop", "2.0")


def test_a_release_is_all_that_its_wheel_installs_and_what_moves_in_it_alone_is_a_change(
    scratch: Repository, toy: Toy
) -> None:
    release(toy, "1.1", {"README.md": "toy, again\n"})
    first, second = releases_of(scratch, toy, "skip", "1.1").revisions
    assert "version = '1.1'" in text(scratch, second.tree, "toy/_version.py")
    assert text(scratch, first.tree, "toy/core.py") == text(scratch, second.tree, "toy/core.py")
    assert first.key != second.key
