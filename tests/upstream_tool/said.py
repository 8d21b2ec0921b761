"""Calls of the verb in this process, and what they answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay.cli import main

from ..queue.toy import Toy


def upstream(*arguments: str | Path, slug: str = "right-answer") -> int:
    """The exit code of `upstream SLUG ARGUMENTS`."""
    return main(["upstream", slug, *map(str, arguments)])


def answer(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> dict[str, Any]:
    """The JSON of a call, which exits as expected."""
    capsys.readouterr()
    assert upstream(*arguments, "--json") == code
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert said["ok"] == (code == 0)
    return said


def refused(capsys: pytest.CaptureFixture[str], code: int, *arguments: str | Path, slug: str = "right-answer") -> str:
    """What a call says that refuses."""
    capsys.readouterr()
    assert upstream(*arguments, slug=slug) == code
    return capsys.readouterr().err


def desk(toy: Toy, slug: str = "right-answer") -> Path:
    """The worktree of a patch's branch."""
    return toy.home.root / "build" / "upstream" / "toy" / slug
