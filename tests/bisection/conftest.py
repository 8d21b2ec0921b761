"""The toy project of the queue's tests, and its upstream with a history that goes on."""

from __future__ import annotations

from ..queue.conftest import own_cache, toy, toy_master
from ..survey.conftest import upstream

__all__ = ["own_cache", "toy", "toy_master", "upstream"]
