"""Fail points: a run in a child of its own that dies, or is told that the disk says no, at its n-th change.

A change is what an audit hook of Python sees of it: every file opened for writing, every rename, link, removal, new
folder and new mode below a folder, and every program that is started. What no event tells (the bytes going into an
open file, its fsync) lies between two of them, and `tear` cuts there. No hook can be taken out again: hence the child.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .scenes import CUT, Answer

CHANGES = {"os.rename", "os.remove", "os.link", "os.symlink", "os.mkdir", "os.rmdir", "os.chmod", "os.utime",
           "os.truncate", "os.chown"}  # fmt: skip
# What happens at a change: how often it has happened before, and what the change names.
Fault = Callable[[int, str], None]


@dataclass(frozen=True)
class Ended:
    """How a run ended: what it gave (None: it died), and whether it came to the change that was to fail."""

    gave: Any
    reached: bool

    @property
    def died(self) -> bool:
        """Whether it was cut."""
        return self.gave is None


def run_failing(
    step: int, below: Path, work: Callable[[], object], fault: Fault, early: bool = False, writes: bool = False
) -> Ended:
    """Runs `work` in a child to which `fault` happens at its `step`th change below a folder and at each one after.

    Args:
        early: programs that are started before the first change count too; writes: changes that write no bytes
            do not count.
    """
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        _in_child(partial(watch_changes, step, below, fault, early, writes), work, theirs)
    os.close(theirs)
    with os.fdopen(ours, "rb") as answer:
        said = answer.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, CUT, -signal.SIGXFSZ), code
    reached, gave = pickle.loads(said) if code == 0 else (True, None)
    return Ended(gave, reached)


def _in_child(watch: Callable[[], list[str]], work: Callable[[], object], answer: int) -> None:
    """Never returns: pytest goes on in the parent alone."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        reached = watch()
        gave = work()
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        os.write(answer, pickle.dumps((bool(reached), gave)))
        os._exit(0)
    except BaseException:
        os._exit(1)


def watch_changes(step: int, below: Path, fault: Fault, early: bool = False, writes_only: bool = False) -> list[str]:
    """Hooks the fault into this process, for good; the list fills with what it happened to (see `run_failing`)."""
    count, begun, happened = 0, early, list[str]()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count, begun
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        starts = event == "subprocess.Popen" and begun
        changes = (writes or event in CHANGES) and _is_below(arguments[:1] if writes else arguments, str(below))
        if not starts and not changes:
            return
        begun = True
        count += bool(starts or writes or not writes_only or happened)
        if count > step:
            happened.append(str(arguments[0]))
            fault(len(happened) - 1, happened[-1])

    sys.addaudithook(hook)
    return happened


def _is_below(arguments: tuple[Any, ...], below: str) -> bool:
    """Whether a change names something below the folder; shutil.rmtree names it by a descriptor of the folder above."""
    named = [os.fsdecode(part) for part in arguments if isinstance(part, str | bytes | os.PathLike)]
    above = next((part for part in arguments[1:] if isinstance(part, int) and part >= 0), None)
    if above is not None and named and not named[0].startswith("/"):
        named = [os.readlink(f"/proc/self/fd/{above}")] if Path("/proc/self/fd").exists() else [below]
    return any(name.startswith(below) for name in named)


def die(_times: int, _name: str) -> None:
    """The run is killed before the change."""
    os._exit(CUT)


def tear(times: int, _name: str) -> None:
    """The run is killed in the middle of it, after the first byte; so is a git of its that writes then."""
    if times:
        os._exit(CUT)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    _only_a_byte()


def short(lasting: bool) -> Fault:
    """A write stops after its first byte, ours or that of a git of ours; for good, or until the next change."""

    def fault(times: int, _name: str) -> None:
        if times == 0:
            _only_a_byte()
        elif times == 1 and not lasting:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)

    return fault


def _only_a_byte() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def failing(code: int, lasting: bool = False) -> Fault:
    """The change fails with this errno, once or from then on."""

    def fault(times: int, name: str) -> None:
        if lasting or not times:
            raise OSError(code, os.strerror(code), name)

    return fault


def raising(kind: type[BaseException]) -> Fault:
    """The change is stopped by an exception of Python's own, once."""

    def fault(times: int, _name: str) -> None:
        if not times:
            raise kind

    return fault


def cut_at(step: int, below: Path, work: Callable[[], object], fault: Fault = die) -> bool:
    """Runs `work` in a child that dies just before its `step`th change below a folder; whether it came that far."""
    return run_failing(step, below, lambda: bool(work()) or True, fault).died


def two_sentences(answer: Answer) -> bool:
    """What is wrong and what to do; or, for a run told to stop, that it stopped."""
    lines = answer.err.strip().splitlines()
    return "Traceback" not in answer.err and (
        (len(lines) == 2 and "→" in lines[1]) or lines[-1].startswith("Interrupted")
    )
