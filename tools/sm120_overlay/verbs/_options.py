"""The options that the verbs share, checked against pins and series and turned into data."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from ..errors import UsageError
from ..queue.carry import Carried
from ..queue.export import check_whole
from ..queue.home import Home, find_home
from ..queue.pins import Line, Lines, Pin, load_lines
from ..queue.series import Series, load_series, select

RUNNING = "this interpreter"


class Parser(argparse.ArgumentParser):
    """argparse, with its errors as ours: one sentence, and what to do."""

    def error(self, message: str) -> NoReturn:
        """Raises UsageError instead of exiting."""
        # why: an option that is ignored does something else than was asked
        raise UsageError(f"{self.prog}: {message}.", f"{self.prog} --help shows examples.")


@dataclass(frozen=True)
class Wanted:
    """What the command line asked for, as data; `carried` is how the series came to the commit of `--at`."""

    home: Home
    lines: Lines
    line: str | None = None
    only: tuple[str, ...] = ()
    through: str | None = None
    without: tuple[str, ...] = ()
    json: bool = False
    loaded: dict[Pin, Series] = field(default_factory=dict)
    carried: tuple[Carried, ...] = ()

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


def given(text: str) -> str:
    """A value as it was typed. An empty one (a script's variable that is not set) never stands for the default."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"expected a value, found {text!r}")
    return text


def count(text: str) -> int:
    """A number of at least one."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, found {text!r}")
    return int(text)


def folder(text: str) -> Path:
    """The same as a path that leads somewhere, be it to what is not there yet."""
    path = Path(given(text))
    try:
        path.resolve()
    except RuntimeError:
        raise argparse.ArgumentTypeError(f"expected a folder, found links in a circle at {text!r}") from None
    return path


def parser(verb: str, what: str, examples: str, first: tuple[str, str] | None = None) -> Parser:
    """A parser with the options about lines and checkouts.

    Args:
        first: name and help of an argument that comes before the checkouts.
    """
    made = Parser(
        prog=f"sm120-overlay {verb}",
        description=what,
        epilog="examples:\n" + examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if first:
        made.add_argument(first[0], type=given, metavar=first[0].upper(), help=first[1])
    made.add_argument(
        "checkouts", type=folder, nargs="*", default=[], metavar="CHECKOUT",
        help="the top folder of a git checkout at a pin",
    )  # fmt: skip
    made.add_argument(
        "--line", type=given, help="the line, such as v0.5.9 (default: the one a target is at, else pins.toml's)"
    )
    made.add_argument(
        "--only", type=given, metavar="UPSTREAM", action="append", default=[],
        help="sglang or flashinfer alone (repeatable)",
    )  # fmt: skip
    made.add_argument(
        "--into",
        type=folder,
        metavar="DIR",
        help="fresh checkouts are DIR/UPSTREAM (default: build/LINE/UPSTREAM here)",
    )
    made.add_argument("--json", action="store_true", help="one JSON object on standard output (docs/json.md)")
    return made


def add_selection(made: argparse.ArgumentParser) -> None:
    """The options about installed targets and parts of a series."""
    made.add_argument(
        "--installed", type=given, nargs="?", const=RUNNING, metavar="PYTHON",
        help="the packages that this Python (default: the one that runs this) imports",
    )  # fmt: skip
    made.add_argument("--through", type=given, metavar="SLUG", help="its series up to and with this patch")
    made.add_argument(
        "--without", type=given, metavar="SLUG", action="append", default=[],
        help="its series less this patch (repeatable)",
    )  # fmt: skip


def own_home() -> Home:
    """The data that belongs to this very copy of the tools."""
    return find_home()


def wanted(options: argparse.Namespace) -> Wanted:
    """The options checked against pins and series.

    Raises:
        UsageError: a line, an upstream or a slug is unknown, or options contradict each other.
    """
    home = own_home()
    check_whole(home)
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
        # why: a checkout and a package are moved in different ways, and one answer is for one kind
        raise UsageError("--installed was given together with checkouts.", "Name one kind of target a run.")
    if options.checkouts and options.into:
        # why: it would be ignored
        raise UsageError("--into was given together with checkouts.", "Fresh checkouts go to DIR; name no others.")
    named = [path.resolve() for path in options.checkouts]
    twice = next((path for path in named if named.count(path) > 1), None)
    if twice:
        # why: the second move would start from what the first one found
        raise UsageError(f"{twice} was named twice.", "Name each checkout once.")


def _check_slugs(asked: Wanted) -> None:
    named = [slug for slug in (asked.through, *asked.without) if slug]
    if not named:
        return
    owners = {slug: pin for line in asked.lines.lines for pin in line.pins for slug in asked.series(pin).slugs}
    for slug in named:
        if slug not in owners:
            # why: a slug that is passed over leaves the patch in (or out) in silence
            raise UsageError(f"No series has a patch {slug!r}.", f"The patches are {', '.join(sorted(owners))}.")
        if not asked.takes(owners[slug]):
            upstream = owners[slug].upstream
            # why: one of the two options would be ignored
            raise UsageError(f"{slug} is a patch on {upstream}, which --only leaves out.", "Leave one of them out.")
