"""No setting of git's, the user's or the repository's, changes what the tools write, or there is one clear refusal."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.queue.scenes import snapshot
from tests.queue.toy import git, git_bytes, write

from .conftest import Outcome
from .settings import EVERYTHING, NAMED, ONLY_GLOBAL
from .world import VERBS, World, checkout_round, set_config

HOOKS = ("reference-transaction", "post-checkout", "post-index-change", "pre-commit", "post-rewrite", "pre-auto-gc")
HOSTILE = "the user's git configuration is hostile"


def config_of(world: World) -> Path:
    """The user's own configuration."""
    return Path(world.env["HOME"], ".gitconfig")


def trapped(folder: Path, settings: list[str]) -> list[str]:
    """The settings, with the traps laid that they name."""
    loud = f"#!/bin/sh\ntouch '{folder}/ran'\nexit 1\n"
    hooks = [f"{place}/{hook}" for place in ("hooks", "template/hooks") for hook in HOOKS]
    write(folder, dict.fromkeys(("loud", *hooks), loud))
    for name in ("loud", *hooks):
        (folder / name).chmod(0o755)
    attributes = "* text eol=crlf working-tree-encoding=UTF-16 diff=odd filter=odd merge=odd\n"
    mailmap = "Somebody Else <else@example.org> <ann@example.org>\n"
    write(folder, {"attributes": attributes, "ignored": "*\n", "order": "*extra*\n*core*\n", "mailmap": mailmap})
    return [setting.replace("{tmp}", str(folder)) for setting in settings]


def check_round(world: World, clone: Path, calm: Outcome, folder: Path, verbs: Sequence[str] = VERBS) -> None:
    """A round is what it is in plain surroundings, and no trap sprang."""
    found = checkout_round(world, clone, verbs)
    assert {step: found[step] for step in found if found[step] != calm[step]} == {}
    assert not (folder / "ran").exists()


def _named(name: str) -> ParameterSet:
    marks = [
        pytest.mark.case(f"git's settings: {name}", target=kind, outcome="exact") for kind in ("checkout", "export")
    ]
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [_named(name) for name in NAMED])
def test_no_setting_of_the_user_changes_a_round(world: World, calm: Outcome, tmp_path: Path, name: str) -> None:
    set_config(config_of(world), trapped(tmp_path, NAMED[name]))
    check_round(world, world.clone(), calm, tmp_path, ("apply",))


@pytest.mark.case(HOSTILE, target="checkout", outcome="exact")
@pytest.mark.case(HOSTILE, target="export", outcome="exact")
@pytest.mark.parametrize("where", ["the user's", "the repository's"])
def test_all_settings_at_once_change_nothing(world: World, calm: Outcome, tmp_path: Path, where: str) -> None:
    clone, settings = world.clone(), trapped(tmp_path, EVERYTHING)
    if where == "the user's":
        set_config(config_of(world), settings)
    else:
        set_config(clone / ".git/config", [line for line in settings if not line.startswith(ONLY_GLOBAL)])
    check_round(world, clone, calm, tmp_path)


@pytest.mark.case(HOSTILE, target="source", outcome="exact")
@pytest.mark.parametrize("source", ["git", "pypi", "path"])
def test_a_fresh_checkout_is_the_same_under_all_settings(world: World, tmp_path: Path, source: str) -> None:
    wanted = str(world.toy.upstream()) if source == "path" else source
    answers = []
    for name in ("calm", "hostile"):
        answer = world.ask("apply", "--into", world.root / name, "--source", wanted, "--only", "toy")
        assert answer.code == 0, answer
        target = answer.targets["toy"]
        answers.append({**target, "path": "", "files": snapshot(Path(target["path"]))})
        shutil.rmtree(world.root / "cache", ignore_errors=True)
        set_config(config_of(world), trapped(tmp_path, EVERYTHING))
    assert answers[0] == answers[1]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("where", ["calm", "hostile"])
def test_a_dry_run_is_the_same_under_all_settings(world: World, tmp_path: Path, where: str) -> None:
    clone = world.clone()
    if where == "hostile":
        set_config(config_of(world), trapped(tmp_path, EVERYTHING))
    before = snapshot(clone, ())
    answer = world.ask("apply", clone, "--dry-run")
    assert (answer.code, answer.targets["toy"]["would_change"]) == (0, True), answer
    assert snapshot(clone, ()) == before


@pytest.mark.case("the repository keeps no reflogs", target="checkout", outcome="exact")
def test_the_way_back_is_known_where_no_reflogs_are_kept(world: World, calm: Outcome, tmp_path: Path) -> None:
    clone = world.clone()
    set_config(config_of(world), ["core.logAllRefUpdates=false"])
    set_config(clone / ".git/config", ["core.logAllRefUpdates=false"])
    shutil.rmtree(clone / ".git/logs")
    check_round(world, clone, calm, tmp_path)


def test_the_users_index_stands_while_ours_is_made_ready(world: World) -> None:
    """A split index rests on a second file: what we write must not take that away from the index that still counts."""
    clone = world.clone()
    git(clone, "update-index", "--split-index")
    set_config(config_of(world), ["splitIndex.sharedIndexExpire=now", "core.splitIndex=true"])
    before = {path.name for path in (clone / ".git").glob("sharedindex.*")}
    assert world.ask("apply", clone).code == 0
    assert before and before <= {path.name for path in (clone / ".git").glob("sharedindex.*")}


BROKEN = {
    "a syntax error": "[core\n\tabbrev",
    "a value that is none": "[core]\n\tabbrev = nonsense\n",
    "a number that is none": "[pack]\n\tthreads = many\n[core]\n\tcompression = very\n",
    "an include that goes in circles": "[include]\n\tpath = .gitconfig\n",
    "bytes": "\0\377\0[\n",
}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.case("git's configuration cannot be read", target="checkout", outcome="refused")
@pytest.mark.case("git's configuration cannot be read", target="export", outcome="refused")
def test_a_configuration_that_git_cannot_read_is_one_refusal(world: World, broken: str) -> None:
    clone = world.clone()
    config_of(world).write_bytes(BROKEN[broken].encode("latin-1"))
    before = snapshot(world.root, ("cache", "__pycache__"))
    for verb in ("apply", "status", "export"):
        answer = world.ask(verb, clone)
        assert answer.code in (1, 4), (verb, answer)
        said = answer.said["error"]
        assert "Traceback" not in answer.err and said["todo"]
        assert (
            ("config" in said["what"] or "including" in said["what"])
            and "GitPython" not in said["what"]
            and "\n" not in said["what"]
        ), said
    assert snapshot(world.root, ("cache", "__pycache__")) == before


STRANGE = {
    "it is bare": ("core.bare=true",),
    "its files lie elsewhere": ("core.worktree={tmp}",),
    "it is of a later form": ("core.repositoryFormatVersion=99",),
    "it has an extension that no git knows": ("core.repositoryFormatVersion=1", "extensions.fromTheFuture=true"),
}


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.case("the repository says that it is another one", target="checkout", outcome="refused")
def test_a_repository_that_says_it_is_another_is_refused(world: World, tmp_path: Path, strange: str) -> None:
    clone = world.clone()
    (clone / ".git/config").chmod(0o644)
    for setting in trapped(tmp_path, list(STRANGE[strange])):
        key, _, value = setting.partition("=")
        git_bytes(world.root, "config", "--file", str(clone / ".git/config"), key, value)
    before = snapshot(clone, ())
    for verb in ("apply", "status", "export"):
        answer = world.ask(verb, clone)
        assert answer.code == 1, (verb, answer)
        assert str(clone) in answer.said["error"]["what"], answer
        assert "Traceback" not in answer.err
    assert snapshot(clone, ()) == before


def test_a_worktrees_own_configuration_changes_nothing(world: World, calm: Outcome, tmp_path: Path) -> None:
    clone = world.clone()
    git(clone, "config", "extensions.worktreeConfig", "true")
    (clone / ".git/config.worktree").touch()
    set_config(clone / ".git/config.worktree", trapped(tmp_path, NAMED["attributes for every file"]))
    set_config(clone / ".git/config.worktree", trapped(tmp_path, NAMED["diffs have no prefix"]))
    check_round(world, clone, calm, tmp_path)


def test_replaced_objects_grafts_and_notes_change_nothing(world: World, calm: Outcome, tmp_path: Path) -> None:
    clone = world.clone()
    pin = world.toy.pin().commit
    git(clone, "notes", "add", "-m", "a note", pin)
    mine = git(clone, "commit-tree", "-m", "another", "-p", pin, f"{pin}^{{tree}}").strip()
    git(clone, "replace", pin, mine, env={"GIT_NO_REPLACE_OBJECTS": "1"})
    write(clone, {".git/info/grafts": f"{pin} {mine}\n"})
    wanted = calm["applied"]["files"]
    assert world.ask("apply", clone).code == 0
    assert snapshot(clone) == wanted
    assert git_bytes(clone, "--no-replace-objects", "rev-parse", "sm120/v1") in calm["applied"]["refs"].replace(
        b" ", b"\n"
    )
    assert world.ask("verify", clone).code == 0
    assert world.ask("export", clone, "--check").code == 0
    assert world.ask("apply", clone, "--reverse").code == 0
    assert snapshot(clone) == calm["reversed"]["files"]
