"""Programs and readings as arrays: only the programs that a run can judge, only the readings that count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .nouns import Field, Reading

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Line:
    """The testable programs of a field by place, 0 to `last`; between two places lies an *atom*: changes no run parts.

    `programs` are their numbers, `total[place]` is the weight of all changes before it.
    """

    programs: Ints
    total: Floats

    @property
    def last(self) -> int:
        """The place of the new end."""
        return len(self.programs) - 1

    def joined(self, atom: int) -> tuple[int, ...]:
        """The programs that the changes of an atom lead into."""
        return tuple(range(int(self.programs[atom]) + 1, int(self.programs[atom + 1]) + 1))

    def weight(self, start: Ints, stop: Ints) -> Floats:
        """The weight of the changes between places."""
        found: Floats = self.total[stop] - self.total[start]
        return found


@dataclass(frozen=True)
class Runs:
    """Readings as arrays: the place, the value, and the block in which alone values are compared."""

    place: Ints
    value: Floats
    block: Ints

    def __len__(self) -> int:
        """How many there are."""
        return len(self.place)

    def within(self, low: int, high: int) -> Runs:
        """The readings from one place to another, both included."""
        kept = (self.place >= low) & (self.place <= high)
        return Runs(self.place[kept], self.value[kept], self.block[kept])

    def at(self, *places: int) -> Runs:
        """The readings of these places."""
        kept = np.isin(self.place, places)
        return Runs(self.place[kept], self.value[kept], self.block[kept])


def line_of(field: Field) -> Line:
    """The testable programs of a field; its ends are always."""
    banned = field.untestable - {0, field.last}
    programs = np.array([number for number in range(field.last + 1) if number not in banned], np.int64)
    total = np.concatenate([[0.0], np.cumsum(np.asarray(field.priors, np.float64))])
    return Line(programs, total[programs] / (total[-1] or 1.0))


def runs_of(line: Line, readings: Sequence[Reading], paired: bool) -> Runs:
    """The readings in a fixed order; one of a program that has been called untestable since does not count.

    A host is a block: only what one host says of two programs is compared, so that a slow host shifts nothing and
    needs no calibration. With `paired` a block is one run of the old end with the runs nearest to it in time (the
    earlier old run where two are as near) on the same host: whatever drifts more slowly than that falls out.
    """
    place = {int(number): at for at, number in enumerate(line.programs)}
    kept = [reading for reading in readings if reading.program in place]
    kept.sort(key=lambda one: (one.host, one.at, one.program, one.value))
    names = [(one.host, _beside(one, kept) if paired else 0) for one in kept]
    numbers = {name: at for at, name in enumerate(dict.fromkeys(names))}
    return Runs(
        np.array([place[one.program] for one in kept], np.int64),
        np.array([one.value for one in kept], np.float64),
        np.array([numbers[name] for name in names], np.int64),
    )


def _beside(one: Reading, kept: Sequence[Reading]) -> int:
    """The moment of the old end's run that is nearest in time on the same host (-1: there is none)."""
    olds = [other.at for other in kept if other.program == 0 and other.host == one.host]
    return min(olds, key=lambda at: (abs(at - one.at), at), default=-1)
