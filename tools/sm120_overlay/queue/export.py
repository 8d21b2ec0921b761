"""Commits of a series' branch back into patch files, deterministically: nothing changes when nothing changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import Refused, UsageError
from .checkout import Checkout, read_commits
from .diff import parse_sections
from .git import Repository, read_objects, run
from .home import Home
from .mail import FIRST, parse_patch
from .transaction import FOLDER, Workplace, Write, begin, carry_out, finish, locked, read_file, recover

FORM = (
    "--no-renames", "--full-index", "--zero-commit", "--no-signature", "--no-stat", "--keep-subject", "--unified=3",
    "--diff-algorithm=myers", "--src-prefix=a/", "--dst-prefix=b/", "--no-ext-diff", "--no-textconv", "--text",
    "--no-encode-email-headers", "--no-notes", "--no-thread", "--no-attach", "--no-cover-letter", "--no-base",
    "--no-indent-heuristic", "--inter-hunk-context=0", "--no-from", "--no-to", "--no-cc", "--no-add-header",
)  # fmt: skip
OVERLAY = re.compile(r"^Overlay: (\S+)(?: [0-9a-f]{40})?$", re.MULTILINE)
AMEND = "Amend the commit on the series' branch, then export again; nothing was written."


@dataclass(frozen=True)
class Exported:
    """A series as files: what lies in its folder, and the overlay files it brings (path → bytes)."""

    files: Mapping[str, bytes]
    overlays: Mapping[str, bytes]


def export_commits(checkout: Checkout) -> Exported:
    """The commits pin..branch of the line's branch as a series' files.

    Raises:
        Refused: there is no such branch, or a commit cannot be a patch (no slug, a merge, two of one name).
    """
    repo = checkout.repo
    found = read_objects(repo, [checkout.ours])[checkout.ours]
    if found is None:
        raise Refused(
            f"{repo.path}: there is no branch {checkout.ours.removeprefix('refs/heads/')} to export.",
            "Apply the series there first (tools/apply.py), then commit on that branch.",
        )
    tip = found.id
    commits = read_commits(repo, tip, (checkout.base,))
    mails = _mails(repo, checkout.base, tip) if commits else []
    if len(mails) != len(commits):
        raise Refused(
            f"{repo.path}: {len(commits)} commits give {len(mails)} patches: an empty commit or a merge is among them.",
            AMEND,
        )
    files: dict[str, bytes] = {}
    overlays: dict[str, bytes] = {}
    for commit, mail in zip(commits, mails, strict=True):
        slug, data, brought = _as_patch(repo, commit.id, mail)
        if f"{slug}.patch" in files:
            raise Refused(f"{repo.path}: two commits have the slug {slug}.", AMEND)
        files[f"{slug}.patch"] = data
        overlays |= brought
    names = [name.removesuffix(".patch") for name in files]
    files["series"] = "".join(f"{name}\n" for name in names).encode()
    return Exported(files, overlays)


def _mails(repo: Repository, base: str, tip: str) -> list[bytes]:
    out = run(repo, "format-patch", "--stdout", *FORM, f"{base}..{tip}")
    mark = FIRST.encode() + b"\n"
    # A hunk's lines begin with ' ', '+', '-' or '\\', and lint keeps "From " out of messages.
    return [mark + part.rstrip(b"\n") + b"\n" for part in re.split(b"^" + re.escape(mark), out, flags=re.MULTILINE)[1:]]


def _as_patch(repo: Repository, commit: str, mail: bytes) -> tuple[str, bytes, dict[str, bytes]]:
    """Slug, the patch file without its overlay files, and those files."""
    where = f"commit {commit[:12]}"
    text = mail.decode("latin-1")
    head, _, diff = text.partition("\n\ndiff --git ")
    sections = parse_sections(where, "diff --git " + diff if diff else "")
    named = set(OVERLAY.findall(head))
    brought = {part.edit.path: part.edit for part in sections if part.edit.path in named}
    if named != brought.keys() or any(edit.old is not None for edit in brought.values()):
        raise UsageError(
            f"{where}: its Overlay trailers name {', '.join(sorted(named))}; expected new files of this commit.", AMEND
        )
    head = OVERLAY.sub(lambda match: f"Overlay: {match[1]} {brought[match[1]].new}", head)
    data = (head + "\n\n" + "".join(part.text for part in sections if part.edit.path not in named)).encode("latin-1")
    patch = parse_patch(where, data)
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", patch.slug):
        raise UsageError(f"{where} ({patch.subject}): expected a trailer `Slug: some-name`, found none.", AMEND)
    blobs = read_objects(repo, [str(edit.new) for edit in brought.values()])
    whole = {path: blobs[str(edit.new)] for path, edit in brought.items()}
    return patch.slug, data, {path: found.data for path, found in whole.items() if found is not None}


def changes(home: Home, checkout: Checkout, exported: Exported) -> list[Write]:
    """What of the project's files differs from the export; paths are below the project's root."""
    pin = checkout.pin
    folder = home.patches(pin.line, pin.upstream).relative_to(home.root)
    wanted: dict[str, bytes | None] = {str(folder / name): data for name, data in exported.files.items()}
    overlay = home.overlay(pin.upstream).relative_to(home.root)
    wanted |= {str(overlay / path): data for path, data in exported.overlays.items()}
    listed = read_file(home.root / folder / "series") or b""
    for slug in listed.decode().split():
        wanted.setdefault(str(folder / f"{slug}.patch"), None)
    before = {path: read_file(home.root / path) for path in wanted}
    return [Write(path, before[path], data) for path, data in wanted.items() if before[path] != data]


def write_export(home: Home, writes: list[Write]) -> None:
    """Writes patch files, overlay files and series; undone whole if it fails half way."""
    place = workplace(home)
    place.folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(place.folder):
        recover(place, lambda note: None)
        begin(place, writes, {})
        try:
            carry_out(place, writes)
        except BaseException:
            recover(place, lambda note: None)
            raise
        finish(place)


def workplace(home: Home) -> Workplace:
    """Where an export keeps its lock and journal: beside the patches, ignored by git."""
    return Workplace(home.root / "patches" / f".{FOLDER}", home.root)
