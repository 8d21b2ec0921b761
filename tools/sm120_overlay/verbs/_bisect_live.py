"""What a person sees while a bisection runs: the posterior as bars on a terminal, else a line for each run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from .. import report
from ..bisection.session import Made
from ._bisect_show import Told, asked, belief_rows, number, place, sentence

Watch = Callable[[Told], None]


@contextmanager
def watching() -> Iterator[Watch]:
    """A function that is told what is known, again and again."""
    with report.live() as draw:
        if draw is None:
            yield _lines()
        else:
            yield lambda told: draw((told.what, *_last(told.made), state(told)), list(_beliefs(told)))


def _beliefs(told: Told) -> Iterator[tuple[str, ...]]:
    yield from belief_rows(told, told.decision) if told.decision else ()


def _last(made: Sequence[Made]) -> Iterator[str]:
    for one in made[-3:]:
        yield f"  run {one.ran.number}: program {one.program}, {outcome(one)}"


def state(told: Told) -> str:
    """How far it is, how long it will take, and what runs next."""
    took = [made.ran.seconds + made.ran.build_seconds for made in told.made if made.ran.seconds]
    more = told.decision.more_runs if told.decision else 0
    hosts = len({made.ran.host for made in told.made}) or 1
    left = f", {sum(took) / len(took) * more / hosts / 60:.0f} min" if took and more else ""
    following = asked(told, told.decision) if told.decision else ""
    return "; ".join(filter(None, (f"{sentence(told)}{left}", following)))


def outcome(made: Made) -> str:
    """A run's number, or why it has none."""
    ran = made.ran
    return number(ran.value) if ran.value is not None else f"{ran.outcome.value}: {ran.why}".rstrip(": ")


def _lines() -> Watch:
    """Says each run once, with the likeliest change after it."""
    seen: set[int] = set()

    def watch(told: Told) -> None:
        new = [made for made in told.made if made.ran.number not in seen]
        seen.update(made.ran.number for made in new)
        for made in new:
            program, where = place(told.history, made.program)
            report.say(f"run {made.ran.number}: program {program} ({where}) on {made.ran.host}: {outcome(made)}")
        if new and told.decision:
            weight, _, change = max(belief_rows(told, told.decision), key=lambda row: float(row[0].strip(" %")))
            report.say(f"  {weight.strip()} {change}; {state(told)}")

    return watch
