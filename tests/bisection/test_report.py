"""What bisect tells people: one sentence in the user's own unit, tables, JSON, the figure and the page."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import replace
from typing import Any

import pytest

from sm120_overlay.bisection.decision.nouns import Ask, Belief, Culprit, Decision, Level, Rules, Status, Verdict
from sm120_overlay.bisection.history import Change, History, PatchState, Reach, Revision
from sm120_overlay.bisection.job import Outcome, Ran, Scale
from sm120_overlay.bisection.session import Made
from sm120_overlay.errors import Missing
from sm120_overlay.picture.bisection import check_matplotlib, image, page
from sm120_overlay.queue.carry import State
from sm120_overlay.queue.ranges import Commit
from sm120_overlay.verbs._bisect_json import show_told
from sm120_overlay.verbs._bisect_live import watching
from sm120_overlay.verbs._bisect_pictured import figure_of
from sm120_overlay.verbs._bisect_plan import show_plan
from sm120_overlay.verbs._bisect_show import Told, belief_rows, lines, plan_rows, run_rows, sentence

DAY = "2026-02-20"
COMMITS = tuple(Commit(f"{number:x}" * 40, DAY, f"Change {number} (#{number})") for number in range(1, 7))


def history(**culprit: Any) -> History:
    """Six revisions; the change into the third is culled, that into the fifth is the culprit."""
    revisions = tuple(
        Revision(commit, "", "", "", (PatchState("hook", State.CLEAN),), untestable="no wheel" if at == 1 else "")
        for at, commit in enumerate(COMMITS)
    )
    changes = [Change(commit, ("a.py",)) for commit in COMMITS[1:]]
    changes[1] = replace(changes[1], culled="only <docs>", reach=Reach.NONE)
    changes[3] = replace(changes[3], **culprit)
    return History(revisions, tuple(changes))


def level(value: float, runs: int = 5) -> Level:
    """A level of the log scale, 2 % either way."""
    return Level(math.log(value), math.log(value * 0.98), math.log(value * 1.02), runs)


EFFECT = Level(math.log(2.034), math.log(1.98), math.log(2.09), 10)
CULPRIT = Culprit((3,), 0.994, level(353), level(718))
FOUND = Verdict(Status.FOUND, (CULPRIT,), level(352), level(719), EFFECT, 0.03, "log 0.71")
BELIEF = Belief((0.001, 0.003, 0.994, 0.001), 0.001)
MADE = (
    Made(0, "", Ran(1, Outcome.MEASURED, 353.2, host="a", seconds=61.4)),
    Made(4, "", Ran(2, Outcome.MEASURED, 718.1, host="a", seconds=60)),
    Made(1, "", Ran(3, Outcome.SKIPPED, None, "the command said so", exit=125, host="b")),
    Made(4, "", Ran(4, Outcome.MEASURED, 99.0, host="b", seconds=60), void="somebody used it"),
    Made(-1, "", Ran(5, Outcome.MEASURED, 354.0, host="a", seconds=60)),
)


def told(verdict: Verdict | Ask = FOUND, scale: Scale = Scale.LOG, **other: Any) -> Told:
    """A bisection of the history above."""
    decision = Decision(BELIEF, verdict, 0.0 if isinstance(verdict, Verdict) else 12.3)
    known: dict[str, Any] = {"history": history(), "made": MADE, "decision": decision} | other
    return Told("sglang", "v0.5.9", "v1", "v2", False, unit="output_throughput", rules=Rules(scale), **known)


def test_a_culprit_is_one_sentence_in_the_users_unit() -> None:
    assert sentence(told()) == (
        "found: output_throughput 353 → 718 (2.03x, 99 % interval 1.98 to 2.09) "
        "by #5 555555555555 Change 5 (2026-02-20); probability 99.40%"
    )


def test_the_sides_are_called_as_the_user_calls_them() -> None:
    assert "353 (slow) → 718 (fast)" in sentence(told(terms=("slow", "fast")))


def test_on_a_linear_scale_the_difference_has_a_sign() -> None:
    effect = Level(-3.5, -4.25, -2.75, 9)
    culprit = Culprit((3,), 0.999, Level(12, 11, 13, 4), Level(8.5, 8, 9, 5))
    said = sentence(told(replace(FOUND, culprits=(culprit,), effect=effect), Scale.LINEAR))
    assert "12 → 8.5 (-3.5, 99 % interval -4.25 to -2.75)" in said


def test_pass_and_fail_are_told_as_shares_of_runs() -> None:
    culprit = Culprit((3,), 0.999, Level(0.98, 0.9, 1, 40), Level(0.7, 0.6, 0.8, 41))
    said = sentence(told(replace(FOUND, culprits=(culprit,)), Scale.PASS_FAIL))
    assert "98% of 40 runs pass → 70% of 41 runs pass" in said


def test_no_change_says_what_is_left_to_blame() -> None:
    same = Level(0.001, -0.01, 0.012, 12)
    said = told(replace(FOUND, status=Status.NO_CHANGE, culprits=(), new=level(352.4), effect=same))
    assert sentence(said).startswith("no-change: output_throughput 352 → 352.4 (1x, 99 % interval 0.99 to 1.01)")
    assert sentence(said).endswith("none of 4 changes; what differed before is configuration, dependencies or noise")
    assert said.code == 1


@pytest.mark.parametrize(
    ("status", "programs", "expected", "code"),
    [
        (Status.BLOCK, ((1, 2),), "by one of 2 changes that no run can tell apart, 222222222222 to 444444444444", 0),
        (Status.CREDIBLE_SET, ((3,), (2,)), "after 4 runs any of 2 changes may have done it", 1),
        (Status.MULTIPLE, ((1,), (3,)), "in 2 steps", 0),
        (
            Status.UNSTABLE,
            (),
            "no change explains the runs, and more of them do not repair that (noise 3.05% from run to run): log 0.71",
            1,
        ),
    ],
)
def test_every_other_outcome_has_its_sentence_and_its_code(
    status: Status, programs: tuple[tuple[int, ...], ...], expected: str, code: int
) -> None:
    culprits = tuple(replace(CULPRIT, programs=one) for one in programs)
    said = told(replace(FOUND, status=status, culprits=culprits))
    assert sentence(said).startswith(f"{status.value}: ")
    assert expected in sentence(said)
    assert said.code == code
    assert sum("%" in line and " by " in line for line in lines(said)) >= len(programs)


def test_an_unfinished_bisection_says_how_much_is_left() -> None:
    said = told(Ask((2,), ("most is learnt there",)))
    assert sentence(said) == "not decided yet: 4 runs, about 12 more"
    assert said.code == 1


def test_a_patch_of_ours_that_turns_with_the_culprit_is_flagged() -> None:
    turned = history(turned=(("hook", State.CLEAN, State.ABSORBED),))
    assert "555555555555 turns our patch hook from clean to absorbed: it may be that" in list(
        lines(told(history=turned))
    )


def test_a_culprit_that_moves_a_dependency_offers_to_go_on_inside_it() -> None:
    moved = history(moved_pins=(("flashinfer-python", "0.6.3", "0.7.2"), ("torch", "2.9", "2.10")))
    said = "\n".join(lines(told(history=moved, upstreams={"flashinfer-python": "flashinfer"})))
    assert "555555555555 moves flashinfer-python from 0.6.3 to 0.7.2" in said
    assert "run flashinfer 0.6.3..0.7.2 --releases" in said
    assert "measure again with torch held at 2.9" in said


def test_a_release_that_did_it_offers_the_commits_inside() -> None:
    known = history()
    versions = [replace(one, commit=Commit(f"0.5.{at}", DAY, "")) for at, one in enumerate(known.revisions)]
    changes = [replace(one, commit=two.commit) for one, two in zip(known.changes, versions[1:], strict=True)]
    said = replace(told(history=History(tuple(versions), tuple(changes))), releases=True)
    assert any("run sglang v0.5.3..v0.5.4 --history CLONE" in line for line in lines(said))


def test_the_plan_names_every_revision_with_its_program_and_why_it_is_culled() -> None:
    rows = list(plan_rows(history(moved_pins=(("torch", "2.9", "2.10"),))))
    assert [row[0] for row in rows] == ["0", "1", "= 1", "2", "3", "4"]
    assert rows[0][5] == "1 in"
    assert rows[1][6] == "cannot be judged: no wheel"
    assert rows[2][6] == "culled: only <docs>"
    assert rows[4][6] == "torch 2.9 → 2.10"


def test_a_run_without_a_number_says_why_and_a_void_one_is_shown_as_such() -> None:
    rows = {row[0]: row for row in run_rows(told())}
    assert rows["3"][3:5] == ("", "skipped")
    assert rows["3"][7] == "exit 125; the command said so"
    assert (rows["4"][4], rows["4"][7]) == ("void", "somebody used it")
    assert rows["5"][1:3] == ("-", "NEW less culprit")
    assert any("1 runs gave no number (skipped)" in line for line in lines(told()))


def test_json_has_levels_in_the_users_unit_and_no_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    wide = replace(FOUND, old=Level(math.log(352), -math.inf, math.inf, 1))
    assert show_told(told(wide), True) == 0
    said = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (said["verb"], said["ok"], said["status"]) == ("bisect", True, "found")
    (culprit,) = said["culprits"]
    assert (culprit["before"]["mean"], culprit["after"]["mean"]) == (pytest.approx(353), pytest.approx(718))
    assert culprit["changes"][0]["number"] == 5
    assert said["ends"]["effect"]["mean"] == pytest.approx(2.034)
    assert [run["void"] for run in said["runs"]] == [False, False, False, True, False]
    assert [one["program"] for one in said["commits"]] == [0, 1, 1, 2, 3, 4]


def test_people_see_the_posterior_and_the_next_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_told(told(Ask((2,), ("most is learnt there",))), False) == 1
    said = capsys.readouterr().out
    assert re.search(r"99\.40%\s+█{20}\s+#5 555555555555", said)
    assert "next: program 2 (444444444444): most is learnt there" in said


def test_the_figure_is_a_png_with_every_run() -> None:
    figure = figure_of(told())
    assert [dot.void for dot in figure.dots] == [False, False, True]
    assert [(side.first, side.last, round(side.mean)) for side in figure.sides] == [(0, 3, 353), (4, 5, 718)]
    assert image(figure).startswith(b"\x89PNG")


def test_a_figure_can_be_drawn_before_anything_is_known() -> None:
    assert image(figure_of(told(made=(), decision=None))).startswith(b"\x89PNG")


def test_the_page_needs_nothing_else_and_escapes_what_upstream_wrote() -> None:
    strange = history()
    commit = replace(COMMITS[4], subject="<script>$x$ & (#5)")
    revisions = tuple(replace(one, commit=commit) if at == 4 else one for at, one in enumerate(strange.revisions))
    changes = tuple(replace(one, commit=commit) if at == 3 else one for at, one in enumerate(strange.changes))
    text = page(figure_of(told(history=History(revisions, changes))))
    assert "<script" not in text
    assert "http" not in text
    assert "&lt;script&gt;" in text
    assert '<svg viewBox="' in text
    assert 'role="img" aria-label="Bisection of sglang v1..v2' in text
    assert "culled: only &lt;docs&gt;" in text
    assert text.count("<h2>") == 3
    assert "var(--ink)" in text


def test_the_page_greys_what_is_culled_and_says_what_was_on_every_revision() -> None:
    drawn = page(figure_of(told()))
    (grey,) = [line for line in drawn.splitlines() if line.startswith("<tr class=dim>")]
    assert "culled: only &lt;docs&gt;" in grey
    assert "<h1>Bisection of sglang v1..v2 (with the series of v0.5.9)</h1>" in drawn
    bare = history()
    alone = History(tuple(replace(revision, patches=()) for revision in bare.revisions), bare.changes)
    assert "<h1>Bisection of sglang v1..v2 (upstream alone)</h1>" in page(figure_of(told(history=alone)))


def test_changes_that_are_out_of_the_question_are_not_listed() -> None:
    belief = Belief((0.0, 0.00002, 0.99997, 0.0), 0.00001)
    rows = list(belief_rows(told(), Decision(belief, FOUND, 0.0)))
    assert [row[-1] for row in rows] == ["#5 555555555555 Change 5 (2026-02-20)", "no change"]


def test_the_same_page_is_drawn_twice() -> None:
    assert page(figure_of(told())) == page(figure_of(told()))


def test_without_matplotlib_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(Missing) as refused:
        check_matplotlib()
    assert "matplotlib is not installed" in refused.value.what
    assert "pip install matplotlib" in refused.value.todo


def test_away_from_a_terminal_every_run_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    unfinished = told(Ask((2,), ("most is learnt there",)), made=MADE[:1])
    with watching() as watch:
        watch(unfinished)
        watch(replace(unfinished, made=MADE[:3]))
    said = capsys.readouterr().err
    assert said.count("run 1: program 0 (111111111111) on a: 353.2") == 1
    assert "run 3: program 1 (333333333333) on b: skipped: the command said so" in said
    assert "99.40% #5 555555555555 Change 5 (2026-02-20); not decided yet: 3 runs, about 12 more" in said


def test_on_a_terminal_the_posterior_is_drawn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with watching() as watch:
        watch(told(Ask((2,), ("most is learnt there",))))
    said = capsys.readouterr().err
    assert "█" in said
    assert "next: program 2" in said


def test_the_dry_run_says_how_long_it_will_take(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_plan(told(made=(), decision=None), 6) == 0
    said = capsys.readouterr().out
    assert "culled: only <docs>" in said
    assert "5 changes, 1 culled: 5 programs" in said
    assert "an effect of 4 times the noise: about 13 runs, 1.3 h" in said
    assert "nothing was run" in said


def test_on_a_terminal_what_is_culled_is_dim(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    show_plan(told(made=(), decision=None), None)
    dim = [line for line in capsys.readouterr().out.splitlines() if "\x1b[2m" in line]
    assert len(dim) == 1
    assert "culled: only <docs>" in dim[0]


def test_where_nothing_changes_the_answer_is_known_without_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    known = history()
    same = History(known.revisions, tuple(replace(change, culled="same") for change in known.changes))
    show_plan(told(history=same, made=(), decision=None), None)
    assert "the answer is no-change without a run" in capsys.readouterr().out
