"""The hypothesis profiles of these tests, and the fixtures they share with the queue's.

`ci` tries the same examples on every run, so that it never fails by chance; `long` looks for new ones:
`SM120_OVERLAY_FUZZ=100 pytest tests/fuzz` tries a hundred times as many. What it finds goes into tests/corpus.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from ..queue.conftest import own_cache, toy, toy_master
from ..queue.toy import bare_repository, git_bytes

__all__ = ["own_cache", "toy", "toy_master"]

QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]
settings.register_profile("ci", deadline=None, derandomize=True, database=None, suppress_health_check=QUIET)
settings.register_profile("long", deadline=None, database=None, print_blob=True, suppress_health_check=QUIET)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty bare repository, for commits and diffs that git makes."""
    return bare_repository(tmp_path_factory.mktemp("bare") / "repo")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The work tree of an empty repository, for `git apply`."""
    folder = tmp_path_factory.mktemp("tree")
    git_bytes(folder, "init", "-q")
    return folder
