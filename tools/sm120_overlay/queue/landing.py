"""Puts a series that was moved into this project: patch files, overlay files, origin and pins together, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .export import Exported, changes, exporting, write_export
from .home import Home
from .origin import NAME, Origin, origin_text
from .pinning import pins_with
from .pins import Absent, Pin
from .transaction import Write, read_file


def landing(
    home: Home, pin: Pin, exported: Exported, origin: Origin, joint: Mapping[str, str], default: bool
) -> list[Write]:
    """What of the project's files would change."""
    folder = home.patches(pin.line, pin.upstream).relative_to(home.root)
    wanted = {str(folder / NAME): origin_text(origin).encode(), "pins.toml": pins_with(home, pin, joint, default)}
    before = {path: read_file(home.root / path) for path in wanted}
    others = [Write(path, before[path], data) for path, data in wanted.items() if before[path] != data]
    return [*changes(home, pin, exported), *others]


def record_commit(home: Home, pin: Pin, commit: str) -> bool:
    """Writes into pins.toml which commit a pin's tag names, where that is not known yet; whether it was written.

    Only in a clone of this project: elsewhere the file belongs to the package that was installed.
    """
    if pin.commit or not commit or not (home.root / ".git").exists():
        return False
    data = pins_with(home, replace(pin, commit=commit), {}, default=False)
    land(home, [Write("pins.toml", home.pins.read_bytes(), data)])
    return True


def land(home: Home, writes: list[Write]) -> None:
    """Writes them all, or leaves everything as it was."""
    with exporting(home):
        write_export(home, writes)


def with_absent(pin: Pin, absent: tuple[Absent, ...]) -> Pin:
    """The pin, with what the line does without: what it recorded before, and what was decided now."""
    kept = {one.slug: one for one in (*pin.absent, *absent)}
    return replace(pin, absent=tuple(kept.values()))
