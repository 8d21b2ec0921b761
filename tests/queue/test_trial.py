"""What a trial writes down of a pytest run, from which `proof` tells an assertion from anything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay.queue.trial import main

from .toy import write

BODY = """\
import pytest


@pytest.fixture
def broken():
    raise OSError("no disk")


def test_passes(): pass
def test_fails(): assert 1 == 2
def test_errs(broken): pass
def test_skips(): pytest.skip("no GPU")
def test_raises(): raise ValueError("boom")
"""


def rows_of(folder: Path, name: str, body: str, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    write(folder, {name: body})
    assert main([str(folder / name), str(folder / "rows.json")]) == 0
    rows: list[dict[str, Any]] = json.loads((folder / "rows.json").read_bytes())["rows"]
    return rows


def test_every_test_has_its_row_and_every_failure_its_exception_and_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {row["test"]: row for row in rows_of(tmp_path, "test_sample_of_trial.py", BODY, monkeypatch)}
    assert {name: (row["when"], row["outcome"]) for name, row in rows.items()} == {
        "test_passes": ("call", "passed"),
        "test_fails": ("call", "failed"),
        "test_errs": ("setup", "failed"),
        "test_skips": ("call", "skipped"),
        "test_raises": ("call", "failed"),
    }
    assert rows["test_fails"]["exception"] == "AssertionError"
    assert Path(rows["test_fails"]["file"]).name == "test_sample_of_trial.py"
    assert (rows["test_raises"]["exception"], rows["test_errs"]["exception"]) == ("ValueError", "OSError")
    assert "no GPU" in rows["test_skips"]["detail"]


def test_a_file_that_cannot_be_collected_has_a_row_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (row,) = rows_of(tmp_path, "test_broken_sample.py", "import no_such_module_anywhere\n", monkeypatch)
    assert (row["when"], row["outcome"], row["exception"]) == ("collect", "failed", "import")
    assert "no_such_module_anywhere" in row["detail"]
