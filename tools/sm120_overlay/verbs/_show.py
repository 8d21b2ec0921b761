"""How the verbs show a target: the table for people, the entry of the JSON contract for programs."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from .. import report
from ..queue.target import Report


def as_json(found: Report) -> dict[str, Any]:
    """A target in the JSON contract."""
    patches = [{**asdict(state), "state": state.state.value} for state in found.patches]
    return {
        "upstream": found.upstream,
        "path": str(found.path),
        "kind": found.kind,
        "base": found.base,
        "head": found.head,
        "digest": found.digest,
        "expected_digest": found.expected_digest,
        "patches": patches,
        "note": found.note,
    }


def show_target(found: Report) -> None:
    """The table of one target."""
    base = short(found.base or "not made yet")
    title = f"{found.upstream} {found.version} (line {found.line}, {found.kind}, {base})  {found.path}"
    rows = [
        (state.slug, state.state.value, short(state.commit or ""), short(state.reason or "")) for state in found.patches
    ]
    report.show_table(title, ("patch", "state", "commit", "reason"), rows)
    said = "as expected" if found.digest == found.expected_digest else f"expected {found.expected_digest}"
    report.show(f"  digest {found.digest} ({said})")
    if found.note:
        report.show(f"  note: {found.note}")


def short(text: str) -> str:
    """The text with its object ids cut to what a person compares; JSON has them whole."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{28}\b", r"\1", text)
