"""The run-time manifest: what an apply made of a target, for the software that runs there (docs/json.md).

It is written beside the package or into a checkout's own git directory, and read by patched code at start. Our own
verbs never decide by a checkout's: where that stands is computed from its files. An installed package's keeps what
taking the series off needs besides (`installed`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .checkout import Checkout
from .series import Series, chains
from .transaction import Write, read_file

MANIFEST = "manifest.json"
SCHEMA = 1


def manifest_bytes(series: Series, files: Mapping[str, Mapping[str, Any]]) -> bytes:
    """The manifest of a target that carries exactly `series`; `files` says repository path → what is known of it."""
    pin = series.pin
    said = {
        "schema": SCHEMA,
        "line": pin.line,
        "upstream": pin.upstream,
        "version": pin.version,
        "digest": series.digest,
        "patches": listed(series),
        "files": dict(sorted(files.items())),
    }
    return json.dumps(said, indent=1).encode() + b"\n"


def listed(series: Series) -> list[dict[str, str]]:
    """Its patches as the manifest names them."""
    return [{"slug": patch.slug, "subject": patch.subject} for patch in series.patches]


def manifest_write(checkout: Checkout, series: Series) -> Write | None:
    """What makes the checkout's manifest say exactly `series` (none where that is empty); None where it does.

    Raises:
        Refused: something else than a file has its name.
    """
    path = checkout.place.folder / MANIFEST
    before, after = read_file(path), _wanted(series)
    root = checkout.repo.path
    # A linked worktree's git directory lies elsewhere: only there the path is an absolute one.
    name = path.relative_to(root) if path.is_relative_to(root) else path
    return Write(str(name), before, after) if before != after else None


def _wanted(series: Series) -> bytes | None:
    files = {
        path: {"installed": series.pin.installed_path(path), "mode": chain.mode, "blob": chain.points[-1]}
        for path, chain in chains(series).items()
    }
    return manifest_bytes(series, files) if series.patches else None
