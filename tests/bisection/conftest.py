"""The toy project of the queue's tests, and its upstream with a history that goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120_overlay.queue.git import Repository, run

from ..queue.conftest import own_cache, toy, toy_master
from ..survey.conftest import upstream

__all__ = ["own_cache", "toy", "toy_master", "upstream"]


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    """A repository without a commit."""
    found = Repository(tmp_path)
    run(found, "init", "--quiet", "--bare", ".")
    return found
