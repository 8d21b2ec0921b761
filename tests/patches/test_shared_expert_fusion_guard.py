"""shared-expert-fusion-guard: a shared expert that ModelOpt left unquantized is not put among quantized experts.

Upstream's own models decide here about checkpoints whose quantization upstream's own loader read. The modules are
loaded as without CUDA, so each test says in the open that there is CUDA, and how many ranks share the experts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sm120_overlay.serving import rig
from sm120_overlay.serving.rig import cards, models
from sm120_overlay.serving.rig.models import QuantForm

CARDS = pytest.mark.parametrize(
    "card", [cards.RTX_PRO_6000_SERVER, cards.DGX_SPARK, cards.B200, cards.H200], ids=["12.0", "12.1", "10.0", "9.0"]
)
EVERYWHERE = "model.layers.*.mlp.shared_experts*"
ROUTED = "model.layers.*.mlp.experts*"
FP4 = {"moe_runner_backend": "flashinfer_cutlass", "quantization": "modelopt_fp4"}
# Not the shapes of a real one: what is decided here asks for none.
LITE = models.Model("GLM-4 MoE Lite", {**models.DEEPSEEK_V3.config, "architectures": ["Glm4MoeLiteForCausalLM"]})
# (checkpoint, upstream's module, its class)
DECIDERS = (
    (models.GLM_5, "glm4_moe", "GlmMoeDsaForCausalLM"),
    (models.DEEPSEEK_V3, "deepseek_v2", "DeepseekV3ForCausalLM"),
    (models.GLM_4_MOE, "glm4_moe", "Glm4MoeForCausalLM"),
    (LITE, "glm4_moe_lite", "Glm4MoeLiteForCausalLM"),
)
DECIDER = pytest.mark.parametrize(("model", "module", "name"), DECIDERS, ids=[model.name for model, _, _ in DECIDERS])

Decide = Callable[..., "tuple[int, bool]"]


@pytest.fixture
def decide(standing: rig.Standing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Decide]:
    """(how many shared experts upstream fuses, whether it tells the rest of the server that none is)."""
    server_args = standing.module("sglang.srt.server_args")
    monkeypatch.setattr(server_args, "_global_server_args", None)

    def ask(
        card: rig.Card, model: models.Model, module: str, name: str, excluded: list[str], **how: Any
    ) -> tuple[int, bool]:
        with_cuda(standing, monkeypatch, card)
        # A folder of its own each time: upstream remembers what it read in one.
        folder = checkpoint(tmp_path / str(len(list(tmp_path.iterdir()))), model, excluded, how.pop("algo", "NVFP4"))
        with rig.present(card):
            outcome = rig.resolve(standing, folder, tp_size=8, **{**FP4, **how})
            assert outcome.refusal is None, f"upstream refuses {how}: {outcome.refusal}"
            server_args.set_global_server_args_for_scheduler(outcome.args)
            decider = object.__new__(getattr(standing.module(f"sglang.srt.models.{module}"), name))
            torch.nn.Module.__init__(decider)
            decider.quant_config, decider.config = read(standing, outcome.args)
            decider.num_fused_shared_experts = 0
            if name == "Glm4MoeLiteForCausalLM":
                decider.determine_num_fused_shared_experts(name)
            else:
                decider.determine_num_fused_shared_experts()
        return decider.num_fused_shared_experts, outcome.args.disable_shared_experts_fusion

    yield ask


def with_cuda(standing: rig.Standing, monkeypatch: pytest.MonkeyPatch, card: rig.Card) -> None:
    """What the models' modules found out at import, as a server with one expert rank would have."""
    sm = card.capability[0] * 10 + card.capability[1]
    for name in ("deepseek_v2", "glm4_moe", "glm4_moe_lite", "glm4v_moe"):
        module = standing.module(f"sglang.srt.models.{name}")
        monkeypatch.setattr(module, "_is_cuda", True)
        monkeypatch.setattr(module, "_device_sm", sm, raising=False)
        monkeypatch.setattr(module, "get_moe_expert_parallel_world_size", lambda: 1)


def checkpoint(folder: Path, model: models.Model, excluded: list[str], algo: str) -> Path:
    """A checkpoint that leaves these modules unquantized, besides what ModelOpt always leaves."""
    made = models.checkpoint(folder, model, QuantForm.GENERIC, algo)
    config = json.loads((made / "config.json").read_text())
    config["quantization_config"]["ignore"] = [*config["quantization_config"]["ignore"], *excluded]
    (made / "config.json").write_text(json.dumps(config))
    return made


def read(standing: rig.Standing, args: Any) -> tuple[Any, Any]:
    """The checkpoint's quantization and its model, as upstream's loader reads them."""
    config = standing.module("sglang.srt.configs.model_config").ModelConfig.from_server_args(args)
    load_config = standing.module("sglang.srt.configs.load_config").LoadConfig()
    quant = standing.module("sglang.srt.model_loader.weight_utils").get_quant_config(config, load_config, {})
    return quant, config.hf_config


@CARDS
@DECIDER
def test_a_shared_expert_that_is_not_quantized_is_not_fused(
    *, decide: Decide, card: rig.Card, model: models.Model, module: str, name: str
) -> None:
    assert decide(card, model, module, name, [EVERYWHERE]) == (0, True)


@pytest.mark.parametrize(
    "excluded",
    [
        ["model.layers.77.mlp.shared_experts*"],
        ["model.layers.40.mlp.shared_experts.down_proj"],
        [f"model.layers.40.mlp.shared_experts.{shard}_proj" for shard in ("gate", "up", "down")],
        [ROUTED],
    ],
    ids=str,
)
def test_one_layer_or_one_projection_is_enough(decide: Decide, excluded: list[str]) -> None:
    assert decide(cards.RTX_PRO_6000_SERVER, *DECIDERS[0], excluded) == (0, True)


@CARDS
@DECIDER
def test_experts_that_are_quantized_alike_are_fused_as_upstream_does(
    *, decide: Decide, card: rig.Card, model: models.Model, module: str, name: str
) -> None:
    assert decide(card, model, module, name, []) == (1, False)
    # Neither is quantized here, and a dense layer is none of its business.
    assert decide(card, model, module, name, [EVERYWHERE, ROUTED, "model.layers.0.mlp*"]) == (1, False)


def test_an_fp8_checkpoint_is_judged_in_the_same_way(decide: Decide) -> None:
    how = {"quantization": "modelopt_fp8", "algo": "FP8", "moe_runner_backend": "auto"}
    found = [decide(cards.RTX_PRO_6000_SERVER, *DECIDERS[0], excluded, **how) for excluded in ([], [EVERYWHERE])]
    assert found == [(1, False), (0, True)]


def test_the_users_own_switch_still_decides_first(decide: Decide) -> None:
    switched = decide(cards.RTX_PRO_6000_SERVER, *DECIDERS[0], [], disable_shared_experts_fusion=True)
    assert switched == (0, True)


def test_a_vision_model_is_judged_by_the_names_that_its_layers_have(
    standing: rig.Standing, decide: Decide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its layers are below `language_model`, and so are the names that it is asked about."""
    decide(cards.RTX_PRO_6000_SERVER, *DECIDERS[2], [])  # the server's arguments
    args = standing.module("sglang.srt.server_args").get_global_server_args()
    quant = standing.module("sglang.srt.layers.quantization.modelopt_quant").ModelOptFp4Config
    module = standing.module("sglang.srt.models.glm4v_moe")
    found = []
    for excluded in ([], ["language_model.layers.*.mlp.shared_experts*"]):
        args.disable_shared_experts_fusion = False
        decider = object.__new__(module.Glm4vMoeForConditionalGeneration)
        torch.nn.Module.__init__(decider)
        decider.config = SimpleNamespace(n_shared_experts=1, first_k_dense_replace=1, num_hidden_layers=46)
        decider.quant_config = quant(True, None, models.GROUP_SIZE, excluded, {})
        decider.num_fused_shared_experts = 0
        decider.determine_num_fused_shared_experts()
        found.append(decider.num_fused_shared_experts)
    assert found == [1, 0]


@pytest.mark.parametrize("excluded", [[], [EVERYWHERE]], ids=str)
def test_linear_layers_are_quantized_as_before(standing: rig.Standing, excluded: list[str]) -> None:
    quant = standing.module("sglang.srt.layers.quantization.modelopt_quant")
    layer = object.__new__(standing.module("sglang.srt.layers.linear").LinearBase)
    config = quant.ModelOptFp4Config(True, None, models.GROUP_SIZE, excluded, {})
    made = [
        type(config.get_quant_method(layer, f"model.layers.5.mlp.{part}")).__name__
        for part in ("shared_experts.gate_up_proj", "shared_experts.down_proj", "gate_up_proj")
    ]
    shared = "UnquantizedLinearMethod" if excluded else "ModelOptFp4LinearMethod"
    assert made == [shared, shared, "ModelOptFp4LinearMethod"]


EXPERTS, HIDDEN, INTERMEDIATE = 2, 128, 64


def test_a_quantized_slot_cannot_take_an_unquantized_expert(
    standing: rig.Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason for the patch: upstream's own expert layer, its NVFP4 weights, and bf16 ones to load into them."""
    layers = standing.module("sglang.srt.layers.moe.fused_moe_triton.layer")
    quant = standing.module("sglang.srt.layers.quantization.modelopt_quant")
    layer = object.__new__(layers.FusedMoE)
    torch.nn.Module.__init__(layer)
    with rig.present(cards.RTX_PRO_6000_SERVER):
        layer.quant_method = quant.ModelOptNvFp4FusedMoEMethod(
            quant.ModelOptFp4Config(True, None, models.GROUP_SIZE, [EVERYWHERE], {})
        )
    layer.moe_runner_config = layer.quant_method.moe_runner_config = SimpleNamespace(is_gated=True)
    layer.num_experts = layer.num_local_experts = EXPERTS
    layer.moe_tp_rank, layer.moe_ep_rank, layer.moe_tp_size, layer.moe_ep_size = 0, 0, 1, 1
    layer.use_flashinfer_trtllm_moe = layer.use_triton_kernels = layer.use_presharded_weights = False
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    layer.quant_method.create_weights(layer, EXPERTS, HIDDEN, INTERMEDIATE, torch.bfloat16, weight_loader=None)
    shared = torch.zeros(INTERMEDIATE, HIDDEN, dtype=torch.bfloat16)
    sizes = rf"tensor a \({HIDDEN // 2}\) must match the size of tensor b \({HIDDEN}\)"
    with pytest.raises(RuntimeError, match=sizes):
        layer._weight_loader_impl(layer.w13_weight, shared, "experts.w13_weight", "w1", EXPERTS - 1)
