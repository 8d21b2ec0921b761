"""A server that is up while a command measures it, and gone afterwards."""

from __future__ import annotations

import http.client
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .command import Order, last_lines, runs, start, stop

PROBE_S = 5.0
BETWEEN_S = 0.2


class ServeError(Exception):
    """A server that did not become ready: one sentence."""


@contextmanager
def serving(order: Order, health: str, ready_s: float) -> Iterator[Callable[[], bool]]:
    """The server of an order, from when its health URL answers 200; what is given says whether it still runs.

    The order's grace is what it gets to stop by itself.

    Raises:
        ServeError: it ended before, or was not ready in time.
    """
    keeper = start(order)
    try:
        until = time.monotonic() + ready_s
        while not _healthy(health):
            if not runs(keeper):
                ended = stop(keeper)
                how = f"signal {ended.signal}" if ended.signal else f"exit code {ended.exit}"
                raise ServeError(f"the server ended before it was ready ({how}): {last_lines(order.stderr)}")
            if time.monotonic() > until:
                raise ServeError(f"the server was not ready within {ready_s:g} s: {last_lines(order.stderr)}")
            time.sleep(BETWEEN_S)
        yield lambda: runs(keeper)
    finally:
        stop(keeper)


def _healthy(url: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=PROBE_S) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError, http.client.HTTPException):  # refused, slow, an error, or no HTTP at all
        return False
