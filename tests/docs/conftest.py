"""The toy project of the queue's tests, which the tests here bring into every trouble."""

from __future__ import annotations

from ..queue.conftest import own_cache, toy, toy_master

__all__ = ["own_cache", "toy", "toy_master"]
