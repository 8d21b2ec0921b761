"""File systems that are really full or read-only: refused or undone in two sentences, and what lies there is as before.

They are small ones in memory and read-only views, mounted for the test; where the machine does not allow that, skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from .cuts import two_sentences
from .ground import Ground
from .scenes import Answer, Venv, ask, snapshot
from .toy import Toy

TOOLS = Path(__file__).parents[2] / "tools"
PAGE = os.sysconf("SC_PAGE_SIZE")
FULL = "the disk is full"
READ_ONLY = "the file system is read-only"


def mount(*arguments: object) -> None:
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this machine lets no one mount: {done.stderr.strip()}")


@contextmanager
def mounted(place: Path, *arguments: object) -> Iterator[None]:
    if shutil.which("mount") is None:
        pytest.skip("this machine has no mount")
    place.mkdir(exist_ok=True)
    mount(*arguments, place)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@contextmanager
def read_only(*places: Path) -> Iterator[None]:
    """These folders as they are, but not to be written."""
    with ExitStack() as stack:
        for place in places:
            stack.enter_context(mounted(place, "--bind", place))
            mount("-o", "remount,ro,bind", place)
        yield


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=2m", "tmpfs"):
        yield tmp_path / "disk"


def leave_free(disk: Path, pages: int) -> Path:
    """Fills it up but for some pages."""
    ballast = disk / "ballast"
    ballast.unlink(missing_ok=True)
    ballast.write_bytes(bytes(os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize - pages * PAGE))
    return ballast


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("checkout", marks=pytest.mark.case(FULL, target="checkout", outcome="undone")),
        pytest.param("installed", marks=pytest.mark.case(FULL, target="installed", outcome="undone")),
    ],
)
def test_a_target_on_a_disk_that_fills_up_is_as_before(kind: str, grounds: Callable[[str], Ground], disk: Path) -> None:
    """With room for no page, for one, for two, until there is room for all."""
    ground = replace(grounds(kind), target=disk / "target")
    pages, full = 0, 0
    while True:
        (disk / "ballast").unlink(missing_ok=True)
        ground.fresh("older")
        before = sorted((ground.target / ".git").iterdir()) if kind == "checkout" else []
        ballast = leave_free(disk, pages)
        answer = ground.bring("newer")
        if answer.code == 0:
            break
        full += 1
        assert (answer.code, two_sentences(answer)) == (4, True), (pages, answer)
        assert "space" in answer.err, (pages, answer)
        ballast.unlink()
        if "cannot be undone now" in answer.err:
            assert ground.journal.exists()
            assert set(ground.tell("status", "newer").states().values()) == {"interrupted"}
        else:
            assert ground.now() == ground.facts["older"], (pages, answer)
            after = sorted((ground.target / ".git").iterdir()) if kind == "checkout" else []
            strange = [path.name for path in after if path not in before and "fast_import_crash" not in path.name]
            assert not strange, pages
        assert ground.bring("newer").code == 0
        assert ground.now() == ground.facts["newer"], pages
        pages += 1
    assert ground.now() == ground.facts["newer"]
    assert full > 5


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        pytest.param("checkout", ["."], marks=pytest.mark.case(READ_ONLY, target="checkout", outcome="refused")),
        pytest.param("checkout", [".git"]),
        pytest.param("checkout", ["python/toy"]),
        pytest.param("installed", ["."], marks=pytest.mark.case(READ_ONLY, target="installed", outcome="refused")),
        pytest.param("installed", ["toy"]),
        pytest.param("installed", ["toy-1.0.dist-info"]),
    ],
)
def test_a_target_that_is_read_only_is_refused_and_as_before(
    grounds: Callable[[str], Ground], kind: str, parts: list[str]
) -> None:
    """Also where only a part of it is: what was written elsewhere is undone."""
    ground = grounds(kind)
    for start, goal in (("older", "newer"), ("newer", "pin"), ("pin", "newer")):
        ground.fresh(start)
        with read_only(*(ground.files / part for part in parts)):
            answer = ground.bring(goal)
            assert (answer.code, two_sentences(answer)) == (4, True), answer
            assert ground.now() == ground.facts[start], answer
            if kind == "installed":  # a checkout's commits are built, as objects, before that is known
                assert ground.bring(start).code == 0, "there was nothing to do"
            assert ground.tell("status", start).code == (1 if start == "pin" else 0)
        assert ground.bring(goal).code == 0
        assert ground.now() == ground.facts[goal]


@pytest.mark.case(READ_ONLY, target="export", outcome="refused")
def test_a_project_that_is_read_only_is_not_exported_to(toy: Toy) -> None:
    clone = toy.root / "author-toy"
    slug = toy.home.root / "patches/v1/toy/right-answer.patch"
    slug.write_bytes(slug.read_bytes().replace(b"What breaks", b"What broke"))
    before = snapshot(toy.home.root, stats=True)
    with read_only(toy.home.root):
        answer = ask("export", clone)
        assert (answer.code, two_sentences(answer)) == (4, True), answer
        assert "Read-only" in answer.err
        assert ask("export", "--check", clone).code == 1
    assert snapshot(toy.home.root, stats=True) == before


@pytest.mark.case(FULL, target="source", outcome="undone")
@pytest.mark.parametrize("source", ["git", "pypi"])
def test_a_cache_that_is_full_leaves_no_checkout_and_nothing_half_in_the_cache(
    toy: Toy, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setenv("SM120_OVERLAY_CACHE", str(disk))
    apply = partial(ask, "apply", "--into", tmp_path / "fresh", "--only", "toy", "--source", source)
    for pages in (0, 1, 2, 3, 5, 8):
        leave_free(disk, pages)
        answer = apply()
        if pages and answer.code == 0:  # it was enough
            break
        assert answer.code == 4, (pages, answer)
        assert "Traceback" not in answer.err and "→" in answer.err, answer
        assert str(disk) in answer.err or "No space left" in answer.err, (pages, answer)
        assert not (tmp_path / "fresh/toy").exists()
    (disk / "ballast").unlink()
    answer = apply()
    assert answer.code == 0, answer
    assert answer.states() == {"right-answer": "applied", "bring-hook": "applied"}


@pytest.mark.case(FULL, target="source", outcome="undone")
def test_a_place_for_a_fresh_checkout_that_is_full_is_left_empty(toy: Toy, disk: Path) -> None:
    apply = partial(ask, "apply", "--into", disk / "fresh", "--only", "toy", "--source", toy.upstream())
    for pages in (0, 1, 2, 4, 8, 16, 24):
        ballast = leave_free(disk, pages)
        answer = apply()
        assert answer.code in (1, 4), (pages, answer)
        assert "Traceback" not in answer.err and str(disk) in answer.err, answer
        ballast.unlink()
        assert not (disk / "fresh/toy").exists() or ask("status", disk / "fresh/toy").code in (0, 1)
        assert not [path for path in disk.rglob("*") if "partial" in path.name], pages
        shutil.rmtree(disk / "fresh", ignore_errors=True)
    assert apply().code == 0


def test_a_folder_for_temporary_files_that_is_full_is_said(
    toy: Toy, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = toy.clone()
    before = snapshot(clone, skip=())
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    leave_free(disk, 0)
    answer = ask("apply", clone)
    assert (answer.code, two_sentences(answer)) == (4, True), answer
    assert "temporary file" in answer.err and "TMPDIR" in answer.err
    assert snapshot(clone, skip=()) == before


def test_an_answer_that_cannot_be_written_is_said_without_a_traceback(toy: Toy) -> None:
    shutil.copytree(TOOLS, toy.home.root / "tools", ignore=shutil.ignore_patterns("__pycache__", "serving"))
    clone = toy.clone()
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, str(toy.home.root / "tools/status.py"), str(clone)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 4, done
    assert "Standard output" in done.stderr and "No space left" in done.stderr
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_a_file_system_that_cannot_lock_is_refused_in_a_sentence(
    grounds: Callable[[str], Ground], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As some network file systems are."""

    def no_lock(_descriptor: int, _how: int) -> None:
        raise OSError(37, os.strerror(37))

    ground = grounds("installed")
    ground.fresh("older")
    monkeypatch.setattr("sm120_overlay.queue.transaction.fcntl.flock", no_lock)
    answer: Answer = ground.bring("newer")
    assert (answer.code, two_sentences(answer)) == (1, True)
    assert "be locked" in answer.err and str(Venv(ground.target).info()) in answer.err
    assert ground.now() == ground.facts["older"]
