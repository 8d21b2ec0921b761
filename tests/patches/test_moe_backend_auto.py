"""moe-backend-auto: on SM12x, an NVFP4 MoE checkpoint runs on FlashInfer's CUTLASS MoE unless the user names another.

Everything here runs upstream's own argument resolution, and its own quantization and MoE classes, on presented cards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sm120_overlay.serving import rig
from sm120_overlay.serving.rig import cards, models
from sm120_overlay.serving.rig.models import QuantForm

CUTLASS = ("modelopt_fp4", "flashinfer_cutlass", "auto")
SM12X = pytest.mark.parametrize("card", [cards.RTX_PRO_6000_SERVER, cards.DGX_SPARK], ids=["12.0", "12.1"])
NVFP4_FORMS = (QuantForm.GENERIC, QuantForm.NAMELESS, QuantForm.SIDE_FILE)
# Ernie 4.5 VL gives one number of experts per modality. Its own configuration class is remote code, and not run here.
ERNIE_VL = models.Model("Ernie-4.5-VL", {**models.QWEN3_DENSE.config, "moe_num_experts": [64, 64]})
MOE_MODELS = (
    models.GLM_5,
    models.QWEN3_MOE,
    models.GLM_4_MOE,
    models.DEEPSEEK_V3,
    models.MIXTRAL,
    models.GLM_4_5V,
    models.STEP_3,
    ERNIE_VL,
)
FLAGS: tuple[dict[str, str], ...] = ({}, {"quantization": "modelopt"}, {"quantization": "modelopt_fp4"})

Resolve = Callable[..., rig.Resolution]


@pytest.fixture
def resolve(standing: rig.Standing, tmp_path: Path) -> Resolve:
    """Upstream's outcome at TP8 for a checkpoint, on a card."""

    def ask(card: rig.Card, model: models.Model, form: QuantForm, algo: str = "NVFP4", **asked: Any) -> rig.Resolution:
        folder = models.checkpoint(tmp_path / f"{model.name}-{form.name}-{algo}", model, form, algo)
        with rig.present(card):
            return rig.resolve(standing, folder, tp_size=8, **asked)

    return ask


def accepted(outcome: rig.Resolution) -> Any:
    assert outcome.refusal is None, f"upstream refuses {outcome.asked}: {outcome.refusal}"
    return outcome.args


def choice(outcome: rig.Resolution) -> tuple[str | None, str, str]:
    """What the server would run: quantization, MoE runner, the draft's MoE runner."""
    args = accepted(outcome)
    return args.quantization, args.moe_runner_backend, args.speculative_moe_runner_backend


@SM12X
@pytest.mark.parametrize("form", NVFP4_FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("model", MOE_MODELS, ids=lambda model: model.name)
def test_nvfp4_moe_gets_flashinfer_cutlass_with_and_without_ep(
    resolve: Resolve, card: rig.Card, model: models.Model, form: QuantForm
) -> None:
    asked = [{**flag, "ep_size": ep} for flag in FLAGS for ep in (1, 8)]
    chosen = [(how, choice(resolve(card, model, form, **how))) for how in asked]
    assert chosen == [(how, CUTLASS) for how in asked]


@SM12X
def test_an_ep_size_that_cutlass_cannot_run_is_refused_at_argument_time(resolve: Resolve, card: rig.Card) -> None:
    refusal = resolve(card, models.GLM_5, QuantForm.GENERIC, ep_size=4).refusal
    assert refusal is not None, "EP4 at TP8 is accepted, and dies while its weights are processed"
    assert "expert parallel size must be 1 or the same as the tensor parallel size" in str(refusal)


@SM12X
@pytest.mark.parametrize(
    ("model", "form", "algo", "flags"),
    [
        (models.QWEN3_DENSE, QuantForm.GENERIC, "NVFP4", {"quantization": "modelopt_fp4"}),
        (models.QWEN3_DENSE, QuantForm.SIDE_FILE, "NVFP4", {}),
        (models.LLAMA_4, QuantForm.SIDE_FILE, "NVFP4", {}),
        (models.QWEN3_MOE, QuantForm.NONE, "", {}),
        (models.QWEN3_MOE, QuantForm.GENERIC, "FP8", {}),
        (models.QWEN3_MOE, QuantForm.SIDE_FILE, "FP8", {}),
        (models.QWEN3_MOE, QuantForm.SIDE_FILE, "MIXED_PRECISION", {}),
        (models.QWEN3_MOE, QuantForm.GENERIC, "MIXED_PRECISION", {}),
        (models.QWEN3_MOE, QuantForm.NAMELESS, "NVFP4", {"quantization": "modelopt_fp8"}),
    ],
    ids=lambda value: getattr(value, "name", None) or str(value),
)
def test_what_is_not_an_nvfp4_moe_stays_as_upstream_resolves_it(
    *, resolve: Resolve, card: rig.Card, model: models.Model, form: QuantForm, algo: str, flags: dict[str, str]
) -> None:
    assert choice(resolve(card, model, form, algo, **flags)) == (flags.get("quantization"), "auto", "auto")


@SM12X
def test_a_dense_config_that_counts_one_expert_is_no_moe(resolve: Resolve, card: rig.Card) -> None:
    counted = models.Model("Dense-1", {**models.QWEN3_DENSE.config, "num_experts": 1})
    assert choice(resolve(card, counted, QuantForm.SIDE_FILE)) == (None, "auto", "auto")


@SM12X
def test_a_server_that_does_not_use_the_card_stays_as_upstream_resolves_it(resolve: Resolve, card: rig.Card) -> None:
    outcome = resolve(card, models.GLM_5, QuantForm.GENERIC, quantization="modelopt_fp4", device="cpu")
    assert choice(outcome) == ("modelopt_fp4", "auto", "auto")


@SM12X
@pytest.mark.parametrize("runner", ["cutlass", "triton", "flashinfer_cutedsl"])
def test_a_runner_that_the_user_named_is_kept(resolve: Resolve, card: rig.Card, runner: str) -> None:
    outcome = resolve(card, models.GLM_5, QuantForm.GENERIC, quantization="modelopt_fp4", moe_runner_backend=runner)
    assert choice(outcome) == ("modelopt_fp4", runner, runner)


@SM12X
@pytest.mark.parametrize("a2a", ["deepep", "mooncake"])
def test_an_all_to_all_backend_keeps_its_own_runner(resolve: Resolve, card: rig.Card, a2a: str) -> None:
    outcome = resolve(card, models.GLM_5, QuantForm.GENERIC, quantization="modelopt_fp4", moe_a2a_backend=a2a)
    assert choice(outcome) == ("modelopt_fp4", "auto", "auto")


@SM12X
def test_a_draft_keeps_its_own_runner(resolve: Resolve, card: rig.Card) -> None:
    eagle = {"quantization": "modelopt_fp4", "speculative_algorithm": "EAGLE"}
    chosen = {
        "omitted": choice(resolve(card, models.GLM_5, QuantForm.GENERIC, **eagle)),
        "draft named": choice(
            resolve(card, models.GLM_5, QuantForm.GENERIC, **eagle, speculative_moe_runner_backend="triton")
        ),
        "both named": choice(
            resolve(card, models.GLM_5, QuantForm.GENERIC, **eagle, moe_runner_backend="flashinfer_cutlass")
        ),
    }
    assert chosen == {
        "omitted": CUTLASS,
        "draft named": ("modelopt_fp4", "flashinfer_cutlass", "triton"),
        "both named": ("modelopt_fp4", "flashinfer_cutlass", "flashinfer_cutlass"),
    }


@SM12X
@pytest.mark.parametrize(
    ("asked", "draft"),
    [
        ({}, "modelopt_fp4"),
        ({"speculative_draft_model_path": "the model's"}, "modelopt_fp4"),
        ({"speculative_draft_model_path": "another"}, None),
        ({"speculative_draft_model_quantization": "fp8"}, "fp8"),
        ({"quantization": "modelopt_fp4", "speculative_draft_model_quantization": "unquant"}, None),
        ({"quantization": "modelopt", "speculative_draft_model_quantization": "unquant"}, None),
    ],
    ids=str,
)
def test_a_draft_of_the_same_checkpoint_is_quantized_like_it_unless_the_user_says_otherwise(
    *, resolve: Resolve, tmp_path: Path, card: rig.Card, asked: dict[str, str], draft: str | None
) -> None:
    paths = {
        "the model's": tmp_path / f"{models.GLM_5.name}-GENERIC-NVFP4",
        "another": models.checkpoint(tmp_path / "another", models.GLM_5),
    }
    if path := asked.get("speculative_draft_model_path"):
        asked = {**asked, "speculative_draft_model_path": str(paths[path])}
    outcome = resolve(card, models.GLM_5, QuantForm.GENERIC, speculative_algorithm="EAGLE", **asked)
    assert (choice(outcome), accepted(outcome).speculative_draft_model_quantization) == (CUTLASS, draft)


@pytest.mark.parametrize(
    ("card", "model", "form", "flags", "expected"),
    [
        (cards.H200, models.GLM_5, QuantForm.GENERIC, {}, (None, "auto", "auto")),
        (cards.H200, models.GLM_5, QuantForm.GENERIC, FLAGS[1], ("modelopt", "auto", "auto")),
        (cards.H200, models.QWEN3_MOE, QuantForm.NAMELESS, {}, (None, "auto", "auto")),
        (cards.H200, models.QWEN3_MOE, QuantForm.SIDE_FILE, FLAGS[2], ("modelopt_fp4", "auto", "auto")),
        (cards.H100, models.MIXTRAL, QuantForm.NAMELESS, FLAGS[2], ("modelopt_fp4", "auto", "auto")),
        (cards.B200, models.GLM_5, QuantForm.GENERIC, {}, ("modelopt", "auto", "auto")),
        (cards.B200, models.GLM_5, QuantForm.GENERIC, FLAGS[1], ("modelopt", "auto", "auto")),
        (cards.B200, models.GLM_5, QuantForm.GENERIC, FLAGS[2], ("modelopt_fp4", "flashinfer_trtllm", "auto")),
        (cards.B200, models.GLM_5, QuantForm.SIDE_FILE, {}, (None, "auto", "auto")),
        (cards.B200, models.QWEN3_MOE, QuantForm.NAMELESS, {}, ("modelopt_fp4", "flashinfer_trtllm", "auto")),
        (cards.B200, models.QWEN3_MOE, QuantForm.SIDE_FILE, {}, (None, "flashinfer_trtllm", "auto")),
        (cards.B200, models.GLM_4_MOE, QuantForm.NAMELESS, {}, ("modelopt_fp4", "flashinfer_trtllm", "auto")),
        (cards.B200, models.DEEPSEEK_V3, QuantForm.SIDE_FILE, {}, ("fp8", "flashinfer_trtllm", "auto")),
        (cards.B200, models.MIXTRAL, QuantForm.SIDE_FILE, FLAGS[2], ("modelopt_fp4", "auto", "auto")),
    ],
    ids=lambda value: getattr(value, "name", None) or str(value),
)
@pytest.mark.parametrize("ep", [1, 8])
def test_other_capabilities_choose_exactly_as_upstream(
    *,
    resolve: Resolve,
    card: rig.Card,
    model: models.Model,
    form: QuantForm,
    flags: dict[str, str],
    expected: tuple[str | None, str, str],
    ep: int,
) -> None:
    assert choice(resolve(card, model, form, ep_size=ep, **flags)) == expected


def loaded_as(standing: rig.Standing, args: Any, *, draft: bool) -> str:
    """The quantization that upstream's weight loader makes of the checkpoint, or its refusal in its own words."""
    model_config = standing.module("sglang.srt.configs.model_config").ModelConfig
    config = model_config.from_server_args(args, is_draft_model=draft)
    load_config = standing.module("sglang.srt.configs.load_config").LoadConfig()
    try:
        found = standing.module("sglang.srt.model_loader.weight_utils").get_quant_config(config, load_config, {})
    except ValueError as error:
        return f"refused: {error}"
    return str(found.get_name())


@SM12X
@pytest.mark.parametrize("form", NVFP4_FORMS, ids=lambda form: form.name)
def test_the_weight_loader_takes_the_checkpoint_and_its_mtp_layers_without_a_flag(
    standing: rig.Standing, resolve: Resolve, card: rig.Card, form: QuantForm
) -> None:
    args = accepted(resolve(card, models.GLM_5, form, speculative_algorithm="EAGLE"))
    with rig.present(card):
        loaded = [loaded_as(standing, args, draft=draft) for draft in (False, True)]
    assert loaded == ["modelopt_fp4", "modelopt_fp4"]


EXPERTS, HIDDEN, INTERMEDIATE, TOKENS = 16, 128, 64, 2


class Dispatcher:
    """Where upstream leaves the scales for the tokens' quantization."""

    def set_quant_config(self, config: dict[str, Any]) -> None:
        self.config = config


def moe_layer(method: Any, runner_config: Any, ep: int) -> Any:
    """One rank's expert layer, its weights created and processed by upstream's own NVFP4 method."""
    layer: Any = torch.nn.Module()
    layer.num_experts, layer.num_local_experts = EXPERTS, EXPERTS // ep
    layer.moe_ep_size, layer.moe_ep_rank, layer.moe_tp_size, layer.moe_tp_rank = ep, 0, 1, 0
    layer.moe_runner_config, layer.dispatcher = runner_config, Dispatcher()
    method.create_weights(layer, layer.num_local_experts, HIDDEN, INTERMEDIATE, torch.bfloat16, weight_loader=None)
    for parameter in layer.parameters():
        parameter.data = torch.zeros_like(parameter.data, dtype=torch.float32).to(parameter.dtype)
    method.process_weights_after_loading(layer)
    return layer


def run_moe(standing: rig.Standing, args: Any, ep: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """One rank's NVFP4 MoE, as `args` make upstream run it: the method, and the calls that reached FlashInfer.

    FlashInfer's kernel is a recorder and sgl-kernel's passes its input through; the communication around them, which
    needs processes, is empty; tensors stay on the CPU.
    """
    quant = standing.module("sglang.srt.layers.quantization.modelopt_quant")
    standing.module("sglang.srt.layers.moe.utils").initialize_moe_config(args)
    calls: list[Any] = []

    def kernel(**call: Any) -> tuple[Any]:
        calls.append(call)
        return (call["output"],)

    sgl_kernels = standing.module("sglang.srt.layers.moe.cutlass_moe")
    monkeypatch.setattr(sgl_kernels, "cutlass_moe_fp4", lambda **call: call["a"])
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    monkeypatch.setattr(quant, "flashinfer_cutlass_fused_moe", kernel)
    monkeypatch.setattr(quant, "should_use_flashinfer_cutlass_moe_fp4_allgather", lambda: False)
    monkeypatch.setattr(quant, "get_tp_group", lambda: None)
    monkeypatch.setattr(quant, "is_allocation_symmetric", lambda: False)
    monkeypatch.setattr(quant, "use_symmetric_memory", lambda *_, **__: nullcontext())
    config = standing.module("sglang.srt.layers.moe.moe_runner").MoeRunnerConfig(activation="silu", is_gated=True)
    method = quant.ModelOptNvFp4FusedMoEMethod(quant.ModelOptFp4Config(True, None, models.GROUP_SIZE, []))
    method.moe_runner_config = config
    layer = moe_layer(method, config, ep)
    method.create_moe_runner(layer, config)
    topk = SimpleNamespace(topk_weights=torch.ones(TOKENS, 2), topk_ids=torch.zeros(TOKENS, 2, dtype=torch.int32))
    tokens = torch.zeros(TOKENS, HIDDEN, dtype=torch.bfloat16)
    standard = standing.module("sglang.srt.layers.moe.token_dispatcher.standard").StandardDispatchOutput
    method.apply(layer, standard(hidden_states=tokens, hidden_states_scale=None, topk_output=topk))
    return method, calls


@pytest.fixture
def clean_moe_config(standing: rig.Standing) -> Iterator[None]:
    """Upstream keeps the MoE choice in module globals; give the next test a fresh one."""
    utils = standing.module("sglang.srt.layers.moe.utils")
    before = {name: value for name, value in vars(utils).items() if name.isupper()}
    yield
    vars(utils).update(before)


@pytest.mark.usefixtures("clean_moe_config")
def test_upstreams_own_auto_path_cannot_load_weights_under_ep(
    standing: rig.Standing, resolve: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason for the patch: with the runner left at `auto`, EP8 multiplies all experts' scales by one rank's."""
    card = cards.RTX_PRO_6000_SERVER
    args = accepted(resolve(card, models.GLM_5, QuantForm.GENERIC, quantization="modelopt_fp4", ep_size=8))
    args.moe_runner_backend = "auto"
    sizes = rf"tensor a \({EXPERTS}\) must match the size of tensor b \({EXPERTS // 8}\)"
    with rig.present(card), pytest.raises(RuntimeError, match=sizes):
        run_moe(standing, args, 8, monkeypatch)


def test_upstreams_own_auto_kernel_asserts_that_a_rank_has_all_experts(standing: rig.Standing) -> None:
    """The second reason, behind the first: the kernel's entry takes the global expert count for the local one."""
    params = standing.module("sglang.srt.layers.moe.cutlass_moe_params")
    cutlass = standing.module("sglang.srt.layers.moe.cutlass_moe").cutlass_moe_fp4
    local, ones = EXPERTS // 8, torch.ones(TOKENS, 2)
    with pytest.raises(AssertionError, match="Number of experts must match"):
        cutlass(
            a=torch.zeros(TOKENS, HIDDEN, dtype=torch.bfloat16),
            a1_gscale=ones,
            w1_fp4=torch.zeros(local, 2 * INTERMEDIATE, HIDDEN // 2, dtype=torch.uint8),
            w1_blockscale=torch.zeros(local, 2 * INTERMEDIATE, HIDDEN // models.GROUP_SIZE),
            w1_alphas=ones,
            a2_gscale=ones,
            w2_fp4=torch.zeros(local, HIDDEN, INTERMEDIATE // 2, dtype=torch.uint8),
            w2_blockscale=torch.zeros(local, HIDDEN, INTERMEDIATE // models.GROUP_SIZE),
            w2_alphas=ones,
            topk_weights=ones,
            topk_ids=torch.zeros(TOKENS, 2, dtype=torch.int32),
            params=params.CutlassMoEParams(
                params.CutlassMoEType.BlockscaledFP4, torch.device("cpu"), EXPERTS, INTERMEDIATE, HIDDEN
            ),
        )


@SM12X
@pytest.mark.usefixtures("clean_moe_config")
def test_only_a_user_who_names_the_runner_gets_the_fp4_all_gather_with_dp_attention(
    standing: rig.Standing, resolve: Resolve, card: rig.Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under it, models that all-reduce after the experts all the same (Qwen2-MoE, MiniMax-M2) mix up their tokens."""
    utils = standing.module("sglang.srt.layers.moe.utils")
    monkeypatch.setattr(utils, "is_dp_attention_enabled", lambda: True)
    monkeypatch.setattr(utils, "get_moe_expert_parallel_world_size", lambda: 8)
    monkeypatch.setattr(utils, "get_attention_dp_size", lambda: 8)
    asked = {"quantization": "modelopt_fp4", "ep_size": 8, "dp_size": 8, "enable_dp_attention": True}
    found = {}
    for runner in ("auto", "flashinfer_cutlass"):
        args = accepted(resolve(card, models.QWEN3_MOE, QuantForm.GENERIC, **asked, moe_runner_backend=runner))
        utils.initialize_moe_config(args)
        gathers = utils.should_use_flashinfer_cutlass_moe_fp4_allgather()
        found[runner] = (args.moe_runner_backend, args.disable_flashinfer_cutlass_moe_fp4_allgather, gathers)
    assert found == {
        "auto": ("flashinfer_cutlass", True, False),
        "flashinfer_cutlass": ("flashinfer_cutlass", False, True),
    }


@SM12X
@pytest.mark.parametrize("ep", [1, 8])
@pytest.mark.usefixtures("clean_moe_config")
def test_the_chosen_runner_gets_the_local_experts_in_the_layout_it_needs(
    standing: rig.Standing, resolve: Resolve, card: rig.Card, ep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = accepted(resolve(card, models.GLM_5, QuantForm.GENERIC, quantization="modelopt_fp4", ep_size=ep))
    failure = None
    with rig.present(card):
        try:
            method, calls = run_moe(standing, args, ep, monkeypatch)
            layout = method.load_up_proj_weight_first
        except (AssertionError, RuntimeError) as error:
            failure = f"{args.moe_runner_backend!r} fails before any kernel: {error}"
    assert failure is None
    assert [call["ep_size"] for call in calls] == [ep]
    assert calls[0]["fc1_expert_weights"].shape[0] == EXPERTS // ep
    assert layout, "FlashInfer's CUTLASS MoE reads [up, gate]; the weights would be loaded as [gate, up]"
