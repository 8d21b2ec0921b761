"""Names of contents: git's blob ids and a series' digest. Everything else compares these, never the bytes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

ABSENT = "-"  # stands in a digest for a file that the series deletes


def blob_id(data: bytes) -> str:
    """The id git gives these bytes as a blob (40 hex digits; SHA-1 repositories)."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def blob_of(data: bytes | None) -> str | None:
    """The blob id of a file's bytes, None where there is no file."""
    return None if data is None else blob_id(data)


def digest(base: str, files: Mapping[str, tuple[str, str | None]]) -> str:
    """The name of what runs: sha256 over the base and every file that differs from it.

    Args:
        base: upstream and version (or commit), such as `sglang 0.5.9`.
        files: repository path → (mode the patch declares, blob id or None when deleted), of changed files only.

    The same series has one digest on a checkout, on a laid-out wheel and on an installed package, because modes
    are the declared ones (wheels lose git's) and paths are the repository's.
    """
    named = hashlib.sha256(f"sm120-overlay digest 1\n{base}\n".encode())
    for path in sorted(files, key=os.fsencode):
        mode, blob = files[path]
        named.update(f"{mode} {blob or ABSENT}\t".encode() + os.fsencode(path) + b"\0")
    return named.hexdigest()
