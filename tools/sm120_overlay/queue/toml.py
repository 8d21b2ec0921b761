"""Reads TOML and says in which line a thing stands, both for what tomllib refuses and for what its reader does."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

AT_LINE = re.compile(r"at line (\d+), column \d+")


class BadToml(ValueError):
    """Not TOML; the text says why, `line` where (1-based)."""

    def __init__(self, text: str, line: int) -> None:
        super().__init__(text)
        self.line = line


def parse_toml(raw: bytes) -> tuple[str, dict[str, Any]]:
    """The text of a file and what it says.

    Raises:
        BadToml: it is no TOML, or TOML that tomllib cannot hold.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadToml(str(error), raw.count(b"\n", 0, error.start) + 1) from error
    try:
        return text, tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadToml(str(error), _failing_line(text, error)) from error


def _failing_line(text: str, error: Exception) -> int:
    """The line that tomllib names; where it names none, the first one up to which the text fails in the same way."""
    named = AT_LINE.search(str(error))
    if named:
        return int(named[1])
    lines = text.rstrip("\n").split("\n")
    low, high = 1, len(lines)
    while low < high and type(error) is not tomllib.TOMLDecodeError:
        middle = (low + high) // 2
        low, high = (low, middle) if _fails(lines[:middle], type(error)) else (middle + 1, high)
    return high  # a TOMLDecodeError without a line is one at the end of the text


def _fails(lines: list[str], kind: type[Exception]) -> bool:
    try:
        tomllib.loads("\n".join(lines))
    except (ValueError, RecursionError) as error:
        return type(error) is kind
    return False


def line_of(text: str, keys: tuple[str, ...]) -> int:
    """The line where the first statement begins that says something of `keys`, else of the table they belong in.

    Args:
        text: TOML that parses.
        keys: the way to a value or a table, such as `("line", "v0.5.9", "sglang", "commit")`.
    """
    statements = list(_statements(text))
    for length in range(len(keys), 0, -1):
        for line, said in statements:
            if _holds(said, keys[:length]):
                return line
    return 1


def _statements(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """First line of every table header and key, and what it says, as nested tables from the top."""
    lines = text.split("\n")
    table: dict[str, Any] = {}
    first = 0
    for number in range(1, len(lines) + 1):
        try:
            said = tomllib.loads("\n".join(lines[first:number]))
        except tomllib.TOMLDecodeError:
            continue  # a value that goes on in the next line
        if said:
            header = lines[first].lstrip().startswith("[")
            table = said if header else table
            yield first + 1, said if header else _below(table, said)
        first = number


def _below(table: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """What a key says under a table header, as nested tables from the top."""
    for key, value in table.items():
        deeper = value[0] if isinstance(value, list) else value  # [[name]] opens a list of tables
        return {key: _below(deeper, said)}
    return said


def _holds(said: object, keys: tuple[str, ...]) -> bool:
    for key in keys:
        if not isinstance(said, dict) or key not in said:
            return False
        said = said[key]
    return True
