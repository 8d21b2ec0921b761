"""States are a function of the files alone: every combination of points, against a plain reading of design.md."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from sm120_overlay.queue.blobs import blob_id
from sm120_overlay.queue.patch import Edit, Patch
from sm120_overlay.queue.pins import Pin
from sm120_overlay.queue.series import Series, chains, observed_digest, select
from sm120_overlay.queue.state import State, patch_states

from .toy import Toy

FILES = ("a", "b", "c")
STRANGE = blob_id(b"someone edited it")
PIN = Pin("v1", "toy", "", "v1.0", "", "toy", "1.0", "", (("", ""),), ())


def series_of(*touched: tuple[str, ...], fresh: str = "") -> Series:
    """A series whose patches touch these files; the files named in `fresh` do not exist at the pin."""
    now: dict[str, str | None] = {path: None if path in fresh else blob_id(path.encode()) for path in FILES}
    patches = []
    for number, paths in enumerate(touched):
        edits = []
        for path in paths:
            after = blob_id(f"{path}{number}".encode())
            edits.append(Edit(path, "100644", now[path], after))
            now[path] = after
        patches.append(Patch(f"p{number}", "Ann <a@b>", "", "", (), tuple(edits)))
    return Series(PIN, tuple(patches))


def touchings() -> Iterator[tuple[tuple[str, ...], ...]]:
    """Every way in which three patches touch three files, each at least one."""
    sets = [tuple(paths) for size in (1, 2, 3) for paths in itertools.combinations(FILES, size)]
    return itertools.product(sets, repeat=3)


def plain(series: Series, found: Mapping[str, str | None], number: int) -> State:
    """The definition, by replaying the series for each file: which blobs there are before and after the patch."""
    sides = set()
    for edit in series.patches[number].edits:
        path = edit.path
        earlier = [e for p in series.patches[:number] for e in p.edits if e.path == path]
        later = [e for p in series.patches[number:] for e in p.edits if e.path == path]
        before = {earlier[0].old, *(e.new for e in earlier)} if earlier else {later[0].old}
        after = {e.new for e in later}
        sides.add("before" if found.get(path) in before else "after" if found.get(path) in after else "nowhere")
    if "nowhere" in sides:
        return State.DRIFTED
    return {"before": State.PENDING, "after": State.APPLIED}[sides.pop()] if len(sides) == 1 else State.INTERRUPTED


def test_every_combination_of_file_points_has_the_state_that_is_defined() -> None:
    seen = set()
    for touched in touchings():
        series = series_of(*touched, fresh="c")
        points = {path: (*chain.points, STRANGE) for path, chain in chains(series).items()}
        for blobs in itertools.product(*points.values()):
            found = dict(zip(points, blobs, strict=True))
            states = [state.state for state in patch_states(series, found)]
            assert states == [plain(series, found, number) for number in range(3)], (touched, found)
            seen.add(tuple(states))
    assert len({state for states in seen for state in states}) == 4


@pytest.mark.parametrize("count", range(4))
def test_a_prefix_of_the_series_is_applied_up_to_there_and_pending_after(count: int) -> None:
    for touched in touchings():
        series = series_of(*touched, fresh="b")
        found = {path: chain.points[0] for path, chain in chains(series).items()}
        for patch in series.patches[:count]:
            found |= {edit.path: edit.new for edit in patch.edits}
        states = [state.state for state in patch_states(series, found)]
        assert states == [State.APPLIED] * count + [State.PENDING] * (3 - count)
        part = replace(series, patches=series.patches[:count])
        assert observed_digest(series, found) == observed_digest(part, found) == part.digest


def test_a_missing_entry_is_a_missing_file() -> None:
    series = series_of(("a",), ("a", "c"), ("c",), fresh="c")
    assert [state.state.value for state in patch_states(series, {"a": chains(series)["a"].points[1]})] == [
        "applied", "pending", "pending"
    ]  # fmt: skip
    gone = patch_states(series, {})
    assert [state.state.value for state in gone] == ["drifted", "drifted", "pending"]
    assert "found no file" in str(gone[0].reason)


def test_a_drifted_file_is_named_with_expected_and_found() -> None:
    series = series_of(("a", "b"), ("b",), ("c",))
    chain = chains(series)
    first, second, third = patch_states(series, {"a": STRANGE, "b": chain["b"].points[2], "c": chain["c"].points[1]})
    assert (first.state, second.state, third.state) == (State.DRIFTED, State.APPLIED, State.APPLIED)
    assert first.reason == f"a: expected blob {chain['a'].points[-1]}, found {STRANGE}"
    assert second.reason is third.reason is None


def test_an_interrupted_patch_names_the_files_it_has_not_reached() -> None:
    series = series_of(("a", "b", "c"), ("c",), ("b",))
    chain = chains(series)
    cut = patch_states(series, {"a": chain["a"].points[1], "b": chain["b"].points[0], "c": chain["c"].points[0]})[0]
    assert (cut.state, cut.reason) == (State.INTERRUPTED, "not yet in b, c")


def test_a_deleted_file_that_is_back_is_pending_and_an_emptied_one_is_drifted() -> None:
    at_pin = blob_id(b"a")
    gone = Patch("gone", "Ann <a@b>", "", "", (), (Edit("a", "100644", at_pin, None),))
    series = Series(PIN, (gone,))
    states = [patch_states(series, {"a": blob})[0].state.value for blob in (None, at_pin, blob_id(b""))]
    assert states == ["applied", "pending", "drifted"]


def test_a_patch_that_changes_nothing_is_never_said_to_be_applied() -> None:
    series = Series(PIN, (Patch("empty", "Ann <a@b>", "", "", (), ()),))
    assert patch_states(series, {})[0].state is not State.APPLIED


def test_without_leaves_the_others_applied_and_only_that_one_pending(toy: Toy) -> None:
    series = toy.series()
    part = select(series, without=("bring-hook",))
    found = {path: chain.points[-1] for path, chain in chains(part).items()}
    found = {path: found.get(path, chain.points[0]) for path, chain in chains(series).items()}
    assert [state.state.value for state in patch_states(series, found)] == ["applied", "pending"]
    assert observed_digest(series, found) == part.digest != series.digest
