"""A patch's test on one revision of upstream: laid out, run in a process of its own, and judged as `proof` judges.

The test is the one in upstream's form where there is one, else our own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..queue.git import Repository
from ..queue.home import PACKAGE, Home
from ..queue.laying import lay_out_revision, upstream_tests
from ..queue.patch import Patch
from ..queue.pins import Pin
from ..queue.proof import LIMIT_S, PLAIN, TEMPORARY, TREE, outcome_of

BOOT = """
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("sm120_overlay", sys.argv[1])
sys.modules["sm120_overlay"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["sm120_overlay"])
sys.exit(import_module("sm120_overlay." + sys.argv[2]).main(sys.argv[3:]))
"""


@dataclass(frozen=True)
class Tried:
    """What a test showed on a revision: `outcome` is failed, passed, skipped or error.

    `runner` and `ground` say how and on what it ran, `ci` how upstream's CI collects it ("" where that is not known).
    """

    outcome: str
    detail: str
    runner: str = ""
    ground: str = ""
    ci: str = ""


@dataclass(frozen=True)
class Judge:
    """Tries one patch's test: `repo` holds the revisions, `wheel` is the pin's, for what no repository holds."""

    home: Home
    repo: Repository
    pin: Pin
    wheel: Path
    patch: Patch

    @property
    def tests(self) -> dict[str, bytes]:
        """The test in upstream's form, by its path there; empty where there is none."""
        return upstream_tests(self.home, self.pin.upstream, self.patch.slug)

    @property
    def named(self) -> str:
        """The test, as a person finds it."""
        own = self.patch.trailer("Test") or ""
        return next((path for path in self.tests if Path(path).name.startswith("test_")), own)

    def on(self, commit: str) -> Tried:
        """What the test shows on a revision."""
        with tempfile.TemporaryDirectory(prefix="sm120-overlay-") as place:
            folder = Path(place).resolve()
            site = lay_out_revision(self.repo, commit, self.pin, self.wheel, self.tests, folder)
            if self.tests:
                file = folder / self.named
                return _run(folder, file, "verbs._suite", [self.pin.upstream, str(site), str(file)], {})
            file = self.home.root / self.named
            return _run(folder, file, "queue.trial", [str(file)], {TREE: str(site)})


def _run(folder: Path, file: Path, module: str, arguments: list[str], more: dict[str, str]) -> Tried:
    out = folder / "rows.json"
    command = [sys.executable, "-c", BOOT, str(PACKAGE / "__init__.py"), module, *arguments, str(out)]
    surroundings = os.environ | PLAIN | {TEMPORARY: str(folder)} | more
    try:
        done = subprocess.run(
            command, cwd=folder, env=surroundings, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Tried("error", f"it did not end within {LIMIT_S} s")
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    wrote: dict[str, Any] = json.loads(out.read_bytes()) if out.is_file() else {}
    outcome, detail = outcome_of(wrote.get("rows"), file, said)
    runner = wrote.get("runner", f"python {file.name}" if module.startswith("verbs") else f"pytest {file.name}")
    return Tried(outcome, " ".join(detail.split()), runner, wrote.get("ground", ""), wrote.get("ci", ""))
