"""A compiler that was installed and does not run is a machine that lacks something, not a red test."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120_overlay.errors import Missing
from sm120_overlay.serving.nvcc import toolchain


def test_an_installed_nvcc_that_does_not_run_is_named_with_what_to_delete(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(toolchain, "_candidates", lambda: iter(()))
    monkeypatch.setattr(toolchain, "_host_compiler", lambda: "g++ 12")
    monkeypatch.setattr(toolchain, "_installed", lambda name, packages: tmp_path / "nvcc-1" / "nvidia" / "cu13")
    with pytest.raises(Missing, match="does not run") as found:
        toolchain.find_toolchain()
    assert f"Delete {tmp_path / 'nvcc-1'} " in found.value.todo
