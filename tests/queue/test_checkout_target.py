"""A series on a git checkout of the user's: nothing of theirs moves, and what is not as expected is refused."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .scenes import CUT, LEVER, Answer, ask, make_newer, snapshot, use_series
from .toy import FIRST, HOOK, TOY, Toy, commit, git, write

OURS = "refs/heads/sm120/v1"


@pytest.fixture
def clone(toy: Toy) -> Path:
    return toy.clone()


def head(folder: Path) -> str:
    """HEAD's branch, or the commit where it is detached."""
    done = subprocess.run(
        ["git", "symbolic-ref", "-q", "HEAD"], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or git(folder, "rev-parse", "HEAD").strip()


def everything(folder: Path) -> tuple[dict[str, object], str, str, str]:
    """Files, refs, HEAD and index, as the user sees them; unlike `snapshot` no stat of the index."""
    refs = git(folder, "for-each-ref")
    return snapshot(folder), refs, head(folder), git(folder, "ls-files", "-s", "-v")


def refused(folder: Path, *words: str, options: tuple[str, ...] = (), codes: tuple[int, ...] = (1,)) -> Answer:
    """Apply refuses, says these words, and nothing of the checkout is changed."""
    before = everything(folder)
    answer = ask("apply", folder, *options)
    assert answer.code in codes, answer
    said = answer.said["error"]["what"] + " " + answer.said["error"]["todo"]
    for word in words:
        assert word in said, said
    assert everything(folder) == before
    return answer


def clean(folder: Path) -> bool:
    return git(folder, "status", "--porcelain", "--ignored") == ""


# On and off


def test_the_series_becomes_commits_on_our_branch_and_the_users_does_not_move(toy: Toy, clone: Path) -> None:
    answer = ask("apply", clone)
    assert (answer.code, head(clone)) == (0, OURS)
    assert git(clone, "rev-parse", "main").strip() == toy.pin().commit
    assert git(clone, "log", "--format=%s", "main..HEAD").split("\n")[:2] == [
        "toy: do bring-hook",
        "toy: do right-answer",
    ]
    assert answer.targets["toy"]["head"] == git(clone, "rev-parse", "HEAD").strip()
    assert answer.targets["toy"]["patches"][1]["commit"] == git(clone, "rev-parse", "HEAD").strip()
    assert clean(clone)
    assert git(clone, "diff", "HEAD") == git(clone, "diff", "--cached") == ""


@pytest.mark.case(
    "signing, hooks and settings of the user's", target="checkout", outcome="exact", source="electron/electron#17282"
)
def test_commit_ids_are_the_same_in_two_clones_whatever_the_users_settings(toy: Toy, clone: Path) -> None:
    other = toy.clone(into="other")
    for key, value in {
        "user.name": "Bob", "commit.gpgsign": "true", "core.hooksPath": str(toy.root), "diff.noprefix": "true",
        "i18n.commitEncoding": "latin1", "core.abbrev": "7", "core.fsmonitor": "true", "core.logAllRefUpdates": "false",
        "index.version": "4", "core.splitIndex": "true", "status.showUntrackedFiles": "no",
    }.items():  # fmt: skip
        git(other, "config", key, value)
    write(toy.root, {"reference-transaction": "#!/bin/sh\nexit 1\n", "post-checkout": "#!/bin/sh\nexit 1\n"})
    for hook in ("reference-transaction", "post-checkout"):
        (toy.root / hook).chmod(0o755)
    one, two = ask("apply", clone), ask("apply", other)
    assert one.targets["toy"]["head"] == two.targets["toy"]["head"]


@pytest.mark.parametrize("where", ["main", "feature", "detached"])
def test_reverse_returns_head_to_where_it_was_and_every_byte(toy: Toy, clone: Path, where: str) -> None:
    git(clone, "checkout", "-q", *(["--detach"] if where == "detached" else ["-B", where]))
    before = everything(clone)
    assert ask("apply", clone).code == 0
    answer = ask("apply", clone, "--reverse")
    assert (answer.code, answer.targets["toy"]["changed"]) == (0, True)
    assert everything(clone) == before
    assert clean(clone)


@pytest.mark.case("the user's branch moved on under an applied series", target="checkout", outcome="exact")
def test_reverse_goes_to_the_pin_when_the_users_branch_has_moved_on(toy: Toy, clone: Path) -> None:
    ask("apply", clone)
    git(clone, "update-ref", "refs/heads/main", git(clone, "commit-tree", "HEAD^{tree}", "-m", "moved").strip())
    assert ask("apply", clone, "--reverse").code == 0
    assert head(clone) == toy.pin().commit
    assert clean(clone)


def test_git_knows_the_way_back_after_apply(clone: Path) -> None:
    ask("apply", clone)
    git(clone, "checkout", "-q", "-")
    assert (head(clone), clean(clone)) == ("refs/heads/main", True)
    assert ask("apply", clone).targets["toy"]["changed"]


def test_applying_twice_and_reversing_twice_change_nothing_the_second_time(clone: Path) -> None:
    for options in ((), ("--reverse",)):
        assert ask("apply", clone, *options).targets["toy"]["changed"]
        before = everything(clone), snapshot(clone, stats=True)
        assert ask("apply", clone, *options).targets["toy"]["changed"] is False
        assert (everything(clone), snapshot(clone, stats=True)) == before


def test_a_dry_run_writes_nothing_at_all(clone: Path) -> None:
    before = snapshot(clone, skip=(), stats=True)
    assert ask("apply", clone, "--dry-run").targets["toy"]["would_change"] is True
    assert sorted(snapshot(clone, skip=(), stats=True).keys() ^ before.keys()) == []


def test_a_dry_run_moves_no_file_ref_or_index(clone: Path) -> None:
    before = everything(clone), snapshot(clone, stats=True)
    assert ask("apply", clone, "--dry-run").targets["toy"]["would_change"] is True
    ask("apply", clone)
    after = everything(clone), snapshot(clone, stats=True)
    assert before != after
    assert ask("apply", clone, "--reverse", "--dry-run").targets["toy"]["would_change"] is True
    assert (everything(clone), snapshot(clone, stats=True)) == after


def test_status_writes_nothing(clone: Path) -> None:
    before = snapshot(clone, skip=(), stats=True)
    assert ask("status", clone).code == 1
    assert snapshot(clone, skip=(), stats=True) == before


def test_a_deep_new_folder_goes_again_and_a_full_one_stays(clone: Path) -> None:
    ask("apply", clone)
    write(clone, {"python/toy/extra/__pycache__/hook.cpython-311.pyc": b"x"})
    ask("apply", clone, "--reverse")
    assert not (clone / "python/toy/extra").exists()
    ask("apply", clone)
    write(clone, {"python/toy/extra/notes.txt": "mine\n"})
    ask("apply", clone, "--reverse")
    assert [path.name for path in (clone / "python/toy/extra").iterdir()] == ["notes.txt"]


# What is the user's


@pytest.mark.case(
    "work of the user's in files that no patch touches", target="checkout", outcome="exact", source="arighi/virtme-ng#1"
)
def test_untouched_work_is_kept_through_apply_upgrade_and_reverse(toy: Toy, clone: Path) -> None:
    write(
        clone,
        {"README.md": "edited\n", "staged.txt": "staged\n", "notes.txt": "untracked\n", "python/toy/run.py": None},
    )
    git(clone, "add", "staged.txt")
    before = git(clone, "status", "--porcelain")
    ask("apply", clone)
    assert git(clone, "status", "--porcelain") == before
    make_newer(toy)
    assert ask("apply", clone).code == 0
    assert git(clone, "status", "--porcelain") == before
    assert ask("apply", clone, "--reverse").code == 0
    assert git(clone, "status", "--porcelain") == before
    assert (clone / "README.md").read_text() == "edited\n"


def edited(clone: Path) -> str:
    write(clone, {"python/toy/core.py": "mine\n"})
    return "python/toy/core.py"


def removed(clone: Path) -> str:
    (clone / "python/toy/core.py").unlink()
    return "python/toy/core.py"


def staged(clone: Path) -> str:
    write(clone, {"python/toy/dos.py": "mine\n"})
    git(clone, "add", "-A")
    write(clone, {"python/toy/dos.py": TOY["python/toy/dos.py"]})
    return "python/toy/dos.py"


def staged_away(clone: Path) -> str:
    git(clone, "rm", "-q", "--cached", "python/toy/dos.py")
    return "python/toy/dos.py"


def mode_staged(clone: Path) -> str:
    git(clone, "update-index", "--chmod=+x", "python/toy/dos.py")
    return "python/toy/dos.py"


def untracked(clone: Path) -> str:
    write(clone, {HOOK: "mine\n"})
    return HOOK


def ignored(clone: Path) -> str:
    write(clone, {".git/info/exclude": "extra/\n", HOOK: "mine\n"})
    return HOOK


def same_untracked(clone: Path) -> str:
    write(clone, {HOOK: "HOOK = True\n"})
    return HOOK


def link_at_new(clone: Path) -> str:
    (clone / "python/toy/extra").mkdir()
    (clone / HOOK).symlink_to("nowhere")
    return HOOK


def folder_at_new(clone: Path) -> str:
    write(clone, {f"{HOOK}/mine.txt": "mine\n"})
    return HOOK


def link_at_touched(clone: Path) -> str:
    (clone / "python/toy/core.py").rename(clone / "elsewhere.py")
    (clone / "python/toy/core.py").symlink_to("../../elsewhere.py")
    return "python/toy/core.py"


def linked_parent(clone: Path) -> str:
    (clone / "python/toy").rename(clone / "elsewhere")
    (clone / "python/toy").symlink_to("../elsewhere")
    return "python/toy"


def linked_new_parent(clone: Path) -> str:
    (clone / "python/toy/extra").symlink_to("/tmp")
    return "python/toy/extra"


def unmerged(clone: Path) -> str:
    blobs = git(clone, "ls-files", "-s", "python/toy/dos.py").split()
    lines = "".join(f"100644 {blobs[1]} {stage}\tpython/toy/dos.py\n" for stage in (1, 2, 3))
    subprocess.run(["git", "rm", "-q", "--cached", "python/toy/dos.py"], cwd=clone, check=True)
    subprocess.run(["git", "update-index", "--index-info"], cwd=clone, check=True, input=lines.encode())
    return "python/toy/dos.py"


def index_held(clone: Path) -> str:
    write(clone, {".git/index.lock": ""})
    return "index.lock"


DIRT: dict[Callable[[Path], str], tuple[str, str]] = {
    edited: ("a touched file was edited", "PaperMC/paperweight#75"),
    removed: ("a touched file was deleted", ""),
    staged: ("a touched file is staged otherwise", "PaperMC/paperweight#75"),
    staged_away: ("a touched file was taken out of the index", ""),
    mode_staged: ("a touched file's mode is staged otherwise", "ds300/patch-package#135"),
    untracked: ("a new file is there, untracked", ""),
    ignored: ("a new file is there, ignored", ""),
    same_untracked: ("a new file is there already, with the very content", ""),
    link_at_new: ("a link where the series brings a file", "ds300/patch-package#118"),
    folder_at_new: ("a folder where the series brings a file", ""),
    link_at_touched: ("a touched file is a link", "ds300/patch-package#118"),
    linked_parent: ("a folder above a touched file is a link", "ds300/patch-package#118"),
    linked_new_parent: ("a new file's folder is a link", "ds300/patch-package#118"),
    unmerged: ("a touched file has a merge conflict", ""),
    index_held: ("git holds the index", ""),
}


def cell(dirt: Callable[[Path], str], what: str, source: str) -> object:
    """A parameter with its mark."""
    return pytest.param(
        dirt, id=dirt.__name__, marks=pytest.mark.case(what, target="checkout", outcome="refused", source=source)
    )


@pytest.mark.parametrize("dirt", [cell(dirt, *row) for dirt, row in DIRT.items()])
def test_work_of_the_users_in_the_way_is_refused_by_name(clone: Path, dirt: Callable[[Path], str]) -> None:
    refused(clone, dirt(clone))


@pytest.mark.case("git holds the index", target="checkout", outcome="refused")
def test_a_lock_of_the_users_git_stays(clone: Path) -> None:
    refused(clone, index_held(clone))
    assert (clone / ".git/index.lock").read_bytes() == b""


@pytest.mark.case("a file where the series wants a folder", target="checkout", outcome="refused")
def test_a_file_where_the_series_wants_a_folder_is_refused_and_kept(clone: Path) -> None:
    write(clone, {"python/toy/extra": "mine\n"})
    refused(clone, "python/toy/extra", codes=(1, 4))


@pytest.mark.parametrize("dirt", [edited, removed, staged], ids=lambda dirt: dirt.__name__)
def test_work_in_the_way_of_reverse_and_upgrade_is_refused(toy: Toy, clone: Path, dirt: Callable[[Path], str]) -> None:
    ask("apply", clone)
    name = dirt(clone)
    refused(clone, name, options=("--reverse",))
    make_newer(toy)
    refused(clone, name)


@pytest.mark.case("a branch of the user's in the way of our branch's name", target="checkout", outcome="refused")
def test_a_users_branch_in_the_way_of_our_name_is_refused_and_all_is_put_back(clone: Path) -> None:
    git(clone, "branch", "sm120")
    refused(clone, "sm120", codes=(1, 4))
    assert clean(clone)
    assert not list((clone / ".git").rglob("*.lock"))


@pytest.mark.case("one of two targets is refused", target="checkout", outcome="refused", source="Hyperloom#505")
def test_one_checkout_refused_leaves_the_other_untouched(toy: Toy, clone: Path) -> None:
    gear = toy.clone("gear")
    write(gear, {"csrc/kernel.cu": "mine\n"})
    before = everything(clone), everything(gear)
    answer = ask("apply", clone, gear)
    assert (answer.code, (everything(clone), everything(gear)) == before) == (1, True)


def test_one_checkout_named_twice_is_not_called_another_run(clone: Path) -> None:
    answer = ask("apply", clone, f"{clone}/")
    assert answer.code == 0 or "another run" not in answer.said["error"]["what"]


def test_only_one_upstream_is_touched_among_named_checkouts(toy: Toy, clone: Path) -> None:
    gear = toy.clone("gear")
    before = everything(clone)
    answer = ask("apply", clone, gear, "--only", "gear")
    assert everything(clone) == before
    assert answer.code in (0, 2)


# Where it stands


@pytest.mark.case("a commit of the user's above the pin", target="checkout", outcome="refused")
def test_head_elsewhere_is_refused(clone: Path) -> None:
    write(clone, {"README.md": "mine\n"})
    git(clone, "commit", "-qam", "mine")
    refused(clone, "HEAD")


@pytest.mark.case("history without the pin", target="checkout", outcome="refused")
def test_head_on_history_without_the_pin_is_refused_with_the_pins(toy: Toy, clone: Path) -> None:
    git(clone, "checkout", "-q", "--orphan", "lone")
    git(clone, "commit", "-qm", "lone")
    refused(clone, toy.pin().commit[:12])


@pytest.mark.case("a commit of the user's above our branch, on another branch", target="checkout", outcome="refused")
def test_a_commit_of_the_users_on_top_of_ours_on_another_branch_is_refused(clone: Path) -> None:
    ask("apply", clone)
    git(clone, "checkout", "-qb", "mine")
    write(clone, {"README.md": "mine\n"})
    git(clone, "commit", "-qam", "mine")
    refused(clone, "HEAD")
    refused(clone, "HEAD", options=("--reverse",))


def test_a_branch_of_the_users_at_our_tip_stays_where_it_is(toy: Toy, clone: Path) -> None:
    ask("apply", clone)
    git(clone, "checkout", "-qb", "mine")
    tip = git(clone, "rev-parse", "mine")
    make_newer(toy)
    assert ask("apply", clone).code == 0
    assert (git(clone, "rev-parse", "mine"), head(clone)) == (tip, OURS)
    assert clean(clone)


@pytest.mark.parametrize("kind", ["own", "amended", "on top"])
@pytest.mark.case("commits of the user's on our branch", target="checkout", outcome="refused")
def test_commits_of_the_users_on_our_branch_are_never_lost(toy: Toy, clone: Path, kind: str) -> None:
    ask("apply", clone)
    write(clone, {"README.md": "mine\n"})
    git(clone, "commit", "-qa", *(["--amend", "--no-edit"] if kind == "amended" else ["-m", "mine"]))
    if kind == "own":
        git(clone, "checkout", "-q", "main")
    refused(clone, "sm120/v1", "export")
    if kind != "own":
        refused(clone, "sm120/v1", options=("--reverse",))
    make_newer(toy)
    refused(clone, "sm120/v1")


@pytest.mark.case("the same commits made by hand on our branch", target="checkout", outcome="exact")
def test_commits_exported_and_applied_again_become_the_canonical_ones(toy: Toy, clone: Path) -> None:
    ask("apply", clone)
    edited_core = (clone / "python/toy/core.py").read_text().replace("# line 50\n", "# line fifty\n")
    write(toy.home.root, {"tests/patches/test_third_one.py": ""})
    commit(clone, "third-one", {"python/toy/core.py": edited_core})
    own = git(clone, "rev-parse", "HEAD")
    assert ask("export", clone).code == 0
    answer = ask("apply", clone)
    assert (answer.code, set(answer.states())) == (0, {"right-answer", "bring-hook", "third-one"})
    assert git(clone, "rev-parse", "HEAD") != own
    assert git(clone, "rev-parse", "HEAD^{tree}") == git(clone, "rev-parse", f"{own.strip()}^{{tree}}")
    assert clean(clone)
    assert ask("export", clone, "--check").code == 0
    assert ask("apply", toy.clone(into="other")).targets["toy"]["head"] == answer.targets["toy"]["head"]


@pytest.mark.case("a branch without a commit", target="checkout", outcome="refused")
@pytest.mark.case("the .git folder itself is named", target="checkout", outcome="refused")
def test_a_subfolder_a_bare_repository_an_unborn_branch_and_a_plain_folder_are_refused(toy: Toy, clone: Path) -> None:
    git(toy.root, "clone", "-q", "--bare", str(clone), "bare")
    git(toy.root, "init", "-q", "unborn")
    (toy.root / "plain").mkdir()
    for path in (clone / "python", toy.root / "bare", toy.root / "unborn", toy.root / "plain", clone / ".git"):
        before = snapshot(toy.root, skip=(), stats=True)
        assert ask("apply", path).code == 1, path
        assert snapshot(toy.root, skip=(), stats=True) == before


def test_a_folder_that_is_not_there_is_an_answer_and_not_a_traceback(toy: Toy) -> None:
    assert ask("apply", toy.root / "missing").code in (1, 4)
    assert ask("status", toy.root / "missing").code in (1, 4)


@pytest.mark.case(
    "a plain folder inside a checkout that ignores it", target="checkout", outcome="refused", source="oven-sh/bun#35099"
)
def test_a_plain_folder_inside_a_checkout_is_not_taken_for_the_checkout(clone: Path) -> None:
    write(clone, {".git/info/exclude": "build/\n", "build/toy/file": "x"})
    before = everything(clone)
    assert ask("apply", clone / "build" / "toy").code == 1
    assert everything(clone) == before


def in_rebase(clone: Path) -> None:
    git(clone, "checkout", "-q", "-b", "side")
    env = {"GIT_SEQUENCE_EDITOR": "sed -i 1ibreak"}
    write(clone, {"README.md": "side\n"})
    git(clone, "commit", "-qam", "side")
    git(clone, "rebase", "-q", "-i", "HEAD~1", env=env)


def in_am(clone: Path) -> None:
    write(clone, {"README.md": "other\n"})
    git(clone, "commit", "-qam", "other")
    mail = git(clone, "format-patch", "-1", "--stdout").replace("-toy", "-nothing like it")
    git(clone, "reset", "-q", "--hard", "HEAD~1")
    subprocess.run(["git", "am", "-q"], cwd=clone, input=mail.encode(), check=False, capture_output=True)


def conflict(clone: Path, *command: str) -> None:
    git(clone, "checkout", "-q", "-b", "side")
    write(clone, {"README.md": "side\n"})
    git(clone, "commit", "-qam", "side")
    git(clone, "checkout", "-q", "main")
    git(clone, "checkout", "-q", "--detach")
    subprocess.run(["git", *command], cwd=clone, check=False, capture_output=True)


def in_merge(clone: Path) -> None:
    conflict(clone, "merge", "--no-ff", "--no-commit", "side")


def in_cherry_pick(clone: Path) -> None:
    conflict(clone, "cherry-pick", "--no-commit", "side")
    write(clone, {".git/CHERRY_PICK_HEAD": git(clone, "rev-parse", "side")})


def in_revert(clone: Path) -> None:
    write(clone, {".git/REVERT_HEAD": git(clone, "rev-parse", "HEAD")})


def in_bisect(clone: Path) -> None:
    git(clone, "bisect", "start")


@pytest.mark.parametrize(
    ("begin", "word", "way_out"),
    [
        (in_rebase, "rebase", "git rebase --abort"), (in_am, "am", "git am --abort"),
        (in_merge, "merge", "git merge --abort"), (in_cherry_pick, "cherry-pick", "git cherry-pick --abort"),
        (in_revert, "revert", "git revert --abort"), (in_bisect, "bisect", "git bisect reset"),
    ],
    ids=["rebase", "am", "merge", "cherry-pick", "revert", "bisect"],
)  # fmt: skip
@pytest.mark.case(
    "git waits for the user there", target="checkout", outcome="refused",
    source="Electroid/SportPaper#35, lynx-family/habitat#56",
)  # fmt: skip
def test_an_unfinished_operation_of_gits_own_is_refused_with_the_way_out(
    clone: Path, begin: Callable[[Path], None], word: str, way_out: str
) -> None:
    begin(clone)
    refused(clone, word, way_out)


@pytest.mark.case("a sparse checkout without a touched file", target="checkout", outcome="refused")
def test_a_sparse_checkout_without_a_touched_file_is_refused_by_name(clone: Path) -> None:
    git(clone, "sparse-checkout", "init", "--cone")
    git(clone, "sparse-checkout", "set", "docs")
    refused(clone, "python/toy/core.py", "sparse")


def test_a_sparse_checkout_with_every_touched_folder_is_fine(clone: Path) -> None:
    git(clone, "sparse-checkout", "init", "--cone", "--sparse-index")
    git(clone, "sparse-checkout", "set", "python")
    assert ask("apply", clone).code == 0
    assert clean(clone)
    assert ask("apply", clone, "--reverse").code == 0
    assert clean(clone)


@pytest.mark.case("a new file outside the sparse cone", target="checkout", outcome="refused")
def test_a_new_file_outside_the_sparse_cone_is_refused_by_name(clone: Path) -> None:
    git(clone, "sparse-checkout", "init", "--cone")
    git(clone, "sparse-checkout", "set", "python/toy/other")
    assert (clone / "python/toy/core.py").exists()
    refused(clone, "python/toy/extra", "sparse")


@pytest.mark.case("core.autocrlf changed the files", target="checkout", outcome="refused", source="electron/trop#254")
def test_a_checkout_filter_of_the_clones_settings_is_refused_as_such(toy: Toy) -> None:
    git(toy.root, "clone", "-q", "-c", "core.autocrlf=true", str(toy.upstream()), "crlf")
    assert b"\r\n" in (toy.root / "crlf/python/toy/core.py").read_bytes()
    assert git(toy.root / "crlf", "status", "--porcelain") == ""
    refused(toy.root / "crlf", "core.py")
    refused(toy.root / "crlf", "filter")


@pytest.mark.parametrize("file", [".git/info/attributes", ".gitattributes"])
@pytest.mark.case(
    "attributes changed the line ends", target="checkout", outcome="refused", source="electron/electron#14789"
)
def test_a_line_end_filter_by_attributes_is_refused_and_everything_put_back(clone: Path, file: str) -> None:
    write(clone, {file: "*.py text eol=crlf\n"})
    if file == ".gitattributes":
        git(clone, "add", file)
        write(clone, {".git/info/exclude": ".gitattributes\n"})
    (clone / "python/toy/core.py").unlink()
    git(clone, "checkout", "--", "python/toy/core.py")
    assert b"\r\n" in (clone / "python/toy/core.py").read_bytes()
    refused(clone, "core.py", "filter")


@pytest.mark.case(
    "attributes would change what we write", target="checkout", outcome="refused", source="electron/electron#14789"
)
def test_a_filter_that_would_change_only_what_we_write_is_refused_and_everything_put_back(clone: Path) -> None:
    write(clone, {".git/info/attributes": "*.py text\n"})  # dos.py is CRLF in the repository: git would store LF
    refused(clone, "dos.py", "filter")
    assert not list((clone / ".git").rglob("*.lock"))
    git(clone, "checkout", "-q", "-b", "usable")


@pytest.mark.case(
    "a repository without file modes", target="checkout", outcome="exact", source="ds300/patch-package#135"
)
def test_a_repository_without_file_modes_is_patched_and_reversed(clone: Path) -> None:
    git(clone, "config", "core.fileMode", "false")
    (clone / "python/toy/core.py").chmod(0o755)
    assert ask("apply", clone).code == 0
    assert stat.S_IMODE((clone / "python/toy/core.py").stat().st_mode) == 0o755
    assert ask("apply", clone, "--reverse").code == 0
    assert clean(clone)


def test_variables_of_a_calling_git_are_not_followed(toy: Toy, clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = toy.clone("gear")
    before = everything(other)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git/index"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    assert list(ask("apply", clone).targets) == ["toy"]
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        os.environ.pop(name, None)
    assert everything(other) == before


# Worktrees and submodules


def test_a_linked_worktree_is_a_target_of_its_own(toy: Toy, clone: Path) -> None:
    linked = toy.root / "linked"
    git(clone, "worktree", "add", "-q", "--detach", str(linked))
    before = everything(clone)[0], head(clone)
    assert ask("apply", linked).code == 0
    assert (head(linked), clean(linked)) == (OURS, True)
    assert (everything(clone)[0], head(clone)) == before
    assert ask("apply", linked, "--reverse").code == 0
    assert (head(linked), clean(linked), clean(clone)) == (toy.pin().commit, True, True)


def test_our_branch_in_another_worktree_is_not_moved_or_deleted_under_it(toy: Toy, clone: Path) -> None:
    ask("apply", clone)
    linked = toy.root / "linked"
    git(clone, "worktree", "add", "-q", "--detach", str(linked), "main")
    answers = [ask("apply", linked)]
    make_newer(toy)
    answers.append(ask("apply", linked))
    assert clean(clone), answers
    answers.append(ask("apply", linked, "--reverse"))
    assert git(clone, "rev-parse", "--verify", "-q", "HEAD")
    assert clean(clone), answers


def test_a_submodule_is_a_target(toy: Toy) -> None:
    outer = toy.root / "outer"
    git(toy.root, "init", "-q", "outer")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(toy.upstream()), "toy")
    git(outer, "commit", "-qm", "outer")
    assert ask("apply", outer / "toy").code == 0
    assert clean(outer / "toy")
    assert ask("apply", outer / "toy", "--reverse").code == 0
    assert clean(outer)


def test_a_checkout_reached_through_a_link_is_the_same_target(toy: Toy, clone: Path) -> None:
    (toy.root / "link").symlink_to(clone)
    assert ask("apply", toy.root / "link").code == 0
    assert ask("status", clone).code == 0


def test_a_folder_whose_name_git_would_quote_is_a_target(toy: Toy) -> None:
    clone = toy.clone(into="ä b'\"c")
    assert ask("apply", clone).code == 0
    assert ask("apply", clone, "--reverse").code == 0
    assert clean(clone)


def test_a_shallow_clone_is_a_target(toy: Toy) -> None:
    git(toy.root, "clone", "-q", "--depth=1", f"file://{toy.upstream()}", "shallow")
    assert ask("apply", toy.root / "shallow").code == 0
    assert clean(toy.root / "shallow")


def test_a_partial_clone_that_lacks_a_touched_blob_is_refused_or_served_whole(toy: Toy) -> None:
    git(toy.upstream(), "config", "uploadpack.allowFilter", "true")
    git(toy.root, "clone", "-q", "--filter=blob:none", f"file://{toy.upstream()}", "partial")
    assert ask("apply", toy.root / "partial").code == 0
    assert clean(toy.root / "partial")


@pytest.mark.case(
    "an object of the clone is lost", target="checkout", outcome="refused", source="electron/electron#42977"
)
def test_a_blob_that_cannot_be_read_is_refused_and_nothing_changes(toy: Toy, clone: Path) -> None:
    older = make_newer(toy)
    ask("apply", clone)
    use_series(toy, older)
    blob = git(clone, "rev-parse", "main:python/toy/bare.txt").strip()  # needed to take the newer series off
    lose(clone, blob)
    refused(clone, "cannot be read", codes=(1, 4))


def lose(clone: Path, blob: str) -> None:
    """Takes one object out of a repository."""
    packs = list((clone / ".git/objects/pack").glob("*"))
    spare = clone / ".git/spare"
    spare.mkdir()
    for pack in packs:
        pack.rename(spare / pack.name)
    for pack in spare.glob("*.pack"):
        with pack.open("rb") as stream:
            subprocess.run(["git", "unpack-objects", "-q"], cwd=clone, stdin=stream, check=True)
    (clone / ".git/objects" / blob[:2] / blob[2:]).unlink()


# Moving between series


@pytest.mark.case("an older series of ours is on it", target="checkout", outcome="exact")
def test_upgrade_and_downgrade_in_one_apply_each(toy: Toy, clone: Path) -> None:
    first = ask("apply", clone)
    before = everything(clone)
    older = make_newer(toy)
    assert "an older series" in str(ask("status", clone).said)
    second = ask("apply", clone)
    assert (second.code, clean(clone)) == (0, True)
    assert second.targets["toy"]["digest"] == toy.series().digest != first.targets["toy"]["digest"]
    assert (clone / "python/toy/dos.py").read_bytes() == TOY["python/toy/dos.py"].encode()
    assert (clone / LEVER).exists() > (clone / HOOK).exists()
    use_series(toy, older)
    assert ask("apply", clone).code == 0
    assert everything(clone) == before


@pytest.mark.case("an older series of ours is taken off by a newer tool", target="checkout", outcome="exact")
def test_a_newer_tool_takes_an_older_series_off_at_once(toy: Toy, clone: Path) -> None:
    before = everything(clone)
    ask("apply", clone)
    make_newer(toy)
    assert ask("apply", clone, "--reverse").code == 0
    assert everything(clone) == before


def test_an_upgrade_from_the_users_branch_replaces_our_branch(toy: Toy, clone: Path) -> None:
    ask("apply", clone)
    git(clone, "checkout", "-q", "main")
    make_newer(toy)
    assert ask("apply", clone).code == 0
    assert clean(clone)
    assert ask("status", clone).code == 0


@pytest.mark.case("a new file is there, on an upgrade", target="checkout", outcome="refused")
def test_an_upgrade_is_refused_where_a_file_that_only_the_newer_series_brings_exists(toy: Toy, clone: Path) -> None:
    ask("apply", clone)
    make_newer(toy)
    write(clone, {LEVER: "mine\n"})
    refused(clone, LEVER)


def test_a_part_of_the_series_and_back_to_all_of_it(clone: Path) -> None:
    part = ask("apply", clone, "--through", "right-answer")
    assert (part.code, part.states()) == (0, {"right-answer": "applied", "bring-hook": "pending"})
    assert (clone / "python/toy/core.py").read_text() == FIRST["python/toy/core.py"]
    assert ask("apply", clone).states() == {"right-answer": "applied", "bring-hook": "applied"}
    assert ask("apply", clone, "--without", "bring-hook").states()["bring-hook"] == "pending"
    assert clean(clone)


# A user at work between a cut run and the next


def cut_at_the_end(clone: Path, *options: str) -> None:
    """A real run that dies when all is done but to remove its journal."""
    journal = clone / ".git/sm120-overlay/journal.json"

    def dies_on_removing(event: str, arguments: tuple[object, ...]) -> None:
        if event == "os.remove" and str(arguments[0]) == str(journal):
            os._exit(CUT)

    child = os.fork()
    if child == 0:
        sys.addaudithook(dies_on_removing)
        ask("apply", clone, *options)
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended == CUT
    assert journal.is_file()


def test_a_commit_made_on_our_branch_after_a_cut_is_kept_and_files_are_not_half_undone(clone: Path) -> None:
    cut_at_the_end(clone)
    write(clone, {"README.md": "mine\n"})
    git(clone, "commit", "-qam", "mine")
    before = everything(clone)
    answer = ask("apply", clone)
    assert answer.code in (0, 1, 4)
    assert everything(clone) == before


def test_head_moved_by_the_user_after_a_cut_stays_on_the_users_branch(clone: Path) -> None:
    cut_at_the_end(clone)
    git(clone, "checkout", "-q", "-b", "feature", "main")
    write(clone, {"README.md": "mine\n"})
    git(clone, "commit", "-qam", "mine")
    ask("apply", clone)
    assert head(clone) == "refs/heads/feature"
    assert clean(clone)


def test_a_reverse_after_a_cut_reverse_returns_head_to_the_users_branch(clone: Path) -> None:
    ask("apply", clone)
    cut_at_the_end(clone, "--reverse")
    assert ask("apply", clone, "--reverse").code == 0
    assert (head(clone), clean(clone)) == ("refs/heads/main", True)


@pytest.mark.parametrize("lock", ["HEAD.lock", "refs/heads/sm120/v1.lock", "packed-refs.lock", "index.lock"])
def test_a_lock_that_our_own_killed_git_left_does_not_block_the_next_run(clone: Path, lock: str) -> None:
    ask("apply", clone)
    cut_at_the_end(clone, "--reverse")
    mark = b"sm120-overlay holds this lock\n" if lock == "index.lock" else b""
    write(clone, {f".git/{lock}": mark})
    answer = ask("apply", clone, "--reverse")
    assert answer.code == 0, answer
    assert not list((clone / ".git").rglob("*.lock"))


@pytest.mark.case("a run was cut", target="checkout", outcome="told")
def test_a_cut_run_shows_as_interrupted_and_the_next_apply_finishes_it_aloud(clone: Path) -> None:
    cut_at_the_end(clone)
    assert set(ask("status", clone).states().values()) == {"interrupted"}
    assert ask("verify", clone).code == 1
    answer = ask("apply", clone)
    assert answer.code == 0
    assert "was cut here" in answer.err
    assert clean(clone)
