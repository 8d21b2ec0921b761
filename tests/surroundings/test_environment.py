"""Variables, locales, homes, umasks, open files: the process's surroundings change nothing, or are one refusal."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay.queue.git import ALONE, ENVIRONMENT
from tests.queue.scenes import Venv, snapshot
from tests.queue.toy import write

from .conftest import Outcome
from .settings import VARIABLES
from .world import World, checkout_round, installed_round

VARIABLE = "every GIT_* variable is set to nonsense"
HOMELESS = "there is no home folder"
DAMAGED = "git cannot be run"


def changed(world: World, env: Mapping[str, str | None], **options: Any) -> World:
    """The world with other variables (None: not set), and other options of its processes."""
    kept = {name: value for name, value in world.env.items() if name not in env}
    return replace(world, env=kept | {k: v for k, v in env.items() if v is not None}, options=options)


def check_same(found: Outcome, calm: Outcome) -> None:
    """Every step of a round left what it leaves in plain surroundings."""
    assert {step: found[step] for step in found if found[step] != calm[step]} == {}


NONSENSE: dict[str, dict[str, str | None]] = {
    "words": dict.fromkeys(VARIABLES, "nonsense"),
    "numbers": dict.fromkeys(VARIABLES, "1"),
    "nothing": dict.fromkeys(VARIABLES, ""),
    "settings": {
        "GIT_CONFIG_COUNT": "2", "GIT_CONFIG_KEY_0": "core.hooksPath", "GIT_CONFIG_VALUE_0": "/nonexistent",
        "GIT_CONFIG_KEY_1": "diff.noprefix", "GIT_CONFIG_VALUE_1": "true", "GIT_CONFIG_GLOBAL": "/nonexistent",
        "GIT_CONFIG_PARAMETERS": "'core.bare'='true'", "GIT_DEFAULT_HASH": "sha256", "GIT_ADVICE": "0",
    },
}  # fmt: skip


@pytest.mark.case(VARIABLE, target="checkout", outcome="exact")
@pytest.mark.case(VARIABLE, target="export", outcome="exact")
@pytest.mark.parametrize("kind", NONSENSE)
def test_no_variable_of_gits_changes_a_round(world: World, calm: Outcome, kind: str) -> None:
    check_same(checkout_round(changed(world, NONSENSE[kind]), world.clone(), ("apply", "verify")), calm)


@pytest.mark.case(VARIABLE, target="installed", outcome="exact")
def test_no_variable_of_gits_changes_an_installed_package(world: World, venv: Venv, calm_installed: Outcome) -> None:
    check_same(installed_round(changed(world, NONSENSE["words"]), venv), calm_installed)


@pytest.mark.case(VARIABLE, target="source", outcome="exact")
def test_no_variable_of_gits_changes_a_fresh_checkout(world: World, calm: Outcome) -> None:
    hostile = changed(world, NONSENSE["words"])
    answer = hostile.ask("apply", "--into", world.root / "fresh", "--source", "git", "--only", "toy")
    assert answer.code == 0, answer
    assert snapshot(Path(answer.targets["toy"]["path"])) == calm["applied"]["files"]


HEARING = """#!/bin/sh
env | grep ^GIT_ | cut -d= -f1 >> "{log}"
exec "{git}" "$@"
"""


def test_git_hears_of_no_variable_but_those_that_are_set_for_it(world: World, tmp_path: Path) -> None:
    """Also of those that no git knows yet."""
    git = {"git": HEARING.format(git=shutil.which("git"), log=tmp_path / "log")}
    write(tmp_path / "bin", git)
    (tmp_path / "bin/git").chmod(0o755)
    path = {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{world.env['PATH']}", "GIT_FROM_THE_FUTURE": "1"}
    answer = changed(world, NONSENSE["words"] | path).ask("apply", world.clone())
    assert answer.code == 0, answer
    heard = set((tmp_path / "log").read_text().split())
    assert heard == {*ENVIRONMENT, *ALONE, "GIT_CEILING_DIRECTORIES", "GIT_INDEX_FILE"}


LOCALES: dict[str, dict[str, str | None]] = {
    "LANG=C": {"LANG": "C"},
    "LC_ALL=POSIX": {"LC_ALL": "POSIX"},
    "a locale that is not installed": {"LC_ALL": "xx_XX.ISO-8859-1", "LANGUAGE": "xx:de", "LC_MESSAGES": "de_DE.UTF-8"},
}
ASCII: dict[str, dict[str, str | None]] = {
    name: {"LANG": None, "LC_ALL": name, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"} for name in ("C", "POSIX")
}


@pytest.mark.case("LANG and LC_ALL are C or POSIX", target="checkout", outcome="exact")
@pytest.mark.case("LANG and LC_ALL are C or POSIX", target="export", outcome="exact")
@pytest.mark.parametrize("locale", LOCALES)
def test_no_locale_changes_a_round_nor_what_is_said_of_it(world: World, calm: Outcome, locale: str) -> None:
    hostile, clone = changed(world, LOCALES[locale]), world.clone()
    check_same(checkout_round(hostile, clone, ("apply", "verify")), calm)
    check_said(hostile, clone)


def check_said(hostile: World, clone: Path) -> None:
    """What people read of a run holds names in other alphabets."""
    for verb, target, code in (("status", clone, 1), ("apply", clone, 0), ("verify", hostile.root / "kein-ä", 1)):
        done = subprocess.run([*hostile.tool(verb), str(target)], env=hostile.env, capture_output=True, check=False)
        assert b"Traceback" not in done.stderr, done
        assert done.returncode == code and (done.stdout or done.stderr), done


@pytest.mark.parametrize("encoding", ["ascii", "latin-1:strict"])
def test_an_output_that_knows_no_letters_but_ascii_is_no_traceback(world: World, encoding: str) -> None:
    check_said(changed(world, {"PYTHONIOENCODING": encoding}), world.clone("clone-日"))


def check_same_or_refused(found: World, named: tuple[object, ...], looked_at: Path) -> None:
    """Every verb is done, or is one clear refusal that changed nothing."""
    for verb, *more in (("apply",), ("verify",), ("apply", "--reverse")):
        before = snapshot(looked_at)
        answer = found.ask(verb, *named, *more)
        assert "Traceback" not in answer.err, answer
        if answer.code:
            assert answer.code == 4 and answer.said["error"]["todo"], answer
            assert snapshot(looked_at) == before


@pytest.mark.case("Python's file names are not UTF-8", target="checkout", outcome="refused")
@pytest.mark.parametrize("locale", ASCII)
def test_file_names_that_are_not_utf8_are_served_or_refused(world: World, locale: str) -> None:
    hostile, clone = changed(world, ASCII[locale]), world.clone()
    check_same_or_refused(hostile, (clone,), clone)
    before = snapshot(world.toy.home.root)
    assert hostile.ask("export", clone, "--check").code in (0, 4)
    assert snapshot(world.toy.home.root) == before


@pytest.mark.case("Python's file names are not UTF-8", target="installed", outcome="refused")
def test_file_names_that_are_not_utf8_are_served_or_refused_in_a_package(world: World, venv: Venv) -> None:
    named = ("--installed", venv.python, "--only", "toy")
    check_same_or_refused(changed(world, ASCII["C"]), named, venv.site)


@pytest.mark.case("LANG and LC_ALL are C or POSIX", target="installed", outcome="exact")
def test_no_locale_changes_an_installed_package(world: World, venv: Venv, calm_installed: Outcome) -> None:
    check_same(installed_round(changed(world, LOCALES["LC_ALL=POSIX"]), venv), calm_installed)


@pytest.mark.case("LANG and LC_ALL are C or POSIX", target="source", outcome="exact")
def test_no_locale_changes_a_fresh_checkout(world: World, calm: Outcome) -> None:
    hostile = changed(world, LOCALES["LC_ALL=POSIX"])
    answer = hostile.ask("apply", "--into", world.root / "frisch-é", "--source", "pypi", "--only", "toy")
    assert answer.code == 0, answer
    assert answer.targets["toy"]["digest"] == calm["apply"]["toy"][0]


HOMES: dict[str, dict[str, str | None]] = {
    "no HOME and no XDG": {"HOME": None, "XDG_CONFIG_HOME": None, "XDG_CACHE_HOME": None, "XDG_RUNTIME_DIR": None},
    "a HOME that does not exist": {"HOME": "/nonexistent/home", "XDG_CONFIG_HOME": "/nonexistent/config"},
    "a HOME that is a file": {"HOME": os.devnull, "XDG_CONFIG_HOME": os.devnull},
    "a temporary folder that does not exist": {"TMPDIR": "/nonexistent/tmp"},
    "other programs' variables": {
        "TZ": "Pacific/Chatham", "PAGER": "false", "EDITOR": "false", "VISUAL": "false", "LESS": "+G", "TERM": "none",
        "EMAIL": "else@example.org", "SSH_ASKPASS": "false", "POSIXLY_CORRECT": "1", "CDPATH": "/", "COLUMNS": "1",
        "BASH_ENV": "/nonexistent", "ENV": "/nonexistent", "LINES": "0", "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1",
        "http_proxy": "http://127.0.0.1:1", "ALL_PROXY": "http://127.0.0.1:1", "NO_COLOR": "",
    },
}  # fmt: skip


@pytest.mark.case(HOMELESS, target="checkout", outcome="exact")
@pytest.mark.case(HOMELESS, target="export", outcome="exact")
@pytest.mark.parametrize("home", HOMES)
def test_no_home_and_no_other_variable_changes_a_round(world: World, calm: Outcome, home: str) -> None:
    check_same(checkout_round(changed(world, HOMES[home]), world.clone(), ("apply", "verify")), calm)


@pytest.mark.case(HOMELESS, target="installed", outcome="exact")
def test_no_home_is_needed_for_an_installed_package(world: World, venv: Venv, calm_installed: Outcome) -> None:
    check_same(installed_round(changed(world, HOMES["a HOME that does not exist"]), venv), calm_installed)


@pytest.mark.case("the cache cannot be written", target="source", outcome="refused")
@pytest.mark.parametrize("source", ["git", "pypi"])
def test_a_cache_that_cannot_be_made_is_one_refusal(world: World, source: str) -> None:
    for place in ({"SM120_OVERLAY_CACHE": f"{os.devnull}/cache"}, {"HOME": os.devnull, "SM120_OVERLAY_CACHE": None}):
        into = world.root / "fresh"
        answer = changed(world, place).ask("apply", "--into", into, "--source", source, "--only", "toy")
        assert answer.code == 4, answer
        assert os.devnull in answer.said["error"]["what"] and "Traceback" not in answer.err
        assert not into.exists() or not list(into.iterdir())


@pytest.mark.parametrize("umask", [0o077, 0o000, 0o777])
def test_a_umask_changes_no_byte_and_no_entry(world: World, calm: Outcome, umask: int) -> None:
    if umask == 0o777 and os.geteuid() != 0:
        pytest.skip("only root can read what this umask makes")
    found = checkout_round(changed(world, {}, umask=umask), world.clone(), ("apply", "verify"))
    for name in ("before", "applied", "reversed"):
        bare = [{path: about[1] for path, about in outcome[name]["files"].items()} for outcome in (found, calm)]
        assert bare[0] == bare[1]
        assert (found[name]["index"], found[name]["refs"]) == (calm[name]["index"], calm[name]["refs"])
    assert (found["apply"], found["exported"]) == (calm["apply"], calm["exported"])


def through(world: World, script: str, *words: str) -> World:
    """The world in which a shell makes the surroundings and then becomes the tool."""
    return replace(world, python=("sh", "-c", f'{script}; exec "$@"', *(words or ("sh",)), sys.executable))


SHELLS = {
    "in a folder that is deleted": 'mkdir -p "$0" && cd "$0" && rmdir "$0"',
    "with standard input closed": "exec <&-",
    "with standard error closed": "exec 2>&-",
    "with input and error closed": "exec <&- 2>&-",
    "with an error stream that is full": "exec 2>/dev/full",
    "with few open files": "ulimit -n 32",
}


@pytest.mark.case("standard streams or the working folder are gone", target="checkout", outcome="exact")
@pytest.mark.parametrize("how", SHELLS)
def test_a_round_is_the_same_however_the_process_was_started(
    world: World, calm: Outcome, tmp_path: Path, how: str
) -> None:
    started = through(world, SHELLS[how], str(tmp_path / "gone"))
    check_same(checkout_round(started, world.clone(), ("apply", "verify")), calm)


@pytest.mark.parametrize("how", ["exec >&-", "exec <&- >&- 2>&-"])
def test_the_work_is_done_where_nobody_can_hear_of_it(world: World, calm: Outcome, how: str) -> None:
    clone = world.clone()
    silent = through(world, how)
    assert silent.ask("apply", clone).code == 0
    assert snapshot(clone) == calm["applied"]["files"]
    assert world.ask("verify", clone).code == 0
    assert silent.ask("apply", clone, "--reverse").code == 0
    assert snapshot(clone) == calm["reversed"]["files"]


GITS: dict[str, str | None] = {
    "none": None,
    "one that fails": "#!/bin/sh\nexit 3\n",
    "one that crashes": "#!/bin/sh\nkill -SEGV $$\n",
    "one that says nothing": "#!/bin/sh\nexit 0\n",
    "one that is no program": "no program\n",
}


@pytest.mark.case(DAMAGED, target="checkout", outcome="refused")
@pytest.mark.case(DAMAGED, target="export", outcome="refused")
@pytest.mark.parametrize("kind", GITS)
def test_a_git_that_does_not_work_is_one_refusal(world: World, tmp_path: Path, kind: str) -> None:
    clone, script = world.clone(), GITS[kind]
    (tmp_path / "bin").mkdir()
    if script is not None:
        write(tmp_path / "bin", {"git": script})
        (tmp_path / "bin/git").chmod(0o755)
    (tmp_path / "bin/sh").symlink_to(shutil.which("sh") or "/bin/sh")
    before = snapshot(world.root, ("__pycache__",))
    for verb in ("apply", "status", "export"):
        answer = changed(world, {"PATH": str(tmp_path / "bin")}).ask(verb, clone)
        assert answer.code in (1, 4), (verb, answer)
        assert "Traceback" not in answer.err and answer.said["error"]["todo"]
        what = answer.said["error"]["what"]
        assert "git is not on PATH" in what if script is None else "git" in what and "GitPython" not in what, what
        assert "\n" not in what
    assert snapshot(world.root, ("__pycache__",)) == before


@pytest.mark.case("there is no git", target="installed", outcome="exact")
def test_an_installed_package_needs_no_git(world: World, venv: Venv, calm_installed: Outcome, tmp_path: Path) -> None:
    check_same(installed_round(changed(world, {"PATH": str(tmp_path)}), venv), calm_installed)
