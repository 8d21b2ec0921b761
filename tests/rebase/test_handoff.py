"""A patch that does not go in by itself: handed to a person, and every way back from there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sm120_overlay.queue.origin import read_origin
from sm120_overlay.queue.pins import load_lines
from sm120_overlay.queue.rebasing import state_file
from sm120_overlay.queue.series import Series, load_series

from ..queue.toy import Toy, commit, git, write
from .releases import CORE, core, project, rebase, release, worktree

RESOLVED = "return 43"


@pytest.fixture
def conflict(toy: Toy) -> Toy:
    """The first patch and the release change the same line; the second patch would go in."""
    release(toy, "2.0", core(("return 41", "return 40")))
    assert rebase("--onto", "2.0", "--source", "pypi", "--unproved") == 3
    return toy


def resolve(toy: Toy, text: str = RESOLVED) -> Path:
    """core.py as a person resolves it, written and not yet staged."""
    file = worktree(toy) / CORE
    file.write_text(core(("return 41", text))[CORE])
    return file


def staged(toy: Toy, text: str = RESOLVED) -> None:
    """The same, staged."""
    resolve(toy, text)
    git(worktree(toy), "add", CORE)


def new_series(toy: Toy) -> Series:
    """The series of the line v2.0."""
    return load_series(toy.home, load_lines(toy.home.pins).line("v2.0").pin("toy"))


def test_the_conflict_lies_in_a_worktree_with_the_base_between_the_sides(conflict: Toy) -> None:
    text = (worktree(conflict) / CORE).read_text()
    assert text.startswith("def answer():\n<<<<<<< ")
    assert "||||||| " in text
    assert all(f"    return {number}\n" in text for number in (40, 41, 42))
    assert git(worktree(conflict), "status", "--porcelain").startswith("UU ")


def test_nothing_is_written_while_a_person_is_needed(conflict: Toy) -> None:
    assert not conflict.home.patches("v2.0", "toy").exists()
    assert [line.name for line in load_lines(conflict.home.pins).lines] == ["v1"]


def test_what_is_resolved_and_staged_goes_on(conflict: Toy) -> None:
    staged(conflict)
    assert rebase("--continue", "--unproved") == 0
    series = new_series(conflict)
    assert series.slugs == ("right-answer", "bring-hook")
    assert b"    return 43\n" in series.patches[0].edits[0].hunks[0].new
    origin = read_origin(conflict.home.patches("v2.0", "toy"))
    assert origin is not None
    assert [(row.state, row.decided) for row in origin.rows] == [("conflict", True), ("clean", False)]
    assert not worktree(conflict).exists()
    assert not state_file(conflict.home, "toy").exists()


def test_what_git_itself_continued_goes_on_with_its_message(conflict: Toy) -> None:
    staged(conflict)
    message = git(worktree(conflict), "log", "-1", "--format=%B", "CHERRY_PICK_HEAD")
    git(worktree(conflict), "commit", "-q", "-m", message.replace("What breaks", "What breaks since 2.0"))
    assert rebase("--continue", "--unproved") == 0
    assert "What breaks since 2.0" in new_series(conflict).patches[0].message


def test_the_move_is_made_again_from_what_was_committed_alone(
    conflict: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the recorded decision is needed: no state, no rerere, no worktree."""
    staged(conflict)
    assert rebase("--continue", "--unproved") == 0
    before = project(conflict)
    for built in sorted((conflict.home.root / "build").rglob("*"), reverse=True):
        built.unlink() if built.is_file() else built.rmdir()
    capsys.readouterr()
    assert rebase("--onto", "2.0", "--from", "v1", "--source", "pypi", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["changed"] is False
    assert [(row["state"], row["decided"]) for row in said["patches"]] == [("conflict", True), ("clean", False)]
    assert project(conflict) == before


def test_a_resolution_that_git_remembers_is_taken_again(conflict: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    staged(conflict)
    git(worktree(conflict), "rerere")
    assert rebase("--abort") == 0
    capsys.readouterr()
    assert rebase("--onto", "2.0", "--source", "pypi", "--unproved") == 0
    assert "resolved as git remembers it" in capsys.readouterr().err
    assert b"    return 43\n" in new_series(conflict).patches[0].edits[0].hunks[0].new


def test_skip_leaves_the_patch_out_with_its_reason(conflict: Toy) -> None:
    assert rebase("--skip", "absorbed: toy#201, v2.0", "--unproved") == 0
    pin = load_lines(conflict.home.pins).line("v2.0").pin("toy")
    assert [(one.slug, one.why) for one in pin.absent] == [("right-answer", "toy#201, v2.0")]
    assert new_series(conflict).slugs == ("bring-hook",)


def test_abort_leaves_everything_as_it_was(toy: Toy) -> None:
    before = project(toy)
    release(toy, "2.0", core(("return 41", "return 40")))
    assert rebase("--onto", "2.0", "--source", "pypi") == 3
    assert rebase("--abort") == 0
    assert project(toy) == before
    assert not worktree(toy).exists()
    assert rebase("--onto", "2.0", "--source", "pypi", "--dry-run") == 1


def test_status_says_what_waits(conflict: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert rebase("--status", "--json") == 3
    said = json.loads(capsys.readouterr().out)
    assert said["waits_for"] == "right-answer"
    assert str(worktree(conflict)) in said["error"]["todo"]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 3) -> str:
    """What a call says that changes nothing."""
    capsys.readouterr()
    assert rebase(*arguments) == code
    return capsys.readouterr().err


def test_going_on_before_it_is_resolved_says_which_file_is_left(
    conflict: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"not resolved yet in {worktree(conflict)}: {CORE}" in refused(capsys, "--continue")


def test_what_is_not_staged_is_not_left_behind(conflict: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    staged(conflict)
    resolve(conflict, "return 44")
    assert f"not staged: {CORE}" in refused(capsys, "--continue")
    assert "return 44" in (worktree(conflict) / CORE).read_text()


def test_a_marker_that_is_left_is_named_with_its_line(conflict: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    git(worktree(conflict), "add", CORE)
    assert f"{CORE}:2: a conflict marker is left" in refused(capsys, "--continue")


def test_a_resolution_that_empties_the_patch_asks_for_a_reason(
    conflict: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    staged(conflict, "return 40")
    assert "leaves nothing of the patch" in refused(capsys, "--continue")


def test_a_resolution_on_another_commit_is_not_taken(conflict: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    staged(conflict)
    tree = worktree(conflict)
    git(tree, "-c", "core.editor=true", "commit", "-q", "--no-edit")
    git(tree, "commit", "-q", "--allow-empty", "-m", "one more")
    assert "expected one commit on" in refused(capsys, "--continue")
    git(tree, "checkout", "-q", "--detach", "HEAD~1")
    assert rebase("--continue", "--unproved") == 0  # git remembers what was resolved in between
    assert b"    return 43\n" in new_series(conflict).patches[0].edits[0].hunks[0].new


def test_work_that_no_commit_has_is_not_lost_when_the_worktree_is_elsewhere(
    conflict: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    staged(conflict)
    tree = worktree(conflict)
    git(tree, "cherry-pick", "--quit")
    git(tree, "checkout", "-q", "--detach")
    assert "changes that no commit has" in refused(capsys, "--continue", code=1)
    assert "return 43" in (tree / CORE).read_text()


def test_files_of_the_users_in_the_worktree_outlive_an_abort(conflict: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    (worktree(conflict) / "notes.txt").write_text("mine")
    assert "notes.txt" in refused(capsys, "--abort", code=1)
    assert (worktree(conflict) / "notes.txt").read_text() == "mine"


def test_a_second_move_waits_for_the_first(conflict: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is under way" in refused(capsys, "--onto", "2.0", code=1)


def test_going_on_without_a_move_is_refused(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    for how in (["--continue"], ["--abort"], ["--status"], ["--skip", "absorbed: toy#201, v2.0"]):
        assert "No move of toy is under way" in refused(capsys, *how, code=1)
    assert project(toy)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Expected --onto VERSION"),
        (["--continue", "--onto", "2.0"], "begin a move"),
        (["--slug", "x", "--onto", "2.0"], "--slug says which patch"),
        (["--skip", "because"], "expected `absorbed"),
        (["--onto", "main"], "expected a release"),
        (["--onto", "1.0"], "the pin of v1 itself"),
        (["--onto", "2.0", "--from", "v9"], "There is no line"),
    ],
)
def test_a_call_that_cannot_be_meant_is_refused(
    toy: Toy, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert said in refused(capsys, *arguments, code=2)
    assert not (toy.home.root / "build" / "rebase" / "toy" / "worktree").exists()


def test_a_decision_is_asked_for_again_where_its_merge_is_another(
    conflict: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    """The old line's patch changed since: what was decided for the one before may be wrong for this one."""
    staged(conflict)
    assert rebase("--continue", "--unproved") == 0
    add_on_old_line(conflict)
    assert "right-answer does not go onto" in refused(capsys, "--onto", "2.0", "--from", "v1", "--source", "pypi")


def add_on_old_line(toy: Toy) -> None:
    """The first patch of v1 says 42 in another way."""
    from sm120_overlay.cli import main

    author = toy.root / "author-toy"
    text = (author / CORE).read_text()
    git(author, "checkout", "-q", "sm120/v1~1")
    (author / CORE).write_text((author / CORE).read_text().replace("return 42", "return 6 * 7"))
    git(author, "commit", "-q", "-a", "--amend", "--no-edit")
    (author / CORE).write_text(text.replace("return 42", "return 6 * 7"))
    git(author, "checkout", "-q", "sm120/v1", "--", ".")
    (author / CORE).write_text(text.replace("return 42", "return 6 * 7"))
    git(author, "add", "-A")
    git(author, "commit", "-q", "-C", "sm120/v1")
    git(author, "checkout", "-q", "-B", "sm120/v1")
    assert main(["export", str(author), "--line", "v1"]) == 0


def moved_by_hand(toy: Toy) -> Path:
    """A user's own rebase of the series onto the release, with a commit more."""
    clone = toy.root / "author-toy"
    git(clone, "fetch", "-q", "--tags", str(toy.upstream()))
    git(clone, "checkout", "-q", "v2.0")
    text = core(("return 41", "return 43"))[CORE]
    (clone / CORE).write_text(text)
    git(clone, "commit", "-q", "-a", "-C", "sm120/v1~1")
    git(clone, "cherry-pick", "sm120/v1")
    commit(clone, "own-line", {"python/toy/own.py": "OWN = 1\n"})
    write(toy.home.root, {"tests/patches/test_own_line.py": ""})
    return clone


def test_a_series_that_was_moved_by_hand_is_taken_and_recorded(toy: Toy) -> None:
    release(toy, "2.0", core(("return 41", "return 40")))
    clone = moved_by_hand(toy)
    assert rebase("--onto", "2.0", "--source", str(toy.upstream()), "--take", str(clone), "--unproved") == 0
    origin = read_origin(toy.home.patches("v2.0", "toy"))
    assert origin is not None
    rows = [(row.slug, row.state, row.decided) for row in origin.rows]
    assert rows == [("right-answer", "conflict", True), ("bring-hook", "clean", False), ("own-line", "new", False)]
    before = project(toy)
    assert rebase("--onto", "2.0", "--from", "v1", "--source", "pypi") == 0
    assert project(toy) == before


def test_a_branch_on_another_commit_is_not_taken(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    release(toy, "2.0", core(("return 41", "return 40")))
    clone = toy.root / "author-toy"
    said = refused(capsys, "--onto", "2.0", "--source", str(toy.upstream()), "--take", str(clone), code=1)
    assert "expected commits on" in said


def test_a_commit_with_gits_own_list_of_conflicts_keeps_its_trailers(conflict: Toy) -> None:
    staged(conflict)
    git(worktree(conflict), "commit", "-q", "--no-edit")
    assert "# Conflicts:" in git(worktree(conflict), "log", "-1", "--format=%B")
    assert rebase("--continue", "--unproved") == 0
    assert "Conflicts" not in new_series(conflict).patches[0].message


def test_a_resolution_that_lost_its_name_is_not_taken(conflict: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    staged(conflict)
    git(worktree(conflict), "commit", "-q", "-m", "toy: something else")
    assert "expected `Slug: right-answer`" in refused(capsys, "--continue", "--unproved")


def test_a_new_file_that_was_not_added_is_not_left_behind(conflict: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    staged(conflict)
    (worktree(conflict) / "python/toy/new.py").write_text("NEW = 1\n")
    assert "not added: python/toy/new.py" in refused(capsys, "--continue", "--unproved")
    assert (worktree(conflict) / "python/toy/new.py").is_file()


def test_a_skip_of_a_later_patch_holds_when_the_one_before_it_is_decided(conflict: Toy) -> None:
    assert rebase("--slug", "bring-hook", "--skip", "n/a: the hook has no place in this release") == 3
    staged(conflict)
    assert rebase("--continue", "--unproved") == 0
    assert new_series(conflict).slugs == ("right-answer",)
    pin = load_lines(conflict.home.pins).line("v2.0").pin("toy")
    assert [one.slug for one in pin.absent] == ["bring-hook"]


def test_a_worktree_whose_repository_is_gone_is_named(conflict: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(worktree(conflict).parent / "repo.git")
    said = refused(capsys, "--onto", "2.0", "--source", "pypi", code=1)
    assert "its repository" in said
    assert "is gone" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--onto", "2.0", "--line", "../../evil"], "expected a name such as"),
        (["--onto", "2.0", "--line", "v1"], "it is toy 1.0, not 2.0"),
    ],
)
def test_a_line_that_cannot_be_meant_is_refused(
    toy: Toy, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    release(toy, "2.0", core(("# line 10\n", "# line ten\n")))
    before = project(toy)
    assert said in refused(capsys, *arguments, "--source", "pypi", code=2)
    assert project(toy) == before


def test_a_line_is_not_replaced_by_a_move_from_another(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    """Patches that only it carries would go without a word."""
    for version in ("2.0", "3.0"):
        release(toy, version, {f"python/toy/x{version[0]}.py": "X = 1\n"})
        assert rebase("--onto", version, "--source", "pypi", "--unproved", "--from", "v1") == 0
    said = refused(capsys, "--onto", "v3.0", "--from", "v2.0", "--source", "pypi", code=1)
    assert "came from v1, and the move is from v2.0" in said
