"""Whether a module's body is running right now.

Loading is the one time at which a stub may answer. It is known by watching module execution, not by a switch that
somebody sets once: a module that upstream imports inside a function, minutes later, gets the same tolerance, and
only for as long as its body runs. Whoever must step aside meanwhile (a presented card) says so with `stand_aside`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager


class _Depth(threading.local):
    value = 0


_depth = _Depth()
_standing_aside: list[Callable[[], AbstractContextManager[None]]] = []


def loading() -> bool:
    """Whether this thread is inside the body of a module that is being imported."""
    return _depth.value > 0


@contextmanager
def load() -> Iterator[None]:
    """Mark what runs inside as the loading of a module; re-entrant, since modules import modules."""
    with ExitStack() as stack:
        if not loading():
            for aside in _standing_aside:
                stack.enter_context(aside())
        _depth.value += 1
        try:
            yield
        finally:
            _depth.value -= 1


@contextmanager
def stand_aside(aside: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """While this holds, enter `aside()` around every outermost load, so that module bodies do not see the caller."""
    _standing_aside.append(aside)
    try:
        yield
    finally:
        _standing_aside.remove(aside)
