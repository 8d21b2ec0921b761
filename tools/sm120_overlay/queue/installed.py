"""Brings a series onto an installed package, and off again to the very bytes that pip wrote.

The pinned originals of every touched file are kept in the package's .dist-info beside a manifest, so that a newer
tool with a newer series can take an older one off. Files are replaced, never written in place; RECORD changes line by
line and lists what we add, so that `pip uninstall` leaves nothing behind.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import Refused
from .blobs import blob_id, blob_of
from .environment import Package
from .hidden import check_compiled, check_imported_first
from .manifest import MANIFEST, SCHEMA, listed, manifest_bytes
from .pins import Pin
from .series import Series, chains, contents
from .transaction import FOLDER, Workplace, Write, check_folders, read_file, recover, transact


@dataclass(frozen=True)
class Installed:
    """An installed upstream: its pin, its package and what an earlier apply left there (None: nothing).

    `beside` names the other distributions of the environment that the line or the pin knows. `overwritten`: RECORD
    does not list the manifest, so some installer wrote the package again without taking our series off.
    """

    pin: Pin
    package: Package
    manifest: dict[str, Any] | None
    beside: frozenset[str] = frozenset()
    overwritten: bool = False

    @property
    def place(self) -> Workplace:
        """Where lock and journal lie: in the package's own .dist-info."""
        return Workplace(self.package.info / FOLDER, self.package.site)

    @property
    def files(self) -> dict[str, dict[str, Any]]:
        """Repository path → what the manifest says of it (`original`, `blob`, `record`)."""
        return dict(self.manifest["files"]) if self.manifest else {}


def reinstall(package: Package, overwritten: bool = False) -> str:
    """What to do where pip's own bytes are needed again."""
    clear = f"rm -r {package.info / FOLDER} && " if overwritten else ""  # no RECORD lists it: pip would leave it there
    return f"{clear}pip install --force-reinstall --no-deps {package.name}=={package.version}, then run this again."


def open_installed(pin: Pin, package: Package, beside: Iterable[str] = ()) -> Installed:
    """The installed package of a pin.

    Raises:
        Refused: pip's RECORD of it is missing, or the manifest of an earlier apply is damaged.
    """
    check_folders(package.site, [f"{package.info.name}/{FOLDER}/{MANIFEST}"])
    record = read_file(package.info / "RECORD")
    if record is None:
        # why: without it pip cannot take away what we add, and this is no installation of pip's
        raise Refused(f"{package.info}: expected pip's RECORD there, found none.", reinstall(package))
    manifest = package.info / FOLDER / MANIFEST
    try:
        said = json.loads(manifest.read_bytes()) if manifest.is_file() else None
        if said is not None and said["schema"] != SCHEMA:
            raise ValueError(said["schema"])
    except (ValueError, KeyError, TypeError):
        # why: it alone knows pip's originals, so that guessing could lose them
        raise Refused(
            f"{manifest}: expected what an earlier apply wrote, and it cannot be read.", reinstall(package)
        ) from None
    target = Installed(pin, package, said, frozenset(beside))
    listed = f"{package.info.name}/{FOLDER}/{MANIFEST}".encode() in record
    return replace(target, overwritten=bool(said) and not listed and not target.place.journal.is_file())


def observe_installed(target: Installed, paths: Sequence[str]) -> dict[str, str | None]:
    """Repository path → blob id of the installed file (None: no file); nothing but these files is read."""
    return {path: blob_of(read_file(_file(target, path))) for path in paths}


def change_installed(target: Installed, series: Series, whole: Series, dry_run: bool = False) -> bool:
    """Brings the package to exactly `series` (an empty one: back to pip's bytes); whether anything had to change.

    The caller holds the target's lock and has recovered it.

    Args:
        whole: all patches of the line, by which a target is known that lost its manifest.

    Raises:
        Refused: a file is not what pip or an earlier apply left, or something else runs instead of a
            changed source.
    """
    _check_manifest(target, whole)
    check_folders(target.package.site, [_installed(target, path) for path in {*chains(whole), *target.files}])
    _check_prebuilt(target, series)
    check_imported_first({_file(target, path): chain.points[-1] for path, chain in chains(series).items()})
    originals = _originals(target, sorted({*chains(series), *target.files}))
    _check_pinned(target, series, originals)
    wanted = dict(originals)
    for step in contents(series, originals):
        wanted |= step
    if _same(target, series, wanted):
        return False
    writes = _writes(target, series, originals, wanted)
    if not dry_run:
        transact(target.place, writes, {}, lambda note: None)
    return True


def recover_installed(target: Installed) -> bool:
    """Undoes a run on this package that was cut; whether there was one."""
    return recover(target.place, lambda note: None)


def _check_manifest(target: Installed, whole: Series) -> None:
    """Without a manifest every file must be pip's: what an earlier apply did could not be taken off."""
    known = chains(whole) if target.manifest is None else {}
    found = observe_installed(target, sorted(known))
    for path, chain in known.items():
        if found[path] in chain.points[1:] and chain.points[0] is None:
            raise _in_the_way(_file(target, path))
        if found[path] in chain.points[1:]:
            # why: someone else patched it; what pip had there is not known (Hyperloom#505)
            raise Refused(
                f"{_file(target, path)} is as a patch makes it ({_named(found[path])}), and the manifest that keeps "
                f"pip's original, {target.place.folder / MANIFEST}, is not there.",
                reinstall(target.package),
            )


def _check_pinned(target: Installed, series: Series, originals: Mapping[str, bytes | None]) -> None:
    """What pip left is what the series was made on."""
    for path, chain in chains(series).items():
        found, file = blob_of(originals[path]), _file(target, path)
        if found != chain.points[0] and chain.points[0] is None:
            raise _in_the_way(file)
        if found != chain.points[0]:
            # why: pip's own file has one blob; another patch tool was here (Hyperloom#511)
            raise Refused(
                f"{file} is not what {target.package.name} {target.package.version} has there: expected blob "
                f"{chain.points[0]}, found {_named(found)}.",
                reinstall(target.package),
            )


def _named(blob: str | None) -> str:
    return f"blob {blob}" if blob else "no file"


def _in_the_way(file: Path) -> Refused:
    # why: it is no file of pip's, so that nobody could give it back
    return Refused(f"{file} exists, and the series brings a new file there.", "Move it away, then run again.")


def _originals(target: Installed, paths: Sequence[str]) -> dict[str, bytes | None]:
    """Pip's bytes of every path, after checking that each file is exactly as the last apply (or pip) left it."""
    found = {}
    for path in paths:
        known = target.files.get(path)
        now = read_file(_file(target, path))
        check_compiled(_file(target, path))
        if known is None or (target.overwritten and blob_of(now) == known["original"]):
            found[path] = now
            continue
        if blob_of(now) != known["blob"]:
            # why: whoever edited it wanted that; putting our bytes there would lose it
            raise Refused(
                f"{_file(target, path)} was edited since it was patched: expected blob {known['blob']}, "
                f"found {_named(blob_of(now))}.",
                reinstall(target.package, target.overwritten),
            )
        found[path] = _original(target, known["original"])
    return found


def _original(target: Installed, blob: str | None) -> bytes | None:
    if blob is None:
        return None
    file = target.place.folder / "originals" / blob
    data = read_file(file)
    if data is None or blob_id(data) != blob:
        # why: without it the series could not be taken off again
        raise Refused(
            f"{file}: expected the pinned original with blob {blob}, and it is not there.", reinstall(target.package)
        )
    return data


def _same(target: Installed, series: Series, wanted: Mapping[str, bytes | None]) -> bool:
    """Whether files and manifest already say exactly this series."""
    now = observe_installed(target, sorted(wanted))
    same = all(now[path] == blob_of(data) for path, data in wanted.items())
    said = (target.manifest or {}).get("patches", [])
    return same and said == listed(series) and not target.overwritten


def _writes(
    target: Installed, series: Series, originals: Mapping[str, bytes | None], wanted: Mapping[str, bytes | None]
) -> list[Write]:
    touched = {path: (originals[path], wanted[path]) for path in wanted if wanted[path] != originals[path]}
    kept = {blob_id(data): data for data, _ in touched.values() if data is not None} if series.patches else {}
    record = read_file(target.package.info / "RECORD") or b""
    lines, before = _restored_record(record, target)
    manifest = _manifest(target, series, touched, lines) if series.patches else None
    ours = {f"originals/{blob}": data for blob, data in kept.items()} | ({MANIFEST: manifest} if manifest else {})
    files = {_installed(target, path): data for path, (_, data) in touched.items()}
    added = {f"{target.package.info.name}/{FOLDER}/{name}": data for name, data in ours.items()}
    after = _new_record(lines, files | added)
    left = [f"{target.package.info.name}/{FOLDER}/{name}" for name in _left(target)]
    gone = {name: None for name in (*before, *left) if name not in added}
    back = {_installed(target, path): data for path, data in wanted.items() if path not in touched}
    modes = {_installed(target, edit.path): int(edit.mode, 8) for patch in series.patches for edit in patch.edits}
    modes |= {entry["installed"]: entry["permissions"] for entry in target.files.values() if entry.get("permissions")}
    wanted_files = files | back | added | gone | {f"{target.package.info.name}/RECORD": after}
    return _differing(target.package.site, wanted_files, modes)


def _left(target: Installed) -> list[str]:
    """Our own files where an installer dropped them from RECORD."""
    folder = target.place.folder
    if not target.overwritten:
        return []
    return [MANIFEST, *(f"originals/{path.name}" for path in (folder / "originals").glob("*"))]


def _differing(site: Path, wanted: Mapping[str, bytes | None], modes: Mapping[str, int]) -> list[Write]:
    writes = []
    for name, data in wanted.items():
        before = read_file(site / name)
        if before != data:
            writes.append(Write(name, before, data, modes.get(name, 0o644) & 0o7777))
    return writes


def _manifest(
    target: Installed, series: Series, touched: Mapping[str, tuple[bytes | None, bytes | None]], lines: list[bytes]
) -> bytes:
    recorded = _by_name(lines)
    modes = {path: chain.mode for path, chain in chains(series).items()}
    files = {
        path: {
            "installed": _installed(target, path),
            "mode": modes[path],
            "original": blob_of(before),
            "blob": blob_of(after),
            "permissions": _permissions(target, path),
            "record": recorded.get(_installed(target, path), b"").decode("utf-8", "surrogateescape") or None,
        }
        for path, (before, after) in touched.items()
    }
    return manifest_bytes(series, files)


def _permissions(target: Installed, path: str) -> int | None:
    """Those of pip's file, which a deleted one gets back; None where pip has none."""
    if path in target.files:
        known = target.files[path].get("permissions")
        return int(known) if known else None
    file = _file(target, path)
    return file.stat().st_mode & 0o7777 if file.is_file() else None


def _restored_record(record: bytes, target: Installed) -> tuple[list[bytes], list[str]]:
    """RECORD's lines as pip wrote them, and the names of our own files that were listed in it."""
    prefix = f"{target.package.info.name}/{FOLDER}/"
    files = () if target.overwritten else target.files.values()  # then the lines are an installer's own already
    original = {entry["installed"]: entry["record"] for entry in files}
    ours: list[str] = []
    lines = []
    for line in record.splitlines(keepends=True):
        name = _name(line)
        if name.startswith(prefix):
            ours.append(name)
        elif name not in original:
            lines.append(line)
        elif original[name] is not None:
            lines.append(original[name].encode("utf-8", "surrogateescape"))
    return lines, ours


def _new_record(lines: Sequence[bytes], files: Mapping[str, bytes | None]) -> bytes:
    """RECORD with the lines of changed files renewed, and new files in front.

    A deleted file keeps its line (pip does not mind), so that undoing the deletion restores RECORD byte for byte.
    """
    end = b"\r\n" if lines and lines[0].endswith(b"\r\n") else b"\n"
    known = _by_name(lines)
    named = {name: _record_line(name, data, end) for name, data in files.items() if data is not None}
    new = [line for name, line in named.items() if name not in known]
    return b"".join(new + [named.get(_name(line), line) for line in lines])


def _record_line(name: str, data: bytes, end: bytes) -> bytes:
    named = io.StringIO()
    csv.writer(named, lineterminator="").writerow([name])
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return named.getvalue().encode() + b",sha256=%s,%d" % (digest, len(data)) + end


def _by_name(lines: Sequence[bytes]) -> dict[str, bytes]:
    return {_name(line): line for line in lines}


def _name(line: bytes) -> str:
    text = line.decode("utf-8", "surrogateescape")
    return next(csv.reader([text]))[0] if text.startswith('"') else text.partition(",")[0]


def hidden_patches(target: Installed, series: Series, applied: Collection[str]) -> dict[str, str]:
    """Slug → reason, of the patches to sources whose prebuilt libraries are installed and run instead.

    None where the patch that keeps such libraries from being loaded is among the `applied`.
    """
    found: dict[str, str] = {}
    if target.pin.prebuilt_guard in applied:
        return found
    for name, prefixes in target.pin.prebuilt:
        for patch in series.patches if name in target.beside else ():
            if any(edit.path.startswith(prefixes) for edit in patch.edits):
                found[patch.slug] = f"{name} is installed: its prebuilt libraries run instead of the patched source"
    return found


def _check_prebuilt(target: Installed, series: Series) -> None:
    hidden = hidden_patches(target, series, series.slugs)
    if hidden:
        names = ", ".join(name for name, _ in target.pin.prebuilt if name in target.beside)
        # why: FlashInfer's JIT prefers a library that is there: the patch would have no effect
        raise Refused(
            f"{names} is installed: its prebuilt libraries are used instead of the sources that "
            f"{', '.join(sorted(hidden))} change, so they would have no effect.",
            f"pip uninstall {names}, or leave those patches out with --without" + _guarding(target.pin),
        )


def _guarding(pin: Pin) -> str:
    return f"; with {pin.prebuilt_guard} in the selection they are not loaded." if pin.prebuilt_guard else "."


def _installed(target: Installed, path: str) -> str:
    known = target.files.get(path)  # as it was mapped when it was patched
    found = str(known["installed"]) if known else target.pin.installed_path(path)
    if found is None:
        # why: a wheel has no tests or docs; a patch on them would be applied in part
        raise Refused(f"{path} has no place in {target.package.name}.", "A series may touch only paths that map.")
    return found


def _file(target: Installed, path: str) -> Path:
    return target.package.site / _installed(target, path)
