"""What the verbs share: their options about lines and targets, and opening the targets that were named."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from .. import report
from ..errors import Refused, UsageError
from ..queue.checkout import Checkout, find_checkout, open_checkout
from ..queue.environment import check_editable, check_imported, check_joint, find_environment, recognise
from ..queue.git import Repository
from ..queue.home import Home, find_home
from ..queue.installed import Installed, open_installed, recover_installed
from ..queue.move import recover_checkout
from ..queue.pins import Line, Lines, Pin, load_lines
from ..queue.series import Series, load_series, select
from ..queue.target import Report, Target, inspect
from ..queue.transaction import FOLDER, Workplace, locked

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
    line: str | None
    only: str | None
    through: str | None
    without: tuple[str, ...]
    json: bool
    loaded: dict[Pin, Series] = field(default_factory=dict)

    def series(self, pin: Pin) -> Series:
        """The whole series of a pin, read once a run."""
        if pin not in self.loaded:
            self.loaded[pin] = load_series(self.home, pin)
        return self.loaded[pin]

    def pins(self, line: Line) -> tuple[Pin, ...]:
        """The upstreams of a line that were asked for."""
        return (line.pin(self.only),) if self.only else line.pins


def parser(verb: str, what: str, examples: str) -> Parser:
    """A parser with the options that every verb about targets has."""
    made = Parser(
        prog=f"sm120-overlay {verb}",
        description=what,
        epilog="examples:\n" + examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("checkouts", nargs="*", metavar="CHECKOUT", help="the top folder of a git checkout at a pin")
    made.add_argument(
        "--installed", nargs="?", const=RUNNING, metavar="PYTHON",
        help="the packages that this Python (default: the one that runs this) imports",
    )  # fmt: skip
    made.add_argument("--line", help="the line, such as v0.5.9 (default: the one the target is at, else the newest)")
    made.add_argument("--only", metavar="UPSTREAM", help="sglang or flashinfer alone")
    made.add_argument("--through", metavar="SLUG", help="the series up to and with this patch")
    made.add_argument("--without", metavar="SLUG", action="append", default=[], help="the series less this patch")
    made.add_argument("--into", type=Path, metavar="DIR", help="fresh checkouts are at DIR/UPSTREAM (build/LINE)")
    made.add_argument("--json", action="store_true", help="one JSON object on standard output (docs/json.md)")
    return made


def wanted(options: argparse.Namespace) -> Wanted:
    """The options checked against pins and series.

    Raises:
        UsageError: a line, an upstream or a slug is unknown, or targets of two kinds are named.
    """
    home = find_home()
    lines = load_lines(home.pins)
    if options.installed and (options.checkouts or options.into):
        raise UsageError("--installed was given together with checkouts.", "Name one kind of target a run.")
    if options.checkouts and options.into:
        raise UsageError("--into was given together with checkouts.", "Fresh checkouts go to DIR; name no others.")
    named = [Path(path).resolve() for path in options.checkouts]
    twice = next((path for path in named if named.count(path) > 1), None)
    if twice:
        raise UsageError(f"{twice} was named twice.", "Name each checkout once.")
    chosen = lines.line(options.line)
    lines = Lines(chosen.name, (chosen,)) if options.line else lines
    if options.only:
        chosen.pin(options.only)
    asked = Wanted(home, lines, options.line, options.only, options.through, tuple(options.without), options.json)
    _check_slugs(asked)
    return asked


def _check_slugs(asked: Wanted) -> None:
    named = [slug for slug in (asked.through, *asked.without) if slug]
    if not named:
        return
    known = {slug for line in asked.lines.lines for pin in line.pins for slug in asked.series(pin).slugs}
    for slug in named:
        if slug not in known:
            raise UsageError(f"No series has a patch {slug!r}.", f"The patches are {', '.join(sorted(known))}.")


def series_of(asked: Wanted, pin: Pin) -> tuple[Series, Series]:
    """The whole series of a pin, and what was selected of it."""
    series = asked.series(pin)
    return series, select(series, asked.through, asked.without)


@contextmanager
def writing(asked: Wanted, paths: Sequence[Path], installed: str | None) -> Iterator[list[Target]]:
    """The targets, each locked, and recovered where a run on it was cut."""
    with ExitStack() as stack:
        if installed:
            yield [_held_package(stack, target) for target in open_packages(asked, installed)]
        else:
            yield _chosen(asked, [_held_checkout(stack, asked, path) for path in paths])


def _held_checkout(stack: ExitStack, asked: Wanted, path: Path) -> Checkout:
    where = find_checkout(path)
    place = Workplace(where.git_dir / FOLDER, path.resolve())
    repo = Repository(path.resolve(), (stack.enter_context(locked(place.folder)),))
    if recover_checkout(repo, where, place):
        report.say(f"{path}: a run was cut here; what it had done was undone first")
        where = find_checkout(path)
    return open_checkout(path, asked.lines, where, repo.locks)


def _held_package(stack: ExitStack, target: Installed) -> Installed:
    stack.enter_context(locked(target.place.folder))
    if recover_installed(target):
        report.say(f"{target.package.site}: a run was cut here; what it had done was undone first")
    return open_installed(target.pin, target.package, target.beside)


def reading(asked: Wanted, paths: Sequence[Path], installed: str | None) -> list[Target]:
    """The targets as they are, without touching them."""
    if installed:
        return list(open_packages(asked, installed))
    return _chosen(asked, [open_checkout(path, asked.lines) for path in paths])


def _chosen(asked: Wanted, checkouts: Sequence[Checkout]) -> list[Target]:
    """The checkouts of the upstream that --only names; the others are passed over, aloud."""
    chosen: list[Target] = []
    for checkout in checkouts:
        if asked.only in (None, checkout.pin.upstream):
            chosen.append(checkout)
        else:
            report.say(f"{checkout.repo.path} is {checkout.pin.upstream}: left alone, as --only {asked.only} asks")
    if checkouts and not chosen:
        raise UsageError(f"None of the checkouts is {asked.only}.", "Name one that is, or leave --only out.")
    return chosen


def open_packages(asked: Wanted, python: str) -> list[Installed]:
    """The installed upstreams of an environment, after checking that they belong together."""
    environment = find_environment(None if python == RUNNING else python, asked.lines)
    check_editable(environment, asked.lines)
    line = recognise(asked.lines, environment.packages, asked.line)
    check_joint(line, environment.packages)
    found = []
    for pin in asked.pins(line):
        package = environment.packages.get(pin.distribution)
        if package is None:
            report.say(f"{pin.distribution} is not installed for {environment.python}: nothing to do for it")
            continue
        check_imported(environment, pin, package)
        found.append(open_installed(pin, package, environment.packages))
    return found


def default_folders(asked: Wanted, into: Path | None) -> list[Path]:
    """Where fresh checkouts of the chosen line lie: DIR/UPSTREAM, or build/LINE/UPSTREAM."""
    line = asked.lines.line(asked.line)
    root = into if into is not None else Path("build", line.name)
    return [root / pin.upstream for pin in asked.pins(line)]


def existing_folders(asked: Wanted, into: Path | None) -> list[Path]:
    """The fresh checkouts that are there.

    Raises:
        Refused: there are none.
    """
    folders = [path for path in default_folders(asked, into) if path.exists()]
    if not folders:
        raise Refused(
            f"{default_folders(asked, into)[0].parent}: no checkout is there.",
            "Make one with tools/apply.py, or name a checkout or --installed.",
        )
    return folders


def reports(asked: Wanted, targets: Sequence[Target], moved: bool = False) -> list[Report]:
    """The state of every target; all of one line (`moved`: see `inspect`).

    Raises:
        UsageError: the targets are of different lines.
    """
    found = []
    for target in targets:
        series, selected = series_of(asked, target.pin)
        found.append(inspect(target, series, selected, moved))
    one_line(targets)
    return found


def one_line(targets: Sequence[Target]) -> str | None:
    """The name of the line that all targets are of."""
    names = sorted({target.pin.line for target in targets})
    if len(names) > 1:
        raise UsageError(f"The targets are of different lines: {', '.join(names)}.", "Run once for each line.")
    return names[0] if names else None


def as_json(found: Report) -> dict[str, Any]:
    """A target in the JSON contract."""
    patches = [{**asdict(state), "state": state.state.value} for state in found.patches]
    return {"upstream": found.upstream, "path": str(found.path), "kind": found.kind, "base": found.base,
            "head": found.head, "digest": found.digest, "expected_digest": found.expected_digest,
            "patches": patches}  # fmt: skip


def show_target(found: Report, expected: bool = True) -> None:
    """The table of one target."""
    base = found.base[:12] if found.kind == "checkout" else found.base
    title = f"{found.upstream} {found.line} ({found.kind}, {base}) {found.path}"
    rows = [(state.slug, state.state.value, (state.commit or "")[:12], state.reason or "") for state in found.patches]
    report.show_table(title, ("patch", "state", "commit", "reason"), rows)
    said = "as expected" if found.digest == found.expected_digest else f"expected {found.expected_digest}"
    report.show(f"  digest {found.digest} ({said})" if expected else f"  digest {found.digest}")


def without_patches(series: Series) -> Series:
    """The pin alone."""
    return replace(series, patches=())
