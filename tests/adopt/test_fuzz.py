"""Any two trees, any options of git diff, any damage: the very files, or a refusal, never other bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm120_overlay.errors import UsageError
from sm120_overlay.queue.blobs import blob_id
from sm120_overlay.queue.fitting import PLACED, How, Placed
from sm120_overlay.queue.foreign import parse_foreign
from sm120_overlay.queue.paths import Spot, is_plain

from ..fuzz.given import HOSTILE_LINES, NAMES, Pair, examples, pairs
from ..queue.toy import commit_pair, git_bytes
from .people import after, parse, put

OPTIONS = st.lists(
    st.sampled_from([
        "-U0", "-U1", "-U2", "-U5", "--abbrev=4", "--abbrev=12", "--full-index", "-M", "-M30%", "-C", "-B",
        "--find-copies-harder", "--no-renames", "--minimal", "--patience", "--histogram", "-W", "--stat", "--summary",
        "--patch-with-raw", "--inter-hunk-context=3", "--function-context", "--indent-heuristic", "--text",
        "--ita-invisible-in-index", "--no-indent-heuristic",
    ]),
    max_size=5,
)  # fmt: skip
PREFIXES = st.sampled_from([(), (), ("--no-prefix",), ("--src-prefix=i/", "--dst-prefix=w/"), ("--src-prefix=c/",)])
BLIND = st.sampled_from(["-w", "-b", "--ignore-space-at-eol", "--ignore-blank-lines", "--ignore-cr-at-eol", "-D", "-a"])
TREES = st.dictionaries(NAMES.filter(is_plain).map(lambda name: f"p/{name}"), pairs(), min_size=1, max_size=3).filter(
    lambda tree: not any(f"{one}/" == other[: len(one) + 1] for one in tree for other in tree)
)


def sides(tree: Mapping[str, Pair]) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The files before and after."""
    return tuple({path: pair[side] for path, pair in tree.items() if pair[side] is not None} for side in (0, 1))  # type: ignore[return-value]


def diff_of(bare: Path, tree: Mapping[str, Pair], *options: str) -> bytes:
    """`git diff OPTIONS` of both sides."""
    base, tip = commit_pair(bare, tree)
    return git_bytes(bare, "diff", "-p", *options, base, tip)


def odd(placed: tuple[Placed, ...]) -> list[Placed]:
    """Files that did not go on, or not exactly."""
    return [one for one in placed if one.how is not How.EXACT]


@examples(120)
@given(tree=TREES, options=OPTIONS, prefixes=PREFIXES)
def test_a_diff_of_gits_gives_the_very_files(
    bare: Path, tree: dict[str, Pair], options: list[str], prefixes: tuple[str, ...]
) -> None:
    before, wanted = sides(tree)
    diff = diff_of(bare, tree, "--text", *options, *prefixes)
    placed = put(diff, before) if before != wanted else ()
    assert not odd(placed)
    assert after(placed, before) == wanted


@examples(60)
@given(tree=TREES, blind=BLIND, options=OPTIONS)
def test_a_diff_that_leaves_something_out_is_refused_or_right(
    bare: Path, tree: dict[str, Pair], blind: str, options: list[str]
) -> None:
    before, wanted = sides(tree)
    diff = diff_of(bare, tree, *options, blind)
    try:
        placed = put(diff, before)
    except UsageError:
        return
    for one in placed:
        assert one.how not in PLACED or one.after.data == wanted.get(one.path), (blind, one)


@st.composite
def damages(draw: st.DrawFn) -> tuple[int, int, bytes]:
    """Which kind of damage, at which line, and with what."""
    return draw(st.integers(0, 7)), draw(st.integers(0, 400)), draw(st.sampled_from([b"x", b" ", b"+", *HOSTILE_LINES]))


def damaged(diff: bytes, damage: tuple[int, int, bytes]) -> bytes:
    """The diff with one line of a hunk or of a name gone, doubled, moved, edited or added; blobs and modes stay."""
    kind, where, text = damage
    lines = diff.splitlines(True)
    sane = [at for at, line in enumerate(lines) if not line.startswith((b"index ", b"new ", b"deleted ", b"Binary"))]
    at = sane[where % len(sane)]
    line = lines[at]
    made = {
        0: [], 1: [line, line], 2: [line.replace(b"a", b"b", 1)], 3: [line.rstrip() + b"\n"], 4: [text + b"\n", line],
        5: [line[1:]], 6: [line.replace(b"\t", b"    ")], 7: [line[: len(line) // 2] + b"\n", line[len(line) // 2 :]],
    }[kind]  # fmt: skip
    return b"".join([*lines[:at], *made, *lines[at + 1 :]])


@examples(250)
@given(tree=TREES, options=OPTIONS, damage=damages())
def test_a_damaged_diff_is_refused_or_gives_the_very_files(
    bare: Path, tree: dict[str, Pair], options: list[str], damage: tuple[int, int, bytes]
) -> None:
    before, wanted = sides(tree)
    diff = diff_of(bare, tree, *options)
    if not diff:
        return
    try:
        placed = put(damaged(diff, damage), before)
    except UsageError as error:
        assert str(error)
        assert error.todo
        return
    whole = {one.path for one in put(diff, before)}
    assert {one.path for one in placed} >= whole or odd(placed), "a file was passed over"
    for one in placed:
        if one.how in PLACED and one.path in whole:
            assert one.after.data == wanted.get(one.path)
        elif one.how in PLACED:
            assert one.after.data is None or blob_id(one.after.data) in {blob_id(data) for data in wanted.values()}


@examples(150)
@given(lines=st.lists(st.one_of(
    st.sampled_from([line.decode("latin-1") for line in HOSTILE_LINES]),
    st.sampled_from(["diff --git a/x b/x", "--- a/x", "+++ b/x", "--- x", "+++ x", "@@ -1 +1 @@", "-a", "+b", " c",
                     "index 7898192..6178079 100644", "new file mode 100644", "rename from x", "rename to y",
                     "similarity index 100%", "@@ -0,0 +1 @@", "@@ -1 +0,0 @@", "deleted file mode 100644",
                     "--- /dev/null", "+++ /dev/null", "copy from x", "copy to z", "old mode 100644", "-- ",
                     "new mode 100755"]),
    st.text(max_size=8).map(lambda text: text.encode().decode("latin-1")),
), max_size=14))  # fmt: skip
def test_no_text_at_all_raises_anything_but_a_refusal(lines: list[str]) -> None:
    text = "\n".join(lines)
    try:
        placed = put(text.encode("latin-1"), {"x": b"a\n"})
    except UsageError as error:
        assert error.todo
        return
    for found in parse_foreign(Spot("x", 1), text):
        for one in placed:
            if one.path == found.path and one.how is How.EXACT and found.new and not found.kept:
                assert blob_id(one.after.data or b"")[: len(found.new)] == found.new or len(placed) > 1


def test_the_strategies_reach_what_they_are_for(bare: Path) -> None:
    tree = {"p/a": (b"1\n" * 30, None), "p/b": (None, b"1\n" * 30 + b"2\n")}
    diff = diff_of(bare, tree, "-M")
    assert b"rename from" in diff
    last = len([line for line in diff.splitlines() if not line.startswith(b"index ")]) - 1
    with pytest.raises(UsageError):
        parse(damaged(diff, (0, last, b"")))
