"""Being told to stop: ^C, SIGTERM (docker stop), SIGHUP (a lost terminal). A run undoes what it had half done and ends.

A stop is an exception, raised wherever the program is; only where it would lose hold of something (a child that was
just started) it is held back for that moment.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """The run was told to stop by `signum`."""

    def __init__(self, signum: int = signal.SIGINT) -> None:
        super().__init__()
        self.signum = signum


@dataclass
class _Held:
    """How many places hold a stop back now, and the one that waits."""

    depth: int = 0
    waiting: int | None = None


_HELD = _Held()


def _stop(signum: int, _frame: FrameType | None) -> None:
    if _HELD.depth:
        _HELD.waiting = signum
    else:
        raise Stopped(signum)


@contextmanager
def told_to_stop() -> Iterator[None]:
    """Each of the signals raises Stopped, unless someone decided otherwise for this process (nohup, a library)."""
    ours = threading.current_thread() is threading.main_thread()  # no other thread may
    plain = (signal.SIG_DFL, signal.default_int_handler)
    default = [number for number in SIGNALS if ours and signal.getsignal(number) in plain]
    taken = {number: signal.signal(number, _stop) for number in default}
    try:
        yield
    finally:
        for number, before in taken.items():
            signal.signal(number, before)


@contextmanager
def held_back() -> Iterator[None]:
    """A stop that comes meanwhile is raised at the end of it."""
    _HELD.depth += 1
    try:
        yield
    finally:
        _HELD.depth -= 1
        if not _HELD.depth and _HELD.waiting is not None:
            signum, _HELD.waiting = _HELD.waiting, None
            raise Stopped(signum)
