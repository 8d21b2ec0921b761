"""Where each patch stands with its upstream: the trailer `Upstream-Status` of every line that carries it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..errors import Refused, UsageError
from .home import Home
from .lint import VALUES, lint_series
from .mail import parse_patch
from .pins import Lines, Pin
from .series import load_series, series_names, with_overlays
from .transaction import Write, read_file

TRAILER = re.compile(rb"^Upstream-Status: .*(?:\n[ \t].*)*$", re.MULTILINE)


@dataclass(frozen=True)
class Standing:
    """One patch on one line: `status` as its trailer says, or where the line does without it `absent` and why."""

    slug: str
    upstream: str
    line: str
    status: str
    absent: str = ""


def standings(home: Home, lines: Lines) -> tuple[Standing, ...]:
    """Every patch on every line, in the order of the lines and their series; what a line records as absent after it."""
    return tuple(row for pin in lines.all_pins() for row in _of_pin(home, pin))


def _of_pin(home: Home, pin: Pin) -> Iterator[Standing]:
    for patch in load_series(home, pin).patches:
        yield Standing(patch.slug, pin.upstream, pin.line, patch.trailer("Upstream-Status") or "")
    for one in pin.absent:
        yield Standing(one.slug, pin.upstream, pin.line, "", f"{one.state}: {one.why}")


def status_writes(home: Home, lines: Lines, slug: str, status: str) -> list[Write]:
    """What of the project's files changes so that every line says this status of a patch; the trailer alone does.

    Raises:
        Refused: lint does not take the patch with it.
        UsageError: it is no status, or no line carries the patch.
    """
    pattern, words = VALUES["Upstream-Status"]
    if not re.fullmatch(pattern, status):
        # why: a status in words of one's own says nothing to a tool
        raise UsageError(f"--set-status {status!r}: expected {words}.", "Such as 'Submitted [https://...]'.")
    pins = carriers(home, lines, slug)
    if not pins:
        known = sorted({row.slug for row in standings(home, lines)})
        # why: a slug that is passed over would look changed
        raise UsageError(f"No line carries a patch {slug}.", f"The patches are {', '.join(known)}.")
    return [write for pin in pins for write in _write(home, pin, slug, status)]


def carriers(home: Home, lines: Lines, slug: str) -> tuple[Pin, ...]:
    """The pins whose series has the patch, the newest first."""
    found = [pin for pin in lines.all_pins() if slug in series_names(home.patches(pin.line, pin.upstream) / "series")]
    return tuple(sorted(found, key=lambda pin: newness(pin.version), reverse=True))


def newness(version: str) -> tuple[int, ...]:
    """A release's version, to order by."""
    return tuple(map(int, re.findall(r"\d+", version)))


def _write(home: Home, pin: Pin, slug: str, status: str) -> Iterator[Write]:
    file = home.patches(pin.line, pin.upstream) / f"{slug}.patch"
    before = read_file(file)
    assert before is not None
    after = with_status(before, status)
    series = load_series(home, pin)
    changed = with_overlays(home, pin.upstream, parse_patch(str(file), after))
    patches = tuple(changed if patch.slug == slug else patch for patch in series.patches)
    wrong = [one.what for one in lint_series(home, replace(series, patches=patches)) if one.where == slug]
    if wrong:
        # why: a series that lint refuses stops every later export
        raise Refused(f"{file}: with `Upstream-Status: {status}` lint says: {wrong[0]}.", "Mend that first.")
    if after != before:
        yield Write(str(file.relative_to(home.root)), before, after)


def with_status(data: bytes, status: str) -> bytes:
    """A patch file with another status; every other byte stays."""
    head, found, diff = data.partition(b"\n\ndiff --git ")
    return TRAILER.sub(lambda _: f"Upstream-Status: {status}".encode(), head, count=1) + found + diff
