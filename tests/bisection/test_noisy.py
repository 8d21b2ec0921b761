"""Through the whole tool: a machine that drifts, hosts that differ, a culprit that cannot be judged."""

from __future__ import annotations

from pathlib import Path

from ..queue.scenes import Answer
from ..queue.toy import git
from ..survey.upstream import Upstream
from .test_clusters import Cluster, dask
from .test_verb import CULPRIT, LAST, MEASURE, clone, run

__all__ = ["clone", "dask"]

# Each run adds to what the next one gives: after five, the machine alone makes as much as the culprit.
SPEED = "$(cat {path}/toy/speed.txt)"
DRIFTS = f"n=$(ls %s | wc -l); touch %s/$n; echo speed: $(({SPEED} + 10 * n + 7919 * n %% 5))"
DIFFERS = f"case {{host}} in one) k=1;; *) k=3;; esac; echo speed: $((k * {SPEED}$(date +%N | cut -c8-9)))"


def culprits(answer: Answer) -> list[int]:
    """Numbers of the changes that are said to have done it."""
    return [change["number"] for one in answer.said["culprits"] for change in one["changes"]]


def test_pairs_find_the_commit_on_a_machine_that_drifts(clone: Upstream, tmp_path: Path) -> None:
    (tmp_path / "counts").mkdir()
    answer = run(clone, "--paired", "--scale", "linear", command=DRIFTS % ((tmp_path / "counts",) * 2))
    assert (answer.code, answer.said["status"], culprits(answer)) == (0, "found", [CULPRIT]), answer
    programs = [one["program"] for one in answer.said["runs"] if one["program"] is not None]
    assert all(0 in programs[place : place + 2] for place in range(0, len(programs), 2))
    (tmp_path / "again").mkdir()
    as_many = ("--most-runs", len(programs), "--session", tmp_path / "alone")
    alone = run(clone, "--scale", "linear", *as_many, command=DRIFTS % ((tmp_path / "again",) * 2))
    assert culprits(alone) != [CULPRIT]


def test_hosts_of_which_one_is_three_times_faster_are_not_compared(clone: Upstream, dask: Cluster) -> None:
    for host in ("one", "other"):
        dask.worker(host)
    dask.hosts().close()
    answer = run(clone, "--on", dask.address, "--min-effect", "5%", command=DIFFERS)
    assert (answer.code, answer.said["status"], culprits(answer)) == (0, "found", [CULPRIT]), answer
    assert {one["host"] for one in answer.said["runs"]} == {"one", "other"}
    values = [one["value"] for one in answer.said["runs"]]
    assert min(values) < 10200
    assert max(values) > 40000


def test_a_culprit_that_cannot_be_judged_is_one_of_a_block(clone: Upstream) -> None:
    broken = git(clone.path, "rev-parse", f"HEAD~{LAST - CULPRIT}").strip()
    answer = run(clone, "--min-effect", "5%", command=f"[ {{commit}} != {broken} ] || exit 125; {MEASURE}")
    assert (answer.code, answer.said["status"], culprits(answer)) == (0, "block", [CULPRIT, CULPRIT + 1]), answer
    assert [one["outcome"] for one in answer.said["runs"] if one["program"] is not None].count("skipped") == 1
