"""The applier refuses whatever it was not made for, and never moves a hunk."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm120_overlay.errors import Refused
from sm120_overlay.queue.blobs import blob_id
from sm120_overlay.queue.patch import Edit, Hunk
from sm120_overlay.queue.place import place

BEFORE = b"a\nb\nsame\nsame\nsame\nc\nd"
AFTER = b"a\nB\nsame\nsame\nsame\nC\nd"
TWO = (Hunk(2, (b"b\n",), (b"B\n",)), Hunk(6, (b"c\n",), (b"C\n",)))
EDIT = Edit("p/x.py", "100644", blob_id(BEFORE), blob_id(AFTER), TWO)


def test_hunks_go_onto_the_bytes_they_were_made_for() -> None:
    assert place(EDIT, BEFORE) == AFTER


@pytest.mark.parametrize("before", [BEFORE + b"\n", b"x\n" + BEFORE, AFTER, b"", None])
def test_another_base_is_refused_by_name_and_both_blobs(before: bytes | None) -> None:
    with pytest.raises(Refused) as error:
        place(EDIT, before)
    assert error.value.what.startswith("p/x.py: ")
    assert blob_id(BEFORE) in error.value.what
    assert (blob_id(before) if before is not None else "no file") in error.value.what


@pytest.mark.case("moved or duplicated context", target="series", outcome="refused", source="landley/toybox#533")
@pytest.mark.parametrize("start", [0, 1, 2, 3, 4, 6, 7, 8, 100])
def test_a_hunk_is_never_placed_elsewhere(start: int) -> None:
    """Its lines stand three times in the file; one line off is refused, however well it fits there."""
    edit = replace(EDIT, new=blob_id(BEFORE.replace(b"same\nsame\nsame", b"same\nsame\nSAME")))
    right = replace(edit, hunks=(Hunk(5, (b"same\n",), (b"SAME\n",)),))
    assert place(right, BEFORE) == b"a\nb\nsame\nsame\nSAME\nc\nd"
    wrong = replace(edit, hunks=(Hunk(start, (b"same\n",), (b"SAME\n",)),))
    with pytest.raises(Refused, match=r"does not fit the bytes it names|promises blob"):
        place(wrong, BEFORE)


@pytest.mark.parametrize(
    "hunks",
    [
        (TWO[1], TWO[0]),
        (TWO[0], TWO[0]),
        (Hunk(2, (b"b\n", b"same\n"), (b"B\n",)), Hunk(3, (b"same\n",), ())),
        (Hunk(6, (b"c\n",), (b"C\n",)), Hunk(1, (), (b"z\n",))),
        (Hunk(6, (b"c",), (b"C\n",)),),
        (Hunk(7, (b"d\n",), (b"D\n",)),),
        (Hunk(7, (b"d", b""), (b"D",)), Hunk(8, (b"d",), (b"D",))),
        (Hunk(9, (), (b"z\n",)),),
        (Hunk(-1, (b"d",), (b"D\n",)),),
    ],
    ids=["swapped", "twice", "overlapping", "backwards", "half a line", "line end invented", "past", "end", "negative"],
)
def test_hunks_that_overlap_or_stand_out_of_order_or_past_the_end_are_refused(hunks: tuple[Hunk, ...]) -> None:
    with pytest.raises(Refused, match=r"p/x\.py: the hunk at line -?\d+ does not fit"):
        place(replace(EDIT, hunks=hunks), BEFORE)


def test_a_result_other_than_the_promised_blob_is_refused_with_both_names() -> None:
    with pytest.raises(Refused) as error:
        place(replace(EDIT, new="1" * 40), BEFORE)
    assert "1" * 40 in error.value.what
    assert blob_id(AFTER) in error.value.what
    assert "export" in error.value.todo


def test_a_deletion_must_take_every_byte() -> None:
    edit = Edit("p", "100644", blob_id(b"a\nb\n"), None, (Hunk(1, (b"a\n", b"b\n"), ()),))
    assert place(edit, b"a\nb\n") is None
    with pytest.raises(Refused, match="leaves 2 bytes"):
        place(replace(edit, hunks=(Hunk(1, (b"a\n",), ()),)), b"a\nb\n")


@pytest.mark.case("an empty file", target="series", outcome="exact", source="libgit2/libgit2#5460")
def test_an_emptied_file_is_not_a_deleted_one() -> None:
    edit = Edit("p", "100644", blob_id(b"a\n"), blob_id(b""), (Hunk(1, (b"a\n",), ()),))
    assert place(edit, b"a\n") == b""
    assert place(replace(edit, new=None), b"a\n") is None


@pytest.mark.case("a new file that is there already, even empty", target="series", outcome="refused")
def test_a_new_file_is_refused_where_one_is_already_even_an_empty_one() -> None:
    edit = Edit("p", "100644", None, blob_id(b"a\n"), (Hunk(0, (), (b"a\n",)),))
    assert place(edit, None) == b"a\n"
    with pytest.raises(Refused, match=r"none \(no file\)"):
        place(edit, b"")


def test_an_overlay_file_comes_whole_and_is_checked_like_any_other() -> None:
    edit = Edit("p", "100644", None, blob_id(b"whole"), (), b"whole")
    assert place(edit, None) == b"whole"
    with pytest.raises(Refused, match="promises blob"):
        place(replace(edit, whole=b"another"), None)
    with pytest.raises(Refused, match="was made on blob none"):
        place(edit, b"there")


def test_lines_end_at_line_feeds_alone() -> None:
    """A form feed, a lone carriage return or a Unicode line separator does not count as a line."""
    before = b"a\x0cb\rc\x85\xe2\x80\xa8d\n" + b"e\n"
    edit = Edit("p", "100644", blob_id(before), blob_id(before[:-2]), (Hunk(2, (b"e\n",), ()),))
    assert place(edit, before) == before[:-2]


LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"\n"]), max_size=6)


@settings(max_examples=300)
@given(before=LINES, hunks=st.lists(st.tuples(st.integers(-1, 8), LINES, LINES), max_size=3), promise=LINES)
def test_whatever_the_hunks_say_only_the_promised_blob_comes_out(
    before: list[bytes], hunks: list[tuple[int, list[bytes], list[bytes]]], promise: list[bytes]
) -> None:
    data, promised = b"".join(before), b"".join(promise)
    made = tuple(Hunk(start, tuple(old), tuple(new)) for start, old, new in hunks)
    edit = Edit("p", "100644", blob_id(data), blob_id(promised), made)
    try:
        assert place(edit, data) == promised
    except Refused as error:
        assert error.what.startswith("p: ")
