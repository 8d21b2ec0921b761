"""The one cache of this project: everything in it is named by a hash and published by one rename.

So nothing in it is ever half there, two runs may fill it at once, and whatever is in it works offline. It may be
deleted at any time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "SM120_OVERLAY_CACHE"


def cache_dir(*parts: str) -> Path:
    """A place in the cache: `$SM120_OVERLAY_CACHE`, else the user's cache folder."""
    root = os.environ.get(VARIABLE)
    if not root:
        from platformdirs import user_cache_path

        root = str(user_cache_path("sm120-overlay"))
    return Path(root, *parts)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An error of writing names the file: Python's own names none when a disk is full."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


def publish(place: Path, fill: Callable[[Path], None]) -> Path:
    """`place`, made by `fill` in a folder beside it and renamed whole; kept as it is when it is already there."""
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{place.name[:40]}-", dir=place.parent))
    try:
        with naming(place):
            fill(partial)
            os.rename(partial, place)
    except OSError:
        if not place.exists():  # else another run was first, with the same content
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return place


def publish_file(place: Path, content: bytes, executable: bool = False) -> None:
    """`place` with this content, written beside it under a name of its own and renamed whole."""
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=".", dir=place.parent)
    try:
        with naming(place), os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(partial).chmod(0o755 if executable else 0o644)
        Path(partial).replace(place)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
