"""export: the commits of a series' branch as patch files; with --check, fail where that would change anything."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from .. import report
from ..errors import Refused, UsageError
from ..queue.checkout import Checkout
from ..queue.clean import check_finished
from ..queue.export import changes, export_commits, exporting, write_export
from ..queue.git import tip_of
from ..queue.home import command
from ..queue.lint import Finding, lint_export
from ..queue.transaction import Write
from ._options import Wanted, given, own_home, parser, wanted
from ._targets import named_folders, one_line, reading

EXAMPLES = """\
  export.py                           from the checkouts that apply.py made under build/
  export.py build/v0.5.9/sglang       from this one
  export.py --check                   in CI: exit 1 if the patch files are not what their commits give
  export.py --drop old-fix            the branch has no old-fix any more, and neither shall the series

Work on a patch with plain git on branch sm120/LINE (commit, amend, reorder), then export.

exit codes: 0 done, 1 refused (or --check found a difference), 2 usage
"""


def main(argv: list[str] | None = None) -> int:
    """Runs the verb."""
    made = parser("export", "Turn the commits of a series' branch back into patch files.", EXAMPLES)
    made.add_argument("--check", action="store_true", help="write nothing; exit 1 if something would change")
    made.add_argument(
        "--drop", type=given, action="append", default=[], metavar="SLUG",
        help="this patch leaves the series, since the branch does not have it any more (repeatable)",
    )  # fmt: skip
    options = made.parse_args(argv)
    with nullcontext() if options.check else exporting(own_home()):
        return _export(wanted(options), options)


def _export(asked: Wanted, options: argparse.Namespace) -> int:
    targets = reading(asked, named_folders(asked, options), None)
    checkouts = [target for target in targets if isinstance(target, Checkout)]
    _check_distinct(checkouts)
    rows = [(checkout, *_exported(asked, checkout)) for checkout in checkouts]
    sound = not any(findings for _, findings, _ in rows)
    if not options.check:
        _check_dropped([(checkout, part) for checkout, _, part in rows], options.drop)
    writes = [write for _, _, part in rows for write in part]
    if sound and writes and not options.check:
        write_export(asked.home, writes)
    ok = sound and not (options.check and writes)
    _show(asked, ok, options.check or not sound, rows)
    return 0 if ok else 1


def _check_distinct(checkouts: list[Checkout]) -> None:
    """Each series comes from one checkout, where nothing waits for the user."""
    one_line(checkouts)
    upstreams = [checkout.pin.upstream for checkout in checkouts]
    twice = next((upstream for upstream in upstreams if upstreams.count(upstream) > 1), None)
    if twice:
        # why: one of the two would overwrite the other one's patch files
        raise UsageError(f"Two checkouts of {twice} were named.", "Export from one of them.")
    for checkout in checkouts:
        check_finished(checkout)
        _check_head(checkout)


def _check_head(checkout: Checkout) -> None:
    """What HEAD has is what is exported."""
    tip = tip_of(checkout.repo, checkout.ours)
    if tip is not None and checkout.head not in (checkout.base, tip):
        # why: a commit made beside the branch would be passed over, and `nothing changed` be said
        raise Refused(
            f"{checkout.repo.path}: HEAD is {checkout.standing} at {checkout.head[:12]}; the series is branch "
            f"{checkout.our_name}, at {tip[:12]}.",
            f"{checkout.git} checkout {checkout.our_name}, and cherry-pick there what the series lacks.",
        )


def _check_dropped(rows: Sequence[tuple[Checkout, Sequence[Write]]], dropped: Sequence[str]) -> None:
    """A patch leaves the series only by name: a branch may lack it because it was applied with a selection."""
    gone = {
        Path(write.path).stem: checkout
        for checkout, writes in rows
        for write in writes
        if write.after is None and write.path.startswith("patches/")
    }
    for slug, checkout in gone.items():
        if slug not in dropped:
            # why: after apply --without or --through an export would delete the others' files, perhaps never committed
            raise Refused(
                f"{checkout.repo.path}: {checkout.our_name} lacks {slug}, which the series has.",
                f"If it shall leave the series: --drop {slug}. Else apply the whole series first "
                f"({command('apply')} {checkout.repo.path}), or take its commit back in.",
            )
    there = {commit.slug: checkout for checkout, _ in rows for commit in checkout.commits}
    kept = next((slug for slug in dropped if slug in there), None)
    if kept:
        # why: what the branch has is exported, and would only look dropped
        raise UsageError(
            f"--drop {kept}: expected a patch that the branch lacks, and {there[kept].repo.path} has it.",
            "Take its commit out first (git rebase -i), then export.",
        )


def _exported(asked: Wanted, checkout: Checkout) -> tuple[tuple[Finding, ...], list[Write]]:
    exported = export_commits(checkout)
    return lint_export(asked.home, checkout.pin, exported), changes(asked.home, checkout.pin, exported)


def _show(asked: Wanted, ok: bool, kept: bool, rows: list[tuple[Checkout, tuple[Finding, ...], list[Write]]]) -> None:
    if asked.json:
        targets = [
            {"upstream": checkout.pin.upstream, "path": str(checkout.repo.path), "kind": "checkout",
             "base": checkout.base, "head": checkout.head, "changed": [write.path for write in writes],
             "findings": [{"where": finding.where, "what": finding.what} for finding in findings]}
            for checkout, findings, writes in rows
        ]  # fmt: skip
        line = one_line([checkout for checkout, _, _ in rows])
        report.show_json("export", {"line": line, "ok": ok, "targets": targets})
        return
    for checkout, findings, writes in rows:
        for finding in findings:
            report.show(f"{checkout.pin.upstream}: {finding.where}: {finding.what}")
        for write in writes:
            report.show(f"{checkout.pin.upstream}: {_verb(kept, write)}: {write.path}")
        if not findings and not writes:
            report.show(f"{checkout.pin.upstream}: nothing changed")
    if any(findings for _, findings, _ in rows):
        report.show("Nothing was written: mend what is named above (commits by amending them), then export again.")


def _verb(kept: bool, write: Write) -> str:
    if kept:
        return "differs"
    return "removed" if write.after is None else "written"
