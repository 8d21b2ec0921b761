"""The toy project, whose patch has a test in the form of its upstream's suite, and whose upstream has gone on."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..queue.conftest import own_cache, toy, toy_master
from ..queue.toy import Toy, git, write
from ..rebase.releases import core, release

__all__ = ["own_cache", "toy", "toy_master"]

BY_PYTEST = "from toy.core import answer\n\n\ndef test_answer():\n    assert answer() == 42\n"
TEST = "tests/test_answer.py"


def give_test(toy: Toy, text: str = BY_PYTEST, path: str = TEST) -> None:
    """Writes the test of `right-answer` in upstream's form."""
    write(toy.home.root, {f"upstream/toy/right-answer/{path}": text})


def go_on(toy: Toy, clone: Path, files: dict[str, str], subject: str) -> None:
    """One more commit on upstream's main, which the clone has."""
    write(toy.upstream(), files)
    git(toy.upstream(), "add", "-A")
    git(toy.upstream(), "commit", "-q", "-m", subject)
    git(clone, "pull", "-q")


@pytest.fixture
def clone(toy: Toy) -> Path:
    """A clone of upstream, one commit and a release above the pin; the patch has a test in its form."""
    give_test(toy)
    release(toy, "2.0", core(("# line 10\n", "# line ten\n")))
    return toy.clone()
