"""The toy project of the queue's tests, with releases of its upstream that come later."""

from __future__ import annotations

from ..queue.conftest import own_cache, toy, toy_master

__all__ = ["own_cache", "toy", "toy_master"]
