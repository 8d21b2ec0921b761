"""What bisect prints: sentences and tables for people, or one JSON object (docs/json.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .. import report
from ..bisection.decision.nouns import Ask, Culprit, Decision, Level, Status, Verdict
from ..bisection.history import Change, History
from ..bisection.job import Scale
from ..bisection.session import Made
from ._bisect_show import Told, asked, belief_rows, lines, program_of, revision_of, sentence, user
from ._surveyed import as_commit


def show_told(told: Told, as_json: bool, written: Sequence[str] = (), done: bool = False) -> int:
    """Prints what is known; the exit code.

    Args:
        done: what was asked for is done, whatever is known.
    """
    code = 0 if done else told.code
    if as_json:
        report.show_json("bisect", {**as_object(told), "ok": code == 0, "written": list(written)})
        return code
    report.show(sentence(told))
    for line in lines(told):
        report.show(f"  {line}")
    if told.decision and not told.verdict:
        report.show_table("posterior", ("", "", "change"), list(belief_rows(told, told.decision)))
        report.show(f"  {asked(told, told.decision)}")
    for path in written:
        report.show(f"  written: {path}")
    return code


def as_object(told: Told) -> dict[str, Any]:
    """The JSON contract (docs/json.md)."""
    verdict, decision = told.verdict, told.decision
    return {
        "line": told.line, "ok": told.code == 0, "targets": [], "upstream": told.upstream,
        "kind": "releases" if told.releases else "commits", "old": told.old, "new": told.new, "session": told.session,
        "metric": told.unit, "scale": told.rules.scale.value,
        "status": _status(told),
        "says": sentence(told), "undone": told.undone or None,
        "notes": list(lines(told)), "why": verdict.why if verdict else None,
        "culprits": [_culprit(told, culprit) for culprit in verdict.culprits] if verdict else [],
        "ends": _ends(told, verdict) if verdict else None,
        "posterior": _posterior(told, decision) if decision else None,
        "next": _next(told, decision) if decision else [], "more_runs": decision.more_runs if decision else None,
        "commits": list(_commits(told.history)), "runs": [_run(told, made) for made in told.made],
    }  # fmt: skip


def _status(told: Told) -> str | None:
    if told.same:
        return Status.NO_CHANGE.value
    if told.aborted:
        return "aborted"
    return told.verdict.status.value if told.verdict else None


def _culprit(told: Told, culprit: Culprit) -> dict[str, Any]:
    changes = [told.history.change_into(program) for program in culprit.programs]
    return {
        "probability": culprit.probability,
        "before": _level(told, culprit.before),
        "after": _level(told, culprit.after),
        "changes": [_change(change) for change in changes],
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        **as_commit(change.commit), "undone": change.undone, "paths": list(change.paths), "reach": change.reach.value,
        "turned": [{"slug": slug, "before": old.value, "after": new.value} for slug, old, new in change.turned],
        "moved_pins": [{"distribution": name, "before": old, "after": new} for name, old, new in change.moved_pins],
    }  # fmt: skip


def _level(told: Told, side: Level) -> dict[str, Any]:
    mean, low, high = (user(told.rules, value) for value in (side.mean, side.low, side.high))
    return {"mean": _finite(mean), "low": _finite(low), "high": _finite(high), "runs": side.runs}


def _finite(value: float) -> float | None:
    """JSON has no infinity: null where nothing bounds it."""
    return value if math.isfinite(value) else None


def _ends(told: Told, verdict: Verdict) -> dict[str, Any]:
    effect = _level(told, verdict.effect)
    spread = math.expm1(verdict.noise) if told.rules.scale is Scale.LOG else verdict.noise
    return {
        "old": _level(told, verdict.old), "new": _level(told, verdict.new), "effect": effect, "noise": _finite(spread),
    }  # fmt: skip


def _posterior(told: Told, decision: Decision) -> dict[str, Any]:
    changes = [
        {"program": j + 1, "commit": told.history.change_into(j + 1).commit.id, "probability": weight}
        for j, weight in enumerate(decision.belief.changes)
    ]
    return {"none": decision.belief.none, "changes": changes}


def _next(told: Told, decision: Decision) -> list[dict[str, Any]]:
    if not isinstance(decision.next, Ask):
        return []
    pairs = zip(decision.next.programs, decision.next.why, strict=True)
    return [{"program": one, "commit": revision_of(told.history, one).id, "why": why} for one, why in pairs]


def _commits(history: History) -> Iterator[Mapping[str, Any]]:
    programs = program_of(history)
    for at, revision in enumerate(history.revisions):
        change = history.changes[at - 1] if at else None
        yield {
            **as_commit(revision.commit), "program": programs[at], "tree": revision.tree, "key": revision.key,
            "untestable": revision.untestable or None, "culled": (change.culled or None) if change else None,
            "why": (change.why or None) if change else None, "prior": change.prior if change else None,
            "patches": [
                {"slug": one.slug, "state": one.state.value, "left_out": one.left_out, "reason": one.why or None}
                for one in revision.patches
            ],
            "change": _change(change) if change else None,
        }  # fmt: skip


def _run(told: Told, made: Made) -> dict[str, Any]:
    ran = made.ran
    return {
        "number": ran.number, "program": made.program if made.program >= 0 else None,
        "commit": revision_of(told.history, made.program).id if made.program >= 0 else None,
        "outcome": ran.outcome.value, "value": ran.value, "void": made.void is not None, "why": ran.why or None,
        "exit": ran.exit, "signal": ran.signal or None, "host": ran.host, "started": ran.started,
        "seconds": ran.seconds, "build_seconds": ran.build_seconds, "log": ran.log or None,
    }  # fmt: skip
