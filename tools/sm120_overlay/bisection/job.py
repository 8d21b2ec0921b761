"""What is run and what comes back: a cell (the same for every revision), a job of it, and what a host tells of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class How(str, Enum):
    """Where a metric is read."""

    JSON = "json"  # a path into a JSON object
    JSONL = "jsonl"  # the same into the last line of a JSON lines file
    REGEX = "regex"  # the first group of a pattern, its last match
    EXIT = "exit"  # the exit code: 0 passes, 1 to 124, 126, 127 do not


class Scale(str, Enum):
    """On which scale values are compared."""

    LOG = "log"  # positive numbers whose ratios count: throughput, latency
    LINEAR = "linear"  # numbers whose differences count
    PASS_FAIL = "pass-fail"  # 1 or 0, each with some probability
    EXACT = "exact"  # the same program gives the same value, always: one run is the truth


@dataclass(frozen=True)
class Metric:
    """One number of one run. `name` is a path or a pattern, `file` where it stands ("": standard output)."""

    how: How
    name: str = ""
    file: str = ""
    scale: Scale = Scale.LOG


@dataclass(frozen=True)
class Server:
    """A server that runs while the command measures: its command, a URL that answers 200 when it is ready, seconds."""

    command: str
    health: str
    ready_s: float = 1200.0
    stop_s: float = 30.0


@dataclass(frozen=True)
class Cell:
    """What is measured, the same for every revision. Commands are a shell's, with placeholders (docs/bisecting.md)."""

    command: str
    metric: Metric
    build: str = ""
    server: Server | None = None
    limit_s: float = 3600.0
    build_limit_s: float = 7200.0
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """One run of a cell on one program.

    `number` is unique in a session. `archive` is a tar of the tree (None: it lies at `tree_file` on the host too),
    `python_path` where in it packages begin ("python", "."), `work` a folder on the host that belongs to the session.
    `host` is where it must run ("": anywhere), `shun` where it should not, if there is another host.
    """

    number: int
    program: int
    revision: str
    tree: str
    key: str
    build_key: str
    cell: Cell
    work: str
    python_path: str = "."
    tree_file: str = ""
    archive: bytes | None = None
    host: str = ""
    shun: tuple[str, ...] = ()


class Outcome(str, Enum):
    """How a run ended."""

    MEASURED = "measured"
    SKIPPED = "skipped"  # the command said so (125): this program cannot be judged
    SKIP_RANGE = "skip-range"  # 129: nor can its neighbours up to the next programs that were measured
    UNBUILT = "unbuilt"  # the build failed
    FAILED = "failed"  # no number: exit code, no metric, NaN, a limit of time
    ABORTED = "aborted"  # a signal, or an exit code of 130 and more: stop everything
    LOST = "lost"  # the host went away


@dataclass(frozen=True)
class Ran:
    """What a host tells of a job. `value` is as the command gave it, `why` a sentence where there is none."""

    number: int
    outcome: Outcome
    value: float | None = None
    why: str = ""
    exit: int | None = None
    signal: int = 0
    host: str = ""
    started: float = 0.0
    seconds: float = 0.0
    build_seconds: float = 0.0
    log: str = ""
