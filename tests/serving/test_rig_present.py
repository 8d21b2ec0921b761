"""Presenting a card: what torch and nvidia-smi say meanwhile, and that nothing of it stays behind."""

from __future__ import annotations

import importlib
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from sm120_overlay.serving.rig import NeedsGpu, RigError, UnknownFact, cards, phase, present
from sm120_overlay.serving.rig.packages import LoadWatcher

SMI = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
ASKED = ("_lazy_init", "is_available", "device_count", "get_device_capability", "get_device_properties", "mem_get_info")


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """A cached probe at the top level of one of upstream's modules, as upstream writes them."""

    @lru_cache(maxsize=1)
    def capability() -> tuple[int, int] | None:
        return torch.cuda.get_device_capability() if torch.cuda.is_available() else None

    module = types.ModuleType("sglang.made_up_probes")
    vars(module)["capability"] = capability
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return capability


@pytest.mark.parametrize("card", cards.ALL, ids=lambda card: card.name)
def test_torch_describes_the_presented_card(card: cards.Card) -> None:
    with present(card, 4):
        properties = torch.cuda.get_device_properties(3)
        assert (torch.cuda.is_available(), torch.cuda.device_count()) == (True, 4)
        assert torch.cuda.get_device_capability() == (properties.major, properties.minor) == card.capability
        assert torch.cuda.get_device_name(torch.device("cuda:1")) == properties.name == card.name
        assert properties.total_memory == torch.cuda.mem_get_info("cuda:2")[1] == card.memory_mib * 2**20
        assert torch.version.cuda == "13.0"


def test_everything_is_as_before_afterwards_even_after_a_failure() -> None:
    before = {name: getattr(torch.cuda, name) for name in ASKED}
    with pytest.raises(ZeroDivisionError), present(cards.H200):
        raise ZeroDivisionError
    assert {name: getattr(torch.cuda, name) for name in ASKED} == before
    assert torch.version.cuda is None
    assert subprocess.run is sys.modules["subprocess"].run
    assert not torch.cuda.is_available()
    with pytest.raises(FileNotFoundError):
        subprocess.run(SMI, check=False)


def test_upstreams_caches_do_not_carry_one_card_to_the_next(probe: Callable[[], Any]) -> None:
    seen = [probe()]
    for card in (cards.RTX_5090, cards.B200, cards.DGX_SPARK):
        with present(card):
            seen += [probe(), probe()]
        seen.append(probe())
    assert seen == [None, (12, 0), (12, 0), None, (10, 0), (10, 0), None, (12, 1), (12, 1), None]


def test_nvidia_smi_answers_for_the_card_and_other_commands_run() -> None:
    with present(cards.H100, 2):
        assert subprocess.run(SMI, capture_output=True, text=True, check=True).stdout == "81559\n81559\n"
        echoed = subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True, check=True)
        assert echoed.stdout == "1\n"
    with present(cards.DGX_SPARK, 1):
        assert subprocess.run(SMI, capture_output=True, text=True, check=True).stdout == "[N/A]\n"


@pytest.mark.parametrize(
    "ask",
    [
        lambda: subprocess.run(["nvidia-smi", "topo", "-m"], check=False),
        lambda: torch.cuda.get_device_properties(0).L2_cache_size,
        lambda: hasattr(torch.cuda.get_device_properties(0), "warp_size"),
    ],
    ids=["topology", "property", "hasattr"],
)
def test_a_fact_that_the_card_does_not_hold_is_refused(ask: Callable[[], Any]) -> None:
    with present(cards.RTX_PRO_6000_SERVER), pytest.raises(UnknownFact, match="Add it to the card"):
        ask()


def test_computing_on_the_presented_card_is_refused_and_is_no_assertion() -> None:
    with present(cards.H200), pytest.raises(NeedsGpu) as refused:
        torch.zeros(1).cuda()
    assert not isinstance(refused.value, AssertionError)


def test_a_device_that_is_not_presented_is_refused() -> None:
    with present(cards.H200, 2), pytest.raises(RigError, match="2 are presented"):
        torch.cuda.get_device_name(2)


def test_a_second_card_inside_the_first_is_refused() -> None:
    with present(cards.H200), pytest.raises(RigError, match="already presented"), present(cards.B200):
        pass
    assert not torch.cuda.is_available()


@pytest.fixture
def watched() -> Iterator[None]:
    finder = LoadWatcher()
    sys.meta_path.insert(0, finder)
    yield
    sys.meta_path.remove(finder)


@pytest.mark.usefixtures("watched")
def test_a_module_that_loads_meanwhile_sees_no_card_and_the_card_is_back_after(
    probe: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "loaded_late.py").write_text(
        "import sys, torch\n"
        "CUDA = torch.version.cuda\n"
        "AVAILABLE = torch.cuda.is_available()\n"
        "PROBED = sys.modules['sglang.made_up_probes'].capability()\n"
    )
    with present(cards.RTX_5090):
        assert probe() == (12, 0)
        late = importlib.import_module("loaded_late")
        assert (late.CUDA, late.AVAILABLE, late.PROBED) == (None, False, None)
        assert (probe(), torch.version.cuda) == ((12, 0), "13.0")
        monkeypatch.delitem(sys.modules, "loaded_late")
    assert not phase.loading()
    assert not torch.cuda.is_available()
