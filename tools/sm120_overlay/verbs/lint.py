"""lint: what every patch must be. Reads the patch files alone."""

from __future__ import annotations

import argparse

from .. import report
from ..queue.export import check_whole
from ..queue.home import find_home
from ..queue.lint import lint_answers, lint_line
from ..queue.pins import load_lines
from ._options import Parser, given

EXAMPLES = """\
  python -m sm120_overlay lint                 every line
  python -m sm120_overlay lint --line v0.5.9 --json

exit codes: 0 nothing is wrong, 1 something is, 2 usage
"""


def main(argv: list[str] | None = None) -> int:
    """Runs the verb."""
    parser = Parser(
        prog="sm120-overlay lint", description="Check what every patch must be.", epilog="examples:\n" + EXAMPLES,
        allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--line", type=given, help="one line (default: all)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args(argv)
    home = find_home()
    check_whole(home)
    lines = load_lines(home.pins)
    chosen = (lines.line(options.line),) if options.line else lines.lines
    findings = [
        (line.name, finding)
        for line in chosen
        for finding in (*lint_line(home, line), *lint_answers(home, lines, line))
    ]
    if options.json:
        listed = [{"line": line, "where": finding.where, "what": finding.what} for line, finding in findings]
        report.show_json("lint", {"line": options.line, "ok": not findings, "targets": [], "findings": listed})
    else:
        for line, finding in findings:
            report.show(f"{line}: {finding.where}: {finding.what}")
        report.show(f"{len(findings)} finding{'s' * (len(findings) > 1)}" if findings else "nothing is wrong")
    return 1 if findings else 0
