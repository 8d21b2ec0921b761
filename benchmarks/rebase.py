"""Moves a series from SGLang 0.5.9 to 0.5.16 with this project and with `git rebase`, in one run.

    python benchmarks/rebase.py            a table
    python benchmarks/rebase.py --json     {"milliseconds_a_patch": {"ours", "git rebase"}, "ratio": …}
    python benchmarks/rebase.py --history ~/src/sglang     and a survey of every commit between them (survey.py)

Every patch inserts a line that goes in clean, half of them into files that upstream changed in between. `ours` is the
move itself (both pins at hand; all merges, commits and patch files, in memory) without interpreter start; `git rebase`
is a whole process on a checkout. Runs are interleaved; medians are compared.
"""

from __future__ import annotations

import argparse
import difflib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.apply import ROOT, git, make_project, timed

OLD, NEW = "v0.5.9", "v0.5.16"
WORK = """
import sys, time
sys.path[:] = [p for p in sys.path if p]
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("sm120_overlay", sys.argv[1])
sys.modules["sm120_overlay"] = module_from_spec(spec); spec.loader.exec_module(sys.modules["sm120_overlay"])
from pathlib import Path
import git
from sm120_overlay.queue.export import export_range
from sm120_overlay.queue.git import Repository, git_path, objects_alone
from sm120_overlay.queue.home import Home
from sm120_overlay.queue.moving import Move, advance
from sm120_overlay.queue.pins import load_lines
from sm120_overlay.queue.series import Series, load_series
from sm120_overlay.queue.sources import find_source
home = Home(Path(sys.argv[2])); lines = load_lines(home.pins)
old, new = (lines.line(name).pin("sglang") for name in sys.argv[3:5])
before, after = (find_source(pin, "pypi", lambda text: None) for pin in (old, new))
start = time.perf_counter()
move = Move(load_series(home, old), new, before.commit, after.commit, Series(new, ()))
with objects_alone(before.repository) as repo:
    moved = advance(repo, move, {})
    assert moved.stopped is None and len(moved.steps) == len(move.old.patches), moved.stopped
    export_range(repo, git_path(repo, "objects").parent, moved.base, moved.tip)
print(time.perf_counter() - start)
"""


def clean_places(checkout: Path, old: str, new: str) -> Iterator[tuple[str, int]]:
    """File and line where an inserted line meets no change of upstream's, changed files and others in turn."""
    files = [name for name in git(checkout, "ls-tree", "-r", "--name-only", old).split("\n") if name.endswith(".py")]
    changed = set(git(checkout, "diff", "--name-only", "--diff-filter=M", old, new).split("\n"))
    there = set(git(checkout, "ls-tree", "-r", "--name-only", new).split("\n"))
    touched = [name for name in files if name in changed]
    untouched = [name for name in files if name not in changed and name in there]
    for pair in zip(touched, untouched, strict=False):
        for name in pair:
            before, after = (git(checkout, "show", f"{revision}:{name}").split("\n") for revision in (old, new))
            blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
            longest = max(blocks, key=lambda block: block.size)
            if longest.size >= 12:
                yield name, longest.a + longest.size // 2


def commit_patches(checkout: Path, old: str, new: str, count: int) -> None:
    """`count` one-line commits on the old tree."""
    git(checkout, "checkout", "-q", "-B", f"sm120/{OLD}", old)
    for number, (name, line) in zip(range(count), clean_places(checkout, old, new), strict=False):
        path = checkout / name
        lines = path.read_text().split("\n")
        path.write_text("\n".join([*lines[:line], f"# benchmark line {number}", *lines[line:]]))
        message = (
            f"bench: insert line {number}\n\nA change for the benchmark.\n\nSlug: bench-{number}\nScope: any\n"
            f"Upstream-Status: Inappropriate [a benchmark]\nTest: tests/patches/test_bench_{number}.py\n"
            f"Drop-When: The benchmark ends, at once.\nEvidence: reasoned\n"
        )
        git(checkout, "commit", "-q", "-a", "-m", message)


def prepare(scratch: Path, count: int) -> tuple[Path, Path, str, str]:
    """A project with `count` patches on the old pin, and a checkout that holds both pins: their ids too."""
    project, checkout, old = make_project(scratch, OLD)
    apply = [sys.executable, str(project / "tools" / "apply.py"), "--line", NEW, "--only", "sglang", "--source", "pypi"]
    shutil.copytree(project / "patches" / OLD, project / "patches" / NEW)
    subprocess.run([*apply, "--into", str(scratch / "new")], check=True, capture_output=True)
    git(checkout, "fetch", "-q", "--update-shallow", str(scratch / "new" / "sglang"), "HEAD:refs/heads/new")
    new = git(checkout, "rev-parse", "new").strip()
    commit_patches(checkout, old, new, count)
    for number in range(count):
        (project / "tests" / "patches" / f"test_bench_{number}.py").touch()
    export = [sys.executable, str(project / "tools" / "export.py"), str(checkout), "--line", OLD]
    subprocess.run(export, check=True, capture_output=True)
    git(checkout, "branch", "-q", "series")
    return project, checkout, old, new


def measure(count: int, runs: int) -> dict[str, float]:
    """Median seconds of both ways."""
    with tempfile.TemporaryDirectory(prefix="sm120-bench-") as folder:
        project, checkout, old, new = prepare(Path(folder), count)
        tip = git(checkout, "rev-parse", "series").strip()
        package = project / "tools" / "sm120_overlay" / "__init__.py"
        command = [sys.executable, "-c", WORK, str(package), str(project), OLD, NEW]
        found: dict[str, list[float]] = {"ours": [], "git rebase": []}
        for _ in range(runs):
            done = subprocess.run(command, cwd=project, check=True, capture_output=True, text=True)
            found["ours"].append(float(done.stdout))
            git(checkout, "checkout", "-q", "--force", "-B", "series", tip)
            found["git rebase"].append(timed(["git", "rebase", "-q", "--onto", new, old, "series"], checkout))
    return {name: statistics.median(times) for name, times in found.items()}


def main() -> int:
    """Prints milliseconds a patch, the ratio, and on demand the survey beside them."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", action="store_true")
    made.add_argument("--patches", type=int, default=20)
    made.add_argument("--runs", type=int, default=3)
    made.add_argument("--history", help="a clone of SGLang: the survey is measured too")
    options = made.parse_args()
    seconds = measure(options.patches, options.runs)
    each = {name: round(1000 * value / options.patches, 1) for name, value in seconds.items()}
    ratio = round(seconds["ours"] / seconds["git rebase"], 2)
    if options.json:
        print(json.dumps({"milliseconds_a_patch": each, "ratio": ratio}))
    else:
        print(f"{options.patches} clean patches, {OLD} to {NEW}: milliseconds a patch")
        for name, value in each.items():
            print(f"  {name:12} {value:8.1f}")
        print(f"  ours / git rebase: {ratio}")
    if options.history:
        survey = [sys.executable, str(ROOT / "benchmarks" / "survey.py"), "--history", options.history]
        return subprocess.run([*survey, "--json"] if options.json else survey, check=False).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
