"""The second look at a culprit: is the new end without it as the old one was?

Runs of that program and of the new end itself alternate on one host, so that what drifts meanwhile is in both, and
what differs between hosts is in neither. None of them is counted by the posterior: they are booked on programs of
their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import NormalDist, fmean

from .decision.nouns import Rules, Verdict
from .drive import Flight, begin, land, note
from .events import BESIDE, UNDONE, Reverted, Undoing
from .job import Job, Outcome, Scale
from .session import TRIES, Score, Session, in_a_row, scored


def confirm(flight: Flight, verdict: Verdict, undone: Callable[[int], Job] | str, score: Score = scored) -> Reverted:
    """Takes the culprit back on the new end, measures, and writes down what that shows.

    Args:
        verdict: found; with one culprit.
        undone: the job of a run number, of the new end with the culprit taken back; or why there is no such tree.

    Raises:
        Missing: a run stopped everything, or all hosts are gone.
    """
    if isinstance(undone, str):
        found = Reverted(Undoing.CONFLICT, undone)
    else:
        key, rules = undone(0).key, flight.session.opened.rules
        wanted = 1 if rules.scale is Scale.EXACT else rules.verify
        _measure(flight, undone, key, wanted)
        found = _shown(flight.session, verdict, key, score)
        if found.outcome is Undoing.PARTLY and rules.scale is not Scale.EXACT:  # that is not said for one odd run
            _measure(flight, undone, key, 2 * wanted)
            found = _shown(flight.session, verdict, key, score)
    note(flight, found)
    return found


def _measure(flight: Flight, undone: Callable[[int], Job], key: str, wanted: int) -> None:
    """So many runs of both, in turn, on one host; a program that fails twice in a row ends it."""
    last = len(flight.history.programs) - 1
    beside = flight.job_for(0, last).key
    while not failed(flight.session, key, beside):
        host = where(flight.session)
        made = {one: len(numbers(flight.session, one, of, host)) for one, of in ((UNDONE, key), (BESIDE, beside))}
        for program, _ in flight.under_way.values():
            made[program] += 1
        most = flight.hosts.width if host else 1  # the first run finds the host of all
        while len(flight.under_way) < most and min(made.values()) < wanted:
            one = UNDONE if made[UNDONE] <= made[BESIDE] else BESIDE
            number = flight.session.next_number
            job = undone(number) if one == UNDONE else flight.job_for(number, last)
            begin(flight, one, replace(job, host=host))
            made[one] += 1
        if not flight.under_way and min(made.values()) >= wanted:
            return
        land(flight)


def where(session: Session) -> str:
    """The host whose runs are compared: the one that the last run of the two came back from.

    Returns:
        Its name; "" if there is none yet, or it was lost: then another one begins anew.
    """
    last = next((made.ran for made in reversed(session.runs) if made.program in (UNDONE, BESIDE)), None)
    return last.host if last is not None and last.outcome is not Outcome.LOST else ""


def failed(session: Session, key: str, beside: str) -> str:
    """Why one of the two gives no number ("": both do, as far as is known)."""
    for program, of in ((UNDONE, key), (BESIDE, beside)):
        out = [made.ran for made in session.runs if made.program == program and made.key == of and made.void is None]
        skipped = [ran for ran in out if ran.outcome in (Outcome.SKIPPED, Outcome.SKIP_RANGE)]
        row = in_a_row(session, program, of)
        if skipped or len(row) >= TRIES:
            return (skipped or list(row))[-1].why or "the command skips it"
    return ""


def numbers(session: Session, program: int, key: str, host: str, score: Score | None = None) -> list[float]:
    """The numbers of one of the two on a host, on the decision's scale where `score` is given."""
    metric = session.opened.cell.metric
    values = [
        made.ran.value
        for made in session.runs
        if made.program == program and made.key == key and made.void is None and made.ran.value is not None
        and made.ran.host == host
    ]  # fmt: skip
    return [score(metric, value) for value in values] if score else values


def _shown(session: Session, verdict: Verdict, key: str, score: Score) -> Reverted:
    beside = next((made.key for made in reversed(session.runs) if made.program == BESIDE), "")
    if why := failed(session, key, beside):
        return Reverted(Undoing.UNTESTABLE, f"no run judges the new end without it: {why}", key)
    host = where(session)
    without, new = numbers(session, UNDONE, key, host, score), numbers(session, BESIDE, beside, host, score)
    outcome = judged(session.opened.rules, verdict, without, new)
    share = (fmean(new) - fmean(without)) / ((verdict.new.mean - verdict.old.mean) or 1.0)
    runs = f"{len(without)} run{'s' * (len(without) != 1)}"
    return Reverted(outcome, _SAID[outcome].format(runs=runs, share=share), key)


_SAID = {
    Undoing.CONFIRMED: "without it the new end is as the old one was ({runs})",
    Undoing.REFUTED: "without it the new end stays as it is ({runs})",
    Undoing.PARTLY: "{share:.0%} of the difference goes with it, and another change makes the rest ({runs})",
    Undoing.UNDECIDED: "the noise hides whether the new end is as the old one was without it ({runs})",
}


def judged(rules: Rules, verdict: Verdict, without: list[float], new: list[float]) -> Undoing:
    """To which end's level the new end without the culprit belongs.

    It belongs to the nearer one, if it differs from the other by more than the noise of as many runs explains; to
    neither, if it differs from both by that and by `min_effect`.

    Args:
        rules: how sure is sure, and what is no difference.
        verdict: the levels of the ends, and the noise.
        without: its runs.
        new: runs of the new end beside those.
    """
    if rules.scale is Scale.EXACT:
        return Undoing.REFUTED if set(without) <= set(new) else _exactly(verdict, without)
    here, stays = fmean(without), fmean(new)
    was = stays + verdict.old.mean - verdict.new.mean  # beside the runs of today
    share = 1 / len(without) + 1 / len(new)
    both = share + 1 / max(verdict.old.runs, 1) + 1 / max(verdict.new.runs, 1)
    sure = NormalDist().inv_cdf((1 + rules.confidence) / 2) * verdict.noise
    differs = abs(here - stays) > sure * share**0.5
    if differs and min(abs(here - stays), abs(here - was)) > max(sure * both**0.5, rules.min_effect):
        return Undoing.PARTLY
    if abs(here - was) < abs(here - stays):
        return Undoing.CONFIRMED if differs else Undoing.UNDECIDED
    return Undoing.REFUTED if abs(here - was) > sure * share**0.5 else Undoing.UNDECIDED


def _exactly(verdict: Verdict, without: list[float]) -> Undoing:
    return Undoing.CONFIRMED if set(without) == {verdict.old.mean} else Undoing.PARTLY
