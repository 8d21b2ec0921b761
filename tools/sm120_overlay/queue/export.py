"""Commits of a series' branch back into patch files, deterministically: nothing changes when nothing changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..errors import Refused, UsageError
from .blobs import blob_id
from .checkout import Checkout, read_commits
from .diff import DIFF_FORM, parse_sections
from .git import Repository, objects_alone, read_objects, run, tip_of
from .home import Home, command
from .mail import FIRST, parse_patch
from .patch import SLUG, Edit
from .pins import Pin
from .series import OVERLAY_MODE, Series, brought, series_names
from .transaction import FOLDER, Workplace, Write, locked, read_file, recover, transact

FORM = (
    *DIFF_FORM, "--zero-commit", "--no-signature", "--no-stat", "--keep-subject", "--no-encode-email-headers",
    "--no-notes", "--no-thread", "--no-attach", "--no-cover-letter", "--no-base", "--no-from", "--no-to", "--no-cc",
    "--no-add-header", "--no-signoff", "-O/dev/null",
)  # fmt: skip
OVERLAY = re.compile(r"^Overlay: (.+?)(?: ([0-9a-f]{40}))?$", re.MULTILINE)
AMEND = "Amend the commit on the series' branch, then export again; nothing was written."


@dataclass(frozen=True)
class Exported:
    """A series as files: what lies in its folder, and the overlay files it brings (path → bytes)."""

    files: Mapping[str, bytes]
    overlays: Mapping[str, bytes]


def export_commits(checkout: Checkout) -> Exported:
    """The commits pin..branch of the line's branch as a series' files.

    Raises:
        Refused: there is no such branch, or as `export_range`.
    """
    repo = checkout.repo
    tip = tip_of(repo, checkout.ours)
    if tip is None:
        # why: an export of nothing would empty the series
        raise Refused(
            f"{repo.path}: there is no branch {checkout.our_name} to export.",
            "Apply the series there first (tools/apply.py), then commit on that branch.",
        )
    return export_range(repo, checkout.where.common, checkout.base, tip)


def export_range(repo: Repository, common: Path, base: str, tip: str) -> Exported:
    """The commits base..tip of a repository as a series' files; `common` is the git directory of its objects.

    Raises:
        Refused: a commit cannot be a patch (no slug, a merge, two of one name).
    """
    commits = read_commits(repo, tip, (base,))
    mails = _mails(common, base, tip) if commits else []
    odd = [commit.id[:12] for commit in commits if len(commit.parents) != 1]
    if odd or len(mails) != len(commits):
        what = f"{', '.join(odd)} is a merge" if odd else "an empty commit is among them"
        # why: format-patch leaves out merges and empty commits without a word
        raise Refused(f"{repo.path}: {len(commits)} commits cannot each be one patch: {what}.", AMEND)
    files: dict[str, bytes] = {}
    overlays: dict[str, bytes] = {}
    for commit, mail in zip(commits, mails, strict=True):
        slug, data, brought = _as_patch(repo, commit.id, mail)
        if f"{slug}.patch" in files:
            # why: the second would overwrite the first one's file
            raise Refused(f"{repo.path}: two commits have the slug {slug}.", AMEND)
        files[f"{slug}.patch"] = data
        overlays |= brought
    names = [name.removesuffix(".patch") for name in files]
    files["series"] = "".join(f"{name}\n" for name in names).encode()
    return Exported(files, overlays)


def _mails(common: Path, base: str, tip: str) -> list[bytes]:
    with objects_alone(common) as bare:
        out = run(bare, "format-patch", "--stdout", *FORM, f"{base}..{tip}")
    mark = FIRST.encode() + b"\n"
    # A hunk's lines begin with ' ', '+', '-' or '\\', and lint keeps "From " out of messages.
    return [mark + part.rstrip(b"\n") + b"\n" for part in re.split(b"^" + re.escape(mark), out, flags=re.MULTILINE)[1:]]


def _as_patch(repo: Repository, commit: str, mail: bytes) -> tuple[str, bytes, dict[str, bytes]]:
    """Slug, the patch file without its overlay files, and those files."""
    where = f"commit {commit[:12]}"
    head, _, diff = mail.partition(b"\n\ndiff --git ")
    said = head.decode("utf-8", "surrogateescape").rstrip("\n")
    sections = parse_sections(where, "diff --git " + diff.decode("latin-1") if diff else "")
    named = {path for path, _ in OVERLAY.findall(said)}
    brought = {part.edit.path: part.edit for part in sections if part.edit.path in named}
    _check_overlays(where, named, list(brought.values()))
    said = OVERLAY.sub(lambda match: f"Overlay: {match[1]} {brought[match[1]].new}", said)
    rest = "".join(part.text for part in sections if part.edit.path not in named).encode("latin-1")
    data = said.encode("utf-8", "surrogateescape") + b"\n" + (b"\n" + rest if rest else b"")
    patch = parse_patch(where, data)
    if not re.fullmatch(SLUG, patch.slug):
        # why: the slug names the file and is how a patch is known across lines
        raise UsageError(f"{where} ({patch.subject}): expected a trailer `Slug: some-name`, found none.", AMEND)
    blobs = read_objects(repo, [str(edit.new) for edit in brought.values()])
    whole = {path: blobs[str(edit.new)] for path, edit in brought.items()}
    return patch.slug, data, {path: found.data for path, found in whole.items() if found is not None}


def _check_overlays(where: str, named: set[str], brought: list[Edit]) -> None:
    wrong = named - {edit.path for edit in brought}
    wrong |= {edit.path for edit in brought if edit.old is not None or edit.mode != OVERLAY_MODE}
    if wrong:
        # why: an overlay file is carried whole; a diff of it would be applied twice
        raise UsageError(
            f"{where}: its Overlay trailers name {', '.join(sorted(wrong))}; expected plain new files of this commit.",
            AMEND,
        )


def exported_series(pin: Pin, exported: Exported) -> Series:
    """The series that these files are, overlay files included."""
    slugs = exported.files["series"].decode().split()
    patches = (parse_patch(slug, exported.files[f"{slug}.patch"]) for slug in slugs)
    return Series(pin, tuple(brought(patch, exported.overlays) for patch in patches))


def changes(home: Home, pin: Pin, exported: Exported) -> list[Write]:
    """What of the project's files differs from the export; paths are below the project's root.

    Raises:
        Refused: another line brings an overlay file of the same path with other bytes.
    """
    folder = home.patches(pin.line, pin.upstream).relative_to(home.root)
    wanted: dict[str, bytes | None] = {str(folder / name): data for name, data in exported.files.items()}
    listing = home.root / folder / "series"
    for slug in series_names(listing):
        wanted.setdefault(str(folder / f"{slug}.patch"), None)
    overlay = home.overlay(pin.upstream).relative_to(home.root)
    wanted |= {str(overlay / path): data for path, data in _overlay_changes(home, pin, exported).items()}
    before = {path: read_file(home.root / path) for path in wanted}
    return [Write(path, before[path], data) for path, data in wanted.items() if before[path] != data]


def _overlay_changes(home: Home, pin: Pin, exported: Exported) -> dict[str, bytes | None]:
    """Overlay path → bytes now, None for those that this line brought and no line brings any more."""
    others = {
        path: (line.name, blob)
        for line in (home.root / "patches").glob("*")
        if line.name != pin.line
        for path, blob in named_overlays(line / pin.upstream).items()
    }
    for path, data in exported.overlays.items():
        line, blob = others.get(path, ("", blob_id(data)))
        if blob != blob_id(data):
            # why: all lines read the same file below overlay/, so that the other line would break
            raise Refused(
                f"{path}: line {line} brings it as blob {blob}, this one as {blob_id(data)}; an overlay file is one.",
                "Give it another path on one of the lines, or the same bytes on both.",
            )
    gone = named_overlays(home.patches(pin.line, pin.upstream)).keys() - exported.overlays.keys() - others.keys()
    return {**exported.overlays, **dict.fromkeys(gone)}


def named_overlays(folder: Path) -> dict[str, str]:
    """Path → blob of every overlay file that the patch files of a folder name."""
    texts = (file.read_bytes().decode("utf-8", "replace") for file in sorted(folder.glob("*.patch")))
    heads = (text.partition("\n\ndiff --git ")[0] for text in texts)
    return {path: blob for head in heads for path, blob in OVERLAY.findall(head)}


def write_export(home: Home, writes: list[Write]) -> None:
    """Writes patch files, overlay files and series; undone whole if it fails half way."""
    transact(workplace(home), writes, {}, lambda note: None)


@contextmanager
def exporting(home: Home) -> Iterator[None]:
    """Holds the project's series, after undoing an export that was cut: what is compared then are whole files.

    Raises:
        Refused: another export is at work.
    """
    place = workplace(home)
    place.folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(place.folder):
        recover(place, lambda note: None)
        yield


def check_whole(home: Home) -> None:
    """The series is all old or all new.

    Raises:
        Refused: an export was cut half way.
    """
    journal = workplace(home).journal
    if journal.is_file():
        # why: patches half old and half new would be applied, or pass lint, as if they were one series
        raise Refused(
            f"{journal}: an export was cut, so the patch files may be half old and half new.",
            f"Run {command('export')} again: it undoes that first.",
        )


def workplace(home: Home) -> Workplace:
    """Where an export keeps its lock and journal: beside the patches, ignored by git."""
    return Workplace(home.root / "patches" / f".{FOLDER}", home.root)
