"""deepgemm-sm120-guard: on SM12x nothing is prepared for DeepGEMM, or given to it: it has no kernels there.

Upstream's own flags and its own choice of a block FP8 GEMM, on presented cards. The flags are constants that are
computed when their module loads, so its file is run anew for each card; `deep_gemm` is there as an empty module, or not
at all.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from sm120_overlay.serving import rig
from sm120_overlay.serving.rig import cards

SM12X = pytest.mark.parametrize("card", [cards.RTX_PRO_6000_SERVER, cards.DGX_SPARK], ids=["12.0", "12.1"])
FLAGS = ("ENABLE_JIT_DEEPGEMM", "DEEPGEMM_BLACKWELL", "DEEPGEMM_SCALE_UE8M0")
SWITCH = "SGLANG_ENABLE_JIT_DEEPGEMM"
TRITON = "triton_w8a8_block_fp8_linear"
DEEPGEMM = "deepgemm_w8a8_block_fp8_linear_with_fallback"
TRTLLM = "flashinfer_gemm_w8a8_block_fp8_linear_with_fallback"
CUTLASS = "cutlass_w8a8_block_fp8_linear_with_fallback"

Flags = Callable[..., "tuple[bool, ...]"]
Linear = Callable[..., str]


@pytest.fixture
def flags(standing: rig.Standing, monkeypatch: pytest.MonkeyPatch) -> Flags:
    """The three flags of a server on a card, with and without the `deep_gemm` that sgl-kernel brings."""
    file = standing.module("sglang.srt.layers.deep_gemm_wrapper.configurer").__file__
    monkeypatch.delenv(SWITCH, raising=False)

    def ask(card: rig.Card, *, installed: bool = True) -> tuple[bool, ...]:
        # None in sys.modules is how Python is told that a module is not there.
        monkeypatch.setitem(sys.modules, "deep_gemm", ModuleType("deep_gemm") if installed else None)
        with rig.present(card):
            found = runpy.run_path(str(file))
        return tuple(found[name] for name in FLAGS)

    return ask


@pytest.fixture
def linear(standing: rig.Standing, flags: Flags, monkeypatch: pytest.MonkeyPatch) -> Linear:
    """The function that upstream multiplies block FP8 weights with, for a server on a card."""
    utils = standing.module("sglang.srt.layers.quantization.fp8_utils")
    wrapper = standing.module("sglang.srt.layers.deep_gemm_wrapper")

    def ask(card: rig.Card, backend: str = "auto", *, installed: bool = True) -> str:
        for name, flag in zip(FLAGS, flags(card, installed=installed), strict=True):
            monkeypatch.setattr(wrapper, name, flag)
        monkeypatch.setattr(utils, "FP8_GEMM_RUNNER_BACKEND", utils.Fp8GemmRunnerBackend(backend))
        with rig.present(card):
            try:
                return str(utils.dispatch_w8a8_block_fp8_linear().__name__)
            except RuntimeError as refused:
                return f"refused: {refused}"

    return ask


@SM12X
@pytest.mark.parametrize("installed", [True, False], ids=["installed", "absent"])
def test_deepgemm_is_off(flags: Flags, card: rig.Card, installed: bool) -> None:
    assert flags(card, installed=installed) == (False, False, False)


@SM12X
def test_upstreams_switch_does_not_turn_it_on(flags: Flags, card: rig.Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")
    assert flags(card) == (False, False, False)


@SM12X
def test_block_fp8_weights_keep_the_scales_of_the_checkpoint(
    standing: rig.Standing, flags: Flags, card: rig.Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or they would be rounded to powers of two while loading, for kernels that do not run."""
    wrapper = standing.module("sglang.srt.layers.deep_gemm_wrapper")
    for name, flag in zip(FLAGS, flags(card), strict=True):
        monkeypatch.setattr(wrapper, name, flag)
    requant = standing.module("sglang.srt.model_loader.utils").should_deepgemm_weight_requant_ue8m0
    assert not requant(weight_block_size=[128, 128])


@SM12X
@pytest.mark.parametrize("installed", [True, False], ids=["installed", "absent"])
def test_auto_picks_a_gemm_that_has_a_kernel(linear: Linear, card: rig.Card, installed: bool) -> None:
    """FlashInfer 0.6.3 refuses its TRTLLM GEMM on 12.0 and 12.1: upstream's second choice is none either."""
    assert linear(card, installed=installed) == TRITON


@SM12X
def test_a_gemm_that_the_user_named_is_kept_or_refused_by_upstream(linear: Linear, card: rig.Card) -> None:
    named = {name: linear(card, name) for name in ("triton", "cutlass", "flashinfer_trtllm", "deep_gemm")}
    refusal = named.pop("deep_gemm")
    assert named == {"triton": TRITON, "cutlass": CUTLASS, "flashinfer_trtllm": TRTLLM}
    assert refusal.startswith("refused: DeepGEMM backend requested"), refusal


@pytest.mark.parametrize(
    ("card", "installed", "expected", "chosen"),
    [
        (cards.H200, True, (True, False, False), DEEPGEMM),
        (cards.H200, False, (False, False, False), CUTLASS),
        (cards.B200, True, (True, True, True), DEEPGEMM),
        (cards.B200, False, (False, False, False), TRTLLM),
    ],
    ids=["9.0", "9.0 absent", "10.0", "10.0 absent"],
)
def test_other_capabilities_are_as_upstream_has_them(
    *, flags: Flags, linear: Linear, card: rig.Card, installed: bool, expected: tuple[bool, ...], chosen: str
) -> None:
    assert flags(card, installed=installed) == expected
    assert linear(card, installed=installed) == chosen
    if installed:
        assert linear(card, "deep_gemm") == DEEPGEMM
