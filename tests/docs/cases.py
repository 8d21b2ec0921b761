"""A pytest plugin: writes down every `case` mark of the tests that it collects, without running one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

OUT = "SM120_OVERLAY_CASES"


def pytest_collection_finish(session: pytest.Session) -> None:
    """One entry for each mark, in the order of the tests; a test that is expected to fail establishes nothing."""
    sound = [item for item in session.items if item.get_closest_marker("xfail") is None]
    marks = [_entry(item, mark) for item in sound for mark in item.iter_markers("case")]
    Path(os.environ[OUT]).write_text(json.dumps(marks), encoding="utf-8")


def _entry(item: pytest.Item, mark: pytest.Mark) -> dict[str, Any]:
    file = item.path.relative_to(item.config.rootpath)
    module = item.getparent(pytest.Module)
    about = ((module.obj.__doc__ if module else None) or "").strip().splitlines()
    test = getattr(item, "originalname", item.name)
    return {"file": str(file), "about": about[0] if about else "", "test": test, "args": mark.args, **mark.kwargs}
