"""Fixtures of adopt's tests: the toy project, a clone with its series on, and a stranger's clone to make diffs in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ..fuzz.conftest import bare
from ..queue.conftest import own_cache, toy, toy_master
from ..queue.toy import Toy, applied
from .people import Stranger

__all__ = ["bare", "own_cache", "toy", "toy_master"]


@pytest.fixture
def ours(toy: Toy) -> Path:
    """A clone of toy with the whole series on its branch."""
    return applied(toy, "toy", "ours")


@pytest.fixture
def stranger(toy: Toy) -> Stranger:
    """Someone else's clone of toy, at the pin."""
    return Stranger(toy.clone("toy", "stranger"))


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[bytes], Path]:
    """A diff or mail in a file."""

    def save(data: bytes, name: str = "their-fix.patch") -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return save
