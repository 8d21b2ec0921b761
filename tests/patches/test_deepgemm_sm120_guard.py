"""deepgemm-sm120-guard: on SM12x nothing is given to DeepGEMM where it has no kernels, or what is not prepared for it.

Upstream's own flags and its own choice of a block FP8 GEMM, on presented cards. The flags are constants that are
computed when their module loads, so its file is run anew for each card; `deep_gemm` is there as a module, or not at
all. The DeepGEMM that 0.5.23 pins has kernels for SM12x, which upstream recognizes by three of its functions.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from sm120_overlay.serving import rig
from sm120_overlay.serving.rig import cards

LINE = next(Path(os.environ["SM120_OVERLAY_TREE"]).glob("sglang-*.dist-info")).name.split("-")[1].removesuffix(".dist")
HAS_KERNELS = LINE not in ("0.5.9", "0.5.16")
SM12X = pytest.mark.parametrize("card", [cards.RTX_PRO_6000_SERVER, cards.DGX_SPARK], ids=["12.0", "12.1"])
FLAGS = ("ENABLE_JIT_DEEPGEMM", "DEEPGEMM_BLACKWELL", "DEEPGEMM_SCALE_UE8M0")
SWITCH = "SGLANG_ENABLE_JIT_DEEPGEMM"
TRITON = "triton_w8a8_block_fp8_linear"
DEEPGEMM = "deepgemm_w8a8_block_fp8_linear_with_fallback"
TRTLLM = "flashinfer_gemm_w8a8_block_fp8_linear_with_fallback"
CUTLASS = "cutlass_w8a8_block_fp8_linear_with_fallback"

# What 0.5.23 asks of a DeepGEMM before it gives SM12x to it.
PROBED = ("fp8_einsum", "m_grouped_fp8_fp4_gemm_nt_contiguous", "transform_sf_into_required_layout")

Flags = Callable[..., "tuple[bool, ...]"]
Linear = Callable[..., str]


def deep_gemm(kernels: bool) -> ModuleType:
    """A DeepGEMM, of those that have kernels for SM12x or of those before."""
    made = ModuleType("deep_gemm")
    for name in PROBED if kernels else ():
        setattr(made, name, lambda: None)
    return made


@pytest.fixture
def flags(standing: rig.Standing, monkeypatch: pytest.MonkeyPatch) -> Flags:
    """The three flags of a server on a card, with and without the `deep_gemm` that its dependencies bring."""
    file = standing.module("sglang.srt.layers.deep_gemm_wrapper.configurer").__file__
    monkeypatch.delenv(SWITCH, raising=False)

    def ask(card: rig.Card, *, installed: bool = True, kernels: bool = False) -> tuple[bool, ...]:
        # None in sys.modules is how Python is told that a module is not there.
        monkeypatch.setitem(sys.modules, "deep_gemm", deep_gemm(kernels) if installed else None)
        with rig.present(card):
            found = runpy.run_path(str(file))
        return tuple(found[name] for name in FLAGS)

    return ask


def name_backend(standing: rig.Standing, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """Let upstream keep the backend that the user named; from 0.5.16 on that is where it settles `auto` on SM12x."""
    utils = standing.module("sglang.srt.layers.quantization.fp8_utils")
    asked = SimpleNamespace(fp8_gemm_runner_backend=backend, quantization="fp8")
    monkeypatch.setattr(utils, "FP8_GEMM_RUNNER_BACKEND", utils.Fp8GemmRunnerBackend(backend))
    if HAS_KERNELS:
        monkeypatch.setattr(utils, "get_exec", lambda: SimpleNamespace(kernel=asked))
        utils.initialize_fp8_gemm_config()
    elif LINE != "0.5.9":
        utils.initialize_fp8_gemm_config(asked)


@pytest.fixture
def linear(standing: rig.Standing, flags: Flags, monkeypatch: pytest.MonkeyPatch) -> Linear:
    """The function that upstream multiplies block FP8 weights with, for a server on a card."""
    utils = standing.module("sglang.srt.layers.quantization.fp8_utils")
    wrapper = standing.module("sglang.srt.layers.deep_gemm_wrapper")

    def ask(card: rig.Card, backend: str = "auto", *, installed: bool = True, kernels: bool = False) -> str:
        for name, flag in zip(FLAGS, flags(card, installed=installed, kernels=kernels), strict=True):
            monkeypatch.setattr(wrapper, name, flag)
        with rig.present(card):
            name_backend(standing, monkeypatch, backend)
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
    """FlashInfer refuses its TRTLLM GEMM on 12.0 and 12.1. Upstream compiles its CUTLASS GEMM for both since 0.5.16."""
    assert linear(card, installed=installed) == (TRITON if LINE == "0.5.9" else CUTLASS)


@SM12X
def test_a_gemm_that_the_user_named_is_kept_or_refused_by_upstream(linear: Linear, card: rig.Card) -> None:
    named = {name: linear(card, name) for name in ("triton", "cutlass", "flashinfer_trtllm", "deep_gemm")}
    refusal, trtllm = named.pop("deep_gemm"), named.pop("flashinfer_trtllm")
    assert named == {"triton": TRITON, "cutlass": CUTLASS}
    assert trtllm == TRTLLM if LINE == "0.5.9" else trtllm.startswith("refused: FlashInfer FP8 GEMM requested"), trtllm
    assert refusal.startswith("refused: DeepGEMM backend requested"), refusal


# Where DeepGEMM is not there, upstream gives up CUTLASS on SM90 since 0.5.16.
ABSENT_ON_H200 = CUTLASS if LINE == "0.5.9" else TRITON


@pytest.mark.parametrize(
    ("card", "installed", "expected", "chosen"),
    [
        (cards.H200, True, (True, False, False), DEEPGEMM),
        (cards.H200, False, (False, False, False), ABSENT_ON_H200),
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


if HAS_KERNELS:

    @pytest.mark.parametrize(
        ("card", "backend", "multiplied", "requantized"),
        [
            *((card, "deep_gemm", DEEPGEMM, True) for card in (cards.RTX_PRO_6000_SERVER, cards.DGX_SPARK, cards.B200)),
            (cards.H200, "deep_gemm", DEEPGEMM, False),
            *((card, "auto", CUTLASS, False) for card in (cards.RTX_PRO_6000_SERVER, cards.DGX_SPARK)),
            *((card, "triton", TRITON, False) for card in (cards.RTX_PRO_6000_SERVER, cards.B200)),
        ],
        ids=str,
    )
    def test_weights_that_deepgemm_multiplies_have_the_scales_that_it_reads(
        *,
        standing: rig.Standing,
        monkeypatch: pytest.MonkeyPatch,
        linear: Linear,
        card: rig.Card,
        backend: str,
        multiplied: str,
        requantized: bool,
    ) -> None:
        """Powers of two, to which it would cut any other scale: the activations' are, wherever this flag is set."""
        utils = standing.module("sglang.srt.layers.quantization.fp8_utils")
        done: list[torch.Size] = []
        monkeypatch.setattr(utils, "requant_weight_ue8m0_inplace", lambda weight, *_: done.append(weight.shape))
        assert linear(card, backend, kernels=True) == multiplied
        weight, scale = torch.zeros(128, 256), torch.ones(1, 2)
        with rig.present(card):
            told = utils.requant_block_scale_ue8m0_for_deepgemm(
                weight,
                scale,
                [128, 128],
                use_deepgemm_runner=multiplied == DEEPGEMM,
                output_dtype=torch.bfloat16,
                weight_shape=weight.shape,
            )
        assert (told, done) == (requantized, [weight.shape] if requantized else [])
        if card is cards.RTX_PRO_6000_SERVER:
            # Who asks without saying what multiplies is answered alike there.
            asks = standing.module("sglang.srt.model_loader.utils").should_deepgemm_weight_requant_ue8m0
            with rig.present(card):
                assert asks([128, 128], torch.bfloat16, weight.shape) is requantized
