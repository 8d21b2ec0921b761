"""The decision: ends first, then where a run tells most, until one change is sure and verified."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ..job import Scale
from . import choice, exact
from .expected import ASSUMED, expected_runs
from .level import MOST_ENDS, PROVED, Ends, Gap, compare, level_of, levelled, scattered
from .line import Line, Runs, line_of, runs_of
from .nouns import Ask, Belief, Culprit, Decision, Field, Level, Reading, Rules, Status, Verdict
from .passfail import Shares, shares_of
from .posterior import Gaps, Posterior, gaps_of, posterior_of

STUCK, HOPELESS = 2.0, 5.0  # times the expected runs: look whether one change can be it; give up
LEARNED = 4  # runs of the ends before the effect is taken from them
MOST_STEPS = 3  # more steps than that are no steps: programs that each have a level of their own
BACKED = 3  # programs that show each level of several


@dataclass(frozen=True)
class Case:
    """What stays the same while one decision is made; `pending` are places."""

    line: Line
    rules: Rules
    batch: int
    dear: frozenset[int]
    build_cost: float
    pending: tuple[int, ...]

    def cost(self, place: int) -> float:
        """What a run of a place costs, in runs; the old end of pairs is never asked for its own sake."""
        if self.rules.paired and place == 0:
            return 1e9
        return 1.0 + self.build_cost * (place in self.dear)


@dataclass(frozen=True)
class Look:
    """What a stretch of the line comes to: places to run, each with why; or a status with atoms and their chances."""

    asks: tuple[tuple[int, str], ...] = ()
    status: Status | None = None
    atoms: tuple[tuple[int, float], ...] = ()
    why: str = ""


def decide(
    field: Field,
    readings: Sequence[Reading],
    rules: Rules,
    batch: int = 1,
    built: frozenset[int] = frozenset(),
    build_cost: float = 0.0,
    pending: Sequence[int] = (),
) -> Decision:
    """What is believed of a field after these readings, and what to run next or what the answer is.

    A pure function, so that resuming is replaying. Which host runs what is the caller's: every host becomes comparable
    with itself as soon as it has run two programs, so any assignment is right. With `rules.paired`, programs of an
    `Ask` should be run in its order on one host, each directly after the other: the old end comes beside them.

    Args:
        field: the programs.
        readings: all runs that gave a value, in any order.
        rules: how sure is sure enough.
        batch: how many programs to ask for.
        built: programs whose environment exists.
        build_cost: what building another costs, in runs.
        pending: programs whose runs are under way.
    """
    if rules.scale is Scale.EXACT:
        return exact.decide_exact(field, readings, rules, batch, pending)
    line = line_of(field)
    places = {int(number): at for at, number in enumerate(line.programs)}
    dear = frozenset(at for number, at in places.items() if number not in built)
    ways = tuple(places[number] for number in pending if number in places)
    case = Case(line, rules, max(batch, 1), dear, build_cost, ways)
    runs = runs_of(line, readings, rules.paired)
    post = _posterior(case, runs)
    belief = _belief(field, line, post)
    found = _look(case, runs, 0, line.last)
    if found.status is Status.MULTIPLE:
        found = _apart(case, runs, found.atoms)
    if found.asks and len(readings) >= rules.most_runs:
        found = _spent(case, post, len(readings))
    if found.status is None:
        asks = _with_old_beside(case, runs, found.asks)
        ask = Ask(tuple(int(line.programs[at]) for at, _ in asks), tuple(why for _, why in asks))
        return Decision(belief, ask, _more(case, runs))
    return Decision(belief, _verdict(case, runs, found), 0.0)


def _fit(case: Case, runs: Runs, pending: Sequence[int] = ()) -> Gaps | Shares:
    """A step in each gap."""
    if case.rules.scale is Scale.PASS_FAIL:
        return shares_of(runs, tuple(pending))
    return gaps_of(runs, tuple(pending))


def _posterior(case: Case, runs: Runs) -> Posterior:
    """What is believed of the whole line; without a run at each end the priors."""
    if case.line.last == 0:
        return Posterior(np.zeros(1, np.int64), np.zeros(0), 1.0)
    counts = np.bincount(runs.place, minlength=case.line.last + 1)
    if not counts[0] or not counts[-1]:
        whole = np.array([0, case.line.last], np.int64)
        return posterior_of(case.line, whole, np.zeros(1), case.rules.prior_none)
    fit = _fit(case, runs)
    return posterior_of(case.line, fit.edges, fit.bayes, case.rules.prior_none)


def _belief(field: Field, line: Line, post: Posterior) -> Belief:
    """The posterior per change: an atom's is shared out as the priors say."""
    if line.last == 0:
        return Belief((), 1.0)
    share = post.atoms(line) / np.diff(line.total)
    priors = np.asarray(field.priors, np.float64) / sum(field.priors)
    changes = priors * np.repeat(share, np.diff(line.programs))
    return Belief(tuple(changes.tolist()), post.none)


def _look(case: Case, runs: Runs, low: int, high: int) -> Look:
    """What the stretch from one place to another comes to; its ends come first."""
    if low == high:
        return Look(status=Status.NO_CHANGE, why="there is one program only: nothing that a run can see changes")
    gap = compare(runs, low, high, case.rules)
    few = min(int((runs.place == low).sum()), int((runs.place == high).sum()))
    if few < case.rules.ends:
        return Look(asks=_ends(case, runs, low, high, f"each end is to be run {case.rules.ends} times first"))
    if gap.ends is Ends.SAME:
        return Look(status=Status.NO_CHANGE, why=gap.why)
    if gap.ends is Ends.UNSURE:
        return Look(asks=_ends(case, runs, low, high, gap.why))
    return _inside(case, runs, low, high, len(runs) / _expected(case, gap, high - low))


def _inside(case: Case, runs: Runs, low: int, high: int, late: float) -> Look:
    """What a stretch whose ends differ comes to.

    Where no change gets sure, there may be several, or programs that each have a level of their own.

    Args:
        late: runs made over runs expected.
    """
    atom, chance, is_sure = _best(case, runs)
    if not is_sure:
        if late <= STUCK or not any(_uneven(case, runs, low, atom)[1]):
            return Look(asks=_telling(case, runs))
        if late > HOPELESS and any(_uneven(case, runs, low, atom, strict=True)[1]):
            return Look((), Status.UNSTABLE, ((atom, chance),), _hopeless(runs))
    asks = _unverified(case, runs, atom)
    found = Look(asks=asks) if asks else _sides(case, runs, low, high, atom, chance)
    is_one = found.status in (Status.FOUND, Status.BLOCK)
    return Look(asks=_telling(case, runs)) if is_one and not is_sure else found


def _best(case: Case, runs: Runs) -> tuple[int, float, bool]:
    """The most probable change of where the runs are, its chance, and whether that is enough."""
    fit = _fit(case, runs)
    post = posterior_of(case.line, fit.edges, fit.bayes, case.rules.prior_none)
    chances = post.atoms(case.line)
    atom, chance = int(fit.edges[0]) + int(np.argmax(chances)), float(chances.max())
    index = int(np.searchsorted(fit.edges, atom, side="right")) - 1
    return atom, chance, chance >= case.rules.confidence and bool(fit.bayes[index] >= PROVED)


def _hopeless(runs: Runs) -> str:
    """Why more runs are no use."""
    return f"after {len(runs)} runs programs still scatter more than their own runs: repeats do not repair that"


def _ends(case: Case, runs: Runs, low: int, high: int, why: str) -> tuple[tuple[int, str], ...]:
    """Runs of both ends, in the order of Thue and Morse: neither drift nor a round of hosts falls in step with it."""
    counts = [int((runs.place == end).sum()) + case.pending.count(end) for end in (low, high)]
    found = []
    for _ in range(case.batch):
        one = sum(counts).bit_count() % 2 if abs(counts[0] - counts[1]) < 2 else int(counts[0] > counts[1])
        counts[one] += 1
        found.append(((low, high)[one], why))
    return tuple(found)


def _telling(case: Case, runs: Runs) -> tuple[tuple[int, str], ...]:
    """The runs that tell most, one after the other as if those before were under way."""
    low, high = int(runs.place.min()), int(runs.place.max())
    pending, found = [place for place in case.pending if low <= place <= high], []
    for _ in range(case.batch):
        fit = _fit(case, runs, pending)
        post = posterior_of(case.line, fit.edges, fit.bayes, case.rules.prior_none)
        spread = 2.0 if case.rules.paired else 1.0
        ahead = choice.passes_ahead(fit) if isinstance(fit, Shares) else choice.readings_ahead(fit, spread)
        place, bits = choice.next_place(case.line, post, ahead, pending, case.cost)
        pending.append(place)
        found.append((place, f"it tells most: {bits:.2f} bits expected"))
    return tuple(found)


def _unverified(case: Case, runs: Runs, atom: int) -> tuple[tuple[int, str], ...]:
    """Runs that the programs around a probable change lack; what is under way is not asked for twice."""
    found = []
    for place in (atom + 1, atom):
        lacks = case.rules.verify - int((runs.place == place).sum())
        asked = max(lacks - case.pending.count(place), 0)
        found += [(place, f"verifies the change: it lacks {lacks} of {case.rules.verify} runs")] * asked
    lacking = any((runs.place == place).sum() < case.rules.verify for place in (atom, atom + 1))
    if lacking and not found:
        found = [(atom + 1, "verifies the change once more, while other runs are under way")]
    return tuple(sorted(found, key=lambda one: one[0], reverse=True)[: case.batch])


def _sides(case: Case, runs: Runs, low: int, high: int, atom: int, chance: float) -> Look:
    """A sure change; where a side of it is not one level, what that side comes to."""
    steps, why = [(atom, chance)], ""
    if case.rules.scale is not Scale.PASS_FAIL:
        even, uneven = _uneven(case, runs, low, atom)
        sure = _uneven(case, runs, low, atom, strict=True)[1]
        for at, (first, last) in enumerate(((low, atom), (atom + 1, high))):
            if not uneven[at]:
                continue
            inner = _look(_inner(case), even.within(first, last), first, last)
            if inner.asks:
                return Look(asks=inner.asks)
            steps += inner.atoms
            if inner.status is Status.UNSTABLE or (inner.status is Status.NO_CHANGE and sure[at]):
                why = f"programs {_names(case, first, last)} scatter more than their own runs, and no step explains it"
    if why or len(steps) > MOST_STEPS:
        return Look((), Status.UNSTABLE, tuple(steps), why or f"{len(steps)} steps: each program has its own level")
    if len(steps) > 1:
        return Look((), Status.MULTIPLE, tuple(steps), f"{len(steps)} changes, each sure by itself")
    joined = case.line.joined(atom)
    status = Status.FOUND if len(joined) == 1 else Status.BLOCK
    return Look((), status, tuple(steps), f"the change into {_names(case, atom + 1, atom + 1)}: {chance:.4f}")


def _uneven(case: Case, runs: Runs, low: int, atom: int, strict: bool = False) -> tuple[Runs, tuple[bool, ...]]:
    """The readings, levelled, and whether each side of a change is of more than one level."""
    if case.rules.scale is Scale.PASS_FAIL:
        return runs, (False, False)
    even = levelled(runs, atom)
    skip = 0 if case.rules.paired and low == 0 else -1
    lost = 0 if case.rules.paired else len(np.unique(runs.block)) - 1
    return even, scattered(even, atom, lost, skip, strict, case.rules.min_effect)


def _apart(case: Case, runs: Runs, atoms: Sequence[tuple[int, float]]) -> Look:
    """Several changes, each looked at once more between its neighbours, with levels that several programs show."""
    asks = _unbacked(case, runs, atoms)
    even, steps, inner = levelled(runs, atoms[0][0]), [], _inner(case)
    cuts = [-1, *sorted(atom for atom, _ in atoms), case.line.last]
    for before, _, last in zip(cuts, cuts[1:], cuts[2:], strict=False):
        part = even.within(before + 1, last)
        atom, chance, is_sure = _best(inner, part)
        asks = asks or (() if is_sure else _telling(inner, part)) or _unverified(case, runs, atom)
        steps.append((atom, chance))
    steps.sort(key=lambda one: -one[1])
    gap = compare(runs, 0, case.line.last, case.rules)
    if asks and len(runs) > HOPELESS * _expected(case, gap, case.line.last):
        return Look((), Status.UNSTABLE, tuple(steps), _hopeless(runs))
    return Look(asks) if asks else Look((), Status.MULTIPLE, tuple(steps), f"{len(steps)} changes, each sure by itself")


def _unbacked(case: Case, runs: Runs, atoms: Sequence[tuple[int, float]]) -> tuple[tuple[int, str], ...]:
    """Runs that part several changes from programs that each have a level of their own.

    Between two changes lies one level: three programs of it, where it has so many, show that with `verify` runs each.
    """
    counts = np.bincount(runs.place, minlength=case.line.last + 1)
    cuts = [-1, *sorted(atom for atom, _ in atoms), case.line.last]
    for before, last in pairwise(cuts):
        places = np.arange(before + 1, last + 1)
        lacks = case.rules.verify - counts[places]
        if int((lacks <= 0).sum()) < min(BACKED, len(places)):
            far = np.where(lacks > 0, np.abs(places - (before + 1 + last) / 2), np.inf)
            why = "several changes seem to be there: more programs are to show the levels between them"
            return ((int(places[np.argmin(far)]), why),) * min(int(lacks[np.argmin(far)]), case.batch)
    return ()


def _inner(case: Case) -> Case:
    """The case of a side: its ends were verified, and its blocks are level."""
    return replace(case, rules=replace(case.rules, ends=min(case.rules.verify, case.rules.ends), paired=False))


def _names(case: Case, first: int, last: int) -> str:
    """Program numbers from one place to another."""
    one, other = int(case.line.programs[first]), int(case.line.programs[last])
    return f"{one}" if one == other else f"{one} to {other}"


def _spent(case: Case, post: Posterior, made: int) -> Look:
    """The smallest set of changes that reaches the confidence, when the runs are spent."""
    chances = post.atoms(case.line)
    order = np.argsort(-chances, kind="stable")
    enough = int(np.searchsorted(np.cumsum(chances[order]), case.rules.confidence * chances.sum())) + 1
    atoms = tuple((int(atom), float(chances[atom])) for atom in order[:enough])
    return Look((), Status.CREDIBLE_SET, atoms, f"{made} runs were made; none of the changes: {post.none:.3g}")


def _with_old_beside(case: Case, runs: Runs, asks: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """The asks with a run of the old end beside each other program, where readings are paired."""
    if not case.rules.paired:
        return list(asks)
    olds = int((runs.place == 0).sum()) + case.pending.count(0)
    others = len(runs) + len(case.pending) - olds
    found: list[tuple[int, str]] = []
    for place, why in asks:
        if place and olds <= others:
            found.append((0, "the old end beside the next run, which is compared with it"))
            olds += 1
        found.append((place, why))
        olds, others = olds + (place == 0), others + (place != 0)
    return found[: case.batch]


def _more(case: Case, runs: Runs) -> float:
    """How many runs more, about: the formula less what was made, with the effect as the ends show it now."""
    gap = compare(runs, 0, case.line.last, case.rules)
    expected = _expected(case, gap, case.line.last)
    if gap.ends is Ends.UNSURE:  # so many runs of the ends settle whether there is anything to look for
        expected = min(expected, 2.0 * MOST_ENDS)
    return max(expected - len(runs), 1.0)


def _expected(case: Case, gap: Gap, changes: int) -> float:
    """How many runs find one of so many changes, with the ends as far apart as they are; pairs take two each."""
    d = gap.effect.mean / gap.noise if gap.noise and gap.effect.runs >= LEARNED else ASSUMED
    return 2 * expected_runs(changes, d / math.sqrt(2)) if case.rules.paired else expected_runs(changes, d)


def _verdict(case: Case, runs: Runs, found: Look) -> Verdict:
    """The answer with its levels."""
    line, rules = case.line, case.rules
    if not len(runs):
        nothing = Level(0.0, 0.0, 0.0, 0)
        return Verdict(found.status or Status.NO_CHANGE, (), nothing, nothing, nothing, 0.0, found.why)
    best = found.atoms[0][0] if found.atoms else 0
    sided = case.line.last > 0 and len(np.unique(runs.place)) > 1
    even = levelled(runs, best) if sided and rules.scale is not Scale.PASS_FAIL else runs
    noise, df = _noise(even)
    gap = compare(runs, 0, line.last, rules)
    are_steps = found.status is not Status.CREDIBLE_SET  # else each is the only step, if it is one
    cuts = [atom for atom, _ in found.atoms] if are_steps else []
    culprits = []
    for atom, chance in found.atoms:
        first = max((cut for cut in cuts if cut < atom), default=-1) + 1
        last = min((cut for cut in cuts if cut > atom), default=line.last)
        before = level_of(even, first, atom, noise, df, rules.confidence)
        after = level_of(even, atom + 1, last, noise, df, rules.confidence)
        culprits.append(Culprit(line.joined(atom), chance, before, after))
    old, new = (level_of(even, end, end, noise, df, rules.confidence) for end in (0, line.last))
    status = found.status or Status.NO_CHANGE
    return Verdict(status, tuple(culprits), old, new, gap.effect, noise, found.why)


def _noise(runs: Runs) -> tuple[float, float]:
    """The standard deviation of runs of one program, pooled, and its degrees of freedom."""
    counts = Counter(runs.place.tolist())
    column = np.unique(runs.place, return_inverse=True)[1]
    mean = np.bincount(column, runs.value) / np.bincount(column)
    df = len(runs) - len(counts)
    return math.sqrt(float(((runs.value - mean[column]) ** 2).sum()) / max(df, 1)), float(df)
