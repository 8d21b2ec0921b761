"""A series: the ordered patches of one upstream on one line, the chains they form, and selections of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import Refused, UsageError
from .blobs import blob_id, digest
from .home import Home
from .mail import read_patch, trailer_at
from .patch import SLUG, Edit, Patch
from .paths import is_plain
from .pins import Pin
from .place import place
from .transaction import read_file

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
        Refused: a patch was made on another blob than the one before it leaves, or no state could be told by the blobs.
    """
    found: dict[str, Chain] = {}
    for patch in series.patches:
        for edit in patch.edits:
            _check_folders(patch.slug, edit.path, found)
            before = found.get(edit.path) or Chain(edit.mode, (edit.old,), ())
            if before.points[-1] != edit.old:
                # why: patches that do not follow each other fit only by fuzz
                raise Refused(
                    f"{patch.slug}: {edit.path} should be made on blob {before.points[-1]}, "
                    f"which {before.slugs[-1]} leaves, and is made on {edit.old}.",
                    "Export the series again from its branch, where the patches follow each other.",
                )
            if edit.new in before.points:
                # why: a file that is one blob at two points of its chain would not tell which patches are on it
                raise Refused(
                    f"{patch.slug}: {edit.path} becomes blob {edit.new}, which it was before in the series.",
                    "Leave that file out of the patches, or make one patch of those between.",
                )
            found[edit.path] = Chain(edit.mode, (*before.points, edit.new), (*before.slugs, patch.slug))
    return found


def _check_folders(slug: str, path: str, found: Mapping[str, Chain]) -> None:
    """No path is a file in one patch and a folder in another: at no instant could both be whole."""
    folders = {path[: match.start()] for match in re.finditer("/", path)}
    other = next((known for known in found if known in folders or known.startswith(f"{path}/")), None)
    if other is not None:
        # why: a run that is cut between the two could not be undone file by file
        raise Refused(
            f"{slug}: one of {path} and {other} is a folder, and the series has both as files.",
            "Give the new file another path.",
        )


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
        UsageError: a file of it is missing or not named, or not of the form that `export` writes.
    """
    folder = home.patches(pin.line, pin.upstream)
    listing = folder / "series"
    _check_complete(listing)
    patches = []
    for line, name in _listed(listing):
        file = folder / f"{name}.patch"
        if not file.is_file():
            # why: a patch that is skipped leaves a server half patched (InferenceX#2704)
            raise UsageError(
                f"{listing}:{line}: {file}: the series names this patch, and there is no such file.",
                "Bring the file back, or take its name out of the series.",
            )
        patches.append(with_overlays(home, pin.upstream, _named(listing, name, file)))
    return Series(pin, tuple(patches))


def _check_complete(listing: Path) -> None:
    """The list is there, and so are no patches that it does not name."""
    if read_file(listing) is None:
        # why: a copy that lost its patches (.dockerignore, a sparse clone) would take the series off, and say `applied`
        raise UsageError(
            f"{listing}: expected the list of the series, found no such file.",
            "Bring patches/ back whole (git checkout -- patches); an upstream without patches has an empty list.",
        )
    names = {f"{name}.patch" for name in series_names(listing)}
    stray = next((file for file in sorted(listing.parent.glob("*.patch")) if file.name not in names), None)
    if stray:
        # why: a patch that lost its line in a merge would be skipped in silence
        raise UsageError(
            f"{listing}:{max(len(names), 1)}: expected a line for every patch beside it, found none for {stray.name}.",
            "Give it its line there, export again from the branch that has it, or move the file away.",
        )


def _named(listing: Path, name: str, file: Path) -> Patch:
    """The patch in a file, which says the name that the listing has for it, and which overlay files it brings."""
    patch = read_patch(file)
    if patch.slug != name:
        # why: status names a patch by its slug, so that it would speak of another one
        raise UsageError(
            f"{trailer_at(file, 'Slug:')}: expected the trailer `Slug: {name}`, found {patch.slug or 'none'!r}.",
            f"Name it the same in the trailer, in the file's name and in {listing}.",
        )
    if not patch.edits and not patch.overlays:
        # why: a patch without a change is always applied
        raise UsageError(
            f"{trailer_at(file, 'Slug:')}: expected a diff or an `Overlay:` trailer in the patch, found neither.",
            "Export it again from the series' branch, or take it out of the series.",
        )
    for value in patch.all("Overlay"):
        path, _, blob = value.rpartition(" ")
        if not is_plain(path) or not re.fullmatch(r"[0-9a-f]{40}", blob):
            # why: the blob is what makes the overlay file exact
            raise UsageError(
                f"{trailer_at(file, f'Overlay: {value}')}: expected `Overlay: PATH BLOB`, found {value!r}.",
                "Run tools/export.py on the series' branch; it writes the trailer from the commit's files.",
            )
    return patch


def series_names(listing: Path) -> list[str]:
    """The slugs in a `series` file, in order; none where there is no such file.

    Raises:
        UsageError: with file and line, when it is not one slug a line, each of them once.
    """
    return [name for _, name in _listed(listing)]


def _listed(listing: Path) -> list[tuple[int, str]]:
    """Line and slug. Blank lines and the line ends of Windows are let pass; `export` writes neither."""
    found: dict[str, int] = {}
    for line, raw in enumerate((read_file(listing) or b"").split(b"\n"), 1):
        name = raw.removesuffix(b"\r").decode("utf-8", "backslashreplace")
        if name and (name in found or not re.fullmatch(SLUG, name)):
            wrong = f"a second one (line {found[name]} has the first)" if name in found else "something else"
            # why: a name that comes twice would be applied twice, a strange one never
            raise UsageError(
                f"{listing}:{line}: expected the slugs of the series, each once and one a line, "
                f"found {wrong}: {name!r}.",
                "Mend that line by hand; tools/export.py reads this file before it writes it anew.",
            )
        if name:
            found[name] = line
    return [(line, name) for name, line in found.items()]


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
        # why: an overlay file that was edited alone is not what the patch was proved with
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
    check_needs(kept, series)
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
        # why: later patches were made on its bytes; leaving it out needs fuzz
        raise Refused(
            f"{slug} cannot be left out: {', '.join(later)} after it touch the same files.",
            "Leave nothing out, or stop before it with --through.",
        )


def check_needs(kept: Iterable[Patch], series: Series, there: Iterable[str] = ()) -> None:
    """What stays finds what it needs, among `kept` or what upstream has (`there`).

    Raises:
        Refused: a patch of the series that is left out is needed.
    """
    kept = tuple(kept)
    slugs = {*there, *(patch.slug for patch in kept)}
    for patch in kept:
        for need in patch.all("Needs"):
            if need in series.slugs and need not in slugs:
                # why: the patch says so itself: it builds on the other one's code
                raise Refused(f"{need} cannot be left out: {patch.slug} needs it.", f"Leave out {patch.slug} too.")
