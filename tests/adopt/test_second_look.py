"""What a second reader and a newcomer found in adopt: changes that went on wrongly, or in silence."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from sm120_overlay.cli import main
from sm120_overlay.queue.git import SETTINGS

from ..queue.toy import FIRST, HOOK, TOY, Toy, git, write
from .people import BARE, CORE, RUN, Stranger, adopt, at_head, everything, hows, whys

Save = Callable[..., Path]
PLAIN = "--- {0}/{1}\n+++ {0}/{1}\n@@ -1,3 +1,3 @@\n-one\n+ONE\n two\n three\n\\ No newline at end of file\n"
NEW = "--- /dev/null\n+++ {0}/{1}\n@@ -0,0 +1 @@\n+x = 1\n"


@pytest.mark.parametrize("top", ["new", "toy", "../toy", "/src/toy", "toy/python/toy/old", "."])
def test_a_new_file_of_diff_u_goes_where_the_changed_ones_are(ours: Path, saved: Save, top: str) -> None:
    """Also where a folder above the clone has the package's name."""
    diff = PLAIN.format(top, "python/toy/bare.txt") + NEW.format(top, "python/toy/new.py")
    answer = adopt(saved(diff.encode()), ours)
    assert (answer.code, hows(answer)) == (0, {BARE: "exact", "python/toy/new.py": "exact"})


@pytest.mark.parametrize("name", ["toy/test/x.py", "new/toy-kernel/csrc/new.cu", "toy/python/other/x.py"])
def test_a_new_file_of_diff_u_whose_place_is_not_certain_is_refused(ours: Path, saved: Save, name: str) -> None:
    before = everything(ours)
    answer = adopt(saved(NEW.format("up/two", name).encode()), ours)
    assert (answer.code, set(hows(answer).values())) == (1, {"refused"})
    assert everything(ours) == before


def test_no_new_file_of_diff_u_chooses_the_upstream(toy: Toy, saved: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(toy.root)
    for name in ("toy", "gear"):
        git(toy.root, "clone", "-q", str(toy.upstream(name)), f"build/v1/{name}")
    assert main(["apply"]) == 0
    answer = adopt(saved(NEW.format("new/toy-kernel", "csrc/new.cu").encode()))
    assert answer.code == 2
    assert "none of its files belongs to" in answer.err


def test_a_copy_has_what_its_source_was_before_the_change(stranger: Stranger, ours: Path, saved: Save) -> None:
    copy = "python/toy/zcopy.txt"
    write(stranger.path, {copy: TOY[BARE], BARE: "one\ntwo\nvier"})
    diff = stranger.diff({}, "-C", "--find-copies-harder")
    assert b"copy from" in diff
    answer = adopt(saved(diff), ours)
    assert answer.code == 0, whys(answer)
    assert at_head(ours, copy) == TOY[BARE].encode()


def test_a_file_that_is_moved_away_and_comes_anew_is_refused(stranger: Stranger, ours: Path, saved: Save) -> None:
    pairs = ((RUN, BARE), (BARE, "python/toy/c.txt"))
    diff = "".join(
        f"diff --git a/{old} b/{new}\nsimilarity index 100%\nrename from {old}\nrename to {new}\n" for old, new in pairs
    )
    answer = adopt(saved(diff.encode()), ours)
    assert answer.code == 1
    assert "--no-renames" in whys(answer)


def test_no_setting_of_the_user_decides_about_line_ends_in_a_mail() -> None:
    assert SETTINGS["mailinfo.quotedCr"] == "nowarn"
    assert SETTINGS["mailinfo.scissors"] == "false"


@pytest.mark.case("CRLF line ends upstream", target="adopt", outcome="exact")
def test_a_mail_in_base64_keeps_line_ends_under_any_setting(
    ours: Path, saved: Save, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(tmp_path, {"home/.gitconfig": "[mailinfo]\n\tquotedCr = strip\n\tscissors = true\n"})
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    diff = b"diff --git a/python/toy/w.py b/python/toy/w.py\nnew file mode 100644\n--- /dev/null\n"
    diff += b"+++ b/python/toy/w.py\n@@ -0,0 +1 @@\n+A = 1\r\n"
    head = b"From: Ann <ann@example.org>\nSubject: toy: x\nContent-Transfer-Encoding: base64\nMIME-Version: 1.0\n"
    head += b"Content-Type: text/plain; charset=utf-8\n\n"
    assert adopt(saved(head + base64.encodebytes(b"Body.\n---\n" + diff)), ours).code == 0
    assert at_head(ours, "python/toy/w.py") == b"A = 1\r\n"


def test_a_new_file_without_a_blob_in_a_diff_of_cr_lf_is_refused(ours: Path, saved: Save) -> None:
    diff = NEW.format("b", "python/toy/new.py").replace("\n", "\r\n").encode()
    answer = adopt(saved(diff), ours)
    assert answer.code == 1
    assert "which line ends it has is not certain" in whys(answer)


def test_our_own_patch_file_is_not_adopted_without_its_overlay_file(toy: Toy, saved: Save) -> None:
    clone = toy.clone()
    assert main(["apply", str(clone), "--through", "right-answer"]) == 0
    patch = toy.home.patches("v1", "toy") / "bring-hook.patch"
    answer = adopt(patch, clone)
    assert answer.code == 1
    assert f"it brings the overlay file {HOOK}, which a patch file does not hold" in answer.err
    assert adopt(patch, clone, "--leave-out", f"*{Path(HOOK).name}").code in (0, 2)


def test_hunks_that_change_places_are_told(stranger: Stranger, ours: Path, saved: Save, toy: Toy) -> None:
    """Each of them stands in a function that the diff names, and in the wrong one."""

    def body(name: str, *lines: str) -> str:
        return f"def {name}():\n" + "".join(f"    {line}\n" for line in lines) + "\n\n"

    filler = [f"pass  # {number}" for number in range(9)]
    theirs = body("aaa", *filler, "x = 1", *filler) + body("bbb", *filler, "y = 1", *filler)
    names = {"python/toy/two.py": theirs}
    base = stranger.commit(names)
    swapped = theirs.replace("def aaa", "def ccc").replace("def bbb", "def aaa").replace("def ccc", "def bbb")
    diff = stranger.diff({"python/toy/two.py": theirs.replace("x = 1", "x = 2").replace("y = 1", "y = 2")})
    write(ours, {"python/toy/two.py": swapped})
    git(ours, "add", "-A")
    git(ours, "commit", "-q", "-m", "two\n\nBody.\n\nSlug: two\n")
    answer = adopt(saved(diff), ours, "--history", stranger.path)
    assert (answer.code, hows(answer)) == (0, {"python/toy/two.py": "moved"}), base


def test_a_hunk_behind_a_binary_is_not_passed_over(stranger: Stranger, ours: Path, saved: Save) -> None:
    diff = stranger.diff({"python/toy/x.bin": b"\0\1"}, "--binary") + b"@@ -1 +1 @@\n-a\n+b\n"
    answer = adopt(saved(diff), ours, "--leave-out", "*.bin")
    assert answer.code == 2
    assert "the diff is damaged there" in answer.err


def test_mails_behind_notes_do_not_become_one_patch(stranger: Stranger, ours: Path, saved: Save) -> None:
    stranger.commit({BARE: "x\n"})
    stranger.commit({RUN: "y\n"})
    answer = adopt(saved(b"# two fixes of mine\n" + stranger.mails("HEAD~2")), ours)
    assert answer.code == 2
    assert "found a mail inside a diff" in answer.err


def test_a_mail_with_its_base_below_the_diff_is_taken(stranger: Stranger, ours: Path, saved: Save) -> None:
    head = stranger.head
    stranger.commit({BARE: "x\n"})
    mail = stranger.mails("HEAD~1", f"--base={head}")
    assert b"base-commit: " in mail
    assert adopt(saved(mail), ours).code == 0


@pytest.mark.parametrize("date", ["Mon, 1 Jan 99999999999999999999 00:00:00 +0000", "yesterday"])
def test_a_date_that_is_none_is_said(stranger: Stranger, ours: Path, saved: Save, date: str) -> None:
    stranger.commit({BARE: "x\n"})
    lines = stranger.mails().decode().split("\n")
    mail = "\n".join(f"Date: {date}" if line.startswith("Date: ") else line for line in lines)
    assert adopt(saved(mail.encode()), ours).code == 0
    assert "Its date could not be read." in git(ours, "log", "-1", "--format=%B")


def test_an_author_without_an_address_stays_the_author(stranger: Stranger, ours: Path, saved: Save) -> None:
    stranger.commit({BARE: "x\n"})
    lines = stranger.mails().decode().split("\n")
    mail = "\n".join("From: Bob Builder <>" if line.startswith("From: ") else line for line in lines)
    assert adopt(saved(mail.encode()), ours).code == 0
    assert git(ours, "log", "-1", "--format=%an").strip() in ("Bob Builder", "Bob Builder <>")


def test_a_change_of_nothing_is_no_commit(stranger: Stranger, ours: Path, saved: Save) -> None:
    head = git(ours, "rev-parse", "HEAD")
    gone = stranger.diff({BARE: None})
    git(stranger.path, "reset", "-q", "--hard")
    git(stranger.path, "rm", "-q", BARE)
    git(stranger.path, "commit", "-q", "-m", "gone")
    back = stranger.diff({BARE: TOY[BARE]})
    answer = adopt(saved(gone + back), ours)
    assert answer.code == 0
    assert git(ours, "rev-parse", "HEAD") == head


@pytest.mark.case("another file is imported in place of a patched one", target="adopt", outcome="refused")
def test_a_package_beside_a_module_is_refused(stranger: Stranger, ours: Path, saved: Save) -> None:
    before = everything(ours)
    answer = adopt(saved(stranger.diff({"python/toy/core/__init__.py": "x = 1\n"})), ours)
    assert answer.code == 1
    assert "Python imports the package of the two" in answer.err
    assert everything(ours) == before


def test_a_diff_without_blobs_does_not_go_on_twice(ours: Path, saved: Save) -> None:
    lines = FIRST[CORE].split("\n")
    diff = (
        f"--- a/{CORE}\n+++ b/{CORE}\n@@ -62,3 +62,4 @@\n" + "".join(f" {line}\n" for line in lines[61:64]) + "+# end\n"
    )
    assert lines[64:] == [""]
    first = adopt(saved(diff.encode()), ours)
    assert first.code == 0, whys(first)
    head = git(ours, "rev-parse", "HEAD")
    again = adopt(saved(diff.encode()), ours)
    assert (again.code, hows(again)) == (0, {CORE: "absorbed"})
    write(ours, {CORE: FIRST[CORE] + "# another end\n"})
    git(ours, "commit", "-q", "-a", "-m", "core: another end\n\nSlug: another-end")
    other = git(ours, "rev-parse", "HEAD")
    assert adopt(saved(diff.encode()), ours).code != 0
    assert git(ours, "rev-parse", "HEAD") == other != head


def test_a_slug_of_either_upstream_is_not_taken_again(stranger: Stranger, ours: Path, saved: Save) -> None:
    diff = stranger.diff({BARE: "x\n"})
    for slug in ("more-gears", "bring-hook"):
        answer = adopt(saved(diff), ours, "--slug", slug)
        assert (answer.code, "the line has a patch of that name" in answer.err) == (2, True)
    answer = adopt(saved(diff, "more-gears.diff"), ours, "--dry-run")
    assert [patch["slug"] for patch in answer.said["targets"][0]["patches"]] == ["more-gears-2"]
    assert [patch["commit"] for patch in answer.said["targets"][0]["patches"]] == [None]


def test_what_is_handed_over_cannot_be_merged_by_mistake(stranger: Stranger, ours: Path, saved: Save) -> None:
    answer = adopt(saved(stranger.diff({CORE: TOY[CORE].replace("return 41", "return 43")})), ours)
    assert answer.code == 3
    head = git(ours, "rev-parse", "HEAD")
    with pytest.raises(Exception, match="non-zero exit status"):
        git(ours, "merge", answer.said["targets"][0]["handed_off"]["branch"])
    assert git(ours, "rev-parse", "HEAD") == head
    again = adopt(saved(stranger.diff({})), ours)
    assert again.code == 1
    assert f"cherry-pick {answer.said['targets'][0]['handed_off']['after'][:12]}..adopt/" in again.err


def test_conflict_markers_do_not_get_into_the_series(toy: Toy, ours: Path, stranger: Stranger, saved: Save) -> None:
    assert adopt(saved(stranger.diff({BARE: "<<<<<<< ours\nx\n=======\ny\n>>>>>>> theirs\n"})), ours).code == 0
    assert main(["export", str(ours)]) == 1


@pytest.mark.parametrize("data", [b"\x1f\x8bxx", "diff".encode("utf-16")], ids=["gzip", "utf-16"])
def test_a_packed_or_wide_file_is_named_as_that(ours: Path, saved: Save, data: bytes) -> None:
    answer = adopt(saved(data), ours)
    assert answer.code == 2
    assert "expected a diff as git writes it" in answer.err


def test_a_series_with_an_exported_commit_comes_off(toy: Toy, ours: Path, stranger: Stranger, saved: Save) -> None:
    """The patch files hold the user's commit, so taking it off loses nothing."""
    from .test_commits import fill_in

    assert adopt(saved(stranger.diff({BARE: "x\n"})), ours).code == 0
    fill_in(ours)
    write(toy.home.root, {"tests/patches/test_their_fix.py": ""})
    assert main(["export", str(ours)]) == 0
    for flags in (["--without", "their-fix"], [], ["--through", "right-answer"], [], ["--reverse"]):
        assert main(["apply", str(ours), *flags]) == 0
    assert git(ours, "status", "--porcelain") == ""
    assert (ours / BARE).read_bytes() == TOY[BARE].encode()
