"""Surveys a history of SGLang, beside a naive loop of `git apply --check` for every commit and patch, in one run.

    python benchmarks/survey.py                      a table, on a history made here from the pinned wheel
    python benchmarks/survey.py --json               {"ratio", "commits_per_second_per_patch", "seconds", ...}
    python benchmarks/survey.py --history CLONE v0.5.9..v0.5.16      on upstream's own

The history made here has 2,000 commits: one in four changes a file of the series. The loop puts each commit into an
index (`git read-tree`) and asks `git apply --check --cached` about each patch; it is run for a few commits spread over
the range, and its time for all of them is reckoned from those. `ratio` is ours over the loop's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMITS, LOUD = 2000, 4
WHO = b"committer b <b@b> %d +0000\n"
EPOCH = 1_772_000_000


def run(command: Sequence[str], folder: Path, fine: tuple[int, ...] = (0,), stdin: bytes = b"") -> str:
    """What a command prints; it must exit as is fine."""
    done = subprocess.run(command, cwd=folder, capture_output=True, input=stdin, check=False)
    if done.returncode not in fine:
        raise SystemExit(f"{command}: exit {done.returncode}\n{done.stdout.decode()}{done.stderr.decode()}")
    return done.stdout.decode()


def tools(verb: str, *arguments: str, fine: tuple[int, ...] = (0,)) -> str:
    """One of our verbs, as its own process."""
    return run([sys.executable, str(ROOT / "tools" / f"{verb}.py"), *arguments], ROOT, fine)


def patches(line: str, upstream: str = "sglang") -> list[Path]:
    """The files of the series, in order."""
    folder = ROOT / "patches" / line / upstream
    return [folder / f"{name}.patch" for name in (folder / "series").read_text().split()]


def touched(line: str) -> list[str]:
    """The files that the patches on SGLang change."""
    text = "".join(file.read_text() for file in patches(line))
    return sorted({row.split(" b/")[1] for row in text.splitlines() if row.startswith("diff --git ")})


def make_history(scratch: Path, line: str) -> tuple[Path, str]:
    """A repository with many commits on the pinned wheel, and the range."""
    tools("apply", "--only", "sglang", "--line", line, "--source", "pypi", "--into", str(scratch))
    clone = scratch / "sglang"
    root = run(["git", "rev-list", "--max-parents=0", "HEAD"], clone).strip()
    run(["git", "fast-import", "--quiet", "--date-format=raw"], clone, stdin=b"".join(_stream(clone, root, line)))
    return clone, f"{root}..refs/heads/history"


def _stream(clone: Path, root: str, line: str) -> Iterator[bytes]:
    """Commits that each change one line of one file."""
    chance = random.Random(1)
    ours = [path for path in touched(line) if run(["git", "ls-tree", root, path], clone)]
    texts = {path: run(["git", "show", f"{root}:{path}"], clone).split("\n") for path in ours}
    for number in range(COMMITS):
        path = chance.choice(ours) if number % LOUD == 0 else "README.md"
        text = texts.setdefault(path, ["readme"])
        text.insert(chance.randrange(len(text)), f"# change {number}")
        data = "\n".join(text).encode()
        yield b"commit refs/heads/history\n" + WHO % (EPOCH + 60 * number) + b"data 10\nChange (#1\n"
        yield b"from %s\n" % root.encode() if number == 0 else b""
        yield b"M 100644 inline %s\ndata %d\n%s\n" % (path.encode(), len(data), data)


def naive(clone: Path, revisions: Sequence[str], files: Sequence[Path], scratch: Path) -> float:
    """Seconds that the loop takes for these commits."""
    start = time.perf_counter()
    index = {**os.environ, "GIT_INDEX_FILE": str(scratch / "index")}
    for revision in revisions:
        subprocess.run(["git", "read-tree", revision], cwd=clone, env=index, check=True)
        for patch in files:
            command = ["git", "apply", "--check", "--cached", str(patch)]
            subprocess.run(command, cwd=clone, env=index, capture_output=True, check=False)
    return time.perf_counter() - start


def measure(
    clone: Path, wanted: str, line: str, looks: int, scratch: Path, upstream: str = "sglang"
) -> dict[str, float]:
    """Ours for the whole range, the loop for a part of it."""
    start = time.perf_counter()
    arguments = (upstream, wanted, "--line", line, "--history", str(clone), "--json")
    said = json.loads(tools("survey", *arguments, fine=(0, 1)))
    ours = time.perf_counter() - start
    end = said["new"]["commit"]
    revisions = run(["git", "rev-list", "--first-parent", f"{said['start']['commit']}..{end}"], clone).split()
    part = revisions[:: max(1, len(revisions) // looks)]
    loop = naive(clone, part, patches(line, upstream), scratch) * len(revisions) / len(part)
    count = len(said["patches"])
    return {
        "ratio": ours / loop,
        "commits_per_second_per_patch": len(revisions) * count / ours,
        "loop_commits_per_second_per_patch": len(revisions) * count / loop,
        "commits": len(revisions), "patches": count, "seconds": ours, "loop_seconds": loop,
    }  # fmt: skip


def main() -> None:
    """Prints speed and ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("range", nargs="?", metavar="OLD..NEW", help="with --history")
    parser.add_argument("--history", type=Path, metavar="CLONE")
    parser.add_argument("--upstream", default="sglang", help="with --history")
    parser.add_argument("--line", default="v0.5.9")
    parser.add_argument("--looks", type=int, default=20, help="commits that the loop is run for")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        if options.history:
            clone, wanted = options.history.resolve(), options.range
        else:
            clone, wanted = make_history(scratch, options.line)
        found = measure(clone, wanted, options.line, options.looks, scratch, options.upstream)
    if options.json:
        print(json.dumps({name: round(value, 4) for name, value in found.items()}))
        return
    print(f"{found['commits']:.0f} commits, {found['patches']:.0f} patches")
    for name, prefix in (("survey", ""), ("git apply --check", "loop_")):
        speed = found[f"{prefix}commits_per_second_per_patch"]
        print(f"{name:18} {found[f'{prefix}seconds']:9.1f} s {speed:9.0f} commits a second a patch")
    print(f"ratio {found['ratio']:.4f}")


if __name__ == "__main__":
    main()
