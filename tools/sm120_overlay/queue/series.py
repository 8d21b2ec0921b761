"""A series: the ordered patches of one upstream on one line, the chains they form, and selections of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import Refused, UsageError
from .blobs import blob_id, digest
from .home import Home
from .mail import read_patch
from .patch import Edit, Patch
from .paths import is_plain
from .pins import Pin
from .place import place

OVERLAY_MODE = "100644"


@dataclass(frozen=True)
class Series:
    """The patches of one upstream on one line, in order."""

    pin: Pin
    patches: tuple[Patch, ...]

    @property
    def slugs(self) -> tuple[str, ...]:
        """The names of its patches, in order."""
        return tuple(patch.slug for patch in self.patches)

    @property
    def digest(self) -> str:
        """The name of what runs when exactly this is applied."""
        return observed_digest(self, {path: chain.points[-1] for path, chain in chains(self).items()})


@dataclass(frozen=True)
class Chain:
    """The blobs one file goes through: `points[0]` at the pin, then one after each patch named in `slugs`."""

    mode: str
    points: tuple[str | None, ...]
    slugs: tuple[str, ...]


def chains(series: Series) -> dict[str, Chain]:
    """Path → chain for every file the series touches.

    Raises:
        Refused: a patch was made on another blob than the one before it leaves.
    """
    found: dict[str, Chain] = {}
    for patch in series.patches:
        for edit in patch.edits:
            before = found.get(edit.path) or Chain(edit.mode, (edit.old,), ())
            if before.points[-1] != edit.old:
                raise Refused(
                    f"{patch.slug}: {edit.path} should be made on blob {before.points[-1]}, "
                    f"which {before.slugs[-1]} leaves, and is made on {edit.old}.",
                    "Export the series again from its branch, where the patches follow each other.",
                )
            found[edit.path] = Chain(edit.mode, (*before.points, edit.new), (*before.slugs, patch.slug))
    return found


def contents(series: Series, base: Mapping[str, bytes | None]) -> list[dict[str, bytes | None]]:
    """For each patch the files it changes, as they are after it (None: deleted).

    Args:
        base: the bytes at the pin of every touched file that exists there.

    Raises:
        Refused: a file is not the one the patch was made on.
    """
    now = dict(base)
    made: dict[str, str | None] = {}  # what `place` has just hashed, so that no byte is hashed twice
    steps = []
    for patch in series.patches:
        step = {edit.path: place(edit, now.get(edit.path), made.get(edit.path)) for edit in patch.edits}
        made |= {edit.path: edit.new for edit in patch.edits}
        now.update(step)
        steps.append(step)
    return steps


def observed_digest(series: Series, found: Mapping[str, str | None], more: Mapping[str, Chain] | None = None) -> str:
    """The digest of what a target holds: of the touched files, those that differ from the pin.

    Args:
        found: path → blob id now (None: no such file).
        more: files that count besides those the series touches.
    """
    counted = {**(more or {}), **chains(series)}
    changed = {
        path: (chain.mode, found.get(path)) for path, chain in counted.items() if found.get(path) != chain.points[0]
    }
    return digest(series.pin.base, changed)


def load_series(home: Home, pin: Pin) -> Series:
    """The series of a pin as its folder has it; empty when the line carries no patch of that upstream.

    Raises:
        UsageError: a file of it is missing, or not of the form that `export` writes.
    """
    folder = home.patches(pin.line, pin.upstream)
    listing = folder / "series"
    names = series_names(listing) if listing.is_file() else []
    patches = []
    for name in names:
        patch = read_patch(folder / f"{name}.patch")
        if patch.slug != name:
            raise UsageError(
                f"{folder / name}.patch: expected the trailer `Slug: {name}`, found {patch.slug or 'none'!r}.",
                f"Name it the same in the trailer, in the file's name and in {listing}.",
            )
        patches.append(with_overlays(home, pin.upstream, patch))
    return Series(pin, tuple(patches))


def series_names(listing: Path) -> list[str]:
    """The slugs in a `series` file, in order."""
    try:
        return listing.read_text(encoding="utf-8").split()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{listing}: expected the slugs of the series as UTF-8, found another byte at {error.start}.",
            "Write it with tools/export.py: one slug a line.",
        ) from None


def with_overlays(home: Home, upstream: str, patch: Patch) -> Patch:
    """The patch with the whole files that its `Overlay: PATH BLOB` trailers name, read from overlay/.

    Raises:
        UsageError: a file is missing or is not the blob that the trailer names.
    """
    whole = {path: _overlay_file(home, upstream, patch.slug, path, blob) for path, blob in patch.overlays}
    return brought(patch, whole)


def brought(patch: Patch, whole: Mapping[str, bytes]) -> Patch:
    """The patch with its overlay files as edits; `whole` has their bytes by path."""
    edits = (Edit(path, OVERLAY_MODE, None, blob_id(whole[path]), (), whole[path]) for path, _ in patch.overlays)
    return replace(patch, edits=(*patch.edits, *edits))


def _overlay_file(home: Home, upstream: str, slug: str, path: str, blob: str) -> bytes:
    file = home.overlay(upstream) / path
    whole = file.read_bytes() if is_plain(path) and file.is_file() else None
    found = blob_id(whole) if whole is not None else "no file"
    if whole is None or found != blob:
        raise UsageError(
            f"{file}: {slug} names it as blob {blob}, and it is {found}.",
            "Edit overlay files on the series' branch and run tools/export.py; it renews file and trailer together.",
        )
    return whole


def select(series: Series, through: str | None = None, without: tuple[str, ...] = ()) -> Series:
    """The series up to and with `through`, less the patches in `without`.

    Raises:
        Refused: a patch to leave out shares a file with a later one, or a patch that stays needs it.
    """
    patches = series.patches
    if through in series.slugs:
        patches = patches[: series.slugs.index(str(through)) + 1]
    for slug in without:
        _check_removable(patches, slug, without)
    kept = tuple(patch for patch in patches if patch.slug not in without)
    _check_needs(kept, series)
    return replace(series, patches=kept)


def _check_removable(patches: tuple[Patch, ...], slug: str, without: tuple[str, ...]) -> None:
    slugs = [patch.slug for patch in patches]
    if slug not in slugs:
        return
    at = slugs.index(slug)
    files = {edit.path for edit in patches[at].edits}
    staying = [patch for patch in patches[at + 1 :] if patch.slug not in without]
    later = [patch.slug for patch in staying if files & {edit.path for edit in patch.edits}]
    if later:
        raise Refused(
            f"{slug} cannot be left out: {', '.join(later)} after it touch the same files.",
            "Leave nothing out, or stop before it with --through.",
        )


def _check_needs(kept: tuple[Patch, ...], series: Series) -> None:
    slugs = {patch.slug for patch in kept}
    for patch in kept:
        for need in patch.all("Needs"):
            if need in series.slugs and need not in slugs:
                raise Refused(f"{need} cannot be left out: {patch.slug} needs it.", f"Leave out {patch.slug} too.")
