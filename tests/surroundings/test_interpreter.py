"""However Python itself is started, and whatever PYTHON* variables say: the same, or one refusal."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.queue.scenes import Venv, snapshot
from tests.queue.toy import write

from .conftest import Outcome
from .test_environment import changed, check_same
from .world import World, checkout_round, installed_round

FLAGS = "Python runs with -I, -P, -O or -W error"
FLAGGED = {
    "-I": ("-I",),
    "-P": ("-P",),
    "-OO -B -s -E": ("-OO", "-B", "-s", "-E"),
    "-W error -X dev": ("-W", "error", "-X", "dev"),
}
SHADOWS = "PYTHONPATH holds modules named as Python's own"


def flagged(world: World, *flags: str) -> World:
    """The world with an interpreter that gets these flags."""
    if "-P" in flags and sys.version_info < (3, 11):
        pytest.skip("this Python knows no -P")
    return replace(world, python=(sys.executable, *flags))


@pytest.mark.case(FLAGS, target="checkout", outcome="exact")
@pytest.mark.case(FLAGS, target="export", outcome="exact")
@pytest.mark.parametrize("flags", FLAGGED)
def test_no_flag_of_python_changes_a_round(world: World, calm: Outcome, flags: str) -> None:
    check_same(checkout_round(flagged(world, *FLAGGED[flags]), world.clone(), ("apply", "verify")), calm)


@pytest.mark.case(FLAGS, target="installed", outcome="exact")
@pytest.mark.parametrize("flags", ["-I", "-P", "-W error -X dev"])
def test_no_flag_of_python_changes_an_installed_package(
    world: World, venv: Venv, calm_installed: Outcome, flags: str
) -> None:
    check_same(installed_round(flagged(world, *FLAGGED[flags]), venv), calm_installed)


SET = {
    "PYTHONSAFEPATH": {"PYTHONSAFEPATH": "1"},
    "all at once": {
        "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "error", "PYTHONOPTIMIZE": "2",
        "PYTHONHASHSEED": "1", "PYTHONNOUSERSITE": "1", "PYTHONUNBUFFERED": "1", "PYTHONDEVMODE": "1",
        "PYTHONSTARTUP": "/nonexistent", "PYTHONBREAKPOINT": "nonsense", "PYTHONFAULTHANDLER": "1",
        "PYTHONINTMAXSTRDIGITS": "0",
    },
}  # fmt: skip


@pytest.mark.case("PYTHON* variables are set", target="checkout", outcome="exact")
@pytest.mark.parametrize("what", SET)
def test_no_variable_of_pythons_changes_a_round(world: World, calm: Outcome, what: str) -> None:
    check_same(checkout_round(changed(world, SET[what]), world.clone(), ("apply", "verify")), calm)


@pytest.mark.case("PYTHON* variables are set", target="installed", outcome="exact")
def test_no_variable_of_pythons_changes_an_installed_package(world: World, venv: Venv, calm_installed: Outcome) -> None:
    check_same(installed_round(changed(world, SET["all at once"]), venv), calm_installed)


def shadowed(world: World, folder: Path, *names: str) -> World:
    """The world with modules of these names first on PYTHONPATH, which end whoever imports them."""
    write(folder, {f"{name}.py": f"raise SystemExit('{name}.py was imported')\n" for name in names})
    return changed(world, {"PYTHONPATH": f"{folder}:{world.env.get('PYTHONPATH', '')}"})


STANDARD = ("bisect", "random", "tempfile", "json", "subprocess", "string", "queue", "select", "logging")


@pytest.mark.case(SHADOWS, target="checkout", outcome="exact")
def test_a_module_of_the_users_that_is_named_as_one_of_pythons_own_is_not_imported(
    world: World, calm: Outcome, tmp_path: Path
) -> None:
    """Less what Python itself imports while it starts (an editable install's .pth does): no tool is there yet."""
    started = subprocess.run([sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, check=True)
    names = [name for name in STANDARD if name not in started.stdout.decode().split()]
    check_same(checkout_round(shadowed(world, tmp_path, *names), world.clone(), ("apply", "verify")), calm)


@pytest.mark.case("PYTHONPATH holds another git.py", target="checkout", outcome="refused")
@pytest.mark.parametrize(
    "text", ["", "Git = None\n", "raise ImportError('mine')\n", "import none_such\n", "not Python\n"]
)
def test_another_module_named_git_is_one_refusal(world: World, tmp_path: Path, text: str) -> None:
    clone = world.clone()
    write(tmp_path / "mine", {"git.py": text})
    hostile = changed(world, {"PYTHONPATH": str(tmp_path / "mine")})
    before = snapshot(clone, ())
    for verb in ("apply", "status", "export"):
        answer = hostile.ask(verb, clone)
        assert answer.code == 4 and "Traceback" not in answer.err, answer
        assert str(tmp_path / "mine/git.py") in answer.said["error"]["what"], answer
    assert snapshot(clone, ()) == before


@pytest.mark.case("GitPython is not installed", target="checkout", outcome="refused")
def test_without_site_packages_the_missing_module_is_named(world: World) -> None:
    clone = world.clone()
    before = snapshot(clone, ())
    answer = flagged(world, "-S").ask("apply", clone)
    assert answer.code == 4 and "Traceback" not in answer.err, answer
    assert "GitPython" in answer.said["error"]["what"] or "not installed" in answer.said["error"]["what"]
    assert snapshot(clone, ()) == before


def test_a_folder_of_the_users_with_modules_named_as_pythons_own_is_not_looked_into(
    world: World, calm: Outcome, tmp_path: Path
) -> None:
    """Neither the working folder nor the target is a place that modules come from."""
    write(tmp_path / "mine", {f"{name}.py": "raise SystemExit('imported')\n" for name in (*STANDARD, "git", "pip")})
    found = replace(world, options={"cwd": tmp_path / "mine"})
    check_same(checkout_round(found, world.clone(), ("apply", "verify")), calm)
