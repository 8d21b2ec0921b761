"""A 3-way merge of one file, by git's own merge-file: nothing here decides what a merge is."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from .git import GitError, Repository, attempt, last_words

CONFLICTS = 127  # merge-file's exit code counts conflicts up to here; more means that it could not merge


def merge(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """What both sides made of `base`, None where they changed the same lines, or where one of them is no text.

    Raises:
        GitError: git itself failed.
    """
    if any(b"\0" in side for side in (base, ours, theirs)):
        return None
    with TemporaryDirectory(prefix="sm120-overlay-") as folder:
        place = Path(folder).resolve()
        for name, data in (("ours", ours), ("base", base), ("theirs", theirs)):
            (place / name).write_bytes(data)
        code, out, err = attempt(Repository(place), "merge-file", "-p", "-q", "ours", "base", "theirs")
    if code > CONFLICTS:
        # why: what git could not write (a full disk) must not pass for a conflict
        raise GitError(f"git merge-file failed: {last_words(err, code)}.", "Mend what git names and run again.")
    return out if code == 0 else None
