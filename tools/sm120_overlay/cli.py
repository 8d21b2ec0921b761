"""Every verb's way in: names it, runs it, and turns what it raises into an exit code and two sentences."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType

from . import __version__, report
from .errors import Missing, OverlayError, UsageError

VERBS = {
    "apply": "bring targets to the series (or off it, with --reverse)",
    "status": "show the state of every patch on targets",
    "verify": "fail unless targets are exactly the series; prove patches red and green",
    "export": "turn the commits of a series' branch back into patch files",
    "lint": "check what every patch must be",
}
STOPS = (signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """The run was told to stop by `signum`."""

    def __init__(self, signum: int = signal.SIGINT) -> None:
        super().__init__()
        self.signum = signum


def main(argv: Sequence[str] | None = None) -> int:
    """`VERB ARGUMENTS`: the exit code of that verb."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        report.show("usage: sm120-overlay VERB ...\n\n" + "\n".join(f"  {v:8} {text}" for v, text in VERBS.items()))
        report.show("\nEach verb teaches by example: sm120-overlay VERB --help")
        return 0 if argv else 2
    if argv[0] == "--version":
        report.show(f"sm120-overlay {__version__}")
        return 0
    verb, *arguments = argv
    if verb not in VERBS:
        error = UsageError(f"There is no verb {verb!r}.", f"The verbs are {', '.join(VERBS)}.")
        report.show_error(error)
        return error.exit_code
    return guarded(verb, arguments)


def guarded(verb: str, arguments: list[str]) -> int:
    """Runs one verb; nothing a user can cause shows as a traceback."""
    try:
        run: Callable[[list[str]], int] = import_module(f"{__package__}.verbs.{verb}").main
        with _told_to_stop():
            return run(arguments)
    except OverlayError as error:
        return _failed(verb, arguments, error)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("sm120_overlay"):
            raise
        missing = Missing(f"The module {error.name} is not installed for {sys.executable}.", _how_to_install())
        return _failed(verb, arguments, missing)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing more to say to a reader that is gone
        return 128 + signal.SIGPIPE
    except OSError as error:
        what = error.filename or "Standard output or a temporary file"
        return _failed(verb, arguments, Missing(f"{what}: {error.strerror or error}.", _TODO))
    except KeyboardInterrupt as stop:
        report.say("Interrupted: what was half done is undone, now or by the next run.")
        return 128 + getattr(stop, "signum", signal.SIGINT)


@contextmanager
def _told_to_stop() -> Iterator[None]:
    """SIGTERM (docker stop) and SIGHUP (a lost terminal) end a run as ^C does: it undoes what it had half done."""

    def stop(signum: int, _frame: FrameType | None) -> None:
        raise Stopped(signum)

    ours = threading.current_thread() is threading.main_thread()  # no other thread may
    default = [number for number in STOPS if ours and signal.getsignal(number) is signal.SIG_DFL]  # not under nohup
    taken = {number: signal.signal(number, stop) for number in default}
    try:
        yield
    finally:
        for number, before in taken.items():
            signal.signal(number, before)


_TODO = "Check the path, its permissions and the free space ($SM120_OVERLAY_CACHE moves the cache), then run again."


def _how_to_install() -> str:
    root = Path(__file__).resolve().parents[2]
    ours = root / ".venv" / "bin" / "python"
    install = f"{sys.executable} -m pip install -e {root}"
    return f"Use {ours}, or: {install}" if ours.exists() else install


def _failed(verb: str, arguments: list[str], error: OverlayError) -> int:
    report.show_error(error)
    if "--json" in arguments:
        report.show_json(verb, {"line": None, "ok": False, "targets": [], "error": report.error_json(error)})
    return error.exit_code
