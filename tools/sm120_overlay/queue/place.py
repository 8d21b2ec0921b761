"""The one applier: bytes and an edit in, bytes out. No fuzz and no offset search.

Text goes only onto the bytes it was made for, and what comes out must be the blob the patch promised: a bug here is
a hash error, never a wrong tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import Refused
from .blobs import blob_id, blob_of
from .patch import Edit, Hunk

REGENERATE = "Regenerate the patch with tools/export.py from a branch on the pinned commit."


def place(edit: Edit, before: bytes | None, found: str | None = None) -> bytes | None:
    """The file after `edit`, or None when the edit deletes it.

    Args:
        found: the blob id of `before`, where the caller has just computed it.

    Raises:
        Refused: `before` is not the blob the edit was made on, or the result is not the one it promises.
    """
    found = found or blob_of(before)
    if found != edit.old:
        # why: GNU patch and git apply find a similar place and exit 0 (toybox#533, Hyperloom#207)
        raise Refused(
            f"{edit.path}: the patch was made on blob {_named(edit.old)}, and the file is blob {_named(found)}.",
            "Apply to the pinned version only; between versions a series moves by a 3-way merge.",
        )
    after = edit.whole if edit.whole is not None else place_hunks(edit.path, edit.hunks, before or b"")
    if edit.new is None:
        if after:
            # why: lines that the patch does not know would be deleted with it
            raise Refused(f"{edit.path}: the patch deletes the file but leaves {len(after)} bytes of it.", REGENERATE)
        return None
    made = blob_id(after)
    if made != edit.new:
        # why: a hash error is found here; a wrong tree would be found by a server
        raise Refused(f"{edit.path}: the patch promises blob {edit.new} and gives {made}.", REGENERATE)
    return after


def place_hunks(path: str, hunks: Sequence[Hunk], before: bytes) -> bytes:
    """The bytes with every hunk at the very line it names.

    Raises:
        Refused: a hunk's old lines do not stand there.
    """
    out: list[bytes] = []
    at = line = 0  # the bytes and the lines that are taken over already
    for hunk in hunks:
        first = hunk.start - 1 if hunk.old else hunk.start
        start = _line_start(before, at, first - line)
        old = b"".join(hunk.old)
        if start is None or not _fits(before, start, old):
            # why: one of two identical blocks was edited, 32 lines off, with exit code 0 (rules_py#508)
            raise Refused(f"{path}: the hunk at line {hunk.start} does not fit the bytes it names.", REGENERATE)
        out += (before[at:start], *hunk.new)
        at, line = start + len(old), first + len(hunk.old)
    return b"".join((*out, before[at:]))


def _line_start(data: bytes, at: int, lines: int) -> int | None:
    """Where the line begins that is `lines` after the one at byte `at`; lines end at \\n only."""
    if lines < 0:
        return None
    parts = data[at:].split(b"\n", lines)
    return len(data) - len(parts[lines]) if len(parts) > lines else None


def _fits(data: bytes, start: int, old: bytes) -> bool:
    """Whether `old` stands there as whole lines."""
    end = start + len(old)
    return data[start:end] == old and (not old or old.endswith(b"\n") or end == len(data))


def _named(blob: str | None) -> str:
    return blob or "none (no file)"
