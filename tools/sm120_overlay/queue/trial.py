"""Runs one patch's test on one tree, in this process, and writes down what happened. `proof` starts it.

It sees what pytest sees: for every test its outcome, and for every failure which exception it was and in which file.
From that `proof` tells a failed assertion about behaviour from an import that broke.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


class Recorder:
    """A pytest plugin that keeps one row for whatever happened."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        """One row for a test's call, and for a set-up or tear-down that did not pass."""
        report = yield
        if report.when == "call" or not report.passed:
            row = {"test": item.name, "when": report.when, "outcome": report.outcome}
            if call.excinfo is not None:
                crash = getattr(report.longrepr, "reprcrash", None)
                row["exception"] = call.excinfo.type.__name__
                row["file"] = str(crash.path) if crash else ""
                row["detail"] = str(crash.message) if crash else str(call.excinfo.value)
            self.rows.append(row)
        return report

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """One row for a file that could not be collected."""
        if report.failed:
            said = str(report.longrepr).strip().splitlines()[-1].removeprefix("E").strip()
            row = {"test": report.nodeid, "when": "collect", "outcome": "failed"}
            self.rows.append({**row, "exception": "import", "file": "", "detail": said})


def main(argv: list[str]) -> int:
    """`TEST OUT`: runs the test file TEST and writes its rows to OUT as JSON."""
    test, out = argv
    recorder = Recorder()
    options = ["--quiet", "--no-header", "-p", "no:cacheprovider", "-o", "addopts="]
    code = pytest.main([*options, "--rootdir", str(Path(test).parent), test], plugins=[recorder])
    Path(out).write_text(json.dumps({"code": int(code), "rows": recorder.rows}), encoding="utf-8")
    return 0
