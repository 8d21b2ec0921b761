"""Makes a fresh checkout of a pin from a source: built beside its place and renamed whole, so a cut run leaves none."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from ..errors import Refused
from .checkout import check_one_line
from .git import Repository, run
from .pins import Pin
from .sources import Source
from .transaction import FOLDER, locked


def materialise(pin: Pin, source: Source, folder: Path) -> None:
    """A checkout of the pin at `folder`, with HEAD detached at it and upstream as `origin`.

    Raises:
        Refused: something appeared at `folder` meanwhile.
        GitError: the source's repository does not give the commit whole.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.parent.resolve() / f".{folder.name}.sm120-overlay-partial"
    partial.mkdir(exist_ok=True)
    with locked(partial / FOLDER) as lock:
        for left in partial.iterdir():  # of a run that was cut
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        try:
            _check_out(pin, source, Repository(partial, (lock,)))
            _rename(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _rename(partial: Path, folder: Path) -> None:
    try:
        os.rename(partial, folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
            raise
        # why: a rename would put the fresh checkout over it, or inside it
        raise Refused(f"{folder}: something is there ({error.strerror}).", "Move it away.") from error


def check_place(folder: Path) -> None:
    """A fresh checkout can be made there; asked before anything is fetched for it.

    Raises:
        Refused: something that is no folder is in the way, or git could not name the place.
    """
    check_one_line(folder)
    above = next((parent for parent in folder.parents if parent.exists() or parent.is_symlink()), folder.parent)
    if not above.is_dir() or folder.is_symlink():
        # why: a link leads to a place that nobody named here
        raise Refused(f"{folder if folder.is_symlink() else above}: expected a folder or nothing.", "Move it away.")


def _check_out(pin: Pin, source: Source, repo: Repository) -> None:
    run(repo, "init", "--quiet", "--template=", ".")
    # A source that is a partial clone must not fetch from its own origin (before 2.39.4 git's upload-pack would).
    alone = "--upload-pack=GIT_ALLOW_PROTOCOL= git-upload-pack"
    run(repo, "fetch", "--quiet", "--depth=1", "--no-tags", alone, str(source.repository), source.commit)
    run(repo, "checkout", "--quiet", "--detach", source.commit)
    if not pin.commit and source.installable:  # by its tag the checkout is recognised
        run(repo, "update-ref", f"refs/tags/{pin.tag}", source.commit)
    if source.installable:
        run(repo, "remote", "add", "origin", pin.repository)
