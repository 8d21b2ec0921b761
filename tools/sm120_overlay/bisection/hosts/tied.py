"""Loaded by what we start over SSH: it ends when its standard input does, which is when we, or the network, are gone.

An SSH server ends no command of a connection that is lost. It closes its input, though.
"""

from __future__ import annotations

import os
import threading


def dask_setup(_: object) -> None:
    """Begins to watch (Dask calls this in a scheduler and in a nanny)."""
    threading.Thread(target=_watch, daemon=True).start()


def _watch() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)
