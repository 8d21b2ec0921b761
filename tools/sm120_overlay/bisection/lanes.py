"""On which host a run is to be made: beside the run that it is compared with, and not where it was just lost.

With pairs each host alternates between the old end and another program. A host that is lost breaks its pair, and the
next pair begins with the old end again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile

from .decision.nouns import Rules
from .job import Job, Outcome, Scale
from .session import Made


def paired(rules: Rules) -> bool:
    """Whether every run is compared with one of the old end beside it."""
    return rules.paired and rules.scale is not Scale.EXACT


@dataclass(frozen=True)
class Lane:
    """What is run next on a host ("": any, but these rather not)."""

    program: int
    host: str = ""
    shun: tuple[str, ...] = ()


def lanes(
    rules: Rules, runs: Sequence[Made], wanted: Sequence[int], free: int, under_way: Collection[Job]
) -> list[Lane]:
    """What to run now, and where.

    Args:
        rules: of the session.
        runs: that ended since this driver took it up: other hosts may have been there before.
        wanted: programs, the first ones first.
        free: how many runs there is room for.
        under_way: the jobs that are.
    """
    if not paired(rules):
        return [Lane(program, shun=lost_on(runs, program)) for program in wanted[:free]]
    last = {made.ran.host: made for made in runs}
    busy = {job.host for job in under_way}
    begun = [host for host, made in last.items() if host and host not in busy and _old(made)]
    others = [program for program in wanted if program]
    found = [Lane(program, host) for program, host in zip(others, begun, strict=False)][:free]
    news = free - len(begun) if found or under_way else max(free - len(begun), 1)
    return found + [Lane(0, shun=tuple(begun) or lost_on(runs, 0))] * news


def _old(made: Made) -> bool:
    return made.program == 0 and made.ran.outcome is Outcome.MEASURED


def lost_on(runs: Sequence[Made], program: int) -> tuple[str, ...]:
    """The hosts that were lost with the last runs of a program, one after the other."""
    own = [made for made in reversed(runs) if made.program == program]
    lost = takewhile(lambda made: made.ran.outcome is Outcome.LOST, own)
    return tuple(dict.fromkeys(made.ran.host for made in lost if made.ran.host))
