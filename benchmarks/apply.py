"""Applies 10 and 100 patches to SGLang's pinned tree with this project, and with git's own ways, in one run.

    python benchmarks/apply.py            a table
    python benchmarks/apply.py --json     {"ratios": {"whole_10", "whole_100", "work_10", "work_100"}, "seconds": …}

Half of the patches touch server_args.py (250 KB), the rest one file each. `whole` is our process from start to end over
`git am`'s; `work` is the same without interpreter start and imports. Runs are interleaved; medians are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIG = "python/sglang/srt/server_args.py"
QUIET = {**os.environ, "GIT_AUTHOR_NAME": "b", "GIT_AUTHOR_EMAIL": "b@b", "GIT_COMMITTER_NAME": "b",
         "GIT_COMMITTER_EMAIL": "b@b"}  # fmt: skip
# The imports are done before the clock starts: what is timed is the verb itself.
WORK = """
import json, sys, time
sys.path[:] = [p for p in sys.path if p]
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("sm120_overlay", sys.argv[1])
sys.modules["sm120_overlay"] = module_from_spec(spec); spec.loader.exec_module(sys.modules["sm120_overlay"])
import git
from sm120_overlay.verbs.apply import main
start = time.perf_counter(); code = main([sys.argv[2], "--json"]); took = time.perf_counter() - start
print(took, file=sys.stderr); sys.exit(code)
"""


def git(folder: Path, *arguments: str) -> str:
    """git's output in a folder."""
    command = ["git", "-c", "gc.auto=0", "-c", "commit.gpgsign=false", *arguments]
    return subprocess.run(command, cwd=folder, env=QUIET, check=True, capture_output=True, text=True).stdout


def timed(command: list[str], folder: Path) -> float:
    """Seconds a whole process takes."""
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, env=QUIET, check=True, capture_output=True)
    return time.perf_counter() - start


def make_project(scratch: Path, line: str) -> tuple[Path, Path, str]:
    """A copy of the tools with an empty series, and a checkout of the pinned tree: both paths, and the pin's id."""
    project, out = scratch / "project", scratch / "trees"
    shutil.copytree(ROOT / "tools", project / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pins.toml", project / "pins.toml")
    (project / "tests" / "patches").mkdir(parents=True)
    (project / "patches" / line / "sglang").mkdir(parents=True)
    (project / "patches" / line / "sglang" / "series").touch()
    apply = [sys.executable, str(project / "tools" / "apply.py"), "--line", line, "--only", "sglang"]
    subprocess.run([*apply, "--source", "pypi", "--into", str(out)], check=True, capture_output=True)
    checkout = out / "sglang"
    return project, checkout, git(checkout, "rev-parse", "HEAD").strip()


def commit_patches(checkout: Path, line: str, count: int) -> None:
    """`count` one-line commits on our branch, every second one to the big file."""
    others = [name for name in git(checkout, "ls-files", "python/sglang/srt").split("\n") if name.endswith(".py")]
    others = [name for name in others if name != BIG][: 3 * count : 3]
    git(checkout, "checkout", "-q", "-B", f"sm120/{line}", "HEAD")
    for number in range(count):
        path = checkout / (BIG if number % 2 == 0 else others[number])
        lines = path.read_text().split("\n")
        lines.insert(40 * number % max(len(lines) - 1, 1), f"# benchmark line {number}")
        path.write_text("\n".join(lines))
        message = (
            f"bench: insert line {number}\n\nA change for the benchmark.\n\nSlug: bench-{number}\nScope: any\n"
            f"Upstream-Status: Inappropriate [a benchmark]\nTest: tests/patches/test_bench_{number}.py\n"
            f"Drop-When: The benchmark ends, at once.\nEvidence: reasoned\n"
        )
        git(checkout, "commit", "-q", "-a", "-m", message)


def prepare(scratch: Path, line: str, count: int) -> tuple[Path, Path, str]:
    """Project, checkout and pin with `count` patches exported, the checkout back at the pin."""
    project, checkout, pin = make_project(scratch, line)
    commit_patches(checkout, line, count)
    for number in range(count):
        (project / "tests" / "patches" / f"test_bench_{number}.py").touch()
    export = [sys.executable, str(project / "tools" / "export.py"), str(checkout), "--line", line]
    subprocess.run(export, check=True, capture_output=True)
    git(checkout, "branch", "-q", "-m", f"sm120/{line}", "series")
    git(checkout, "checkout", "-q", "--detach", pin)
    git(checkout, "commit", "-q", "--allow-empty", "-m", "another base")
    git(checkout, "branch", "-q", "other")
    git(checkout, "checkout", "-q", "--detach", pin)
    return project, checkout, pin


def contenders(project: Path, checkout: Path, line: str) -> dict[str, Callable[[], float]]:
    """Name → one timed run from the pin."""
    series = project / "patches" / line / "sglang"
    patches = [str(series / f"{slug}.patch") for slug in (series / "series").read_text().split()]
    tool, package = project / "tools" / "apply.py", project / "tools" / "sm120_overlay" / "__init__.py"

    def work() -> float:
        command = [sys.executable, "-c", WORK, str(package), str(checkout)]
        done = subprocess.run(command, cwd=project, env=QUIET, check=True, capture_output=True, text=True)
        return float(done.stderr.strip().splitlines()[-1])

    return {
        "ours": lambda: timed([sys.executable, str(tool), str(checkout)], project),
        "work": work,
        "git am": lambda: timed(["git", "am", "-q", *patches], checkout),
        "git apply --index": lambda: timed(["git", "apply", "--index", *patches], checkout),
        "git rebase": lambda: timed(["git", "rebase", "-q", "--onto", "other", git(checkout, "rev-parse",
                                     "other^").strip(), "series"], checkout),
    }  # fmt: skip


def reset(checkout: Path, pin: str, line: str, series: str) -> None:
    """The checkout at the pin again, without our branch, and the branch to rebase where it was."""
    git(checkout, "checkout", "-q", "--force", "--detach", pin)
    for branch in (f"sm120/{line}", "series"):
        subprocess.run(["git", "branch", "-q", "-D", branch], cwd=checkout, check=False, capture_output=True)
    git(checkout, "branch", "-q", "series", series)
    git(checkout, "update-index", "-q", "--refresh")


def measure(line: str, count: int, runs: int) -> dict[str, float]:
    """Median seconds of every contender."""
    with tempfile.TemporaryDirectory(prefix="sm120-bench-") as folder:
        project, checkout, pin = prepare(Path(folder), line, count)
        series = git(checkout, "rev-parse", "series").strip()
        racing = contenders(project, checkout, line)
        found: dict[str, list[float]] = {name: [] for name in racing}
        for number in range(runs + 1):
            for name, run in racing.items():
                reset(checkout, pin, line, series)
                seconds = run()
                if number:  # the first round warms the caches
                    found[name].append(seconds)
        return {name: statistics.median(values) for name, values in found.items()}


def main(argv: list[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=7, help="counted runs of each (default 7)")
    parser.add_argument("--line", default="v0.5.9")
    options = parser.parse_args(argv)
    seconds = {count: measure(options.line, count, options.runs) for count in (10, 100)}
    ratios = {
        f"{kind}_{count}": round(found[name] / found["git am"], 3)
        for kind, name in (("whole", "ours"), ("work", "work"))
        for count, found in seconds.items()
    }
    if options.json:
        print(
            json.dumps({"schema": 1, "ratios": ratios, "seconds": {str(count): row for count, row in seconds.items()}})
        )
        return 0
    for count, row in seconds.items():
        print(f"{count} patches")
        for name, value in row.items():
            print(f"  {name:18} {value * 1000:8.0f} ms   {value / row['git am']:5.2f} x git am")
    return 0


if __name__ == "__main__":
    sys.exit(main())
