"""The traps of moving a patch, on upstream's real code: two releases of SGLang, as their wheels have it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm120_overlay.queue.build import Said, build_on
from sm120_overlay.queue.carry import Carried, State, carry, ground_at
from sm120_overlay.queue.export import export_range, exported_series
from sm120_overlay.queue.git import Repository, attempt, git_path, objects_alone, read_objects
from sm120_overlay.queue.home import find_home
from sm120_overlay.queue.pins import Pin, load_lines
from sm120_overlay.queue.sources import find_source

from ..queue.toy import message

ENGINE = "python/sglang/srt/entrypoints/engine.py"
PACKING = "python/sglang/srt/eplb/eplb_algorithms/deepseek.py"


@pytest.fixture(autouse=True)
def own_cache() -> None:
    """Not a cache of its own: the wheels are those of the whole suite."""


@pytest.fixture(scope="module")
def pins() -> dict[str, Pin]:
    """Line → SGLang's pin."""
    return {line.name: line.pin("sglang") for line in load_lines(find_home().pins).lines}


@pytest.fixture(scope="module")
def repo(pins: dict[str, Pin]) -> Iterator[Repository]:
    """Every pin's tree, laid out from its wheel; what is made there goes with it."""
    sources = [find_source(pin, "pypi", print) for pin in pins.values()]
    with objects_alone(sources[0].repository) as alone:
        yield alone


def text_at(repo: Repository, pin: Pin, path: str) -> str:
    """A file at a pin."""
    found = read_objects(repo, [f"{pin.wheels[0].root}:{path}"])
    (only,) = found.values()
    assert only is not None, path
    return only.data.decode()


def moved(repo: Repository, old: Pin, new: Pin, path: str, text: str) -> tuple[Carried, str]:
    """How a patch that makes `path` this text goes onto the new pin, and the file then."""
    base = old.wheels[0].root
    said = Said("A <a@example.org>", "A <a@example.org>", "Mon, 2 Mar 2026 12:00:00 +0000", message("trap"))
    tip = build_on(repo, base, said, {path: (old.mode(path), text.encode())})
    series = exported_series(old, export_range(repo, git_path(repo, "objects").parent, base, tip))
    ground = ground_at(repo, base, series, new.wheels[0].root)
    ((carried,),) = carry(repo, series, [ground])
    entry = carried.files.get(path)
    after = read_objects(repo, [entry.blob])[entry.blob] if entry else None
    return carried, after.data.decode() if after else text_at(repo, new, path)


def applied_by_git(repo: Repository, old: Pin, new: Pin, path: str, text: str, folder: Path) -> str:
    """What `git apply`, without any fuzz, makes of the new pin's file with the same patch."""
    file = folder / path
    file.parent.mkdir(parents=True)
    run = Repository(folder)
    for step, content in (("old", text_at(repo, old, path)), ("mine", text)):
        (folder / step).write_text(content)
    _, diff, _ = attempt(run, "diff", "--no-index", "old", "mine")
    named = diff.replace(b"a/old", b"a/" + path.encode()).replace(b"b/mine", b"b/" + path.encode())
    file.write_text(text_at(repo, new, path))
    code, _, err = attempt(run, "apply", "-", stdin=named)
    assert code == 0, err
    return file.read_text()


def function_of(text: str, marked: str) -> str:
    """The function that a marked line stands in."""
    above = text[: text.index(marked)]
    return str(re.findall(r"^ *(?:async )?def (\w+)", above, re.MULTILINE)[-1])


def test_a_hunk_does_not_go_into_a_function_that_looks_the_same(
    repo: Repository, pins: dict[str, Pin], tmp_path: Path
) -> None:
    """Engine.generate and async_generate have the same parameters, and lie elsewhere two releases later."""
    old, new = pins["v0.5.9"], pins["v0.5.23"]
    text = text_at(repo, old, ENGINE)
    line = "        sampling_params: Optional[Union[List[Dict], Dict]] = None,\n"
    start = text.index(line, text.index("async def async_generate"))
    text = text[:start] + line.replace("None", "None or {}") + text[start + len(line) :]
    assert function_of(text, "None or {}") == "async_generate"
    assert function_of(applied_by_git(repo, old, new, ENGINE, text, tmp_path), "None or {}") == "generate"
    carried, after = moved(repo, old, new, ENGINE, text)
    assert carried.state in (State.CLEAN, State.MOVED)
    assert function_of(after, "None or {}") == "async_generate"
    assert after.count("None or {}") == 1


def test_a_fix_that_upstream_took_with_an_edit_two_lines_on_is_absorbed(repo: Repository, pins: dict[str, Pin]) -> None:
    old, new = pins["v0.5.9"], pins["v0.5.16"]
    theirs = ("for group in indices[i]:", "for group in indices_list[i]:")
    text = text_at(repo, old, PACKING)
    assert text.count(theirs[0]) == 1
    assert theirs[1] in text_at(repo, new, PACKING)
    carried, _ = moved(repo, old, new, PACKING, text.replace(*theirs))
    assert carried.state is State.ABSORBED


def test_a_fix_that_upstream_took_in_part_leaves_the_other_part(repo: Repository, pins: dict[str, Pin]) -> None:
    old, new = pins["v0.5.9"], pins["v0.5.16"]
    text = text_at(repo, old, PACKING)
    ours = ("import torch\n", "import torch  # ours\n")
    assert text.count(ours[0]) == 1
    both = text.replace("for group in indices[i]:", "for group in indices_list[i]:").replace(*ours)
    carried, after = moved(repo, old, new, PACKING, both)
    assert carried.state is State.CLEAN
    assert "upstream has a part of it" in carried.why
    assert after == text_at(repo, new, PACKING).replace(*ours)


def test_a_change_of_what_upstream_rewrote_is_a_conflict(repo: Repository, pins: dict[str, Pin]) -> None:
    old, new = pins["v0.5.9"], pins["v0.5.16"]
    text = text_at(repo, old, PACKING).replace("for group in indices[i]:", "for group in reversed(indices[i]):")
    carried, after = moved(repo, old, new, PACKING, text)
    assert (carried.state, carried.stopped) == (State.CONFLICT, (PACKING,))
    assert after == text_at(repo, new, PACKING)
