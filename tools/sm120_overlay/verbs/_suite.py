"""The process in which one test file of upstream's form runs, as upstream's own runner runs it; `_tried` starts it.

A file that runs itself (`if __name__ == "__main__"`) is run as a script, as SGLang's test/run_suite.py does; any other
by pytest. What happened to each test is written down as `queue.trial` does, so that one judgement serves both.
"""

from __future__ import annotations

import json
import runpy
import sys
import tempfile
import unittest
from pathlib import Path
from types import TracebackType
from typing import Any

from ..serving.suite import lay, registration

Failure = tuple[type[BaseException], BaseException, TracebackType]
ROWS: list[dict[str, Any]] = []


class Recording(unittest.TextTestResult):
    """unittest's own result, which also keeps a row for every test."""

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        ROWS.append({"test": str(test), "when": "call", "outcome": "passed"})

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        ROWS.append(_row(test, err))

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        ROWS.append(_row(test, err))

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        ROWS.append({"test": str(test), "when": "call", "outcome": "skipped", "detail": reason})

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            ROWS.append(_row(subtest, err))


def _row(test: object, err: Failure) -> dict[str, Any]:
    """A failure, and the file that raised it; unittest's own frames do not count."""
    kind, error, trace = err
    files = []
    step: TracebackType | None = trace
    while step is not None:
        if "__unittest" not in step.tb_frame.f_globals:
            files.append(step.tb_frame.f_code.co_filename)
        step = step.tb_next
    row = {"test": str(test), "when": "call", "outcome": "failed", "exception": kind.__name__}
    return {**row, "file": files[-1] if files else "", "detail": f"{kind.__name__}: {error}"}


def main(argv: list[str]) -> int:
    """`UPSTREAM SITE FILE OUT`: runs FILE over SITE and writes what happened to OUT as JSON."""
    upstream, site, file, out = argv[0], *map(Path, argv[1:])
    with tempfile.TemporaryDirectory() as workspace:
        said = {"ground": lay(upstream, site, Path(workspace)), "ci": registration(site, file)}
        by_script = "__main__" in file.read_text(encoding="utf-8")
        code = _script(file) if by_script else _pytest(file, site.parent)
    runner = f"python {file.name} (unittest)" if by_script else f"pytest {file.name}"
    out.write_text(json.dumps({"code": code, "rows": ROWS, "runner": runner, **said}), encoding="utf-8")
    return 0


def _script(file: Path) -> int:
    unittest.TextTestRunner.resultclass = Recording  # type: ignore[assignment]
    sys.argv[:] = [str(file)]
    try:
        runpy.run_path(str(file), run_name="__main__")
    except SystemExit as stop:
        return int(stop.code or 0) if isinstance(stop.code, int | None) else 1
    return 0


def _pytest(file: Path, root: Path) -> int:
    import pytest

    from ..queue.trial import Recorder

    recorder = Recorder()
    options = ["--quiet", "--no-header", "-p", "no:cacheprovider", "-o", "addopts=", "--rootdir", str(root)]
    code = pytest.main([*options, str(file)], plugins=[recorder])
    ROWS.extend(recorder.rows)
    return int(code)
