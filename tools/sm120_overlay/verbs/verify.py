"""verify: exit 1 and the files unless the targets are exactly the series; with --red-green and --on-gpu, prove them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from .. import report
from ..errors import UsageError
from ..queue.environment import find_packages
from ..queue.installed import open_installed
from ..queue.pins import Pin
from ..queue.proof import Proof, proof_tree, prove
from ..queue.target import Report, inspect
from ..queue.wheels import fetch_wheel
from ..serving.nvcc.toolchain import describe_toolchain
from ._at import add_at, at_commit
from ._on_gpu import add_on_gpu, check_on_gpu, on_gpu
from ._options import Wanted, add_selection, count, given, parser, wanted
from ._show import as_json, show_target
from ._targets import named_folders, one_line, reading, reports

WHAT = "Fail unless every file that the series touches is exactly what the series makes, and in effect."
EXAMPLES = """\
  verify.py                           what apply.py made under build/
  verify.py --installed               in a start script: refuse to serve what is not the series
  verify.py --red-green               run every patch's test without the patch and with it
  verify.py --red-green pdl-switch --line v0.5.9 --json
  verify.py --installed PATH/bin/python --on-gpu
                                      on a machine with a card: what each patch shows there, and a file to send

exit codes: 0 equal (and proved, and shown on SM12x), 1 not, 2 usage, 4 something is missing
"""


def main(argv: list[str] | None = None) -> int:
    """Runs the verb."""
    made = parser("verify", WHAT, EXAMPLES)
    add_selection(made)
    add_at(made)
    made.add_argument(
        "--red-green", type=given, nargs="*", metavar="SLUG",
        help="run these patches' tests (default: all) on the series without them (red) and with them (green)",
    )  # fmt: skip
    made.add_argument("--jobs", type=count, default=os.cpu_count() or 1, metavar="N", help="trials at a time")
    add_on_gpu(made)
    options = made.parse_args(argv)
    asked = at_commit(wanted(options), options)
    check_on_gpu(options)
    if options.on_gpu is not None:
        return on_gpu(asked, options)
    if options.red_green is not None and (options.through or options.without):
        # why: green is a claim about the whole series, red about one patch
        raise UsageError("--red-green proves patches of the whole series.", "Name the slugs: --red-green SLUG.")
    if options.red_green is not None:
        return _red_green(asked, options)
    found = reports(asked, reading(asked, named_folders(asked, options), options.installed))
    return _answer(asked, found, {})


def _red_green(asked: Wanted, options: argparse.Namespace) -> int:
    """Proofs of the line's patches; beside them the targets that were named, else the trees the proofs stood on."""
    named = bool(options.checkouts or options.installed or options.into)
    targets = reading(asked, named_folders(asked, options), options.installed) if named else []
    line = asked.lines.line(one_line(targets) or asked.line)
    proofs = _proofs(asked, asked.pins(line), options.red_green, options.jobs)
    found = reports(asked, targets) if named else [_tree_report(asked, pin) for pin in asked.pins(line)]
    return _answer(asked, found, proofs)


def _proofs(asked: Wanted, pins: Sequence[Pin], slugs: Sequence[str], jobs: int) -> dict[str, Proof]:
    """Slug → proof over all upstreams.

    Raises:
        UsageError: a slug is in none of the series.
    """
    every = [asked.series(pin) for pin in pins]
    known = {slug for series in every for slug in series.slugs}
    unknown = [slug for slug in slugs if slug not in known]
    if unknown:
        # why: a slug that is passed over would look proved
        raise UsageError(f"The line has no patch {', '.join(unknown)}.", f"Its patches are {', '.join(sorted(known))}.")
    found: dict[str, Proof] = {}
    for series in every:
        chosen = [slug for slug in series.slugs if slug in slugs or not slugs]
        if chosen:
            proofs = prove(asked.home, series, chosen, {"nvcc": describe_toolchain()}, jobs, report.say)
            found |= {proof.slug: proof for proof in proofs}
    return found


def _tree_report(asked: Wanted, pin: Pin) -> Report:
    series = asked.series(pin)
    tree = proof_tree(series, fetch_wheel(pin, report.say))
    package = find_packages([str(tree)], [pin.distribution])[pin.distribution]
    return inspect(open_installed(pin, package), series, series)


def _answer(asked: Wanted, found: Sequence[Report], proofs: Mapping[str, Proof]) -> int:
    proved = all(proof.red.ok and proof.green.ok for proof in proofs.values())
    ok = proved and all(target.ok for target in found)
    if asked.json:
        line = found[0].line if found else asked.lines.line(asked.line).name
        targets = [_with_proofs(as_json(target), proofs) for target in found]
        report.show_json("verify", {"line": line, "ok": ok, "targets": targets})
        return 0 if ok else 1
    for target in found:
        show_target(target)
    if proofs:
        _show_proofs(proofs)
    report.show(_verdict(found, proved, bool(proofs)))
    return 0 if ok else 1


def _verdict(found: Sequence[Report], proved: bool, asked: bool) -> str:
    wrong = [f"{target.upstream} at {target.path}" for target in found if not target.ok]
    if wrong:
        return f"NOT the series: {', '.join(wrong)}"
    said = " every patch is red without and green with" if proved else " NOT every patch is proved"
    return "verified: the targets are the series" + (";" + said if asked else "")


def _with_proofs(target: dict[str, Any], proofs: Mapping[str, Proof]) -> dict[str, Any]:
    for patch in target["patches"]:
        proof = proofs.get(patch["slug"])
        if proof:
            patch |= {"red": asdict(proof.red), "green": asdict(proof.green)}
    return target


def _show_proofs(proofs: Mapping[str, Proof]) -> None:
    rows = []
    for proof in proofs.values():
        for colour, verdict in (("red", proof.red), ("green", proof.green)):
            said = "as it should be" if verdict.ok else "WRONG"
            rows.append(
                (
                    proof.slug,
                    colour,
                    said,
                    verdict.outcome,
                    f"{verdict.seconds:.1f} s",
                    " ".join(verdict.detail.split())[:100],
                )
            )
    report.show_table("red and green", ("patch", "trial", "verdict", "outcome", "time", "detail"), rows)
