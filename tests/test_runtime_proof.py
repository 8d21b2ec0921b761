"""What the tools write is what the patched server reads: the real series on real wheels, by the patch's own code."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay.cli import main
from sm120_overlay.queue.home import find_home
from sm120_overlay.queue.pins import Pin, load_lines
from sm120_overlay.queue.series import load_series
from sm120_overlay.queue.transaction import replace_file
from sm120_overlay.queue.wheels import fetch_wheel

pytestmark = [pytest.mark.slow, pytest.mark.network]
LINE = load_lines(find_home().pins).line(None)
READER = "python/sglang/srt/overlay_manifest.py"
# What a server's process does at start, without the rest of sglang: all that it logs, then the route's answer.
STARTS = """
import json, logging, runpy, sys
logging.basicConfig(level="INFO", stream=sys.stderr, format="%(message)s")
sys.path[:0] = sys.argv[2:]
module = runpy.run_path(sys.argv[1], run_name="overlay_manifest")
try:
    module["check_overlay"]()
except RuntimeError as error:
    print(error, file=sys.stderr)
print(json.dumps(module["overlay_report"]()))
"""


def start(
    reader: Path, *path: Path, python: Path | str = sys.executable, strict: str = "1"
) -> tuple[str, dict[str, Any]]:
    """What the patched code says at start, and what its route would answer."""
    done = subprocess.run(
        [python, "-I", "-B", "-c", STARTS, str(reader), *map(str, path)],
        env={"SM120_OVERLAY_STRICT": strict}, cwd="/", capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stderr, json.loads(done.stdout)


def told(pin: Pin) -> dict[str, Any]:
    """What it must say of an upstream with its whole series."""
    series = load_series(find_home(), pin)
    return {
        "line": pin.line, "version": pin.version, "digest": series.digest, "patches": list(series.slugs),
        "ok": True, "trouble": None, "drifted": [],
    }  # fmt: skip


WHOLE = {pin.upstream: told(pin) for pin in LINE.pins}


def patched(upstream: str) -> str:
    """A file that is there before and after, by its path in the repository."""
    series = load_series(find_home(), LINE.pin(upstream))
    return next(edit.path for patch in series.patches for edit in patch.edits if edit.old and edit.new)


def check_drift(file: Path, path: str, said: tuple[str, dict[str, Any]], upstream: str) -> None:
    log, answer = said
    assert "refuses to start" in log and str(file) in log
    assert answer["ok"] is answer["upstreams"][upstream]["ok"] is False
    assert [drift["file"] for drift in answer["upstreams"][upstream]["drifted"]] == [path]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The line's upstreams as pip installs them, with the series on: interpreter and site-packages."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    wheels = [str(fetch_wheel(pin, lambda text: None)) for pin in LINE.pins]
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*command, *wheels], check=True, capture_output=True)
    assert main(["apply", "--installed", str(python)]) == 0
    return python, next(folder.glob("lib/python*/site-packages"))


def test_an_installed_line_is_found_whole(environment: tuple[Path, Path]) -> None:
    python, site = environment
    log, answer = start(site / READER.removeprefix("python/"), python=python)
    assert answer == {"schema": 1, "ok": True, "upstreams": WHOLE}
    assert len(log.splitlines()) == 1
    assert all(told["digest"] in log for told in WHOLE.values())


@pytest.mark.parametrize("upstream", WHOLE)
def test_an_edited_file_of_an_installed_line_is_found(environment: tuple[Path, Path], upstream: str) -> None:
    python, site = environment
    path = patched(upstream)
    file = site / str(LINE.pin(upstream).installed_path(path))
    kept = file.read_bytes()
    replace_file(file, kept + b"\n")
    try:
        check_drift(file, path, start(site / READER.removeprefix("python/"), python=python), upstream)
    finally:
        replace_file(file, kept)


def test_a_part_of_the_series_is_told_as_that_part(environment: tuple[Path, Path]) -> None:
    python, site = environment
    last = load_series(find_home(), LINE.pin("flashinfer")).slugs[0]
    assert main(["apply", "--installed", str(python), "--only", "flashinfer", "--through", last]) == 0
    _, answer = start(site / READER.removeprefix("python/"), python=python)
    assert answer["ok"] and answer["upstreams"]["flashinfer"]["patches"] == [last]
    assert main(["apply", "--installed", str(python), "--only", "flashinfer", "--reverse"]) == 0
    _, answer = start(site / READER.removeprefix("python/"), python=python)
    assert answer["ok"] and answer["upstreams"]["flashinfer"]["digest"] is None
    assert main(["apply", "--installed", str(python)]) == 0


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fresh checkouts with the series on; FlashInfer's too, as an editable install has it on the path."""
    into = tmp_path_factory.mktemp("fresh")
    assert main(["apply", "--source", "pypi", "--into", str(into)]) == 0
    return into


def test_checkouts_of_the_line_are_found_whole_and_an_edited_file_is_found(fresh: Path) -> None:
    reader, gears = fresh / "sglang" / READER, fresh / "flashinfer"
    assert start(reader, gears)[1] == {"schema": 1, "ok": True, "upstreams": WHOLE}
    for upstream in WHOLE:
        file = fresh / upstream / patched(upstream)
        kept = file.read_bytes()
        file.write_bytes(kept + b"\n")
        check_drift(file, patched(upstream), start(reader, gears), upstream)
        file.write_bytes(kept)


def test_the_manifest_of_another_worktree_is_not_taken(fresh: Path, tmp_path: Path) -> None:
    """The same commit, so the same files; but nothing of ours was done there, and nothing would see a change."""
    linked = tmp_path / "linked"
    add = ["git", "worktree", "add", "-q", "--detach", str(linked)]
    subprocess.run(add, cwd=fresh / "sglang", check=True, capture_output=True)
    assert "manifest is not found" in start(linked / READER)[0]


def test_an_environment_inside_a_patched_checkout_is_not_taken_for_it(fresh: Path) -> None:
    """Its package has no manifest of its own, and the checkout's is of other files."""
    inside = fresh / "sglang/venv/lib/python3/site-packages/sglang/srt/overlay_manifest.py"
    inside.parent.mkdir(parents=True)
    inside.write_bytes((fresh / "sglang" / READER).read_bytes())
    assert "manifest is not found" in start(inside)[0]
