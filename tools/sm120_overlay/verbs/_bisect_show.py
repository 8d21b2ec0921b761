"""What bisect answers: the verdict in one sentence with the user's own numbers, and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..bisection.decision.nouns import Ask, Culprit, Decision, Level, Rules, Status, Verdict
from ..bisection.events import UNDONE
from ..bisection.history import Change, History
from ..bisection.job import Outcome, Scale
from ..bisection.session import Made, measured_at
from ..queue.home import command
from ..queue.ranges import Commit

TOP = 8  # changes that a table of the posterior names
SHOWN = 0.00005  # the least probability that does not read 0.00 %
YES = (Status.FOUND, Status.BLOCK, Status.MULTIPLE)
RUN_HEADS = ("run", "program", "revision", "value", "outcome", "host", "seconds", "why")
PLAN_HEADS = ("program", "revision", "date", "change", "reach", "patches", "why")


@dataclass(frozen=True)
class Told:
    """A bisection as far as it is known.

    `unit` is the metric as it was typed, `terms` what the sides are called, `decision` None before the first run;
    `out` are programs that no run can judge, as far as runs and people said so; `undone` says what became of the new
    end without the culprit ("": not tried). `upstreams` are those that can be bisected too, by distribution; `session`
    is the folder it is kept in, and `aborted` says what ended it ("": nothing did).
    """

    upstream: str
    line: str
    old: str
    new: str
    releases: bool
    history: History
    unit: str
    rules: Rules
    made: tuple[Made, ...] = ()
    decision: Decision | None = None
    terms: tuple[str, str] = ("", "")
    out: Mapping[int, str] = field(default_factory=dict)
    undone: str = ""
    upstreams: Mapping[str, str] = field(default_factory=dict)
    session: str = ""
    aborted: str = ""

    @property
    def what(self) -> str:
        """What was looked at, for a title."""
        return f"{self.upstream} {self.old}..{self.new}"

    @property
    def verdict(self) -> Verdict | None:
        """The answer, where there is one."""
        found = self.decision.next if self.decision else None
        return found if isinstance(found, Verdict) else None

    @property
    def same(self) -> bool:
        """Whether both ends are one program: then there is nothing to run."""
        return len(self.history.programs) == 1

    @property
    def code(self) -> int:
        """The exit code."""
        if self.aborted:
            return 4
        return 0 if self.verdict and self.verdict.status in YES else 1


def number(value: float) -> str:
    """A number with four digits that count, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def user(rules: Rules, value: float) -> float:
    """A value of the decision's scale in the unit of the metric."""
    return math.exp(min(value, 700.0)) if rules.scale is Scale.LOG else value


def level(told: Told, side: Level) -> str:
    """A level as a person reads it."""
    if told.rules.scale is Scale.PASS_FAIL:
        return f"{side.mean:.0%} of {side.runs} runs pass"
    return number(user(told.rules, side.mean))


def difference(told: Told, effect: Level) -> str:
    """The difference of two sides with its interval: a factor where ratios count."""
    if told.rules.scale is Scale.EXACT:
        return ""
    low, high = user(told.rules, effect.low), user(told.rules, effect.high)
    sure = f"{100 * told.rules.confidence:.4g} % interval"
    if told.rules.scale is Scale.LOG:
        return f"{user(told.rules, effect.mean):.3g}x, {sure} {low:.3g} to {high:.3g}"
    sign = "+" if effect.mean >= 0 else ""
    return f"{sign}{number(effect.mean)}, {sure} {number(low)} to {number(high)}"


def step(told: Told, before: Level, after: Level, effect: Level | None) -> str:
    """`output_throughput 353 → 718 (2.03x, 99 % interval 1.98 to 2.09)`, with what the sides are called."""
    sides = zip((before, after), told.terms, strict=True)
    words = [level(told, side) + (f" ({term})" if term else "") for side, term in sides]
    said = difference(told, effect) if effect else ""
    return f"{told.unit} {' → '.join(words)}" + (f" ({said})" if said else "")


def named(change: Change) -> str:
    """A change in a few words: pull request, id, subject, day."""
    commit = change.commit
    subject = commit.subject.removesuffix(f"(#{commit.number})").strip()
    words = (
        "taken back:" * change.undone,
        f"#{commit.number}" if commit.number else "",
        commit.short,
        subject,
        f"({commit.date})" if commit.date else "",
    )
    return " ".join(filter(None, words))


def sentence(told: Told) -> str:
    """The verdict in one sentence."""
    verdict = told.verdict
    if told.same:
        return f"no-change: between {told.old} and {told.new} nothing changes that a run can see"
    if told.aborted:
        return f"aborted: {told.aborted}"
    if verdict is None:
        more = f", about {told.decision.more_runs:.0f} more" if told.decision else ""
        return f"not decided yet: {_counted(told)}{more}"
    return f"{verdict.status.value}: {_SENTENCES[verdict.status](told, verdict)}"


def _counted(told: Told) -> str:
    runs = sum(made.void is None for made in told.made)
    return plural(runs, "run")


def plural(count: int, word: str) -> str:
    """A number of things."""
    return f"{count} {word}{'s' * (count != 1)}"


def _found(told: Told, verdict: Verdict) -> str:
    culprit = verdict.culprits[0]
    said = step(told, culprit.before, culprit.after, verdict.effect)
    return f"{said} by {named(told.history.change_into(culprit.programs[0]))}; probability {culprit.probability:.2%}"


def _block(told: Told, verdict: Verdict) -> str:
    culprit = verdict.culprits[0]
    said = step(told, culprit.before, culprit.after, verdict.effect)
    ids = [told.history.change_into(program).commit.short for program in culprit.programs]
    return f"{said} by one of {len(ids)} changes that no run can tell apart, {ids[0]} to {ids[-1]}"


def _credible(told: Told, verdict: Verdict) -> str:
    said = step(told, verdict.old, verdict.new, verdict.effect)
    left = sum(len(culprit.programs) for culprit in verdict.culprits)
    return f"{said}; after {_counted(told)} any of {left} changes may have done it"


def _no_change(told: Told, verdict: Verdict) -> str:
    said = step(told, verdict.old, verdict.new, verdict.effect)
    changes = len(told.history.programs) - 1
    return f"{said}: none of {plural(changes, 'change')}; what differed before is configuration, dependencies or noise"


def _multiple(told: Told, verdict: Verdict) -> str:
    said = step(told, verdict.old, verdict.new, verdict.effect)
    return f"{said} in {len(verdict.culprits)} steps"


def _unstable(told: Told, verdict: Verdict) -> str:
    return f"no change explains the runs, and more of them do not repair that ({noise(told, verdict)}): {verdict.why}"


_SENTENCES = {
    Status.FOUND: _found,
    Status.BLOCK: _block,
    Status.CREDIBLE_SET: _credible,
    Status.NO_CHANGE: _no_change,
    Status.MULTIPLE: _multiple,
    Status.UNSTABLE: _unstable,
}


def noise(told: Told, verdict: Verdict) -> str:
    """How far runs of one program lie apart."""
    if told.rules.scale is Scale.LOG:
        return f"noise {math.expm1(verdict.noise):.2%} from run to run"
    return f"noise {number(verdict.noise)} from run to run"


def lines(told: Told) -> Iterator[str]:
    """All that a reader must know besides, a sentence each."""
    verdict = told.verdict
    if verdict:
        if verdict.status not in (Status.FOUND, Status.NO_CHANGE):
            yield from (_candidate(told, culprit) for culprit in verdict.culprits)
        for culprit in verdict.culprits if verdict.status in YES else ():
            yield from _beside(told, culprit)
        ends = f"ends {level(told, verdict.old)} and {level(told, verdict.new)}"
        yield f"{_counted(told)}, {noise(told, verdict)}; {ends}"
    if told.undone:
        yield told.undone
    yield _of_programs(told.history)
    for program, why in told.out.items():
        yield f"program {program} ({revision_of(told.history, program).short}) cannot be judged: {why}"
    lost = [made for made in told.made if made.ran.outcome is not Outcome.MEASURED]
    if lost:
        kinds = ", ".join(sorted({made.ran.outcome.value for made in lost}))
        yield f"{len(lost)} runs gave no number ({kinds}); {command('bisect')} log lists them"


def _candidate(told: Told, culprit: Culprit) -> str:
    changes = "; ".join(named(told.history.change_into(program)) for program in culprit.programs)
    return f"{culprit.probability:.2%} {step(told, culprit.before, culprit.after, None)} by {changes}"


def _beside(told: Told, culprit: Culprit) -> Iterator[str]:
    """Patches of ours that turn with a culprit, dependencies that it moves, and where to look on."""
    for program in culprit.programs:
        change = told.history.change_into(program)
        for slug, was, becomes in change.turned:
            yield f"{change.commit.short} turns our patch {slug} from {was.value} to {becomes.value}: it may be that"
        for distribution, before, after in change.moved_pins:
            moved = f"{change.commit.short} moves {distribution} from {before or 'none'} to {after or 'none'}"
            yield f"{moved}: {inside(told, distribution, before, after)}"
        if told.releases:
            yield f"the commits inside: {drill(told, program)}"


def inside(told: Told, distribution: str, before: str, after: str) -> str:
    """The command that looks on inside a dependency, where it is one of our upstreams."""
    upstream = told.upstreams.get(distribution)
    if not (upstream and before and after):
        return f"measure again with {distribution} held at {before or 'the version before'}"
    return f"{command('bisect')} run {upstream} {before}..{after} --releases …"


def drill(told: Told, program: int) -> str:
    """The command that looks at the commits between two releases."""
    history = told.history
    before, after = (history.revisions[history.programs[program].first + at].commit.id for at in (-1, 0))
    return f"{command('bisect')} run {told.upstream} v{before}..v{after} --history CLONE …"


def _of_programs(history: History) -> str:
    culled = sum(bool(change.culled) for change in history.changes)
    changes, programs = plural(len(history.changes), "change"), plural(len(history.programs), "program")
    said = f"{changes}, {culled} culled: {programs}"
    blocked = sum(bool(revision.untestable) for revision in history.revisions)
    return f"{said}, {blocked} revisions cannot be judged" if blocked else said


def program_of(history: History) -> list[int]:
    """The program of each revision."""
    return [number for number, one in enumerate(history.programs) for _ in range(one.first, one.last + 1)]


def plan_rows(history: History) -> Iterator[tuple[str, ...]]:
    """The cells of every revision: its program (`=`: that of the one before), change, reach, patches, and why."""
    programs = program_of(history)
    for at, revision in enumerate(history.revisions):
        change = history.changes[at - 1] if at else None
        commit = revision.commit
        culled = change.culled if change else ""
        yield (
            f"= {programs[at]}" if culled else str(programs[at]), commit.short, commit.date,
            _said(change) if change else "the old end", change.reach.value if change else "",
            _patches(history, at), _why(culled, revision.untestable, change),
        )  # fmt: skip


def _said(change: Change) -> str:
    commit = change.commit
    number = f"#{commit.number} " if commit.number else ""
    taken = "taken back: " if change.undone else ""
    subject = commit.subject.removesuffix(f"(#{commit.number})").strip()
    return f"{taken}{number}{subject}" if len(subject) < 60 else f"{taken}{number}{subject[:58].rstrip()}…"


def _why(culled: str, untestable: str, change: Change | None) -> str:
    said = [f"culled: {culled}"] if culled else [change.why] if change and change.why else []
    said += [f"cannot be judged: {untestable}"] if untestable else []
    pins = change.moved_pins if change else ()
    said += [f"{name} {old or 'none'} → {new or 'none'}" for name, old, new in pins]
    return "; ".join(said)


def _patches(history: History, at: int) -> str:
    """At the old end how many patches are in; else those that turn here."""
    if at == 0:
        patches = history.revisions[0].patches
        left = [patch.slug for patch in patches if patch.left_out]
        return f"{len(patches) - len(left)} in" + (f", without {', '.join(left)}" if left else "")
    return ", ".join(f"{slug}: {old.value} → {new.value}" for slug, old, new in history.changes[at - 1].turned)


def run_rows(told: Told) -> Iterator[tuple[str, ...]]:
    """The cells of every run."""
    for made in told.made:
        ran = made.ran
        value = "" if ran.value is None else number(ran.value)
        outcome = ran.outcome.value if made.void is None else "void"
        ended = f"signal {ran.signal}" if ran.signal else f"exit {ran.exit}" if ran.exit else ""
        why = "; ".join(filter(None, (made.void, ended, ran.why)))
        yield (
            str(ran.number), *place(told.history, made.program), value, outcome, ran.host,
            f"{ran.seconds:.0f}", why,
        )  # fmt: skip


def revision_of(history: History, program: int) -> Commit:
    """The revision that stands for a program."""
    return measured_at(history, program).commit


def place(history: History, program: int) -> tuple[str, str]:
    """A program's number and its revision; what was run to check a culprit on the new end is neither."""
    if program >= 0:
        return str(program), revision_of(history, program).short
    return "-", "NEW less culprit" if program == UNDONE else "NEW beside it"


def belief_rows(told: Told, decision: Decision) -> Iterator[tuple[str, ...]]:
    """The likeliest changes, each with a bar, and that there is none."""
    belief = decision.belief
    best = sorted(range(len(belief.changes)), key=lambda j: -belief.changes[j])[:TOP]
    best = [j for number, j in enumerate(best) if number == 0 or belief.changes[j] >= SHOWN]
    for j in best:
        yield f"{belief.changes[j]:7.2%}", bar(belief.changes[j]), named(told.history.change_into(j + 1))
    yield f"{belief.none:7.2%}", bar(belief.none), "no change"


def bar(share: float, width: int = 20) -> str:
    """A bar of letters."""
    return "█" * round(share * width)


def asked(told: Told, decision: Decision) -> str:
    """What is run next, and why."""
    if not isinstance(decision.next, Ask):
        return ""
    one, why = decision.next.programs[0], decision.next.why[0]
    return f"next: program {one} ({revision_of(told.history, one).short}): {why}"
