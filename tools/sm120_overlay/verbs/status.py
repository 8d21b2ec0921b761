"""status: the state of every patch on targets, computed from their files. Reads only."""

from __future__ import annotations

from .. import report
from ._at import add_at, at_commit
from ._options import add_selection, parser, wanted
from ._show import as_json, show_target
from ._submitted import add_upstream, submitted
from ._targets import named_folders, one_line, reading, reports

EXAMPLES = """\
  status.py                           what apply.py made under build/
  status.py ~/src/sglang              a checkout of your own
  status.py --installed               what the Python that runs this imports
  status.py --installed .venv/bin/python --json
  status.py --upstream                where every patch stands with its upstream, on every line

states: applied, pending, interrupted (a run was cut; the next apply undoes it first), drifted (someone edited a file)
exit codes: 0 everything applied, 1 something is not, 2 usage, 4 something is missing
"""


def main(argv: list[str] | None = None) -> int:
    """Runs the verb: 0 when every target is the series, 1 when one is not."""
    made = parser("status", "Show the state of every patch on the targets.", EXAMPLES)
    add_selection(made)
    add_at(made)
    add_upstream(made)
    options = made.parse_args(argv)
    if options.upstream:
        return submitted(options)
    asked = at_commit(wanted(options), options)
    targets = reading(asked, named_folders(asked, options), options.installed)
    found = reports(asked, targets)
    ok = all(target.ok for target in found)
    if asked.json:
        said = {"line": one_line(targets), "ok": ok, "targets": [as_json(target) for target in found]}
        report.show_json("status", said)
        return 0 if ok else 1
    for target in found:
        show_target(target)
    return 0 if ok else 1
