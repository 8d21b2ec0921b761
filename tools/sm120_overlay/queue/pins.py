"""The lines of pins.toml as nouns, and the map between repository paths and installed paths."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

SCHEMA = 1


@dataclass(frozen=True)
class Wheel:
    """One wheel of a pin: its platform tag, its sha256 and the commit it gives when laid out ("" not yet known)."""

    tag: str
    sha256: str
    root: str


@dataclass(frozen=True)
class Pin:
    """One upstream at one commit, with its PyPI twin. pins.toml says what each field means."""

    line: str
    upstream: str
    repository: str
    tag: str
    commit: str
    distribution: str
    version: str
    install: str
    paths: tuple[tuple[str, str], ...]
    wheels: tuple[Wheel, ...]
    excluded: tuple[str, ...] = ()
    executable: frozenset[str] = frozenset()
    prebuilt: tuple[tuple[str, tuple[str, ...]], ...] = ()
    caches: tuple[str, ...] = ()

    @property
    def base(self) -> str:
        """The name of the pin inside digests."""
        return f"{self.upstream} {self.version}"

    def installed_path(self, path: str) -> str | None:
        """Where a repository file lies in the installed package; None where no patch may touch it."""
        found = _longest(path, self.paths)
        if found is None:
            return None
        here, there = found
        installed = there + path[len(here) :]
        # An exclusion that is less specific than the mapping does not count: data/ is out, data/csrc/ is mapped.
        out = any(installed.startswith(prefix) and len(prefix) > len(there) for prefix in self.excluded)
        return None if out else installed

    def repository_path(self, installed: str) -> str | None:
        """The inverse of `installed_path`; None for generated files, submodules and top-level odds and ends."""
        found = _longest(installed, tuple((there, here) for here, there in self.paths))
        if found is None:
            return None
        path = found[1] + installed[len(found[0]) :]
        return path if self.installed_path(path) == installed else None

    def mode(self, path: str) -> str:
        """The mode git has for the file at the pin."""
        return "100755" if path in self.executable else "100644"


@dataclass(frozen=True)
class Line:
    """The pins that belong together, named after their SGLang release."""

    name: str
    pins: tuple[Pin, ...]
    joint: tuple[tuple[str, str], ...]

    def pin(self, upstream: str) -> Pin:
        """The pin of one upstream.

        Raises:
            UsageError: this line has no such upstream.
        """
        for pin in self.pins:
            if pin.upstream == upstream:
                return pin
        names = ", ".join(pin.upstream for pin in self.pins)
        raise UsageError(f"Line {self.name} has no upstream {upstream!r}.", f"Its upstreams are {names}.")


@dataclass(frozen=True)
class Lines:
    """All lines, and the one that is meant when none is named."""

    default: str
    lines: tuple[Line, ...]

    def line(self, name: str | None) -> Line:
        """A line by name, or the default one.

        Raises:
            UsageError: there is no such line.
        """
        for line in self.lines:
            if line.name == (name or self.default):
                return line
        raise UsageError(
            f"There is no line {name or self.default!r} in pins.toml.",
            f"The lines are {', '.join(line.name for line in self.lines)}.",
        )

    def all_pins(self) -> tuple[Pin, ...]:
        """Every pin of every line."""
        return tuple(pin for line in self.lines for pin in line.pins)


def load_lines(path: Path) -> Lines:
    """Reads pins.toml.

    Raises:
        UsageError: the file does not parse, or a pin has a field too many or too few.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}.", "Mend the file; it is TOML.") from error
    if data.get("schema") != SCHEMA:
        raise UsageError(f"{path}: expected schema {SCHEMA}, found {data.get('schema')!r}.", "Use matching tools.")
    lines = tuple(_line(path, name, table) for name, table in data["line"].items())
    return Lines(data["default"], lines)


def _line(path: Path, name: str, table: dict[str, Any]) -> Line:
    joint = tuple(table.pop("joint", {}).items())
    return Line(name, tuple(_pin(path, name, upstream, pin) for upstream, pin in table.items()), joint)


def _pin(path: Path, line: str, upstream: str, table: dict[str, Any]) -> Pin:
    shaped = dict(table)
    try:
        shaped["wheels"] = tuple(Wheel(tag, **wheel) for tag, wheel in table["wheels"].items())
        shaped["paths"] = tuple(table["paths"].items())
        shaped["excluded"] = tuple(table.get("excluded", ()))
        shaped["executable"] = frozenset(table.get("executable", ()))
        shaped["prebuilt"] = tuple((dist, tuple(prefixes)) for dist, prefixes in table.get("prebuilt", {}).items())
        shaped["caches"] = tuple(table.get("caches", ()))
        return Pin(line=line, upstream=upstream, **shaped)
    except (TypeError, KeyError, AttributeError) as error:
        known = ", ".join(field.name for field in fields(Pin)[2:])
        raise UsageError(f"{path}: line {line}, {upstream}: {error}.", f"A pin's fields are {known}.") from error


def _longest(path: str, mapping: tuple[tuple[str, str], ...]) -> tuple[str, str] | None:
    fits = [pair for pair in mapping if path.startswith(pair[0])]
    return max(fits, key=lambda pair: len(pair[0]), default=None)
