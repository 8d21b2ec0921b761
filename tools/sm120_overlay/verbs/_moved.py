"""What rebase answers: a row for every patch, the series beside the old one, and what is wrong or left to do."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import report
from ..errors import OverlayError
from ..queue.carry import STOPPED, Carried, State
from ..queue.lint import Finding
from ..queue.moving import Moved
from ..queue.pins import Pin
from ._show import short


@dataclass(frozen=True)
class Answer:
    """A move as it stands: from `line` to `pin`, and what is to be said of it."""

    line: str
    pin: Pin
    moved: Moved | None = None
    range_diff: str = ""
    wrong: Sequence[Finding] = ()
    changed: bool = False
    planned: bool = False
    said: str = ""
    waits: OverlayError | None = None


def show_answer(options: argparse.Namespace, answer: Answer) -> int:
    """Prints it; the exit code."""
    stops = answer.planned and any(_waits(row) for row in answer.moved.rows) if answer.moved else False
    code = answer.waits.exit_code if answer.waits else 1 if answer.wrong or stops else 0
    if options.json:
        report.show_json("rebase", {"line": answer.pin.line, "ok": code == 0, "targets": [], **_as_json(answer)})
        return code
    if answer.moved is not None:
        heads = ("patch", "state", "decided", "what to know")
        title = (
            f"{answer.pin.upstream}: {answer.line} → {answer.pin.line} ({answer.pin.distribution} {answer.pin.version})"
        )
        report.show_table(title, heads, [_row(answer.moved, row) for row in answer.moved.rows])
    if answer.range_diff:
        report.show("range-diff:")
        report.show("\n".join(f"  {line}" for line in answer.range_diff.splitlines()))
    for finding in answer.wrong:
        report.show(f"{finding.where}: {finding.what}")
    for line in _verdict(options, answer):
        report.show(line)
    if answer.waits:
        report.show_error(answer.waits)
    return code


def _waits(row: Carried) -> bool:
    return row.state in (*STOPPED, State.ABSORBED) and not row.decided


def _row(moved: Moved, row: Carried) -> tuple[str, str, str, str]:
    absent = {one.slug: f"{one.state}: {one.why}" for one in moved.absent}
    decided = "left out" if row.slug in absent else "by a person" if row.decided else ""
    why = absent.get(row.slug) or "; ".join(filter(None, [", ".join(row.stopped), row.why]))
    return row.slug, row.state.value, decided, short(why)


def _verdict(options: argparse.Namespace, answer: Answer) -> list[str]:
    if answer.said:
        return [answer.said]
    if answer.moved is None or answer.moved.stopped or answer.planned or answer.wrong:
        return ["nothing was written"] if answer.planned else []
    if not answer.changed:
        return [f"{answer.pin.line} is what this move gives: nothing changed"]
    proof = "NOT proved (--unproved)" if options.unproved else "every patch is red without and green with"
    return [f"written: patches/{answer.pin.line}/{answer.pin.upstream} and pins.toml; {proof}"]


def _as_json(answer: Answer) -> dict[str, Any]:
    moved = answer.moved
    absent = {one.slug: f"{one.state}: {one.why}" for one in moved.absent} if moved else {}
    commits = {step.patch.slug: step.commit for step in moved.steps} if moved else {}
    patches = [
        {
            "slug": row.slug, "state": row.state.value, "decided": row.decided, "stopped": list(row.stopped),
            "reason": row.why or None, "absent": absent.get(row.slug), "commit": commits.get(row.slug),
        }
        for row in (moved.rows if moved else ())
    ]  # fmt: skip
    return {
        "upstream": answer.pin.upstream,
        "from": answer.line,
        "version": answer.pin.version,
        "waits_for": moved.stopped.slug if moved and moved.stopped else None,
        "changed": answer.changed,
        "patches": patches,
        "findings": [{"where": finding.where, "what": finding.what} for finding in answer.wrong],
        "note": answer.said or None,
        "error": report.error_json(answer.waits) if answer.waits else None,
    }
