"""Red and green: each patch's own test, on the series without it, up to it, and whole.

Red must be an assertion of the test about behaviour: an import that breaks, a crash inside upstream or a skipped test
proves nothing and counts as an error. Every trial has a process of its own; a verdict is cached under the hash of all
that it depends on: the tree, the test, the code it stands on, and what is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..cache import cache_dir, publish, publish_file
from ..errors import Missing, UsageError
from .home import PACKAGE, Home
from .patch import Patch
from .series import Series, chains, contents
from .transaction import replace_file
from .wheels import Say, fetch_wheel, unpack

TREE = "SM120_OVERLAY_TREE"
TEMPORARY = "PYTEST_DEBUG_TEMPROOT"  # elsewhere pytest clears away what other runs left, at times for minutes
LIMIT_S = 1800  # of one trial; a cold nvcc proof takes two minutes on two cores
PLAIN = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}  # a verdict depends on no plugin of the user's
ASSERTIONS = ("AssertionError", "Failed")  # the second is pytest.fail and pytest.raises
# Below serving/, what no patch's test imports (a test holds it).
UNUSED = {"asking", "evidence.py", "launch", "suite.py", "__pycache__"}
ENDED = (0, 1, 5)  # pytest's exit codes of a run that came to its end: passed, failed, nothing collected
BOOT = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("sm120_overlay", sys.argv[1])
sys.modules["sm120_overlay"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["sm120_overlay"])
from sm120_overlay.queue.trial import main
sys.exit(main(sys.argv[2:]))
"""


@dataclass(frozen=True)
class Verdict:
    """Whether a trial behaved as expected; `outcome` is failed, passed, skipped or error."""

    ok: bool
    outcome: str
    test: str
    seconds: float
    detail: str


@dataclass(frozen=True)
class Proof:
    """Both verdicts of one patch. `green` stands for the series up to the patch and for the whole one."""

    slug: str
    red: Verdict
    green: Verdict


@dataclass(frozen=True)
class _Trial:
    patch: Patch
    series: Series
    expected: str


def prove(
    home: Home, series: Series, slugs: Sequence[str], facts: Mapping[str, str], jobs: int, say: Say
) -> tuple[Proof, ...]:
    """Red and green of each slug, `jobs` trials at a time.

    Args:
        facts: what else a verdict depends on, such as the version of a compiler.

    Raises:
        Missing: pytest or the tests are not there.
        UsageError: a slug is not in the series.
    """
    _check(home, series, slugs)
    trials = {slug: _trials(series, slug) for slug in slugs}
    wheel = fetch_wheel(series.pin, say)
    # The last patch's two green trials are one: what differs is what has to run.
    different = {(trial.patch.slug, trial.series.slugs): trial for three in trials.values() for trial in three}
    trees = [proof_tree(trial.series, wheel) for trial in different.values()]
    ground = _ground(home, facts)
    pool = ThreadPoolExecutor(max_workers=jobs)
    try:
        judged = pool.map(lambda trial, tree: _judge(home, trial, tree, ground, say), different.values(), trees)
        verdicts = dict(zip(different, judged, strict=True))
    finally:
        pool.shutdown(cancel_futures=True)  # told to stop: what has not begun does not begin
    return tuple(
        _proof(slug, [verdicts[slug, trial.series.slugs] for trial in three]) for slug, three in trials.items()
    )


def _proof(slug: str, verdicts: Sequence[Verdict]) -> Proof:
    """Green is the series up to the patch and the whole one: the one that is not as expected, where one is not."""
    red, part, whole = verdicts
    seconds = part.seconds if part is whole else round(part.seconds + whole.seconds, 1)
    return Proof(slug, red, replace(whole if part.ok else part, seconds=seconds))


def proof_tree(series: Series, wheel: Path) -> Path:
    """The pinned wheel unpacked with exactly `series` applied, as pip would have installed it."""
    name = f"{series.pin.upstream}-{series.pin.version}-{wheel.parent.name[:12]}-{series.digest[:20]}"
    return publish(cache_dir("trees", name), lambda folder: _fill(series, wheel, folder))


def _fill(series: Series, wheel: Path, folder: Path) -> None:
    unpack(wheel, folder)
    places = {path: folder / str(series.pin.installed_path(path)) for path in chains(series)}
    now = {path: place.read_bytes() if place.is_file() else None for path, place in places.items()}
    for step in contents(series, now):
        for path, data in step.items():
            if data is None:
                places[path].unlink(missing_ok=True)
            else:
                replace_file(places[path], data)


def _check(home: Home, series: Series, slugs: Iterable[str]) -> None:
    if not (home.root / "tests" / "patches").is_dir():
        # why: a wheel of an older build has none, and a proof without a test is none
        raise Missing(f"{home.root}: the patches' tests are not there.", "Run it from a clone of the project.")
    if find_spec("pytest") is None:
        # why: the tools themselves do without it
        raise Missing(f"pytest is not installed for {sys.executable}.", f"{sys.executable} -m pip install -e '.[test]'")
    unknown = [slug for slug in slugs if slug not in series.slugs]
    if unknown:
        # why: a slug that is passed over would look proved
        raise UsageError(f"The series has no patch {', '.join(unknown)}.", f"It has {', '.join(series.slugs)}.")


def _trials(series: Series, slug: str) -> tuple[_Trial, _Trial, _Trial]:
    at = series.slugs.index(slug)
    patch = series.patches[at]
    parts = (replace(series, patches=series.patches[:end]) for end in (at, at + 1))
    without, through = parts
    return _Trial(patch, without, "failed"), _Trial(patch, through, "passed"), _Trial(patch, series, "passed")


def _judge(home: Home, trial: _Trial, tree: Path, ground: str, say: Say) -> Verdict:
    test = trial.patch.trailer("Test") or ""
    key = hashlib.sha256("\0".join((ground, tree.name, _text(home, test))).encode()).hexdigest()
    stored = cache_dir("verdicts", f"{key}.json")
    if stored.is_file():
        verdict = Verdict(**json.loads(stored.read_bytes()))
        return replace(verdict, ok=verdict.outcome == trial.expected)
    say(f"{trial.patch.slug}: running its test on {_described(trial)}")
    verdict = _run(home, trial, test, tree)
    say(f"{trial.patch.slug}: {verdict.outcome} on {_described(trial)} after {verdict.seconds:.0f} s")
    if verdict.outcome in ("passed", "failed"):
        publish_file(stored, json.dumps(asdict(verdict)).encode())
    return verdict


def _described(trial: _Trial) -> str:
    last = trial.series.slugs[-1:]
    return f"the series up to {last[0]}" if last else "the bare pin"


def _run(home: Home, trial: _Trial, test: str, tree: Path) -> Verdict:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sm120-overlay-") as folder:
        out = Path(folder, "rows.json")
        command = [sys.executable, "-c", BOOT, str(PACKAGE / "__init__.py"), str(home.root / test), str(out)]
        surroundings = os.environ | PLAIN | {TREE: str(tree), TEMPORARY: folder}
        try:
            done = subprocess.run(
                command, cwd=folder, env=surroundings, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            rows = _rows(json.loads(out.read_bytes())) if out.is_file() else None
        except subprocess.TimeoutExpired:
            rows, said = None, [f"it did not end within {LIMIT_S} s"]
    outcome, detail = outcome_of(rows, home.root / test, said)
    return Verdict(outcome == trial.expected, outcome, test, round(time.monotonic() - started, 1), detail)


def _rows(said: dict[str, Any]) -> list[dict[str, Any]] | None:
    """What was written down of a run that came to its end; None where pytest was stopped or broke."""
    uncollected = any(row["when"] == "collect" for row in said["rows"])
    return list(said["rows"]) if uncollected or said["code"] in ENDED else None


def outcome_of(rows: list[dict[str, Any]] | None, test: Path, said: Sequence[str]) -> tuple[str, str]:
    """What a trial showed: failed, passed, skipped or error, and the sentence behind it.

    Args:
        rows: what `trial` wrote (None: it wrote nothing); said: the process's own last words.
    """
    if rows is None:
        return "error", f"the test process died: {said[-1] if said else 'without a word'}"
    if not rows:
        return "error", f"{test.name} holds no test"
    for row in rows:
        if row["outcome"] == "failed" and not _asserted(row, test):
            where = Path(row.get("file", "")).name or row["when"]
            return "error", f"{row['test']}: {row.get('exception')} in {where}: {row.get('detail')}"
    failed = [row for row in rows if row["outcome"] == "failed"]
    if failed:
        return "failed", f"{failed[0]['test']}: {failed[0]['detail']}"
    skipped = [row for row in rows if row["outcome"] == "skipped"]
    if skipped:
        return "skipped", f"{skipped[0]['test']}: {skipped[0].get('detail', '')}"
    return "passed", f"{len(rows)} tests passed"


def _asserted(row: Mapping[str, Any], test: Path) -> bool:
    """Whether the failure is an assertion of the test itself."""
    here = Path(row.get("file", "")).name == test.name
    return row["when"] == "call" and row.get("exception") in ASSERTIONS and here


def _ground(home: Home, facts: Mapping[str, str]) -> str:
    """A hash of what every verdict stands on: our serving code, the tests' shared files, what is installed."""
    named = hashlib.sha256(sys.version.encode())
    serving = (file for file in sorted((PACKAGE / "serving").rglob("*")) if not UNUSED & {*file.parts})
    ours = (PACKAGE / "queue" / "proof.py", PACKAGE / "queue" / "trial.py")
    for file in (*(file for file in serving if file.is_file()), *ours):
        named.update(str(file.relative_to(PACKAGE)).encode() + b"\0" + file.read_bytes())
    for file in sorted((home.root / "tests" / "patches").iterdir()):
        if file.is_file() and not file.name.startswith("test_"):
            named.update(file.name.encode() + file.read_bytes())
    installed = sorted(f"{dist.metadata['Name']} {dist.version}" for dist in distributions())
    named.update("\n".join([*installed, *(f"{key}={value}" for key, value in sorted(facts.items()))]).encode())
    return named.hexdigest()


def _text(home: Home, test: str) -> str:
    file = home.root / test
    if not file.is_file():
        # why: a patch whose test is gone would look proved
        raise Missing(f"{file}: the patch names this test, and there is no such file.", "Write it; lint asks for it.")
    return file.read_text(encoding="utf-8")
