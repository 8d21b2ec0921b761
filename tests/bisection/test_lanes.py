"""Which host makes a run: pairs stay on one host, and a program whose host was lost is tried on another."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from sm120_overlay.bisection.confirm import confirm
from sm120_overlay.bisection.decision.nouns import Rules
from sm120_overlay.bisection.decision.rule import decide
from sm120_overlay.bisection.drive import drive
from sm120_overlay.bisection.events import BESIDE, UNDONE, Ended, Undoing
from sm120_overlay.bisection.hosts.clusters import fit_for
from sm120_overlay.bisection.job import Job, Outcome, Ran, Scale

from .driven import CULPRIT, events_of, level, linear, run_toy, toy_decide, toy_flight, value_of

LINEAR = Rules(scale=Scale.LINEAR)
PAIRED = Rules(scale=Scale.LINEAR, min_effect=5.0, paired=True)


@dataclass
class Named:
    """Hosts with names, whose numbers differ and drift; each answers at once. `loses` says which runs are lost."""

    names: tuple[str, ...]
    loses: Callable[[int], bool] = lambda number: False
    made: int = 0
    jobs: list[Job] = field(default_factory=list)

    @property
    def width(self) -> int:
        return len(self.names)

    def submit(self, job: Job) -> Future[Ran]:
        fit = fit_for(job, self.names)
        host = fit[self.made % len(fit)]
        self.made += 1
        self.jobs.append(job)
        level = {UNDONE: 0, BESIDE: 7}.get(job.program, job.program)
        value = value_of(job.number, level) + 500 * self.names.index(host) + 2.0 * self.made
        ran = Ran(job.number, Outcome.MEASURED, value, exit=0, host=host, seconds=1.0)
        future: Future[Ran] = Future()
        lost = replace(ran, outcome=Outcome.LOST, value=None, why="it went away")
        future.set_result(lost if self.loses(job.number) else ran)
        return future

    def close(self) -> None:
        pass


def by_host(folder: Path) -> dict[str, list[tuple[int, Outcome]]]:
    """The programs that each host ran, in their order."""
    found = defaultdict(list)
    ended = [event for event in events_of(folder) if isinstance(event, Ended)]
    for event in sorted(ended, key=lambda each: each.ran.number):
        found[event.ran.host].append((event.program, event.ran.outcome))
    return found


def test_a_run_and_its_pair_are_made_on_one_host_one_after_the_other(tmp_path: Path) -> None:
    hosts = Named(("a", "b", "c"))
    verdict = run_toy(tmp_path, hosts, decide, rules=PAIRED)
    assert [culprit.programs for culprit in verdict.culprits] == [(CULPRIT,)]
    made = by_host(tmp_path)
    assert set(made) == {"a", "b", "c"}
    for ran in made.values():
        assert [program == 0 for program, _ in ran] == [turn % 2 == 0 for turn in range(len(ran))]


def test_a_pair_that_a_loss_breaks_is_made_again_as_a_pair(tmp_path: Path) -> None:
    verdict = run_toy(tmp_path, Named(("a", "b"), lambda number: number % 5 == 0), decide, rules=PAIRED)
    assert [culprit.programs for culprit in verdict.culprits] == [(CULPRIT,)]
    for ran in by_host(tmp_path).values():
        for (before, outcome), (program, _) in pairwise(ran):
            assert program == 0 or (before, outcome) == (0, Outcome.MEASURED)


def test_a_program_whose_host_was_lost_is_tried_on_another(tmp_path: Path) -> None:
    hosts = Named(("a", "b"), lambda number: number == 3)
    run_toy(tmp_path, hosts, decide, rules=replace(PAIRED, paired=False))
    (lost,) = [event for event in events_of(tmp_path) if isinstance(event, Ended) and event.ran.outcome is Outcome.LOST]
    again = next(job for job in hosts.jobs if job.program == lost.program and job.number > lost.ran.number + 1)
    assert again.shun == (lost.ran.host,)


def test_a_job_goes_to_its_own_host_else_away_from_those_that_it_shuns() -> None:
    job = Job(1, 0, "", "", "", "", None, "")  # type: ignore[arg-type]
    assert fit_for(replace(job, host="b", shun=("b",)), ["a", "b"]) == ["b"]
    assert fit_for(replace(job, host="c"), ["a", "b"]) == []
    assert fit_for(replace(job, shun=("a",)), ["a", "b"]) == ["b"]
    assert fit_for(replace(job, shun=("a", "b")), ["a", "b"]) == ["a", "b"]


def test_the_second_look_at_a_culprit_is_had_on_one_host_and_begins_anew_when_that_is_lost(tmp_path: Path) -> None:
    hosts = Named(("a", "b"))
    with toy_flight(tmp_path, hosts, LINEAR) as flight:
        verdict = drive(flight, toy_decide, score=linear)  # which knows nothing of hosts: these are the true levels
        verdict = replace(verdict, old=level([100.0] * 3), new=level([200.0] * 3))
        third = flight.session.next_number + 2
        hosts.loses = lambda number: number == third

        def undone(number: int) -> Job:
            return replace(flight.job_for(number, 0), program=UNDONE, key="undone")

        found = confirm(flight, verdict, undone, score=linear)
    made = [event for event in events_of(tmp_path) if isinstance(event, Ended) and event.program < 0]
    told = [(event.program, event.ran.host) for event in made]
    first, other = told[0][1], {"a": "b", "b": "a"}[told[0][1]]
    assert told[:3] == [(UNDONE, first), (BESIDE, first), (UNDONE, first)]
    assert Counter(told[3:]) in [Counter({(UNDONE, host): 3, (BESIDE, host): 3}) for host in (first, other)]
    assert found.outcome is Undoing.CONFIRMED
