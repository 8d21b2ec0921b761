"""`--at REV`: a series on a commit near its pin, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sm120_overlay.cli import main

from ..queue.toy import Toy, git
from .releases import CORE, core, release, tree_of


@pytest.fixture
def near(toy: Toy) -> Path:
    """A clone of the user's, one commit above the pin, where everything goes in."""
    release(toy, "2.0", core(("# line 10\n", "def other():\n")))
    return toy.clone()


def files_of(folder: Path) -> dict[str, bytes]:
    """The checkout's own files."""
    return {name: data for name, data in tree_of(folder).items() if not name.startswith(".git/")}


def test_the_series_is_carried_there_and_every_patch_says_how(near: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apply", str(near), "--at", "HEAD", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [(row["slug"], row["state"]) for row in said["carried"]] == [
        ("right-answer", "clean"),
        ("bring-hook", "moved"),
    ]
    text = (near / CORE).read_text()
    assert "return 42" in text
    assert "# line thirty" in text
    assert "def other():" in text
    assert said["line"] == f"v1-at-{git(near, 'rev-parse', 'HEAD~2').strip()[:12]}"


def test_what_runs_there_has_another_name_than_on_the_pin(
    near: Path, toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    digests = []
    for arguments in ([str(near), "--at", "HEAD"], [str(toy.clone(into="at-pin"))]):
        if "--at" not in arguments:
            git(Path(arguments[0]), "checkout", "-q", "v2.0~1")
        assert main(["apply", *arguments, "--json"]) == 0
        digests.append(json.loads(capsys.readouterr().out)["targets"][0]["digest"])
    assert len(set(digests)) == 2


def test_status_and_verify_know_it_and_reverse_takes_it_off(near: Path) -> None:
    before, commit = files_of(near), git(near, "rev-parse", "HEAD").strip()
    assert main(["apply", str(near), "--at", commit]) == 0
    assert main(["status", str(near), "--at", commit]) == 0
    assert main(["verify", str(near), "--at", commit]) == 0
    (near / CORE).write_text("edited\n")
    assert main(["verify", str(near), "--at", commit]) == 1
    git(near, "checkout", "-q", "--", CORE)
    assert main(["apply", str(near), "--at", commit, "--reverse"]) == 0
    assert files_of(near) == before


def test_a_patch_that_does_not_go_in_leaves_everything_as_it_was(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    release(toy, "2.0", core(("return 41", "return 40")))
    near = toy.clone()
    before = files_of(near)
    assert main(["apply", str(near), "--at", "HEAD"]) == 3
    said = capsys.readouterr()
    assert "right-answer: not onto" in said.err
    assert "conflict" in said.out
    assert files_of(near) == before
    assert git(near, "branch", "--list", "sm120/*") == ""


def test_it_is_left_out_by_name_and_never_with_what_needs_it(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    release(toy, "2.0", core(("return 41", "return 40")))
    near = toy.clone()
    assert main(["apply", str(near), "--at", "HEAD", "--without", "right-answer"]) == 1
    assert "bring-hook needs it" in capsys.readouterr().err
    assert main(["apply", str(near), "--at", "HEAD", "--without", "right-answer", "--without", "bring-hook"]) == 0


def test_what_upstream_has_is_left_out_and_said(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    release(toy, "2.0", core(("return 41", "return 42")))
    near = toy.clone()
    assert main(["apply", str(near), "--at", "HEAD", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [row["state"] for row in said["carried"]] == ["absorbed", "clean"]
    assert [row["slug"] for row in said["targets"][0]["patches"]] == ["bring-hook"]


def test_a_clone_without_the_pin_gets_it_from_the_wheel(near: Path, toy: Toy) -> None:
    alone = toy.root / "alone"
    git(toy.root, "clone", "-q", "--depth=1", f"file://{toy.upstream()}", str(alone))
    pins = toy.home.pins
    pins.write_text(pins.read_text().replace(f'repository = "{toy.upstream()}"', 'repository = "/nowhere"'))
    assert main(["apply", str(alone), "--at", "HEAD"]) == 0
    assert "return 42" in (alone / CORE).read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "expected one checkout"),
        (["--at", "nonsense"], "has no commit"),
        (["--only", "gear"], "has none of the files"),
    ],
)
def test_a_call_that_cannot_be_meant_is_refused(
    near: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    checkout = [str(near)] if arguments else []
    at = [] if "--at" in arguments else ["--at", "HEAD"]
    assert main(["apply", *checkout, *at, *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_commit_of_the_series_itself_is_no_ground_for_it(near: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apply", str(near), "--at", "HEAD"]) == 0
    capsys.readouterr()
    assert main(["apply", str(near), "--at", "HEAD"]) == 2
    assert "is a commit of the series itself" in capsys.readouterr().err
