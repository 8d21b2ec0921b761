"""survey: say how every patch fares on each upstream commit or release of a range, and who breaks it first."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import report
from ..cache import publish_file
from ..errors import Missing, OverlayError, UsageError
from ..queue.build import base_contents, build
from ..queue.export import check_whole
from ..queue.git import Repository, commit_exists, git_path, is_repository, objects_alone, run
from ..queue.merging import check_git
from ..queue.pins import Lines, Pin, load_lines
from ..queue.ranges import Span, Step, find_span, main_of, releases_along, way
from ..queue.releases import chosen, release_steps, released
from ..queue.series import Series, load_series
from ..queue.sources import Source, find_source
from ..queue.survey import Prospect, first_end, survey
from ._options import Parser, count, folder, given, own_home
from ._surveyed import Surveyed, chart, shown, table_cells

WHAT = "Say how every patch fares on each upstream commit or release of a range, and which one breaks it first."
EXAMPLES = """\
  survey.py sglang --releases                         every release since the default line's pin
  survey.py sglang v0.5.9..v0.5.16 --history ~/src/sglang      every commit between two releases
  survey.py sglang --history ~/src/sglang --html survey.html --png survey.png    from the pin to main, with pictures
  survey.py sglang v0.5.9.. --history ~/src/sglang --first moe-backend-auto      one patch, by halves: seconds
  survey.py flashinfer 0.6.3..0.6.14 --releases --line v0.5.9 --json

A range is OLD..NEW, OLD.. or ..NEW: tags, versions or commits. OLD is the line's pin where it is left out, NEW upstream's main
or its newest release. Releases are cut on branches: the way leads from OLD back to main, and along it. Nothing is written
into your clone.

exit codes: 0 every patch goes onto NEW by itself (or NEW has it), 1 a patch would break, 2 usage, 4 something is missing
"""


@dataclass(frozen=True)
class Asked:
    """What was asked: a line's series, and a range (ends as they were typed, "" where left out)."""

    options: argparse.Namespace
    lines: Lines
    old: str
    new: str

    @property
    def upstream(self) -> str:
        """sglang or flashinfer."""
        return str(self.options.upstream)

    def pins(self) -> tuple[Pin, ...]:
        """The pins of this upstream, of the lines that may be meant."""
        lines = (self.lines.line(self.options.line),) if self.options.line else self.lines.lines
        found = tuple(pin for line in lines for pin in line.pins if pin.upstream == self.upstream)
        return found or (self.lines.line(self.options.line).pin(self.upstream),)  # which refuses


def main(argv: list[str] | None = None) -> int:
    """Runs the verb."""
    options = _parser().parse_args(argv)
    home = own_home()
    check_whole(home)
    check_git(Repository(home.root))
    asked = Asked(options, load_lines(home.pins), *_ends(options.range))
    _check_pictures(options)
    found = _of_releases(asked) if options.releases else _of_commits(asked)
    pictured = chart(found, options.repository) if False else None
    return 0 if pictured is None else 1


def _parser() -> Parser:
    made = Parser(
        prog="sm120-overlay survey", description=WHAT, epilog="examples:\n" + EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    made.add_argument("upstream", type=given, metavar="UPSTREAM", help="sglang or flashinfer")
    made.add_argument("range", type=given, nargs="?", default="..", metavar="OLD..NEW", help="what lies between")
    made.add_argument("--line", type=given, help="whose series (default: the line whose pin is OLD, or nearest to it)")
    made.add_argument(
        "--history", type=folder, action="append", default=[], metavar="CLONE",
        help="a clone or mirror that holds both ends and what is between (repeatable: the first that does)",
    )  # fmt: skip
    made.add_argument("--releases", action="store_true", help="the releases on the package index, instead of commits")
    made.add_argument("--pre", action="store_true", help="with --releases: release candidates too")
    made.add_argument("--first", type=given, metavar="SLUG", help="only what breaks or absorbs this patch, by halves")
    made.add_argument("--html", type=folder, metavar="FILE", help="a page with the heat map, for a browser")
    made.add_argument("--png", type=folder, metavar="FILE", help="the heat map as an image")
    made.add_argument("--jobs", type=count, default=os.cpu_count() or 1, metavar="N", help="processors to use")
    made.add_argument("--json", action="store_true", help="one JSON object on standard output (docs/json.md)")
    return made
