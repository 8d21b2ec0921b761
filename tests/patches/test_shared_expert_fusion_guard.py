"""shared-expert-fusion-guard: a shared expert that ModelOpt left unquantized is not put among quantized experts.

Upstream's own models decide here about checkpoints whose quantization upstream's own loader read. The modules are
loaded as without CUDA, so each test says in the open that there is CUDA, and how many ranks share the experts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sm120_overlay.serving import rig
from sm120_overlay.serving.rig import cards, models
from sm120_overlay.serving.rig.models import QuantForm

# The release that is judged. From 0.5.23 on upstream decides before it builds a model, and looks at the names of what
# is excluded: that any shared expert is among them is enough, whatever else is.
LINE = next(Path(os.environ["SM120_OVERLAY_TREE"]).glob("sglang-*.dist-info")).name.split("-")[1].removesuffix(".dist")
BY_NAMES = LINE not in ("0.5.9", "0.5.16")
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
    if LINE == "0.5.9":
        monkeypatch.setattr(standing.module("sglang.srt.server_args"), "_global_server_args", None)

    def ask(
        card: rig.Card, model: models.Model, module: str, name: str, excluded: list[str], **how: Any
    ) -> tuple[int, bool]:
        with_cuda(standing, monkeypatch, card)
        # A folder of its own each time: upstream remembers what it read in one.
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        checkpoint(folder, model, excluded, how.pop("algo", "NVFP4"), how.pop("quantized_layers", None))
        with rig.present(card):
            outcome = rig.resolve(standing, folder, tp_size=8, **{**FP4, **how})
            assert outcome.refusal is None, f"upstream refuses {how}: {outcome.refusal}"
            with serving(standing, monkeypatch, outcome):
                quant_config, config = read(standing, outcome.record)
                kind = getattr(standing.module(f"sglang.srt.models.{module}"), name)
                return decided(standing, kind, config, quant_config)

    yield ask


@contextmanager
def serving(standing: rig.Standing, monkeypatch: pytest.MonkeyPatch, outcome: rig.Resolution) -> Iterator[None]:
    """A process of the server that has these arguments, and all experts on each rank."""
    if LINE == "0.5.9":
        standing.module("sglang.srt.server_args").set_global_server_args_for_scheduler(outcome.args)
        yield
        return
    context = standing.module("sglang.srt.runtime_context")
    with ExitStack() as stack:
        if BY_NAMES:
            stack.enter_context(context.use_context(context.create_context(outcome.record, role="scheduler")))
        else:
            monkeypatch.setattr(context.get_context(), "_server_args", outcome.args)
        stack.enter_context(context.get_parallel().override(moe_ep_size=1))
        yield


def decided(standing: rig.Standing, kind: Any, config: Any, quant_config: Any) -> tuple[int, bool]:
    """What upstream's model class decides, or what the loader does for it."""
    if BY_NAMES:
        moe = standing.module("sglang.srt.layers.moe.utils")
        found = moe.resolve_shared_experts_config(kind, config, quant_config)
        return found.num_fused_shared_experts, found.fusion_disabled
    decider = object.__new__(kind)
    torch.nn.Module.__init__(decider)
    decider.quant_config, decider.config = quant_config, config
    decider.num_fused_shared_experts = 0
    if kind.__name__ == "Glm4MoeLiteForCausalLM":
        decider.determine_num_fused_shared_experts(kind.__name__)
    else:
        decider.determine_num_fused_shared_experts()
    return decider.num_fused_shared_experts, arguments(standing).disable_shared_experts_fusion


def arguments(standing: rig.Standing) -> Any:
    """The arguments that a process of the server asks for."""
    if LINE == "0.5.9":
        return standing.module("sglang.srt.server_args").get_global_server_args()
    return standing.module("sglang.srt.runtime_context").get_server_args()


def with_cuda(standing: rig.Standing, monkeypatch: pytest.MonkeyPatch, card: rig.Card) -> None:
    """What the models' modules found out at import, as a server with one expert rank would have."""
    sm = card.capability[0] * 10 + card.capability[1]
    for name in ("deepseek_v2", "glm4_moe", "glm4_moe_lite", "glm4v_moe"):
        module = standing.module(f"sglang.srt.models.{name}")
        monkeypatch.setattr(module, "_is_cuda", True)
        monkeypatch.setattr(module, "_device_sm", sm, raising=False)
        if LINE == "0.5.9":
            monkeypatch.setattr(module, "get_moe_expert_parallel_world_size", lambda: 1)


def checkpoint(
    folder: Path, model: models.Model, excluded: list[str], algo: str, layers: dict[str, Any] | None = None
) -> Path:
    """A checkpoint that leaves these modules unquantized, besides what ModelOpt always leaves; or a mixed one."""
    made = models.checkpoint(folder, model, QuantForm.GENERIC, algo)
    config = json.loads((made / "config.json").read_text())
    config["quantization_config"]["ignore"] = [*config["quantization_config"]["ignore"], *excluded]
    if layers is not None:
        config["quantization_config"].update(quant_method="modelopt_mixed", quantized_layers=layers)
        config["quantization_config"]["kv_cache_quant_algo"] = None
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
        # Upstream's look at the names does not see that the routed experts alone are excluded.
        *([] if BY_NAMES else [[ROUTED]]),
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
    neither = [] if BY_NAMES else [EVERYWHERE, ROUTED]
    assert decide(card, model, module, name, [*neither, "model.layers.0.mlp*"]) == (1, False)


def test_an_fp8_checkpoint_is_judged_in_the_same_way(decide: Decide) -> None:
    how = {"quantization": "modelopt_fp8", "algo": "FP8", "moe_runner_backend": "auto"}
    found = [decide(cards.RTX_PRO_6000_SERVER, *DECIDERS[0], excluded, **how) for excluded in ([], [EVERYWHERE])]
    assert found == [(1, False), (0, True)]


if LINE != "0.5.9":

    @CARDS
    @DECIDER
    def test_a_checkpoint_of_mixed_precision_is_not_fused(
        *, decide: Decide, card: rig.Card, model: models.Model, module: str, name: str
    ) -> None:
        """What is missing in its list of quantized layers is not quantized: here the shared experts."""
        layers = range(model.config["first_k_dense_replace"], model.config["num_hidden_layers"])
        quantized = {f"model.layers.{layer}.mlp.experts": {"quant_algo": "NVFP4"} for layer in layers}
        how = {"quantization": "modelopt_mixed", "algo": "MIXED_PRECISION", "quantized_layers": quantized}
        assert decide(card, model, module, name, [], **how) == (0, True)


def test_the_users_own_switch_still_decides_first(decide: Decide) -> None:
    switched = decide(cards.RTX_PRO_6000_SERVER, *DECIDERS[0], [], disable_shared_experts_fusion=True)
    assert switched == (0, True)


def test_a_vision_model_is_judged_by_the_names_that_its_layers_have(
    standing: rig.Standing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its layers are below `language_model`, and so are the names that it is asked about."""
    with_cuda(standing, monkeypatch, cards.RTX_PRO_6000_SERVER)
    quant = standing.module("sglang.srt.layers.quantization.modelopt_quant").ModelOptFp4Config
    kind = standing.module("sglang.srt.models.glm4v_moe").Glm4vMoeForConditionalGeneration
    config = SimpleNamespace(n_shared_experts=1, first_k_dense_replace=1, num_hidden_layers=46)
    found = []
    for number, excluded in enumerate(([], ["language_model.layers.*.mlp.shared_experts*"])):
        folder = checkpoint(tmp_path / str(number), models.GLM_4_MOE, [], "NVFP4")
        with rig.present(cards.RTX_PRO_6000_SERVER):
            outcome = rig.resolve(standing, folder, tp_size=8, **FP4)
            with serving(standing, monkeypatch, outcome):
                found.append(decided(standing, kind, config, quant(True, None, models.GROUP_SIZE, excluded, {}))[0])
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
    # Later releases quantize a shared expert while it loads, but not for ModelOpt.
    layer._has_fused_shared, layer._num_local_routed = True, EXPERTS - 1
    layer.quant_config = layer.quant_method.quant_config
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    layer.quant_method.create_weights(layer, EXPERTS, HIDDEN, INTERMEDIATE, torch.bfloat16, weight_loader=None)
    shared = torch.zeros(INTERMEDIATE, HIDDEN, dtype=torch.bfloat16)
    sizes = rf"tensor a \({HIDDEN // 2}\) must match the size of tensor b \({HIDDEN}\)"
    with pytest.raises(RuntimeError, match=sizes):
        layer._weight_loader_impl(layer.w13_weight, shared, "experts.w13_weight", "w1", EXPERTS - 1)
