"""The toy project of the queue's tests, and its upstream with a history that goes on."""

from __future__ import annotations

import pytest

from ..queue.conftest import own_cache, toy, toy_master
from ..queue.toy import Toy
from .upstream import Upstream

__all__ = ["own_cache", "toy", "toy_master"]


@pytest.fixture
def upstream(toy: Toy) -> Upstream:
    """The toy's upstream, HEAD on main at the pin, which has its tag."""
    return Upstream(toy.upstream()).tag("v1.0")
