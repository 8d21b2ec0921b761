"""apply: bring targets to exactly the series, from wherever they are: fresh, patched, or with an older series on."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import report
from ..errors import Refused
from ..queue.checkout import Checkout
from ..queue.installed import Installed, change_installed, open_installed
from ..queue.materialise import materialise
from ..queue.move import move
from ..queue.pins import Pin
from ..queue.sources import Source, check_sources, choose_source
from ..queue.target import Report, Target
from . import _targets as shared

EXAMPLES = """\
  apply.py                            the default line, fresh, under build/
  apply.py --line v0.5.9 --into /opt/src --source pypi
  apply.py --source ~/mirrors/sglang  take upstream from a repository at hand
  apply.py ~/src/sglang               a checkout of yours that stands at a pin
  apply.py --installed                the packages of the Python that runs this
  apply.py --installed .venv/bin/python --without pdl-switch
  apply.py ~/src/sglang --reverse     take our series off again

Run it again with a newer clone of this project to upgrade a target: one command, from any older series of ours.

exit codes: 0 done (also when there was nothing to do), 1 refused and nothing changed, 2 usage, 4 something is missing
"""


@dataclass(frozen=True)
class Done:
    """What happened to one target."""

    report: Report
    changed: bool
    source: str | None


def main(argv: list[str] | None = None) -> int:
    """Runs the verb."""
    options = _parser().parse_args(argv)
    asked = shared.wanted(options)
    fresh: dict[Path, Source] = {}
    paths = [Path(path) for path in options.checkouts]
    if not paths and not options.installed:
        paths = shared.default_folders(asked, options.into)
        fresh = _materialised(asked, options, paths)
        paths = [path for path in paths if path.exists() or not options.dry_run]
    with shared.writing(asked, paths, options.installed) as targets:
        shared.one_line(targets)
        if len(targets) > 1 and not options.dry_run:
            for target in targets:  # what one of them refuses must not leave the other one done
                _change(asked, target, options.reverse, dry_run=True)
        moved = [_change(asked, target, options.reverse, options.dry_run) for target in targets]
    found = shared.reports(asked, [target for target, _ in moved], moved=not options.dry_run)
    sources = {path.resolve(): source.kind for path, source in fresh.items()}
    done = [Done(one, changed, sources.get(one.path)) for one, (_, changed) in zip(found, moved, strict=True)]
    show = _show_plan if options.dry_run else _show
    return show(asked, options, targets, done)


def _parser() -> argparse.ArgumentParser:
    parser = shared.parser("apply", "Bring targets to exactly the series of their line.", EXAMPLES)
    parser.add_argument(
        "--source", action="append", default=[], metavar="SOURCE",
        help="where fresh checkouts come from: auto, git, pypi, or a repository that holds the pin (repeatable)",
    )  # fmt: skip
    parser.add_argument("--reverse", action="store_true", help="take the series off: back to the pin's bytes")
    parser.add_argument("--dry-run", action="store_true", help="check everything and say what would change")
    return parser


def _materialised(asked: shared.Wanted, options: argparse.Namespace, paths: Sequence[Path]) -> dict[Path, Source]:
    """Makes the checkouts that are not there yet; where each came from."""
    made: dict[Path, Source] = {}
    pins = asked.pins(asked.lines.line(asked.line))
    sources = check_sources(pins, options.source or ["auto"])
    for pin, path in zip(pins, paths, strict=True):
        if path.exists():
            continue
        if options.reverse:
            raise Refused(f"{path}: there is nothing to reverse.", "Name the checkout, or --installed.")
        if options.dry_run:
            report.say(f"{path}: would be made from {pin.upstream} {pin.tag}, with the whole series on it")
            continue
        made[path] = choose_source(pin, sources, report.say)
        materialise(pin, made[path], path)
    return made


def _change(asked: shared.Wanted, target: Target, reverse: bool, dry_run: bool) -> tuple[Target, bool]:
    """The target as it is then, and whether anything had to change."""
    series, selected = shared.series_of(asked, target.pin)
    goal = shared.without_patches(series) if reverse else selected
    if isinstance(target, Checkout):
        return move(target, goal, dry_run)
    changed = change_installed(target, goal, series, dry_run)
    return open_installed(target.pin, target.package, target.beside), changed


def _right(options: argparse.Namespace, done: Done) -> bool:
    if not options.reverse:
        return done.report.ok
    return not any(state.state.value != "pending" for state in done.report.patches)


def _show(asked: shared.Wanted, options: argparse.Namespace, targets: Sequence[Target], done: list[Done]) -> int:
    ok = all(_right(options, one) for one in done)
    if asked.json:
        listed = [_as_said(one) for one in done]
        report.show_json("apply", {"line": shared.one_line(targets), "ok": ok, "targets": listed})
        return 0 if ok else 1
    for target, one in zip(targets, done, strict=True):
        shared.show_target(one.report, expected=not options.reverse)
        report.show(f"  {_said(options, one)}")
        for line in [] if options.reverse else _next_steps(target, one.report):
            report.show(f"  {line}")
    return 0 if ok else 1


def _said(options: argparse.Namespace, done: Done) -> str:
    if not done.changed:
        return "nothing to do: it was so already"
    came = {"pypi": " from the pinned wheel", "git": " from upstream's repository", "path": " from your repository"}
    verb = "taken off; the pin's bytes are back" if options.reverse else "applied"
    return verb + came.get(done.source or "", "")


def _next_steps(target: Target, found: Report) -> list[str]:
    """What the operator does now."""
    pin = target.pin
    if isinstance(target, Installed):
        return ["next: nothing to install; restart the server", *_caches(pin, found)]
    if target.laid_out:
        return [
            f"next: this tree comes from a wheel, to read, test and rebase; it cannot be installed. To run it: "
            f"pip install {pin.distribution}=={pin.version}, then apply.py --installed",
        ]
    return ["next: " + pin.install.format(path=found.path), *_caches(pin, found)]


def _caches(pin: Pin, found: Report) -> list[str]:
    return [
        f"note: kernels compiled earlier may lie in {cache}; this cannot see what filled it, so remove it if that was "
        f"another installation of {pin.upstream}"
        for cache in pin.caches
        if found.patches
    ]


def _show_plan(asked: shared.Wanted, options: argparse.Namespace, targets: Sequence[Target], done: list[Done]) -> int:
    if asked.json:
        listed = [{**shared.as_json(one.report), "would_change": one.changed} for one in done]
        report.show_json("apply", {"line": shared.one_line(targets), "ok": True, "dry_run": True, "targets": listed})
        return 0
    for one in done:
        shared.show_target(one.report, expected=not options.reverse)
        report.show("  would change; nothing was written" if one.changed else "  nothing to do")
    return 0


def _as_said(done: Done) -> dict[str, Any]:
    """One target of the JSON answer."""
    return {**shared.as_json(done.report), "changed": done.changed, "source": done.source}
