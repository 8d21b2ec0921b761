"""Options of the whole suite, upstream's history for tests that need it, and a note of every refusal that is made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

OPTIONS = {"sglang": "SM120_OVERLAY_SGLANG", "flashinfer": "SM120_OVERLAY_FLASHINFER"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Repositories that hold upstream's real history, which no package index has."""
    for name, variable in OPTIONS.items():
        parser.addoption(
            f"--{name}-repo", default=os.environ.get(variable),
            help=f"a git repository of {name} that holds the pinned commits (or ${variable})",
        )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Notes every refusal from the start; a proof's trial, which reads this file too, stands on its own."""
    if config.rootpath == Path(__file__).resolve().parents[1]:
        from .docs import reached

        reached.listen(getattr(config, "workerinput", {}).get(reached.PLACE))
        config.pluginmanager.register(reached)


@pytest.fixture(params=sorted(OPTIONS))
def upstream_repo(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """An upstream and its repository; skipped, saying so, where none was named."""
    name = str(request.param)
    found = request.config.getoption(f"--{name}-repo")
    if not found:
        pytest.skip(f"upstream's history is not at hand: name it with --{name}-repo or ${OPTIONS[name]}")
    return name, Path(found)
