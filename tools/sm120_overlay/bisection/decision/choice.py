"""Which program to run next: the largest expected information about where the step is, for its cost.

Not the posterior's median: with levels unknown that runs one ambiguous program for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, ndtr

from .line import Floats, Ints, Line
from .passfail import Shares
from .posterior import Gaps, Posterior

GRID = 81
WORTH = 1e-5  # a gap less probable than this moves no choice
SCENARIOS = 16


@dataclass(frozen=True)
class Outcomes:
    """The density of the next reading on a grid of values: per gap if the program is old or new, and with no step.

    `sharp` is how often one reading tells the sides apart.
    """

    old: Floats
    new: Floats
    none: Floats
    width: float
    sharp: float


def readings_ahead(gaps: Gaps, spread: float = 1.0) -> Outcomes:
    """Student's t around the levels of every gap.

    Args:
        gaps: steps fitted.
        spread: variances of a reading that a comparison takes (2 in pairs).
    """
    scale0 = np.sqrt(gaps.var * (spread + 1 / gaps.before))
    scale1 = np.sqrt(gaps.var * (spread + 1 / gaps.after))
    low = float(min((gaps.old - 5 * scale0).min(), (gaps.new - 5 * scale1).min()))
    high = float(max((gaps.old + 5 * scale0).max(), (gaps.new + 5 * scale1).max()))
    y = np.linspace(low, high if high > low else low + 1.0, GRID)
    least = 1.5 * (y[1] - y[0])  # what is sharper than the grid is told apart for certain anyway
    middle = np.array([float(np.mean((gaps.old + gaps.new) / 2))])
    whole = np.array([math.sqrt(float(np.min(gaps.var + gaps.step**2 * gaps.strength / (gaps.before + gaps.after))))])
    d = float(np.max(np.abs(gaps.step) / np.sqrt(gaps.var * spread)))
    return Outcomes(
        _student(y, gaps.old, np.maximum(scale0, least), gaps.df),
        _student(y, gaps.new, np.maximum(scale1, least), gaps.df),
        _student(y, middle, np.maximum(whole, least), gaps.df)[0], float(y[1] - y[0]), float(ndtr(d / 2)),
    )  # fmt: skip


def passes_ahead(shares: Shares) -> Outcomes:
    """Fail or pass."""
    old, new = (np.stack([1 - share, share], 1) for share in (shares.old, shares.new))
    sharp = 0.5 + float(np.max(np.abs(shares.new - shares.old))) / 2
    return Outcomes(old, new, np.array([1 - shares.all, shares.all]), 1.0, sharp)


def _student(y: Floats, middle: Floats, scale: Floats, df: float) -> Floats:
    """Densities of Student's t, a row for each middle."""
    norm = math.exp(gammaln((df + 1) / 2) - gammaln(df / 2)) / math.sqrt(df * math.pi)
    away = (y - middle[:, None]) / scale[:, None]
    found: Floats = norm / scale[:, None] * np.exp(-(df + 1) / 2 * np.log1p(away**2 / df))
    return found


def places_to_try(line: Line, edges: Ints, chance: Floats) -> Ints:
    """Both ends, every edge, and the quartiles by weight inside gaps that may hold the step."""
    tries = set(edges.tolist())
    for low, high, weight in zip(edges[:-1].tolist(), edges[1:].tolist(), chance.tolist(), strict=True):
        if high - low > 1 and weight > 0.01:
            inside = line.total[low] + np.array([0.25, 0.5, 0.75]) * (line.total[high] - line.total[low])
            found = np.searchsorted(line.total[low : high + 1], inside) + low
            tries |= set(np.clip(found, low + 1, high - 1).tolist())
    return np.array(sorted(tries), np.int64)


def next_place(
    line: Line, post: Posterior, ahead: Outcomes, pending: Sequence[int], cost: Callable[[int], float]
) -> tuple[int, float]:
    """The place whose next run tells most for its cost, and how many bits.

    Args:
        line: the programs.
        post: what is believed; its edges part at `pending`.
        ahead: outcomes per gap of `post`.
        pending: places whose runs are under way: what they will have told is averaged over.
        cost: of a run of a place.
    """
    kept = np.flatnonzero(post.gaps > WORTH * post.gaps.max())
    low, high = post.edges[:-1][kept], post.edges[1:][kept]
    ahead = Outcomes(ahead.old[kept], ahead.new[kept], ahead.none, ahead.width, ahead.sharp)
    tries = places_to_try(line, post.edges, post.gaps)
    weight = line.weight(low, high)
    told = np.zeros(len(tries))
    new = np.clip((line.total[tries][:, None] - line.total[low]) / weight, 0, 1)
    for chance, belief in _scenarios(np.append(post.gaps[kept], post.none), high, pending, ahead.sharp):
        told += chance * _information(belief, new, ahead)
    gain = told / np.array([cost(int(place)) for place in tries])
    best = int(np.argmax(np.round(gain, 12)))
    return int(tries[best]), float(told[best]) / math.log(2)


def _scenarios(belief: Floats, high: Ints, pending: Sequence[int], sharp: float) -> list[tuple[float, Floats]]:
    """Beliefs after the runs under way, with their chances: each says old or new, right as often as `sharp`."""
    found = [(1.0, belief / belief.sum())]
    for place in pending:
        right = np.append(np.where(high <= place, sharp, 1 - sharp), 0.5)
        split = [(share, one * channel) for share, one in found for channel in (right, 1 - right)]
        found = [(share * one.sum(), one / one.sum()) for share, one in split if one.sum() > 0]
        found = sorted(found, key=lambda pair: -pair[0])[:SCENARIOS]
    return found


def _information(belief: Floats, new: Floats, ahead: Outcomes) -> Floats:
    """Expected information of a run at each place, in nats: of what it says in all less what is noise."""
    gaps, none = belief[:-1], belief[-1]
    is_new, is_old = new * gaps, (1 - new) * gaps
    mixed = is_new @ ahead.new + is_old @ ahead.old + none * ahead.none
    noise = is_new @ _nats(ahead.new, ahead.width) + is_old @ _nats(ahead.old, ahead.width)
    found: Floats = _nats(mixed, ahead.width) - noise - none * _nats(ahead.none, ahead.width)
    return found


def _nats(density: Floats, width: float) -> Floats:
    """The entropy of each row."""
    found: Floats = -np.sum(density * np.log(density + 1e-300), -1) * width
    return found
