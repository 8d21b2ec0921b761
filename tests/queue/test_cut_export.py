"""export and fresh checkouts cut before and in every change they make; a change of them that fails."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from sm120_overlay.queue.home import Home

from .cuts import Ended, die, failing, run_failing, tear
from .ground import contents_of
from .scenes import Answer, ask, make_newer, snapshot
from .toy import Toy, git

CASE = "the run is killed at any change"


@dataclass(frozen=True)
class Project:
    """A copy of the project for every run, at `home`; `states` are its folders, by which clone is exported there."""

    home: Path
    states: dict[str, Path]
    clones: dict[str, Path]

    def fresh(self, state: str) -> None:
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.copytree(self.states[state], self.home)
        self.home.with_name("started").write_text(state)

    def export(self, state: str) -> Answer:
        """Of a cut one too: what leaves the series is what it had before that."""
        started = self.states[self.home.with_name("started").read_text()]
        before, after = (
            (where / "patches/v1/toy/series").read_text().split() for where in (started, self.states[state])
        )
        dropped = [word for slug in before if slug not in after for word in ("--drop", slug)]
        return ask("export", self.clones[state], *dropped)

    def cut(self, step: int, state: str, fault: Callable[[int, str], None], writes: bool = False) -> Ended:
        return run_failing(step, self.home, partial(self.export, state), fault, writes=writes)

    def whole(self, start: str, goal: str) -> None:
        now, before, after = (contents_of(snapshot(where)) for where in (self.home, *self.of(start, goal)))
        for path in now.keys() | before.keys() | after.keys():
            if "sm120-overlay" not in path:
                assert now.get(path) in (before.get(path), after.get(path)), path

    def of(self, *states: str) -> tuple[Path, ...]:
        return tuple(self.states[state] for state in states)


@pytest.fixture
def project(toy: Toy, tmp_path: Path) -> Iterator[Project]:
    """The series not yet exported, as it is, and a newer one that lacks a patch and an overlay file."""
    home = tmp_path / "home"
    clones = {"older": toy.root / "author-toy", "newer": toy.root / "author-newer"}
    older = make_newer(toy)
    first = toy.root / "first"
    shutil.copytree(older, first)
    shutil.rmtree(first / "overlay" / "toy")
    for left in (first / "patches/v1/toy").glob("*.patch"):
        left.unlink()
    (first / "patches/v1/toy/series").write_text("")
    states = {"first": first, "older": older, "newer": toy.home.root}
    tests = toy.home.root / "tests"
    for state in states.values():  # lint asks for them
        if state != toy.home.root:
            shutil.copytree(tests, state / "tests", dirs_exist_ok=True)
    with mock.patch("sm120_overlay.verbs._options.find_home", lambda: Home(home)):
        yield Project(home, states, clones)


def test_the_scene_is_right(project: Project) -> None:
    for start, goal in (("first", "older"), ("older", "newer")):
        project.fresh(start)
        assert project.export(goal).code == 0
        assert snapshot(project.home) == snapshot(project.states[goal])


@pytest.mark.case(CASE, target="export", outcome="undone")
@pytest.mark.parametrize("move", [("first", "older"), ("older", "newer"), ("newer", "older")], ids="-to-".join)
@pytest.mark.parametrize("fault", [die, tear])
def test_an_export_cut_at_any_change_is_whole_and_the_next_one_is_exact(
    project: Project, move: tuple[str, str], fault: Callable[[int, str], None]
) -> None:
    start, goal = move
    step = 0
    while True:
        project.fresh(start)
        ended = project.cut(step, goal, fault, writes=fault is tear)
        project.whole(start, goal)
        answer = project.export(goal)
        assert answer.code == 0, (step, answer)
        assert snapshot(project.home) == snapshot(project.states[goal]), step
        if not ended.reached:
            break
        step += 1
    assert step > 3


@pytest.mark.case("one change fails (a full disk, a read-only one, a broken one)", target="export", outcome="undone")
def test_an_export_of_which_a_change_fails_is_undone_at_once(project: Project) -> None:
    step = 0
    while True:
        project.fresh("older")
        before = snapshot(project.home)
        code = (errno.ENOSPC, errno.EROFS, errno.EIO)[step % 3]
        ended = project.cut(step, "newer", failing(code))
        assert ended.gave.code in (0, 4), ended
        if ended.gave.code:
            assert snapshot(project.home) == before, (step, ended)
            assert len(ended.gave.err.strip().splitlines()) == 2, ended
        if not ended.reached:
            break
        step += 1
    assert step > 15


def cut_half_way(project: Project) -> None:
    """An export older to newer of which a part is written."""
    for step in range(40):
        project.fresh("older")
        project.cut(step, "newer", die)
        now, before, after = (contents_of(snapshot(where)) for where in (project.home, *project.of("older", "newer")))
        patches = {path for path in now.keys() | before.keys() | after.keys() if path.endswith((".patch", "series"))}
        if all(any(now.get(path) != state.get(path) for path in patches) for state in (before, after)):
            return
    raise AssertionError("no cut left a part")


@pytest.mark.parametrize("verb", ["apply", "status", "verify", "lint"])
def test_a_verb_after_a_cut_export_does_not_take_half_a_series_for_whole(project: Project, toy: Toy, verb: str) -> None:
    """It undoes that export first, or says what to do; it never goes on with some files old and some new."""
    clone = toy.clone(into="user")
    cut_half_way(project)
    with mock.patch("sm120_overlay.verbs.lint.find_home", lambda: Home(project.home)):
        answer = ask(verb, *([] if verb == "lint" else [clone]))
    said = answer.err + str(answer.said)
    undone = contents_of(snapshot(project.home)) == contents_of(snapshot(project.states["older"]))
    assert undone or (answer.code != 0 and "patches/.sm120-overlay" in said), answer


@pytest.mark.case("a fresh checkout is killed at any change", target="source", outcome="undone")
def test_a_fresh_checkout_cut_at_any_change_is_made_by_the_next_run(toy: Toy, tmp_path: Path) -> None:
    """What lies at its place is whole or nothing; beside it and in the cache nothing blocks the next run."""
    apply = partial(ask, "apply", "--into", tmp_path / "fresh", "--only", "toy", "--source", "git")
    assert apply().code == 0
    wanted, clone = snapshot(tmp_path / "fresh"), tmp_path / "fresh" / "toy"
    step = 0
    while True:
        for left in ("fresh", "cache"):
            shutil.rmtree(tmp_path / left)
        ended = run_failing(step, tmp_path, apply, (die, tear)[step % 2], early=True)
        assert not clone.exists() or git(clone, "fsck", "--strict", "--no-dangling") == ""
        assert apply().code == 0, step
        assert snapshot(tmp_path / "fresh") == wanted, step
        assert git(clone, "status", "--porcelain") == "", step
        if not ended.reached:
            break
        step += 2 if step < 30 else 5  # what the checkout target's own tests cut exhaustively
    assert step > 20
