"""The options that the verbs share, checked against pins and series and turned into data."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from ..errors import UsageError
from ..queue.home import Home, find_home
from ..queue.pins import Line, Lines, Pin, load_lines
from ..queue.series import Series, load_series, select

RUNNING = "this interpreter"


class Parser(argparse.ArgumentParser):
    """argparse, with its errors as ours: one sentence, and what to do."""

    def error(self, message: str) -> NoReturn:
        """Raises UsageError instead of exiting."""
        raise UsageError(f"{self.prog}: {message}.", f"{self.prog} --help shows examples.")


@dataclass(frozen=True)
class Wanted:
    """What the command line asked for, as data."""

    home: Home
    lines: Lines
    line: str | None = None
    only: tuple[str, ...] = ()
    through: str | None = None
    without: tuple[str, ...] = ()
    json: bool = False
    loaded: dict[Pin, Series] = field(default_factory=dict)

    def series(self, pin: Pin) -> Series:
        """The whole series of a pin, read once a run."""
        if pin not in self.loaded:
            self.loaded[pin] = load_series(self.home, pin)
        return self.loaded[pin]

    def selected(self, pin: Pin) -> Series:
        """What --through and --without leave of it."""
        return select(self.series(pin), self.through, self.without)

    def pins(self, line: Line) -> tuple[Pin, ...]:
        """The upstreams of a line that were asked for."""
        return tuple(pin for pin in line.pins if self.takes(pin))

    def takes(self, pin: Pin) -> bool:
        """Whether --only lets it in."""
        return not self.only or pin.upstream in self.only


def parser(verb: str, what: str, examples: str) -> Parser:
    """A parser with the options about lines and checkouts."""
    made = Parser(
        prog=f"sm120-overlay {verb}",
        description=what,
        epilog="examples:\n" + examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("checkouts", nargs="*", metavar="CHECKOUT", help="the top folder of a git checkout at a pin")
    made.add_argument("--line", help="the line, such as v0.5.9 (default: the one a target is at, else pins.toml's)")
    made.add_argument(
        "--only", metavar="UPSTREAM", action="append", default=[], help="sglang or flashinfer alone (repeatable)"
    )
    made.add_argument(
        "--into", type=Path, metavar="DIR", help="fresh checkouts are DIR/UPSTREAM (default: build/LINE/UPSTREAM here)"
    )
    made.add_argument("--json", action="store_true", help="one JSON object on standard output (docs/json.md)")
    return made


def add_selection(made: argparse.ArgumentParser) -> None:
    """The options about installed targets and parts of a series."""
    made.add_argument(
        "--installed", nargs="?", const=RUNNING, metavar="PYTHON",
        help="the packages that this Python (default: the one that runs this) imports",
    )  # fmt: skip
    made.add_argument("--through", metavar="SLUG", help="its series up to and with this patch")
    made.add_argument(
        "--without", metavar="SLUG", action="append", default=[], help="its series less this patch (repeatable)"
    )


def wanted(options: argparse.Namespace) -> Wanted:
    """The options checked against pins and series.

    Raises:
        UsageError: a line, an upstream or a slug is unknown, or options contradict each other.
    """
    home = find_home()
    lines = load_lines(home.pins)
    _check_targets(options)
    chosen = lines.line(options.line)
    lines = Lines(chosen.name, (chosen,)) if options.line else lines
    for upstream in options.only:
        chosen.pin(upstream)
    given = vars(options)
    through, without = given.get("through"), tuple(given.get("without", ()))
    asked = Wanted(home, lines, options.line, tuple(options.only), through, without, options.json)
    _check_slugs(asked)
    return asked


def _check_targets(options: argparse.Namespace) -> None:
    if vars(options).get("installed") and (options.checkouts or options.into):
        raise UsageError("--installed was given together with checkouts.", "Name one kind of target a run.")
    if options.checkouts and options.into:
        raise UsageError("--into was given together with checkouts.", "Fresh checkouts go to DIR; name no others.")
    named = [Path(path).resolve() for path in options.checkouts]
    twice = next((path for path in named if named.count(path) > 1), None)
    if twice:
        raise UsageError(f"{twice} was named twice.", "Name each checkout once.")


def _check_slugs(asked: Wanted) -> None:
    named = [slug for slug in (asked.through, *asked.without) if slug]
    if not named:
        return
    owners = {slug: pin for line in asked.lines.lines for pin in line.pins for slug in asked.series(pin).slugs}
    for slug in named:
        if slug not in owners:
            raise UsageError(f"No series has a patch {slug!r}.", f"The patches are {', '.join(sorted(owners))}.")
        if not asked.takes(owners[slug]):
            upstream = owners[slug].upstream
            raise UsageError(f"{slug} is a patch on {upstream}, which --only leaves out.", "Leave one of them out.")
