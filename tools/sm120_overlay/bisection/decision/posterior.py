"""What Gaussian readings say of where one step lies, if anywhere: levels, noise and the blocks' offsets unknown.

The likelihood is the same for all changes between two measured programs (a *gap*), so the state is as large as what
was measured, however long the history. With B the sum of squares that a step in the gap explains within blocks, E what
it leaves, n the readings and b the blocks, a step of d noises with d Cauchy (Jeffreys, Zellner and Siow) has, against
no step at all,

    BF = integral of (1 + x g)^-1/2 ((E + B) / (E + B / (1 + x g)))^((n - b) / 2) p(g) dg,   g ~ 1 / chi2(1)

where x is the within-block sum of squares of the gap's indicator (n_old n_new / n with one block). Offsets of blocks
are projected out (Frisch, Waugh and Lovell), which is exact: there is nothing to calibrate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from .line import Floats, Ints, Line, Runs

FLOOR = 1e-3  # the least noise, in units of the range of all values: a deterministic metric has none
_LOG_G = np.linspace(math.log(0.02), math.log(1e6), 40)
_LOG_P = -0.5 * math.log(2 * math.pi) - 0.5 * _LOG_G - 0.5 * np.exp(-_LOG_G) + math.log(_LOG_G[1] - _LOG_G[0])


@dataclass(frozen=True)
class Gaps:
    """The gaps between measured places: a step in each, fitted, and its log Bayes factor against none.

    `edges` are places, one more than there are gaps. `step`, `old`, `new`, `var` are the size, both levels and the
    variance of one reading; `before` and `after` count readings, `strength` is x above, `df` are degrees of freedom.
    """

    edges: Ints
    bayes: Floats
    step: Floats
    old: Floats
    new: Floats
    var: Floats
    strength: Floats
    before: Floats
    after: Floats
    df: float


@dataclass(frozen=True)
class Posterior:
    """A probability per gap, and of none."""

    edges: Ints
    gaps: Floats
    none: float

    def atoms(self, line: Line) -> Floats:
        """A probability per atom of the line between the first edge and the last."""
        low, high = int(self.edges[0]), int(self.edges[-1])
        weights = np.diff(line.total[low : high + 1])
        share = self.gaps / line.weight(self.edges[:-1], self.edges[1:])
        found: Floats = weights * np.repeat(share, np.diff(self.edges))
        return found


def gaps_of(runs: Runs, extra: tuple[int, ...] = ()) -> Gaps:
    """A step fitted into each gap between measured places.

    Args:
        extra: places that part gaps without a reading (runs that are under way).
    """
    edges = np.unique(np.concatenate([runs.place, np.array(extra, np.int64)]))
    value, unit = runs.value - np.median(runs.value), float(np.ptp(runs.value)) or 1.0
    column, blocks = np.searchsorted(edges, runs.place), int(runs.block.max()) + 1
    count, total = np.zeros((blocks, len(edges))), np.zeros((blocks, len(edges)))
    np.add.at(count, (runs.block, column), 1.0)
    np.add.at(total, (runs.block, column), value)
    used = count.sum(1) > 0
    count, total = count[used], total[used]
    size, sums = count.sum(1, keepdims=True), total.sum(1, keepdims=True)
    after, after_sum = size - np.cumsum(count, 1)[:, :-1], sums - np.cumsum(total, 1)[:, :-1]
    strength = (after * (size - after) / size).sum(0)
    cross = (after_sum - after * sums / size).sum(0)
    step = np.divide(cross, strength, out=np.zeros_like(cross), where=strength > 1e-9)
    whole = float((value**2).sum() - (sums**2 / size).sum()) + len(runs) * (FLOOR * unit) ** 2
    left = np.maximum(whole - step * cross, len(runs) * (FLOOR * unit) ** 2)
    df = float(max(len(runs) - len(size) - 1, 1))
    share = after.sum(0) / len(runs)
    old = np.median(runs.value) + value.mean() - step * share
    return Gaps(
        edges, _bayes(whole, left, strength, len(runs) - len(size)), step, old, old + step, left / df,
        strength, (size - after).sum(0), after.sum(0), df,
    )  # fmt: skip


def _bayes(whole: float, left: Floats, strength: Floats, power: float) -> Floats:
    """The log Bayes factor of a step in each gap."""
    grown = 1.0 + strength[:, None] * np.exp(_LOG_G)
    rest = np.log(left[:, None] + (whole - left)[:, None] / grown)
    found: Floats = logsumexp(_LOG_P - 0.5 * np.log(grown) + power / 2 * (math.log(whole) - rest), axis=1)
    return found


def posterior_of(line: Line, edges: Ints, bayes: Floats, prior_none: float) -> Posterior:
    """Bayes' rule over gaps and none."""
    weight = line.weight(edges[:-1], edges[1:])
    weight = weight / weight.sum()
    logs = np.concatenate([bayes + np.log(weight) + math.log1p(-prior_none), [math.log(prior_none or 1e-300)]])
    chance = np.exp(logs - logs.max())
    chance /= chance.sum()
    return Posterior(edges, chance[:-1], float(chance[-1]))
