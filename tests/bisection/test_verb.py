"""bisect as people call it: a session begun, looked at, mended, gone on with and drawn."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from sm120_overlay.bisection.decision.nouns import Rules
from sm120_overlay.bisection.events import Driven, Ended, Event, Opened, Started, as_json
from sm120_overlay.bisection.history import Change, History, Revision
from sm120_overlay.bisection.job import Cell, How, Metric, Outcome, Ran
from sm120_overlay.bisection.journal import append, held
from sm120_overlay.bisection.reach import Rules as Rules_of_reach
from sm120_overlay.cli import main
from sm120_overlay.queue.ranges import Commit

from ..queue.scenes import Answer, ask
from ..queue.toy import Toy, git
from ..survey.upstream import CLASH, Upstream

COMMITS = tuple(Commit(f"{number:x}" * 40, "2026-02-20", f"Change {number} (#{number})") for number in range(1, 6))
HISTORY = History(
    tuple(Revision(commit, "", commit.id[:4], "") for commit in COMMITS),
    tuple(Change(commit, ("a.py",)) for commit in COMMITS[1:]),
)
CELL = Cell("measure", Metric(How.JSON, "speed"))


@pytest.fixture
def home(toy: Toy) -> Path:
    """The toy's home, where sessions are kept."""
    return toy.home.root


def session(home: Path, values: Sequence[tuple[int, float | None]], name: str = "toy-v1-v2") -> Path:
    """A session with these runs: program and value (None: the command skipped)."""
    folder = home / "build" / "bisect" / name
    opened = Opened("toy", "v1", "v2", CELL, Rules(min_effect=math.log(1.05)), as_json(HISTORY), "v1", "speed")
    events: list[Event] = [opened, Driven(1)]
    for number, (program, value) in enumerate(values, 1):
        outcome = Outcome.MEASURED if value is not None else Outcome.SKIPPED
        events += [Started(number, program), Ended(program, "", Ran(number, outcome, value, host="a", seconds=60))]
    with held(folder) as (journal, _):
        for event in events:
            append(journal, event)
    return folder


STEPS = [(0, 100.0), (4, 200.0), (0, 101.0), (4, 203.0), (0, 99.5), (4, 199.0), (2, 100.5)]


def said(*arguments: object) -> Answer:
    """bisect's answer."""
    return ask("bisect", *arguments)


def test_status_says_what_is_known_and_what_runs_next(home: Path) -> None:
    session(home, STEPS)
    answer = said("status")
    assert (answer.code, answer.said["status"], len(answer.said["runs"])) == (1, None, 7)
    assert answer.said["says"].startswith("not decided yet: 7 runs")
    assert {one["program"] for one in answer.said["next"]} <= {2, 3, 4}
    likely = max(answer.said["posterior"]["changes"], key=lambda one: float(one["probability"]))
    assert likely["program"] in (3, 4)


def test_a_session_without_runs_is_told_too(home: Path) -> None:
    session(home, [])
    answer = said("status")
    assert answer.said["says"] == "not decided yet: 0 runs"
    assert answer.said["posterior"] is None


def test_log_lists_every_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session(home, [*STEPS, (1, None)])
    assert main(["bisect", "log"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 8
    assert lines[-1].split()[:4] == ["8", "1", "222222222222", "skipped"]


def test_replay_shows_the_belief_after_each_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session(home, STEPS)
    assert main(["bisect", "replay"]) == 1
    out = capsys.readouterr().out
    assert out.count("after run") == 7
    assert "after run 2 (program 4, 200)" in out


def test_void_takes_a_run_out_and_undo_brings_it_back(home: Path) -> None:
    session(home, STEPS)
    taken = said("void", 2, "--why", "the machine was shared")
    assert taken.code == 0
    assert [run["number"] for run in taken.said["runs"] if run["void"]] == [2]
    back = said("void", 2, "--undo")
    assert not any(run["void"] for run in back.said["runs"])
    assert back.said["posterior"] == said("status").said["posterior"]


def test_void_of_a_run_that_is_not_there_is_refused(home: Path) -> None:
    session(home, STEPS)
    answer = said("void", 99)
    assert answer.code == 2
    assert answer.said["error"]["what"].startswith("There is no run 99 in ")


def test_skip_takes_a_revision_for_one_that_cannot_be_judged(home: Path) -> None:
    session(home, STEPS)
    answer = said("skip", "2222", "--why", "known to hang")
    assert answer.code == 0
    assert "program 1 (222222222222) cannot be judged: known to hang" in answer.said["notes"]


def test_skip_of_a_revision_that_is_not_there_is_refused(home: Path) -> None:
    session(home, STEPS)
    answer = said("skip", "abc")
    assert (answer.code, answer.said["error"]["what"]) == (
        2, "abc: expected one revision of the session, found 0."
    )  # fmt: skip


def test_a_session_that_was_cut_before_its_first_line_is_refused(home: Path) -> None:
    folder = home / "build" / "bisect" / "cut"
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").touch()
    answer = said("status")
    assert (answer.code, answer.said["error"]["what"]) == (4, f"{folder}: the session is empty.")


def test_with_standard_error_closed_the_answer_is_json_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["bisect", "status", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["todo"] == "Name its folder with --session."


def test_report_draws_the_page_and_the_image(home: Path, tmp_path: Path) -> None:
    session(home, STEPS)
    html, png = tmp_path / "b.html", tmp_path / "b.png"
    answer = said("report", "--html", html, "--png", png)
    assert answer.said["written"] == [str(html), str(png)]
    assert "<svg" in html.read_text()
    assert png.read_bytes().startswith(b"\x89PNG")


SPEED = "python/toy/speed.txt"
MEASURE = "echo speed: $(cat {path}/toy/speed.txt)$(date +%N | cut -c8-9)"  # 100 and two digits of noise
LAST, CULPRIT = 12, 8


@pytest.fixture
def clone(toy: Toy) -> Upstream:
    """Twelve commits after the pin: the third is prose, the eighth makes it faster."""
    upstream = Upstream(toy.upstream()).tag("v1.0")
    upstream.commit({SPEED: "100"}, 1)
    for number in range(2, LAST + 1):
        prose = {"README.md": f"toy {number}\n"}
        code = {f"python/toy/part{number}.py": f"PART = {number}\n"}
        upstream.commit(prose if number == 3 else {SPEED: "150"} if number == CULPRIT else code, number)
    return upstream


def run(upstream: Upstream, *options: object, command: str = MEASURE) -> Answer:
    """`bisect run` from the first of these commits to the last."""
    first = git(upstream.path, "rev-parse", f"HEAD~{LAST - 1}").strip()
    what = ("--history", upstream.path, "--cmd", command, "--metric", "regex:speed: ([0-9]+)")
    return said("run", "toy", f"{first}..main", *what, *options)


def test_run_finds_the_commit_and_goes_on_where_it_was(clone: Upstream, tmp_path: Path) -> None:
    html = tmp_path / "b.html"
    answer = run(clone, "--min-effect", "5%", "--html", html)
    assert (answer.code, answer.said["status"]) == (0, "found"), answer
    (culprit,) = answer.said["culprits"]
    assert [change["number"] for change in culprit["changes"]] == [CULPRIT]
    assert culprit["after"]["mean"] / culprit["before"]["mean"] == pytest.approx(1.5, rel=0.02)
    assert "by #8 " in answer.said["says"]
    assert answer.said["undone"].startswith("the culprit taken back on main: confirmed, ")
    assert "#8 " in html.read_text()
    runs = len(answer.said["runs"])
    assert (said("status").said["status"], said("log").code) == ("found", 0)
    again = run(clone, "--min-effect", "5%")
    assert (again.code, len(again.said["runs"])) == (0, runs)


def test_the_session_of_another_command_is_refused(clone: Upstream) -> None:
    assert run(clone, "--most-runs", 1).code in (1, 4)
    answer = run(clone, command="echo speed: 3")
    assert answer.code == 1
    assert "is another session" in answer.said["error"]["what"]


def test_a_session_whose_runs_were_spent_goes_on_with_more_of_them(clone: Upstream) -> None:
    spent = run(clone, "--most-runs", 4)
    assert (spent.code, spent.said["status"], len(spent.said["runs"])) == (1, "credible-set", 4)
    more = run(clone)
    assert (more.code, more.said["status"]) == (0, "found")
    assert more.said["runs"][:4] == spent.said["runs"]
    assert "--most-runs is 2000 from here on, it was 4" in more.err


def test_a_file_beside_the_package_counts_where_the_command_names_it(clone: Upstream) -> None:
    for number, speed in ((LAST + 1, "100"), (LAST + 2, "150"), (LAST + 3, "150")):
        clone.commit({"bench/speed.txt": speed, "README.md": f"toy {number}\n"}, number)
    what = ("run", "toy", "main~2..main", "--history", clone.path, "--metric", "regex:([0-9]+)", "--scale", "exact")
    found = said(*what, "--cmd", "cat {tree}/bench/speed.txt")
    assert (found.code, found.said["status"]) == (0, "found"), found
    assert [change["number"] for change in found.said["culprits"][0]["changes"]] == [LAST + 2]
    blind = said(*what, "--cmd", "echo 1", "--session", clone.path.parent / "blind")
    assert (blind.code, blind.said["status"], blind.said["runs"]) == (1, "no-change", [])


def test_no_change_is_an_answer(clone: Upstream) -> None:
    answer = run(clone, "--scale", "exact", command="echo speed: 100")
    assert (answer.code, answer.said["status"]) == (1, "no-change")


def test_where_only_prose_changes_nothing_has_to_run(clone: Upstream) -> None:
    clone.commit({"README.md": "toy, again\n"}, 13)
    clone.commit({"README.md": "toy, and again\n"}, 14)
    answer = said("run", "toy", "HEAD~2..HEAD", "--history", clone.path, "--cmd", "false", "--metric", "exit")
    assert (answer.code, answer.said["status"], answer.said["runs"]) == (1, "no-change", [])
    assert answer.said["says"] == "no-change: between HEAD~2 and HEAD nothing changes that a run can see"


def test_the_dry_run_measures_nothing(clone: Upstream) -> None:
    answer = run(clone, "--dry-run", "--run-minutes", 6, command="false")
    assert answer.code == 0
    culled = {one["number"]: one["culled"] for one in answer.said["commits"]}
    assert culled[3]
    assert not any(culled[number] for number in culled if number != 3)
    assert answer.said["runs"] == []


def _launching(patch: pytest.MonkeyPatch, root: str) -> None:
    """The toy's launch begins with one of its modules."""
    rules = Rules_of_reach("the toy's launch", "python", ("toy",), (root,))
    patch.setattr("sm120_overlay.verbs._bisect_plan.launch_of", lambda *_, **__: rules)


def test_what_no_launch_reaches_is_measured_with_no_cull_and_the_reason_stays(
    clone: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    _launching(monkeypatch, "toy.core")
    culled, kept = (run(clone, "--dry-run", *more).said["commits"] for more in ((), ("--no-cull",)))
    reasons = {one["number"]: one["culled"] for one in culled if one["culled"]}
    assert "no launch reaches it: python/toy/part5.py" in reasons[5]
    assert {one["number"] for one in kept if one["culled"]} == {3}  # prose is the same program
    assert next(one["why"] for one in kept if one["number"] == 5) == reasons[5]
    assert len({one["program"] for one in kept}) > len({one["program"] for one in culled})


def test_without_culling_a_launch_that_is_not_known_is_said_and_goes_on(
    clone: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    _launching(monkeypatch, "toy.gone")
    assert (
        run(clone, "--dry-run").said["error"]["todo"]
        == "Name the upstream whose trees these are, or bisect without culling."
    )
    answer = run(clone, "--dry-run", "--no-cull")
    assert "(toy.gone) is there. So it is not known what a launch reaches." in answer.err
    assert {one["number"] for one in answer.said["commits"] if one["culled"]} == {3}


def test_a_command_that_says_stop_ends_it_all(clone: Upstream) -> None:
    answer = run(clone, command="exit 130")
    assert answer.code == 4
    assert said("status").said["status"] == "aborted"


def test_a_placeholder_that_does_not_exist_is_refused_before_anything_runs(clone: Upstream) -> None:
    answer = run(clone, command="measure {speed}")
    assert answer.code == 2
    assert "there is no placeholder {speed}" in answer.said["error"]["what"]


def test_a_clone_that_somebody_works_in_gives_the_same_and_is_left_as_it_is(clone: Upstream) -> None:
    before = run(clone, "--dry-run").said["commits"]
    (clone.path / SPEED).write_text("9")
    (clone.path / "own.txt").write_text("mine\n")
    state = git(clone.path, "status", "--porcelain", "--branch")
    assert run(clone, "--dry-run").said["commits"] == before
    assert git(clone.path, "status", "--porcelain", "--branch") == state


def test_an_end_that_a_patch_does_not_go_onto_is_said_before_anything_is_begun(
    clone: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sm120_overlay.verbs._bisect_run.open_hosts", lambda *_: pytest.fail("hosts were opened"))
    clone.commit(CLASH)
    answer = run(clone)
    assert answer.code == 4
    assert answer.said["error"]["what"].endswith(" cannot be judged: right-answer does not go onto it.")
    assert "--on-conflict drop" in answer.said["error"]["todo"]
    assert not list(Path("build").glob("bisect/*/journal.jsonl"))


def test_ends_the_wrong_way_round_are_refused(clone: Upstream) -> None:
    answer = said("run", "toy", "main..HEAD~3", "--history", clone.path, "--cmd", "true", "--metric", "exit")
    assert answer.code == 1
    assert answer.said["error"]["todo"] == "Name two, the older one first."


def test_a_commit_that_has_vanished_from_the_clone_is_named_and_nothing_is_lost(clone: Upstream) -> None:
    first, last = (git(clone.path, "rev-parse", f"HEAD~{back}").strip() for back in (LAST - 1, 0))
    what = (
        "run",
        "toy",
        f"{first}..{last}",
        "--history",
        clone.path,
        "--cmd",
        MEASURE,
        "--metric",
        "regex:speed: (.+)",
    )
    assert said(*what, "--most-runs", 3).said["runs"]
    kept = said("log").said["runs"]
    git(clone.path, "reset", "-q", "--hard", "HEAD~3")
    git(clone.path, "reflog", "expire", "--expire=now", "--all")
    git(clone.path, "gc", "-q", "--prune=now")
    answer = said(*what, "--most-runs", 3)
    assert answer.code == 4
    assert f"{clone.path} lacks {last}" in answer.said["error"]["what"]
    assert said("log").said["runs"] == kept


def test_without_scipy_it_says_how_to_get_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    answer = said("status")
    assert answer.code == 4
    assert answer.said["error"]["todo"] == f"{sys.executable} -m pip install numpy scipy"
