"""The applier beside `git apply`: equal wherever git needs no offset, and a refusal on any other preimage."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sm120_overlay.errors import Refused
from sm120_overlay.queue.mail import parse_patch
from sm120_overlay.queue.patch import Edit
from sm120_overlay.queue.place import place

from ..queue.toy import commit_pair, git_bytes, mail_of
from .given import FILES, LINES, Pair, edited, examples, pairs

OFFSET = re.compile(rb"succeeded at \d+ \(offset -?\d+ lines?\)")
BLOCK = b"def f():\n    x = 1\n    y = 2\n    return x\n\n\n"


def by_git(tree: Path, diff: bytes, before: bytes | None) -> tuple[bool, bytes | None, bool]:
    """Whether `git apply` takes it, the file afterwards, and whether git moved a hunk to other lines."""
    file = tree / "f"
    file.unlink(missing_ok=True)
    if before is not None:
        file.write_bytes(before)
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent), "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}
    command = ["git", "apply", "-v", "--whitespace=nowarn"]
    done = subprocess.run(command, cwd=tree, env=env, input=diff, capture_output=True, check=False)
    after = file.read_bytes() if file.exists() else None
    return done.returncode == 0, after, bool(OFFSET.search(done.stderr))


def by_us(edit: Edit, before: bytes | None) -> tuple[bool, bytes | None]:
    """Whether the applier takes it, and what it makes."""
    try:
        return True, place(edit, before)
    except Refused:
        return False, None


def made_by_git(bare: Path, pair: Pair) -> tuple[Edit, bytes]:
    """The change of the file `f` as an edit, and as the diff that says it."""
    mail = mail_of(bare, *commit_pair(bare, {"f": pair}))
    (edit,) = parse_patch("x.patch", mail).edits
    return edit, mail[mail.index(b"diff --git ") :]


@st.composite
def preimages(draw: st.DrawFn, before: bytes | None) -> bytes | None:
    """What may lie there instead: the same, or moved, edited, cut, with other line ends, something else, nothing."""
    if before is None:
        return draw(st.one_of(st.none(), FILES))
    other = [
        before,
        b"".join(draw(st.lists(LINES, min_size=1, max_size=5).map(lambda rows: [row + b"\n" for row in rows])))
        + before,
        before + draw(FILES),
        draw(edited(before)),
        before.replace(b"\n", b"\r\n"),
        before.replace(b"\r\n", b"\n"),
        before.removesuffix(b"\n"),
        before.rstrip(),
        draw(FILES),
        None,
    ]
    return draw(st.sampled_from(other))


@pytest.mark.case("moved or duplicated context", target="series", outcome="refused", source="landley/toybox#533")
@examples(150)
@given(pair=pairs(), data=st.data())
def test_it_equals_git_on_the_very_preimage_and_refuses_any_other(
    bare: Path, tree: Path, pair: Pair, data: st.DataObject
) -> None:
    assume(pair[0] != pair[1])
    edit, diff = made_by_git(bare, pair)
    there = data.draw(preimages(pair[0]))
    taken, after = by_us(edit, there)
    assert taken == (there == pair[0])
    if taken:
        assert after == pair[1]
        assert by_git(tree, diff, there) == (True, after, False)


@pytest.mark.case("moved or duplicated context", target="series", outcome="refused", source="aspect-build/rules_py#508")
@pytest.mark.parametrize("above", [b"# new\n", BLOCK, BLOCK * 3])
def test_where_git_moves_a_hunk_the_applier_refuses(bare: Path, tree: Path, above: bytes) -> None:
    """Also where git then edits the other one of two blocks that read the same."""
    before = BLOCK * 6
    at = len(BLOCK) * 3
    edit, diff = made_by_git(bare, (before, before[:at] + before[at:].replace(b"x = 1", b"x = 9", 1)))
    assert by_us(edit, above + before) == (False, None)
    taken, after, _ = by_git(tree, diff, above + before)
    assert taken
    assert after != above + before


@examples(50)
@given(pair=pairs(), data=st.data())
def test_there_and_back_is_the_identity(bare: Path, pair: Pair, data: st.DataObject) -> None:
    """A change and git's own reverse of it."""
    assume(pair[0] != pair[1])
    forth, _ = made_by_git(bare, pair)
    back, _ = made_by_git(bare, (pair[1], pair[0]))
    assert place(back, place(forth, pair[0])) == pair[0]


@examples(25)
@given(before=FILES, steps=st.lists(FILES, min_size=2, max_size=4))
def test_a_chain_of_changes_goes_only_in_its_order(bare: Path, before: bytes, steps: list[bytes]) -> None:
    points = [before, *steps]
    assume(len(set(points)) == len(points))
    edits = [made_by_git(bare, pair)[0] for pair in itertools.pairwise(points)]
    now: bytes | None = before
    for edit, later in zip(edits, [*edits[1:], None], strict=True):
        if later:
            assert by_us(later, now) == (False, None)
        now = place(edit, now)
    assert now == steps[-1]


def test_git_and_the_applier_agree_on_a_file_without_a_last_line_end(bare: Path, tree: Path) -> None:
    """The marker `\\ No newline` is a part of the preimage: a line end that is there, or is not, is another file."""
    edit, diff = made_by_git(bare, (b"a\nb", b"a\nc"))
    assert by_git(tree, diff, b"a\nb") == (True, b"a\nc", False)
    assert by_us(edit, b"a\nb") == (True, b"a\nc")
    assert by_us(edit, b"a\nb\n") == (False, None)
    assert not by_git(tree, diff, b"a\nb\n")[0]
    assert git_bytes(tree, "status", "--porcelain") is not None
