"""The scheduled workflow is valid, calls the verb as it is, and needs nothing but the package index."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay.verbs.survey import _parser

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / ".github" / "workflows" / "survey.yml"


@pytest.fixture
def job() -> dict[str, Any]:
    """Its only job."""
    yaml = pytest.importorskip("yaml")  # of the rig
    said = yaml.safe_load(FILE.read_text())
    assert said[True]["schedule"], "YAML takes the key `on` for true"
    assert said["permissions"] == {"contents": "read"}
    return dict(said["jobs"]["survey"])


def script(job: dict[str, Any]) -> str:
    """The step that runs the verb."""
    (found,) = [step["run"] for step in job["steps"] if "survey.py" in step.get("run", "")]
    return str(found)


def test_it_looks_at_both_upstreams_and_keeps_the_picture(job: dict[str, Any]) -> None:
    assert job["strategy"]["matrix"]["upstream"] == ["sglang", "flashinfer"]
    assert not job["strategy"]["fail-fast"]
    assert job["steps"][-1]["if"] == "always()"


@pytest.mark.parametrize(("line", "code"), [("", 0), ("v0.5.9", 1), ("v0.5.9", 4)])
def test_its_script_passes_the_exit_code_and_the_list_on(
    job: dict[str, Any], tmp_path: Path, line: str, code: int
) -> None:
    told = tmp_path / "told"
    (tmp_path / "python").write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" > {told}\necho the list\nexit {code}\n')
    (tmp_path / "python").chmod(0o755)
    summary = tmp_path / "summary"
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "UPSTREAM": "sglang", "LINE": line, "GITHUB_STEP_SUMMARY": str(summary)}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script(job)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "the list\n"), done.stderr
    assert summary.read_text() == "```\nthe list\n```\n"
    options = _parser().parse_args(shlex.split(told.read_text())[1:])
    assert (options.upstream, options.releases, options.line) == ("sglang", True, line or None)


def test_nothing_of_a_caller_is_pasted_into_the_script(job: dict[str, Any]) -> None:
    assert not re.search(r"\$\{\{", script(job))
