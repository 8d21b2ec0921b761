"""Asking trees: this side of the host's sockets. Nothing heavy is imported here."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from sm120_overlay.cache import cache_dir, publish_file
from sm120_overlay.serving.asking.host import lines, say
from sm120_overlay.serving.asking.question import Question
from sm120_overlay.serving.rig.errors import RigError

PACKAGE = Path(__file__).resolve().parents[2]
# The host runs this very copy of the package, wherever it lies, and never another one that is installed.
BOOT = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("sm120_overlay", sys.argv[1])
sys.modules["sm120_overlay"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["sm120_overlay"])
from sm120_overlay.serving.asking.host import main
sys.exit(main())
"""


class Absent(RigError):
    """A package of the `rig` extra is not installed; `module` names it."""

    def __init__(self, module: str) -> None:
        """Name the module that could not be imported."""
        super().__init__(f"The module {module} is not installed for {sys.executable}.")
        self.module = module


@dataclass(frozen=True)
class Warm:
    """A process that stands on one tree and waits for questions."""

    link: socket.socket
    report: str
    """What it stands on: `rig.Standing.report`."""

    def ask(self, question: Question) -> dict[str, Any]:
        """The answer, as `answer.answer` has it."""
        with suppress(ConnectionError):  # the other side is gone; that is heard next
            say(self.link, question.as_json())
        return _heard(self.link)


@dataclass(frozen=True)
class Host:
    """A process that has loaded what all trees share."""

    link: socket.socket
    process: subprocess.Popen[bytes]
    lock: threading.Lock = field(default_factory=threading.Lock)

    def stop(self) -> None:
        """End it and all that it forked, at once: it leads a session of its own."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    @contextmanager
    def stand(self, tree: Path) -> Iterator[Warm]:
        """A process on a tree, for as long as the block lasts. Raises RigError where none can stand there."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, self.lock:
                socket.send_fds(self.link, [json.dumps({"tree": str(tree)}).encode()], [theirs.fileno()])
            yield Warm(ours, _heard(ours)["report"])


def _heard(link: socket.socket) -> dict[str, Any]:
    """The next object of the other side; RigError where it is an error, or none comes."""
    try:
        told = next(lines(link), None)
    except ConnectionError:
        told = None
    if told is None:
        raise RigError("A process of the rig ended without an answer.")
    if "absent" in told:
        raise Absent(told["absent"])
    if "error" in told:
        raise RigError(f"The rig cannot answer: {told['error']}")
    return dict(told)


@contextmanager
def start(ground: Path) -> Iterator[Host]:
    """A host for trees that require what the tree `ground` requires, for as long as the block lasts.

    Raises:
        Absent: a package of the `rig` extra is missing.
        RigError: it could not start, in its own words.
    """
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", BOOT, str(PACKAGE / "__init__.py")]
    with ExitStack() as stack:
        errors = stack.enter_context(TemporaryFile())
        with theirs:
            process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=errors, stderr=errors, start_new_session=True
            )
        stack.callback(process.wait)
        stack.enter_context(ours)
        host = Host(ours, process)
        with suppress(ConnectionError):
            socket.send_fds(ours, [json.dumps({"ground": str(ground)}).encode()], [])
        try:
            _heard(ours)
        except Absent:
            raise
        except RigError as error:
            raise RigError(f"{error} {_last_words(errors)}".strip()) from None
        yield host


def _last_words(errors: IO[bytes]) -> str:
    errors.seek(0)
    return (errors.read().decode(errors="replace").strip().splitlines() or [""])[-1]


def key(tree: Path, question: Question) -> str:
    """What an answer depends on, as one hash: tree (named by its digest), question, our code, what is installed."""
    named = hashlib.sha256(f"{sys.version}\0{tree.name}\0{question.digest}\0{_environment()}".encode())
    for file in sorted((PACKAGE / "serving").rglob("*.py")):
        named.update(str(file.relative_to(PACKAGE)).encode() + b"\0" + file.read_bytes())
    named.update("\n".join(sorted(f"{dist.metadata['Name']} {dist.version}" for dist in distributions())).encode())
    return named.hexdigest()


def _environment() -> str:
    """The variables that upstream may read."""
    return json.dumps(sorted((name, value) for name, value in os.environ.items() if name.startswith(_READ)))


_READ = ("SGLANG", "SGL_", "FLASHINFER", "NCCL", "CUDA", "HF_", "TRANSFORMERS")


def answers(
    trees: Sequence[Path], question: Question, host: Callable[[], Host], *, jobs: int = 2, cached: bool = True
) -> list[dict[str, Any]]:
    """The trees' answers, in their order: from the cache, or each from a process of its own.

    Args:
        host: gives a running one; called only where an answer is not cached.
        jobs: how many trees are asked at a time.
        cached: whether answers of earlier runs are taken and this one's kept.

    Raises:
        Absent, RigError: as `start` and `Host.stand`.
    """
    places = [cache_dir("resolved", f"{key(tree, question)}.json") for tree in trees]
    told = [json.loads(place.read_bytes()) if cached and place.is_file() else None for place in places]
    missing = [number for number, one in enumerate(told) if one is None]
    if missing:
        running = host()
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            try:
                new = list(pool.map(lambda number: _asked(running, trees[number], question), missing))
            except KeyboardInterrupt:
                running.stop()  # else the pool would wait for answers that nobody wants
                raise
        for number, one in zip(missing, new, strict=True):
            told[number] = one
            if cached:
                publish_file(places[number], json.dumps(one).encode())
    return [one for one in told if one is not None]


def _asked(host: Host, tree: Path, question: Question) -> dict[str, Any]:
    with host.stand(tree) as warm:
        return warm.ask(question)
