"""How a file of a change gets onto the series' branch: exactly, merged as git merges it, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sm120_overlay.cli import main

from ..queue.scenes import Answer
from ..queue.toy import FIRST, HOOK, TOY, Toy, applied, git, git_bytes, write
from .people import BARE, CORE, DOS, RUN, Stranger, adopt, at_head, edited, everything, hows, whys

Save = Callable[[bytes], Path]
INIT = "python/toy/__init__.py"
EXTRA = "python/toy/extra/__init__.py"


def adopted(ours: Path, saved: Save, diff: bytes, *options: str) -> Answer:
    """The answer, after checking that a refused change changed nothing and one that was taken is what HEAD has."""
    before = everything(ours)
    answer = adopt(saved(diff), ours, *options)
    if answer.code in (0, 3):
        assert git(ours, "status", "--porcelain", "--ignored") == ""
    else:
        assert everything(ours) == before
    if answer.code == 3:
        assert {name: seen for name, seen in everything(ours).items() if name.startswith("tree/")} == {
            name: seen for name, seen in before.items() if name.startswith("tree/")
        }
    return answer


def test_a_file_as_the_pin_has_it_gets_the_very_bytes(stranger: Stranger, ours: Path, saved: Save) -> None:
    files = {BARE: "one\ntwo\nvier", RUN: None, "python/toy/new/__init__.py": "", "python/toy/new/a b.py": "A = 1\n"}
    answer = adopted(ours, saved, stranger.diff(files))
    assert (answer.code, set(hows(answer).values())) == (0, {"exact"})
    theirs = git(stranger.path, "write-tree").strip()
    assert git(ours, "diff", "--name-only", "HEAD~1", "HEAD") == git(
        stranger.path, "diff", "--name-only", "HEAD", theirs
    )
    assert at_head(ours, BARE) == b"one\ntwo\nvier"
    assert not (ours / RUN).exists()


def test_a_file_that_the_series_changed_is_merged_as_git_merges_it(stranger: Stranger, ours: Path, saved: Save) -> None:
    commit = stranger.commit({CORE: edited(CORE, 50)})
    answer = adopted(ours, saved, stranger.diff({CORE: edited(CORE, 50)}, "HEAD~1"))
    assert (answer.code, hows(answer)) == (0, {CORE: "clean"})
    made = at_head(ours, CORE)
    assert b"return 42" in made
    assert b"line edited" in made
    git(ours, "fetch", "-q", str(stranger.path), "main")
    git(ours, "reset", "-q", "--hard", "HEAD~1")
    git(ours, "cherry-pick", commit)
    assert at_head(ours, CORE) == made


def test_hunks_that_end_up_in_another_function_are_told(stranger: Stranger, toy: Toy, ours: Path, saved: Save) -> None:
    lines = [f"    x{number} = {number}\n" for number in range(40)]
    body = "def first():\n" + "".join(lines)
    base = stranger.commit({RUN: body})
    git(stranger.path, "tag", "v1.1")
    theirs = Stranger(ours)
    theirs.commit({RUN: body.replace("x20 = 20\n", "x20 = 20\n\n\ndef second():\n")})
    answer = adopted(
        ours, saved, stranger.diff({RUN: body.replace("x35 = 35", "x35 = 350")}), "--history", str(stranger.path)
    )
    assert (answer.code, hows(answer)) == (0, {RUN: "moved"})
    assert "now in 'def second():'" in whys(answer)
    assert base


@pytest.mark.case("already or partly applied", target="adopt", outcome="exact", source="intel/opencl-clang#834")
def test_what_the_branch_has_already_is_absorbed_and_makes_no_commit(
    stranger: Stranger, ours: Path, saved: Save
) -> None:
    before = git(ours, "rev-parse", "HEAD")
    answer = adopted(ours, saved, stranger.diff(FIRST))
    assert (answer.code, hows(answer)) == (0, {CORE: "absorbed"})
    assert git(ours, "rev-parse", "HEAD") == before
    assert answer.targets["toy"]["patches"][0]["commit"] is None


def test_of_a_change_that_is_there_in_part_the_rest_is_taken(stranger: Stranger, ours: Path, saved: Save) -> None:
    wanted = FIRST[CORE].replace("# line 50\n", "# line fifty\n")
    answer = adopted(ours, saved, stranger.diff({CORE: wanted, EXTRA: "", BARE: "x\n"}))
    assert (answer.code, hows(answer)) == (0, {CORE: "clean", EXTRA: "absorbed", BARE: "exact"})
    assert git(ours, "diff", "--name-only", "HEAD~1", "HEAD").split() == [BARE, CORE]
    assert git(ours, "diff", "--numstat", "HEAD~1", "HEAD", "--", CORE).split("\t")[:2] == ["1", "1"]


CONFLICTS: dict[str, tuple[dict[str, str | None], str]] = {
    "the same lines": ({CORE: TOY[CORE].replace("return 41", "return 43")}, "conflict"),
    "a file that is there": ({EXTRA: "OTHER = 1\n"}, "conflict"),
    "a deletion of a changed file": ({DOS: None}, "conflict"),
}


@pytest.mark.parametrize("files, how", CONFLICTS.values(), ids=CONFLICTS)
def test_a_conflict_is_handed_over_and_the_branch_stays(
    stranger: Stranger, ours: Path, saved: Save, files: dict[str, str | None], how: str
) -> None:
    head = git(ours, "rev-parse", "HEAD")
    answer = adopted(ours, saved, stranger.diff({**files, BARE: "x\n"}))
    assert (answer.code, hows(answer)) == (3, {**dict.fromkeys(files, how), BARE: "exact"})
    assert git(ours, "rev-parse", "HEAD", "sm120/v1").split() == [head.strip()] * 2
    assert answer.targets["toy"]["handed_off"]["branch"] == "adopt/their-fix"


def test_a_file_that_is_gone_is_handed_over(stranger: Stranger, ours: Path, saved: Save) -> None:
    stranger.commit({"python/toy/old.py": "old = 1\n"})
    git(stranger.path, "tag", "v0.9")
    diff = stranger.diff({"python/toy/old.py": "old = 2\n"})
    answer = adopted(ours, saved, diff, "--history", str(stranger.path))
    assert (answer.code, hows(answer)) == (3, {"python/toy/old.py": "gone"})


def mode_change(their: Stranger) -> bytes:
    (their.path / RUN).chmod(0o644)
    return their.diff({})


def link(their: Stranger) -> bytes:
    (their.path / "python/toy/link.py").symlink_to("core.py")
    return their.diff({})


REFUSED: dict[str, tuple[Callable[[Stranger], bytes], str]] = {
    "a document": (lambda their: their.diff({"README.md": "x\n"}), "has no place in the installed package"),
    "a generated file": (lambda their: their.diff({"python/toy/_version.py": "x\n"}), "has no place"),
    "a binary": (lambda their: their.diff({"python/toy/x.bin": b"\0\1"}), "is binary"),
    "a binary in full": (lambda their: their.diff({"python/toy/x.bin": b"\0\1"}, "--binary"), "is binary"),
    "a mode": (mode_change, "changes its mode from 100755 to 100644"),
    "a link": (link, "is a symbolic link"),
    "an overlay file": (lambda their: their.diff({HOOK: "HOOK = False\n"}), "is an overlay file of the series"),
}


@pytest.mark.case("a foreign diff with a binary, a link or a mode change", target="adopt", outcome="refused",
                  source="cruft/cruft#131")  # fmt: skip
@pytest.mark.case("symlink or executable bit", target="adopt", outcome="refused", source="ds300/patch-package#118")
@pytest.mark.parametrize("make, said", REFUSED.values(), ids=REFUSED)
def test_what_no_patch_can_carry_is_refused_by_name_and_can_be_left_out(
    stranger: Stranger, ours: Path, saved: Save, make: Callable[[Stranger], bytes], said: str
) -> None:
    diff = make(stranger)
    answer = adopted(ours, saved, diff)
    assert (answer.code, set(hows(answer).values())) == (1, {"refused"})
    assert said in whys(answer)
    (path,) = hows(answer)
    both = diff + stranger.diff({BARE: "x\n"}, "--", BARE)
    answer = adopted(ours, saved, both, "--leave-out", path)
    assert (answer.code, hows(answer)) == (0, {BARE: "exact"})
    assert answer.targets["toy"]["patches"][0]["left_out"] == [path]


PATHS = ["../outside.py", "python/toy/../../../outside.py", "/etc/outside.py", "python/toy/.git/config", ".git/hooks/x",
         "python/toy//x.py", "python/toy/./x.py"]  # fmt: skip


@pytest.mark.case("a path that leaves the tree", target="adopt", outcome="refused")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("plain", [False, True], ids=["git", "plain"])
def test_no_path_leaves_the_tree_or_enters_git(ours: Path, saved: Save, path: str, plain: bool) -> None:
    heading = b"" if plain else f"diff --git a/{path} b/{path}\nnew file mode 100644\nindex 0000000..587be6b\n".encode()
    names = f"--- /dev/null\n+++ {'' if plain else 'b/'}{path}\n@@ -0,0 +1 @@\n+x\n".encode()
    outside = {name: seen for name, seen in everything(ours.parent).items() if not name.startswith("tree/ours")}
    answer = adopted(ours, saved, heading + names)
    assert (answer.code, set(hows(answer).values())) == (1, {"refused"})
    assert outside == {name: seen for name, seen in everything(ours.parent).items() if not name.startswith("tree/ours")}


WALK, HEART = "python/toy/walk.txt", "python/toy/heart.py"
RENAMES = {
    "as it was": (BARE, WALK, TOY[BARE], 0, {BARE: "exact", WALK: "exact"}),
    "changed by the series": (CORE, HEART, edited(CORE, 50), 0, {CORE: "exact", HEART: "clean"}),
    "onto a file that is there": (BARE, EXTRA, TOY[BARE] + "#\n", 3, {BARE: "conflict", EXTRA: "conflict"}),
}


@pytest.mark.case("a foreign diff with a rename or an empty file", target="adopt", outcome="exact",
                  source="libgit2/libgit2#5460")  # fmt: skip
@pytest.mark.parametrize("source, path, text, code, wanted", RENAMES.values(), ids=RENAMES)
def test_a_rename_takes_what_the_branch_made_of_the_file_along(
    stranger: Stranger, ours: Path, saved: Save, source: str, path: str, text: str, code: int, wanted: dict[str, str]
) -> None:
    diff = stranger.diff({source: None, path: text}, "-M")
    assert f"rename to {path}" in diff.decode()
    answer = adopted(ours, saved, diff)
    assert (answer.code, hows(answer)) == (code, wanted)
    if code == 0:
        assert not (ours / source).exists()
        assert (b"return 42" in at_head(ours, path)) == (source == CORE)


def test_a_copy_is_made_of_what_the_diff_was_made_on(stranger: Stranger, ours: Path, saved: Save) -> None:
    copy = edited(CORE, 50)
    diff = stranger.diff({"python/toy/heart.py": copy}, "-C", "--find-copies-harder")
    assert b"copy to python/toy/heart.py" in diff
    answer = adopted(ours, saved, diff)
    assert (answer.code, hows(answer)) == (0, {"python/toy/heart.py": "exact"})
    assert at_head(ours, "python/toy/heart.py") == copy.encode()


@pytest.mark.parametrize("new, lost", [("python/toy/extra", EXTRA), (f"{CORE}/x.py", CORE)])
@pytest.mark.case("a file in the place of a folder", target="adopt", outcome="refused")
@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["", "dry"])
def test_a_new_file_never_takes_a_folders_place(
    ours: Path, saved: Save, new: str, lost: str, dry: tuple[str, ...]
) -> None:
    head = f"diff --git a/{new} b/{new}\nnew file mode 100644\nindex 0000000..587be6b\n--- /dev/null\n+++ b/{new}\n"
    answer = adopted(ours, saved, head.encode() + b"@@ -0,0 +1 @@\n+x\n", *dry)
    assert answer.code == 1
    assert lost in answer.err


def test_letters_made_one_on_the_other_follow_each_other_also_where_the_first_was_merged(
    stranger: Stranger, ours: Path, saved: Save
) -> None:
    base = stranger.head
    stranger.commit({CORE: edited(CORE, 50)}, "core: one\n\nA.")
    twice = edited(CORE, 50).replace("# line 55\n", "# line 55!\n")
    stranger.commit({CORE: twice, "python/toy/new.py": "1\n"}, "core: two\n\nB.")
    stranger.commit({"python/toy/new.py": "2\n"}, "core: three\n\nC.")
    answer = adopted(ours, saved, stranger.mails(base, "--abbrev=7", "--no-full-index"))
    patches = answer.targets["toy"]["patches"]
    assert (answer.code, [[file["how"] for file in patch["files"]] for patch in patches]) == (
        0, [["clean"], ["clean", "exact"], ["exact"]],
    )  # fmt: skip
    made = at_head(ours, CORE)
    assert (b"return 42" in made, b"line edited" in made, b"line 55!" in made) == (True, True, True)
    assert b"line 55!" not in at_head(ours, CORE, "HEAD~2")
    assert at_head(ours, "python/toy/new.py", "HEAD~1") == b"1\n"


SITE = "/opt/venv/lib/python3.12/site-packages/"


@pytest.mark.parametrize("old, new", [
    ("toy/run.py", "toy/run.py"), (f"{SITE}toy/run.py.orig", f"{SITE}toy/run.py"), ("a/toy/run.py", "b/toy/run.py"),
    ("toy-1.0/python/toy/run.py", "toy-mine/python/toy/run.py"), ("../toy/run.py", "./toy/run.py"),
])  # fmt: skip
def test_a_plain_diff_of_installed_files_finds_their_place(ours: Path, saved: Save, old: str, new: str) -> None:
    diff = f"--- {old}\t2026-01-01 10:00:00.000000000 +0100\n+++ {new}\t2026-01-02 10:00:00.000000000 +0100\n"
    hunk = "@@ -1,2 +1,2 @@\n #!/usr/bin/env python3\n-print('run')\n+print('ran')\n"
    answer = adopted(ours, saved, (diff + hunk).encode())
    assert (answer.code, hows(answer)) == (0, {RUN: "exact"})
    assert git(ours, "ls-tree", "HEAD", RUN).startswith("100755")


def test_a_git_diff_between_installed_packages_finds_their_place(stranger: Stranger, ours: Path, saved: Save) -> None:
    diff = stranger.diff({RUN: "print('ran')\n"}, "--relative=python/")
    assert b"a/toy/run.py" in diff
    assert hows(adopted(ours, saved, diff)) == {RUN: "exact"}


def test_a_plain_diff_made_on_the_pin_is_merged_where_the_series_changed_the_file(
    toy: Toy, ours: Path, saved: Save
) -> None:
    hunk = "@@ -52,3 +52,3 @@\n # line 48\n-# line 49\n+# line 49!\n # line 50\n"
    answer = adopted(ours, saved, f"--- a/{CORE}\n+++ b/{CORE}\n{hunk}".encode())
    assert (answer.code, hows(answer)) == (0, {CORE: "exact"})  # the series moved no line before it
    moved = applied(toy, "toy", "moved")
    write(moved, {CORE: "# one more\n" + (moved / CORE).read_text()})
    git(moved, "commit", "-q", "-a", "-m", "mine: one more line")
    answer = adopted(moved, saved, f"--- a/{CORE}\n+++ b/{CORE}\n{hunk}".encode())
    assert (answer.code, hows(answer)) == (0, {CORE: "clean"})
    assert b"# line 48\n# line 49!\n# line 50\n" in at_head(moved, CORE)


def test_names_of_any_bytes_reach_the_branch_and_the_message(
    stranger: Stranger, ours: Path, saved: Save, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "python/toy/\udcff \x1b[31m ä.py"
    base = stranger.commit({name: "1\n2\n3\n"})
    Stranger(ours).commit({name: "1\n2\n3\n4\n"})
    diff = stranger.diff({name: "0\n1\n2\n3\n"})
    capsys.readouterr()
    assert main(["adopt", str(saved(diff)), str(ours), "--history", str(stranger.path), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert ("\\udcff \\x1b[31m" in said, "\x1b" in said) == (True, False)
    answer = adopted(ours, saved, diff, "--history", str(stranger.path))
    assert (answer.code, hows(answer)) == (0, {name: "clean"})
    assert git_bytes(ours, "show", f"HEAD:{name}") == b"0\n1\n2\n3\n4\n"
    assert "\\udcff" in git(ours, "log", "-1", "--format=%B")
    assert base
