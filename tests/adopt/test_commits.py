"""From an adopted change to a patch of the series: the commit is the user's, its marks are theirs to fill."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sm120_overlay.cli import main
from sm120_overlay.queue.unfinished import marks, slug_of, unfinished_message

from ..queue.cuts import cut_at
from ..queue.scenes import ask, snapshot
from ..queue.toy import TOY, Toy, apply_to, export_from, git, git_bytes, message, write
from .people import BARE, CORE, DOS, RUN, Stranger, adopt, at_head, edited, everything, hows

Save = Callable[[bytes], Path]
NEW = "python/toy/new.py"
CHANGE = {BARE: "one\ntwo\nvier", NEW: "NEW = 1\n", CORE: edited(CORE, 50)}


def fill_in(ours: Path, slug: str = "their-fix") -> None:
    """What a person does: says in the message what only they can say."""
    git_bytes(ours, "commit", "-q", "--amend", "-F", "-", stdin=message(slug).encode())


def finding(ours: Path) -> str:
    """What export says of the branch."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        assert main(["export", str(ours)]) == 1
    return out.getvalue()


def test_apply_does_not_throw_it_away_and_status_and_verify_tell_it(
    stranger: Stranger, ours: Path, saved: Save
) -> None:
    answer = adopt(saved(stranger.diff(CHANGE)), ours)
    assert answer.code == 0
    before = everything(ours)
    for options in ((), ("--reverse",), ("--through", "right-answer")):
        assert apply_to(ours, *options) == 1
    assert ask("status", ours).code == 1
    assert ask("verify", ours).code == 1
    assert everything(ours) == before


@pytest.mark.case("trailers that only a person can fill", target="adopt", outcome="refused")
def test_export_refuses_the_marks_and_writes_nothing(stranger: Stranger, ours: Path, toy: Toy, saved: Save) -> None:
    adopt(saved(stranger.diff(CHANGE)), ours)
    before = snapshot(toy.home.root)
    said = finding(ours)
    for key in ("Scope", "Upstream-Status", "Drop-When", "Evidence"):
        assert f"`{key}: TO-FILL" in said
    assert "`TO-FILL: area: what it does`" in said
    assert {path: seen for path, seen in snapshot(toy.home.root).items() if "sm120-overlay" not in path} == before


def test_filled_in_it_is_exported_and_applies_verifies_and_reverses(
    stranger: Stranger, ours: Path, toy: Toy, saved: Save
) -> None:
    adopt(saved(stranger.diff(CHANGE)), ours)
    fill_in(ours)
    write(toy.home.root, {"tests/patches/test_their_fix.py": ""})
    assert export_from(ours) == 0
    again = toy.clone("toy", "again")
    assert apply_to(again) == 0
    assert ask("verify", again).code == 0
    assert ask("status", again).states()["their-fix"] == "applied"
    assert {path: at_head(again, path) for path in CHANGE} == {path: at_head(ours, path) for path in CHANGE}
    assert apply_to(again, "--reverse") == 0
    assert git(again, "rev-parse", "HEAD") == git(again, "rev-parse", "main")
    assert git(again, "status", "--porcelain", "--ignored") == ""


def test_a_split_change_is_a_patch_for_each_folder_and_all_of_it(
    stranger: Stranger, ours: Path, toy: Toy, saved: Save
) -> None:
    files = {
        BARE: "x\n",
        "python/toy/a/one.py": "1\n",
        "python/toy/a/b/two.py": "2\n",
        "python/toy/a/b/c/three.py": "3\n",
    }
    whole = toy.clone("toy", "whole")
    assert apply_to(whole) == 0
    diff = saved(stranger.diff(files))
    assert adopt(diff, whole).code == 0
    answer = adopt(diff, ours, "--split")
    patches = answer.targets["toy"]["patches"]
    assert [(patch["slug"], [file["path"] for file in patch["files"]]) for patch in patches] == [
        ("their-fix-a", ["python/toy/a/one.py"]),
        ("their-fix-a-b", ["python/toy/a/b/c/three.py", "python/toy/a/b/two.py"]),
        ("their-fix-toy", [BARE]),
    ]
    assert git(ours, "rev-parse", "HEAD^{tree}") == git(whole, "rev-parse", "HEAD^{tree}")
    assert git(ours, "rev-list", "--count", "HEAD~3..HEAD").strip() == "3"
    git(whole, "reset", "-q", "--hard", "HEAD~1")
    assert [patch["slug"] for patch in adopt(diff, whole, "--split", "--depth", "1").targets["toy"]["patches"]] == [
        "their-fix-a", "their-fix-toy",
    ]  # fmt: skip


def test_the_parts_of_a_split_change_export_as_a_series(stranger: Stranger, ours: Path, toy: Toy, saved: Save) -> None:
    assert adopt(saved(stranger.diff({BARE: "x\n", "python/toy/a/one.py": "1\n"})), ours, "--split").code == 0
    for slug in ("their-fix-toy", "their-fix-a"):
        write(toy.home.root, {f"tests/patches/test_{slug.replace('-', '_')}.py": ""})
    fill_in(ours, "their-fix-toy")
    tip = git(ours, "rev-parse", "HEAD").strip()
    git(ours, "reset", "-q", "--hard", "HEAD~1")
    fill_in(ours, "their-fix-a")
    git(ours, "cherry-pick", tip)
    assert export_from(ours) == 0
    assert toy.series().slugs == ("right-answer", "bring-hook", "their-fix-a", "their-fix-toy")


def test_a_hand_off_ends_by_git_cherry_pick_in_commits_that_export_takes(
    stranger: Stranger, ours: Path, toy: Toy, saved: Save, capsys: pytest.CaptureFixture[str]
) -> None:
    diff = saved(stranger.diff({**CHANGE, CORE: TOY[CORE].replace("return 41", "return 43"), DOS: None}))
    capsys.readouterr()
    assert main(["adopt", str(diff), str(ours)]) == 3
    said = capsys.readouterr().out
    told = re.search(r"→ git -C (\S+) cherry-pick (\S+)", said)
    assert told is not None
    with pytest.raises(Exception, match="cherry-pick"):
        git(Path(told[1]), "cherry-pick", told[2])
    state = git(ours, "status", "--porcelain")
    assert (f"UU {CORE}" in state, f"UD {DOS}" in state, f"A  {NEW}" in state) == (True, True, True)
    write(ours, {CORE: (toy.root / "ours" / CORE).read_text().split("<<<<<<<")[0] + "    return 43\n"})
    git(ours, "rm", "-q", DOS)
    git(ours, "add", "-A")
    git(ours, "-c", "core.editor=true", "cherry-pick", "--continue")
    fill_in(ours)
    write(toy.home.root, {"tests/patches/test_their_fix.py": ""})
    assert export_from(ours) == 0
    assert toy.series().slugs[-1] == "their-fix"
    git(ours, "branch", "-D", "adopt/their-fix")
    again = toy.clone("toy", "again")
    assert (apply_to(again), ask("verify", again).code) == (0, 0)


def test_a_second_hand_off_says_that_its_branch_is_there(stranger: Stranger, ours: Path, saved: Save) -> None:
    diff = saved(stranger.diff({CORE: TOY[CORE].replace("return 41", "return 43")}))
    assert adopt(diff, ours).code == 3
    before = everything(ours)
    answer = adopt(diff, ours)
    assert (answer.code, "adopt/their-fix is there already" in answer.err) == (1, True)
    assert everything(ours) == before
    assert adopt(diff, ours, "--slug", "other").targets["toy"]["handed_off"]["branch"] == "adopt/other"


def test_a_second_run_finds_it_there(stranger: Stranger, ours: Path, saved: Save) -> None:
    diff = saved(stranger.diff(CHANGE))
    assert adopt(diff, ours).code == 0
    before = everything(ours)
    answer = adopt(diff, ours)
    assert (answer.code, set(hows(answer).values())) == (0, {"absorbed"})
    assert everything(ours) == before


def test_a_patch_of_a_series_keeps_its_slug_and_what_it_says(stranger: Stranger, toy: Toy, saved: Save) -> None:
    said = message("keep-me", Issue="toy#1") + "\n"
    stranger.commit({BARE: "x\n"}, said)
    bare = toy.clone("toy", "bare")
    assert apply_to(bare) == 0
    answer = adopt("main", bare, "--from", stranger.path)
    (patch,) = answer.targets["toy"]["patches"]
    assert (patch["slug"], patch["to_fill"]) == ("keep-me", [])
    assert sorted(git(bare, "log", "-1", "--format=%B").split()) == sorted(said.split())
    again = adopt("main~0", bare, "--from", stranger.path, "--slug", "other")
    assert again.code == 0
    stranger.commit({RUN: "y\n"}, said)
    answer = adopt("main", bare, "--from", stranger.path)
    assert answer.targets["toy"]["patches"][0]["slug"] == "keep-me-2"
    assert "\nSlug: keep-me-2\nTest: tests/patches/test_keep_me_2.py\n" in git(bare, "log", "-1", "--format=%B")


def test_a_message_is_whole_and_what_is_missing_is_marked() -> None:
    said = unfinished_message(
        "core: x", "Body. \n\n\n\nMore.\n\nScope: any\nSigned-off-by: A <a@b.c>", "x-y", "From there."
    )
    assert said == (
        "core: x\n\nBody.\n\nMore.\n\nFrom there.\n\nSlug: x-y\nTest: tests/patches/test_x_y.py\n"
        f"{marks(said)[0]}\n{marks(said)[1]}\n{marks(said)[2]}\nScope: any\nSigned-off-by: A <a@b.c>\n"
    )
    assert [mark.partition(":")[0] for mark in marks(said)] == ["Upstream-Status", "Drop-When", "Evidence"]
    assert len(marks(unfinished_message("", "", "x", "o"))) == 6


@pytest.mark.parametrize("text, slug", [
    ("moe: pick the other one", "pick-the-other-one"), ("v0.5.9", "v0-5-9"), ("-", "adopted"), ("日本", "adopted"),
    ("x" * 60, "x" * 60), ("X" * 60, "x" * 40), ("a word " * 20, "a-word-a-word-a-word-a-word-a-word-a"),
    ("taken", "taken-2"),
])  # fmt: skip
def test_a_slug_is_made_of_the_words(text: str, slug: str) -> None:
    assert slug_of(text, ["taken"]) == slug


def test_the_slugs_of_groups_all_differ() -> None:
    taken: list[str] = []
    for group in ("layers", "layers-moe", "layers_moe", "model executor"):
        taken.append(slug_of("a very long subject that goes on and on and on", taken, group))
    stem = "a-very-long-subject-that-goes-on-and-on"
    assert taken == [f"{stem}-layers", f"{stem}-layers-moe", f"{stem}-layers-moe-2", f"{stem}-model-executor"]


@pytest.mark.case("the run is killed at any write", target="adopt", outcome="undone")
def test_a_run_cut_at_any_write_is_undone_by_the_next_verb(
    stranger: Stranger, ours: Path, toy: Toy, saved: Save
) -> None:
    diff = saved(stranger.diff(CHANGE))
    master = toy.root / "master"
    shutil.copytree(ours, master, symlinks=True)

    def facts() -> object:
        head = git(ours, "rev-parse", "HEAD", "sm120/v1"), git(ours, "symbolic-ref", "HEAD")
        return head, snapshot(ours), git(ours, "status", "--porcelain", "--ignored"), git(ours, "ls-files", "-s")

    before = facts()
    step, cut = 0, True
    while cut:
        shutil.rmtree(ours)
        shutil.copytree(master, ours, symlinks=True)
        cut = cut_at(step, ours, lambda: adopt(diff, ours).code == 0)
        if cut:
            whole = snapshot(ours)
            after = adopt(diff, ours, "--leave-out", "*")  # a verb that writes nothing of its own
            assert after.code == 2
            assert apply_to(ours) in (0, 1)
            seen = facts()
            done = at_head(ours, BARE) != TOY[BARE].encode()
            assert done or seen == before, (step, whole.keys() ^ snapshot(ours).keys())
            assert adopt(diff, ours).code == 0
        assert at_head(ours, NEW) == b"NEW = 1\n"
        assert git(ours, "status", "--porcelain", "--ignored") == ""
        step += 3
    assert step > 10
