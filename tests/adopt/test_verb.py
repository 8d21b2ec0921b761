"""The verb around it: which checkout, what is in the way, what is said, and that looking changes nothing."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sm120_overlay.cli import main

from ..queue.scenes import ask, snapshot
from ..queue.toy import GEAR, TOY, Toy, git, write
from .people import BARE, CORE, RUN, Stranger, adopt, at_head, everything, hows

Save = Callable[[bytes], Path]
NEW = "python/toy/new.py"
CHANGE = {BARE: "one\ntwo\nvier", NEW: "NEW = 1\n"}


@pytest.fixture
def fresh(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The fresh checkouts of both upstreams below build/ of the current folder."""
    monkeypatch.chdir(toy.root)
    assert main(["apply", "--source", "git"]) == 0
    return toy.root / "build" / "v1"


def test_the_fresh_checkout_is_chosen_by_the_files_of_the_change(fresh: Path, stranger: Stranger, toy: Toy) -> None:
    diff = stranger.diff(CHANGE)
    Path("a.patch").write_bytes(diff)
    answer = adopt("a.patch")
    assert (answer.code, answer.said["targets"][0]["path"]) == (0, str(fresh / "toy"))
    gear = Stranger(toy.clone("gear", "gear-clone"))
    Path("b.patch").write_bytes(gear.diff({"csrc/kernel.cu": GEAR["csrc/kernel.cu"] + "// more\n"}))
    answer = adopt("b.patch")
    assert (answer.code, answer.said["targets"][0]["path"]) == (0, str(fresh / "gear"))
    answer = adopt("b.patch", "--only", "toy")
    assert answer.code == 2
    assert "none of its files belongs to build/v1/toy" in answer.err


def test_where_both_could_be_meant_the_checkout_must_be_named(fresh: Path, stranger: Stranger) -> None:
    Path("readme.patch").write_bytes(stranger.diff({"README.md": "x\n"}))
    for change, said in (("readme.patch", "none of its files belongs to"), ("main", "as a commit it may be of")):
        answer = adopt(change)
        assert answer.code == 2
        assert said in answer.err
    assert adopt("readme.patch", fresh / "toy").code == 1


def test_without_any_checkout_it_says_how_to_make_one(
    toy: Toy, stranger: Stranger, saved: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toy.root)
    answer = adopt(saved(stranger.diff(CHANGE)))
    assert answer.code == 1
    assert "apply" in answer.err


def fed(data: bytes | None, ours: Path) -> subprocess.CompletedProcess[str]:
    """`adopt -` of a child whose standard input is this (None: closed)."""
    code = "import sys; from sm120_overlay.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", code, "adopt", "-", str(ours)], capture_output=True, text=True, check=False,
        input=None if data is None else data.decode(), preexec_fn=(lambda: os.close(0)) if data is None else None,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )  # fmt: skip


@pytest.mark.parametrize("data", [None, b"", b"\n\n"], ids=["closed", "empty", "blank"])
def test_standard_input_without_a_diff_is_said(ours: Path, data: bytes | None) -> None:
    done = fed(data, ours)
    assert done.returncode == 2
    assert "standard input is closed" in done.stderr if data is None else "expected a unified diff" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_diff_from_standard_input_or_a_pipe_by_name_is_adopted(
    stranger: Stranger, ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diff = stranger.diff(CHANGE)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(diff)))
    answer = adopt("-", ours, "--dry-run")
    assert (answer.code, answer.targets["toy"]["patches"][0]["slug"]) == (0, "adopted")
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(diff,))
    writer.start()
    assert adopt(tmp_path / "pipe", ours).code == 0
    writer.join()
    assert at_head(ours, NEW) == b"NEW = 1\n"


def test_wrong_calls_are_said_in_a_sentence(ours: Path, saved: Save, stranger: Stranger) -> None:
    diff = saved(stranger.diff(CHANGE))
    before = everything(ours)
    calls: dict[tuple[object, ...], str] = {
        (ours, ours): "found a folder",
        ("nowhere.patch", ours): "found none of these",
        (diff, ours, ours.parent / "other"): "Two checkouts",
        (diff, ours, "--slug", "!!!"): "expected lower-case words",
        (diff, ours, "--split", "--depth", "0"): "at least 1",
        (diff, ours, "--leave-out", "*.rs"): "fits no file",
        (diff, ours, "--leave-out", "*"): "Every file",
        (diff, ours, "--history", ours.parent / "none"): "expected a git repository",
        ("HEAD~1", ours, "--from", ours.parent): "expected a git repository",
        ("HEAD", ours, "--from", ours.parent / "none"): "expected a git repository",
    }
    for call, said in calls.items():
        answer = adopt(*call)
        assert (answer.code in (2, 4), said in answer.err) == (True, True), (call, answer.err)
    assert everything(ours) == before


def on_main(ours: Path) -> None:
    git(ours, "checkout", "-q", "main")


def detached(ours: Path) -> None:
    git(ours, "checkout", "-q", "--detach")


def dirty(ours: Path) -> None:
    (ours / BARE).write_text("mine\n")


def staged(ours: Path) -> None:
    (ours / BARE).write_text("mine\n")
    git(ours, "add", BARE)


def in_the_way(ours: Path) -> None:
    write(ours, {NEW: "mine\n", ".git/info/exclude": "new.py\n"})


def rebasing(ours: Path) -> None:
    git(ours, "-c", "sequence.editor=sed -i s/^pick/edit/", "rebase", "-q", "-i", "HEAD~1")


def sparse(ours: Path) -> None:
    git(ours, "sparse-checkout", "set", "elsewhere")


def locked(ours: Path) -> None:
    (ours / ".git/index.lock").write_text("")


WAYS = {
    "HEAD is not at the pin or on the series' branch": (on_main, "HEAD is on main"),
    "a detached HEAD": (detached, "HEAD is detached"),
    "a touched file was edited": (dirty, BARE),
    "a touched file was edited, and staged": (staged, BARE),
    "a new file is there, ignored": (in_the_way, NEW),
    "a foreign rebase in progress": (rebasing, "rebase"),
    "a sparse checkout without a touched file": (sparse, BARE),
    "git holds the index": (locked, "index.lock"),
}


@pytest.mark.parametrize(
    "hinder, said",
    [
        pytest.param(*way, id=case, marks=pytest.mark.case(case, target="adopt", outcome="refused"))
        for case, way in WAYS.items()
    ],
)
def test_what_is_in_the_way_is_named_and_nothing_changes(
    stranger: Stranger, ours: Path, saved: Save, hinder: Callable[[Path], None], said: str
) -> None:
    diff = saved(stranger.diff(CHANGE))
    hinder(ours)
    before = everything(ours)
    answer = adopt(diff, ours)
    assert answer.code in (1, 4), answer.said
    assert said in answer.err
    assert everything(ours) == before


@pytest.mark.parametrize("outcome", ["placed", "conflict", "unknown"])
def test_a_dry_run_says_the_same_and_leaves_nothing_behind(
    stranger: Stranger, ours: Path, saved: Save, outcome: str
) -> None:
    files = {**CHANGE, **({CORE: TOY[CORE].replace("41", "43")} if outcome == "conflict" else {})}
    if outcome == "unknown":
        stranger.commit({BARE: "elsewhere\n"})
    diff = saved(stranger.diff(files))
    before = snapshot(ours, skip=()), git(ours, "count-objects", "-v")
    looked = adopt(diff, ours, "--dry-run")
    assert (snapshot(ours, skip=("sm120-overlay",)), git(ours, "count-objects", "-v")) == (
        {name: seen for name, seen in before[0].items() if "sm120-overlay" not in name}, before[1],
    )  # fmt: skip
    done = adopt(diff, ours)
    assert (looked.code, hows(looked), looked.said["dry_run"]) == (done.code, hows(done), True)
    assert done.code == {"placed": 0, "conflict": 3, "unknown": 1}[outcome]


def test_without_a_name_of_the_users_the_commit_is_the_adopters(
    stranger: Stranger, ours: Path, saved: Save, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nobody"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    assert adopt(saved(stranger.diff(CHANGE)), ours).code == 0
    committer = git(ours, "log", "-1", "--format=%cn <%ce>").strip()
    assert committer.startswith(("SM120 Overlay adopt <", git(ours, "config", "--default", "?", "user.name").strip()))
    assert ask("status", ours).code == 1


def test_the_answer_has_the_keys_that_programs_read(stranger: Stranger, ours: Path, saved: Save) -> None:
    answer = adopt(saved(stranger.diff({**CHANGE, "README.md": "x\n"})), ours, "--leave-out", "README.md")
    assert answer.said.keys() == {"schema", "verb", "line", "ok", "targets"}
    (target,) = answer.said["targets"]
    assert target.keys() == {"upstream", "path", "kind", "base", "head", "patches", "handed_off"}
    (patch,) = target["patches"]
    assert patch.keys() == {"slug", "from", "commit", "made_on", "files", "left_out", "to_fill"}
    assert patch["made_on"].keys() == {"name", "commit", "pinned", "fitting", "asked"}
    assert {frozenset(file) for file in patch["files"]} == {frozenset({"path", "how", "why", "made_on", "blob"})}
    assert target["head"] == patch["commit"] == git(ours, "rev-parse", "HEAD").strip()
    assert len(patch["to_fill"]) == 6
    assert json.dumps(answer.said)


def test_a_person_reads_what_it_was_made_on_and_what_to_do_next(
    stranger: Stranger, ours: Path, saved: Save, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["adopt", str(saved(stranger.diff(CHANGE))), str(ours)]) == 0
    said = capsys.readouterr().out
    assert "their-fix: made on the pin v1.0; 2 files: 2 exact" in said
    assert "next: fill in what is marked TO-FILL" in said
    stranger.commit({RUN: "elsewhere\n"})
    assert main(["adopt", str(saved(stranger.diff({RUN: "x\n"}))), str(ours)]) == 1
    said = capsys.readouterr().out
    assert "made on nothing that is at hand; 1 file: 1 unknown" in said
    assert "--history" in said
