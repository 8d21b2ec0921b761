"""The TRTLLM-gen MoE has no kernel for SM12x: it is refused before anything is
downloaded or compiled for it. Runs without a GPU."""

import pytest
import torch

from flashinfer.fused_moe import core


class Generated(Exception):
    """The module's generator was reached."""


@pytest.fixture
def get_module_on(monkeypatch):
    """Asks for the TRTLLM-gen MoE's module on a card of this compute capability."""

    def generate(*args, **kwargs):
        raise Generated

    monkeypatch.setattr(core, "gen_trtllm_gen_fused_moe_sm100_module", generate)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    def get(capability):
        monkeypatch.setattr(core, "get_compute_capability", lambda device: capability)
        try:
            return core.get_trtllm_moe_sm100_module()
        except Exception as error:
            return error

    return get


@pytest.mark.parametrize("capability", [(12, 0), (12, 1)])
def test_sm12x_is_refused_before_anything_is_compiled(get_module_on, capability):
    refusal = get_module_on(capability)
    assert not isinstance(refusal, Generated), "a module is built that cannot run"
    assert isinstance(refusal, RuntimeError)
    assert "SM12x" in str(refusal)
    assert "cutlass_fused_moe" in str(refusal)


@pytest.mark.parametrize("capability", [(10, 0), (10, 3), (9, 0)])
def test_other_capabilities_reach_the_generator(get_module_on, capability):
    assert isinstance(get_module_on(capability), Generated)


def test_a_refusal_is_not_remembered_for_another_card(get_module_on):
    get_module_on((12, 0))
    assert isinstance(get_module_on((10, 0)), Generated)
