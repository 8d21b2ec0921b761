"""One run on this host: tree, build, server, command, number. It is picklable, and imported by a worker process.

What a command does never raises: it is in what comes back. So is a host that cannot write (a full disk): that run is
lost, and says nothing of its program.
"""

from __future__ import annotations

import tarfile
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from .build import build, env_folder
from .command import GRACE_S, MOST_OUTPUT, Ended, Order, last_lines, run
from .job import How, Job, Outcome, Ran
from .keeper import UNKILLABLE_S
from .metric import MetricError, read_metric
from .place import placed, turn
from .placeholders import environment, fill, free_port, host_name, python_of
from .serve import ServeError, serving

SKIPS = {125: Outcome.SKIPPED, 129: Outcome.SKIP_RANGE}
ABORT = 130
SLACK_S = 10.0


@dataclass(frozen=True)
class Place:
    """Where one run happens: its folder, what placeholders stand for, and the locks on its tree and this host."""

    job: Job
    folder: Path
    locks: tuple[int, ...]
    values: dict[str, str]

    @property
    def out(self) -> Path:
        """The folder for the run's own files, in which its command starts."""
        return self.folder / "out"

    @property
    def stdout(self) -> Path:
        """What the command printed."""
        return self.folder / "stdout"

    @property
    def stderr(self) -> Path:
        """What the command printed as errors."""
        return self.folder / "stderr"


def measure(job: Job) -> Ran:
    """Run a job's cell once on its tree, and leave no process of it behind.

    Returns:
        What became of it; `log` is the folder of its logs, or the build's log where the build failed. `seconds` are
        the command's alone, `build_seconds` 0 where the environment was there.
    """
    started = time.time()
    try:
        with ExitStack() as stack:
            try:
                host = stack.enter_context(turn(job, longest(job)))
            except BlockingIOError:
                why = "another run of this session does not leave this host"
                return Ran(job.number, Outcome.LOST, why=why, host=host_name(), started=started)
            started = time.time()
            ran = _measured(job, host)
    except (OSError, tarfile.TarError) as error:
        ran = Ran(job.number, Outcome.LOST, why=f"this host could not do it: {error}")
    return replace(ran, host=host_name(), started=started)


def longest(job: Job) -> float:
    """After how many seconds any run of a job's cell is over, at the latest."""
    cell, server = job.cell, job.cell.server
    before = (cell.build_limit_s if cell.build else 0.0) + (server.ready_s if server else 0.0)
    return before + cell.limit_s + to_end(job)


def to_end(job: Job) -> float:
    """How many seconds pass until all that a run started is gone, once its keepers are told to end it."""
    return max(GRACE_S, job.cell.server.stop_s if job.cell.server else 0.0) + UNKILLABLE_S + SLACK_S


def _measured(job: Job, host: int) -> Ran:
    with placed(job) as (tree, lock):
        place = _prepared(job, tree, (host, lock))
        seconds = 0.0
        if job.cell.build:
            built = build(Path(place.values["env"]), lambda env_lock, log: _building(place, env_lock, log))
            if built.outcome is not None:
                return _left(Ran(
                    job.number, built.outcome, why=built.why, exit=built.ended.exit, signal=built.ended.signal,
                    build_seconds=built.seconds, log=built.log,
                ), built.ended)  # fmt: skip
            seconds = built.seconds
        place.values["python"] = python_of(Path(place.values["env"]))
        return replace(_run(place), build_seconds=seconds, log=str(place.folder))


def _prepared(job: Job, tree: Path, locks: tuple[int, ...]) -> Place:
    runs = Path(job.work, "runs")
    runs.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{job.number}-", dir=runs)).resolve()
    env = env_folder(Path(job.work).resolve(), job.build_key)
    tree = tree.resolve()
    place = Place(job, folder, locks, {
        "tree": str(tree), "path": str((tree / job.python_path).resolve()), "env": str(env), "python": python_of(env),
        "commit": job.revision, "port": str(free_port()), "out": str(folder / "out"), "log": str(folder),
        "host": host_name(),
    })  # fmt: skip
    place.out.mkdir()
    return place


def _building(place: Place, lock: int, log: Path) -> Order:
    cell, env = place.job.cell, Path(place.values["env"])
    place.values["python"] = python_of(env)  # this one's: the folder is empty now
    return Order(
        fill(cell.build, place.values), env, environment(place.values, cell.env, packages=False), log, log,
        cell.build_limit_s, locks=(lock, *place.locks),
    )  # fmt: skip


def _run(place: Place) -> Ran:
    job, cell = place.job, place.job.cell
    env = environment(place.values, cell.env)
    order = Order(
        fill(cell.command, place.values), place.out, env, place.stdout, place.stderr, cell.limit_s, locks=place.locks
    )
    if cell.server is None:
        ended = run(order)
        return _left(_judged(place, ended), ended)
    log = place.folder / "server.log"
    server = replace(
        order, command=fill(cell.server.command, place.values), stdout=log, stderr=log, limit_s=0.0,
        grace_s=cell.server.stop_s,
    )  # fmt: skip
    health = fill(cell.server.health, place.values, quote=False)
    with ExitStack() as stack:
        try:
            up = stack.enter_context(serving(server, health, cell.server.ready_s))
        except ServeError as error:
            return Ran(job.number, Outcome.FAILED, why=str(error))
        ended = run(order, up)
        if not up():
            why = f"the server ended while the command ran: {last_lines(log)}"
            ran = Ran(job.number, Outcome.FAILED, why=why, exit=ended.exit, signal=ended.signal, seconds=ended.seconds)
        else:
            ran = _judged(place, ended)
    return _left(ran, ended)


def _judged(place: Place, ended: Ended) -> Ran:
    """What a command's end says, and its number."""
    metric = place.job.cell.metric
    told = replace(_outcome(place, ended), exit=ended.exit, signal=ended.signal, seconds=ended.seconds)
    if told.outcome is not Outcome.MEASURED or metric.how is How.EXIT:
        return told
    file = fill(metric.file, place.values, quote=False)
    try:
        return replace(told, value=read_metric(replace(metric, file=file), place.stdout, place.out))
    except MetricError as error:
        return replace(told, outcome=Outcome.FAILED, why=f"{error}")


def _outcome(place: Place, ended: Ended) -> Ran:
    number, cell, code = place.job.number, place.job.cell, ended.exit
    cut = {
        "limit": f"the command ran past its limit of {cell.limit_s:g} s",
        "output": f"the command printed more than {MOST_OUTPUT} bytes",
    }
    if ended.why in cut:
        return _failed(place, cut[ended.why])
    if ended.why:
        return Ran(number, Outcome.LOST, why=f"the command was stopped from outside ({ended.why})")
    if ended.signal or code is None or code >= ABORT:
        how = f"died of signal {ended.signal}" if ended.signal else f"ended with exit code {code}"
        return Ran(number, Outcome.ABORTED, why=f"the command {how}: {_last(place)}")
    if code in SKIPS:
        return Ran(number, SKIPS[code], why=f"the command said so with exit code {code}")
    if cell.metric.how is How.EXIT and code < 128:
        return Ran(number, Outcome.MEASURED, value=float(code == 0))
    return _failed(place, f"the command ended with exit code {code}") if code else Ran(number, Outcome.MEASURED)


def _failed(place: Place, why: str) -> Ran:
    return Ran(place.job.number, Outcome.FAILED, why=f"{why}: {_last(place)}")


def _last(place: Place) -> str:
    return last_lines(place.stderr, place.stdout)


def _left(ran: Ran, ended: Ended) -> Ran:
    """The same, but lost where a process outlives KILL: whatever runs next on this host is disturbed by it."""
    if not ended.left:
        return ran
    numbers = ", ".join(map(str, ended.left))
    return replace(ran, outcome=Outcome.LOST, value=None, why=f"processes {numbers} outlive KILL on this host")
