"""FlashInfer that cannot be imported, or is another one than the tree's, is said by name and never judged."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from sm120_overlay.errors import Missing
from sm120_overlay.serving.flashinfer import import_flashinfer


@pytest.fixture(autouse=True)
def own_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", "")


def test_a_tree_whose_imports_are_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "flashinfer").mkdir()
    (tmp_path / "flashinfer" / "__init__.py").write_text("import no_such_module_of_ours\n")
    monkeypatch.delitem(sys.modules, "flashinfer", raising=False)
    with pytest.raises(Missing, match="FlashInfer cannot be imported: No module named 'no_such_module_of_ours'"):
        import_flashinfer(tmp_path, tmp_path / "work")


def test_a_tree_is_not_judged_by_the_flashinfer_of_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = ModuleType("flashinfer")
    other.__file__ = str(tmp_path / "other" / "flashinfer" / "__init__.py")
    monkeypatch.setitem(sys.modules, "flashinfer", other)
    with pytest.raises(Missing, match=f"loaded from {tmp_path}/other, not from {tmp_path}/tree"):
        import_flashinfer(tmp_path / "tree", tmp_path / "work")
