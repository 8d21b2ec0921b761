"""Upstream's releases as steps of a way: what the package index has, and the touched files of each wheel.

A release is known by its version. Its wheel is fetched once (a pinned one by its hash), and read where it lies: only
where a touched file is gone is the whole of it laid out, to see where upstream has put the file.
"""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path

from ..errors import Missing, UsageError
from .build import build_root
from .carry import ground_at, touched
from .git import Repository
from .pins import Pin
from .ranges import Commit, Step
from .series import Series
from .wheels import Say, ask_pip, fetch_release, fetch_wheel

LISTED = re.compile(r"^Available versions: (.*)$", re.MULTILINE)
UNDATED = 2021  # tools that want the same bytes every time write 1980 or 2020


def released(distribution: str, early: bool = False) -> tuple[str, ...]:
    """The versions that the package index has wheels of for this interpreter, oldest first.

    Args:
        early: release candidates too.

    Raises:
        Missing: the index cannot be asked, or has none.
    """
    options = ["--only-binary=:all:", "--ignore-requires-python", *(["--pre"] if early else [])]
    out = ask_pip("index", "versions", *options, distribution)
    found = LISTED.search(out)
    if not found:
        # why: an empty list would say that nothing is ahead
        raise Missing(
            f"{distribution}: pip lists no versions of it (it says {out.strip()[:80]!r}).",
            f"Look at what {sys.executable} -m pip index versions {distribution} says.",
        )
    return tuple(reversed(found[1].split(", ")))


def chosen(versions: Sequence[str], old: str, new: str, distribution: str) -> tuple[str, ...]:
    """The releases from one to another ("": the newest).

    Raises:
        UsageError: one of them is not listed, or they are the wrong way round.
    """
    new = new or versions[-1]
    lost = next((version for version in (old, new) if version not in versions), None)
    if lost is not None:
        # why: the release beside it is another one
        raise UsageError(
            f"{distribution} {lost} is not among the {len(versions)} releases that the package index lists.",
            "Name one that is; --pre lists release candidates too.",
        )
    found = tuple(versions[versions.index(old) : versions.index(new) + 1])
    if not found:
        # why: an empty range would say that every patch goes in
        raise UsageError(f"{old}..{new}: the second is older than the first.", "Name the older one first.")
    return found


def release_steps(
    repo: Repository, base: str, series: Series, versions: Sequence[str], pins: Sequence[Pin], say: Say
) -> tuple[Step, ...]:
    """A step for each release.

    Args:
        repo: a scratch repository that holds the pin's tree; what is read of the wheels is written into it.
        base: the commit that the series is made on.
        pins: those of every line: a release that is one is fetched by its hash.
    """
    return tuple(_step(repo, base, series, wheel_of(series.pin, version, pins, say), version) for version in versions)


def wheel_of(pin: Pin, version: str, pins: Sequence[Pin], say: Say) -> Path:
    """The wheel of a release of this pin's upstream; by its hash where it is one of `pins`.

    Raises:
        Missing: the index does not give it.
    """
    known = (one for one in pins if (one.upstream, one.version) == (pin.upstream, version))
    found = next(known, None)
    return fetch_wheel(found, say) if found else fetch_release(pin.distribution, version, say)


def _step(repo: Repository, base: str, series: Series, file: Path, version: str) -> Step:
    paths = touched(series)
    root = _lay_out(repo, series.pin, file, version, paths)
    ground = ground_at(repo, base, series, root)
    pinned = ground_at(repo, base, series, base).files
    if any(ground.files[path] is None and pinned[path] for path in paths):
        ground = ground_at(repo, base, series, _lay_out(repo, series.pin, file, version))
    return Step(Commit(version, _day(file), ""), ground)


def _lay_out(repo: Repository, pin: Pin, file: Path, version: str, only: Collection[str] | None = None) -> str:
    """A commit with the wheel's text files (or some of them) as the repository lays them."""
    with zipfile.ZipFile(file) as archive:
        mapped = {pin.repository_path(name): name for name in archive.namelist() if not name.endswith((".so", "/"))}
        files = {
            path: (pin.mode(path), archive.read(name))
            for path, name in mapped.items()
            if path is not None and (only is None or path in only)
        }
    return build_root(repo, files, f"{pin.distribution} {version}")


def _day(file: Path) -> str:
    """The day of the newest file in a wheel, "" where it names none."""
    with zipfile.ZipFile(file) as archive:
        year, month, day, *_ = max(info.date_time for info in archive.infolist())
    return f"{year}-{month:02}-{day:02}" if year >= UNDATED else ""
