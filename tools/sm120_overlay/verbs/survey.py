"""survey: say how every patch fares on each upstream commit or release of a range, and who breaks it first."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from .. import report
from ..cache import publish_file
from ..errors import UsageError
from ..picture.image import check_pillow
from ..queue.build import base_contents, build
from ..queue.export import check_whole
from ..queue.git import Repository, git_path, objects_alone
from ..queue.home import Home
from ..queue.merging import check_git
from ..queue.pins import load_lines
from ..queue.ranges import releases_along, way
from ..queue.releases import release_steps
from ..queue.series import load_series
from ..queue.sources import find_source
from ..queue.survey import Prospect, first_end, survey
from ._options import Parser, count, folder, given, own_home
from ._pictured import page_of, picture_of
from ._ranges import Range, check_blobs, check_same_upstream, find_releases, find_stretch, typed_range
from ._surveyed import Surveyed, show_surveyed

WHAT = "Say how every patch fares on each upstream commit or release of a range, and which one breaks it first."
EXAMPLES = """\
  survey.py sglang --releases                         every release since the default line's pin
  survey.py sglang v0.5.9..v0.5.16 --history ~/src/sglang      every commit between two releases
  survey.py sglang --history ~/src/sglang --html survey.html --png survey.png    from the pin to main, with pictures
  survey.py sglang v0.5.9.. --history ~/src/sglang --first moe-backend-auto      one patch, by halves: seconds
  survey.py flashinfer 0.6.3..0.6.14 --releases --line v0.5.9 --json

A range is OLD..NEW, OLD.. or ..NEW: tags, versions or commits. OLD is the line's pin where it is left out, NEW
upstream's main or its newest release. Releases are cut on branches: the way leads from OLD back to main, and along it
to NEW. Nothing is written into your clone.

exit codes: 0 every patch goes onto NEW by itself, or NEW has it, 1 a patch would break, 2 usage, 4 something is missing
"""
LONG = 100  # steps: more take over two seconds


@dataclass(frozen=True)
class Asked:
    """What was asked: the options, the home, and the range."""

    options: argparse.Namespace
    home: Home
    range: Range


def main(argv: list[str] | None = None) -> int:
    """Runs the verb."""
    options = _parser().parse_intermixed_args(argv)
    home = own_home()
    check_whole(home)
    check_git(Repository(home.root))
    ends = typed_range(options.range)
    named = Range(load_lines(home.pins), options.upstream, *ends, options.line, tuple(options.history))
    asked = Asked(options, home, named)
    _check(asked)
    with _way_of_releases(asked) if options.releases else _way_of_commits(asked) as (repo, found):
        told = replace(found, prospects=_prospects(options, repo, found))
    if options.html:
        publish_file(options.html, page_of(told).encode())
    if options.png:
        publish_file(options.png, picture_of(told))
    return show_surveyed(told, options.json, [path for path in (options.html, options.png) if path])


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
        help="a clone or mirror with both ends and what is between (repeatable: the first that has them)",
    )  # fmt: skip
    made.add_argument("--releases", action="store_true", help="the releases on the package index instead of commits")
    made.add_argument("--pre", action="store_true", help="with --releases: release candidates too")
    made.add_argument("--first", type=given, metavar="SLUG", help="only what breaks or absorbs this patch, by halves")
    made.add_argument("--html", type=folder, metavar="FILE", help="the heat map as a page")
    made.add_argument("--png", type=folder, metavar="FILE", help="the heat map as an image")
    made.add_argument("--jobs", type=count, default=min(os.cpu_count() or 1, 8), metavar="N", help="processors to use")
    made.add_argument("--json", action="store_true", help="one JSON object on standard output (docs/json.md)")
    return made


def _check(asked: Asked) -> None:
    options = asked.options
    if options.pre and not options.releases:
        # why: it would be ignored
        raise UsageError("--pre is about --releases.", "Leave it out, or ask about releases.")
    if options.releases and options.history:
        # why: one of the two would be ignored
        raise UsageError("--history was given together with --releases.", "Ask about commits or about releases.")
    if options.first and (options.html or options.png):
        # why: a search by halves looks at a dozen places; the rest of the picture would be made up
        raise UsageError("--first looks at a few places, which are no picture.", "Leave --first out for a picture.")
    if options.png:
        check_pillow()
    for path in (options.html, options.png):
        if path and path.is_dir():
            # why: it would be found out after minutes of work
            raise UsageError(f"{path}: expected a file to write, found a folder.", "Name a file in it.")


def _prospects(options: argparse.Namespace, repo: Repository, found: Surveyed) -> tuple[Prospect, ...]:
    if options.first:
        if options.first not in found.series.slugs:
            # why: a patch that is passed over would look as if nothing broke it
            raise UsageError(
                f"--first {options.first}: the series of {found.series.pin.line} has no such patch.",
                f"Its patches are {', '.join(found.series.slugs) or 'none'}; --line names another series.",
            )
        return (first_end(repo, found.series, options.first, found.steps),)
    said = f"{options.upstream}: {len(found.series.patches)} patches on {len(found.steps)} revisions"
    if len(found.steps) > LONG:
        report.say(said)
    with report.progress(said) as update:
        return survey([repo.path], found.series, found.steps, update, options.jobs)


@contextmanager
def _way_of_commits(asked: Asked) -> Iterator[tuple[Repository, Surveyed]]:
    found = find_stretch(asked.range)
    series, history, span = load_series(asked.home, found.pin), found.history, found.span
    with objects_alone(*found.commons) as repo:
        build(repo, found.base, series, base_contents(repo, found.base, series))
        steps = way(repo, found.base, series, span)
        check_same_upstream(history, series, steps[0])
        check_blobs(history, repo, steps)
        pictured = releases_along(history, span) if asked.options.html or asked.options.png else {}
        yield repo, Surveyed(series, steps, (), span, bool(asked.options.first), found.old, found.new, pictured)


@contextmanager
def _way_of_releases(asked: Asked) -> Iterator[tuple[Repository, Surveyed]]:
    pin, between = find_releases(asked.range, asked.options.pre)
    source = find_source(pin, "pypi", report.say)
    series = load_series(asked.home, pin)
    with objects_alone(git_path(Repository(source.repository), "objects").parent) as repo:
        build(repo, source.commit, series, base_contents(repo, source.commit, series))
        steps = release_steps(repo, source.commit, series, between, asked.range.pins, report.say)
        yield repo, Surveyed(series, steps, (), None, bool(asked.options.first), between[0], between[-1])
