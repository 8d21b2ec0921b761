"""verify --on-gpu: the checks of tests/on_gpu in the environment that is asked, on its card, and the file to send."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import report
from ..errors import Missing, UsageError
from ..queue.environment import Environment, misfits, misfits_said
from ..queue.pins import Line
from ..queue.target import Report
from ..queue.transaction import replace_file
from ..serving import evidence
from ._options import RUNNING, Wanted, folder, given
from ._show import as_json, show_target
from ._targets import one_line, open_packages, reports

CHECKS = Path("tests", "on_gpu")


def add_on_gpu(made: argparse.ArgumentParser) -> None:
    """Its options."""
    made.add_argument(
        "--on-gpu", type=given, nargs="*", metavar="SLUG",
        help="run what these patches (default: all) must show on a real card, in the installed environment",
    )  # fmt: skip
    made.add_argument(
        "--evidence", type=folder, metavar="DIR",
        help="where --on-gpu writes its file (default: docs/evidence where that is, else here)",
    )  # fmt: skip


def check_on_gpu(options: argparse.Namespace) -> None:
    """The options that go together.

    Raises:
        UsageError: some do not.
    """
    if options.on_gpu is None:
        if options.evidence:
            # why: it would be ignored
            raise UsageError("--evidence is where --on-gpu writes.", "Give --on-gpu too, or leave it out.")
        return
    if options.checkouts or options.into:
        # why: what runs on the card is what an interpreter imports, and a checkout alone is imported by none
        raise UsageError(
            "--on-gpu was given together with checkouts.", "Name the environment: --installed PATH/bin/python."
        )
    if options.through or options.without or options.red_green is not None:
        # why: evidence is of a whole series, by its digest
        raise UsageError(
            "--on-gpu says what the whole series shows on a card.",
            "Leave --through, --without and --red-green out; name single patches behind --on-gpu.",
        )


def on_gpu(asked: Wanted, options: argparse.Namespace) -> int:
    """Runs the checks and writes the file; 0 where all is shown on SM12x, else 1."""
    runner = _runner(asked)
    odd: list[str] = []
    packages = open_packages(asked, options.installed or RUNNING, lambda line, there: odd.extend(_odd(line, there)))
    found = reports(asked, packages)
    patches = _asked(found, options.on_gpu, runner.parent)
    python = _python(options.installed)
    machine = evidence.ask_machine(python, runner)
    place = _place(options.evidence)
    results = []
    for patch in patches:
        report.say(f"{patch.slug}: running its check on {machine.name}")
        results.append(evidence.run_check(python, runner, patch, machine.is_sm12x))
    targets = [evidence.Ran(one.upstream, one.version, one.digest, one.expected_digest, one.ok) for one in found]
    said = evidence.evidence(one_line(packages) or "", machine, targets, odd, results)
    file = place / evidence.file_name(machine, targets)
    replace_file(file, json.dumps(said, indent=2).encode() + b"\n")
    _show(asked, found, said, file)
    return 0 if said["all_shown"] else 1


def _runner(asked: Wanted) -> Path:
    runner = asked.home.root / CHECKS / "run.py"
    if not runner.is_file():
        # why: a copy without the checks would show nothing and say so of every patch
        raise Missing(f"{runner}: the checks for a card are not there.", "Run it from a clone of the project.")
    return runner


def _odd(line: Line, environment: Environment) -> list[str]:
    """Noted instead of refused: on a card that says nothing about SM120 the checks are still worth a run."""
    return misfits_said(misfits(line, environment))


def _asked(found: Sequence[Report], slugs: Sequence[str], checks: Path) -> list[evidence.Asked]:
    """The patches to speak of, in the order of the series.

    Raises:
        UsageError: a slug is in none of the series.
    """
    patches = [
        evidence.Asked(state.slug, one.upstream, state.state.value, _check_of(checks, state.slug).is_file())
        for one in found
        for state in one.patches
    ]
    known = [patch.slug for patch in patches]
    unknown = [slug for slug in slugs if slug not in known]
    if unknown:
        # why: a slug that is passed over would look shown
        raise UsageError(f"The series have no patch {', '.join(unknown)}.", f"They have {', '.join(known)}.")
    return [patch for patch in patches if patch.slug in slugs or not slugs]


def _check_of(checks: Path, slug: str) -> Path:
    return checks / f"check_{slug.replace('-', '_')}.py"


def _python(installed: str | None) -> str:
    """The interpreter as it can be started from any folder."""
    if installed in (None, RUNNING):
        return sys.executable
    return os.path.abspath(installed) if os.sep in installed else installed


def _place(named: Path | None) -> Path:
    """The folder of the evidence: in a clone of ours its own, else the current one.

    It is tried before the checks: a run may take an hour.
    """
    usual = Path("docs", "evidence")
    place = named or (usual if usual.is_dir() else Path())
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=place):
        return place


def _show(asked: Wanted, found: Sequence[Report], said: dict[str, Any], file: Path) -> None:
    if asked.json:
        targets = [as_json(one) for one in found]
        answer = {"line": said["line"], "ok": said["all_shown"], "targets": targets, "on_gpu": said}
        report.show_json("verify", {**answer, "evidence": str(file)})
        return
    for one in found:
        show_target(one)
    rows = [(one["slug"], one["outcome"], f"{one['seconds']:.0f} s", one["said"]) for one in said["results"]]
    report.show_table("on the card", ("patch", "outcome", "time", "what was seen"), rows)
    report.show(said["says"])
    report.show(f"written to {file}; docs/evidence/README.md says how to send it")
