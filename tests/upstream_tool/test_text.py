"""What upstream's people read: the page of a pull request in their template, mails, and what gh is told."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from sm120_overlay.queue.manners import Facts, for_upstream, means_nothing, pull_request
from sm120_overlay.queue.patch import Patch

from ..queue.toy import Toy, git, write
from .conftest import go_on
from .said import answer, desk, refused, upstream

BODY = """\
moe: refuse what has no kernel

It fails in the first forward pass
on SM12x.

Refuse it. Smaller than on v0.5.9, of which this overlay knows.

Established by reading.

Not measured: anything on a GPU.

Slug: a-b
Scope: sm12x
Issue: toy#7
Issue: gear#8
Evidence: executed-cpu
"""
TRAILERS = (("Slug", "a-b"), ("Issue", "toy#7"), ("Issue", "gear#8"), ("Evidence", "executed-cpu"))
PATCH = Patch("a-b", "Ann <ann@example.org>", "Mon, 1 Jan 2026 00:00:00 +0000", BODY, TRAILERS, ())
FACTS = Facts(["a.py"], "tests/test_a.py", True, True, ["Made here."], {"toy": "toys/toy", "gear": "gears/gear"})
SGLANG = """\
<!-- Thank you. -->

## Motivation

<!-- Describe the
purpose. -->

## Modifications

## Accuracy Tests

<!-- results -->

## Speed Tests and Profiling

## Checklist

- [ ] Format your code according to the guide.
- [ ] Add unit tests according to the guide.
- [x] Update documentation.
- [ ] Provide accuracy and speed benchmark results.
"""


def section(page: str, heading: str) -> str:
    """What stands below a heading."""
    found = re.search(rf"^#+ {re.escape(heading)}\n\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
    assert found, page
    return found[1]


def test_each_heading_of_upstreams_gets_what_it_asks_for() -> None:
    page = pull_request(SGLANG, PATCH, FACTS)
    assert page.startswith(
        "## Motivation\n\nIt fails in the first forward pass on SM12x.\n\n## Modifications\n\nRefuse"
    )
    assert "`a.py`" in section(page, "Modifications")
    assert "fails without the change and passes with it" in section(page, "Modifications")
    assert section(page, "Accuracy Tests").startswith("Established by reading.\n\nRun on a CPU")
    assert "<!--" not in page


@pytest.mark.parametrize("heading", ["Accuracy Tests", "Speed Tests and Profiling"])
def test_what_was_not_measured_is_said_where_measurements_are_asked_for(heading: str) -> None:
    assert "Not measured: anything on a GPU." in section(pull_request(SGLANG, PATCH, FACTS), heading)
    silent = replace(PATCH, message=BODY.replace("Not measured: anything on a GPU.\n\n", ""))
    assert "Not measured: no accuracy and no speed" in section(pull_request(SGLANG, silent, FACTS), heading)


def test_no_box_is_ticked_that_was_not_done() -> None:
    ticks = [line[:5] for line in pull_request(SGLANG, PATCH, FACTS).splitlines() if line.startswith("- [")]
    assert ticks == ["- [x]", "- [x]", "- [ ]", "- [ ]"]
    undone = replace(FACTS, tested=False, formatted=False)
    assert "[x]" not in pull_request(SGLANG, PATCH, undone)
    assert "it was not run for this branch" in pull_request(SGLANG, PATCH, undone)
    assert "No test in the form" in pull_request(SGLANG, PATCH, replace(undone, test=""))


def test_issues_are_named_by_the_repository_they_are_in() -> None:
    page = pull_request("## Description\n\n## Related Issues\n\n## Reviewer Notes\n", PATCH, FACTS)
    assert section(page, "Related Issues") == "- toys/toy#7\n- gears/gear#8\n\n"
    assert section(page, "Reviewer Notes") == "- Made here.\n"
    none = replace(PATCH, trailers=())
    assert section(pull_request("## Related Issues\n", none, FACTS), "Related Issues") == "None known.\n"


def test_a_template_that_asks_for_nothing_known_still_gets_the_whole_body() -> None:
    page = pull_request("Please be kind.\n", PATCH, FACTS)
    assert "It fails in the first forward pass on SM12x." in page
    assert page.endswith("Please be kind.\n")


def test_lines_about_this_project_are_pointed_out_not_sent_in_silence(
    clone_with_template: Path, toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    assert means_nothing(PATCH) == ("Refuse it. Smaller than on v0.5.9, of which this overlay knows.",)
    assert for_upstream(PATCH) == BODY.partition("Slug:")[0].rstrip("\n") + "\n"
    file = toy.home.patches("v1", "toy") / "right-answer.patch"
    file.write_bytes(file.read_bytes().replace(b"What breaks,", b"What this overlay breaks,"))
    assert upstream("--source", clone_with_template, "--dry-run") == 0
    assert "mean nothing to upstream" in capsys.readouterr().out


@pytest.fixture
def clone_with_template(clone: Path, toy: Toy) -> Path:
    """Upstream has a template of its own."""
    go_on(toy, clone, {".github/pull_request_template.md": SGLANG}, "A template")
    return clone


def test_the_page_is_upstreams_own_template_else_ours_else_plain(
    clone_with_template: Path, toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    own = answer(capsys, "--source", clone_with_template, "--unproved")["pull_request"]
    assert own["title"] == "toy: do right-answer"
    assert "## Motivation" in own["body"]
    assert Path(own["file"]).read_text() == own["body"]
    plain = answer(capsys, "--source", "pypi", "--dry-run")["pull_request"]["body"]
    assert plain.startswith("## Description\n\nWhat breaks, and how it is known.")
    write(toy.home.root, {"upstream/toy/pull_request_template.md": "## Summary\n"})
    assert answer(capsys, "--source", "pypi", "--dry-run")["pull_request"]["body"].startswith("## Summary\n\nWhat")


def test_mails_are_what_git_am_takes(clone: Path, toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    folder = toy.root / "mails"
    who = ("--sign-off", "Ann Author <ann@example.org>")
    said = answer(capsys, "--source", clone, "--unproved", *who, "--format-patch", folder)
    (mail,) = map(Path, said["mails"])
    assert mail.name == "0001-toy-do-right-answer.patch"
    git(clone, "am", "-q", str(mail))
    assert git(clone, "rev-parse", "HEAD^{tree}") == git(desk(toy), "rev-parse", "HEAD^{tree}")
    assert "Signed-off-by: Ann Author" in git(clone, "log", "-1", "--format=%B")
    git(clone, "reset", "-q", "--hard", "HEAD~1")
    assert upstream("--source", clone, "--unproved", *who, "--format-patch", folder) == 0
    mail.write_text("mine\n")
    assert "something else is there already" in refused(
        capsys, 1, "--source", clone, "--unproved", *who, "--format-patch", folder
    )
    assert mail.read_text() == "mine\n"


# gh


@pytest.fixture
def gh(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A gh that notes what it is told, and a fork that is a folder here; gives the note."""
    note, fork = toy.root / "told.txt", toy.root / "fork.git"
    git(toy.root, "init", "-q", "--bare", str(fork))
    write(
        toy.root, {"bin/gh": f'#!/bin/sh\nprintf "%s\\n" "$@" > {note}\ntest -e {toy.root}/stuck && exit 1\necho URL\n'}
    )
    (toy.root / "bin" / "gh").chmod(0o755)
    write(toy.root, {"self/.gitconfig": f'[url "{fork}"]\n insteadOf = https://github.com/ann/toy.git\n'})
    monkeypatch.setenv("PATH", f"{toy.root}/bin:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(toy.root / "self"))
    return note


def test_gh_is_run_only_when_asked_and_what_it_runs_is_said_first(
    clone: Path, toy: Toy, gh: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert upstream("--source", clone) == 0
    assert not gh.exists()
    capsys.readouterr()
    assert upstream("--source", clone, "--gh", "ann/toy") == 0
    said = capsys.readouterr()
    assert "running: git -C" in said.err
    assert "running: gh pr create --repo" in said.err
    assert "sent: URL" in said.out
    told = gh.read_text().splitlines()
    assert told[:2] == ["pr", "create"]
    assert told[told.index("--head") + 1] == "ann:sm120-right-answer"
    assert git(toy.root / "fork.git", "rev-parse", "sm120-right-answer") == git(desk(toy), "rev-parse", "HEAD")


def test_nothing_is_sent_that_is_not_proved_or_has_no_history(
    clone: Path, toy: Toy, gh: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "is not proved: nothing was sent" in refused(capsys, 1, "--source", clone, "--unproved", "--gh", "ann/toy")
    assert "laid out from a wheel" in refused(capsys, 1, "--source", "pypi", "--gh", "ann/toy")
    assert not gh.exists()


def test_a_gh_that_fails_or_is_not_there_is_one_sentence(
    clone: Path, toy: Toy, gh: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (toy.root / "stuck").touch()
    assert "gh pr create failed: exit 1" in refused(capsys, 4, "--source", clone, "--gh", "ann/toy")
    (toy.root / "bin" / "gh").unlink()
    assert "is not on PATH" in refused(capsys, 4, "--source", clone, "--gh", "ann/toy")
