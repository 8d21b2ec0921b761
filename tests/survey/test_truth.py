"""That a survey is true: what it skips changes nothing, and its merges are git's merges of whole trees."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sm120_overlay.queue import survey as surveying
from sm120_overlay.queue.build import base_contents, build
from sm120_overlay.queue.carry import CARRIED, State, carry, ground_at
from sm120_overlay.queue.git import Repository, attempt, git_path, objects_alone, run
from sm120_overlay.queue.home import find_home
from sm120_overlay.queue.pins import Pin, load_lines
from sm120_overlay.queue.ranges import find_span as span_between
from sm120_overlay.queue.ranges import first_break, way
from sm120_overlay.queue.series import Series, load_series
from sm120_overlay.queue.survey import survey

from ..queue.toy import TOY, WHO, Toy
from .upstream import CORE, DOS, Upstream

HEART = "python/toy/heart.py"
NEWER = {"sglang": "v0.5.16", "flashinfer": "v0.6.14"}
FUZZ = int(os.environ.get("SM120_OVERLAY_FUZZ", "1"))
SEVERAL = settings(
    max_examples=6 * FUZZ, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip


@st.composite
def lives(draw: st.DrawFn) -> list[dict[str, str | None]]:
    """What commits make of the toy's files: lines that change near the patches and far from them, moves, returns."""
    core, dos, place = TOY[CORE], TOY[DOS], CORE
    steps: list[dict[str, str | None]] = []
    for number in range(draw(st.integers(2, 7))):
        kind = draw(st.sampled_from(["far", "near", "answer", "taken", "thirty", "dos", "move", "back", "quiet"]))
        step: dict[str, str | None] = {"README.md": f"{number}\n"}
        if kind in ("move", "back"):
            target = HEART if kind == "move" else CORE
            step |= {place: None, target: core} if target != place else {}
            place = target
        elif kind != "quiet":
            old, new = {
                "far": ("# line 50", f"# line 50, {number}"), "near": ("# line 28", f"# line 28, {number}"),
                "answer": ("return 41", f"return {number}"), "taken": ("return 41", "return 42"),
                "thirty": ("# line 30", "# line thirty"), "dos": ("", ""),
            }[kind]  # fmt: skip
            core = core.replace(old, new, 1) if old else core
            dos = f"A = {number}\r\n" + dos if kind == "dos" else dos
            step |= {place: core, DOS: dos}
        steps.append(step)
    return steps


def opened(path: Path, repo: Repository, pin: Pin, series: Series) -> Repository:
    build(repo, pin.commit, series, base_contents(repo, pin.commit, series))
    return Repository(path.resolve())


def as_whole_trees(repo: Repository, pin: str, series: Series, revision: str) -> list[State]:
    """The states as `git merge-tree` of whole trees gives them, renames and all, a patch that stops being left out."""
    built = build(repo, pin, series, base_contents(repo, pin, series))
    tree, found = run(repo, "rev-parse", f"{revision}^{{tree}}").decode().strip(), []
    for before, after in zip([pin, *built.commits], built.commits, strict=False):
        ours = run(repo, "commit-tree", tree, "-p", before, "-m", "ours", env=WHO).decode().strip()
        code, out, _ = attempt(repo, "merge-tree", "--write-tree", "--no-messages", ours, after)
        merged = out.decode().split("\n")[0]
        found.append(State.CONFLICT if code else State.ABSORBED if merged == tree else State.CLEAN)
        tree = tree if code else merged
    return found


@SEVERAL
@given(lives())
def test_skipping_and_cutting_change_no_answer(
    toy_master: Toy, tmp_path_factory: pytest.TempPathFactory, steps: Sequence[dict[str, str | None]]
) -> None:
    folder = tmp_path_factory.mktemp("life")
    clone = Upstream(toy_master.clone("toy", str(folder / "clone")))
    commits = [clone.commit(step) for step in steps]
    pin, series = toy_master.pin(), toy_master.series()
    with objects_alone(git_path(Repository(clone.path.resolve()), "objects").parent) as repo:
        history = opened(clone.path, repo, pin, series)
        walked = way(repo, pin.commit, series, span_between(history, pin.commit, commits[-1]))
        prospects = survey([repo.path], series, walked, jobs=2)
        by_step = {step.commit.id: step.ground for step in walked}
        now = carry(repo, series, [walked[0].ground])
        for commit in commits:  # a commit that was skipped is as the one before it
            ground = by_step.get(commit)
            now.append(carry(repo, series, [ground])[0] if ground else now[-1])
        for number, prospect in enumerate(prospects):
            assert prospect.last == now[-1][number]
            assert [turn.state for turn in prospect.turns] == [
                state for state, _ in groupby(row[number].state for row in now)
            ]


@SEVERAL
@given(lives())
def test_files_merged_alone_are_as_whole_trees_merged(
    toy_master: Toy, tmp_path_factory: pytest.TempPathFactory, steps: Sequence[dict[str, str | None]]
) -> None:
    clone = Upstream(toy_master.clone("toy", str(tmp_path_factory.mktemp("life") / "clone")))
    commits = [clone.commit({path: text for path, text in step.items() if path != HEART or text}) for step in steps]
    pin, series = toy_master.pin(), toy_master.series()
    with objects_alone(git_path(Repository(clone.path.resolve()), "objects").parent) as repo:
        opened(clone.path, repo, pin, series)
        ground = ground_at(repo, pin.commit, series, commits[-1])
        ours = [State.CLEAN if row.state in CARRIED else row.state for row in carry(repo, series, [ground])[0]]
        trees = as_whole_trees(repo, pin.commit, series, commits[-1])
        assert [State.CONFLICT if state is State.GONE else state for state in ours] == trees


def test_stretches_are_joined_in_order(toy: Toy, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(5)
    for number in range(12):
        core = TOY[CORE].replace("return 41", f"return {chance.choice((40, 41, 42))}")
        upstream.commit({CORE: core, DOS: f"{number}\r\n"})
    heard: list[tuple[int, int]] = []
    found = []
    pin, series = toy.pin(), toy.series()
    with objects_alone(git_path(Repository(upstream.path.resolve()), "objects").parent) as repo:
        history = opened(upstream.path, repo, pin, series)
        steps = way(repo, pin.commit, series, span_between(history, "v1.0", "main"))
        for stretch in (2, 128):
            monkeypatch.setattr(surveying, "STRETCH", stretch)
            found.append(survey([repo.path], series, steps, lambda done, total: heard.append((done, total)), jobs=3))
    assert found[0] == found[1]
    assert heard == [(done, 13) for done in (2, 4, 6, 8, 10, 12, 13)] + [(13, 13)]


@pytest.fixture
def own_cache() -> None:
    """Not here: the wheels of real pins are those of the whole suite."""


def real_pin(name: str) -> tuple[Pin, Series]:
    home = find_home()
    pin = load_lines(home.pins).line("v0.5.9").pin(name)
    return pin, load_series(home, pin)


@pytest.mark.slow
def test_on_real_history_the_end_is_what_a_rebase_would_give(upstream_repo: tuple[str, Path]) -> None:
    name, path = upstream_repo
    pin, series = real_pin(name)
    with objects_alone(git_path(Repository(path), "objects").parent) as repo:
        history = opened(path, repo, pin, series)
        span = span_between(history, pin.commit, NEWER[name])
        steps = way(repo, pin.commit, series, span)
        part = [*steps[:3], *steps[-3:]]
        prospects = survey([repo.path], series, part)
        ground = ground_at(repo, pin.commit, series, span.new.id)
        assert [prospect.last for prospect in prospects] == list(carry(repo, series, [ground])[0])
        assert {prospect.turns[0].state for prospect in prospects} == {State.CLEAN}


@pytest.mark.slow
def test_on_real_history_files_merge_as_whole_trees_do(upstream_repo: tuple[str, Path]) -> None:
    name, path = upstream_repo
    pin, series = real_pin(name)
    with objects_alone(git_path(Repository(path), "objects").parent) as repo:
        history = opened(path, repo, pin, series)
        commits = span_between(history, pin.commit, NEWER[name]).commits
        for commit in (commits[len(commits) // 40], commits[len(commits) // 8], commits[-1]):
            ground = ground_at(repo, pin.commit, series, commit.id)
            rows = carry(repo, series, [ground])[0]
            ours = [State.CLEAN if row.state in CARRIED else row.state for row in rows]
            ours = [State.CONFLICT if state is State.GONE else state for state in ours]
            assert ours == as_whole_trees(repo, pin.commit, series, commit.id), commit.named


@pytest.mark.slow
def test_on_real_history_a_search_by_halves_finds_a_break(upstream_repo: tuple[str, Path]) -> None:
    name, path = upstream_repo
    pin, series = real_pin(name)
    slug = {"sglang": "deepgemm-sm120-guard", "flashinfer": "jit-cache-key"}[name]
    with objects_alone(git_path(Repository(path), "objects").parent) as repo:
        history = opened(path, repo, pin, series)
        revisions = [commit.id for commit in span_between(history, pin.commit, NEWER[name]).commits]
        found = first_break(repo, pin.commit, series, slug, revisions)
    assert found is not None and found.commit is not None
    assert found.commit.number == {"sglang": 22774, "flashinfer": 3205}[name]
    assert found.before in CARRIED and found.carried.state is State.CONFLICT
