"""apply: bring targets to exactly the series, from wherever they are: fresh, patched, or with an older series on."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from .. import report
from ..errors import Refused, UsageError
from ..queue.checkout import Checkout
from ..queue.home import command
from ..queue.installed import Installed, change_installed, open_installed
from ..queue.landing import record_commit
from ..queue.materialise import check_place, materialise
from ..queue.move import move
from ..queue.pins import Pin
from ..queue.series import Series
from ..queue.sources import Source, check_sources, choose_source
from ..queue.state import State
from ..queue.target import Report, Target, absent_report
from ._at import add_at, at_commit, carried_json
from ._options import Wanted, add_selection, given, parser, wanted
from ._show import as_json, show_target
from ._targets import default_folders, one_line, reports, writing

EXAMPLES = """\
  apply.py                            the default line, fresh, under build/
  apply.py --line v0.5.9 --into /opt/src --source pypi
  apply.py --source ~/mirrors/sglang  take upstream from a repository at hand
  apply.py ~/src/sglang               a checkout of yours that stands at a pin
  apply.py --installed                the packages of the Python that runs this
  apply.py --installed .venv/bin/python --without pdl-switch
  apply.py ~/src/sglang --reverse     take our series off again
  apply.py ~/src/sglang --at 3207427d6    a checkout near the pin: carried there by git's merge, or nothing

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
    asked = at_commit(wanted(options), options)
    if options.source and (options.checkouts or options.installed):
        # why: it would be ignored, and another source than the one that is named be used
        raise UsageError("--source says where fresh checkouts come from.", "Leave it out for a target that is there.")
    if options.reverse and (options.through or options.without) and not options.at:
        # why: half a reverse is another series: --without says which
        raise UsageError(
            "--reverse takes the whole series off.", "To leave a patch out: --without SLUG, without --reverse."
        )
    paths = [Path(path) for path in options.checkouts]
    named = bool(paths or options.installed)
    fresh, absent = ({}, []) if named else _materialised(asked, options)
    if not named:
        paths = [path for path in default_folders(asked, options.into) if path not in dict(absent)]
    with writing(asked, paths, options.installed, options.dry_run) as targets:
        one_line(targets)
        if len(targets) > 1 and not options.dry_run:
            for target in targets:  # what one of them refuses must not leave the other one done
                _change(asked, target, options.reverse, dry_run=True)
        moved = [_change(asked, target, options.reverse, options.dry_run) for target in targets]
    goal = partial(_goal, asked, options.reverse)
    found = reports(asked, [target for target, _ in moved], goal, moved=not options.dry_run)
    sources = {path.resolve(): source.kind for path, source in fresh.items()}
    done = [Done(one, changed, sources.get(one.path)) for one, (_, changed) in zip(found, moved, strict=True)]
    done += [Done(absent_report(asked.series(pin), asked.selected(pin), path), True, None) for path, pin in absent]
    if options.dry_run:
        return _show_plan(asked, options, done)
    return _show(asked, options, targets, done)


def _parser() -> argparse.ArgumentParser:
    made = parser("apply", "Bring targets to exactly the series of their line.", EXAMPLES)
    add_selection(made)
    add_at(made)
    made.add_argument(
        "--source", type=_source, action="append", default=[], metavar="SOURCE",
        help="where fresh checkouts come from: auto (git, else pypi), git, pypi, or a repository that holds the pin; "
        "repeatable, the first that has it; what named repositories lack is sought as with auto",
    )  # fmt: skip
    made.add_argument("--reverse", action="store_true", help="take the series off: back to the pin's bytes")
    made.add_argument("--dry-run", action="store_true", help="check the targets and say what would change")
    return made


def _source(text: str) -> str:
    """A kind of source, or a path with the user's folder written out."""
    try:
        return str(Path(given(text)).expanduser()) if text.startswith("~") else given(text)
    except RuntimeError:  # there is no such user
        raise argparse.ArgumentTypeError(f"expected a folder that is there, found {text!r}") from None


def _materialised(asked: Wanted, options: argparse.Namespace) -> tuple[dict[Path, Source], list[tuple[Path, Pin]]]:
    """Makes the checkouts that are not there yet: where each came from, and (dry run) those that would be made."""
    made: dict[Path, Source] = {}
    absent: list[tuple[Path, Pin]] = []
    pins = asked.pins(asked.lines.line(asked.line))
    sources = check_sources(pins, options.source or ["auto"])
    for pin, path in zip(pins, default_folders(asked, options.into), strict=True):
        if path.exists() and not _is_empty(path):
            if options.source:
                report.say(f"{path} is there already; --source was not used")
        elif options.reverse:
            # why: a misspelt target would look reversed
            raise Refused(f"{path}: there is nothing to reverse.", "Name the checkout, or --installed.")
        elif options.dry_run:
            check_place(path)
            absent.append((path, pin))
        else:
            check_place(path)
            made[path] = choose_source(pin, sources, report.say)
            materialise(pin, made[path], path)
            if made[path].installable and record_commit(asked.home, pin, made[path].commit):
                report.say(f"{pin.upstream}: {pin.tag} is commit {made[path].commit}; pins.toml has it now")
    return made, absent


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not any(path.iterdir())


def _change(asked: Wanted, target: Target, reverse: bool, dry_run: bool) -> tuple[Target, bool]:
    """The target as it is then, and whether anything had to change."""
    goal = _goal(asked, reverse, target.pin)
    if isinstance(target, Checkout):
        return move(target, goal, dry_run, asked.series(target.pin))
    changed = change_installed(target, goal, asked.series(target.pin), dry_run)
    return open_installed(target.pin, target.package, target.beside), changed


def _goal(asked: Wanted, reverse: bool, pin: Pin) -> Series:
    """What a target of the pin should carry."""
    return replace(asked.series(pin), patches=()) if reverse else asked.selected(pin)


def _show(asked: Wanted, options: argparse.Namespace, targets: Sequence[Target], done: list[Done]) -> int:
    ok = all(one.report.ok for one in done)
    if asked.json:
        listed = [{**as_json(one.report), "changed": one.changed, "source": one.source} for one in done]
        said = {"line": one_line(targets), "ok": ok, "targets": listed}
        report.show_json("apply", said | _carried(asked))
        return 0 if ok else 1
    for target, one in zip(targets, done, strict=True):
        show_target(one.report)
        report.show(f"  {_said(options, one)}")
        for line in _next_steps(target, one.report, options.reverse) if one.changed else []:
            report.show(f"  {line}")
    return 0 if ok else 1


def _carried(asked: Wanted) -> dict[str, Any]:
    return {"carried": carried_json(asked.carried)} if asked.carried else {}


def _said(options: argparse.Namespace, done: Done) -> str:
    if not done.changed:
        return "nothing to do: it was so already"
    came = {"pypi": " from the pinned wheel", "git": " from upstream's repository", "path": " from your repository"}
    verb = "taken off; the pin's bytes are back" if options.reverse else "applied"
    return verb + came.get(done.source or "", "")


def _next_steps(target: Target, found: Report, reverse: bool) -> list[str]:
    """What the operator does now."""
    pin = target.pin
    if isinstance(target, Installed):
        return ["next: nothing to install; restart the server", *_caches(pin, found)]
    if reverse:
        return []
    left = (target.branch or target.ours).removeprefix("refs/heads/")
    ours = target.our_name
    moved = [] if left == ours else [f"note: HEAD is on {ours} now; {left} stays where it was"]
    if target.laid_out:
        return [
            *moved,
            "next: this tree comes from a wheel, to read, test and rebase; it cannot be installed. To run it: "
            f"pip install {pin.distribution}=={pin.version}, then {command('apply')} --installed",
        ]
    return [*moved, "next: " + pin.install.format(path=found.path), *_caches(pin, found)]


def _caches(pin: Pin, found: Report) -> list[str]:
    return [
        f"note: kernels compiled earlier may lie in {cache}; this cannot see what filled it, so remove it if that was "
        f"another installation of {pin.upstream}"
        for cache in pin.caches
        if found.patches and not _guarded(pin, found)
    ]


def _guarded(pin: Pin, found: Report) -> bool:
    """Whether a patch is on that keeps libraries of other sources from being loaded."""
    return any(patch.slug == pin.prebuilt_guard and patch.state is State.APPLIED for patch in found.patches)


def _show_plan(asked: Wanted, options: argparse.Namespace, done: list[Done]) -> int:
    if asked.json:
        listed = [{**as_json(one.report), "would_change": one.changed} for one in done]
        line = done[0].report.line if done else None
        report.show_json("apply", {"line": line, "ok": True, "dry_run": True, "targets": listed} | _carried(asked))
        return 0
    for one in done:
        show_target(one.report)
        report.show(f"  {_would(options, one)}; nothing was written")
    return 0


def _would(options: argparse.Namespace, done: Done) -> str:
    if not done.changed:
        return "nothing to do"
    if options.reverse:
        return "would take the series off"
    return "would apply the series" if done.report.base else "would be made, with the series on it"
