"""The manifest that software reads at run time: of both kinds of target, true whenever a run ends or is cut."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from .cuts import die, run_failing, tear
from .ground import Ground, bringing
from .scenes import Venv, ask, make_newer, make_venv, snapshot, use_series
from .toy import FIRST, Toy, applied, apply_to, git, git_bytes, opened, write

INSIDE = "sm120-overlay/manifest.json"


def manifest_of(clone: Path) -> Path:
    """Where a checkout's lies, as git knows its own directory."""
    return Path(git(clone, "rev-parse", "--absolute-git-dir").strip()) / INSIDE


def said_of(clone: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(manifest_of(clone).read_bytes())
    return said


def holds(said: dict[str, Any], root: Path, installed: bool = False) -> bool:
    """Whether every file is what the manifest says, by the rule that docs/json.md gives to readers."""
    for path, entry in said["files"].items():
        file = root / (entry["installed"] if installed else path)
        data = file.read_bytes() if file.is_file() else None
        found = None if data is None else hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        if found != entry["blob"]:
            return False
    return True


def refused(clone: Path, *words: str) -> None:
    before = snapshot(clone, skip=("objects",))
    answer = ask("apply", clone)
    assert answer.code == 1 and all(word in answer.err for word in words), answer
    assert snapshot(clone, skip=("objects",)) == before


def test_a_checkout_has_it_in_its_git_directory_and_nowhere_else(toy: Toy) -> None:
    clone = toy.clone()
    before = snapshot(clone)
    assert apply_to(clone) == 0
    series = toy.series()
    said = said_of(clone)
    assert {key: said[key] for key in said if key not in ("files", "patches")} == {
        "schema": 1, "line": "v1", "upstream": "toy", "version": "1.0", "digest": series.digest,
    }  # fmt: skip
    assert said["patches"] == [{"slug": patch.slug, "subject": patch.subject} for patch in series.patches]
    assert said["files"]["python/toy/extra/hook.py"].keys() == {"installed", "mode", "blob"}
    assert said["files"]["python/toy/core.py"]["installed"] == "toy/core.py"
    assert said["files"].keys() == {edit.path for patch in series.patches for edit in patch.edits}
    assert holds(said, clone)
    assert git(clone, "status", "--porcelain", "--ignored") == ""
    assert [path for path in snapshot(clone).keys() - before.keys() if "extra" not in path] == []


def test_both_kinds_of_target_say_the_same_of_the_same_files(toy: Toy, tmp_path: Path) -> None:
    venv = Venv(make_venv(tmp_path / "venv", toy.wheels))
    assert ask("apply", "--installed", venv.python, "--only", "toy").code == 0
    beside = json.loads((venv.info() / INSIDE).read_bytes())
    mine = said_of(applied(toy))
    assert holds(beside, venv.site, installed=True)
    for path, entry in mine["files"].items():
        assert entry.items() <= beside["files"][path].items()
    assert {**mine, "files": beside["files"]} == beside


def test_a_fresh_checkout_has_it_too(toy: Toy, tmp_path: Path) -> None:
    for source in (str(toy.upstream()), "pypi"):
        assert ask("apply", "--into", tmp_path / source[-4:], "--only", "toy", "--source", source).code == 0
        fresh = tmp_path / source[-4:] / "toy"
        assert said_of(fresh)["digest"] == toy.series().digest and holds(said_of(fresh), fresh)


def test_it_names_a_file_that_the_series_deletes(toy: Toy) -> None:
    author = toy.root / "author-toy"
    git(author, "rm", "-q", "python/toy/bare.txt")
    git(author, "commit", "-q", "--amend", "--no-edit")
    assert ask("export", author).code == 0
    clone = applied(toy)
    assert said_of(clone)["files"]["python/toy/bare.txt"]["blob"] is None
    assert holds(said_of(clone), clone)


def test_through_without_upgrade_and_reverse_renew_it(toy: Toy) -> None:
    clone = applied(toy)
    whole = manifest_of(clone).read_bytes()
    for flags in (("--through", "right-answer"), ("--without", "bring-hook")):
        assert apply_to(clone, *flags) == 0
        assert [patch["slug"] for patch in said_of(clone)["patches"]] == ["right-answer"]
        assert said_of(clone)["files"].keys() == FIRST.keys() and holds(said_of(clone), clone)
    assert apply_to(clone) == 0
    assert manifest_of(clone).read_bytes() == whole
    make_newer(toy)
    assert apply_to(clone) == 0
    assert said_of(clone)["digest"] == toy.series().digest and holds(said_of(clone), clone)
    assert apply_to(clone, "--reverse") == 0
    assert not manifest_of(clone).parent.exists()


def test_a_linked_worktree_has_its_own(toy: Toy) -> None:
    clone = toy.clone()
    linked = toy.root / "linked"
    git(clone, "worktree", "add", "-q", "--detach", str(linked))
    assert apply_to(linked) == 0
    assert manifest_of(linked).is_relative_to(clone / ".git/worktrees")
    assert holds(said_of(linked), linked)
    assert not manifest_of(clone).exists()
    assert git(linked, "status", "--porcelain", "--ignored") == ""
    assert apply_to(linked, "--reverse") == 0
    assert not manifest_of(linked).parent.exists()


def test_a_dry_run_writes_none(toy: Toy) -> None:
    clone = toy.clone()
    assert ask("apply", clone, "--dry-run").targets["toy"]["would_change"]
    assert not manifest_of(clone).exists()


@pytest.mark.parametrize("verb", ["status", "verify"])
@pytest.mark.parametrize("damage", [None, b"{", b'{"schema": 99}'])
def test_where_a_checkout_stands_is_never_read_from_it(toy: Toy, verb: str, damage: bytes | None) -> None:
    clone = applied(toy)
    before = ask(verb, clone)
    manifest_of(clone).unlink() if damage is None else manifest_of(clone).write_bytes(damage)
    assert ask(verb, clone) == before


@pytest.mark.case("our manifest is lost", target="checkout", outcome="exact")
def test_one_that_is_lost_is_written_by_the_next_apply(toy: Toy) -> None:
    """As on a clone of an applied checkout, or one that an older version of these tools applied."""
    clone = applied(toy)
    before = manifest_of(clone).read_bytes()
    commit, files = git(clone, "rev-parse", "HEAD"), snapshot(clone, stats=True)
    shutil.rmtree(manifest_of(clone).parent)
    assert ask("apply", clone).targets["toy"]["changed"]
    assert manifest_of(clone).read_bytes() == before
    assert (git(clone, "rev-parse", "HEAD"), snapshot(clone, stats=True)) == (commit, files)
    assert not ask("apply", clone).targets["toy"]["changed"]


@pytest.mark.case("our manifest is damaged", target="checkout", outcome="exact")
@pytest.mark.parametrize("damage", [b"", b"{", b'{"schema": 99}', b"\xff\0"])
@pytest.mark.parametrize("flags", [(), ("--reverse",)])
def test_one_that_is_damaged_is_renewed_or_taken_away(toy: Toy, damage: bytes, flags: tuple[str, ...]) -> None:
    clone = applied(toy)
    before = manifest_of(clone).read_bytes()
    manifest_of(clone).write_bytes(damage)
    assert apply_to(clone, *flags) == 0
    assert manifest_of(clone).exists() == (not flags)
    assert flags or manifest_of(clone).read_bytes() == before


@pytest.mark.case("our manifest is a link or a folder", target="checkout", outcome="refused")
def test_something_else_of_its_name_is_refused_and_nothing_changed(toy: Toy) -> None:
    clone = toy.clone()
    manifest_of(clone).mkdir(parents=True)
    refused(clone, str(manifest_of(clone)), "found a folder", "Move it away")
    manifest_of(clone).rmdir()
    manifest_of(clone).symlink_to(clone / "README.md")
    refused(clone, str(manifest_of(clone)), "found a symbolic link")
    assert (clone / "README.md").read_text() == "toy\n"


def test_one_that_was_left_on_the_bare_pin_is_taken_away(toy: Toy) -> None:
    clone = applied(toy)
    git(clone, "checkout", "-q", "main")
    git(clone, "branch", "-q", "-D", opened(toy, clone).our_name)
    assert ask("apply", clone, "--reverse").targets["toy"]["changed"]
    assert not manifest_of(clone).parent.exists()


def test_commits_of_the_users_above_the_series_leave_it_and_show_as_drift(toy: Toy) -> None:
    clone = applied(toy)
    before = manifest_of(clone).read_bytes()
    git(clone, "checkout", "-q", "-b", "mine")
    write(clone, {"python/toy/core.py": "# mine\n"})
    git(clone, "commit", "-qam", "mine")
    assert manifest_of(clone).read_bytes() == before
    assert not holds(said_of(clone), clone)


def claim(ground: Ground) -> dict[str, Any] | None:
    """What software would read there now: None where there is no manifest, or a run is under way or was cut."""
    file = ground.workplace / "manifest.json"
    if ground.journal.exists() or not file.is_file():
        return None
    said: dict[str, Any] = json.loads(file.read_bytes())
    return said


def states_of(ground: Ground) -> list[str]:
    """The states whose manifest is there, whatever else is."""
    file = ground.workplace / "manifest.json"
    now = file.read_bytes() if file.is_file() else None
    known = {state: ground.masters[state] / file.relative_to(ground.target) for state in ("older", "newer")}
    return [state for state, kept in known.items() if now == kept.read_bytes()]


@pytest.mark.parametrize(
    ("kind", "move", "fault"),
    [
        ("checkout", ("pin", "newer"), die),
        ("checkout", ("older", "newer"), die),
        ("checkout", ("newer", "older"), tear),
        ("checkout", ("newer", "pin"), die),
        ("installed", ("older", "newer"), die),
        ("installed", ("newer", "pin"), tear),
    ],
)
def test_a_run_that_is_killed_anywhere_leaves_none_that_claims_more_than_there_is(
    ground: Ground, move: tuple[str, str], fault: Any
) -> None:
    """Without a journal every file is what it says; with one, only the goal's files let the goal's manifest be."""
    start, goal = move
    step, seen = 0, set[str]()
    while True:
        ground.fresh(start)
        ended = run_failing(step, ground.target, bringing(ground, goal), fault)
        said, installed = claim(ground), ground.kind == "installed"
        assert said is None or holds(said, ground.files, installed), step
        states = states_of(ground)
        assert said is None or states, "neither state's manifest"
        if goal in states:
            assert holds(json.loads((ground.workplace / "manifest.json").read_bytes()), ground.files, installed), step
        seen.update(states or ["none"])
        if not ended.reached:
            assert (states or ["pin"]) == [goal]
            break
        step += 1
    assert step > 15
    assert seen >= ({start, goal} - {"pin"})


def test_in_a_linked_worktree_a_run_that_is_killed_is_undone_whole(toy: Toy) -> None:
    """Its git directory lies outside of it, so that what is written there has another root."""
    clone, linked = toy.clone(), toy.root / "linked"
    git(clone, "worktree", "add", "-q", "--detach", str(linked))
    before, cuts, step = snapshot(linked), 0, 0
    inside = manifest_of(linked).parent
    while run_failing(step, clone.parent, lambda: ask("apply", linked), die).reached:
        cuts += (inside / "journal.json").exists()
        assert apply_to(linked, "--reverse") == 0
        assert (snapshot(linked), inside.exists()) == (before, False), step
        step += 2
    assert cuts > 5
    assert holds(said_of(linked), linked)


@pytest.mark.parametrize("kind", ["checkout", "installed"])
def test_after_an_undo_it_is_the_one_from_before(ground: Ground) -> None:
    ground.fresh("older")
    assert run_failing(30, ground.target, bringing(ground, "newer"), die).died
    assert ground.journal.exists()
    assert ground.bring("older").code == 0
    assert states_of(ground) == ["older"]


def test_adopting_leaves_it_to_the_next_apply(toy: Toy, tmp_path: Path) -> None:
    clone = applied(toy, into="place/toy")
    before = manifest_of(clone).read_bytes()
    back = git_bytes(clone, "diff", "HEAD", "HEAD~1", "--full-index", "--", "python/toy/dos.py")
    write(tmp_path, {"fix.patch": back})
    assert ask("adopt", tmp_path / "fix.patch", "--into", clone.parent).code == 0
    assert manifest_of(clone).read_bytes() == before
    assert not holds(said_of(clone), clone)


def test_another_series_of_ours_upgrades_it(toy: Toy) -> None:
    clone = applied(toy)
    newer, older = toy.root / "newer", make_newer(toy)
    shutil.copytree(toy.home.root, newer)
    for home in (newer, older, newer):
        use_series(toy, home)
        assert apply_to(clone) == 0
        assert said_of(clone)["digest"] == toy.series().digest and holds(said_of(clone), clone)
