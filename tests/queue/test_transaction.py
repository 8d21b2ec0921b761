"""The journaled writer: cut at every point it changes something, it comes back whole; one run at a time."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay.errors import OverlayError, Refused
from sm120_overlay.queue.transaction import (
    Workplace,
    Write,
    begin,
    carry_out,
    finish,
    locked,
    read_file,
    recover,
    replace_file,
)

from .cuts import cut_at
from .scenes import ask, copy_venv, make_newer, make_venv, snapshot
from .toy import TOY, Toy, git, write

PIN = {path: text.encode() for path, text in TOY.items()}
WRITES = (
    Write("kept/one.py", b"one\n", b"ONE\n"),
    Write("kept/gone.py", b"gone\n", None),
    Write("alone/gone.py", b"alone\n", None),
    Write("fresh/deep/new.py", None, b"new\n"),
    Write("kept/run.sh", None, b"#!/bin/sh\n", 0o755),
)


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    root = tmp_path / "tree"
    write(root, {write_.path: write_.before for write_ in WRITES if write_.before is not None})
    write(root, {"kept/other.py": "other\n", "alone/__pycache__/gone.cpython-311.pyc": b"compiled"})
    return Workplace(tmp_path / "state", root)


def undo_nothing(note: dict[str, Any]) -> None:
    assert note == {"note": 1}


def work(place: Workplace) -> None:
    begin(place, WRITES, {"note": 1})
    carry_out(place, WRITES)
    finish(place)


def files(place: Workplace) -> dict[str, bytes]:
    return {str(path.relative_to(place.root)): path.read_bytes() for path in place.root.rglob("*") if path.is_file()}


def whole(place: Workplace) -> bool:
    """Every touched file is as before or as after."""
    return all(read_file(place.root / entry.path) in (entry.before, entry.after) for entry in WRITES)


AFTER = {
    "kept/one.py": b"ONE\n", "kept/other.py": b"other\n", "fresh/deep/new.py": b"new\n", "kept/run.sh": b"#!/bin/sh\n",
}  # fmt: skip


def test_all_files_are_as_wanted_and_nothing_of_the_run_is_left(place: Workplace) -> None:
    work(place)
    assert files(place) == AFTER
    assert not (place.root / "alone").exists()
    assert not place.folder.exists()


def test_a_run_cut_before_any_change_it_makes_is_undone_by_recover(place: Workplace, tmp_path: Path) -> None:
    start = files(place)
    step, more = 0, True
    while more:
        here = Workplace(tmp_path / f"{step}" / "state", tmp_path / f"{step}" / "tree")
        shutil.copytree(place.root, here.root)
        more = cut_at(step, here.root.parent, partial(work, here))
        assert whole(here), step
        cut = here.journal.is_file()
        assert recover(here, undo_nothing) == cut
        assert not here.journal.exists()
        now = files(here)
        if cut or now.keys() & {"kept/gone.py"}:
            now.setdefault("alone/__pycache__/gone.cpython-311.pyc", b"compiled")  # Python makes it again
            assert now == start, step
        else:
            assert now == AFTER, step
        step += 1
    assert step > 20


def test_recover_cut_before_any_change_it_makes_is_finished_by_the_next(place: Workplace) -> None:
    start = files(place)
    step = 0
    more = True
    while more:
        begin(place, WRITES, {"note": 1})
        carry_out(place, WRITES)
        more = cut_at(step, place.root.parent, lambda: recover(place, undo_nothing))
        assert whole(place)
        recover(place, undo_nothing)
        write(place.root, {"alone/__pycache__/gone.cpython-311.pyc": b"compiled"})
        assert files(place) == start, f"cut at {step}"
        step += 1
    assert step > 10


def test_a_cut_run_leaves_no_folder_that_was_not_there(place: Workplace) -> None:
    begin(place, WRITES, {"note": 1})
    (place.root / "fresh" / "deep").mkdir(parents=True)  # where a run stands just before it writes the file
    recover(place, undo_nothing)
    assert not (place.root / "fresh").exists()


def test_recover_without_a_journal_does_nothing(place: Workplace) -> None:
    start = snapshot(place.root, stats=True)
    assert not recover(place, undo_nothing)
    assert snapshot(place.root, stats=True) == start


def test_a_file_edited_after_the_cut_is_refused_by_name_and_nothing_changes(place: Workplace) -> None:
    begin(place, WRITES, {"note": 1})
    carry_out(place, WRITES)
    write(place.root, {"kept/one.py": "mine\n"})
    start = snapshot(place.root, stats=True)
    with pytest.raises(Refused, match=r"kept/one\.py") as refused:
        recover(place, undo_nothing)
    assert snapshot(place.root, stats=True) == start
    # What it tells the user to do works, and the way back is still there.
    kept = Path(refused.value.todo.partition("(")[2].partition(")")[0])
    write(place.root, {"kept/one.py": kept.read_bytes()})
    assert recover(place, undo_nothing)
    assert (place.root / "kept" / "one.py").read_bytes() == b"one\n"
    assert (place.root / "kept" / "gone.py").read_bytes() == b"gone\n"


def test_a_deleted_file_that_the_user_made_again_is_not_overwritten(place: Workplace) -> None:
    begin(place, WRITES, {"note": 1})
    carry_out(place, WRITES)
    write(place.root, {"kept/gone.py": "mine\n"})
    with pytest.raises(Refused, match=r"kept/gone\.py"):
        recover(place, undo_nothing)
    assert (place.root / "kept" / "gone.py").read_bytes() == b"mine\n"


def test_a_journal_that_is_no_json_is_an_error_with_a_sentence_and_not_a_traceback(place: Workplace) -> None:
    begin(place, WRITES, {"note": 1})
    place.journal.write_bytes(b"")
    with pytest.raises(OverlayError):
        recover(place, undo_nothing)


def test_a_deleted_file_comes_back_with_its_own_mode(place: Workplace) -> None:
    (place.root / "kept" / "gone.py").chmod(0o640)
    begin(place, WRITES, {"note": 1})
    carry_out(place, WRITES)
    recover(place, undo_nothing)
    assert stat.S_IMODE((place.root / "kept" / "gone.py").stat().st_mode) == 0o640


@pytest.fixture
def place_to_lock(tmp_path: Path) -> Path:
    """A workplace's folder below a target's own directory."""
    (tmp_path / "target").mkdir()
    return tmp_path / "target" / "sm120-overlay"


def test_a_second_process_is_refused_while_the_first_holds_the_lock(place_to_lock: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from sm120_overlay.errors import Refused\n"
        "from sm120_overlay.queue.transaction import locked\n"
        "try:\n    with locked(Path(sys.argv[1])): print('held')\n"
        "except Refused as error: print(error.what)\n"
    )
    command = [sys.executable, "-c", code, str(place_to_lock)]
    with locked(place_to_lock):
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "another run" in said
    assert str(place_to_lock.parent) in said
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "held\n"


def test_locking_leaves_no_file_behind(place_to_lock: Path) -> None:
    before = snapshot(place_to_lock.parent.parent, stats=True)
    with locked(place_to_lock):
        assert snapshot(place_to_lock.parent.parent, stats=True) == before
    assert snapshot(place_to_lock.parent.parent, stats=True) == before


def test_two_targets_are_locked_apart(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with locked(tmp_path / "one" / "sm120-overlay"), locked(tmp_path / "two" / "sm120-overlay"):
        pass


def test_the_lock_of_a_dead_process_never_blocks(place_to_lock: Path) -> None:
    ready, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        with locked(place_to_lock):
            os.write(write_end, b"x")
            time.sleep(60)
        os._exit(0)
    os.read(ready, 1)
    with pytest.raises(Refused), locked(place_to_lock):
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with locked(place_to_lock):
        pass


def test_a_child_that_outlives_its_parent_still_holds_the_lock(place_to_lock: Path) -> None:
    with locked(place_to_lock) as descriptor:
        sleeper = subprocess.Popen(["sleep", "60"], pass_fds=(descriptor,))
    try:
        with pytest.raises(Refused), locked(place_to_lock):
            pass
    finally:
        sleeper.kill()
        sleeper.wait()
    with locked(place_to_lock):
        pass


def test_replacing_leaves_the_bytes_of_a_hard_link_alone(tmp_path: Path) -> None:
    write(tmp_path, {"cache.py": "pinned\n"})
    os.link(tmp_path / "cache.py", tmp_path / "file.py")
    replace_file(tmp_path / "file.py", b"ours\n", like=(tmp_path / "file.py").stat())
    assert (tmp_path / "cache.py").read_bytes() == b"pinned\n"
    assert (tmp_path / "file.py").read_bytes() == b"ours\n"


def test_replacing_keeps_mode_and_moves_the_time_on_by_a_second(tmp_path: Path) -> None:
    path = tmp_path / "file.py"
    path.write_bytes(b"a")
    path.chmod(0o4750)
    ahead = int(time.time()) + 500
    os.utime(path, (ahead, ahead))
    replace_file(path, b"b", like=path.stat())
    assert stat.S_IMODE(path.stat().st_mode) == 0o4750
    assert int(path.stat().st_mtime) == ahead + 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_replacing_keeps_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "file.py"
    path.write_bytes(b"a")
    os.chown(path, 1234, 1235)
    replace_file(path, b"b", like=path.stat())
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 1235)


@pytest.mark.parametrize("kind", ["link", "dangling", "folder"])
def test_what_is_no_regular_file_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file.py"
    if kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path if kind == "link" else tmp_path / "nowhere")
    with pytest.raises(Refused, match=r"file\.py: expected a regular file"):
        read_file(path)


def test_nothing_is_there_below_a_file_or_a_missing_folder(tmp_path: Path) -> None:
    write(tmp_path, {"file": "x"})
    assert read_file(tmp_path / "file" / "below") is None
    assert read_file(tmp_path / "missing" / "below") is None


@pytest.fixture(scope="module")
def venv_master(toy_master: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_venv(tmp_path_factory.mktemp("venv") / "master", toy_master.wheels)


def series_files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.parts and "__pycache__" not in path.parts
    }


def test_an_upgrade_of_a_checkout_cut_anywhere_is_whole_and_the_next_apply_ends_exact(toy: Toy) -> None:
    master, fresh = toy.clone(into="master"), toy.clone(into="fresh")
    assert ask("apply", master).code == 0
    make_newer(toy)
    assert ask("apply", fresh).code == 0
    older, newer = series_files(master), series_files(fresh)
    step, more = 0, True
    while more:
        clone = toy.root / f"clone-{step}"
        shutil.copytree(master, clone)
        more = cut_at(step, clone, partial(ask, "apply", clone))
        now = series_files(clone)
        for path in older.keys() | newer.keys():
            assert now.get(path) in (older.get(path), newer.get(path)), (step, path)
        reverse = ["--reverse"] if step % 2 else []
        answer = ask("apply", clone, *reverse)
        assert answer.code == 0, (step, answer)
        assert series_files(clone) == (PIN if reverse else newer), step
        assert git(clone, "status", "--porcelain") == "", step
        assert git(clone, "symbolic-ref", "HEAD").strip() == f"refs/heads/{'main' if reverse else 'sm120/v1'}", step
        assert not list((clone / ".git").rglob("*.lock")), step
        step += 1
    assert step > 25


def test_an_upgrade_of_a_package_cut_anywhere_is_whole_and_the_next_apply_ends_exact(
    toy: Toy, venv_master: Path, tmp_path: Path
) -> None:
    clean = snapshot(copy_venv(venv_master, tmp_path / "clean").site)
    master = copy_venv(venv_master, tmp_path / "master")
    fresh = copy_venv(venv_master, tmp_path / "fresh")
    assert ask("apply", "--installed", master.python, "--only", "toy").code == 0
    make_newer(toy)
    assert ask("apply", "--installed", fresh.python, "--only", "toy").code == 0
    older, newer = series_files(master.site), series_files(fresh.site)
    step, more = 0, True
    while more:
        venv = copy_venv(master.root, tmp_path / f"venv-{step}")
        more = cut_at(step, venv.site, partial(ask, "apply", "--installed", venv.python, "--only", "toy"))
        now = series_files(venv.site)
        for path in older.keys() | newer.keys():
            assert now.get(path) in (older.get(path), newer.get(path)), (step, path)
        reverse = ["--reverse"] if step % 2 else []
        answer = ask("apply", "--installed", venv.python, "--only", "toy", *reverse)
        assert answer.code == 0, (step, answer)
        if reverse:
            assert snapshot(venv.site) == clean, step
        else:
            assert series_files(venv.site) == newer
        step += 1
    assert step > 25


def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Refused, match="found a pipe"):
        read_file(tmp_path / "pipe")
