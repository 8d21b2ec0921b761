"""export: the commits of a series' branch as patch files; with --check, fail where that would change anything."""

from __future__ import annotations

from pathlib import Path

from .. import report
from ..errors import UsageError
from ..queue.checkout import Checkout, open_checkout
from ..queue.export import changes, export_commits, write_export
from ..queue.lint import Finding, lint_export
from ..queue.transaction import Write
from . import _targets as shared

EXAMPLES = """\
  export.py                           from the checkouts that apply.py made under build/
  export.py build/v0.5.9/sglang       from this one
  export.py --check                   in CI: exit 1 if the patch files are not what their commits give

Work on a patch with plain git on branch sm120/LINE (commit, amend, reorder), then export.

exit codes: 0 done, 1 refused (or --check found a difference), 2 usage
"""


def main(argv: list[str] | None = None) -> int:
    """Runs the verb."""
    parser = shared.parser("export", "Turn the commits of a series' branch back into patch files.", EXAMPLES)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if something would change")
    options = parser.parse_args(argv)
    if options.installed:
        raise UsageError("An installed package has no commits to export.", "Name a checkout.")
    asked = shared.wanted(options)
    paths = [Path(path) for path in options.checkouts] or shared.existing_folders(asked, options.into)
    checkouts = [open_checkout(path, asked.lines) for path in paths]
    rows = [(checkout, *_exported(asked, checkout)) for checkout in checkouts]
    sound = not any(findings for _, findings, _ in rows)
    writes = [write for _, _, part in rows for write in part]
    if sound and writes and not options.check:
        write_export(asked.home, writes)
    ok = sound and not (options.check and writes)
    _show(asked, ok, rows)
    return 0 if ok else 1


def _exported(asked: shared.Wanted, checkout: Checkout) -> tuple[tuple[Finding, ...], list[Write]]:
    exported = export_commits(checkout)
    return lint_export(asked.home, checkout.pin, exported), changes(asked.home, checkout, exported)


def _show(asked: shared.Wanted, ok: bool, rows: list[tuple[Checkout, tuple[Finding, ...], list[Write]]]) -> None:
    if asked.json:
        targets = [
            {"upstream": checkout.pin.upstream, "path": str(checkout.repo.path), "kind": "checkout",
             "base": checkout.base, "head": checkout.head, "changed": [write.path for write in writes],
             "findings": [{"where": finding.where, "what": finding.what} for finding in findings]}
            for checkout, findings, writes in rows
        ]  # fmt: skip
        line = shared.one_line([checkout for checkout, _, _ in rows])
        report.show_json("export", {"line": line, "ok": ok, "targets": targets})
        return
    for checkout, findings, writes in rows:
        for finding in findings:
            report.show(f"{checkout.pin.upstream}: {finding.where}: {finding.what}")
        for write in writes:
            report.show(f"{checkout.pin.upstream}: {'removed' if write.after is None else 'differs'}: {write.path}")
        if not findings and not writes:
            report.show(f"{checkout.pin.upstream}: nothing changed")
    if any(findings for _, findings, _ in rows):
        report.show("Nothing was written: amend the commits that are named above.")
