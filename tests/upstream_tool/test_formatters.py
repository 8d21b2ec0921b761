"""Upstream's own formatters: in its versions, on the touched files, said where they did not run."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay.cache import cache_dir
from sm120_overlay.queue.formatters import Hook

from ..queue.toy import Toy, git, write
from ..rebase.releases import CORE
from .conftest import go_on
from .said import answer, desk, refused, upstream

CONFIG = """\
exclude: ^docs/
repos:
  - repo: https://github.com/PyCQA/isort
    rev: 7.0.0
    hooks:
      - id: isort
        args: [--profile=black]
        exclude: |
          (?x)^(
          .*/dos\\.py$
          )$
  - repo: https://github.com/codespell-project/codespell
    rev: v2.4.1
    hooks: [{ id: codespell }]
  - repo: https://github.com/pre-commit/mirrors-clang-format
    rev: v20.1.7
    hooks: [{ id: clang-format, types_or: [c++, cuda] }]
  - repo: local
    hooks: [{ id: our-own, entry: make check, language: system }]
"""
# What stands in for a formatter: it adds a line to whatever has the patch's text.
ADDS = """\
import sys
for name in sys.argv[1:]:
    if not name.startswith("-"):
        text = open(name).read()
        open(name, "w").write(text.replace("return 42\\n", "return 42  # formatted\\n"))
"""
SPOILS_ALL = ADDS.replace("text.replace(", "'# mine\\n' + text.replace(")
COMPLAINS = "import sys\nprint('teh ==> the')\nsys.exit(65)\n"


def install(name: str, version: str, module: str, text: str) -> None:
    """A formatter as if it had been installed before."""
    write(cache_dir("formatters", f"{name}-{version}-{sys.implementation.cache_tag}"), {f"{module}.py": text})


@pytest.fixture
def configured(clone: Path, toy: Toy) -> Path:
    """Upstream with a configuration of pre-commit."""
    go_on(toy, clone, {".pre-commit-config.yaml": CONFIG}, "Hooks")
    return clone


def test_what_they_change_is_shown_and_becomes_part_of_the_commit(
    configured: Path, toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    install("isort", "7.0.0", "isort", ADDS)
    install("codespell", "2.4.1", "codespell_lib", "")
    said = answer(capsys, "--source", configured, "--unproved")
    assert [(row["hook"], row["version"], row["ran"]) for row in said["formatters"]] == [
        ("isort", "7.0.0", True),
        ("codespell", "2.4.1", True),
    ]
    assert "+    return 42  # formatted" in said["reformatted"]
    assert "return 42  # formatted" in git(desk(toy), "show", f"HEAD:{CORE}")
    assert git(desk(toy), "status", "--porcelain") == ""
    assert upstream("--source", configured, "--unproved") == 0
    assert "changed what follows" in capsys.readouterr().out


def test_what_they_would_change_without_the_patch_too_is_left_to_upstream(configured: Path, toy: Toy) -> None:
    install("isort", "7.0.0", "isort", SPOILS_ALL)
    install("codespell", "2.4.1", "codespell_lib", "")
    assert upstream("--source", configured, "--unproved") == 0
    assert "# formatted" not in (desk(toy) / CORE).read_text()


def test_a_complaint_is_said_and_ticks_no_box(configured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install("isort", "7.0.0", "isort", "")
    install("codespell", "2.4.1", "codespell_lib", COMPLAINS)
    assert upstream("--source", configured, "--unproved") == 0
    said = capsys.readouterr().out
    assert "codespell 2.4.1: complains: teh ==> the" in said
    assert "isort 7.0.0: ran" in said


def test_one_that_cannot_be_installed_is_named(configured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert upstream("--source", configured, "--unproved") == 0
    assert "isort 7.0.0: NOT run: isort 7.0.0 could not be installed" in capsys.readouterr().out


def test_a_tree_without_a_configuration_or_with_a_broken_one_has_none(
    clone: Path, toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    assert upstream("--source", clone, "--unproved") == 0
    assert "not run (none is configured there" in capsys.readouterr().out
    go_on(toy, clone, {".pre-commit-config.yaml": "a: [b\n"}, "Broken")
    assert answer(capsys, "--source", clone, "--unproved")["formatters"] == []


def test_they_are_left_out_on_request(configured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert upstream("--source", configured, "--unproved", "--no-format") == 0
    assert "not run (--no-format)" in capsys.readouterr().out


def test_without_pyyaml_it_says_so(
    configured: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name == "yaml":
            raise ImportError(name)
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "PyYAML is not installed" in refused(capsys, 4, "--source", configured, "--unproved")


@pytest.mark.parametrize(
    ("hook", "path", "taken"),
    [
        (Hook("isort", "1", (), "", ""), "a.py", True),
        (Hook("isort", "1", (), "", ""), "a.cu", False),
        (Hook("isort", "1", (), "^python/", ""), "test/a.py", False),
        (Hook("isort", "1", (), "", "^test/"), "test/a.py", False),
        (Hook("clang-format", "1", (), "", ""), "csrc/a.cuh", True),
        (Hook("make-coffee", "1", (), "", ""), "a.py", False),
    ],
)
def test_a_hook_takes_the_paths_that_it_does_under_pre_commit(hook: Hook, path: str, taken: bool) -> None:
    assert hook.takes(path) is taken
