"""Upstream's own object for the machine: the card's while one is presented, wherever it is bound, and not after."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import pytest

from sm120_overlay.serving.rig import cards, phase, platforms, present

PLATFORMS = """
import torch
_current_platform = None
made = []
def _resolve_platform():
    made.append("cuda" if torch.cuda.is_available() else "none")
    return types.SimpleNamespace(kind=made[-1])
def __getattr__(name):
    global _current_platform
    if name != "current_platform":
        raise AttributeError(name)
    if _current_platform is None:
        _current_platform = _resolve_platform()
    return _current_platform
"""


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[types.ModuleType, types.ModuleType]]:
    """Made-up modules: the one that makes the object, and one that has bound it at import."""
    made, binds = types.ModuleType("sglang.srt.platforms"), types.ModuleType("sglang.made_up_binds")
    vars(made)["types"] = types
    exec(PLATFORMS, vars(made))
    for module in (made, binds):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(binds)["current_platform"] = made.current_platform
    yield made, binds
    platforms._on_card.pop(made, None)


def kinds(upstream: tuple[types.ModuleType, types.ModuleType]) -> tuple[str, str]:
    return upstream[0].current_platform.kind, upstream[1].current_platform.kind


def test_a_card_takes_the_place_of_what_modules_have_bound(
    upstream: tuple[types.ModuleType, types.ModuleType],
) -> None:
    assert kinds(upstream) == ("none", "none")
    for card in (cards.RTX_5090, cards.H200):
        with present(card):
            assert kinds(upstream) == ("cuda", "cuda")
        assert kinds(upstream) == ("none", "none")
    assert upstream[0].made == ["none", "cuda"]


def test_a_module_that_loads_meanwhile_binds_what_is_without_a_card(
    upstream: tuple[types.ModuleType, types.ModuleType],
) -> None:
    late = types.ModuleType("sglang.made_up_late")
    sys.modules[late.__name__] = late
    try:
        with present(cards.RTX_5090):
            with phase.load():
                vars(late)["current_platform"] = upstream[0].current_platform
                assert late.current_platform.kind == "none"
            assert late.current_platform.kind == "cuda"
        assert late.current_platform.kind == "none"
    finally:
        del sys.modules[late.__name__]


def test_a_release_without_one_is_left_alone() -> None:
    assert "sglang.srt.platforms" not in sys.modules
    with present(cards.RTX_5090):
        assert platforms.asked() is None
