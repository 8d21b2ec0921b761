"""A noisy benchmark on a history of 64 commits: `git bisect run` beside this tool, on the same measurements."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ..queue.scenes import Answer, ask
from ..queue.toy import Toy, git
from ..survey.upstream import Upstream

SPEED, COMMITS, CULPRIT = "python/toy/speed.txt", 64, 37
OLD, NEW, NOISE = 100.0, 104.0, 3.2
# One run: the revision's speed, and noise that hangs on the revision, the seed and how often it was measured before.
BENCHMARK = f"""
import random, sys
from pathlib import Path
text, counts, seed = Path(sys.argv[1]).read_text(), Path(sys.argv[2]), sys.argv[3]
number, speed = text.split()
again = sum(1 for one in counts.iterdir() if one.name.startswith(number + "-"))
(counts / f"{{number}}-{{again}}").touch()
value = float(speed) + random.Random(f"{{seed}} {{number}} {{again}}").gauss(0, {NOISE})
print("speed", value)
sys.exit(value > {(OLD + NEW) / 2})
"""


@pytest.fixture
def history(upstream: Upstream) -> list[str]:
    """Ids of the commits, oldest first; number CULPRIT is the first fast one."""
    speeds = [OLD if number < CULPRIT else NEW for number in range(COMMITS + 1)]
    return [upstream.commit({SPEED: f"{number} {speed}\n"}, number) for number, speed in enumerate(speeds)]


@pytest.fixture
def benchmark(tmp_path: Path) -> Path:
    """The benchmark as a script."""
    script = tmp_path / "benchmark.py"
    script.write_text(BENCHMARK)
    return script


def command(script: Path, counts: Path, seed: int, place: str) -> str:
    counts.mkdir()
    words = [shlex.quote(str(word)) for word in (sys.executable, "-I", "-S", script)]
    return " ".join([*words, place, shlex.quote(str(counts)), str(seed)])


def by_git(upstream: Upstream, history: list[str], script: Path, counts: Path, seed: int) -> int:
    """The commit that `git bisect run` names with one run each, as its number."""
    run = command(script, counts, seed, SPEED)
    git(upstream.path, "bisect", "start", history[-1], history[0])
    done = subprocess.run(
        ["git", "bisect", "run", "sh", "-c", run], cwd=upstream.path, capture_output=True, text=True, check=True,
        env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"},
    )  # fmt: skip
    git(upstream.path, "bisect", "reset")
    (named,) = [line.split()[0] for line in done.stdout.splitlines() if line.endswith("is the first bad commit")]
    return history.index(named)


def by_us(upstream: Upstream, history: list[str], script: Path, folder: Path, seed: int) -> Answer:
    """What this tool says of the same measurements."""
    run = command(script, folder / f"ours{seed}", seed, "{tree}/" + SPEED)
    return ask(
        "bisect", "run", "toy", f"{history[0]}..{history[-1]}", "--history", upstream.path, "--session",
        folder / f"session{seed}", "--cmd", f"{run} || true", "--metric", r"regex:speed (\S+)", "--scale", "linear",
    )  # fmt: skip


def test_git_names_a_wrong_commit_most_of_the_time_and_we_name_the_right_one(
    upstream: Upstream, history: list[str], benchmark: Path, tmp_path: Path, toy: Toy
) -> None:
    """A step of d = 1.25 noises: a run is on the right side of the middle with Φ(d / 2) = .734; git asks six times.

    So git is right with .734⁶ = .157. Of 24 seeds that is 3.8, and 12 or more has a probability of 1e-4 (binomial);
    the seeds are fixed, and so are the answers as long as git asks for the same commits. Ours is asked where git is
    wrong, and by its confidence of 99 % names another commit on one of a hundred seeds.
    """
    found = [by_git(upstream, history, benchmark, tmp_path / f"git{seed}", seed) for seed in range(24)]
    assert sum(number == CULPRIT for number in found) < 12
    wrong = [seed for seed, number in enumerate(found) if number != CULPRIT]
    for seed in wrong[:2]:
        answer = by_us(upstream, history, benchmark, tmp_path, seed)
        assert (answer.code, answer.said["status"]) == (0, "found")
        (culprit,) = answer.said["culprits"]
        assert [change["commit"] for change in culprit["changes"]] == [history[CULPRIT]]
        assert abs(culprit["before"]["mean"] - OLD) < NOISE
        assert abs(culprit["after"]["mean"] - NEW) < NOISE
