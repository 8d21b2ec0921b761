"""bisect: find the upstream change behind a measurement, if there is one, with the series on every revision."""

from __future__ import annotations

import argparse
import sys

from .. import report
from ..cache import publish_file
from ..errors import Missing
from ..queue.pins import load_lines
from ._bisect_json import show_told
from ._bisect_known import known, replayed, skip, void
from ._bisect_options import check_files, check_run, parser, session_of
from ._bisect_show import RUN_HEADS, Told, belief_rows, run_rows, sentence
from ._options import own_home


def main(argv: list[str] | None = None) -> int:
    """Runs the verb."""
    options = parser().parse_args(argv)
    _check_numbers()
    return _PARTS[options.what](options)


def _check_numbers() -> None:
    try:
        import scipy.special  # noqa: F401
    except ImportError as error:
        # why: only bisect needs them, and they are large
        raise Missing(
            f"{error.name} is not installed for {sys.executable}, and a bisection is decided with it.",
            f"{sys.executable} -m pip install numpy scipy",
        ) from None


def _run(options: argparse.Namespace) -> int:
    check_run(options)
    check_files(options)
    if options.dry_run:
        from ._bisect_plan import plan

        return plan(options)
    from ._bisect_run import run

    return _answer(options, run(options))


def _status(options: argparse.Namespace) -> int:
    return _answer(options, _known(options))


def _log(options: argparse.Namespace) -> int:
    told = _known(options)
    if options.json:
        return show_told(told, True, done=True)
    report.show_table(f"{told.what}: {told.unit}", RUN_HEADS, list(run_rows(told)))
    return 0


def _replay(options: argparse.Namespace) -> int:
    home = own_home()
    told = None
    for told in replayed(session_of(home, options), load_lines(home.pins)):
        if not options.json:
            _show_step(told)
    told = told or _known(options)
    return show_told(told, options.json)


def _show_step(told: Told) -> None:
    """The run, and what was believed after it."""
    *_, last = run_rows(told)
    report.show(f"after run {last[0]} (program {last[1]}, {last[3] or last[4]}): {sentence(told)}")
    for row in list(belief_rows(told, told.decision))[:3] if told.decision else ():
        report.show(f"  {' '.join(row)}".rstrip())


def _skip(options: argparse.Namespace) -> int:
    skip(session_of(own_home(), options), options.revision, options.why or "", options.undo)
    return _answer(options, _known(options), done=True)


def _void(options: argparse.Namespace) -> int:
    void(session_of(own_home(), options), options.number, options.why or "", options.undo)
    return _answer(options, _known(options), done=True)


def _report(options: argparse.Namespace) -> int:
    check_files(options)
    return _answer(options, _known(options))


def _known(options: argparse.Namespace) -> Told:
    home = own_home()
    return known(session_of(home, options), load_lines(home.pins))


def _answer(options: argparse.Namespace, told: Told, done: bool = False) -> int:
    """Draws what was asked for, prints what is known; the exit code."""
    written = [path for path in (vars(options).get("html"), vars(options).get("png")) if path]
    if written:
        from ..picture.bisection import image, page
        from ._bisect_pictured import figure_of

        figure = figure_of(told)
        if options.html:
            publish_file(options.html, page(figure).encode())
        if options.png:
            publish_file(options.png, image(figure))
    return show_told(told, options.json, [str(path) for path in written], done)


_PARTS = {
    "run": _run,
    "status": _status,
    "log": _log,
    "replay": _replay,
    "skip": _skip,
    "void": _void,
    "report": _report,
}
