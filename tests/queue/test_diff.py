"""The parser and the applier against real git: what git writes is read exactly, and nothing else is read at all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm120_overlay.errors import Refused, UsageError
from sm120_overlay.queue.diff import parse_sections
from sm120_overlay.queue.mail import parse_patch
from sm120_overlay.queue.place import place
from sm120_overlay.queue.series import chains, contents, load_series

from .toy import Toy, bare_repository, commit_pair, git_bytes, mail_of, snapshot


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_repository(tmp_path_factory.mktemp("diff") / "repo")


def test_a_diff_of_an_unknown_escape_or_a_path_without_a_prefix_is_refused(repo: Path) -> None:
    text = _text(repo, {"p/x": (b"a\n", b"b\n")})
    for wrong in (text.replace("p/x", "p\\q/x"), text.replace(" a/p", " p").replace(" b/p", " p")):
        with pytest.raises(UsageError, match=r"more than one way|cannot read one path"):
            parse_sections("x.patch", wrong.replace("b/p\\q/x\n", '"b/p\\q/x"\n'))


@pytest.mark.case("a path that leaves the tree", target="series", outcome="refused")
@pytest.mark.parametrize(
    "path", ["../x", "a/../../x", "/etc/x", "a//x", "./x", "a/./x", ".git/hooks/x", "a/.git/config", "a/", ".GIT/x"]
)
def test_a_path_that_leaves_the_tree_is_refused(repo: Path, path: str) -> None:
    text = _text(repo, {"p": (b"a\n", b"b\n")}).replace("a/p", f"a/{path}").replace("b/p", f"b/{path}")
    with pytest.raises((UsageError, Refused)):
        parse_sections("x.patch", text)


# ---- strictness: a section that was changed by hand, by a mail program or by a merge


RICH: dict[str, tuple[bytes | None, bytes | None]] = {
    "p/deleted": (b"one\ntwo\n", None),
    "p/emptied": (b"one\n", b""),
    "p/gains end": (b"a\nb", b"a\nb\n"),
    "p/hunks": (
        b"".join(b"line %d\n" % n for n in range(40)),
        b"".join(b"line %d\n" % n for n in range(40)).replace(b"line 5\n", b"").replace(b"line 25\n", b"x\r\ny\n"),
    ),
    "p/loses": (b"a\nb\n", b"a\nb"),
    "p/new": (None, b"\n-- \n--- a\n"),
    "p/void": (None, b""),
    "p/wöid": (b"", None),
    "p/zz": (b"same\nsame\nsame\nsame\nsame\nsame\nsame\nsame\n", b"same\nsame\nsame\nsame\nSAME\nsame\nsame\nsame\n"),
}


def _text(repo: Path, files: dict[str, tuple[bytes | None, bytes | None]]) -> str:
    mail = mail_of(repo, *commit_pair(repo, files)).decode("latin-1")
    return mail[mail.index("diff --git ") :].rstrip("\n") + "\n"


def _mutations(line: str) -> Iterator[list[str]]:
    """Every way in which one line may be damaged, as the lines that then stand in its place."""
    yield []
    yield [line, line]
    yield [line, "garbage"]
    yield [line, ""]
    yield [line + " "]
    yield [line + "\r"]
    yield [line.replace("\r", "")]
    yield [" " + line]
    yield [line[1:]]
    yield ["-" + line[1:]]
    yield ["+" + line[1:]]
    yield [" " + line[1:]]
    yield [line, "\\ No newline at end of file"]
    yield from ([line, extra] for extra in ("@@ -1 +1 @@", "-- ", "2.39.5", "old mode 100644", "new mode 100755",
                                            "rename from x", "copy to x", "similarity index 90%", "GIT binary patch",
                                            "Binary files a/p and b/p differ", "--- a/q", "+++ b/q",
                                            "index 1..2 100644", "new file mode 100644"))  # fmt: skip
    for found in re.finditer(r"\d+", line):
        number = int(found[0]) if len(found[0]) < 9 else 0
        for other in {"0" + found[0], str(number + 1), str(max(number - 1, 0)), "120000", "160000", "100755", ""}:
            yield [line[: found.start()] + other + line[found.end() :]]
    if line.startswith("index "):
        for at in (6, 45, 48, 87):
            yield [line[:at] + ("0" if line[at] != "0" else "1") + line[at + 1 :]]
        yield [line[:13] + ".." + line[48:55] + line[88:]]
        yield [line[:46] + line[48:] + ".."]


def test_one_damaged_line_is_refused_or_changes_nothing(repo: Path) -> None:
    """Whatever single line is damaged, no file ever comes out other than as promised."""
    lines = _text(repo, RICH).split("\n")
    tried = refused = 0
    for at in range(len(lines) - 1):
        for instead in _mutations(lines[at]):
            text = "\n".join([*lines[:at], *instead, *lines[at + 1 :]])
            if text == "\n".join(lines) or not text.startswith("diff --git "):
                continue
            tried += 1
            try:
                edits = [section.edit for section in parse_sections("x.patch", text)]
                placed = {edit.path: place(edit, RICH.get(edit.path, (None, None))[0]) for edit in edits}
            except (UsageError, Refused):
                refused += 1
                continue
            assert len(edits) == len(placed)
            for path, after in placed.items():
                assert after == RICH[path][1], (lines[at], instead)
            assert placed.keys() == RICH.keys(), (lines[at], instead)
    assert tried > 2000
    assert refused > tried * 0.9


@pytest.mark.case("a damaged patch file", target="series", outcome="refused")
def test_a_series_with_one_damaged_line_is_refused_or_is_the_same_series(toy: Toy) -> None:
    """The same through the door that a user takes: the files of a series. Also its message may be damaged."""
    pin = toy.pin()
    base = {path: (toy.upstream() / path).read_bytes() for path in ("python/toy/core.py", "python/toy/dos.py")}
    wanted = contents(toy.series(), base)
    for file in sorted(toy.home.patches("v1", "toy").glob("*.patch")):
        whole = file.read_bytes()
        lines = whole.split(b"\n")
        for at in range(len(lines) - 1):
            for instead in ([], [lines[at]] * 2, [lines[at], b"garbage"], [lines[at][1:]]):
                if lines[at].startswith(b"Overlay:"):
                    continue  # then lint misses the owner of the overlay file (test_lint)
                file.write_bytes(b"\n".join([*lines[:at], *instead, *lines[at + 1 :]]))
                try:
                    series = load_series(toy.home, pin)
                    chains(series)
                    found = contents(series, base)
                except (UsageError, Refused):
                    continue
                assert found == wanted, (file.name, lines[at], instead)
        file.write_bytes(whole)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"index .*\n--- a/p\n", "similarity index 90%\nrename from p\nrename to q\n"),
        (r"index .*\n", "old mode 100644\nnew mode 100755\n"),
        (r"(?s)index .*", "GIT binary patch\nliteral 3\nKcmZQzWMT#Y01f~L\n\nliteral 0\nHcmV?d00001\n"),
        (r"(?s)--- .*", "Binary files a/p and b/p differ\n"),
        (r" 100644\n", " 120000\n"),
        (r" 100644\n", " 160000\n"),
        (r"(index \w{7})\w*\.\.(\w{7})\w*", r"\1..\2"),
        (r"(?m)^\+b\n\Z", ""),
        (r"@@ -1 \+1 @@", "@@ -1,2 +1,2 @@"),
        (r"@@ -1 \+1 @@", "@@ -1,1 +1,1 @@"),
        (r"@@ -1 \+1 @@", "@@ -1 +1 @@\n-- \n2.39.5"),
        (r"--- a/p\n", ""),
        (r"\+\+\+ b/p", "+++ b/q"),
        (r"diff --git a/p b/p", "diff --git a/q b/q"),
        (r"diff --git a/p b/p", "diff --git a/p b/q"),
        (r"--- a/p", "--- a/p\t2026-03-01"),
    ],
)
def test_what_cannot_be_carried_exactly_is_refused(repo: Path, old: str, new: str) -> None:
    text = _text(repo, {"p": (b"a\n", b"b\n")})
    damaged = re.sub(old, new, text)
    assert damaged != text
    with pytest.raises(UsageError) as error:
        parse_sections("some.patch", damaged)
    assert "some.patch" in error.value.what
    assert "tools/export.py" in error.value.todo


@pytest.mark.parametrize("kind", ["120000", "160000"])
def test_a_symlink_or_a_submodule_made_by_git_is_refused(tmp_path: Path, kind: str) -> None:
    repo = bare_repository(tmp_path / "repo")
    base, _ = commit_pair(repo, {"p": (b"a\n", b"b\n")})
    target = git_bytes(repo, "hash-object", "-w", "--stdin", stdin=b"p") if kind == "120000" else base.encode()
    tree = git_bytes(repo, "mktree", stdin=b"%s %s %s\tlink\n" % (
        kind.encode(), b"blob" if kind == "120000" else b"commit", target.strip()))  # fmt: skip
    words = ("-m", "x: link", "-m", "Body.", "-m", "Slug: x")
    tip = git_bytes(repo, "commit-tree", "-p", base, *words, tree.decode().strip()).decode().strip()
    with pytest.raises(UsageError, match=kind) as error:
        parse_patch("mail", mail_of(repo, base, tip))
    assert "symlinks, submodules" in error.value.todo


def test_git_and_the_parser_agree_on_what_a_damaged_patch_is(repo: Path, tmp_path: Path) -> None:
    """Where `git apply` refuses a patch as corrupt, so do we: the oracle is never laxer than the product."""
    text = _text(repo, {"p": (b"a\nb\nc\n", b"a\nB\nc\n")})
    git_bytes(tmp_path, "init", "-q")
    (tmp_path / "p").write_bytes(b"a\nb\nc\n")
    git_bytes(tmp_path, "apply", "--check", stdin=text.encode("latin-1"))
    for damaged in (text.replace("-b\n", ""), text.replace(",3", ",4", 1), text.replace(" c\n", "")):
        with pytest.raises(Exception, match="git"):
            git_bytes(tmp_path, "apply", "--check", stdin=damaged.encode("latin-1"))
        with pytest.raises(UsageError):
            parse_sections("x.patch", damaged)


def test_reading_a_series_writes_nothing(toy: Toy) -> None:
    before = snapshot(toy.home.root)
    toy.series()
    assert snapshot(toy.home.root) == before
