"""Flags that modules compute at import: on the card within the block, as they were after it."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from sm120_overlay.serving.rig import StubDecided, cards, flags, present
from sm120_overlay.serving.rig import errors as rig_errors

PROBES = """
import torch
def is_cuda(): return torch.cuda.is_available()
def is_sm120(): return is_cuda() and torch.cuda.get_device_capability()[0] == 12
def is_stub(): raise StubDecided("stub", "a call")
class Platform:
    is_sm120 = property(lambda self: is_sm120())
def get_platform(): return Platform()
def get_device_sm(): return torch.cuda.get_device_capability()[0] * 10 if is_cuda() else None
"""
DEFINES = """
_is_cuda = is_cuda()
_use_fast = _is_cuda and is_sm120()
_device_sm = get_device_sm()
_is_odd = is_stub() if is_cuda() else False
_is_long = (is_cuda()
            and is_sm120())
CONSTANT = is_cuda()
_by_platform = _is_cuda and get_platform().is_sm120
_differs = is_cuda()
"""
IMPORTS = "_is_cuda, _use_fast, _differs, _counted = False, False, False, 3\n"
OTHER = "_differs = not is_cuda()\n_counted = is_cuda()\n"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, types.ModuleType]:
    """Made-up modules of upstream: one that defines flags, one that has them by value, one of another mind."""
    made = {}
    for name, text in {"defines": DEFINES, "imports": IMPORTS, "other": OTHER}.items():
        module = types.ModuleType(f"sglang.made_up_{name}")
        module.__file__ = str(tmp_path / f"{name}.py")
        Path(module.__file__).write_text(text)
        vars(module)["StubDecided"] = StubDecided
        exec(PROBES + text, vars(module))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        made[name] = module
    return made


def of(module: types.ModuleType) -> dict[str, object]:
    return {name: value for name, value in vars(module).items() if name.startswith("_") and name[1:2].isalpha()}


def test_flags_say_what_they_would_on_the_card_and_are_put_back(modules: dict[str, types.ModuleType]) -> None:
    before = {name: of(module) for name, module in modules.items()}
    with present(cards.RTX_5090), flags.on_card() as changed:
        defines, imports = of(modules["defines"]), of(modules["imports"])
        assert (defines["_is_cuda"], defines["_use_fast"], defines["_device_sm"]) == (True, True, 120)
        assert defines["_by_platform"] is True
        assert (imports["_is_cuda"], imports["_use_fast"]) == (True, True)
        assert changed >= 5
    assert {name: of(module) for name, module in modules.items()} == before


def test_what_cannot_be_told_or_is_of_two_minds_stays(modules: dict[str, types.ModuleType]) -> None:
    asked = len(rig_errors.raised)
    with present(cards.H200), flags.on_card():
        assert modules["defines"]._is_odd is False
        assert modules["defines"].CONSTANT is False
        assert modules["imports"]._differs is False
        assert modules["imports"]._counted == 3
        assert modules["defines"]._use_fast is False
        assert modules["defines"]._differs is True
    assert len(rig_errors.raised) == asked


def test_without_a_card_nothing_changes(modules: dict[str, types.ModuleType]) -> None:
    before = of(modules["defines"])
    with flags.on_card():
        assert of(modules["defines"]) == before
