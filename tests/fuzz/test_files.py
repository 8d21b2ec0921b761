"""pins.toml and series files under any damage: they say what they say, or one sentence begins with file and line."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm120_overlay.errors import OverlayError, UsageError
from sm120_overlay.queue.pins import Line, Lines, Pin, load_lines
from sm120_overlay.queue.series import load_series, series_names

from ..queue.toy import PINS, Toy
from .given import damaged, examples

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KNOWN = {"toy": "../toy", "gear": "../gear"} | {
    f"{name}_{what}": digit * length
    for name, digit in (("toy", "a"), ("gear", "b"))
    for what, length in (("commit", 40), ("sha", 64), ("root", 40))
}
TEXT = PINS.format(**KNOWN).replace('executable = ["python/toy/run.py"]', 'executable = [\n    "python/toy/run.py",\n]')
SLUG = re.compile(rb"[a-z0-9]+(-[a-z0-9]+)*")


def check_sentence(error: OverlayError, file: Path, raw: bytes) -> int:
    """One sentence that begins with the file and a line that it has; the line."""
    match = re.fullmatch(re.escape(str(file)) + r":(\d+): [^\n]+\.", error.what)
    assert match, error.what
    assert len(error.what) < 2000
    assert 1 <= int(match[1]) <= raw.count(b"\n") + 1
    assert error.todo.endswith(".")
    return int(match[1])


def said(lines: Lines) -> dict[str, Any]:
    """The lines as data again, so that nothing in the file can have been passed over or read as something else."""
    return {"schema": 1, "default": lines.default, "line": {line.name: _line(line) for line in lines.lines}}


def _line(line: Line) -> dict[str, Any]:
    return {"joint": dict(line.joint)} | {pin.upstream: _pin(pin) for pin in line.pins}


def _pin(pin: Pin) -> dict[str, Any]:
    texts = ("repository", "tag", "commit", "distribution", "version", "install")
    return {name: getattr(pin, name) for name in texts} | {
        "paths": dict(pin.paths),
        "excluded": list(pin.excluded),
        "executable": sorted(pin.executable),
        "prebuilt": {name: list(prefixes) for name, prefixes in pin.prebuilt},
        "caches": list(pin.caches),
        "wheels": {wheel.tag: {"sha256": wheel.sha256, "root": wheel.root} for wheel in pin.wheels},
    }


def normal(data: dict[str, Any]) -> dict[str, Any]:
    """pins.toml as data, with what may be left out filled in."""
    empty: dict[str, Any] = {"excluded": [], "executable": [], "prebuilt": {}, "caches": []}
    lines = {
        name: {"joint": {}} | {key: value if key == "joint" else {**empty, **value} for key, value in line.items()}
        for name, line in data["line"].items()
    }
    for line in lines.values():
        for key in line.keys() - {"joint"}:
            line[key]["executable"] = sorted(set(line[key]["executable"]))
    return {**data, "line": lines}


def check_pins(file: Path, raw: bytes) -> None:
    file.write_bytes(raw)
    try:
        lines = load_lines(file)
    except UsageError as error:
        check_sentence(error, file, raw)
        return
    data = tomllib.loads(raw.decode())
    assert said(lines) == normal(data)
    assert type(data["schema"]) is int


@pytest.mark.case("a damaged pins.toml", target="series", outcome="refused")
@examples(400)
@given(data=st.data())
def test_damaged_pins_say_what_they_say_or_are_one_sentence(tmp_path: Path, data: st.DataObject) -> None:
    check_pins(tmp_path / "pins.toml", data.draw(damaged(TEXT.encode())))


SCALARS = st.one_of(
    st.integers(-3, 3), st.booleans(), st.floats(allow_nan=False, allow_infinity=False, width=16), st.just(""),
    st.sampled_from(["x", "a" * 40, "../x/", "/", "v1", "a/b", "..", ".", "toy/", "new\nline", "\x1b[31m", "é",
                     ".git/"]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda more: st.one_of(st.lists(more, max_size=3), st.dictionaries(SCALARS.map(str), more)), max_leaves=6
)


@st.composite
def restructured(draw: st.DrawFn) -> dict[str, Any]:
    """The pins as data, with one to three values lost, replaced by anything, doubled under another name or nested."""
    data: dict[str, Any] = tomllib.loads(TEXT)
    for _ in range(draw(st.integers(1, 3))):
        table = draw(st.sampled_from(_tables(data)))
        key = draw(st.sampled_from([*table, "odd"]))
        change = draw(st.sampled_from(["gone", "other", "other", "nested", "again"]))
        value = table.pop(key, "x")
        if change == "other":
            table[key] = draw(VALUES)
        elif change == "nested":
            table[key] = {key: value}
        elif change == "again":
            table[key] = value
            table[draw(SCALARS.map(str))] = value
    return data


def _tables(data: dict[str, Any]) -> list[dict[str, Any]]:
    inner = [table for value in data.values() if isinstance(value, dict) for table in _tables(value)]
    return [data, *inner]


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml(str(key))} = {_toml(part)}" for key, part in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return '"' + "".join(char if char.isalnum() else f"\\u{ord(char):04x}" for char in value) + '"'
    return str(value).lower()


@examples(400)
@given(data=restructured())
def test_pins_of_another_structure_say_what_they_say_or_are_one_sentence(tmp_path: Path, data: dict[str, Any]) -> None:
    text = "\n".join(f"{_toml(key)} = {_toml(value)}" for key, value in data.items())
    assert tomllib.loads(text) == data
    check_pins(tmp_path / "pins.toml", text.encode())


STATEMENTS = [at for at, line in enumerate(TEXT.split("\n")) if " = " in line]


@examples(len(STATEMENTS) * 3)
@given(at=st.sampled_from(STATEMENTS), other=st.sampled_from(["[[3]]", "{ odd = 3 }", "= 3"]))
def test_the_line_is_the_one_that_was_damaged(tmp_path: Path, at: int, other: str) -> None:
    lines = TEXT.split("\n")
    closed = lines.index("]", at) + 1 if lines[at].endswith("[") else at + 1
    lines[at:closed] = [lines[at].partition(" = ")[0] + " = " + other]
    raw = "\n".join(lines).encode()
    file = tmp_path / "pins.toml"
    file.write_bytes(raw)
    with pytest.raises(UsageError) as error:
        load_lines(file)
    assert check_sentence(error.value, file, raw) == at + 1


@pytest.mark.parametrize("key", ["tag", "commit", "version", "paths", "wheels", "repository"])
@pytest.mark.parametrize("upstream", ["toy", "gear"])
def test_what_is_missing_is_missing_in_the_line_of_its_table(tmp_path: Path, key: str, upstream: str) -> None:
    lines = TEXT.split("\n")
    table = lines.index(f"[line.v1.{upstream}]")
    del lines[next(at for at in range(table, len(lines)) if lines[at].startswith(key))]
    raw = "\n".join(lines).encode()
    file = tmp_path / "pins.toml"
    file.write_bytes(raw)
    with pytest.raises(UsageError, match=f"missing {key}") as error:
        load_lines(file)
    assert check_sentence(error.value, file, raw) == table + 1


# ---- the listing of a series


@pytest.mark.case("a damaged series file", target="series", outcome="refused")
@examples(400)
@given(data=st.data())
def test_a_damaged_listing_is_the_slugs_it_shows_or_names_its_first_wrong_line(
    tmp_path: Path, data: st.DataObject
) -> None:
    raw = data.draw(st.one_of(damaged(b"right-answer\nbring-hook\nmore-gears\n"), st.binary(max_size=20)))
    file = tmp_path / "series"
    file.write_bytes(raw)
    rows = [line.removesuffix(b"\r") for line in raw.split(b"\n")]
    wrong = [at for at, row in enumerate(rows, 1) if row and (not SLUG.fullmatch(row) or row in rows[: at - 1])]
    try:
        names = series_names(file)
    except UsageError as error:
        assert check_sentence(error, file, raw) == wrong[0]
        return
    assert not wrong
    assert names == [row.decode() for row in rows if row]


@pytest.mark.case("a damaged patch file", target="series", outcome="refused")
@examples(120)
@given(data=st.data())
def test_a_series_with_a_damaged_file_is_refused_by_file_and_line_or_names_its_patches(
    toy: Toy, data: st.DataObject
) -> None:
    """Through the door that a user takes; what may stand in a patch of this form, lint and the applier judge."""
    folder = toy.home.patches("v1", "toy")
    file = data.draw(st.sampled_from(sorted(folder.iterdir())))
    whole = file.read_bytes()
    file.write_bytes(data.draw(damaged(whole)))
    try:
        series = load_series(toy.home, toy.pin())
        assert list(series.slugs) == series_names(folder / "series")
        assert all(patch.edits for patch in series.patches)
    except UsageError as error:
        overlay = error.what.startswith(str(toy.home.overlay("toy")))  # the file that a trailer names
        named = next((path for path in folder.iterdir() if error.what.startswith(f"{path}:")), folder / "none")
        assert overlay or check_sentence(error, named, named.read_bytes())
    finally:
        file.write_bytes(whole)
