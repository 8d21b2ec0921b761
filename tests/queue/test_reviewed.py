"""What a second reader of the code found: each is a way in which a yes, a no or an undo could have been false."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay.cli import main
from sm120_overlay.queue import proof
from sm120_overlay.queue.home import PACKAGE
from sm120_overlay.queue.proof import outcome_of

from .scenes import snapshot
from .test_proof import HEAD, proved, with_test
from .test_verbs import answer, states
from .toy import HOOK, Toy, commit, git, write


def drop_last(toy: Toy) -> None:
    """The newer series: without its last patch."""
    folder = toy.home.root / "patches/v1/toy"
    (folder / "series").write_text("right-answer\n")
    (folder / "bring-hook.patch").unlink()
    shutil.rmtree(toy.home.overlay("toy"))


def index_of(clone: Path) -> str:
    return git(clone, "ls-files", "-s") + git(clone, "status", "--porcelain")


def test_a_run_that_git_stops_after_the_index_was_set_leaves_everything_as_it_was(
    toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    clone = toy.clone()
    before = index_of(clone)
    lock = clone / ".git" / "HEAD.lock"
    lock.write_text("")
    os.utime(lock, (1, 1))
    code, found = answer(capsys, "apply", str(clone))
    assert code == 4
    assert "HEAD.lock" in found["error"]["what"], "git's own reason is what is told"
    lock.unlink()
    assert index_of(clone) == before
    assert not (clone / ".git" / "index.lock").exists()
    assert not (clone / ".git" / "sm120-overlay").exists()
    assert answer(capsys, "apply", str(clone))[0] == 0


def cut(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An apply that dies in the middle: nothing is cleaned up."""
    pid = os.fork()
    if pid == 0:
        monkeypatch.setattr("sm120_overlay.queue.move.write_index", lambda *arguments: os._exit(9))
        main(["apply", str(clone)])
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9


def test_kept_bytes_that_were_lost_are_never_written_back(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clone = toy.clone()
    cut(clone, monkeypatch)
    for kept in (clone / ".git/sm120-overlay/before").iterdir():
        kept.write_bytes(b"")
    now = (clone / "python/toy/core.py").read_bytes()
    code, found = answer(capsys, "apply", str(clone), "--reverse")
    assert code == 1
    assert "before a run was cut" in found["error"]["what"]
    assert (clone / "python/toy/core.py").read_bytes() == now


def test_a_dry_run_does_not_undo_a_cut_run(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clone = toy.clone()
    cut(clone, monkeypatch)
    before = snapshot(clone)
    code, found = answer(capsys, "apply", str(clone), "--dry-run")
    assert code == 1
    assert "without --dry-run" in found["error"]["todo"]
    assert snapshot(clone) == before
    assert states(answer(capsys, "status", str(clone))[1]) == dict.fromkeys(toy.series().slugs, "interrupted")
    assert answer(capsys, "apply", str(clone))[0] == 0


@pytest.mark.case("an older series left a file", target="checkout", outcome="told")
def test_what_an_older_series_left_is_named_and_a_users_commit_does_not_hide_it(
    toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    clone = toy.clone()
    main(["apply", str(clone)])
    drop_last(toy)
    for _ in range(2):
        code, found = answer(capsys, "verify", str(clone))
        assert code == 1
        assert HOOK in found["targets"][0]["note"]
        git(clone, "commit", "-q", "--allow-empty", "-m", "mine")
    git(clone, "reset", "-q", "--hard", "HEAD~2")
    assert answer(capsys, "apply", str(clone))[1]["targets"][0]["note"] is None
    assert not (clone / HOOK).exists()


def test_a_patch_of_which_one_file_changed_since_is_pending_and_not_interrupted(
    toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    clone, author = toy.clone(), toy.clone(into="author-again")
    main(["apply", str(clone)])
    main(["apply", str(author)])
    write(author, {"python/toy/dos.py": "A = 1\r\nB = 33\r\nC = 3\r\n"})
    git(author, "commit", "-q", "-a", "--amend", "--no-edit")
    assert main(["export", str(author)]) == 0
    _, found = answer(capsys, "status", str(clone))
    assert states(found) == {"right-answer": "applied", "bring-hook": "pending"}
    assert "older series" in found["targets"][0]["patches"][1]["reason"]


@pytest.mark.case("a commit of the user's in the package", target="checkout", outcome="told")
def test_a_commit_of_the_users_in_the_package_is_not_the_series(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    clone = toy.clone()
    main(["apply", str(clone)])
    commit(clone, "mine", {"python/toy/run.py": "mine\n"})
    code, found = answer(capsys, "verify", str(clone))
    assert code == 1
    assert "python/toy/run.py changed by commits above the pin" in found["targets"][0]["note"]


def test_reverse_of_a_part_is_refused(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    clone = str(toy.clone())
    main(["apply", clone])
    for part in (["--without", "bring-hook"], ["--through", "right-answer"]):
        assert answer(capsys, "apply", clone, "--reverse", *part)[0] == 2
    assert answer(capsys, "verify", clone)[0] == 0
    assert main(["verify", "--red-green", "--without", "bring-hook"]) == 2
    assert main(["verify", "--red-green", "--jobs", "0"]) == 2


def test_reverse_expects_the_pin(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    clone = str(toy.clone())
    main(["apply", clone])
    (target,) = answer(capsys, "apply", clone, "--reverse")[1]["targets"]
    assert target["digest"] == target["expected_digest"] == replace(toy.series(), patches=()).digest


@pytest.mark.case(
    "a mode that the user changed", target="checkout", outcome="refused", source="ds300/patch-package#135"
)
def test_a_mode_that_the_user_changed_is_an_edit(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    clone = toy.clone()
    (clone / "python/toy/core.py").chmod(0o755)
    code, found = answer(capsys, "apply", str(clone))
    assert code == 1
    assert "expected mode 100644" in found["error"]["what"]
    git(clone, "config", "core.fileMode", "false")
    assert answer(capsys, "apply", str(clone))[0] == 0
    assert git(clone, "status", "--porcelain") == ""


def test_export_takes_one_checkout_of_an_upstream_and_listens_to_only(
    toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two, gear = toy.clone(into="one"), toy.clone(into="two"), toy.clone("gear")
    for clone in (one, two, gear):
        main(["apply", str(clone)])
    assert answer(capsys, "export", str(one), str(two))[0] == 2
    _, found = answer(capsys, "export", str(one), str(gear), "--only", "toy", "--check")
    assert [target["upstream"] for target in found["targets"]] == ["toy"]
    (toy.home.root / "patches/v1/toy/series").write_bytes(b"right-answer\n\xff\n")
    assert answer(capsys, "export", str(one))[0] == 2


def test_a_trial_that_pytest_did_not_finish_is_an_error(toy: Toy) -> None:
    body = (
        "def test_a(tree):\n    assert answer(tree) == 42\n\n\ndef test_b():\n    pytest.exit('no card')\n\n\n"
        "def test_c(tree):\n    assert False\n"
    )
    found = proved(with_test(toy, HEAD + body))
    assert (found.green.ok, found.green.outcome) == (False, "error")


def test_a_row_without_exception_or_file_is_still_an_answer(tmp_path: Path) -> None:
    row: dict[str, Any] = {"test": "test_x", "when": "call", "outcome": "failed"}
    assert outcome_of([row], tmp_path / "test_x.py", [])[0] == "error"


def test_a_header_that_proofs_include_is_part_of_what_a_verdict_stands_on(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    for name in ("serving", "queue"):
        shutil.copytree(PACKAGE / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(proof, "PACKAGE", package)
    before = proof._ground(toy.home, {})
    write(package, {"serving/nvcc/include/recording_cudart.h": "// other\n"})
    assert proof._ground(toy.home, {}) != before


@pytest.mark.parametrize("said", ['{"schema": 2}', "[1]", "null", "{}"])
def test_a_journal_of_another_version_is_refused(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], said: str
) -> None:
    clone = toy.clone()
    cut(clone, monkeypatch)
    (clone / ".git/sm120-overlay/journal.json").write_text(said)
    code, found = answer(capsys, "apply", str(clone))
    assert code == 1
    assert "journal" in found["error"]["what"]


def test_a_mirror_that_git_refuses_is_not_said_to_lack_the_pin(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    mirror = toy.clone(into="mirror")
    for path in (mirror, mirror / ".git"):
        os.chown(path, 12345, 12345)
    _, found = answer(capsys, "apply", "--source", str(mirror), "--into", str(tmp_path / "x"), "--only", "toy")
    assert "does not hold" not in json.dumps(found)


def test_an_installation_without_pip_is_told_how_to_get_it(toy: Toy, tmp_path: Path) -> None:
    from sm120_overlay.errors import Missing
    from sm120_overlay.queue import wheels

    def none(name: str) -> str:
        from importlib.metadata import PackageNotFoundError

        raise PackageNotFoundError(name)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Missing) as told:
        patch.setattr("importlib.metadata.version", none)
        wheels.fetch_wheel(toy.pin(), lambda text: None)
    assert "ensurepip" in told.value.todo
