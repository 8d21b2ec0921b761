"""The lines of pins.toml as nouns, and the map between repository paths and installed paths."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .patch import SLUG
from .paths import is_plain, shown
from .toml import BadToml, line_of, parse_toml

SCHEMA = 1
# Of a line or an upstream: it becomes a folder and a part of a branch's name.
NAME = re.compile(r"[A-Za-z0-9]+([._+-][A-Za-z0-9]+)*(?<!\.lock)")
# What a line says of a patch that it does not carry: the state, and the upstream reference or the reason.
ABSENT = re.compile(r"(?P<absorbed>absorbed): (?P<reference>[\w.-]+#\d+, v\d\S*)|(?P<na>n/a): (?P<reason>\S.{19,})")
Keys = tuple[str, ...]  # the way to a value in pins.toml


@dataclass(frozen=True)
class Absent:
    """A patch of other lines that a line does without.

    `state` is `absorbed` (upstream has it; `why` names the change and the release) or `n/a` (`why` is the reason).
    """

    slug: str
    state: str
    why: str


@dataclass(frozen=True)
class Wheel:
    """One wheel of a pin: its platform tag, its sha256 and the commit it gives when laid out ("" not yet known)."""

    tag: str
    sha256: str
    root: str


@dataclass(frozen=True)
class Pin:
    """One upstream at one commit, with its PyPI twin. pins.toml says what each field means.

    `at` is no field of that file: the commit near the pin that a series was carried to, which then names what runs.
    """

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
    prebuilt_guard: str = ""
    caches: tuple[str, ...] = ()
    absent: tuple[Absent, ...] = ()
    plugins: str = ""
    at: str = ""

    @property
    def base(self) -> str:
        """The name of the pin inside digests."""
        return f"{self.upstream} {self.at or self.version}"

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
        # why: an upstream that is passed over in silence stays unpatched
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
        # why: a line that is guessed is another version (Tanguille/cluster#4219)
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
        UsageError: with file and line, when the file does not parse, or something in it is missing, unknown or of the
            wrong kind.
    """
    text = ""
    try:
        text, data = parse_toml(path.read_bytes())
        return _lines(data)
    except (BadToml, _Wrong) as error:
        line = error.line if isinstance(error, BadToml) else line_of(text, error.keys)
        # why: pins that are half read are other pins
        raise UsageError(
            f"{path}:{line}: {shown(str(error))}.", "Mend it; the comment at its top says what each field is."
        ) from error


class _Wrong(ValueError):
    """Something in pins.toml is not as it must be: the text says what, `keys` lead to it."""

    def __init__(self, keys: Keys, text: str) -> None:
        super().__init__(f"{_said(keys)}: {text}" if len(keys) > 1 else text)
        self.keys = keys


def _said(keys: Keys) -> str:
    return "line " + ", ".join(keys[1:])


def _found(value: object) -> str:
    """A value for a sentence, cut short: it may be anything, however long or deep."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 80
    return f"found {short.repr(value)}"


def _lines(data: dict[str, Any]) -> Lines:
    schema = data.get("schema")
    if type(schema) is not int or schema != SCHEMA:
        # why: a newer file may mean something else by the same words
        raise _Wrong(("schema",), f"expected schema {SCHEMA}, {_found(schema)}")
    odd = sorted(data.keys() - {"schema", "default", "line"})
    if odd:
        # why: a misspelt table would be ignored
        raise _Wrong((odd[0],), f"expected schema, default and line, not understood {', '.join(odd)}")
    tables = _table(("line",), data.get("line"))
    lines = tuple(_line(name, table) for name, table in tables.items())
    default = data.get("default")
    if not isinstance(default, str) or default not in tables:
        # why: every run without --line goes there
        raise _Wrong(("default",), f"expected default to be one of {', '.join(tables)}, {_found(default)}")
    return Lines(default, lines)


def _line(name: str, value: Any) -> Line:
    keys = ("line", name)
    table = _table(keys, value)
    where = (*keys, "joint")
    joint = _table(where, table.get("joint", {}))
    versions = tuple((dist, _text((*where, dist), version)) for dist, version in joint.items())
    pins = tuple(_pin((*keys, upstream), pin) for upstream, pin in table.items() if upstream != "joint")
    for named in (keys, *((*keys, pin.upstream) for pin in pins)):
        if not NAME.fullmatch(named[-1]):
            # why: it becomes a folder and a part of a branch's name
            raise _Wrong(named, f"expected a name of letters, digits and single . _ + -, {_found(named[-1])}")
    if not pins:
        # why: a line of nothing is always applied
        raise _Wrong(keys, "expected at least one upstream")
    return Line(name, pins, versions)


def pin_of(line: str, upstream: str, table: dict[str, Any]) -> Pin:
    """A pin from its table in pins.toml."""
    return _pin(("line", line, upstream), table)


def _pin(keys: Keys, table: Any) -> Pin:
    given = _table(keys, table)
    known = {field.name: field for field in fields(Pin)[2:] if field.name != "at"}
    required = {name for name, field in known.items() if field.default is MISSING}
    odd, lost = sorted(given.keys() - known), sorted(required - given.keys())
    if odd or lost:
        text = f"missing {', '.join(lost) or 'nothing'}, not understood {', '.join(odd) or 'nothing'}"
        # why: a misspelt field would be ignored, and its default taken
        raise _Wrong((*keys, *odd[:1]), text)
    return Pin(line=keys[1], upstream=keys[2], **{name: _READ[name]((*keys, name), given[name]) for name in given})


def _table(keys: Keys, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        # why: a value of another kind would fail far from here
        raise _Wrong(keys, f"expected a table{'' if len(keys) > 1 else ' ' + keys[0]}, {_found(value)}")
    return value


def _text(keys: Keys, value: Any) -> str:
    if not isinstance(value, str) or not value:
        # why: an empty text matches every path and every version
        raise _Wrong(keys, f"expected text, {_found(value)}")
    return value


def _texts(keys: Keys, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        # why: the letters of one text would be taken for a list
        raise _Wrong(keys, f"expected a list of texts, {_found(value)}")
    return tuple(_text(keys, entry) for entry in value)


def _hex(keys: Keys, value: Any, what: str, digits: int) -> str:
    text = _text(keys, value)
    if not re.fullmatch(rf"[0-9a-f]{{{digits}}}", text):
        # why: a tag or a short id may come to mean another commit
        raise _Wrong(keys, f"expected {what} of {digits} hex digits, {_found(text)}")
    return text


def _wheels(keys: Keys, value: Any) -> tuple[Wheel, ...]:
    found = []
    for tag, table in _table(keys, value).items():
        where = (*keys, tag)
        given = _table(where, table)
        if given.keys() != {"sha256", "root"}:
            # why: a wheel without its hash may be any file
            raise _Wrong(where, f"expected sha256 and root, found {', '.join(given) or 'nothing'}")
        # A wheel whose layout was never committed has no root yet.
        root = given["root"] if given["root"] == "" else _hex((*where, "root"), given["root"], "a commit", 40)
        found.append(Wheel(tag, _hex((*where, "sha256"), given["sha256"], "a hash", 64), root))
    if not found:
        # why: the proofs stand on a wheel
        raise _Wrong(keys, "expected at least one")
    return tuple(found)


def _paths(keys: Keys, value: Any) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for here, given in _table(keys, value).items():
        there = _text((*keys, here), given)
        for prefix in (here, there):
            if not prefix.endswith("/") or not is_plain(prefix[:-1]):
                # why: without the slash `src` would also match `src2`
                raise _Wrong((*keys, here), f"expected a plain folder that ends with /, {_found(prefix)}")
        if there in found.values():
            # why: two repository files would share one installed file
            raise _Wrong((*keys, here), f"expected one place for each prefix, found {there} twice")
        found[here] = there
    return tuple(found.items())


def _plain(keys: Keys, value: Any) -> tuple[str, ...]:
    found = _texts(keys, value)
    for path in found:
        if not is_plain(path.removesuffix("/")):
            # why: a path outside the tree never matches, so that nothing would be left out
            raise _Wrong(keys, f"expected plain paths inside the tree, {_found(path)}")
    return found


def _prebuilt(keys: Keys, value: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((dist, _plain((*keys, dist), prefixes)) for dist, prefixes in _table(keys, value).items())


def _absent(keys: Keys, value: Any) -> tuple[Absent, ...]:
    found = []
    for slug, given in _table(keys, value).items():
        where = (*keys, slug)
        said = ABSENT.fullmatch(_text(where, given))
        if not re.fullmatch(SLUG, slug):
            # why: under a name that no patch can have, nobody would find it
            raise _Wrong(where, f"expected a slug, lower-case words joined by hyphens, {_found(slug)}")
        if said is None:
            # why: a patch that is left out without a reason looks forgotten
            raise _Wrong(
                where, f"expected `n/a: REASON` in one line or `absorbed: PROJECT#NUMBER, vVERSION`, {_found(given)}"
            )
        found.append(Absent(slug, said["absorbed"] or said["na"], said["reference"] or said["reason"]))
    return tuple(found)


# How each field is read; those not named here are texts.
_READ: dict[str, Callable[[Keys, Any], Any]] = {field.name: _text for field in fields(Pin)} | {
    "commit": lambda keys, value: "" if value == "" else _hex(keys, value, "a commit", 40),
    "wheels": _wheels,
    "paths": _paths,
    "excluded": _plain,
    "executable": lambda keys, value: frozenset(_plain(keys, value)),
    "prebuilt": _prebuilt,
    "caches": _texts,
    "absent": _absent,
}


def _longest(path: str, mapping: tuple[tuple[str, str], ...]) -> tuple[str, str] | None:
    fits = [pair for pair in mapping if path.startswith(pair[0])]
    return max(fits, key=lambda pair: len(pair[0]), default=None)
