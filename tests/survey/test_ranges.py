"""Ranges of upstream's commits: what lies between two ends, which files a commit leaves, who broke a patch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sm120_overlay.errors import Missing, Refused
from sm120_overlay.queue.build import base_contents, build
from sm120_overlay.queue.carry import State, ground_at
from sm120_overlay.queue.git import Repository, git_path, objects_alone
from sm120_overlay.queue.ranges import (
    Commit,
    Span,
    find_commits,
    find_span,
    first_break,
    grounds_along,
    main_of,
    releases_along,
    underneath,
    way,
)

from ..queue.toy import TOY, Toy, git
from .upstream import CLASH, CORE, NEAR, QUIET, RENAMED, TAKEN, Upstream


@pytest.fixture
def scratch(toy: Toy, upstream: Upstream) -> Iterator[Repository]:
    """Upstream's objects and the series', in a repository of their own."""
    history = Repository(upstream.path.resolve())
    with objects_alone(git_path(history, "objects").parent) as repo:
        pin = toy.pin()
        build(repo, pin.commit, toy.series(), base_contents(repo, pin.commit, toy.series()))
        yield repo


def span_of(upstream: Upstream, old: str = "v1.0", new: str = "main") -> Span:
    return find_span(Repository(upstream.path.resolve()), old, new)


def ids(span: Span) -> list[str]:
    return [commit.id for commit in span.commits]


@pytest.mark.parametrize(
    ("subject", "number"),
    [
        ("Fix it (#12)", 12),
        ("[Cherry-pick] Fix it (#12) (#34)", 34),
        ('Revert "Fix it (#12)" (#56)', 56),
        ("Merge pull request #78 from someone/branch", 78),
        ("Fix #12 at last", None),
        ("", None),
    ],
)
def test_a_pull_request_is_the_last_number_in_parentheses(subject: str, number: int | None) -> None:
    assert Commit("a" * 40, "2026-03-01", subject).number == number


def test_a_commit_is_named_with_its_day_and_a_release_by_its_version() -> None:
    assert Commit("a" * 40, "2026-03-01", "Fix (#1)").named == "aaaaaaaaaaaa (2026-03-01) Fix (#1)"
    assert Commit("0.5.10.post1", "2026-03-01", "").named == "0.5.10.post1 (2026-03-01)"


def test_a_range_starts_where_both_left_main(upstream: Upstream) -> None:
    shared = upstream.commit(QUIET, 1)
    upstream.on("release-1.1", new=True)
    own = upstream.commit(NEAR, 2)
    upstream.tag("v1.1").on("main")
    onward = upstream.commit(CLASH, 3)
    upstream.on("release-2.0", new=True)
    last = upstream.commit({"LICENSE": "mine\n"}, 4)
    upstream.tag("v2.0").on("main")
    upstream.commit({"LICENSE": "other\n"}, 5)
    span = span_of(upstream, "v1.1", "v2.0")
    assert span.start.id == shared
    assert [commit.id for commit in span.undone] == [own]
    assert (ids(span), span.branched) == ([onward, last], 1)
    assert (span.old.number, span.new.number) == (2, 4)


def test_the_way_leads_back_to_main_and_along_it(toy: Toy, upstream: Upstream, scratch: Repository) -> None:
    upstream.on("release-1.1", new=True)
    own = upstream.commit(NEAR, 2)
    upstream.tag("v1.1").on("main")
    onward = upstream.commit(CLASH, 3)
    upstream.commit(QUIET, 4)
    span = span_of(upstream, "v1.1")
    steps = way(scratch, toy.pin().commit, toy.series(), span)
    assert [(step.commit.id, step.undone) for step in steps] == [(own, False), (own, True), (onward, False)]
    at_pin = ground_at(scratch, toy.pin().commit, toy.series(), toy.pin().commit).files
    assert [step.ground.files == at_pin for step in steps] == [False, True, False]


def test_a_commit_that_changes_no_touched_file_has_no_ground(toy: Toy, upstream: Upstream, scratch: Repository) -> None:
    quiet, loud = upstream.commit(QUIET), upstream.commit(NEAR)
    span = span_of(upstream)
    found = grounds_along(scratch, toy.pin().commit, toy.series(), span.start.id, ids(span))
    assert [ground.revision for ground in found] == [span.start.id, loud]
    assert quiet in ids(span)


def test_every_ground_is_what_its_tree_has(toy: Toy, upstream: Upstream, scratch: Repository) -> None:
    for files in (
        NEAR,
        RENAMED,
        {"python/toy/heart.py": CLASH[CORE]},
        {"python/toy/heart.py": None, CORE: TAKEN[CORE]},
    ):
        upstream.commit(files)
    pin, series, span = toy.pin().commit, toy.series(), span_of(upstream)
    for ground in grounds_along(scratch, pin, series, span.start.id, ids(span)):
        alone = ground_at(scratch, pin, series, ground.revision)
        assert (dict(ground.files), dict(ground.places)) == (dict(alone.files), dict(alone.places))


def test_a_file_is_followed_where_git_would_not_know_it_any_more(
    toy: Toy, upstream: Upstream, scratch: Repository
) -> None:
    upstream.commit(RENAMED)
    upstream.commit({"python/toy/heart.py": "".join(f"other {number}\n" for number in range(90))})
    pin, series, span = toy.pin().commit, toy.series(), span_of(upstream)
    last = grounds_along(scratch, pin, series, span.start.id, ids(span))[-1]
    assert last.places == {CORE: "python/toy/heart.py"}
    assert ground_at(scratch, pin, series, upstream.head).places == {}


def test_a_file_that_was_away_is_found_where_it_comes_back(toy: Toy, upstream: Upstream, scratch: Repository) -> None:
    upstream.commit({CORE: None})
    upstream.commit({"python/toy/heart.py": TOY[CORE]})
    pin, series, span = toy.pin().commit, toy.series(), span_of(upstream)
    grounds = grounds_along(scratch, pin, series, span.start.id, ids(span))
    assert [dict(ground.places) for ground in grounds] == [{}, {}, {CORE: "python/toy/heart.py"}]
    assert [ground.files[CORE] is None for ground in grounds] == [False, True, False]


def test_a_merge_counts_as_what_it_brings_to_main(toy: Toy, upstream: Upstream, scratch: Repository) -> None:
    upstream.on("topic", new=True)
    aside = upstream.commit(CLASH)
    upstream.on("main").commit(QUIET)
    git(upstream.path, "merge", "-q", "--no-ff", "-m", "Merge pull request #9 from ann/topic", "topic")
    span = span_of(upstream)
    assert aside not in ids(span)
    found = first_break(scratch, toy.pin().commit, toy.series(), "right-answer", ids(span))
    assert found is not None and found.commit is not None
    assert (found.commit.id, found.commit.number) == (upstream.head, 9)


def test_the_commit_that_breaks_a_patch_is_found(toy: Toy, upstream: Upstream, scratch: Repository) -> None:
    for number in range(20):
        upstream.commit({CORE: TOY[CORE].replace("# line 50\n", f"# line fifty, {number}\n")}, number + 1)
    culprit = upstream.commit(CLASH, 77)
    for number in range(9):
        upstream.commit({CORE: CLASH[CORE].replace("# line 50\n", f"# line fifty, {number}\n")}, number + 101)
    found = first_break(scratch, toy.pin().commit, toy.series(), "right-answer", ids(span_of(upstream)))
    assert found is not None and found.commit is not None
    assert (found.commit.id, found.before, found.carried.state) == (culprit, State.CLEAN, State.CONFLICT)


def test_what_was_broken_before_the_range_has_no_culprit_in_it(
    toy: Toy, upstream: Upstream, scratch: Repository
) -> None:
    first = upstream.commit(CLASH)
    upstream.commit({CORE: CLASH[CORE].replace("# line 50\n", "# line fifty\n")})
    revisions = ids(span_of(upstream, first))
    found = first_break(scratch, toy.pin().commit, toy.series(), "right-answer", revisions)
    assert found is not None and found.commit is None and found.before is State.CONFLICT


def test_what_goes_in_at_the_end_is_not_broken(toy: Toy, upstream: Upstream, scratch: Repository) -> None:
    upstream.commit(NEAR)
    assert first_break(scratch, toy.pin().commit, toy.series(), "right-answer", ids(span_of(upstream))) is None
    upstream.commit(TAKEN)
    revisions = ids(span_of(upstream))
    assert first_break(scratch, toy.pin().commit, toy.series(), "right-answer", revisions) is None
    states = (State.ABSORBED,)
    found = first_break(scratch, toy.pin().commit, toy.series(), "right-answer", revisions, states)
    assert found is not None and found.commit is not None and found.commit.id == upstream.head


def test_only_patches_that_share_files_are_underneath(toy: Toy) -> None:
    series = toy.series()
    assert underneath(series, "right-answer").slugs == ("right-answer",)
    assert underneath(series, "bring-hook").slugs == ("right-answer", "bring-hook")


def test_releases_lie_where_their_branches_left(upstream: Upstream) -> None:
    first = upstream.commit(QUIET)
    upstream.on("release-1.1", new=True).commit(NEAR)
    upstream.tag("v1.1").tag("v1.1rc1").tag("nightly").on("main")
    second = upstream.commit(CLASH)
    upstream.tag("v1.2")
    upstream.commit(TAKEN)
    span = span_of(upstream)
    assert releases_along(Repository(upstream.path.resolve()), span) == {"v1.1": first, "v1.2": second}


def test_upstreams_main_is_the_remotes_where_there_is_one(upstream: Upstream, toy: Toy) -> None:
    assert main_of(Repository(upstream.path.resolve())) == "refs/heads/main"
    clone = toy.clone("toy", "clone-of-mine")
    assert main_of(Repository(clone.resolve())) == "refs/remotes/origin/HEAD"
    git(upstream.path, "branch", "-m", "main", "trunk")
    assert main_of(Repository(upstream.path.resolve())) == "HEAD"


def test_histories_that_do_not_meet_are_no_range(upstream: Upstream) -> None:
    git(upstream.path, "checkout", "-q", "--orphan", "other")
    upstream.commit(QUIET)
    with pytest.raises(Refused, match="no commit in common"):
        span_of(upstream, "v1.0", "other")


@pytest.mark.parametrize("ends", [("main", "v1.0"), ("main", "main")])
def test_a_range_without_commits_is_refused(upstream: Upstream, ends: tuple[str, str]) -> None:
    upstream.commit(QUIET)
    with pytest.raises(Refused, match="expected commits between them"):
        span_of(upstream, *ends)


def test_a_commit_that_is_not_there_is_missing(upstream: Upstream) -> None:
    with pytest.raises(Missing, match=r"there is no commit v9\.9"):
        find_commits(Repository(upstream.path.resolve()), ["main", "v9.9"])
    assert find_commits(Repository(upstream.path.resolve()), []) == ()


def test_a_commit_that_has_vanished_from_the_middle_is_named(upstream: Upstream) -> None:
    commits = [upstream.commit({"README.md": f"{number}\n"}, number) for number in range(5)]
    (upstream.path / ".git/objects" / commits[2][:2] / commits[2][2:]).unlink()
    for old, new in (("v1.0", "main"), (commits[0], commits[3]), (commits[3], commits[4])):
        with pytest.raises(Missing) as missing:
            span_of(upstream, old, new)
        assert f": commit {commits[2][:12]} is not there" in missing.value.what
