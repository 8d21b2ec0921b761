"""Strategies that several of these tests draw from, and how many examples a test tries."""

from __future__ import annotations

import os
import string

from hypothesis import settings
from hypothesis import strategies as st

TIMES = int(os.environ.get("SM120_OVERLAY_FUZZ", "1"))
Pair = tuple[bytes | None, bytes | None]  # a file before and after; None: no file

# Lines that a careless reader takes for a header, a mail or an end of line.
HOSTILE_LINES = [
    b"", b" ", b"--- a", b"+++ b", b"--- a/x", b"@@ -1 +1 @@", b"@@ ", b"-- ", b"-", b"+", b"---",
    b"diff --git a/x b/x",
    b"index 0000000..1111111", b"From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001", b"From: x",
    b"\\ No newline at end of file", b"\\", b"\r", b"a\r", b"\ra", b"a\rb", b"\x0c", b"\x0b", b"\x1c", b"\x85",
    b"\xff\xfe", b"\xef\xbb\xbf",
    b"\xe2\x80\xa8", b"def f():", b"class A:  ", b"    return", b"\t", b"GIT binary patch", b"similarity index 100%",
    b"\0",
    b"deleted file mode 100644", b"Binary files a/x and b/x differ", b"2.39.5",
]  # fmt: skip
LINES = st.one_of(
    st.sampled_from(HOSTILE_LINES),
    st.sampled_from([b"a", b"b", b"c"]),
    st.binary(max_size=6).map(lambda line: line.replace(b"\n", b"")),
)
ENDS = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n"])
NAMES = st.one_of(
    st.sampled_from([
        "a b", " lead", "trail ", 'q"q', "tab\tx", "é", "日本", "x b/x", " b/ b/y", "back\\slash", "-dash", "--x", "#x",
        "new\nline", "\x7f", "\x01", "a/b c/d", "dev/null", '"quoted"', "a/ b/a", "b", "@@ -1 +1 @@", "\udcff\udc80",
        ":(glob)*",
    ]),
    st.text(string.printable.replace("/", ""), min_size=1, max_size=8),
)  # fmt: skip


def examples(number: int) -> settings:
    """The profile in force, with this many examples (times SM120_OVERLAY_FUZZ)."""
    profile: settings = settings.get_profile("ci" if TIMES == 1 else "long")
    return settings(profile, max_examples=number * TIMES)


def _join(rows: list[tuple[bytes, bytes]], unended: bool) -> bytes:
    data = b"".join(line + end for line, end in rows)
    return data.removesuffix(b"\n") if unended else data


FILES = st.builds(_join, st.lists(st.tuples(LINES, ENDS), max_size=24), st.booleans())


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    """A file before and after; most of them an edit of some lines, so that hunks are small and many."""
    before = draw(FILES)
    kind = draw(st.sampled_from(["edit", "edit", "far", "far", "other", "new", "deleted", "emptied", "filled"]))
    if kind == "edit":
        return before, draw(edited(before))
    if kind == "far":  # so far from each other that they are two hunks
        middle = b"\n" + b"".join(b"line %d\n" % number for number in range(12))
        return before + middle + before, draw(edited(before)) + middle + draw(edited(before))
    after = draw(FILES)
    return {"other": (before, after), "new": (None, after), "deleted": (before, None), "emptied": (before, b"")}.get(
        kind, (b"", after)
    )


@st.composite
def edited(draw: st.DrawFn, before: bytes) -> bytes:
    """Some lines replaced by others."""
    lines = before.split(b"\n")
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines)))
        lines[at : at + draw(st.integers(0, 2))] = draw(st.lists(LINES, max_size=2))
    return b"\n".join(lines)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """A file after one to three accidents: bytes or lines lost, doubled, changed, swapped, or the end cut off."""
    for _ in range(draw(st.integers(1, 3))):
        whole = draw(_accident(whole))
    return whole


@st.composite
def _accident(draw: st.DrawFn, whole: bytes) -> bytes:
    kind = draw(st.sampled_from(["bytes", "flip", "cut", "line gone", "line doubled", "line swapped", "line new"]))
    at = draw(st.integers(0, max(len(whole) - 1, 0)))
    if kind == "bytes":
        return whole[:at] + draw(st.binary(max_size=3)) + whole[at + draw(st.integers(0, 40)) :]
    if kind == "flip":
        return whole[:at] + bytes([whole[at] ^ (1 << draw(st.integers(0, 7)))]) + whole[at + 1 :] if whole else whole
    if kind == "cut":
        return whole[:at]
    lines = whole.split(b"\n")
    one, other = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, len(lines) - 1))
    if kind == "line swapped":
        lines[one], lines[other] = lines[other], lines[one]
    else:
        more = {"line gone": [], "line doubled": [lines[one]] * 2}.get(kind, [draw(LINES), lines[one]])
        lines[one : one + 1] = more
    return b"\n".join(lines)
