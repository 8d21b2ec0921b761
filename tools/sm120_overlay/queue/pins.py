"""The lines of pins.toml as nouns, and the map between repository paths and installed paths."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .paths import is_plain

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
        back = _longest(installed, self._back)
        return installed if is_plain(path) and back == (there, here) and not out else None

    def repository_path(self, installed: str) -> str | None:
        """The inverse of `installed_path`; None for generated files, submodules and top-level odds and ends."""
        found = _longest(installed, self._back)
        if found is None:
            return None
        path = found[1] + installed[len(found[0]) :]
        return path if self.installed_path(path) == installed else None

    @property
    def _back(self) -> tuple[tuple[str, str], ...]:
        return tuple((there, here) for here, there in self.paths)

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
        UsageError: the file does not parse, or something in it is missing, unknown or of the wrong kind.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        return _lines(data)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, _Wrong) as error:
        raise UsageError(f"{path}: {error}.", "Mend it; the comment at its top says what each field is.") from error


class _Wrong(ValueError):
    """Something in pins.toml is not as it must be; the text says what."""


def _lines(data: dict[str, Any]) -> Lines:
    if data.get("schema") != SCHEMA:
        raise _Wrong(f"expected schema {SCHEMA}, found {data.get('schema')!r}")
    tables = _table("line", data.get("line"))
    lines = tuple(_line(name, _table(f"line {name}", table)) for name, table in tables.items())
    if data.get("default") not in tables:
        raise _Wrong(f"expected default to be one of {', '.join(tables)}, found {data.get('default')!r}")
    return Lines(data["default"], lines)


def _line(name: str, table: dict[str, Any]) -> Line:
    joint = _table(f"line {name}, joint", table.get("joint", {}))
    versions = tuple((dist, _text(f"line {name}, joint, {dist}", version)) for dist, version in joint.items())
    pins = tuple(_pin(name, upstream, pin) for upstream, pin in table.items() if upstream != "joint")
    return Line(name, pins, versions)


def _pin(line: str, upstream: str, table: Any) -> Pin:
    where = f"line {line}, {upstream}"
    given = _table(where, table)
    known = {field.name: field for field in fields(Pin)[2:]}
    required = {name for name, field in known.items() if field.default is MISSING}
    if given.keys() - known or required - given.keys():
        odd, lost = sorted(given.keys() - known), sorted(required - given.keys())
        raise _Wrong(f"{where}: missing {', '.join(lost) or 'nothing'}, not understood {', '.join(odd) or 'nothing'}")
    pin = Pin(line=line, upstream=upstream, **{name: _READ[name](f"{where}, {name}", given[name]) for name in given})
    if not re.fullmatch(r"[0-9a-f]{40}", pin.commit):
        raise _Wrong(f"{where}: expected a commit of 40 hex digits, found {pin.commit!r}")
    return pin


def _table(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Wrong(f"{where}: expected a table, found {value!r}")
    return value


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _Wrong(f"{where}: expected text, found {value!r}")
    return value


def _texts(where: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _Wrong(f"{where}: expected a list of texts, found {value!r}")
    return tuple(_text(where, entry) for entry in value)


def _wheels(where: str, value: Any) -> tuple[Wheel, ...]:
    found = []
    for tag, table in _table(where, value).items():
        given = _table(f"{where}, {tag}", table)
        if given.keys() != {"sha256", "root"}:
            raise _Wrong(f"{where}, {tag}: expected sha256 and root, found {', '.join(given) or 'nothing'}")
        found.append(Wheel(tag, _text(where, given["sha256"]), _text(where, given["root"])))
    if not found:
        raise _Wrong(f"{where}: expected at least one")
    return tuple(found)


def _paths(where: str, value: Any) -> tuple[tuple[str, str], ...]:
    return tuple((here, _text(where, there)) for here, there in _table(where, value).items())


def _prebuilt(where: str, value: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((dist, _texts(where, prefixes)) for dist, prefixes in _table(where, value).items())


# How each field is read; those not named here are texts.
_READ: dict[str, Callable[[str, Any], Any]] = {field.name: _text for field in fields(Pin)} | {
    "wheels": _wheels,
    "paths": _paths,
    "excluded": _texts,
    "executable": lambda where, value: frozenset(_texts(where, value)),
    "prebuilt": _prebuilt,
    "caches": _texts,
}


def _longest(path: str, mapping: tuple[tuple[str, str], ...]) -> tuple[str, str] | None:
    fits = [pair for pair in mapping if path.startswith(pair[0])]
    return max(fits, key=lambda pair: len(pair[0]), default=None)
