"""A plugin of the whole suite that notes which refusals of the package are made: here, and in processes forked off.

A process that is started anew (`python tools/apply.py …`) is not heard. Where the tests are spread over several
processes (`-n auto`), all write into one file, and the one that spread them looks at the end.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from .errors import BASE, CARRIERS, Refusal, catalogue
from .source import ROOT, modules

LAST = "test_every_refusal_is_reached"
SPREAD = "the tests are spread over several processes, and who spread them looks at the end"
PLACE, MISSING = "reached_notes", "reached_missing"  # what the process that spreads the tests and the others exchange
_notes = tempfile.NamedTemporaryFile("ab", prefix="reached-")  # noqa: SIM115 - open as long as the tests run
_unwritten: list[bytes] = []
_left_out: list[str] = []
_parts: list[str | None] = []  # of each process: why it cannot say that it saw the whole suite


def listen(place: str | None = None) -> None:
    """From here on every refusal that is made leaves a note, in the file of another process where one is named."""
    if place is not None:
        os.dup2(descriptor := os.open(place, os.O_WRONLY | os.O_APPEND), _notes.fileno())
        os.close(descriptor)
    modules()  # the source as it is now: an editor may change it before the end
    for name in (BASE, *CARRIERS):
        kind = getattr(import_module(f"sm120_overlay.{_home_of(name)}"), name)
        kind.__init__ = _noting(kind.__init__)


def _home_of(kind: str) -> str:
    return next(name for name, module in modules().items() if any(f"class {kind}(" in line for line in module.lines))


def _noting(made: Callable[..., None]) -> Callable[..., None]:
    @wraps(made)
    def noted(self: BaseException, *arguments: Any) -> None:
        frame = sys._getframe(1)
        _unwritten.append(f"{frame.f_code.co_filename}:{frame.f_lineno}\n".encode())
        _write()
        made(self, *arguments)

    return noted


def _write() -> None:
    with suppress(OSError):  # a test may have taken the room for it away: then later
        os.write(_notes.fileno(), b"".join(_unwritten))
        _unwritten.clear()


def unreached() -> list[Refusal]:
    """The refusals that no test has met so far."""
    _write()
    text = Path(f"/proc/self/fd/{_notes.fileno()}").read_text()
    notes = {line.rpartition(":")[::2] for line in text.splitlines()}
    places = {(Path(file).resolve(), int(line)) for file, line in notes}
    return [refusal for refusal in catalogue() if not any(_is_at(refusal, *place) for place in places)]


def _is_at(refusal: Refusal, file: Path, line: int) -> bool:
    return refusal.line <= line <= refusal.end and file == modules()[refusal.module].file


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Remembers that the user chose among the tests."""
    _left_out.extend(item.nodeid for item in items)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The test that looks back at all others runs after them."""
    items.sort(key=lambda item: item.name == LAST)


def missing_part(session: pytest.Session) -> str | None:
    """Why this session cannot say that a refusal is reached by no test; None where it is the whole suite."""
    if _left_out or any("::" in argument for argument in session.config.args):
        return "only some of the tests were chosen"
    # A patch's test runs in a proof, in a process of its own.
    every = {path for path in (ROOT / "tests").rglob("test_*.py") if path.parent.name != "patches"}
    absent = every - {item.path for item in session.items}
    return f"{min(absent).relative_to(ROOT)} is not part of this session" if absent else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells a process that is to run tests where the notes go."""
    node.workerinput[PLACE] = _notes.name


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Hears of a process that has ended whether it had the whole suite to choose from."""
    _parts.append(getattr(node, "workeroutput", {}).get(MISSING, "a process that ran tests died"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails the whole suite, if it was spread over processes and left a refusal out."""
    if hasattr(session.config, "workeroutput"):
        _write()
        session.config.workeroutput[MISSING] = missing_part(session)
    elif _parts and not any(_parts) and session.exitstatus == 0 and unreached():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Names the refusals that the whole suite left out, if it was spread over processes."""
    if _parts and not any(_parts):
        for refusal in unreached():
            terminalreporter.write_line(f"no test reaches {refusal.where}: {refusal.sentence}", red=True)
