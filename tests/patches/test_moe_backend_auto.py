"""moe-backend-auto: on SM12x, an NVFP4 MoE checkpoint runs on FlashInfer's CUTLASS MoE unless the user names another.

Everything here runs upstream's own argument resolution, and its own quantization and MoE classes, on presented cards.
SGLang 0.5.9 leaves the runner "auto" on SM12x always. Later releases choose FlashInfer's CUTLASS there for an explicit
modelopt_fp4, whatever the model and the device, and a speculative draft inherits the runner: that is theirs.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sm120_overlay.serving import rig
from sm120_overlay.serving.rig import cards, models
from sm120_overlay.serving.rig.models import QuantForm

FIRST = next(iter(metadata.distributions(name="sglang", path=[os.environ["SM120_OVERLAY_TREE"]]))).version == "0.5.9"
# 0.5.9's MTP layers are kept off the runner; later they inherit it.
CUTLASS = ("modelopt_fp4", "flashinfer_cutlass", "auto" if FIRST else "flashinfer_cutlass")
# Flags for an NVFP4 checkpoint with which the runner is this patch's to choose, on any card and device.
NVFP4: dict[str, str] = {"quantization": "modelopt_fp4"} if FIRST else {}
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
# What the experts of a mixed checkpoint's MoE layers may be, with weight-only ones among them.
WEIGHT_ONLY = (("W4A16_NVFP4",), ("NVFP4", "W4A16_NVFP4"))
FLAGS: tuple[dict[str, str], ...] = ({}, {"quantization": "modelopt"}, {"quantization": "modelopt_fp4"})

FP4_TRTLLM = ("modelopt_fp4", "flashinfer_trtllm")
FP4_AUTO = ("modelopt_fp4", "auto")
BF16_TRTLLM = (None, "flashinfer_trtllm")

Resolve = Callable[..., rig.Resolution]
Choice = tuple[str | None, str, str]


@pytest.fixture
def resolve(standing: rig.Standing, tmp_path: Path) -> Resolve:
    """Upstream's outcome at TP8 for a checkpoint, on a card."""

    def ask(card: rig.Card, model: models.Model, form: QuantForm, algo: str = "NVFP4", **asked: Any) -> rig.Resolution:
        folder = models.checkpoint(tmp_path / f"{model.name}-{form.name}-{algo}", model, form, algo)
        with rig.present(card):
            return rig.resolve(standing, folder, tp_size=8, **asked)

    return ask


def mixed(folder: Path, model: models.Model, form: QuantForm, experts: tuple[str, ...]) -> Path:
    """A mixed-precision checkpoint: attention in FP8, shared experts in NVFP4, each MoE layer's experts as is said."""
    models.checkpoint(folder, model, form, "MIXED_PRECISION")
    file, key = {
        QuantForm.GENERIC: ("config.json", "quantization_config"),
        QuantForm.SIDE_FILE: ("hf_quant_config.json", "quantization"),
    }[form]
    written = json.loads((folder / file).read_text())
    written[key]["quantized_layers"] = {
        "model.layers.3.self_attn.o_proj": {"quant_algo": "FP8"},
        **{
            f"model.layers.{layer}.mlp.experts.0.up_proj": {"quant_algo": algo, "group_size": models.GROUP_SIZE}
            for layer, algo in enumerate(experts, 3)
        },
        "model.layers.3.mlp.shared_experts.up_proj": {"quant_algo": "NVFP4", "group_size": models.GROUP_SIZE},
    }
    (folder / file).write_text(json.dumps(written))
    return folder


def accepted(outcome: rig.Resolution) -> Any:
    assert outcome.refusal is None, f"upstream refuses {outcome.asked}: {outcome.refusal}"
    return outcome.args


def choice(outcome: rig.Resolution) -> Choice:
    """What the server would run: quantization, MoE runner, the draft's MoE runner."""
    args = accepted(outcome)
    return args.quantization, args.moe_runner_backend, args.speculative_moe_runner_backend


@SM12X
@pytest.mark.parametrize("form", NVFP4_FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("model", MOE_MODELS, ids=lambda model: model.name)
def test_nvfp4_moe_gets_flashinfer_cutlass_with_and_without_ep(
    resolve: Resolve, card: rig.Card, model: models.Model, form: QuantForm
) -> None:
    asked = [{**flag, "ep_size": ep} for flag, ep in ((FLAGS[0], 1), (FLAGS[0], 8), (FLAGS[1], 8), (FLAGS[2], 1))]
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
        (models.QWEN3_DENSE, QuantForm.GENERIC, "NVFP4", {}),
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
@pytest.mark.parametrize("model", [models.QWEN3_DENSE, models.LLAMA_4], ids=lambda model: model.name)
def test_an_explicit_quantization_of_another_model_is_left_to_upstream(
    resolve: Resolve, card: rig.Card, model: models.Model
) -> None:
    """Later releases look at the name of the quantization alone."""
    outcome = resolve(card, model, QuantForm.GENERIC, quantization="modelopt_fp4")
    assert choice(outcome) == (("modelopt_fp4", "auto", "auto") if FIRST else CUTLASS)


@SM12X
@pytest.mark.parametrize(
    ("form", "experts", "is_cutlass"),
    [
        (QuantForm.GENERIC, ("NVFP4",), True),
        (QuantForm.SIDE_FILE, ("NVFP4",), True),
        (QuantForm.GENERIC, ("FP8",), False),
        (QuantForm.SIDE_FILE, ("FP8",), False),
        *((form, experts, False) for form in (QuantForm.GENERIC, QuantForm.SIDE_FILE) for experts in WEIGHT_ONLY),
    ],
    ids=str,
)
def test_a_mixed_checkpoint_runs_on_it_if_its_experts_are_nvfp4(
    standing: rig.Standing,
    tmp_path: Path,
    card: rig.Card,
    form: QuantForm,
    experts: tuple[str, ...],
    *,
    is_cutlass: bool,
) -> None:
    """And none is weight-only. 0.5.9 has no loader for mixed precision."""
    folder = mixed(tmp_path / "mixed", models.QWEN3_MOE, form, experts)
    with rig.present(card):
        chosen = choice(rig.resolve(standing, folder, tp_size=8))
        named = None if FIRST else choice(rig.resolve(standing, folder, tp_size=8, quantization="modelopt_mixed"))
    if is_cutlass and not FIRST:
        assert (chosen, named) == (("modelopt_mixed", *CUTLASS[1:]),) * 2
    else:
        assert chosen == (None, "auto", "auto")
        assert named in (None, ("modelopt_mixed", "auto", "auto"))


if not FIRST:  # which knows no weight-only experts, and cannot tell "unquant" from no quantization

    @SM12X
    @pytest.mark.parametrize("form", NVFP4_FORMS, ids=lambda form: form.name)
    def test_weight_only_experts_are_left_to_upstream(resolve: Resolve, card: rig.Card, form: QuantForm) -> None:
        """FlashInfer's CUTLASS would quantize their activations."""
        assert choice(resolve(card, models.QWEN3_MOE, form, "W4A16_NVFP4")) == (None, "auto", "auto")

    @SM12X
    def test_a_user_who_wants_no_quantization_is_left_to_upstream(resolve: Resolve, card: rig.Card) -> None:
        assert choice(resolve(card, models.GLM_5, QuantForm.GENERIC, quantization="unquant")) == (None, "auto", "auto")


@SM12X
def test_a_dense_config_that_counts_one_expert_is_no_moe(resolve: Resolve, card: rig.Card) -> None:
    counted = models.Model("Dense-1", {**models.QWEN3_DENSE.config, "num_experts": 1})
    assert choice(resolve(card, counted, QuantForm.SIDE_FILE)) == (None, "auto", "auto")


@SM12X
def test_a_server_that_does_not_use_the_card_stays_as_upstream_resolves_it(resolve: Resolve, card: rig.Card) -> None:
    outcome = resolve(card, models.GLM_5, QuantForm.GENERIC, **NVFP4, device="cpu")
    assert choice(outcome) == (NVFP4.get("quantization"), "auto", "auto")


@SM12X
@pytest.mark.parametrize("runner", ["cutlass", "triton", "flashinfer_cutedsl"])
def test_a_runner_that_the_user_named_is_kept(resolve: Resolve, card: rig.Card, runner: str) -> None:
    outcome = resolve(card, models.GLM_5, QuantForm.GENERIC, quantization="modelopt_fp4", moe_runner_backend=runner)
    assert choice(outcome) == ("modelopt_fp4", runner, runner)


@SM12X
@pytest.mark.parametrize("a2a", ["deepep", "mooncake"])
def test_an_all_to_all_backend_keeps_its_own_runner(resolve: Resolve, card: rig.Card, a2a: str) -> None:
    outcome = resolve(card, models.GLM_5, QuantForm.GENERIC, **NVFP4, moe_a2a_backend=a2a)
    assert choice(outcome) == (NVFP4.get("quantization"), "auto", "auto")


@SM12X
def test_a_draft_keeps_its_own_runner(resolve: Resolve, card: rig.Card) -> None:
    eagle = {**NVFP4, "speculative_algorithm": "EAGLE"}
    named = {"quantization": "modelopt_fp4", "moe_runner_backend": "flashinfer_cutlass"}
    chosen = {
        "omitted": choice(resolve(card, models.GLM_5, QuantForm.GENERIC, **eagle)),
        "draft named": choice(
            resolve(card, models.GLM_5, QuantForm.GENERIC, **eagle, speculative_moe_runner_backend="triton")
        ),
        "both named": choice(resolve(card, models.GLM_5, QuantForm.GENERIC, **{**eagle, **named})),
    }
    assert chosen == {
        "omitted": CUTLASS,
        "draft named": ("modelopt_fp4", "flashinfer_cutlass", "triton"),
        "both named": ("modelopt_fp4", "flashinfer_cutlass", "flashinfer_cutlass"),
    }


@SM12X
@pytest.mark.parametrize(
    ("asked", "in_first", "later"),
    [
        ({}, "modelopt_fp4", None),
        ({"speculative_draft_model_path": "the model's"}, "modelopt_fp4", None),
        ({"speculative_draft_model_path": "another"}, None, None),
        ({"speculative_draft_model_quantization": "fp8"}, "fp8", "fp8"),
        ({"quantization": "modelopt_fp4", "speculative_draft_model_quantization": "unquant"}, None, None),
        ({"quantization": "modelopt", "speculative_draft_model_quantization": "unquant"}, None, None),
    ],
    ids=str,
)
def test_a_draft_of_the_same_checkpoint_is_quantized_like_it_unless_the_user_says_otherwise(
    *,
    resolve: Resolve,
    tmp_path: Path,
    card: rig.Card,
    asked: dict[str, str],
    in_first: str | None,
    later: str | None,
) -> None:
    """Later releases find out from the checkpoint, if nothing is said of the draft."""
    paths = {
        "the model's": tmp_path / f"{models.GLM_5.name}-GENERIC-NVFP4",
        "another": models.checkpoint(tmp_path / "another", models.GLM_5),
    }
    if path := asked.get("speculative_draft_model_path"):
        asked = {**asked, "speculative_draft_model_path": str(paths[path])}
    outcome = resolve(card, models.GLM_5, QuantForm.GENERIC, speculative_algorithm="EAGLE", **asked)
    draft = in_first if FIRST else later
    assert (choice(outcome), accepted(outcome).speculative_draft_model_quantization) == (CUTLASS, draft)


@pytest.mark.parametrize(
    ("card", "model", "form", "flags", "in_first", "later"),
    [
        (cards.H200, models.GLM_5, QuantForm.GENERIC, {}, (None, "auto", "auto"), (None, "auto")),
        (cards.H200, models.GLM_5, QuantForm.GENERIC, FLAGS[1], ("modelopt", "auto", "auto"), ("modelopt", "auto")),
        (cards.H200, models.QWEN3_MOE, QuantForm.NAMELESS, {}, (None, "auto", "auto"), (None, "auto")),
        (cards.H200, models.QWEN3_MOE, QuantForm.SIDE_FILE, FLAGS[2], ("modelopt_fp4", "auto", "auto"), FP4_AUTO),
        (cards.H100, models.MIXTRAL, QuantForm.NAMELESS, FLAGS[2], ("modelopt_fp4", "auto", "auto"), FP4_AUTO),
        (cards.B200, models.GLM_5, QuantForm.GENERIC, {}, ("modelopt", "auto", "auto"), FP4_TRTLLM),
        (cards.B200, models.GLM_5, QuantForm.GENERIC, FLAGS[1], ("modelopt", "auto", "auto"), ("modelopt", "auto")),
        (cards.B200, models.GLM_5, QuantForm.GENERIC, FLAGS[2], (*FP4_TRTLLM, "auto"), FP4_TRTLLM),
        (cards.B200, models.GLM_5, QuantForm.SIDE_FILE, {}, (None, "auto", "auto"), (None, "flashinfer_trtllm")),
        (cards.B200, models.QWEN3_MOE, QuantForm.NAMELESS, {}, (*FP4_TRTLLM, "auto"), FP4_TRTLLM),
        (cards.B200, models.QWEN3_MOE, QuantForm.SIDE_FILE, {}, (*BF16_TRTLLM, "auto"), BF16_TRTLLM),
        (cards.B200, models.GLM_4_MOE, QuantForm.NAMELESS, {}, (*FP4_TRTLLM, "auto"), FP4_TRTLLM),
        (cards.B200, models.DEEPSEEK_V3, QuantForm.SIDE_FILE, {}, ("fp8", "flashinfer_trtllm", "auto"), BF16_TRTLLM),
        (cards.B200, models.MIXTRAL, QuantForm.SIDE_FILE, FLAGS[2], ("modelopt_fp4", "auto", "auto"), FP4_AUTO),
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
    in_first: Choice,
    later: tuple[str | None, str],
    ep: int,
) -> None:
    """In later releases the draft has the model's runner."""
    expected = in_first if FIRST else (*later, later[1])
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
    layer.moe_runner_config, layer.dispatcher, layer._mega_moe_nvfp4 = runner_config, Dispatcher(), False
    if hasattr(runner_config, "layer"):
        runner_config.layer = layer
    method.create_weights(layer, layer.num_local_experts, HIDDEN, INTERMEDIATE, torch.bfloat16, weight_loader=None)
    for parameter in layer.parameters():
        parameter.data = torch.zeros_like(parameter.data, dtype=torch.float32).to(parameter.dtype)
    method.create_moe_runner(layer, runner_config)
    method.process_weights_after_loading(layer)
    return layer


def replace_kernels(standing: rig.Standing, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Put recorders where FlashInfer's kernel is, nothing where communication is, and tensors on the CPU.

    sgl-kernel's kernel, which only 0.5.9 has, passes its input through. Returns the calls that reach FlashInfer's.
    """
    calls: list[Any] = []

    def kernel(**call: Any) -> tuple[Any]:
        calls.append(call)
        return (call["output"],)

    quant = standing.module("sglang.srt.layers.quantization.modelopt_quant")
    runner = quant
    if FIRST:
        monkeypatch.setattr(quant, "flashinfer_cutlass_fused_moe", kernel)
        monkeypatch.setattr(quant, "should_use_flashinfer_cutlass_moe_fp4_allgather", lambda: False)
        sgl_kernels = standing.module("sglang.srt.layers.moe.cutlass_moe")
        monkeypatch.setattr(sgl_kernels, "cutlass_moe_fp4", lambda **call: call["a"])
    else:
        runner = standing.module("sglang.srt.layers.moe.moe_runner.flashinfer_cutlass")
        monkeypatch.setattr(runner, "_flashinfer_cutlass_fused_moe", lambda: (kernel, None))
        monkeypatch.setattr(runner, "_activation_type", lambda config: config.activation)
    if hasattr(runner, "get_tp_group"):
        monkeypatch.setattr(runner, "get_tp_group", lambda: None)
    monkeypatch.setattr(runner, "is_allocation_symmetric", lambda: False)
    monkeypatch.setattr(runner, "use_symmetric_memory", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    return calls


@contextmanager
def without_groups(standing: rig.Standing) -> Iterator[None]:
    """The layout of processes in which later releases look for a process group: there is none."""
    parallel: Any = None if FIRST else standing.module("sglang.srt.runtime_context").get_parallel()
    with parallel.override(tp_group=None) if hasattr(parallel, "override") else nullcontext():
        yield


def run_moe(
    standing: rig.Standing, outcome: rig.Resolution, ep: int, monkeypatch: pytest.MonkeyPatch, runner: str | None = None
) -> tuple[bool, list[Any]]:
    """One rank's NVFP4 MoE, as the arguments make upstream run it, or on the runner that is said.

    Returns whether upstream loads the up projection before the gate, and the calls that reached FlashInfer.
    """
    quant = standing.module("sglang.srt.layers.quantization.modelopt_quant")
    utils = standing.module("sglang.srt.layers.moe.utils")
    calls = replace_kernels(standing, monkeypatch)
    with rig.published(standing, outcome), without_groups(standing):
        takes = inspect.signature(utils.initialize_moe_config).parameters
        utils.initialize_moe_config(*[outcome.record for _ in takes])
        if runner is not None:
            where, name = (utils, "MOE_RUNNER_BACKEND") if FIRST else (utils.get_flags().moe, "runner_backend")
            setattr(where, name, utils.MoeRunnerBackend(runner))
        config = standing.module("sglang.srt.layers.moe.moe_runner").MoeRunnerConfig(activation="silu", is_gated=True)
        method = quant.ModelOptNvFp4FusedMoEMethod(quant.ModelOptFp4Config(True, None, models.GROUP_SIZE, []))
        method.moe_runner_config = config
        layer = moe_layer(method, config, ep)
        topk = SimpleNamespace(topk_weights=torch.ones(TOKENS, 2), topk_ids=torch.zeros(TOKENS, 2, dtype=torch.int32))
        tokens = torch.zeros(TOKENS, HIDDEN, dtype=torch.bfloat16)
        standard = standing.module("sglang.srt.layers.moe.token_dispatcher.standard").StandardDispatchOutput
        method.apply(layer, standard(hidden_states=tokens, hidden_states_scale=None, topk_output=topk))
        return method.load_up_proj_weight_first, calls


@pytest.fixture
def clean_moe_config(standing: rig.Standing) -> Iterator[None]:
    """0.5.9 keeps the MoE choice in module globals; give the next test a fresh one."""
    utils = standing.module("sglang.srt.layers.moe.utils")
    before = {name: value for name, value in vars(utils).items() if name.isupper()}
    yield
    vars(utils).update(before)


@pytest.mark.usefixtures("clean_moe_config")
def test_upstreams_own_auto_path_cannot_run_nvfp4_experts(
    standing: rig.Standing, resolve: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason for the patch.

    In 0.5.9, EP8 multiplies all experts' scales by one rank's while loading. Later, the layer takes TRTLLM-gen for
    "auto", and its weights are not laid out for that.
    """
    card, ep = cards.RTX_PRO_6000_SERVER, 8 if FIRST else 1
    outcome = resolve(card, models.GLM_5, QuantForm.GENERIC, quantization="modelopt_fp4", ep_size=ep)
    sizes = rf"tensor a \({EXPERTS}\) must match the size of tensor b \({EXPERTS // 8}\)"
    later = r"Unsupported moe_runner_backend for NVFP4 MoE: .*TRTLLM|no attribute 'g1_scale_c'"
    failures = (RuntimeError,) if FIRST else (NotImplementedError, AttributeError)
    with rig.present(card), pytest.raises(failures, match=sizes if FIRST else later):
        run_moe(standing, outcome, ep, monkeypatch, "auto")


@SM12X
@pytest.mark.parametrize("ep", [1, 8])
@pytest.mark.usefixtures("clean_moe_config")
def test_the_chosen_runner_gets_the_local_experts_in_the_layout_it_needs(
    standing: rig.Standing, resolve: Resolve, card: rig.Card, ep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = resolve(card, models.GLM_5, QuantForm.GENERIC, **NVFP4, ep_size=ep)
    failure = None
    with rig.present(card):
        try:
            up_first, calls = run_moe(standing, outcome, ep, monkeypatch)
        except (AssertionError, AttributeError, NotImplementedError, RuntimeError) as error:
            failure = f"{accepted(outcome).moe_runner_backend!r} fails before any kernel: {error}"
    assert failure is None
    assert [call["ep_size"] for call in calls] == [ep]
    assert calls[0]["fc1_expert_weights"].shape[0] == EXPERTS // ep
    assert up_first, "FlashInfer's CUTLASS MoE reads [up, gate]; the weights would be loaded as [gate, up]"


if FIRST:  # later, "auto" has no kernel of sgl-kernel's, and the all-gather is upstream's

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
        """Under it, models that all-reduce after the experts all the same (Qwen2-MoE, MiniMax-M2) mix up tokens."""
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
