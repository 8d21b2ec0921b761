"""Refusals that few users meet: a machine that lacks something, two lines at once, a branch moved after a cut."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sm120_overlay.errors import Missing
from sm120_overlay.queue import git as gateway
from sm120_overlay.queue import home, proof
from sm120_overlay.queue.git import Repository, attempt

from .cuts import cut_at
from .scenes import ask, snapshot
from .toy import HOOK, WHO, Toy, commit, git, write


def with_second_line(toy: Toy) -> str:
    """A line v2, whose gear is one commit further and whose toy is the same; gear's commit."""
    upstream = toy.upstream("gear")
    write(upstream, {"gear/__init__.py": "WHEELS = 4\n"})
    git(upstream, "commit", "-q", "-am", "next release")
    second = git(upstream, "rev-parse", "HEAD").strip()
    text = toy.home.pins.read_text()
    first = text[text.index("[line.v1.gear]") :]
    gear = first.replace("line.v1", "line.v2").replace(toy.pin("gear").commit, second)
    toy.home.pins.write_text(f"{text}\n{gear.replace('1.0', '2.0')}")
    write(toy.home.root, {"patches/v2/gear/series": ""})
    return second


def error(*arguments: object) -> tuple[int, str]:
    answer = ask(*arguments)
    assert answer.said["error"]["todo"]
    return answer.code, str(answer.said["error"]["what"])


def test_targets_of_two_lines_are_not_mixed(toy: Toy) -> None:
    second = with_second_line(toy)
    old, new = toy.clone("toy"), toy.clone("gear")
    git(new, "checkout", "-q", second)
    before = snapshot(toy.root, skip=())
    for verb in ("apply", "status", "verify", "export"):
        code, what = error(verb, old, new)
        assert (code, "different lines: v1, v2" in what) == (2, True), verb
    assert snapshot(toy.root, skip=()) == before


def test_checkouts_that_only_leaves_out_are_no_silent_success(toy: Toy) -> None:
    clone = toy.clone()
    for verb in ("apply", "status", "verify"):
        assert error(verb, clone, "--only", "gear") == (2, "None of the checkouts is gear.")


def test_an_overlay_file_is_one_file_for_all_lines(toy: Toy) -> None:
    with_second_line(toy)
    folder = toy.home.root / "patches" / "v2" / "toy"
    shutil.copytree(toy.home.patches("v1", "toy"), folder)
    clone = toy.clone()
    git(clone, "checkout", "-q", "-b", "sm120/v1")
    commit(clone, "bring-hook", {HOOK: "HOOK = 3\n"}, Overlay=HOOK)
    before = snapshot(toy.home.root)
    code, what = error("export", clone)
    assert code == 1
    assert f"{HOOK}: line v2 brings it as blob" in what
    assert snapshot(toy.home.root) == before


def test_a_branch_that_was_moved_after_a_cut_is_left_alone(toy: Toy) -> None:
    clone = toy.clone()
    assert ask("apply", clone, "--through", "right-answer").code == 0
    steps = 0
    while (
        cut_at(steps, clone, lambda: ask("apply", clone)) and not (clone / ".git/sm120-overlay/journal.json").exists()
    ):
        steps += 1
    assert (clone / ".git/sm120-overlay/journal.json").exists()
    git(clone, "update-ref", "refs/heads/sm120/v1", toy.pin().commit)
    before = snapshot(clone, skip=())
    ours = {".git/index.lock", ".git/sm120-overlay/lock-mark"}  # a dead run's own lock is taken away first
    code, what = error("apply", clone)
    assert code == 1
    assert f"sm120/v1 was moved to {toy.pin().commit} after a run was cut" in what
    assert before.keys() - snapshot(clone, skip=()).keys() <= ours
    assert snapshot(clone, skip=()).items() <= before.items()


def test_a_module_that_is_not_installed_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'unidiff'", name="unidiff")

    monkeypatch.setattr("sm120_overlay.cli.import_module", lacking)
    answer = ask("lint")
    assert (answer.code, answer.said["error"]["what"]) == (
        4,
        f"The module unidiff is not installed for {sys.executable}.",
    )
    assert "pip install -e" in answer.said["error"]["todo"] or ".venv/bin/python" in answer.said["error"]["todo"]


WAITING = {
    "am": "git am -q ../mine.patch",
    "rebase": "git rebase -q main theirs",
    "merge": "git merge -q theirs",
    "cherry-pick": "git cherry-pick theirs",
    "revert": "git revert --no-edit HEAD~1",
    "bisect": "git bisect start HEAD HEAD~2",
}


@pytest.mark.case(
    "git waits for the user there", target="checkout", outcome="refused",
    source="Electroid/SportPaper#35, lynx-family/habitat#56",
)  # fmt: skip
@pytest.mark.parametrize("name", WAITING)
def test_an_operation_of_gits_own_is_named(toy: Toy, name: str) -> None:
    clone = toy.clone()
    git(clone, "checkout", "-q", "-b", "theirs")
    commit(clone, "theirs", {"README.md": "theirs\n"})
    git(clone, "format-patch", "-q", "-1", "--output", "../mine.patch")
    git(clone, "checkout", "-q", "main")
    for text in ("mine\n", "mine again\n"):
        commit(clone, "mine", {"README.md": text})
    subprocess.run(["sh", "-c", WAITING[name]], cwd=clone, env=os.environ | WHO, capture_output=True, check=False)
    before = snapshot(clone, skip=())
    code, what = error("apply", clone)
    assert code == 1
    assert f" {name} of yours is unfinished" in what
    assert snapshot(clone, skip=()) == before


@pytest.mark.case("another day, time zone and setting of git's", target="export", outcome="exact",
                  source="CadixDev/gitpatcher#4, pulumi/ci-mgmt#2469")  # fmt: skip
def test_an_export_says_the_same_on_any_day(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = toy.clone()
    assert ask("apply", clone).code == 0
    before = snapshot(toy.home.root)
    (toy.root / "gitconfig").write_text(
        "[core]\nabbrev = 40\n[format]\nsignature = x\nnumbered = true\n[log]\ndate = iso\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(toy.root / "gitconfig"))
    monkeypatch.setenv("HOME", str(toy.root))
    (toy.root / ".gitconfig").write_text((toy.root / "gitconfig").read_text())
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2031-01-01T00:00:00+0000")
    answer = ask("export", clone)
    assert (answer.code, answer.targets["toy"]["changed"]) == (0, [])
    assert snapshot(toy.home.root) == before


class Broken(ModuleType):
    """GitPython where there is no git: it fails at the import."""

    def __getattr__(self, name: str) -> object:
        raise ImportError("Bad git executable.")


@pytest.mark.parametrize(
    ("module", "sentence"),
    [(Broken("git"), "git is not on PATH."), (None, "GitPython cannot be imported (")],
    ids=["no git", "no GitPython"],
)
def test_without_git_nothing_is_tried(
    toy: Toy, module: ModuleType | None, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = toy.clone()
    gateway._library.cache_clear()
    monkeypatch.setitem(sys.modules, "git", module)
    code, what = error("status", clone)
    assert (code, what[: len(sentence)]) == (4, sentence)


def test_git_is_never_asked_about_another_folder_than_the_one_that_was_named(toy: Toy) -> None:
    with pytest.raises(Missing, match="nowhere does not exist"):
        attempt(Repository(toy.root / "nowhere"), "status")


def test_without_its_own_data_the_package_takes_nobody_elses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(home, "PACKAGE", tmp_path / "lib" / "sm120_overlay")
    with pytest.raises(Missing, match=r"No pins.toml beside the package in .*sm120_overlay"):
        home.find_home()


def test_without_pytest_nothing_is_called_proved(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "find_spec", lambda name: None)
    assert error("verify", "--red-green") == (4, f"pytest is not installed for {sys.executable}.")


def test_a_file_system_without_locks_is_refused(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = toy.clone()

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("sm120_overlay.queue.transaction.fcntl.flock", refuse)
    before = snapshot(clone, skip=())
    code, what = error("apply", clone)
    assert (code, "does not let it be locked (No locks available)" in what) == (1, True)
    assert snapshot(clone, skip=()) == before


def test_what_runs_and_is_no_interpreter_is_refused_in_a_line(toy: Toy) -> None:
    write(toy.root, {"odd": "#!/bin/sh\necho $1 >&2\nexit 3\n"})
    (toy.root / "odd").chmod(0o755)
    code, what = error("status", "--installed", toy.root / "odd")
    assert (code, what.endswith("it does not run (exit code 3).")) == (4, True), what


def test_a_part_of_the_line_that_is_not_there_is_said(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(toy.root)
    assert ask("apply", "--into", "fresh", "--only", "gear", "--source", toy.upstream("gear")).code == 0
    answer = ask("verify", "--into", "fresh")
    assert answer.code == 0
    assert "fresh/toy is not there: nothing is said of it" in answer.err
