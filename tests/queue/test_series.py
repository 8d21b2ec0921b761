"""A series as a whole: its chains, contents and digest, selections of it, and what is refused when it is loaded."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sm120_overlay.cli import main
from sm120_overlay.errors import Refused, UsageError
from sm120_overlay.queue.blobs import blob_id, digest
from sm120_overlay.queue.patch import Edit
from sm120_overlay.queue.series import Series, chains, contents, observed_digest, select

from .toy import FIRST, HOOK, SECOND, TOY, Toy, applied, git, opened, snapshot, write

CORE = "python/toy/core.py"
DOS = "python/toy/dos.py"


def at_pin(toy: Toy) -> dict[str, bytes | None]:
    return {path: TOY[path].encode() if path in TOY else None for path in chains(toy.series())}


def test_a_chain_has_the_pin_and_one_point_after_each_patch_that_touches_the_file(toy: Toy) -> None:
    chain = chains(toy.series())[CORE]
    assert chain.slugs == ("right-answer", "bring-hook")
    assert chain.points == tuple(blob_id(text.encode()) for text in (TOY[CORE], FIRST[CORE], SECOND[CORE]))
    assert chains(toy.series())[HOOK].points == (None, blob_id(SECOND[HOOK].encode()))


def test_a_patch_made_on_another_blob_than_the_one_before_it_leaves_is_refused_by_name(toy: Toy) -> None:
    series = toy.series()
    swapped = replace(series, patches=series.patches[::-1])
    with pytest.raises(Refused, match=rf"right-answer: {CORE} should be made on blob .* which bring-hook leaves"):
        chains(swapped)


def test_contents_are_what_each_patch_leaves_and_the_base_stays_as_it_was(toy: Toy) -> None:
    base = at_pin(toy)
    kept = dict(base)
    first, second = contents(toy.series(), base)
    assert first == {path: text.encode() for path, text in FIRST.items()}
    assert second == {path: text.encode() for path, text in SECOND.items()}
    assert base == kept


@pytest.mark.parametrize("path", [CORE, DOS, HOOK])
def test_contents_on_another_base_are_refused_by_file(toy: Toy, path: str) -> None:
    with pytest.raises(Refused, match=f"{path}: the patch was made on blob"):
        contents(toy.series(), {**at_pin(toy), path: b"another\n"})


# ---- the digest


def test_a_digest_does_not_depend_on_the_order_of_files() -> None:
    files = {f"p/{n}": ("100644", blob_id(str(n).encode())) for n in range(4)}
    assert len({digest("toy 1.0", dict(order)) for order in itertools.permutations(files.items())}) == 1


def test_a_digest_changes_with_every_byte_mode_path_base_and_deletion() -> None:
    blob = blob_id(b"x")
    different = [
        digest("toy 1.0", {}),
        digest("toy 1.1", {}),
        digest("gear 1.0", {}),
        digest("toy 1.0", {"p": ("100644", blob)}),
        digest("toy 1.1", {"p": ("100644", blob)}),
        digest("toy 1.0", {"p": ("100755", blob)}),
        digest("toy 1.0", {"q": ("100644", blob)}),
        digest("toy 1.0", {"p": ("100644", blob_id(b"y"))}),
        digest("toy 1.0", {"p": ("100644", None)}),
        digest("toy 1.0", {"p": ("100644", blob_id(b""))}),
        digest("toy 1.0", {"p": ("100644", blob), "q": ("100644", blob)}),
        digest("toy 1.0", {f"p\t100644 {blob}": ("100644", blob)}),
    ]
    assert len(set(different)) == len(different)


def test_the_digest_of_a_series_is_the_same_from_its_files_a_checkout_and_a_laid_out_wheel(
    toy: Toy, tmp_path: Path
) -> None:
    series = toy.series()
    clone = applied(toy)
    assert main(["apply", "--into", str(tmp_path / "laid"), "--only", "toy", "--source", "pypi"]) == 0
    bases = set()
    for folder in (clone, tmp_path / "laid" / "toy"):
        bases.add(opened(toy, folder).base)
        found = {path: blob_id((folder / path).read_bytes()) for path in chains(series)}
        assert observed_digest(series, found) == series.digest
    assert len(bases) == 2


@pytest.mark.parametrize("path", [CORE, DOS, HOOK, "python/toy/extra/__init__.py"])
def test_the_digest_of_a_series_changes_with_one_byte_of_any_file(toy: Toy, path: str) -> None:
    series = toy.series()
    found = {path: chain.points[-1] for path, chain in chains(series).items()}
    assert observed_digest(series, found | {path: blob_id(b"other")}) != series.digest
    assert observed_digest(series, found | {path: None}) != series.digest


def test_the_digest_counts_the_declared_mode_and_the_pin_but_neither_slug_nor_message(toy: Toy) -> None:
    series = toy.series()
    first, second = series.patches
    edits = tuple(replace(edit, mode="100755") for edit in second.edits)
    assert replace(series, patches=(first, replace(second, edits=edits))).digest != series.digest
    assert replace(series, pin=replace(series.pin, version="1.1")).digest != series.digest
    renamed = replace(second, slug="other", message="other: words\n", author="Bob <b@c>")
    assert replace(series, patches=(first, renamed)).digest == series.digest


def test_a_file_that_a_series_changes_and_changes_back_is_refused(toy: Toy) -> None:
    """Its blob could not tell whether both patches are on it, or none."""
    series = toy.series()
    first = series.patches[0]
    back = Edit(CORE, "100644", first.edits[0].new, first.edits[0].old)
    undone = replace(series, patches=(first, replace(first, slug="undo", edits=(back,))))
    with pytest.raises(Refused, match=f"undo: {CORE} becomes blob"):
        chains(undone)


@pytest.mark.parametrize(("one", "other"), [("a", "a/b"), ("a/b", "a"), ("a/b/c", "a")])
def test_a_path_that_is_a_file_and_a_folder_is_refused(toy: Toy, one: str, other: str) -> None:
    series = toy.series()
    first = series.patches[0]
    edits = (Edit(one, "100644", None, "1" * 40), Edit(other, "100644", None, "2" * 40))
    with pytest.raises(Refused, match="is a folder"):
        chains(replace(series, patches=(replace(first, edits=edits),)))


# ---- selections


def test_through_stops_after_that_patch(toy: Toy) -> None:
    series = toy.series()
    assert select(series, through="right-answer").slugs == ("right-answer",)
    assert select(series, through="bring-hook").slugs == series.slugs
    assert select(series).slugs == series.slugs


def test_a_slug_of_the_other_upstream_selects_nothing_away(toy: Toy) -> None:
    assert select(toy.series(), through="more-gears", without=("more-gears",)).slugs == toy.series().slugs


def test_the_last_patch_can_be_left_out(toy: Toy) -> None:
    assert select(toy.series(), without=("bring-hook",)).slugs == ("right-answer",)


def test_a_patch_that_a_later_one_shares_a_file_with_cannot_be_left_out_and_the_later_one_is_named(toy: Toy) -> None:
    with pytest.raises(Refused, match="right-answer cannot be left out: bring-hook after it"):
        select(toy.series(), without=("right-answer",))


def test_leaving_out_counts_only_patches_up_to_through(toy: Toy) -> None:
    assert select(toy.series(), through="right-answer", without=("right-answer",)).slugs == ()


def test_two_patches_of_one_file_can_be_left_out_together(toy: Toy) -> None:
    for order in (("right-answer", "bring-hook"), ("bring-hook", "right-answer")):
        assert select(toy.series(), without=order).slugs == ()


def _needing(toy: Toy) -> Series:
    """Two patches that share no file, the second one needs the first."""
    series = toy.series()
    first, second = series.patches
    return replace(series, patches=(first, replace(second, edits=second.edits[1:])))


def test_a_patch_that_another_one_needs_cannot_be_left_out_alone(toy: Toy) -> None:
    series = _needing(toy)
    assert not {edit.path for edit in series.patches[0].edits} & {edit.path for edit in series.patches[1].edits}
    with pytest.raises(Refused, match="right-answer cannot be left out: bring-hook needs it"):
        select(series, without=("right-answer",))
    assert select(series, without=("right-answer", "bring-hook")).slugs == ()


# ---- loading


def test_an_upstream_without_patches_has_an_empty_list(toy: Toy) -> None:
    shutil.rmtree(toy.home.patches("v1", "gear"))
    write(toy.home.root, {"patches/v1/gear/series": ""})
    series = toy.series("gear")
    assert series.patches == ()
    assert chains(series) == {}


@pytest.mark.case("patches/ is missing, wholly or in part", target="series", outcome="refused")
def test_a_copy_that_lost_its_list_or_a_line_of_it_is_refused(toy: Toy) -> None:
    """Else apply would take the series off, and call it applied."""
    listing = toy.home.patches("v1", "gear") / "series"
    listing.write_text("")
    with pytest.raises(UsageError, match=r"series:1: .* found none for more-gears\.patch"):
        toy.series("gear")
    listing.unlink()
    with pytest.raises(UsageError, match="expected the list of the series, found no such file"):
        toy.series("gear")


def test_a_patch_that_is_listed_and_missing_is_named(toy: Toy) -> None:
    (toy.home.patches("v1", "toy") / "right-answer.patch").unlink()
    with pytest.raises(UsageError, match=r"/series:1: .*right-answer\.patch: the series names this patch"):
        toy.series()


def test_a_patch_under_another_name_is_refused_with_both_names(toy: Toy) -> None:
    folder = toy.home.patches("v1", "toy")
    (folder / "right-answer.patch").rename(folder / "wrong-answer.patch")
    write(folder, {"series": "wrong-answer\nbring-hook\n"})
    with pytest.raises(UsageError, match=r"expected the trailer `Slug: wrong-answer`, found 'right-answer'"):
        toy.series()


@pytest.mark.case("an overlay file that was edited by hand", target="series", outcome="refused")
def test_an_overlay_file_that_is_missing_or_edited_by_hand_is_refused(toy: Toy) -> None:
    file = toy.home.overlay("toy") / HOOK
    file.write_text("HOOK = False\n")
    with pytest.raises(UsageError) as error:
        toy.series()
    assert str(file) in error.value.what
    assert blob_id(b"HOOK = True\n") in error.value.what
    assert blob_id(b"HOOK = False\n") in error.value.what
    file.unlink()
    with pytest.raises(UsageError, match=r"hook\.py: bring-hook names it as blob .* and it is no file"):
        toy.series()


@pytest.mark.parametrize("value", ["", HOOK, f"{HOOK} e7f7", f"../toy/{HOOK} {blob_id(SECOND[HOOK].encode())}"])
def test_an_overlay_trailer_that_is_not_a_path_and_its_blob_is_refused(toy: Toy, value: str) -> None:
    """Also one that leaves the overlay folder, although the file it leads to is the right one."""
    file = toy.home.patches("v1", "toy") / "bring-hook.patch"
    line = f"Overlay: {HOOK} {blob_id(SECOND[HOOK].encode())}"
    assert line in file.read_text()
    file.write_bytes(file.read_bytes().replace(line.encode(), f"Overlay: {value}".encode()))
    with pytest.raises(UsageError) as error:
        toy.series()
    assert error.value.what.startswith(f"{file}:")


@pytest.mark.case("a damaged series file", target="series", outcome="refused")
@pytest.mark.parametrize(
    ("listing", "line"),
    [
        (b"right-answer\nright-answer\n", 2),
        (b"bring-hook\n\n\xff\n", 3),
        (b"../toy/right-answer\n", 1),
        (b"# note\n", 1),
        (b"right-answer\nbring-hook right-answer\n", 2),
    ],
)
def test_a_listing_that_is_not_one_slug_a_line_is_refused_by_its_line(toy: Toy, listing: bytes, line: int) -> None:
    file = toy.home.patches("v1", "toy") / "series"
    file.write_bytes(listing)
    with pytest.raises(UsageError) as error:
        toy.series()
    assert error.value.what.startswith(f"{file}:{line}: expected the slugs of the series")
    assert error.value.todo
    assert main(["lint"]) == 1


@pytest.mark.case("a series file that names a patch of another folder", target="export", outcome="refused")
def test_an_export_deletes_nothing_outside_its_folder_whatever_the_listing_says(toy: Toy) -> None:
    """What a listing names and the branch lacks is a patch to delete: a name that climbs must not be one."""
    clone = applied(toy)
    (toy.home.patches("v1", "toy") / "series").write_bytes(b"right-answer\nbring-hook\n../gear/more-gears\n")
    before = snapshot(toy.root)
    assert main(["export", str(clone)]) == 2
    assert snapshot(toy.root) == before


def test_a_sentence_about_a_patch_points_into_its_file(toy: Toy) -> None:
    folder = toy.home.patches("v1", "toy")
    file = folder / "bring-hook.patch"
    text = file.read_text()
    for old, new in (
        ("Slug: bring-hook", "Slug: other"),
        ("Overlay: ", "Overlay: ../"),
        ("Subject: ", "Object: "),
        ("diff --git a/python/toy/dos.py", "diff --git a/python/toy/so.py"),
    ):
        file.write_text(text.replace(old, new, 1))
        with pytest.raises(UsageError) as error:
            toy.series()
        assert error.value.what.startswith(f"{file}:{text[: text.index(old)].count(chr(10)) + 1}: ")


@pytest.mark.case("a patch without any change", target="series", outcome="refused")
def test_a_patch_that_lost_its_diff_is_refused(toy: Toy) -> None:
    """It would count as applied nowhere, and say nothing."""
    file = toy.home.patches("v1", "toy") / "right-answer.patch"
    whole = file.read_text()
    file.write_text(whole.partition("\n\ndiff --git ")[0] + "\n")
    with pytest.raises(UsageError, match=r"right-answer\.patch:\d+: expected a diff or an `Overlay:` trailer"):
        toy.series()
    file.write_text(whole.replace("\n\ndiff --git ", "\ndiff --git "))
    with pytest.raises(UsageError, match=r"right-answer\.patch:\d+: expected no diff in the message"):
        toy.series()


def test_a_series_with_windows_line_ends_in_its_listing_is_the_same(toy: Toy) -> None:
    before = toy.series()
    (toy.home.patches("v1", "toy") / "series").write_bytes(b"right-answer\r\nbring-hook\r\n")
    assert toy.series() == before


def test_the_slug_order_is_the_order_of_the_commits(toy: Toy) -> None:
    clone = applied(toy)
    subjects = git(clone, "log", "--reverse", "--format=%s", f"{toy.pin().commit}..HEAD").split("\n")[:-1]
    assert subjects == [patch.subject for patch in toy.series().patches]
