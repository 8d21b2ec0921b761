"""Adopts a large raw diff onto SGLang's pinned tree, beside git's own ways of taking one, in one run.

    python benchmarks/adopt.py            a table
    python benchmarks/adopt.py --json     {"ratios": {"exact", "merged"}, "seconds": …}
    python benchmarks/adopt.py --history CLONE DIFF…    seconds for diffs that you have

The diff touches 40 files, with abbreviated blobs. `exact` was made on the pin; its peer is `git apply --index`.
`merged` was made on a commit of a small history whose files differ elsewhere, which adopt must find; its peer is what a
person who knows that commit would do: check it out, `git apply --index`, commit, cherry-pick. Runs are interleaved;
medians are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = 40
NAMED = {"GIT_AUTHOR_NAME": "b", "GIT_AUTHOR_EMAIL": "b@b", "GIT_COMMITTER_NAME": "b", "GIT_COMMITTER_EMAIL": "b@b"}


def run(command: list[str], folder: Path, fine: tuple[int, ...] = (0,)) -> str:
    """What a command prints; it must exit as is fine."""
    done = subprocess.run(command, cwd=folder, env={**os.environ, **NAMED}, capture_output=True, text=True, check=False)
    if done.returncode not in fine:
        raise SystemExit(f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def git(folder: Path, *arguments: str) -> str:
    """git's output in a folder."""
    return run(["git", "-c", "gc.auto=0", "-c", "commit.gpgsign=false", *arguments], folder)


def edit(folder: Path, names: list[str], where: int, text: str) -> None:
    """One line more in every file, at a part of it."""
    for name in names:
        lines = (folder / name).read_text().split("\n")
        lines.insert(where * len(lines) // 10, f"# {text}")
        (folder / name).write_text("\n".join(lines))


def make_diffs(scratch: Path) -> tuple[Path, Path]:
    """The checkout to adopt into, and a clone of the pin with the neighbour as a branch; the diffs beside them."""
    adopt_into = scratch / "build"
    apply = [sys.executable, str(ROOT / "tools/apply.py"), "--only", "sglang", "--source", "pypi"]
    run([*apply, "--into", str(adopt_into)], scratch)
    checkout, clone = adopt_into / "sglang", scratch / "clone"
    git(scratch, "clone", "-q", str(checkout), str(clone))
    git(clone, "checkout", "-q", "-b", "neighbour", git(checkout, "rev-list", "--max-parents=0", "HEAD").strip())
    listed = git(clone, "ls-files", "python/sglang/srt").split("\n")
    ours = set(git(clone, "diff", "--name-only", "HEAD", "origin/HEAD").split())
    sized = [name for name in listed if name.endswith(".py") and (clone / name).stat().st_size > 6000]
    names = [name for name in sized if name not in ours][:: max(1, len(sized) // FILES)][:FILES]
    edit(clone, names, 8, "the change")
    (scratch / "exact.patch").write_text(git(clone, "diff", "--abbrev=10"))
    git(clone, "reset", "-q", "--hard")
    edit(clone, names, 2, "what the neighbour has besides")
    git(clone, "commit", "-q", "-a", "-m", "neighbour")
    edit(clone, names, 8, "the change")
    (scratch / "merged.patch").write_text(git(clone, "diff", "--abbrev=10"))
    git(clone, "reset", "-q", "--hard")
    return checkout, clone


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def adopt(checkout: Path, diff: Path, *more: str) -> None:
    """Our way; only planned, so that the checkout stays as it is."""
    command = [sys.executable, str(ROOT / "tools/adopt.py"), str(diff), str(checkout), "--dry-run", *more]
    run(command, checkout, (0, 1, 3))


def take_exact(clone: Path, diff: Path) -> None:
    """git's way with a diff made on the pin."""
    git(clone, "apply", "--index", str(diff))


def take_merged(clone: Path, diff: Path, pin: str) -> None:
    """git's way with one made on a commit that the user must know."""
    git(clone, "checkout", "-q", "--detach", "neighbour")
    git(clone, "apply", "--index", str(diff))
    git(clone, "commit", "-q", "-m", "change")
    made = git(clone, "rev-parse", "HEAD").strip()
    git(clone, "checkout", "-q", "--detach", pin)
    git(clone, "cherry-pick", made)


def measure(scratch: Path, rounds: int) -> dict[str, float]:
    """Median seconds of each way."""
    checkout, clone = make_diffs(scratch)
    pin = git(clone, "rev-parse", "neighbour~1").strip()
    taken: dict[str, list[float]] = {"exact": [], "exact_git": [], "merged": [], "merged_git": []}
    for _ in range(rounds):
        for name, work in {
            "exact": lambda: adopt(checkout, scratch / "exact.patch"),
            "exact_git": lambda: take_exact(clone, scratch / "exact.patch"),
            "merged": lambda: adopt(checkout, scratch / "merged.patch", "--history", str(clone)),
            "merged_git": lambda: take_merged(clone, scratch / "merged.patch", pin),
        }.items():
            git(clone, "checkout", "-q", "--force", "--detach", pin)
            taken[name].append(timed(work))
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def main() -> None:
    """Prints ratios (ours over git's), or seconds for the diffs that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("diffs", nargs="*", type=Path, metavar="DIFF")
    parser.add_argument("--history", type=Path, metavar="CLONE")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.diffs:
            checkout, _ = make_diffs(Path(folder))
            more = ["--history", str(options.history.resolve())] if options.history else []
            seconds = {diff.name: timed(lambda: adopt(checkout, diff.resolve(), *more)) for diff in options.diffs}  # noqa: B023
            for name, value in seconds.items():
                print(f"{name:30} {value:5.2f} s")
            return
        seconds = measure(Path(folder), options.rounds)
    ratios = {name: round(seconds[name] / seconds[f"{name}_git"], 2) for name in ("exact", "merged")}
    if options.json:
        print(json.dumps({"ratios": ratios, "seconds": {name: round(value, 3) for name, value in seconds.items()}}))
        return
    for name, ratio in ratios.items():
        print(
            f"{name:8} {ratio:5.2f} x git   ({seconds[name]:.2f} s and {seconds[f'{name}_git']:.2f} s, {FILES} files)"
        )


if __name__ == "__main__":
    main()
