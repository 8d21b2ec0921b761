"""survey: say how every patch fares on each upstream commit or release of a range, and who breaks it first."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from .. import report
from ..cache import publish_file
from ..errors import Missing, UsageError
from ..picture.image import check_pillow
from ..queue.build import base_contents, build
from ..queue.export import check_whole
from ..queue.git import Repository, commit_exists, git_path, is_repository, object_ids, objects_alone, run
from ..queue.home import Home
from ..queue.merging import check_git
from ..queue.pins import Lines, Pin, load_lines
from ..queue.ranges import Step, find_span, main_of, releases_along, way
from ..queue.releases import chosen, release_steps, released
from ..queue.series import Series, load_series
from ..queue.sources import find_source
from ..queue.survey import Prospect, first_end, survey
from ._options import Parser, count, folder, given, own_home
from ._pictured import page_of, picture_of
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
    """What was asked: the options, the home, its lines, and a range as it was typed ("": an end that is left out)."""

    options: argparse.Namespace
    home: Home
    lines: Lines
    old: str
    new: str

    @property
    def pins(self) -> tuple[Pin, ...]:
        """The pins of this upstream, of the line that is named or of all of them; the default line's comes first."""
        first = self.lines.line(self.options.line).pin(self.options.upstream)
        others = () if self.options.line else self.lines.all_pins()
        return tuple(dict.fromkeys((first, *(pin for pin in others if pin.upstream == first.upstream))))


def main(argv: list[str] | None = None) -> int:
    """Runs the verb."""
    options = _parser().parse_intermixed_args(argv)
    home = own_home()
    check_whole(home)
    check_git(Repository(home.root))
    asked = Asked(options, home, load_lines(home.pins), *_ends(options.range))
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


def _ends(text: str) -> tuple[str, str]:
    old, dots, new = text.partition("..")
    if not dots or ".." in new or new.startswith("."):
        # why: one revision alone, or `...`, would be taken for another range
        raise UsageError(f"{text}: expected OLD..NEW, OLD.. or ..NEW.", "Such as v0.5.9..v0.5.16, or v0.5.16..")
    return old, new


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


# Commits


@contextmanager
def _way_of_commits(asked: Asked) -> Iterator[tuple[Repository, Surveyed]]:
    history, old, new = _history(asked)
    pin = _nearest(history, asked, old)
    span = find_span(history, old or _of_pin(history, pin), new)
    commons = [git_path(history, "objects").parent]
    base = pin.commit
    if not (base and commit_exists(history, base)):
        source = find_source(pin, "pypi", report.say)
        base = source.commit
        commons.append(git_path(Repository(source.repository), "objects").parent)
    series = load_series(asked.home, pin)
    with objects_alone(*commons) as repo:
        build(repo, base, series, base_contents(repo, base, series))
        steps = way(repo, base, series, span)
        _check_same_upstream(history, series, steps[0])
        _check_blobs(history, repo, steps)
        names = asked.old or pin.tag, asked.new or re.sub("^refs/(heads|remotes)/", "", new)
        pictured = releases_along(history, span) if asked.options.html or asked.options.png else {}
        yield repo, Surveyed(series, steps, (), span, bool(asked.options.first), *names, pictured)


def _history(asked: Asked) -> tuple[Repository, str, str]:
    """The first repository that has both ends, and what they are called there ("": the old end is the pin)."""
    if not asked.options.history:
        # why: what upstream's commits did is nowhere but in its history
        raise Missing(
            "A survey of commits needs upstream's history, and none was named.",
            f"git clone --bare {asked.pins[0].repository}; name that folder with --history. Or ask about --releases.",
        )
    for path in asked.options.history:
        if not is_repository(path):
            # why: a history that is passed over makes the range another one
            raise UsageError(f"--history {path}: expected a git repository, found none.", "Name a clone or a mirror.")
    tried = []
    for path in asked.options.history:
        repo = Repository(path.resolve())
        old = _revision(repo, asked, asked.old) if asked.old else ""
        new = _revision(repo, asked, asked.new) if asked.new else main_of(repo)
        if old is not None and new is not None:
            return repo, old, new
        tried.append(f"{path} lacks {asked.old if old is None else asked.new or 'a main branch'}")
    # why: the commit beside the one that was meant gives another answer
    raise Missing(f"--history: {'; '.join(tried)}.", "Fetch it there (git fetch --tags), or name another end.")


def _revision(repo: Repository, asked: Asked, text: str) -> str | None:
    """What an end is called in a repository: as it was typed, as a release's tag, or as the commit of a pin of ours."""
    pinned = [pin.commit for pin in asked.pins if text in (pin.line, pin.tag, pin.version) and pin.commit]
    names = [text, f"v{text}", *pinned]
    return next((name for name in names if not name.startswith("-") and commit_exists(repo, name)), None)


def _nearest(history: Repository, asked: Asked, old: str) -> Pin:
    """The pin that the old end is, or that is the fewest commits away from it."""
    pins = asked.pins
    if not old or len(pins) == 1:
        return pins[0]
    known = [pin for pin in pins if pin.commit and commit_exists(history, pin.commit)]
    away = {pin: run(history, "rev-list", "--count", f"{pin.commit}...{old}") for pin in known}
    return min(known, key=lambda pin: int(away[pin]), default=pins[0])


def _of_pin(history: Repository, pin: Pin) -> str:
    """The pinned commit, which is the old end where none is named."""
    if not (pin.commit and commit_exists(history, pin.commit)):
        # why: a range must begin somewhere
        raise Missing(
            f"{history.path} does not hold {pin.upstream} {pin.tag} ({pin.commit or 'its commit is not known yet'}).",
            "Fetch it there (git fetch --tags), or name where to begin: OLD..",
        )
    return pin.commit


def _check_same_upstream(history: Repository, series: Series, first: Step) -> None:
    """The history is this upstream's: the old end has one of the touched files at least."""
    files = first.ground.files
    if files and not any(files.values()) and any(edit.old for patch in series.patches for edit in patch.edits):
        # why: in another project's history every patch would be `gone`
        raise UsageError(
            f"{history.path}: {first.commit.short} has none of the {len(files)} files that {series.pin.upstream}'s "
            f"patches change.",
            f"Name a history of {series.pin.upstream}.",
        )


def _check_blobs(history: Repository, repo: Repository, steps: Sequence[Step]) -> None:
    """Every version of the touched files is there."""
    blobs = {entry.blob for step in steps for entry in step.ground.files.values() if entry}
    lost = [blob for blob, found in object_ids(repo, sorted(blobs)).items() if found is None]
    if lost:
        # why: a partial clone would fetch them one by one, silently, for hours
        raise Missing(
            f"{history.path}: a partial clone; it lacks {len(lost)} of {len(blobs)} versions of the touched files.",
            f"git -C {history.path} fetch --refetch --no-filter, or name a whole clone.",
        )


# Releases


@contextmanager
def _way_of_releases(asked: Asked) -> Iterator[tuple[Repository, Surveyed]]:
    distribution = asked.pins[0].distribution
    versions = released(distribution, asked.options.pre)
    old, new = (_version(asked, end) for end in (asked.old, asked.new))
    pin = _nearest_release(asked, versions, old)
    between = chosen(versions, old or pin.version, new, distribution)
    source = find_source(pin, "pypi", report.say)
    series = load_series(asked.home, pin)
    with objects_alone(git_path(Repository(source.repository), "objects").parent) as repo:
        build(repo, source.commit, series, base_contents(repo, source.commit, series))
        steps = release_steps(repo, source.commit, series, between, asked.pins, report.say)
        yield repo, Surveyed(series, steps, (), None, bool(asked.options.first), between[0], between[-1])


def _version(asked: Asked, text: str) -> str:
    """The version that a release's tag, or a line of ours, names."""
    known = next((pin.version for pin in asked.pins if text in (pin.line, pin.tag)), text)
    return known.removeprefix("v")


def _nearest_release(asked: Asked, versions: Sequence[str], old: str) -> Pin:
    """The pin that the old end is, else the last before it, else the first of all."""
    pins = [pin for pin in asked.pins if pin.version in versions]
    if not old or old not in versions or not pins:
        return asked.pins[0]
    before = [pin for pin in pins if versions.index(pin.version) <= versions.index(old)]
    ordered = sorted(before or pins, key=lambda pin: versions.index(pin.version))
    return ordered[-1] if before else ordered[0]
