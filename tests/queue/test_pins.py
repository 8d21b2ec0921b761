"""The pins as data: the path map is one to one, and whatever is wrong in the file is one clear sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm120_overlay.cli import main
from sm120_overlay.errors import UsageError
from sm120_overlay.queue.home import find_home
from sm120_overlay.queue.pins import Absent, Pin, load_lines

from .toy import Toy

PINS = load_lines(find_home().pins).all_pins()
FOLDERS = st.sampled_from(
    [
        "python/sglang/",
        "sglang/",
        "flashinfer/",
        "flashinfer/data/",
        "csrc/",
        "include/",
        "data/",
        "tests/",
        "x/",
        "srt/",
    ]
)
NAMES = st.sampled_from(["a.py", "_version.py", "_build_meta.py", "kernel.cu", "flashinfer", "csrc", ".clang-format"])
PATHS = st.builds(lambda folders, name: "".join(folders) + name, st.lists(FOLDERS, max_size=3), NAMES)


@settings(max_examples=300)
@given(path=PATHS, pin=st.sampled_from(PINS))
def test_the_path_map_of_every_pin_is_one_to_one(path: str, pin: Pin) -> None:
    installed = pin.installed_path(path)
    if installed is not None:
        assert pin.repository_path(installed) == path
    back = pin.repository_path(path)
    if back is not None:
        assert pin.installed_path(back) == path


@settings(max_examples=300)
@given(
    path=PATHS,
    maps=st.dictionaries(FOLDERS, FOLDERS, min_size=1, max_size=4).filter(lambda m: len({*m.values()}) == len(m)),
    excluded=st.lists(FOLDERS, max_size=2),
)
def test_an_installed_path_leads_back_to_a_file_that_is_installed_there(
    path: str, maps: dict[str, str], excluded: list[str]
) -> None:
    pin = replace(PINS[0], paths=tuple(maps.items()), excluded=tuple(excluded))
    back = pin.repository_path(path)
    assert back is None or pin.installed_path(back) == path


def test_two_repository_files_never_share_one_installed_place() -> None:
    pin = replace(PINS[0], paths=(("gear/", "gear/"), ("csrc/", "gear/data/csrc/")), excluded=())
    places = [pin.installed_path(path) for path in ("gear/data/csrc/k.cu", "csrc/k.cu")]
    assert places == [None, "gear/data/csrc/k.cu"]


def test_the_longest_prefix_wins_and_an_exclusion_counts_only_inside_its_mapping(toy: Toy) -> None:
    pin = toy.pin("gear")
    assert pin.installed_path("gear/x.py") == "gear/x.py"
    assert pin.installed_path("csrc/kernel.cu") == "gear/data/csrc/kernel.cu"
    assert pin.installed_path("gear/data/lib/cutlass.h") is None
    assert pin.installed_path("gear/data/csrc/kernel.cu") is None
    assert pin.installed_path("tests/test_gear.py") is None
    assert pin.repository_path("gear/data/lib/cutlass.h") is None
    assert pin.repository_path("gear_python-1.0.dist-info/RECORD") is None
    assert toy.pin().installed_path("python/toy/_version.py") is None
    assert toy.pin().repository_path("toy/_version.py") is None
    assert toy.pin().installed_path("python/toyish/x.py") is None


@pytest.mark.parametrize("path", ["python/toy/../../etc/passwd", "python/toy/./core.py", "python/toy//core.py"])
def test_a_path_that_climbs_has_no_place_in_the_package(toy: Toy, path: str) -> None:
    assert toy.pin().installed_path(path) is None


def test_modes_are_those_that_git_has(toy: Toy) -> None:
    assert toy.pin().mode("python/toy/run.py") == "100755"
    assert toy.pin().mode("python/toy/core.py") == "100644"


def test_an_unknown_line_or_upstream_is_named_with_those_there_are(toy: Toy) -> None:
    lines = load_lines(toy.home.pins)
    assert lines.line(None) == lines.line("v1")
    with pytest.raises(UsageError, match="no line 'v9'") as error:
        lines.line("v9")
    assert "v1" in error.value.todo
    with pytest.raises(UsageError, match="no upstream 'tow'") as error:
        lines.line("v1").pin("tow")
    assert "toy, gear" in error.value.todo


def _swap(old: str, new: str) -> Callable[[str], str]:
    return lambda text: re.sub(old, new, text, count=1)


def _absent(text: str) -> Callable[[str], str]:
    return _swap(r'tag = "v1.0"', f'tag = "v1.0"\n{text}'.replace("\\", r"\\"))


BAD: dict[str, tuple[Callable[[str], str], str]] = {
    "unknown field": (_swap(r'tag = "v1.0"', 'tag = "v1.0"\ncolour = "red"'), "colour"),
    "missing field": (_swap(r"commit = .*\n", ""), "commit"),
    "unknown wheel field": (_swap(r"sha256 = ", "colour = 1, sha256 = "), "colour"),
    "wheel without root": (_swap(r', root = "[^"]*"', ""), "root"),
    "no paths": (_swap(r"paths = .*\n", ""), "paths"),
    "no wheels": (_swap(r"wheels.*\n", ""), "wheels"),
    "paths of another kind": (_swap(r"paths = .*\n", 'paths = "x"\n'), "toy"),
    "wheels of another kind": (_swap(r"wheels.*\n", 'wheels = "x"\n'), "toy"),
    "a schema of tomorrow": (_swap(r"schema = 1", "schema = 2"), "schema 1, found 2"),
    "no schema": (_swap(r"schema = 1\n", ""), "schema"),
    "not TOML": (_swap(r"\[line.v1.toy\]", "[line.v1.toy"), "line"),
    "twice the same key": (_swap(r"schema = 1", "schema = 1\nschema = 1"), "line 2"),
    "not UTF-8": (lambda text: text + "# \udcff\n", "utf-8"),
    "no lines": (lambda text: 'schema = 1\ndefault = "v1"\n', "line"),
    "no default": (_swap(r'default = "v1"\n', ""), "default"),
    "a default that is no line": (_swap(r'default = "v1"', 'default = "v0"'), "v0"),
    "a line that is no table": (lambda text: 'schema = 1\ndefault = "v1"\n[line]\nv1 = 3\n', "v1"),
    "an upstream that is no table": (_swap(r"\[line.v1.joint\]", "[line.v1]\nodd = 3\n[line.v1.joint]"), "odd"),
    "a number for text": (_swap(r'version = "1.0"', "version = 1.0"), "version"),
    "a short commit": (_swap(r'commit = "\w+"', 'commit = "abc"'), "commit"),
    "a text for a list": (_swap(r"excluded = .*\n", 'excluded = "toy/_version.py"\n'), "excluded"),
    "absent patches that are no table": (_absent('absent = "late-fix"'), "toy, absent: expected a table"),
    "an absent patch of no slug": (_absent('absent."Late Fix" = "n/a: it is not needed in this one"'), "Late Fix"),
    "an absent patch without text": (_absent("absent.late-fix = 3"), "expected text, found 3"),
    "an absent patch without a reason": (_absent('absent.late-fix = "n/a"'), "`n/a: REASON`"),
    "an absent patch with a word for a reason": (_absent('absent.late-fix = "n/a: unneeded"'), "`n/a: REASON`"),
    "an absent patch with a reason of two lines": (
        _absent('absent.late-fix = "n/a: it is not needed\\nin this line"'), "in one line"
    ),
    "an absent patch of a state of its own": (_absent('absent.late-fix = "later: when somebody has time"'), "later"),
    "an absorbed patch without a change": (_absent('absent.late-fix = "absorbed: v1.2"'), "PROJECT#NUMBER"),
    "an absorbed patch without a release": (_absent('absent.late-fix = "absorbed: toy#12"'), "vVERSION"),
}  # fmt: skip


def test_what_a_line_does_without_is_read_with_its_state_and_its_reason(toy: Toy) -> None:
    assert toy.pin().absent == ()
    lines = (
        'absent.late-fix = "n/a: the function that it mends is not there yet"\n'
        'absent.old-fix = "absorbed: toy#12, v1.2.post1"'
    )
    toy.home.pins.write_text(_absent(lines)(toy.home.pins.read_text()))
    assert toy.pin().absent == (
        Absent("late-fix", "n/a", "the function that it mends is not there yet"),
        Absent("old-fix", "absorbed", "toy#12, v1.2.post1"),
    )
    assert toy.pin("gear").absent == ()


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_in_the_pins_is_one_sentence_that_names_it(
    toy: Toy, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change, named = BAD[case]
    text = change(toy.home.pins.read_text())
    assert text != toy.home.pins.read_text()
    toy.home.pins.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError) as error:
        load_lines(toy.home.pins)
    assert re.match(re.escape(str(toy.home.pins)) + r":\d+: ", error.value.what)
    assert named in error.value.what
    assert error.value.todo
    assert main(["lint"]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "at"),
    [
        ('tag = "v1.0"', "tag = 3", "tag = 3"),
        ('tag = "v1.0"\n', "", "[line.v1.toy]"),
        ('tag = "v1.0"', 'tag = "v1.0"\nodd = 1', "odd = 1"),
        ('tag = "v1.0"', "tag = ", "tag = "),
        ("default =", "other =", 'other = "v1"'),
        ("[line.v1.gear]", "[line.v1.gear.deeper]", "[line.v1.gear.deeper]"),
    ],
)
def test_the_line_is_that_of_the_key_or_of_the_table_that_lacks_it(toy: Toy, old: str, new: str, at: str) -> None:
    text = toy.home.pins.read_text().replace(old, new, 1)
    toy.home.pins.write_text(text)
    with pytest.raises(UsageError) as error:
        load_lines(toy.home.pins)
    assert error.value.what.startswith(f"{toy.home.pins}:{text.split(chr(10)).index(at) + 1}: ")


def test_missing_pins_are_named(tmp_path: Path) -> None:
    with pytest.raises((UsageError, FileNotFoundError), match=r"pins\.toml"):
        load_lines(tmp_path / "pins.toml")
