"""trtllm-moe-guard: the TRTLLM-gen MoE is refused on SM12x before anything is downloaded or compiled for it.

What runs are FlashInfer's public functions, up to where its module is generated: that would fetch a list of kernels
from NVIDIA's server and run a compiler, so a note that it was reached stands in for it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sm120_overlay.serving.flashinfer import import_flashinfer

Capability = tuple[int, int]
Calls = Callable[[str, Capability], None]
SM12X: list[Capability] = [(12, 0), (12, 1)]
ELSEWHERE: list[Capability] = [(9, 0), (10, 0), (10, 3)]
PUBLIC = [
    "trtllm_bf16_moe",
    "trtllm_bf16_routed_moe",
    "trtllm_fp8_block_scale_moe",
    "trtllm_fp8_block_scale_routed_moe",
    "trtllm_fp4_block_scale_moe",
    "trtllm_fp4_block_scale_routed_moe",
    "trtllm_mxint4_block_scale_moe",
]


class Generated(Exception):
    """The module's generator was reached."""


@pytest.fixture
def call(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Calls a public function on a card of this capability, with the least arguments that it takes."""
    import_flashinfer(tree, tmp_path)
    core = sys.modules["flashinfer.fused_moe.core"]

    def generate(*_: Any, **__: Any) -> None:
        raise Generated

    monkeypatch.setattr(core, "gen_trtllm_gen_fused_moe_sm100_module", generate)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    def call(name: str, seen: Capability) -> None:
        monkeypatch.setattr(core, "get_compute_capability", lambda _device: seen)
        function = getattr(core, name)
        function(**_least_arguments(function, core))

    return call


def _least_arguments(function: Callable[..., Any], core: ModuleType) -> dict[str, Any]:
    """One value for each parameter without a default, by its annotation."""
    values: dict[Any, Any] = {torch.Tensor: torch.zeros(8, 64), int: 1, float: 1.0, bool: True}
    hints = inspect.get_annotations(inspect.unwrap(function), globals=vars(core), eval_str=True)
    needed = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    return {name: values.get(hints[name]) for name in needed}


@pytest.mark.parametrize("seen", SM12X)
@pytest.mark.parametrize("name", PUBLIC)
def test_it_is_refused_on_sm12x_before_anything_is_compiled(call: Calls, name: str, seen: Capability) -> None:
    try:
        with pytest.raises(RuntimeError, match="SM12x") as refusal:
            call(name, seen)
    except Generated:
        pytest.fail("a module is downloaded and compiled that has no kernel for the card")
    assert "cutlass_fused_moe" in str(refusal.value), "what to use instead is not said"


@pytest.mark.parametrize("seen", SM12X)
def test_a_refusal_is_not_remembered_for_another_card(call: Calls, seen: Capability) -> None:
    """A process may hold cards of both kinds."""
    try:
        with pytest.raises(RuntimeError):
            call(PUBLIC[0], seen)
    except Generated:
        pytest.fail("it is not refused at all")
    with pytest.raises(Generated):
        call(PUBLIC[0], (10, 0))


@pytest.mark.parametrize("seen", ELSEWHERE)
@pytest.mark.parametrize("name", PUBLIC)
def test_other_capabilities_get_as_far_as_upstream(call: Calls, name: str, seen: Capability) -> None:
    with pytest.raises(Generated):
        call(name, seen)


def test_upstreams_own_list_of_kernels_has_none_for_sm12x_which_is_why(call: Calls) -> None:
    """When this fails, TRTLLM-gen has kernels for SM12x: the refusal may go. 0.6.14 keeps its list elsewhere."""
    listed = sys.modules.get("flashinfer.jit.trtllm_gen_metainfo")
    kinds = getattr(listed, "BLACKWELL_CUBIN_ARCHS", ()) + getattr(listed, "RUBIN_CUBIN_ARCHS", ())
    assert not [kind for kind in kinds if "12" in kind]
