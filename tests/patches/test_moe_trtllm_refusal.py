"""moe-trtllm-refusal: on SM12x a MoE runner of TRTLLM-gen kernels is refused, and never chosen for the user.

Everything here runs upstream's own argument resolution on presented cards. In SGLang 0.5.9 flashinfer_mxfp4 is of
TRTLLM-gen too, and GPT-OSS gets it by default. In later releases it is FlashInfer's CUTLASS on SM12x, and theirs; there
DeepSeek-V4 with NVFP4 experts gets flashinfer_trtllm_routed by default on every card.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay.serving import rig
from sm120_overlay.serving.rig import cards, models
from sm120_overlay.serving.rig.models import QuantForm

SM12X = pytest.mark.parametrize("card", [cards.RTX_PRO_6000_SERVER, cards.DGX_SPARK], ids=["12.0", "12.1"])
OTHERS = pytest.mark.parametrize("card", [cards.H200, cards.B200], ids=["9.0", "10.0"])
FIRST = next(iter(metadata.distributions(name="sglang", path=[os.environ["SM120_OVERLAY_TREE"]]))).version == "0.5.9"
TRTLLM_GEN = pytest.mark.parametrize(
    "runner",
    [
        "flashinfer_trtllm",
        *(["flashinfer_mxfp4"] if FIRST else ["flashinfer_trtllm_routed", "experimental_sgl_trtllm"]),
    ],
)
# What decides here of the published openai/gpt-oss-120b: its class, its experts and its quantization.
GPT_OSS = models.Model(
    "gpt-oss-120b",
    {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "max_position_embeddings": 131072,
        "dtype": "bfloat16",
        "quantization_config": {"quant_method": "mxfp4"},
    },
)

# What decides here of the published nvidia/DeepSeek-V4-Pro-NVFP4: block FP8, and the routed experts in NVFP4.
DEEPSEEK_V4_NVFP4 = models.Model(
    "DeepSeek-V4-NVFP4",
    {
        **models.DEEPSEEK_V3.config,
        "architectures": ["DeepseekV4ForCausalLM"],
        "sliding_window": 128,
        "index_head_dim": 128,
        "compress_ratios": [0, 4],
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
            "quant_algo": "MIXED_PRECISION",
            "moe_quant_algo": "NVFP4",
            "group_size": models.GROUP_SIZE,
        },
    },
)

Resolve = Callable[..., rig.Resolution]


@pytest.fixture
def resolve(standing: rig.Standing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resolve:
    """Upstream's outcome at TP8, on a card; GLM-5 in NVFP4 unless another model is named."""
    quantization = standing.module("sglang.srt.layers.quantization")
    # Upstream registers it while loading where CUDA is there, and the rig loads modules as on a machine without.
    monkeypatch.setitem(quantization.QUANTIZATION_METHODS, "mxfp4", quantization.Mxfp4Config)

    def ask(card: rig.Card, model: models.Model = models.GLM_5, **asked: Any) -> rig.Resolution:
        form = QuantForm.GENERIC if model is models.GLM_5 else QuantForm.NONE
        folder = models.checkpoint(tmp_path / model.name, model, form)
        with rig.present(card):
            return rig.resolve(standing, folder, **{"tp_size": 8, **asked})

    return ask


def refused(outcome: rig.Resolution, runner: str) -> bool:
    """Whether upstream says no to this runner, in words that name it and the cards."""
    text = str(outcome.refusal)
    return isinstance(outcome.refusal, ValueError) and runner in text and "SM12x" in text


def runners(outcome: rig.Resolution) -> tuple[str, str]:
    """The MoE runners of the model and of its draft."""
    assert outcome.refusal is None, f"upstream refuses {outcome.asked}: {outcome.refusal}"
    return outcome.args.moe_runner_backend, outcome.args.speculative_moe_runner_backend


@SM12X
@TRTLLM_GEN
def test_a_trtllm_gen_runner_is_refused_with_its_reason(resolve: Resolve, card: rig.Card, runner: str) -> None:
    outcome = resolve(card, quantization="modelopt_fp4", moe_runner_backend=runner)
    assert refused(outcome, runner), f"{runner} is accepted, or refused without its reason: {outcome.refusal}"


@SM12X
@TRTLLM_GEN
def test_a_trtllm_gen_runner_is_refused_for_a_draft_too(resolve: Resolve, card: rig.Card, runner: str) -> None:
    outcome = resolve(
        card, quantization="modelopt_fp4", speculative_algorithm="EAGLE", speculative_moe_runner_backend=runner
    )
    assert refused(outcome, runner), f"{runner} is accepted, or refused without its reason: {outcome.refusal}"


@SM12X
@pytest.mark.parametrize("runner", ["flashinfer_cutlass", "flashinfer_cutedsl", "cutlass", "triton"])
def test_every_other_runner_is_kept(resolve: Resolve, card: rig.Card, runner: str) -> None:
    outcome = resolve(card, quantization="modelopt_fp4", moe_runner_backend=runner)
    assert runners(outcome) == (runner, runner)


@OTHERS
@TRTLLM_GEN
def test_other_capabilities_accept_what_they_accepted(resolve: Resolve, card: rig.Card, runner: str) -> None:
    draft = "auto" if FIRST and runner == "flashinfer_trtllm" else runner
    assert runners(resolve(card, quantization="modelopt_fp4", moe_runner_backend=runner)) == (runner, draft)


@SM12X
@TRTLLM_GEN
def test_a_server_that_does_not_use_the_card_stays_as_upstream_resolves_it(
    resolve: Resolve, card: rig.Card, runner: str
) -> None:
    outcome = resolve(card, device="cpu", quantization="modelopt_fp4", moe_runner_backend=runner)
    assert runners(outcome)[0] == runner


if FIRST:

    @pytest.fixture
    def triton_kernels(standing: rig.Standing, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
        """Say whether the optional package triton_kernels is installed."""
        server_args = standing.module("sglang.srt.server_args")
        return lambda there: monkeypatch.setattr(server_args, "is_triton_kernels_available", lambda: there)

    @SM12X
    def test_it_is_refused_for_an_unquantized_model_too(resolve: Resolve, card: rig.Card) -> None:
        outcome = resolve(card, GPT_OSS, moe_runner_backend="flashinfer_mxfp4")
        assert refused(outcome, "flashinfer_mxfp4")

    @SM12X
    @pytest.mark.parametrize("there", [True, False], ids=["with triton_kernels", "without"])
    @pytest.mark.parametrize("asked", [{}, {"ep_size": 8}, {"quantization": "mxfp4"}], ids=str)
    def test_gpt_oss_gets_the_runner_of_a_card_without_trtllm_gen(
        *, resolve: Resolve, card: rig.Card, there: bool, asked: dict[str, Any], triton_kernels: Callable[[bool], None]
    ) -> None:
        triton_kernels(there)
        expected = runners(resolve(cards.H200, GPT_OSS, **asked))
        assert expected[0] == ("triton_kernel" if there and not asked else "auto")
        assert runners(resolve(card, GPT_OSS, **asked)) == expected

    @pytest.mark.parametrize(
        ("card", "runner"), [(cards.H200, "triton_kernel"), (cards.B200, "flashinfer_mxfp4")], ids=["9.0", "10.0"]
    )
    def test_gpt_oss_on_other_capabilities_resolves_as_upstream(
        resolve: Resolve, card: rig.Card, runner: str, triton_kernels: Callable[[bool], None]
    ) -> None:
        triton_kernels(True)
        assert runners(resolve(card, GPT_OSS)) == (runner, runner)

    @SM12X
    def test_gpt_oss_on_the_cpu_resolves_as_upstream(resolve: Resolve, card: rig.Card) -> None:
        outcome = resolve(card, GPT_OSS, device="cpu", attention_backend="triton")
        assert runners(outcome)[0] == "flashinfer_mxfp4"


if not FIRST:

    @SM12X
    def test_a_models_own_default_is_refused_too(resolve: Resolve, card: rig.Card) -> None:
        assert refused(resolve(card, DEEPSEEK_V4_NVFP4), "flashinfer_trtllm_routed")
        assert runners(resolve(card, DEEPSEEK_V4_NVFP4, moe_runner_backend="triton")) == ("triton", "triton")

    @OTHERS
    def test_a_models_own_default_is_upstreams_on_other_capabilities(resolve: Resolve, card: rig.Card) -> None:
        assert runners(resolve(card, DEEPSEEK_V4_NVFP4)) == ("flashinfer_trtllm_routed",) * 2

    @SM12X
    @pytest.mark.parametrize("model", [GPT_OSS, models.QWEN3_MOE], ids=lambda model: model.name)
    def test_flashinfer_mxfp4_is_another_runner_and_is_kept(
        resolve: Resolve, card: rig.Card, model: models.Model
    ) -> None:
        assert runners(resolve(card, model, moe_runner_backend="flashinfer_mxfp4")) == ("flashinfer_mxfp4",) * 2

    @SM12X
    def test_gpt_oss_keeps_upstreams_default(standing: rig.Standing, resolve: Resolve, card: rig.Card) -> None:
        chosen = {"0.5.16": "marlin"}.get(standing.version, "flashinfer_mxfp4")
        assert runners(resolve(card, GPT_OSS)) == (chosen, chosen)

    @SM12X
    def test_what_mxfp8_sets_for_itself_is_left_to_upstream(resolve: Resolve, card: rig.Card) -> None:
        """A dense model gets the runner too, and runs no MoE."""
        assert runners(resolve(card, models.QWEN3_DENSE, quantization="mxfp8")) == ("flashinfer_trtllm",) * 2
