"""`Upstream-Status`: changed on every line that carries the patch, by its one trailer, and listed."""

from __future__ import annotations

import json

import pytest

from sm120_overlay.cli import main
from sm120_overlay.queue.statuses import newness, with_status

from ..queue.toy import Toy
from ..rebase.releases import project, rebase, release
from .said import answer, refused, upstream

SENT = "Submitted [https://example.org/pull/1]"


def test_it_changes_the_trailer_on_every_line_and_nothing_else(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    release(toy, "2.0", {"README.md": "newer\n"})
    assert rebase("--onto", "2.0", "--source", "pypi", "--unproved") == 0
    before = project(toy)
    said = answer(capsys, "--set-status", SENT)
    assert said["changed"] == ["patches/v2.0/toy/right-answer.patch", "patches/v1/toy/right-answer.patch"]
    after = project(toy)
    assert {name for name in before if before[name] != after[name]} == set(said["changed"])
    for name in said["changed"]:
        expected = before[name].replace(b"\nUpstream-Status: Pending\n", f"\nUpstream-Status: {SENT}\n".encode())
        assert after[name] == expected
    assert main(["lint"]) == 0
    assert answer(capsys, "--set-status", SENT)["changed"] == []
    assert upstream("--set-status", "Pending") == 0
    assert project(toy) == before


def test_a_dry_run_changes_nothing(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    before = project(toy)
    assert upstream("--set-status", SENT, "--dry-run") == 0
    assert "would change patches/v1/toy/right-answer.patch" in capsys.readouterr().out
    assert project(toy) == before


def test_what_lint_does_not_take_is_not_written(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    before = project(toy)
    assert "NOTICE must name its slug" in refused(capsys, 1, "--set-status", "Backport [toy#7, v3.0]")
    assert project(toy) == before


def test_a_trailer_over_two_lines_is_one_trailer() -> None:
    mail = (
        b"Subject: x\n\nbody\n\nSlug: a\nUpstream-Status: Inappropriate [it is\n ours alone]\nScope: any\n\ndiff --git "
    )
    assert with_status(mail, "Pending") == mail.replace(b"Inappropriate [it is\n ours alone]", b"Pending")


def test_what_a_diff_says_is_never_changed() -> None:
    mail = b"Subject: x\n\nb\n\nUpstream-Status: Pending\n\ndiff --git a/x b/x\n+Upstream-Status: Pending\n"
    assert with_status(mail, SENT).count(b"Pending") == 1


def test_status_lists_every_patch_and_what_a_line_does_without(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    pins = toy.home.pins.read_text()
    toy.home.pins.write_text(pins + '\n[line.v1.toy.absent]\nold-one = "absorbed: toy#7, v0.9"\n')
    assert upstream("--set-status", SENT) == 0
    capsys.readouterr()
    assert main(["status", "--upstream", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["standings"]
    assert [(row["slug"], row["status"], row["absent"]) for row in rows] == [
        ("right-answer", SENT, ""),
        ("bring-hook", "Pending", ""),
        ("old-one", "", "absorbed: toy#7, v0.9"),
        ("more-gears", "Pending", ""),
    ]
    assert main(["status", "--upstream", "--only", "toy", "--line", "v1"]) == 0
    said = capsys.readouterr().out
    assert "absorbed: toy#7, v0.9" in said
    assert "more-gears" not in said


def test_a_target_has_no_standing(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--upstream", str(toy.clone())]) == 2
    assert "--upstream is about patch files" in capsys.readouterr().err


def test_releases_are_ordered_as_numbers() -> None:
    assert newness("0.5.9") < newness("0.5.16") < newness("0.5.16.post1")
