"""What a decision is made on, and what it can be."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..job import Scale


@dataclass(frozen=True)
class Field:
    """The programs of a history, 0 to `last`, as a decision sees them.

    `priors[j]` is the weight of the change into program j + 1, over 0. No run can judge an `untestable` program;
    neither end is one.
    """

    priors: tuple[float, ...]
    untestable: frozenset[int] = frozenset()

    @property
    def last(self) -> int:
        """The number of the new end's program."""
        return len(self.priors)


@dataclass(frozen=True)
class Reading:
    """One run that gave a value, on the scale of the decision (a logarithm already, where ratios count); 1.0 passes.

    `at` is the order in which the runs were made.
    """

    program: int
    value: float
    host: str = ""
    at: int = 0


@dataclass(frozen=True)
class Rules:
    """How sure is sure enough.

    `min_effect` is on the scale of the decision (log(1.05) for 5 %): a smaller difference of the ends is no change.
    `ends` runs on each end come first, interleaved; `verify` runs at least are made on the culprit and on the program
    before. `paired`: every reading of another program counts as its difference to a run of the old end
    beside it. `most_runs` ends it all.
    """

    scale: Scale = Scale.LOG
    min_effect: float = 0.0
    confidence: float = 0.99
    ends: int = 3
    verify: int = 3
    paired: bool = False
    prior_none: float = 0.1
    most_runs: int = 2000


@dataclass(frozen=True)
class Belief:
    """The posterior: of the change into program j + 1 at `changes[j]`, of none of them at `none`; 1 in all."""

    changes: tuple[float, ...]
    none: float


class Status(str, Enum):
    """What a bisection found."""

    FOUND = "found"
    BLOCK = "block"  # one of several changes that untestable programs join
    CREDIBLE_SET = "credible-set"  # not sure enough when the runs were spent
    NO_CHANGE = "no-change"  # the ends do not differ by as much as was asked about
    MULTIPLE = "multiple"
    UNSTABLE = "unstable"  # one program does not give one level: no number of runs repairs that


@dataclass(frozen=True)
class Level:
    """A side's level with its interval (at the rules' confidence), on the scale of the decision, and its runs."""

    mean: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True)
class Culprit:
    """A change that was found: programs that it may lead into (several: a block), its probability, before and after."""

    programs: tuple[int, ...]
    probability: float
    before: Level
    after: Level


@dataclass(frozen=True)
class Verdict:
    """The answer.

    `culprits` are most probable first: one for found and block, each change for multiple, candidates for a
    credible-set. `old` and `new` are the ends, `effect` the difference of the ends, `noise` the standard deviation of
    runs of one program. `why` is one sentence with its numbers on the decision's scale.
    """

    status: Status
    culprits: tuple[Culprit, ...]
    old: Level
    new: Level
    effect: Level
    noise: float
    why: str


@dataclass(frozen=True)
class Ask:
    """What to run next: program numbers, the most telling first, and why each."""

    programs: tuple[int, ...]
    why: tuple[str, ...]


@dataclass(frozen=True)
class Decision:
    """What is believed, what to do, and how many runs more it will take, about (0 with a verdict)."""

    belief: Belief
    next: Ask | Verdict
    more_runs: float
