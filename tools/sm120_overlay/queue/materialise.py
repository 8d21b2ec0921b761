"""Makes a fresh checkout of a pin from a source: built beside its place and renamed whole, so a cut run leaves none."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from ..errors import Refused
from .git import Repository, run
from .pins import Pin
from .sources import Source


def materialise(pin: Pin, source: Source, folder: Path) -> None:
    """A checkout of the pin at `folder`, with HEAD detached at it and upstream as `origin`.

    Raises:
        Refused: something appeared at `folder` meanwhile.
        GitError: the source's repository does not give the commit whole.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent)).resolve()
    try:
        repo = Repository(partial)
        run(repo, "init", "--quiet", "--template=", ".")
        run(repo, "fetch", "--quiet", "--depth=1", "--no-tags", str(source.repository), source.commit)
        run(repo, "checkout", "--quiet", "--detach", source.commit)
        if source.installable:
            run(repo, "remote", "add", "origin", pin.repository)
        partial.chmod(0o755 & ~_umask())
        os.rename(partial, folder)
    except OSError as error:
        raise Refused(
            f"{folder}: could not be made there ({error.strerror}).", "Clear that place and retry."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
