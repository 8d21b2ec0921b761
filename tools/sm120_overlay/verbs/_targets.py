"""Opening the targets that a verb was asked about: locked and recovered for writing, or as they are."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from .. import report
from ..errors import Missing, Refused, UsageError
from ..queue.checkout import Checkout, find_checkout, open_checkout
from ..queue.environment import (
    Environment,
    check_absent,
    check_editable,
    check_imported,
    check_joint,
    find_environment,
    recognise,
)
from ..queue.git import Repository
from ..queue.home import command
from ..queue.installed import Installed, open_installed, recover_installed
from ..queue.move import recover_checkout
from ..queue.pins import Line, Pin
from ..queue.series import Series
from ..queue.target import Report, Target, inspect
from ..queue.transaction import FOLDER, Workplace, locked
from ._options import RUNNING, Wanted


@contextmanager
def writing(asked: Wanted, paths: Sequence[Path], installed: str | None, dry_run: bool) -> Iterator[list[Target]]:
    """The targets, each locked, and recovered where a run on it was cut (a dry run refuses such a one)."""
    with ExitStack() as stack:
        if dry_run:
            targets = reading(asked, paths, installed)
            for target in targets:
                stack.enter_context(locked(target.place.folder))
                _check_whole(target)
            yield targets
            return
        if installed:
            yield [_held_package(stack, target) for target in open_packages(asked, installed)]
        else:
            yield _chosen(asked, [_held_checkout(stack, asked, path) for path in paths])


def _check_whole(target: Target) -> None:
    if target.place.journal.is_file():
        # why: undoing writes, and a dry run promises not to
        raise Refused(
            f"{target.place.root}: a run was cut here, and looking alone cannot undo it.",
            "Run it without --dry-run; that undoes the cut run first.",
        )


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
        if asked.takes(checkout.pin):
            chosen.append(checkout)
        else:
            report.say(f"{checkout.repo.path} is {checkout.pin.upstream}: left alone, as --only asks")
    if checkouts and not chosen:
        # why: nothing done must not look like done
        raise UsageError(
            f"None of the checkouts is {' or '.join(asked.only)}.", "Name one that is, or leave --only out."
        )
    return chosen


def open_packages(
    asked: Wanted, python: str, fits: Callable[[Line, Environment], None] = check_joint
) -> list[Installed]:
    """The installed upstreams of an environment, after checking that they belong together.

    Args:
        fits: looks at the versions of what is installed beside them.

    Raises:
        Missing: one that --only names is not installed.
    """
    environment = find_environment(None if python == RUNNING else python, asked.lines)
    check_editable(environment, asked.lines)
    line = recognise(asked.lines, environment, asked.line)
    fits(line, environment)
    found = []
    for pin in asked.pins(line):
        package = environment.packages.get(pin.distribution)
        if package is None:
            check_absent(environment, pin)
            if pin.upstream in asked.only:
                # why: what was asked for by name and is not there is no success (Hyperloom#205)
                raise Missing(
                    f"{pin.distribution} is not installed for {environment.python}, and --only asks for it.",
                    "Name its interpreter: --installed PATH/bin/python.",
                )
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


def named_folders(asked: Wanted, options: argparse.Namespace) -> list[Path]:
    """The checkouts that the command line names; without any (and not --installed), the fresh ones that are there."""
    paths = [Path(path) for path in options.checkouts]
    return paths if paths or vars(options).get("installed") else existing_folders(asked, options.into)


def existing_folders(asked: Wanted, into: Path | None) -> list[Path]:
    """The fresh checkouts that are there.

    Raises:
        Refused: there are none.
    """
    every = default_folders(asked, into)
    folders = [path for path in every if path.exists()]
    for path in every if folders else ():
        if path not in folders:
            report.say(f"{path} is not there: nothing is said of it")
    if not folders:
        # why: a check of nothing would say yes (check-optional.sh looks at a folder that is gone)
        raise Refused(
            f"{every[0].parent.resolve()}: no checkout is there.",
            f"Make one with {command('apply')}, or name a checkout, or --installed.",
        )
    return folders


def reports(
    asked: Wanted, targets: Sequence[Target], goal: Callable[[Pin], Series] | None = None, moved: bool = False
) -> list[Report]:
    """The state of every target; all of one line.

    Args:
        goal: what a target of a pin should carry (None: what was selected); moved: see `inspect`.

    Raises:
        UsageError: the targets are of different lines.
    """
    found = []
    for target in targets:
        wanted = (goal or asked.selected)(target.pin)
        found.append(inspect(target, asked.series(target.pin), wanted, moved))
    one_line(targets)
    return found


def one_line(targets: Sequence[Target]) -> str | None:
    """The name of the line that all targets are of."""
    names = sorted({target.pin.line for target in targets})
    if len(names) > 1:
        # why: an answer, and its JSON, is about one line
        raise UsageError(f"The targets are of different lines: {', '.join(names)}.", "Run once for each line.")
    return names[0] if names else None
