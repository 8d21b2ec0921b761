"""The same for readings that pass or fail, each with some probability per side (Jeffreys' Beta, one half each)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import betaln

from .line import Floats, Ints, Runs


@dataclass(frozen=True)
class Shares:
    """Per gap, the share that passes before and after a step in it, and its log Bayes factor against none."""

    edges: Ints
    bayes: Floats
    old: Floats
    new: Floats
    all: float


def shares_of(runs: Runs, extra: tuple[int, ...] = ()) -> Shares:
    """A step fitted into each gap between measured places; hosts do not count.

    Args:
        extra: places that part gaps without a reading.
    """
    edges = np.unique(np.concatenate([runs.place, np.array(extra, np.int64)]))
    column = np.searchsorted(edges, runs.place)
    count = np.bincount(column, minlength=len(edges)).astype(np.float64)
    passed = np.bincount(column, runs.value, minlength=len(edges)).astype(np.float64)
    before, good = np.cumsum(count)[:-1], np.cumsum(passed)[:-1]
    after, fine = count.sum() - before, passed.sum() - good
    bayes = (
        _evidence(good, before)
        + _evidence(fine, after)
        - _evidence(passed.sum(keepdims=True), count.sum(keepdims=True))
    )
    return Shares(
        edges, bayes, (0.5 + good) / (1 + before), (0.5 + fine) / (1 + after),
        float((0.5 + passed.sum()) / (1 + count.sum())),
    )  # fmt: skip


def _evidence(passed: Floats, count: Floats) -> Floats:
    """The log probability of so many passes in an order, with a share unknown."""
    found: Floats = betaln(0.5 + passed, 0.5 + count - passed) - math.log(math.pi)
    return found
