"""A revision as one file that travels to a host: a tar of its tree, the same bytes every time."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from posixpath import dirname, join, normpath

from ..errors import Refused
from ..queue.git import Repository, read_objects, tree_entries
from ..queue.pins import Pin

LINK, SUBMODULE = "120000", "160000"


def archive(repo: Repository, tree: str) -> bytes:
    """All files of a tree, gzipped. Not by `git archive`, whose attributes leave files out.

    Submodules are not in it (`submodules` names them): no history holds their files.

    Raises:
        Refused: a file's text is not there, or a link leads out of the tree.
    """
    entries = {path: entry for path, entry in tree_entries(repo, tree, []).items() if entry.mode != SUBMODULE}
    found = read_objects(repo, {entry.blob for entry in entries.values()})
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path, entry in sorted(entries.items()):
            blob = found[entry.blob]
            if blob is None:
                # why: a tree that lacks a file is another program
                raise Refused(f"{repo.path}: {path} of {tree[:12]} cannot be read: a partial clone.", "Fetch it whole.")
            member = tarfile.TarInfo(path)
            member.mode = 0o755 if entry.mode == "100755" else 0o644
            if entry.mode == LINK:
                _link(member, os.fsdecode(blob.data), path, tree)
                tar.addfile(member)
            else:
                member.size = len(blob.data)
                tar.addfile(member, io.BytesIO(blob.data))
    return gzip.compress(plain.getvalue(), compresslevel=1, mtime=0)


def submodules(repo: Repository, tree: str) -> tuple[str, ...]:
    """Where submodules lie in a tree, which its tar has not."""
    return tuple(path for path, entry in tree_entries(repo, tree, []).items() if entry.mode == SUBMODULE)


def _link(member: tarfile.TarInfo, target: str, path: str, tree: str) -> None:
    if target.startswith("/") or normpath(join(dirname(path), target)).startswith(".."):
        # why: on a host it would lead to a file that is not upstream's
        raise Refused(f"{path} of {tree[:12]} is a link out of the tree: {target}.", "Choose a range without it.")
    member.type, member.linkname = tarfile.SYMTYPE, target


def python_path(pin: Pin, releases: bool) -> str:
    """Where packages begin in a tree: what goes onto PYTHONPATH."""
    packages = [prefix.rstrip("/") for prefix, place in pin.paths if "/" not in place.strip("/")]
    return "." if releases else dirname(packages[0] if packages else "") or "."
