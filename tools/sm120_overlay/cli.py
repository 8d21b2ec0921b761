"""Every verb's way in: names it, runs it, and turns what it raises into an exit code and two sentences."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from . import __version__, report
from .errors import Missing, OverlayError, UsageError
from .stops import told_to_stop

VERBS = {
    "apply": "bring targets to the series (or off it, with --reverse)",
    "status": "show the state of every patch on targets",
    "verify": "fail unless targets are exactly the series; prove patches red and green",
    "resolve": "say what SGLang would choose on a machine, with the series and without",
    "adopt": "make patches of what people have: a diff, a mail, a commit or a range",
    "export": "turn the commits of a series' branch back into patch files",
    "rebase": "move a series to another pin",
    "survey": "say which change of upstream's breaks or absorbs each patch",
    "bisect": "find the upstream change behind a measurement, if there is one",
    "upstream": "make one patch ready for its upstream, or ask whether it is still needed there",
    "lint": "check what every patch must be",
}


def main(argv: Sequence[str] | None = None) -> int:
    """`VERB ARGUMENTS`: the exit code of that verb. Nothing a user can cause shows as a traceback."""
    argv = list(sys.argv[1:] if argv is None else argv)
    verb, arguments = next(iter(argv), ""), argv[1:]
    report.escape_what_cannot_be_shown()
    try:
        with told_to_stop():
            code = _answer(verb, arguments)
            if sys.stdout is not None:
                sys.stdout.flush()  # what cannot be written must be said here, not while Python ends
            return code
    except OverlayError as error:
        return _failed(verb, arguments, error)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("sm120_overlay"):
            raise
        # why: `python tools/apply.py` is often run by another Python than the one that was set up
        missing = Missing(f"The module {error.name} is not installed for {sys.executable}.", _how_to_install())
        return _failed(verb, arguments, missing)
    except BrokenPipeError:
        _say_no_more()
        return 128 + signal.SIGPIPE
    except (OSError, MemoryError) as error:
        return _failed(verb, arguments, _lacking(error))
    except KeyboardInterrupt as stop:
        report.say("Interrupted: what was half done is undone, now or by the next run.")
        return 128 + getattr(stop, "signum", signal.SIGINT)


def _answer(verb: str, arguments: list[str]) -> int:
    if verb in ("", "-h", "--help"):
        report.show("usage: sm120-overlay VERB ...\n\n" + "\n".join(f"  {v:8} {text}" for v, text in VERBS.items()))
        report.show("\nEach verb teaches by example: sm120-overlay VERB --help")
        return 0 if verb else 2
    if verb == "--version":
        report.show(f"sm120-overlay {__version__}")
        return 0
    if verb not in VERBS:
        # why: a verb that is guessed would do something else than was asked
        raise UsageError(f"There is no verb {verb!r}.", f"The verbs are {', '.join(VERBS)}.")
    if sys.getfilesystemencoding() != "utf-8":
        # why: git's names are bytes; Python would look for files of other names than the patches have
        raise Missing(
            f"Python takes file names for {sys.getfilesystemencoding()} here, expected utf-8.",
            "Set LC_ALL=C.UTF-8 (or PYTHONUTF8=1), then run again.",
        )
    run: Callable[[list[str]], int] = import_module(f"{__package__}.verbs.{verb}").main
    return run(arguments)


_CHECK = "Check the path, its permissions and the free space ($SM120_OVERLAY_CACHE moves the cache), then run again."
_FREE = (
    "Free space there (df -h shows it; $SM120_OVERLAY_CACHE moves the cache, $TMPDIR temporary files), then run again."
)
_TODO = {
    errno.ENOSPC: _FREE,
    errno.EDQUOT: _FREE,
    errno.EROFS: "Make its file system writable, or name a target that lies on another one, then run again.",
}


def _lacking(error: OSError | MemoryError) -> Missing:
    if isinstance(error, MemoryError):
        # why: a machine that is full is not a fault of the series, and a traceback says neither
        return Missing("This machine has not enough memory.", "Free some, then run again.")
    what = error.filename or "Standard output or a temporary file"
    # why: the system's own no (permissions, space, a path too long) names the file; a traceback hides it
    return Missing(f"{what}: {error.strerror or error}.", _TODO.get(error.errno or 0, _CHECK))


def _how_to_install() -> str:
    root = Path(__file__).resolve().parents[2]
    ours = root / ".venv" / "bin" / "python"
    install = f"{sys.executable} -m pip install -e {root}"
    return f"Use {ours}, or: {install}" if ours.exists() else install


def _failed(verb: str, arguments: list[str], error: OverlayError) -> int:
    report.show_error(error)
    try:
        if "--json" in arguments:
            report.show_json(verb, {"line": None, "ok": False, "targets": [], "error": report.error_json(error)})
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:  # standard output is what failed; standard error has said it
        _say_no_more()
    return error.exit_code


def _say_no_more() -> None:
    """Whatever still waits to be written to standard output goes nowhere: Python would try again while it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
