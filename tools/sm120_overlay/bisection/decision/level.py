"""Levels, and three questions about them: do the ends differ, is one side one level, how sure is a number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
from scipy.special import fdtrc, ndtri, stdtrit

from ..job import Scale
from .line import Floats, Runs
from .nouns import Level, Rules
from .passfail import shares_of
from .posterior import gaps_of

CREDIBLE = math.log(5.0)  # the ends differ: a step is five times as likely as none, by their runs alone
PROVED = math.log(50.0)  # no answer names a change for less, so that chance alone gets there in 2 % at most (Ville)
MOST_ENDS = 60  # runs at each end: what they cannot tell apart then is called no change
FAINT_NOISES, FAINT_SHARE = 0.75, 0.2  # without `min_effect`, a difference surely under so much is no change
SCATTER = 0.005  # a side may not be one level: chance of its programs' means being so far apart
HOPELESS, TRIMMED = 0.0005, 0.08  # it surely is not: the same without this share of the readings, the furthest away


class Ends(Enum):
    """What the runs of both ends say of each other."""

    DIFFER = "differ"
    SAME = "same"
    UNSURE = "unsure"


@dataclass(frozen=True)
class Gap:
    """The difference of two places by their own runs: its interval, the noise, and what it amounts to."""

    effect: Level
    noise: float
    ends: Ends
    why: str


def compare(runs: Runs, low: int, high: int, rules: Rules) -> Gap:
    """Whether two places differ, by their runs alone.

    They do if the step has five to one against none and is `min_effect` at least. They do not if the interval of the
    difference (at the rules' confidence) lies within `min_effect`; without `min_effect`, within 0.75 noises (0.2 of
    passes); or if 60 runs at each could not tell.
    """
    both = runs.at(low, high)
    few = min(int((both.place == low).sum()), int((both.place == high).sum()))
    if few == 0:
        return Gap(Level(0.0, -math.inf, math.inf, len(both)), 0.0, Ends.UNSURE, "an end has no run")
    size, error, noise, bayes, faint = _difference(both, rules)
    effect = _bounded(Level(size, size - error, size + error, len(both)), rules.scale)
    most = rules.min_effect or faint
    if bayes >= CREDIBLE and abs(size) >= rules.min_effect:
        return Gap(effect, noise, Ends.DIFFER, f"the ends differ by {size:.4g} ± {error:.2g}")
    if few >= rules.ends and abs(size) + error <= most:
        return Gap(effect, noise, Ends.SAME, f"the ends differ by {size:.4g} ± {error:.2g}, surely under {most:.3g}")
    if few >= MOST_ENDS:
        why = f"{few} runs at each end do not show a difference to look for: {size:.4g} ± {error:.2g}"
        return Gap(effect, noise, Ends.SAME, why)
    return Gap(effect, noise, Ends.UNSURE, f"the ends differ by {size:.4g} ± {error:.2g}: not sure yet")


def _bounded(effect: Level, scale: Scale) -> Level:
    """Shares of runs that pass differ by 1 at most."""
    if scale is not Scale.PASS_FAIL:
        return effect
    return Level(effect.mean, max(effect.low, -1.0), min(effect.high, 1.0), effect.runs)


def _difference(both: Runs, rules: Rules) -> tuple[float, float, float, float, float]:
    """Of two places: the difference, its interval's half, the noise, the log Bayes factor, what is faint."""
    half = 0.5 + rules.confidence / 2
    if rules.scale is Scale.PASS_FAIL:
        shares = shares_of(both)
        old, new, counts = shares.old[0], shares.new[0], np.bincount(np.searchsorted(shares.edges, both.place))
        error = math.sqrt(old * (1 - old) / (counts[0] + 2) + new * (1 - new) / (counts[1] + 2))
        noise = math.sqrt((old * (1 - old) + new * (1 - new)) / 2)
        return float(new - old), float(ndtri(half)) * error, noise, float(shares.bayes[0]), FAINT_SHARE
    gaps, flat = gaps_of(both), float(np.ptp(both.value)) == 0
    noise, strength = math.sqrt(gaps.var[0]), float(gaps.strength[0])
    if flat:
        return 0.0, 0.0, 0.0, 0.0, 0.0
    error = noise / math.sqrt(strength) * float(stdtrit(gaps.df, half)) if strength > 1e-9 else math.inf
    return float(gaps.step[0]), error, noise, float(gaps.bayes[0]), FAINT_NOISES * noise


def level_of(runs: Runs, low: int, high: int, noise: float, df: float, confidence: float) -> Level:
    """The level of the places from one to another, with the noise known from `df` degrees of freedom."""
    values = runs.within(low, high).value
    if not len(values):
        return Level(0.0, -math.inf, math.inf, 0)
    mean, error = float(values.mean()), float(stdtrit(max(df, 1.0), 0.5 + confidence / 2)) * noise
    return Level(mean, mean - error / math.sqrt(len(values)), mean + error / math.sqrt(len(values)), len(values))


def levelled(runs: Runs, at: int) -> Runs:
    """The readings with the blocks' offsets taken out, as a step after the place `at` leaves them; one block then."""
    gaps = gaps_of(runs)
    step = float(gaps.step[np.searchsorted(gaps.edges, at, side="right") - 1])
    rest = runs.value - step * (runs.place > at)
    sums, size = np.bincount(runs.block, rest), np.bincount(runs.block)
    offset = sums / np.maximum(size, 1) - rest.mean()
    return Runs(runs.place, runs.value - offset[runs.block], np.zeros_like(runs.block))


def scattered(
    runs: Runs, at: int, lost: int, skip: int = -1, strict: bool = False, matters: float = 0.0
) -> tuple[bool, ...]:
    """Whether the programs before and after a step are of more than one level each (analysis of variance).

    Args:
        runs: levelled.
        at: the last place before the step.
        lost: degrees of freedom that the offsets took.
        strict: whether to be sure, and of more than some disturbed runs.
        skip: a place that does not count (the old end, where the others are differences to it).
        matters: programs whose means lie nearer together than this are of one level.
    """
    kept = runs.place != skip
    centre = np.where(runs.place <= at, np.median(runs.value[runs.place <= at]), np.median(runs.value[runs.place > at]))
    away = np.where(kept, np.abs(runs.value - centre), -1.0)
    kept[np.argsort(-away, kind="stable")[: int(TRIMMED * kept.sum() * strict)]] = (
        False  # disturbed runs are no programs' level
    )
    edges, column = np.unique(runs.place[kept], return_inverse=True)
    size, sums = np.bincount(column).astype(np.float64), np.bincount(column, runs.value[kept])
    mean = sums / np.maximum(size, 1)
    within = float(((runs.value[kept] - mean[column]) ** 2).sum())
    df, least = int(size.sum()) - len(edges) - lost, HOPELESS if strict else SCATTER
    before = edges <= at
    apart = [side.any() and float(np.ptp(mean[side])) > matters for side in (before, ~before)]
    chances = [_chance(size[side], mean[side], within, df) for side in (before, ~before)]
    return tuple(bool(far) and chance < least for far, chance in zip(apart, chances, strict=True))


def _chance(size: Floats, mean: Floats, within: float, df: int) -> float:
    """Of means lying so far apart by the spread within programs alone."""
    if len(size) < 2 or df < 1:
        return 1.0
    between = float((size * (mean - (size * mean).sum() / size.sum()) ** 2).sum()) / (len(size) - 1)
    if between <= 1e-18 * (1e-300 + float((mean**2).max())):
        return 1.0
    return float(fdtrc(len(size) - 1, df, between / max(within / df, 1e-300)))
