"""From files to commits and back: the same ids and the same bytes on every run, in every clone, under any settings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sm120_overlay.cli import main
from sm120_overlay.errors import Refused
from sm120_overlay.queue.blobs import blob_id
from sm120_overlay.queue.build import COMMITTER, base_contents, build, build_root
from sm120_overlay.queue.export import export_commits
from sm120_overlay.queue.git import Repository
from sm120_overlay.queue.mail import parse_patch
from sm120_overlay.queue.series import Series

from .toy import (
    FIRST,
    HOOK,
    SECOND,
    TOY,
    Toy,
    applied,
    apply_to,
    author_clone,
    bare_repository,
    commit,
    export_from,
    git,
    git_bytes,
    history,
    message,
    opened,
    say,
    snapshot,
    write,
)

HERE = "patches/v1/toy"


def written(toy: Toy) -> dict[str, bytes]:
    return snapshot(toy.home.root)


def difference(toy: Toy, before: dict[str, bytes]) -> set[str]:
    """The project's files that are not as they were."""
    after = written(toy)
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


# ---- building


def test_a_series_has_the_same_commits_on_every_run_and_in_every_clone(toy: Toy) -> None:
    one, two = applied(toy, into="one"), applied(toy, into="two")
    heads = [git(one, "rev-parse", "HEAD"), git(two, "rev-parse", "HEAD")]
    assert apply_to(one, "--reverse") == 0
    assert git(one, "rev-parse", "HEAD").strip() == toy.pin().commit
    assert apply_to(one) == 0
    assert {git(one, "rev-parse", "HEAD"), *heads} == {heads[0]}


def test_the_commits_say_what_the_patches_say_and_who_made_them(toy: Toy) -> None:
    clone = applied(toy)
    found = history(clone, toy.pin().commit)
    assert [(f"{name} <{mail}>", text) for name, mail, _, _, text in found] == [
        (patch.author, patch.message) for patch in toy.series().patches
    ]
    dates = git(clone, "log", "--format=%ad|%cd", "--date=raw", f"{toy.pin().commit}..").splitlines()
    assert all(author == committer for author, _, committer in (row.partition("|") for row in dates))
    who = git(clone, "log", "--format=%cn <%ce>", f"{toy.pin().commit}..").split("\n")[:-1]
    assert set(who) == {COMMITTER}


def test_the_tree_is_the_one_that_the_author_committed_with_modes(toy: Toy) -> None:
    author = toy.root / "author-toy"
    clone = applied(toy)
    assert git(clone, "ls-tree", "-r", "HEAD") == git(author, "ls-tree", "-r", "HEAD")
    assert "100755" in git(clone, "ls-tree", "HEAD", "python/toy/run.py")


def test_building_leaves_no_branch_index_or_file_behind(toy: Toy) -> None:
    clone = toy.clone()
    before = {path: data for path, data in snapshot(clone).items() if "/objects/" not in path}
    repo, series = Repository(clone), toy.series()
    made = build(repo, toy.pin().commit, series, base_contents(repo, toy.pin().commit, series))
    assert git(clone, "cat-file", "-t", made.tip).strip() == "commit"
    after = {path: data for path, data in snapshot(clone).items() if "/objects/" not in path}
    assert after == before
    assert git(clone, "for-each-ref", "refs/sm120-overlay*") == ""


def test_an_empty_series_is_its_base(toy: Toy) -> None:
    repo = Repository(toy.upstream())
    assert build(repo, toy.pin().commit, Series(toy.pin(), ()), {}).tip == toy.pin().commit


def test_another_base_is_refused_and_the_file_is_named(toy: Toy) -> None:
    clone = toy.clone()
    commit(clone, "x", {"python/toy/dos.py": None})
    repo, series = Repository(clone), toy.series()
    with pytest.raises(Refused, match=r"python/toy/dos\.py at .* cannot be read"):
        base_contents(repo, "HEAD", series)
    commit(clone, "x", {"python/toy/dos.py": "other\n"})
    with pytest.raises(Refused, match=r"python/toy/dos\.py: the patch was made on blob"):
        build(repo, git(clone, "rev-parse", "HEAD").strip(), series, base_contents(repo, "HEAD", series))


@pytest.mark.parametrize("path", ["a b", 'q"q', "tab\tx", "é", "back\\slash", "-dash", "x b/x", "\udcff", "dev/null"])
def test_a_tree_holds_any_path_and_any_bytes(tmp_path: Path, path: str) -> None:
    folder = bare_repository(tmp_path / "repo")
    files = {path: ("100644", b"\0\xff\r\n"), "run": ("100755", b"")}
    made = build_root(Repository(folder), files, "laid out")
    assert build_root(Repository(folder), dict(reversed(files.items())), "laid out") == made
    listed = git_bytes(folder, "ls-tree", "-r", "-z", made).split(b"\0")[:-1]
    assert {os.fsdecode(row.split(b"\t", 1)[1]): row.split(b" ")[0] for row in listed} == {
        path: b"100644", "run": b"100755"
    }  # fmt: skip
    assert blob_id(b"\0\xff\r\n").encode() in b"".join(listed)


SHAPES: dict[str, dict[str, str | bytes | None]] = {
    "a path with blanks": {"python/toy/a b c.py": "x\n", "python/toy/q\"q'.py": "y\n"},
    "a path in another alphabet": {"python/toy/é日.py": "x\n"},
    "a path with a line end": {"python/toy/a\nb.py": "x\n"},
    "an executable deleted": {"python/toy/run.py": None},
    "an executable changed": {"python/toy/run.py": "#!/bin/sh\n"},
    "an emptied and an empty file": {"python/toy/core.py": "", "python/toy/void.py": ""},
    "line ends": {"python/toy/dos.py": "A = 1\r\nB = 2\nC = 3\r", "python/toy/bare.txt": "one\r\ntwo\nthree\n"},
    "bytes": {"python/toy/core.py": bytes(range(1, 256)), "python/toy/x": b"\xff"},
    "everything goes": {path: None for path in TOY if path != "README.md"},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_any_text_change_is_exported_and_built_to_the_same_tree(toy: Toy, shape: str) -> None:
    clone = author_clone(toy)
    for path in (path for path, data in SHAPES[shape].items() if data is None):
        (clone / path).unlink()
    commit(clone, "shape", {path: data for path, data in SHAPES[shape].items() if data is not None})
    made = export_commits(opened(toy, clone))
    series = Series(toy.pin(), (parse_patch("shape", made.files["shape.patch"]),))
    repo = Repository(clone)
    found = build(repo, toy.pin().commit, series, base_contents(repo, toy.pin().commit, series))
    assert git(clone, "rev-parse", f"{found.tip}^{{tree}}") == git(clone, "rev-parse", "HEAD^{tree}")


CLIMB = """\
diff --git a/{0} b/{0}
new file mode 100644
index 0000000000000000000000000000000000000000..61780798228d17af2d34fce4cfbdf35556832472
--- /dev/null
+++ b/{0}
@@ -0,0 +1 @@
+b
"""


@pytest.mark.parametrize("kind", ["checkout", "installed"])
def test_no_patch_writes_outside_its_target(toy: Toy, tmp_path: Path, kind: str) -> None:
    file = toy.home.root / HERE / "right-answer.patch"
    file.write_bytes(file.read_bytes() + CLIMB.format("python/toy/../../../outside.py").encode())
    if kind == "checkout":
        code = apply_to(toy.clone(into="deep/clone"))
    else:
        venv = tmp_path / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
        folder = next(venv.glob("lib/python*/site-packages"))
        toy.site("toy").rename(toy.root / "deep")
        (folder / "toy.pth").write_text(f"{toy.root / 'deep'}\n")
        code = main(["apply", "--installed", str(venv / "bin/python"), "--only", "toy"])
    assert not [*toy.root.rglob("outside.py"), *toy.root.parent.glob("outside.py")]
    assert code in (1, 2)


# ---- export


def test_apply_then_export_changes_nothing(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    before = written(toy)
    for name in ("toy", "gear"):
        clone = applied(toy, name)
        capsys.readouterr()
        assert export_from(clone) == 0
        assert f"{name}: nothing changed" in capsys.readouterr().out
        assert export_from(clone, "--check") == 0
    assert written(toy) == before
    assert f"overlay/toy/{HOOK}" in before


def test_export_then_apply_is_the_commit_it_was(toy: Toy) -> None:
    clone = applied(toy)
    commit(clone, "one-more", {"python/toy/bare.txt": "one\ntwo\nfour"})
    write(toy.home.root, {"tests/patches/test_one_more.py": ""})
    assert export_from(clone) == 0
    other = applied(toy, into="other")
    assert history(other, toy.pin().commit) == history(clone, toy.pin().commit)
    assert apply_to(clone) == 0


def test_amending_one_commit_changes_exactly_its_file(toy: Toy) -> None:
    before = written(toy)
    clone = applied(toy)
    overlay = f"{HOOK} {blob_id(SECOND[HOOK].encode())}"
    words = message("bring-hook", "toy: bring it", Needs="right-answer", Overlay=overlay)
    git(clone, "commit", "-q", "--amend", "-m", words)
    assert export_from(clone, "--check") == 1
    assert written(toy) == before
    assert export_from(clone) == 0
    assert difference(toy, before) == {f"{HERE}/bring-hook.patch"}
    assert toy.series().patches[1].subject == "toy: bring it"


def test_editing_an_overlay_file_on_the_branch_renews_file_and_trailer_together(toy: Toy) -> None:
    before = written(toy)
    clone = applied(toy)
    write(clone, {HOOK: "HOOK = False\n"})
    git(clone, "commit", "-q", "-a", "--amend", "--no-edit")
    assert export_from(clone) == 0
    assert difference(toy, before) == {f"{HERE}/bring-hook.patch", f"overlay/toy/{HOOK}"}
    assert toy.series().patches[1].edits[-1].whole == b"HOOK = False\n"


def _two_apart(toy: Toy) -> Path:
    """A clone with three patches on it, of which the last two share no file."""
    clone = applied(toy)
    commit(clone, "bare-words", {"python/toy/bare.txt": "one\ntwo\nfour"})
    write(toy.home.root, {"tests/patches/test_bare_words.py": ""})
    assert export_from(clone) == 0
    return clone


def test_reordering_commits_changes_the_list_alone(toy: Toy) -> None:
    clone = _two_apart(toy)
    before = written(toy)
    git(clone, "reset", "-q", "--hard", "HEAD~2")
    git(clone, "cherry-pick", "ORIG_HEAD", "ORIG_HEAD~1")
    assert export_from(clone) == 0
    assert difference(toy, before) == {f"{HERE}/series"}
    assert toy.series().slugs == ("right-answer", "bare-words", "bring-hook")


def test_the_file_of_a_dropped_commit_goes(toy: Toy) -> None:
    clone = _two_apart(toy)
    before = written(toy)
    git(clone, "reset", "-q", "--hard", "HEAD~1")
    assert export_from(clone) == 1
    assert difference(toy, before) == set()
    assert export_from(clone, "--drop", "bare-words") == 0
    assert difference(toy, before) == {f"{HERE}/series", f"{HERE}/bare-words.patch"}
    assert not (toy.home.root / HERE / "bare-words.patch").exists()


@pytest.mark.parametrize("name", ["hook2.py", "é.py", "à.py"])
@pytest.mark.parametrize("data", [b"x = 1\n", b"x = 1\r\ny", b""], ids=["text", "bare", "empty"])
def test_a_patch_may_bring_one_overlay_file_and_nothing_else(toy: Toy, name: str, data: bytes) -> None:
    clone = applied(toy)
    path = f"python/toy/{name}"
    write(toy.home.root, {"tests/patches/test_bring_one.py": ""})
    commit(clone, "bring-one", {path: data}, Overlay=path)
    assert export_from(clone) == 0
    assert (toy.home.overlay("toy") / path).read_bytes() == data
    assert toy.series().patches[2].all("Overlay") == (f"{path} {blob_id(data)}",)
    assert (applied(toy, into="other") / path).read_bytes() == data


def test_an_overlay_file_edited_by_hand_is_found_by_check_and_put_right_by_export(toy: Toy) -> None:
    clone = applied(toy)
    before = written(toy)
    write(toy.home.overlay("toy"), {HOOK: "HOOK = None\n"})
    assert export_from(clone, "--check") == 1
    assert export_from(clone) == 0
    assert written(toy) == before


def test_the_overlay_file_of_a_dropped_commit_goes_too(toy: Toy) -> None:
    clone = applied(toy)
    git(clone, "reset", "-q", "--hard", "HEAD~1")
    assert export_from(clone, "--drop", "bring-hook") == 0
    assert toy.series().slugs == ("right-answer",)
    assert not (toy.home.overlay("toy") / HOOK).exists()


def test_an_overlay_file_that_moves_leaves_nothing_at_its_old_place(toy: Toy) -> None:
    clone = applied(toy)
    there = "python/toy/extra/catch.py"
    git(clone, "mv", HOOK, there)
    git(clone, "commit", "-q", "--amend", "-m", message("bring-hook", Needs="right-answer", Overlay=there))
    assert export_from(clone) == 0
    assert {path for path in written(toy) if path.startswith("overlay/")} == {f"overlay/toy/{there}"}


def test_a_renamed_slug_takes_its_old_file_away(toy: Toy) -> None:
    clone = applied(toy, "gear")
    write(toy.home.root, {"tests/patches/test_better_gears.py": ""})
    before = written(toy)
    git(clone, "commit", "-q", "--amend", "-m", message("better-gears"))
    assert export_from(clone, "--drop", "more-gears") == 0
    folder = "patches/v1/gear"
    assert difference(toy, before) == {
        f"{folder}/{name}" for name in ("series", "more-gears.patch", "better-gears.patch")
    }


def test_a_branch_back_at_the_pin_exports_to_an_empty_series(toy: Toy) -> None:
    clone = applied(toy, "gear")
    git(clone, "reset", "-q", "--hard", "HEAD~1")
    assert export_from(clone, "--drop", "more-gears") == 0
    assert toy.series("gear").patches == ()


def _no_slug(clone: Path) -> None:
    say(clone, "toy: words\n\nWhat breaks.\n")


def _wip(clone: Path) -> None:
    say(clone, "wip\n")


def _bad_slug(clone: Path) -> None:
    say(clone, message("../../escape"))


def _merge_of_two(clone: Path) -> None:
    _merge(clone, ("side-one", "side-two"))


def _merge_of_one(clone: Path) -> None:
    _merge(clone, ("side-one",))


def _merge(clone: Path, slugs: tuple[str, ...]) -> None:
    """A side branch, merged with a change that is in no commit but the merge."""
    git(clone, "checkout", "-q", "-b", "side", "HEAD~1")
    for slug in slugs:
        commit(clone, slug, {f"python/toy/{slug.replace('-', '_')}.py": "x\n"})
    git(clone, "checkout", "-q", "sm120/v1")
    git(clone, "merge", "-q", "--no-ff", "--no-commit", "side")
    write(clone, {"python/toy/bare.txt": "evil\n"})
    git(clone, "commit", "-q", "-a", "-m", message("merged"))


def _empty(clone: Path) -> None:
    git(clone, "commit", "-q", "--allow-empty", "-m", message("empty"))


def _twice(clone: Path) -> None:
    say(clone, message("right-answer"))


def _mode(clone: Path) -> None:
    (clone / "python/toy/bare.txt").chmod(0o755)
    say(clone, message("mode"))


def _executable_overlay(clone: Path) -> None:
    write(clone, {"python/toy/tool.py": "x\n"})
    (clone / "python/toy/tool.py").chmod(0o755)
    say(clone, message("tool", Overlay="python/toy/tool.py"))


def _symlink(clone: Path) -> None:
    (clone / "python/toy/link.py").symlink_to("core.py")
    say(clone, message("link"))


def _overlay_without_file(clone: Path) -> None:
    say(clone, message("lost", Overlay="python/toy/none.py"))


def _overlay_of_an_old_file(clone: Path) -> None:
    say(clone, message("old", Overlay="python/toy/core.py"))


def _later_diff_of_an_overlay(clone: Path) -> None:
    write(clone, {HOOK: "HOOK = 2\n"})
    say(clone, message("more-hook"))


def _latin(clone: Path) -> None:
    say(clone, message("latin"))
    raw = git_bytes(clone, "cat-file", "commit", "HEAD").replace(b"What", b"W\xe4s")  # git commit would mend it
    made = git_bytes(clone, "hash-object", "-t", "commit", "-w", "--stdin", stdin=raw).decode().strip()
    git(clone, "update-ref", "HEAD", made)


def _from_line(clone: Path) -> None:
    mark = "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001"
    say(clone, message("from").replace("What", f"{mark}\nFrom: x <x@y>\nDate: x\nSubject: y\n\nWhat"))


def _diff_line(clone: Path) -> None:
    say(clone, message("diff").replace("What", "As in\n\ndiff --git a/x b/x\n\nWhat"))


def _binary(clone: Path) -> None:
    write(clone, {"python/toy/x.bin": b"\0\1\2"})
    say(clone, message("binary"))


def _outside(clone: Path) -> None:
    write(clone, {"README.md": "other\n"})
    say(clone, message("outside"))


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "no slug": (_no_slug, "expected a trailer `Slug: some-name`"),
    "a subject alone": (_wip, "expected a trailer `Slug: some-name`"),
    "a slug that is a path": (_bad_slug, "expected a trailer `Slug: some-name`"),
    "a merge of two commits": (_merge_of_two, "merge"),
    "a merge of one commit": (_merge_of_one, "merge"),
    "an empty commit": (_empty, "empty commit"),
    "two commits of one slug": (_twice, "two commits have the slug right-answer"),
    "a mode change": (_mode, "100644"),
    "an executable overlay file": (_executable_overlay, "tool.py"),
    "a symlink": (_symlink, "120000"),
    "an overlay trailer without its file": (_overlay_without_file, "Overlay trailers name python/toy/none.py"),
    "an overlay trailer of an old file": (_overlay_of_an_old_file, "Overlay trailers name python/toy/core.py"),
    "a later diff of an overlay file": (_later_diff_of_an_overlay, "is an overlay file"),
    "a message that is not UTF-8": (_latin, "not UTF-8"),
    "a message with the next mail in it": (_from_line, ""),
    "a message with a diff in it": (_diff_line, ""),
    "a binary file": (_binary, "is not text"),
    "a file outside the package": (_outside, "README.md has no place in the installed package"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_a_patch_is_refused_and_nothing_is_written(
    toy: Toy, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make, said = REFUSED[case]
    clone = applied(toy)
    names = (
        "merged",
        "tool",
        "mode",
        "link",
        "blank",
        "old",
        "more-hook",
        "latin",
        "from",
        "binary",
        "outside",
        "diff",
    )
    write(
        toy.home.root, {f"tests/patches/test_{name.replace('-', '_')}.py": "" for name in (*names, "side-one", "lost")}
    )
    make(clone)
    before = written(toy)
    capsys.readouterr()
    assert export_from(clone) in (1, 2)
    printed = capsys.readouterr()
    assert said in re.sub(r"\s+", " ", printed.out + printed.err)
    assert "Traceback" not in printed.err
    assert written(toy) == before


def test_check_says_what_differs_and_writes_nothing(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    clone = applied(toy)
    write(clone, {HOOK: "HOOK = False\n"})
    git(clone, "commit", "-q", "-a", "--amend", "--no-edit")
    before = written(toy)
    capsys.readouterr()
    assert export_from(clone, "--check") == 1
    assert f"differs: {HERE}/bring-hook.patch" in capsys.readouterr().out
    assert written(toy) == before


def test_a_patch_file_edited_by_hand_is_found_by_check_and_put_right_by_export(toy: Toy) -> None:
    clone = applied(toy)
    file = toy.home.root / HERE / "right-answer.patch"
    before = file.read_bytes()
    file.write_bytes(before.replace(b"What breaks", b"What broke"))
    assert export_from(clone, "--check") == 1
    assert export_from(clone) == 0
    assert file.read_bytes() == before


def test_a_checkout_without_the_branch_is_refused_with_what_to_do(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    assert export_from(toy.clone()) == 1
    assert "there is no branch sm120/v1 to export" in re.sub(r"\s+", " ", capsys.readouterr().err)


@pytest.mark.parametrize("path", ["python/toy/a b.py", "python/toy/é.py", "python/toy/à.py"])
def test_an_overlay_file_may_have_any_plain_name(toy: Toy, path: str) -> None:
    clone = applied(toy)
    write(clone, {path: "x\n"})
    say(clone, message("named", Overlay=path))
    write(toy.home.root, {"tests/patches/test_named.py": ""})
    assert export_from(clone) == 0
    assert toy.series().patches[-1].edits[-1].path == path
    assert (toy.home.overlay("toy") / path).read_text() == "x\n"
    assert main(["apply", str(clone)]) == 0
    assert main(["verify", str(clone)]) == 0


def test_a_failed_write_leaves_no_half_series(toy: Toy) -> None:
    """The new overlay file cannot be written (a file stands where its folder should be): no patch file changes."""
    clone = applied(toy)
    git(clone, "mv", HOOK, "python/toy/kit.py")
    (clone / "python/toy/kit").mkdir()
    git(clone, "mv", "python/toy/kit.py", "python/toy/kit/hook.py")
    git(
        clone,
        "commit",
        "-q",
        "--amend",
        "-m",
        message("bring-hook", Needs="right-answer", Overlay="python/toy/kit/hook.py"),
    )
    write(toy.home.overlay("toy"), {"python/toy/kit": "a file\n"})
    before = written(toy)
    assert export_from(clone) != 0
    assert written(toy) == before
    (toy.home.overlay("toy") / "python/toy/kit").unlink()
    assert export_from(clone) == 0
    assert toy.series().patches[1].edits[-1].path == "python/toy/kit/hook.py"


# ---- hostile surroundings


SETTINGS = [
    "color.diff=always",
    "color.ui=always",
    "commit.gpgSign=true",
    "commit.template=/nonexistent",
    "core.abbrev=4",
    "core.autocrlf=true",
    "core.bigFileThreshold=1",
    "core.commentChar=%",
    "core.eol=crlf",
    "core.fileMode=false",
    "core.ignoreCase=true",
    "core.pager=false",
    "core.quotePath=false",
    "core.safecrlf=true",
    "core.whitespace=cr-at-eol",
    "diff.algorithm=histogram",
    "diff.algorithm=patience",
    "diff.colorMoved=zebra",
    "diff.context=10",
    "diff.context=0",
    "diff.dirstat=files",
    "diff.dstPrefix=new/",
    "diff.external=false",
    "diff.ignoreSubmodules=all",
    "diff.indentHeuristic=true",
    "diff.interHunkContext=30",
    "diff.mnemonicPrefix=true",
    "diff.noprefix=true",
    "diff.relative=true",
    "diff.renames=copies",
    "diff.srcPrefix=old/",
    "diff.statGraphWidth=3",
    "diff.submodule=log",
    "diff.suppressBlankEmpty=true",
    "diff.wordRegex=.",
    "diff.wsErrorHighlight=all",
    "fastimport.unpackLimit=1000",
    "format.attach=bound",
    "format.cc=x@y",
    "format.coverLetter=true",
    "format.encodeEmailHeaders=true",
    "format.filenameMaxLength=1",
    "format.forceInBodyFrom=true",
    "format.from=true",
    "format.headers=X-One:1",
    "format.noprefix=true",
    "format.notes=true",
    "format.numbered=true",
    "format.outputDirectory=/nonexistent",
    "format.pretty=oneline",
    "format.signOff=true",
    "format.signature=Ann",
    "format.signatureFile=/etc/hostname",
    "format.subjectPrefix=FOO",
    "format.suffix=.txt",
    "format.thread=deep",
    "format.to=x@y",
    "format.useAutoBase=true",
    "format.mboxrd=true",
    "gpg.program=false",
    "i18n.commitEncoding=ISO-8859-1",
    "i18n.logOutputEncoding=ISO-8859-1",
    "index.version=4",
    "log.abbrevCommit=true",
    "log.date=relative",
    "log.decorate=full",
    "log.diffMerges=on",
    "log.follow=true",
    "log.mailmap=true",
    "log.showRoot=false",
    "log.showSignature=true",
    "merge.conflictStyle=diff3",
    "notes.displayRef=*",
    "pack.compression=9",
    "tag.gpgSign=true",
    "tar.umask=0",
    "transfer.fsckObjects=true",
    "user.useConfigOnly=true",
]
ORDER = "diff.orderFile"  # names a file, which a test must make


@pytest.fixture(scope="module")
def author(toy_master: Toy) -> Path:
    """A clone with the series as its author committed it; only read here."""
    return toy_master.root / "author-toy"


def _with_settings(folder: Path, monkeypatch: pytest.MonkeyPatch, *settings: str) -> None:
    """The user's own configuration, as a file that git finds by HOME."""
    (folder / "home").mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    for setting in settings:
        key, _, value = setting.partition("=")
        git_bytes(folder, "config", "--file", str(folder / "home/.gitconfig"), "--add", key, value)


@pytest.mark.parametrize("setting", [*SETTINGS, ORDER])
def test_no_setting_of_the_user_changes_an_export(
    toy_master: Toy, author: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    (tmp_path / "order").write_text("*extra*\n*dos*\n*core*\n")
    _with_settings(tmp_path, monkeypatch, f"{ORDER}={tmp_path / 'order'}" if setting == ORDER else setting)
    made = export_commits(opened(toy_master, author))
    folder = toy_master.home.root / HERE
    assert made.files == {path.name: path.read_bytes() for path in folder.iterdir()}
    assert made.overlays == {HOOK: SECOND[HOOK].encode()}


@pytest.mark.parametrize(
    "attributes",
    ["diff=python", "diff=mine", "-diff", "binary", "eol=crlf", "working-tree-encoding=UTF-16", "ident filter=x"],
)
def test_no_attributes_of_the_clone_change_an_export(toy: Toy, attributes: str) -> None:
    clone = applied(toy)
    commit(clone, "far", {"python/toy/core.py": SECOND["python/toy/core.py"].replace("# line 60\n", "# line sixty\n")})
    wanted = export_commits(opened(toy, clone)).files
    write(clone, {".git/info/attributes": f"*.py {attributes}\n"})
    git(clone, "config", "diff.mine.xfuncname", "^# line 5.*")
    git(clone, "config", "diff.mine.textconv", "false")
    assert export_commits(opened(toy, clone)).files == wanted


def test_apply_and_export_are_the_same_under_all_settings_and_surroundings_at_once(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = git(applied(toy, into="calm"), "rev-parse", "HEAD")
    before = written(toy)
    clone = toy.clone(into="stormy")
    _with_settings(tmp_path, monkeypatch, *SETTINGS)
    for name in ("DIR", "WORK_TREE", "INDEX_FILE", "OBJECT_DIRECTORY", "NAMESPACE", "AUTHOR_DATE", "COMMITTER_NAME",
                 "EXTERNAL_DIFF", "DIFF_OPTS", "CONFIG_PARAMETERS", "EDITOR", "SSH_COMMAND", "REPLACE_REF_BASE",
                 "ALTERNATE_OBJECT_DIRECTORIES", "CONFIG_GLOBAL", "EXEC_PATH", "TEMPLATE_DIR", "DEFAULT_HASH",
                 ):  # fmt: skip
        monkeypatch.setenv(f"GIT_{name}", "nonsense")
    for name, value in (
        ("LANG", "C"),
        ("LC_ALL", "C"),
        ("TZ", "Pacific/Chatham"),
        ("PAGER", "false"),
        ("EDITOR", "false"),
    ):
        monkeypatch.setenv(name, value)
    os.umask(umask := os.umask(0o077))
    try:
        assert apply_to(clone) == 0
        assert Path(clone / ".git/refs/heads/sm120/v1").read_text() == head
        assert export_from(clone) == 0
    finally:
        os.umask(umask)
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("HOME")
    assert git(clone, "rev-parse", "HEAD") == head
    assert written(toy) == before


def _tag(clone: Path) -> Path:
    git(clone, "tag", "sm120/v1", "HEAD~1")
    git(clone, "update-ref", "refs/remotes/origin/sm120/v1", "HEAD~2")
    return clone


def _replaced(clone: Path) -> Path:
    git(clone, "replace", "HEAD~1", "HEAD~2")
    return clone


def _mailmap(clone: Path) -> Path:
    write(clone, {".mailmap": "Somebody Else <else@example.org> <ann@example.org>\n"})
    return clone


def _noted(clone: Path) -> Path:
    git(clone, "notes", "add", "-m", "a note", "HEAD")
    return clone


def _linked(clone: Path) -> Path:
    git(clone, "checkout", "-q", "main")
    git(clone, "worktree", "add", "-q", "../linked", "sm120/v1")
    return clone.parent / "linked"


def _shallow(clone: Path) -> Path:
    git(clone.parent, "clone", "-q", "--depth=3", "--branch=sm120/v1", clone.as_uri(), "shallow")
    return clone.parent / "shallow"


def _elsewhere(clone: Path) -> Path:
    git(clone, "checkout", "-q", "main")
    return clone


def _packed(clone: Path) -> Path:
    git(clone, "gc", "-q", "--prune=now")
    git(clone, "pack-refs", "--all")
    return clone


@pytest.mark.parametrize("scene", [_tag, _replaced, _mailmap, _noted, _linked, _shallow, _elsewhere, _packed])
def test_an_export_is_the_same_from_a_clone_in_any_shape(toy: Toy, scene: Callable[[Path], Path]) -> None:
    before = written(toy)
    clone = scene(applied(toy))
    assert export_from(clone, "--check") == 0
    assert export_from(clone) == 0
    assert written(toy) == before


@pytest.mark.case("HEAD is not on the branch that is exported", target="export", outcome="refused")
@pytest.mark.parametrize("where", ["--detach", "-bmine"])
def test_a_commit_beside_the_branch_is_not_passed_over_in_silence(
    toy: Toy, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    clone, before = applied(toy), written(toy)
    git(clone, "checkout", "-q", where)
    commit(clone, "bare-words", {"python/toy/bare.txt": "one\n"})
    assert export_from(clone) == 1
    assert "the series is branch sm120/v1" in capsys.readouterr().err
    assert written(toy) == before


@pytest.mark.case("a patch was left out by apply, and the branch is exported", target="export", outcome="refused")
def test_a_patch_that_apply_left_out_does_not_leave_the_series_by_an_export(
    toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    clone = toy.clone()
    assert apply_to(clone, "--through", "right-answer") == 0
    before = written(toy)
    assert export_from(clone) == 1
    assert "lacks bring-hook, which the series has" in capsys.readouterr().err
    assert export_from(clone, "--drop", "bring-hook", "--drop", "right-answer") == 2
    assert "--drop right-answer" in capsys.readouterr().err
    assert written(toy) == before


def test_hooks_and_an_external_diff_of_the_clone_do_not_run(toy: Toy, tmp_path: Path) -> None:
    clone = toy.clone()
    for hook in ("reference-transaction", "post-checkout", "post-index-change", "pre-commit", "post-rewrite"):
        write(clone, {f".git/hooks/{hook}": f"#!/bin/sh\ntouch {tmp_path}/ran-{hook}\n"})
        (clone / ".git/hooks" / hook).chmod(0o755)
    git(clone, "config", "diff.external", f"touch {tmp_path}/ran-diff; false")
    assert apply_to(clone) == 0
    assert export_from(clone) == 0
    assert apply_to(clone, "--reverse") == 0
    assert sorted(path.name for path in tmp_path.glob("ran-*")) == []


def test_an_export_does_not_depend_on_the_line_ends_or_dates_of_the_work_tree(toy: Toy) -> None:
    """Only commits count: what lies about uncommitted is not exported."""
    clone = applied(toy)
    before = written(toy)
    write(clone, {"python/toy/core.py": "edited\n", "python/toy/new.py": "new\n"})
    assert export_from(clone) == 0
    assert written(toy) == before


def test_old_patches_of_the_toy_are_what_git_itself_writes(toy: Toy) -> None:
    """Guard of the fixture: the exported diff holds the author's bytes."""
    patch = toy.series().patches[0]
    assert [edit.new for edit in patch.edits] == [blob_id(text.encode()) for text in FIRST.values()]
