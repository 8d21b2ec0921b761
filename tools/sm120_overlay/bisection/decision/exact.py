"""Values that are the truth after one run: classic bisection of every stretch whose ends differ."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from .line import Line, line_of
from .nouns import Ask, Belief, Culprit, Decision, Field, Level, Reading, Rules, Status, Verdict

Gap = tuple[int, int]
ENDS = 2  # runs of each end: a value that is not the same twice is none to bisect by


def decide_exact(
    field: Field, readings: Sequence[Reading], rules: Rules, batch: int, pending: Sequence[int]
) -> Decision:
    """The decision where the same program always gives the same value.

    Both ends first, twice each: a value that is none to bisect by is found out there. A program with two values is
    unstable; equal ends are no change. Every stretch between neighbouring runs that differ is halved (by weight) until
    no run can part it: a third value in the middle is a second change and is found too, as `multiple`.
    """
    line = line_of(field)
    places = {int(number): at for at, number in enumerate(line.programs)}
    values: dict[int, float] = {}
    counts: dict[int, int] = {}
    for one in sorted(readings, key=lambda one: (one.at, one.host, one.value)):
        if one.program not in places:
            continue
        place = places[one.program]
        counts[place] = counts.get(place, 0) + 1
        if values.setdefault(place, one.value) != one.value:
            why = f"program {one.program} gave {values[place]:g} and {one.value:g}: one run is not the truth"
            verdict = _verdict(line, values, counts, Status.UNSTABLE, [], why)
            return Decision(_belief(field, line, values, [], rules), verdict, 0.0)
    known = sorted(values)
    steps = [(a, b) for a, b in pairwise(known) if values[a] != values[b]]
    ended = line.last == 0 or min(counts.get(0, 0), counts.get(line.last, 0)) >= ENDS
    belief = _belief(field, line, values, steps, rules)
    if ended and (line.last == 0 or values[0] == values[line.last]):
        why = "there is one program only" if line.last == 0 else f"both ends give {values[0]:g}"
        return Decision(belief, _verdict(line, values, counts, Status.NO_CHANGE, [], why), 0.0)
    wide = [step for step in steps if step[1] - step[0] > 1]
    if ended and not wide:
        return Decision(belief, _verdict(line, values, counts, _status(line, steps), steps, _why(values, steps)), 0.0)
    if len(readings) >= rules.most_runs:
        why = f"{len(readings)} runs were made"
        return Decision(belief, _verdict(line, values, counts, Status.CREDIBLE_SET, steps, why), 0.0)
    ways = [places[number] for number in pending if number in places]
    asks = _halves(line, wide, set(ways), batch) if ended else _ends(line, counts, ways, batch)
    more = sum(float(np.ceil(np.log2(b - a))) for a, b in wide) if ended else 0.0
    if not ended:
        more = len(_lacking(line, counts, ())) + float(np.ceil(np.log2(line.last)))
    ask = Ask(tuple(int(line.programs[place]) for place, _ in asks), tuple(why for _, why in asks))
    return Decision(belief, ask, max(more, 1.0))


def _status(line: Line, steps: Sequence[Gap]) -> Status:
    """Of steps that no run can part."""
    if len(steps) > 1:
        return Status.MULTIPLE
    return Status.FOUND if len(line.joined(steps[0][0])) == 1 else Status.BLOCK


def _why(values: dict[int, float], steps: Sequence[Gap]) -> str:
    """The values on both sides of every step."""
    return "; ".join(f"{values[a]:g} before, {values[b]:g} after" for a, b in steps)


def _lacking(line: Line, counts: dict[int, int], ways: Sequence[int]) -> list[int]:
    """The runs that the ends lack, in turn."""
    made = {end: counts.get(end, 0) + ways.count(end) for end in (0, line.last)}
    return [end for number in range(ENDS) for end in (0, line.last) if made[end] <= number]


def _ends(line: Line, counts: dict[int, int], ways: Sequence[int], batch: int) -> list[tuple[int, str]]:
    """The runs that the ends lack, less those under way."""
    lacking = _lacking(line, counts, ways) or _lacking(line, counts, ())[:1]
    return [(end, f"both ends are run first, {ENDS} times each") for end in lacking[: max(batch, 1)]]


def _halves(line: Line, wide: Sequence[Gap], ways: set[int], batch: int) -> list[tuple[int, str]]:
    """Programs that halve the widest stretches by weight, those under way taken as edges."""
    found: list[tuple[int, str]] = []
    for _ in range(max(batch, 1)):
        taken = ways | {place for place, _ in found}
        parts = [part for a, b in wide for part in _parts(a, b, taken) if part[1] - part[0] > 1]
        if not parts:
            break
        a, b = max(parts, key=lambda part: (float(line.total[part[1]] - line.total[part[0]]), -part[0]))
        middle = (line.total[a] + line.total[b]) / 2
        place = int(a + 1 + np.argmin(np.abs(line.total[a + 1 : b] - middle)))
        found.append((place, f"it halves the change between programs {line.programs[a]} and {line.programs[b]}"))
    a, b = wide[0]
    return found or [(a + 1, "it is under way; nothing else is left to run")]


def _parts(a: int, b: int, taken: set[int]) -> list[Gap]:
    """A stretch parted where something is under way."""
    edges = [a, *sorted(place for place in taken if a < place < b), b]
    return list(pairwise(edges))


def _belief(field: Field, line: Line, values: dict[int, float], steps: Sequence[Gap], rules: Rules) -> Belief:
    """Every stretch that differs holds its share, as the priors say; equal ends mean none."""
    if line.last == 0 or (0 in values and values[0] == values.get(line.last)):
        return Belief((0.0,) * field.last, 1.0)
    none = 0.0 if steps else rules.prior_none
    weight = np.zeros(field.last)
    priors = np.asarray(field.priors, np.float64)
    for a, b in steps or [(0, line.last)]:
        first, last = int(line.programs[a]), int(line.programs[b])
        weight[first:last] = priors[first:last] / priors[first:last].sum()
    return Belief(tuple(((1 - none) * weight / weight.sum()).tolist()), none)


def _verdict(
    line: Line, values: dict[int, float], counts: dict[int, int], status: Status, steps: Sequence[Gap], why: str
) -> Verdict:
    """The answer; levels are values."""

    def level(place: int) -> Level:
        value = values.get(place, 0.0)
        return Level(value, value, value, counts.get(place, 0))

    culprits = tuple(
        Culprit(tuple(range(int(line.programs[a]) + 1, int(line.programs[b]) + 1)), 1.0, level(a), level(b))
        for a, b in steps
    )
    old, new = level(0), level(line.last)
    step = new.mean - old.mean
    return Verdict(status, culprits, old, new, Level(step, step, step, old.runs + new.runs), 0.0, why)
