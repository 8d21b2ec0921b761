"""A user or pip at work between a cut run and the next: nothing of theirs is lost, and what they must do is said."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .cuts import die, run_failing, two_sentences
from .ground import Ground, bringing, contents
from .scenes import LEVER, Venv, snapshot
from .toy import Toy, git, write

KNOWN: dict[tuple[str, str, str], int] = {}  # where the search for a change begins, once it was found
EDITED = "the user edits a file between a cut run and the next"


def cut_with_files(ground: Ground, start: str, goal: str) -> None:
    """A run whose files are all written, and little else."""
    for step in range(KNOWN.get((ground.kind, start, goal), 0), 80):
        KNOWN[ground.kind, start, goal] = step
        ground.fresh(start)
        run_failing(step, ground.target, bringing(ground, goal), die)
        found = contents(ground.files)
        wanted = {path: said for path, said in ground.facts[goal].items() if "toy/" in path and "info" not in path}
        if ground.journal.exists() and all(found.get(path, said) == said for path, said in wanted.items()):
            files = {path for path, said in wanted.items() if isinstance(said, tuple) and said[0][0] == "-"}
            if files <= found.keys():
                return
    raise AssertionError("no cut came that far")


def file_of(ground: Ground, path: str) -> Path:
    return ground.files / (path.removeprefix("python/") if ground.kind == "installed" else path)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("checkout", marks=pytest.mark.case(EDITED, target="checkout", outcome="refused")),
        pytest.param("installed", marks=pytest.mark.case(EDITED, target="installed", outcome="refused")),
    ],
)
@pytest.mark.parametrize("path", ["python/toy/core.py", LEVER])
def test_an_edited_file_is_refused_by_name_and_the_way_back_that_is_named_works(ground: Ground, path: str) -> None:
    cut_with_files(ground, "older", "newer")
    file = file_of(ground, path)
    file.write_bytes(file.read_bytes() + b"# mine\n")
    before = snapshot(ground.files)
    for goal in ("newer", "pin"):
        answer = ground.bring(goal)
        assert (answer.code, two_sentences(answer)) == (1, True), answer
        assert str(file) in answer.err
        assert snapshot(ground.files) == before
    kept = Path(answer.said["error"]["todo"].partition("(")[2].partition(")")[0])
    if path == LEVER:  # the older series has no such file
        file.rename(ground.target / "moved-away")
        assert ground.bring("newer").code == 0
        (ground.target / "moved-away").unlink()
    else:
        file.write_bytes(kept.read_bytes())
        assert ground.bring("newer").code == 0
    assert ground.now() == ground.facts["newer"]


@pytest.mark.parametrize("kind", ["checkout", "installed"])
def test_a_file_of_the_users_in_a_folder_that_the_cut_run_made_stays(ground: Ground) -> None:
    cut_with_files(ground, "pin", "newer")
    mine = file_of(ground, "python/toy/extra/mine.py")
    mine.write_text("mine\n")
    assert ground.bring("pin").code == 0
    assert mine.read_text() == "mine\n"
    assert [path.name for path in mine.parent.iterdir() if path.name != "__pycache__"] == ["mine.py"]
    assert ground.bring("newer").code == 0
    mine.unlink()
    assert ground.now() == ground.facts["newer"]


@pytest.mark.parametrize("kind", ["checkout", "installed"])
def test_where_the_kept_bytes_were_deleted_that_is_said_and_nothing_is_changed(ground: Ground) -> None:
    cut_with_files(ground, "older", "newer")
    shutil.rmtree(ground.workplace / "before")
    before = snapshot(ground.files)
    answer = ground.bring("newer")
    assert (answer.code, two_sentences(answer)) == (1, True), answer
    assert str(ground.workplace / "before") in answer.err
    assert snapshot(ground.files) == before


@pytest.mark.parametrize("kind", ["checkout", "installed"])
def test_where_the_journal_was_deleted_half_changed_files_are_refused_or_ours_by_their_blobs(ground: Ground) -> None:
    cut_with_files(ground, "older", "newer")
    ground.journal.unlink()
    before = contents(ground.files)
    answer = ground.bring("newer")
    assert (answer.code, two_sentences(answer)) == (1, True), answer
    after = contents(ground.files)
    gone = {path for path in before if f"{ground.workplace.name}/before" in path}
    assert {path: said for path, said in before.items() if path not in gone} == after


@pytest.mark.parametrize("kind", ["checkout"])
@pytest.mark.parametrize("goal", ["newer", "pin"])
def test_a_users_branch_and_commit_after_a_cut_stay(ground: Ground, goal: str) -> None:
    """Their commit holds what the cut run had half done only if they put it there themselves."""
    cut_with_files(ground, "older", "newer")
    (ground.target / ".git/index.lock").unlink(missing_ok=True)  # as git tells them to
    git(ground.target, "checkout", "-q", "--", "README.md")
    write(ground.target, {"notes.md": "mine\n"})
    git(ground.target, "add", "notes.md")
    git(ground.target, "commit", "-q", "-m", "mine", "--", "notes.md")
    mine = git(ground.target, "rev-parse", "HEAD").strip()
    answer = ground.bring(goal)
    assert answer.code in (0, 1), answer
    assert "Traceback" not in answer.err
    assert mine in git(ground.target, "log", "--all", "--format=%H").split()
    assert (ground.target / "notes.md").read_text() == "mine\n" or answer.code == 0


@pytest.mark.case("pip installs the package again after a cut run", target="installed", outcome="refused")
@pytest.mark.parametrize("kind", ["installed"])
@pytest.mark.parametrize("start", ["pin", "older"])
def test_after_a_reinstallation_what_the_sentences_say_leads_to_an_exact_apply(
    ground: Ground, toy: Toy, start: str
) -> None:
    cut_with_files(ground, start, "newer")
    venv = Venv(ground.target)
    wheel = next(toy.wheels.glob("toy-*.whl"))
    venv.pip("install", "-q", "--no-deps", "--no-index", "--force-reinstall", str(wheel))
    before = snapshot(ground.files)
    answer = ground.bring("newer")
    assert answer.code == 1
    assert snapshot(ground.files) == before
    assert f"remove {ground.workplace} instead" in answer.err
    shutil.rmtree(ground.workplace)
    while (answer := ground.bring("newer")).code:
        assert two_sentences(answer) and "Move it away" in answer.err, answer
        Path(answer.said["error"]["what"].partition(" exists")[0]).unlink()
    assert venv.run("import toy; print(toy.answer())") == "42"
    assert ground.tell("verify", "newer").code == 0
