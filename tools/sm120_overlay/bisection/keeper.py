"""The process above a command: it ends everything that the command started, whatever becomes of us.

It is run by its file's name, with any Python 3 and no package. The first line of its standard input is the order; the
end of that input says stop, and comes by itself when we die, be it by kill -9. It adopts orphans, so that nothing that
the command starts can leave it, neither by setsid nor by a double fork. It says a blank when the command has ended, and
how, in JSON, when all that it started has.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from typing import Any

TICK_S = 0.5
UNKILLABLE_S = 10.0
ADOPT_ORPHANS, DIE_WITH_PARENT = 36, 1  # prctl's PR_SET_CHILD_SUBREAPER and PR_SET_PDEATHSIG


def keep(order: dict[str, Any]) -> dict[str, Any]:
    """Run the order's command to its end, or to ours, and leave nothing of it behind."""
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _: asked.append(got))
    waker = _wake_on_children()
    _prctl(ADOPT_ORPHANS, 1)
    started = time.monotonic()
    child = _start(order)
    ended: dict[int, int] = {}
    why = ""
    while not why and child not in ended:
        ready = select.select([0, waker], [], [], TICK_S)[0]
        if waker in ready:
            os.read(waker, 4096)
        reap(ended)
        if child not in ended:
            why = "stopped" if asked else _reason(order, started, ready)
    seconds = time.monotonic() - started
    status = ended.get(child)  # of its own: not what we do to it now
    _tell(" ")
    left = end_all(order["grace_s"], ended)
    return {
        "why": why,
        "exit": os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None,
        "signal": os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else 0,
        "seconds": seconds,
        "left": left,
    }


def reap(ended: dict[int, int]) -> None:
    """Note every child that has ended, by its process id, with its status."""
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not process:
            return
        ended[process] = status


def end_all(grace_s: float, ended: dict[int, int]) -> list[int]:
    """End all that is below us: TERM, and KILL after the grace; what is left is what the kernel does not let go."""
    _send(signal.SIGTERM)
    if _gone_within(grace_s, ended):
        return []
    until = time.monotonic() + UNKILLABLE_S
    while time.monotonic() < until:  # again and again: a process may fork between the look and the blow
        _send(signal.SIGKILL)
        if _gone_within(0.1, ended):
            return []
    return below(os.getpid())


def below(process: int) -> list[int]:
    """All descendants that have not ended, children before grandchildren."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            with open(f"/proc/{entry.name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except OSError:  # it has just ended
            continue
        if state not in (b"Z", b"X"):
            children.setdefault(int(parent), []).append(int(entry.name))
    found, look = [], [process]
    while look:
        more = children.get(look.pop(), [])
        found += more
        look += more
    return found


def _send(number: int) -> None:
    for process in below(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def _gone_within(seconds: float, ended: dict[int, int]) -> bool:
    until = time.monotonic() + seconds
    while True:
        reap(ended)
        if not below(os.getpid()):
            reap(ended)
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(0.02)


def _reason(order: dict[str, Any], started: float, ready: list[int]) -> str:
    """Why the command must stop now ("": it need not)."""
    if os.getppid() != order["parent"] or (0 in ready and not os.read(0, 4096)):
        return "stopped"
    if order["limit_s"] and time.monotonic() - started > order["limit_s"]:
        return "limit"
    if sum(os.stat(log).st_size for log in {order["stdout"], order["stderr"]} if os.path.exists(log)) > order["most"]:
        return "output"
    return ""


def _start(order: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        _prctl(DIE_WITH_PARENT, signal.SIGKILL)
        os.setsid()
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a child would too
            signal.signal(number, signal.SIG_DFL)
        os.chdir(order["cwd"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), descriptor)
        os.execve("/bin/sh", ["/bin/sh", "-c", order["command"]], order["env"])
    except OSError as error:
        os.write(2, f"{error}\n".encode())
    os._exit(126)


def _wake_on_children() -> int:
    """A descriptor that can be read when a child has ended."""
    get, put = os.pipe()
    os.set_blocking(put, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(put, warn_on_full_buffer=False)
    return get


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _tell(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody is there to hear it
        os.write(1, text.encode())


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(1)  # we were gone before the order was given
        line += byte
    return line


def main() -> None:
    """Take the order, keep it, say how it ended."""
    order = json.loads(_first_line())
    for descriptor in order["locks"]:  # held until all of the command is gone, and not by the command
        os.set_inheritable(descriptor, False)
    _tell(json.dumps(keep(order)) + "\n")


if __name__ == "__main__":
    main()
