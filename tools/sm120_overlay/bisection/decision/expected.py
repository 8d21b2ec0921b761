"""How many runs a bisection takes, about: a formula that was fitted to simulations (benchmarks/bisect.py)."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

ASSUMED = 2.0  # the effect in units of the noise, before anything was measured
SMALLEST, LARGEST = 0.25, 16.0  # beyond these the formula was never held against a simulation


@lru_cache(maxsize=256)
def capacity(d: float) -> float:
    """Bits that one run tells of an even guess, with both levels and the noise known, `d` noises apart."""
    x = np.linspace(-8.0, d + 8.0, 2001)
    old, new = (np.exp(-0.5 * (x - level) ** 2) / math.sqrt(2 * math.pi) for level in (0.0, d))
    return _bits((old + new) / 2, x[1] - x[0]) - _bits(old, x[1] - x[0])


def _bits(density: np.ndarray, step: float) -> float:
    """The entropy of a density on an even grid."""
    return float(-np.sum(density * np.log2(density + 1e-300)) * step)


def expected_runs(changes: int, d: float) -> float:
    """About how many runs find one of so many changes, ends and check included.

    Args:
        changes: how many it may be.
        d: the effect in units of the noise.
    """
    d = round(min(max(abs(d), SMALLEST), LARGEST), 1)
    return 1.3 * math.log2(max(changes, 1)) / capacity(d) + 50 / d**2 + 7
