"""dsa-backend-defaults: on SM12x a DSA model runs as dense MLA on FlashInfer, in bf16, unless told otherwise.

Everything here runs upstream's own argument resolution on presented cards, and asks its own backend and KV pool what
such arguments mean. From 0.5.23 on upstream has sparse kernels for GLM with an FP8 cache there, which are kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from sm120_overlay.serving import rig
from sm120_overlay.serving.rig import cards, models

DEEPSEEK_V3_2 = models.Model(
    "DeepSeek-V3.2",
    {**models.DEEPSEEK_V3.config, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64},
)
# The release that is judged: they differ in what a DSA model may run on, and in the names of it.
LINE = next(Path(os.environ["SM120_OVERLAY_TREE"]).glob("sglang-*.dist-info")).name.split("-")[1].removesuffix(".dist")
OWN = "nsa" if LINE == "0.5.9" else "dsa"
"""The attention backend that attends to the indexer's top-k."""
SPARSE_GLM = LINE not in ("0.5.9", "0.5.16")
"""Whether GLM has such kernels on SM12x: flashinfer_sparse_mla, for an FP8 cache."""

SM12X = pytest.mark.parametrize("card", [cards.RTX_PRO_6000_SERVER, cards.DGX_SPARK], ids=["12.0", "12.1"])
DSA = pytest.mark.parametrize("model", [models.GLM_5, DEEPSEEK_V3_2], ids=lambda model: model.name)
# Those whose default is dense.
DENSE_MODELS = [DEEPSEEK_V3_2] if SPARSE_GLM else [models.GLM_5, DEEPSEEK_V3_2]
DENSE_BY_DEFAULT = pytest.mark.parametrize("model", DENSE_MODELS, ids=lambda model: model.name)
CP: dict[str, Any] = (
    {"enable_nsa_prefill_context_parallel": True}
    if LINE == "0.5.9"
    else {"enable_prefill_cp": True, "cp_strategy": "interleave"}
)


def kernels(prefill: str | None = None, decode: str | None = None) -> dict[str, str]:
    """The options that name kernels of that backend, by phase."""
    named = {f"{OWN}_prefill_backend": prefill, f"{OWN}_decode_backend": decode}
    return {option: name for option, name in named.items() if name}


TILELANG = kernels("tilelang", "tilelang")
# What names that backend in some way, so that kernels would be needed which SM12x has for no model.
IMPOSSIBLE: tuple[dict[str, Any], ...] = (
    {"attention_backend": OWN, "kv_cache_dtype": "bfloat16"},
    {"attention_backend": "nsa", "kv_cache_dtype": "bfloat16"},
    {"attention_backend": "flashinfer", "decode_attention_backend": OWN},
    {"prefill_attention_backend": OWN},
    {**kernels("tilelang"), "kv_cache_dtype": "bfloat16"},
    {**kernels(decode="trtllm"), "kv_cache_dtype": "bfloat16"},
    kernels("flashmla_sparse", "flashmla_kv"),
    kernels("fa3", "fa3"),
)
# The same, but for models that have flashinfer_sparse_mla.
IMPOSSIBLE_BUT_FOR_SPARSE: tuple[dict[str, Any], ...] = (
    {"attention_backend": OWN},
    {"attention_backend": OWN, "kv_cache_dtype": "fp8_e4m3"},
    {"speculative_algorithm": "EAGLE", "speculative_draft_attention_backend": OWN},
    CP,
    *([] if LINE == "0.5.9" else [{"enable_hisparse": True, "disable_radix_cache": True}]),
    *([{"dcp_size": 2}] if SPARSE_GLM else []),
)
# FlashInfer decodes these with XQA on SM12x. An FP8 cache is upstream's default, and the only one that it lets pass.
XQA: tuple[dict[str, str], ...] = (
    {"prefill_attention_backend": "flashinfer", "decode_attention_backend": "trtllm_mla"},
    {"prefill_attention_backend": "flashinfer", "attention_backend": "trtllm_mla"},
)
# More than one draft branch: a tree, whose mask FlashInfer MLA does not have.
TREES: tuple[dict[str, Any], ...] = (
    {
        "speculative_algorithm": "EAGLE",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 2,
        "speculative_num_draft_tokens": 4,
    },
    {"speculative_algorithm": "NGRAM"},
)

Resolve = Callable[..., rig.Resolution]


class Attention(NamedTuple):
    """What decides how a DSA model attends, and what its KV cache is."""

    prefill: str | None
    decode: str | None
    kv: str
    page: int
    kernels: tuple[str | None, str | None]
    """Of the sparse backend, by phase; later releases fill these in where it is not in use, too: not told then."""


DENSE = Attention("flashinfer", "flashinfer", "bfloat16", 64, (None, None))
SPARSE = Attention(OWN, OWN, "fp8_e4m3", 64, ("flashinfer_sparse_mla", "flashinfer_sparse_mla"))


@pytest.fixture
def resolve(standing: rig.Standing, tmp_path: Path) -> Resolve:
    """Upstream's outcome at TP8, on a card."""

    def ask(card: rig.Card, model: models.Model = models.GLM_5, **asked: Any) -> rig.Resolution:
        with rig.present(card):
            return rig.resolve(standing, models.checkpoint(tmp_path / model.name, model), tp_size=8, **asked)

    return ask


def attention(outcome: rig.Resolution) -> Attention:
    assert outcome.refusal is None, f"upstream refuses {outcome.asked}: {outcome.refusal}"
    args = outcome.args
    prefill, decode = outcome.attention_backends
    if LINE == "0.5.9" or OWN in (prefill, decode):
        chosen = getattr(args, f"{OWN}_prefill_backend"), getattr(args, f"{OWN}_decode_backend")
    else:
        chosen = None, None
    return Attention(prefill, decode, args.kv_cache_dtype, args.page_size, chosen)


def told(outcome: rig.Resolution) -> int:
    """How often the user was told that attention is dense."""
    return sum("dense MLA" in text for text in outcome.warnings)


@SM12X
@DENSE_BY_DEFAULT
def test_a_dsa_model_gets_flashinfer_and_bf16_and_the_user_is_told_once(
    resolve: Resolve, card: rig.Card, model: models.Model
) -> None:
    outcome = resolve(card, model)
    assert (attention(outcome), told(outcome)) == (DENSE, 1)


@SM12X
@DSA
def test_a_bf16_cache_that_the_user_asked_for_is_attended_densely(
    resolve: Resolve, card: rig.Card, model: models.Model
) -> None:
    outcome = resolve(card, model, kv_cache_dtype="bfloat16")
    assert (attention(outcome), told(outcome)) == (DENSE, 1)


@SM12X
@pytest.mark.parametrize(
    "asked",
    [
        {"speculative_algorithm": "EAGLE"},
        {"dp_size": 8, "enable_dp_attention": True},
        {"disaggregation_mode": "decode"},
        {"kv_cache_dtype": "bf16"},
        {"page_size": 1},
    ],
    ids=str,
)
def test_it_does_so_under_other_options(resolve: Resolve, card: rig.Card, asked: dict[str, Any]) -> None:
    assert attention(resolve(card, DENSE_MODELS[0], **asked)) == DENSE


@SM12X
def test_an_fp8_cache_that_the_user_asked_for_is_kept(resolve: Resolve, card: rig.Card) -> None:
    assert attention(resolve(card, DENSE_MODELS[0], kv_cache_dtype="fp8_e4m3")) == DENSE._replace(kv="fp8_e4m3")


@SM12X
@DSA
@pytest.mark.parametrize(
    ("asked", "prefill", "decode"),
    [
        ({"attention_backend": "flashinfer"}, "flashinfer", "flashinfer"),
        ({"attention_backend": "triton"}, "triton", "triton"),
        ({"prefill_attention_backend": "flashinfer", "decode_attention_backend": "triton"}, "flashinfer", "triton"),
    ],
    ids=str,
)
def test_a_backend_that_the_user_named_is_kept_with_bf16(
    *, resolve: Resolve, card: rig.Card, model: models.Model, asked: dict[str, str], prefill: str, decode: str
) -> None:
    assert attention(resolve(card, model, **asked)) == DENSE._replace(prefill=prefill, decode=decode)


@SM12X
@DSA
@pytest.mark.parametrize("asked", XQA, ids=str)
def test_decode_on_trtllm_mla_keeps_upstreams_fp8(
    resolve: Resolve, card: rig.Card, model: models.Model, asked: dict[str, str]
) -> None:
    assert attention(resolve(card, model, **asked)) == Attention(
        "flashinfer", "trtllm_mla", "fp8_e4m3", 64, (None, None)
    )


@SM12X
@pytest.mark.parametrize(
    ("model", "named"),
    [
        *((model, {}) for model in DENSE_MODELS),
        *((model, {"attention_backend": "flashinfer"}) for model in (models.GLM_5, DEEPSEEK_V3_2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("asked", TREES, ids=lambda asked: asked["speculative_algorithm"])
def test_a_draft_of_several_branches_is_refused_with_its_reason(
    *, resolve: Resolve, card: rig.Card, model: models.Model, named: dict[str, str], asked: dict[str, Any]
) -> None:
    refusal = resolve(card, model, **named, **asked).refusal
    assert isinstance(refusal, ValueError), f"{asked} is accepted, or fails otherwise: {refusal!r}"
    assert "flashinfer backend only supports topk = 1" in str(refusal)


@SM12X
@pytest.mark.parametrize(
    "asked",
    [{"speculative_algorithm": "NGRAM", "speculative_ngram_max_bfs_breadth": 1}, {"speculative_eagle_topk": 2}],
    ids=["NGRAM", "no draft"],
)
def test_one_branch_and_no_draft_are_not_refused(resolve: Resolve, card: rig.Card, asked: dict[str, Any]) -> None:
    assert attention(resolve(card, DENSE_MODELS[0], **asked)) == DENSE


@SM12X
@pytest.mark.parametrize("asked", TREES, ids=lambda asked: asked["speculative_algorithm"])
def test_a_tree_of_a_model_without_dsa_stays_as_upstream_resolves_it(
    resolve: Resolve, card: rig.Card, asked: dict[str, Any]
) -> None:
    assert resolve(card, models.DEEPSEEK_V3, attention_backend="flashinfer", **asked).refusal is None


@SM12X
@pytest.mark.parametrize(
    ("model", "asked"),
    [
        *((model, asked) for model in (models.GLM_5, DEEPSEEK_V3_2) for asked in IMPOSSIBLE),
        *((model, asked) for model in DENSE_MODELS for asked in IMPOSSIBLE_BUT_FOR_SPARSE),
    ],
    ids=str,
)
def test_kernels_that_are_not_there_are_refused(
    resolve: Resolve, card: rig.Card, model: models.Model, asked: dict[str, Any]
) -> None:
    refusal = resolve(card, model, **asked).refusal
    assert isinstance(refusal, ValueError), f"{asked} is accepted, or fails otherwise: {refusal!r}"
    assert f"{OWN.upper()} backends" in str(refusal)
    assert "not supported on SM12x" in str(refusal)


@SM12X
@pytest.mark.parametrize(
    ("kv", "kept"), [("auto", "bfloat16"), ("bfloat16", "bfloat16"), ("fp8_e4m3", "fp8_e4m3")], ids=str
)
def test_kernels_that_are_compiled_where_they_run_are_kept(
    resolve: Resolve, card: rig.Card, kv: str, kept: str
) -> None:
    outcome = resolve(card, DENSE_MODELS[0], kv_cache_dtype=kv, **TILELANG)
    assert attention(outcome) == Attention(OWN, OWN, kept, 64, ("tilelang", "tilelang"))
    assert told(outcome) == 0


@SM12X
def test_kernels_named_beside_another_backend_decide_nothing(resolve: Resolve, card: rig.Card) -> None:
    outcome = resolve(card, attention_backend="flashinfer", **kernels("flashmla_auto", "flashmla_kv"))
    named = ("flashmla_auto", "flashmla_kv") if LINE == "0.5.9" else (None, None)
    assert attention(outcome) == DENSE._replace(kernels=named)


if SPARSE_GLM:

    @SM12X
    @pytest.mark.parametrize(
        ("asked", "kept"),
        [
            ({}, SPARSE),
            ({"kv_cache_dtype": "fp8_e4m3"}, SPARSE),
            ({"attention_backend": OWN}, SPARSE),
            ({"speculative_algorithm": "EAGLE"}, SPARSE),
            (kernels("triton_sparse_mla"), SPARSE._replace(kernels=("triton_sparse_mla", "flashinfer_sparse_mla"))),
        ],
        ids=str,
    )
    def test_glm_keeps_the_kernels_that_upstream_has_for_it(
        resolve: Resolve, card: rig.Card, asked: dict[str, str], kept: Attention
    ) -> None:
        outcome = resolve(card, **asked)
        assert (attention(outcome), told(outcome)) == (kept, 0)
        assert outcome.args.cuda_graph_config.prefill.backend == "breakable"

    @SM12X
    def test_glm_on_kernels_that_cannot_read_its_fp8_cache_is_refused(resolve: Resolve, card: rig.Card) -> None:
        for named in (TILELANG, kernels(decode="trtllm"), kernels("flashmla_kv", "flashmla_kv")):
            refusal = resolve(card, kv_cache_dtype="fp8_e4m3", **named).refusal
            assert isinstance(refusal, ValueError), f"{named} is accepted, or fails otherwise: {refusal!r}"
            assert "or flashinfer_sparse_mla for both" in str(refusal)

    @SM12X
    @DSA
    def test_upstreams_other_sparse_prefill_goes_with_its_sparse_decode_alone(
        resolve: Resolve, card: rig.Card, model: models.Model
    ) -> None:
        refusal = resolve(card, model, kv_cache_dtype="bfloat16", **kernels("triton_sparse_mla", "tilelang")).refusal
        assert isinstance(refusal, ValueError), f"it is accepted, or fails otherwise: {refusal!r}"
        assert "not supported on SM12x" in str(refusal)

    @SM12X
    def test_other_architectures_with_dsa_are_refused_rather_than_attended_densely(
        resolve: Resolve, card: rig.Card
    ) -> None:
        other = models.Model("other", {**DEEPSEEK_V3_2.config, "architectures": ["LongcatFlashForCausalLM"]})
        refusal = resolve(card, other).refusal
        assert isinstance(refusal, ValueError), f"it is accepted, or fails otherwise: {refusal!r}"
        assert "not supported on SM12x. Please use tilelang for both" in str(refusal)

    @SM12X
    @DSA
    def test_a_dense_prefill_is_not_captured(resolve: Resolve, card: rig.Card, model: models.Model) -> None:
        """The indexer runs inside of a captured prefill, and asks for metadata that FlashInfer's backend has not."""
        not_captured(resolve, card, model, attention_backend="flashinfer")

    def not_captured(resolve: Resolve, card: rig.Card, model: models.Model, **named: Any) -> None:
        assert resolve(card, model, **named).args.cuda_graph_config.prefill.backend == "disabled"
        refusal = resolve(card, model, **named, cuda_graph_backend_prefill="breakable").refusal
        assert isinstance(refusal, ValueError), f"a captured prefill is accepted, or fails otherwise: {refusal!r}"
        assert "--cuda-graph-backend-prefill disabled" in str(refusal)

    @SM12X
    @pytest.mark.parametrize("algorithm", ["EAGLE", "NEXTN"])
    def test_the_prefill_of_a_dense_draft_is_not_captured(resolve: Resolve, card: rig.Card, algorithm: str) -> None:
        """EAGLE's worker captures it by the setting of the target, which attends on sparse kernels here."""
        draft = {"speculative_algorithm": algorithm, "speculative_draft_attention_backend": "flashinfer"}
        assert attention(resolve(card, **draft)) == SPARSE
        not_captured(resolve, card, models.GLM_5, **draft)

    @SM12X
    @pytest.mark.parametrize(
        "asked",
        [
            {"speculative_algorithm": "EAGLE"},
            {
                "speculative_algorithm": "NGRAM",
                "speculative_ngram_max_bfs_breadth": 1,
                "speculative_draft_attention_backend": "flashinfer",
            },
            {"speculative_draft_attention_backend": "flashinfer"},
        ],
        ids=["EAGLE", "NGRAM", "no draft"],
    )
    def test_a_prefill_on_sparse_kernels_is_still_captured(
        resolve: Resolve, card: rig.Card, asked: dict[str, Any]
    ) -> None:
        """With a draft on the same backend, and where no draft is captured."""
        outcome = resolve(card, **asked)
        assert attention(outcome) == SPARSE
        assert outcome.args.cuda_graph_config.prefill.backend == "breakable"

    @pytest.mark.parametrize("card", [cards.H200, cards.B200], ids=["9.0", "10.0"])
    def test_other_capabilities_capture_with_a_dense_draft_as_upstream_does(resolve: Resolve, card: rig.Card) -> None:
        draft = {"speculative_algorithm": "EAGLE", "speculative_draft_attention_backend": "flashinfer"}
        assert resolve(card, **draft).args.cuda_graph_config.prefill.backend == "breakable"


@SM12X
def test_a_model_without_dsa_stays_as_upstream_resolves_it(resolve: Resolve, card: rig.Card) -> None:
    outcome = resolve(card, models.DEEPSEEK_V3)
    assert attention(outcome) == Attention("triton", "triton", "auto", 1, (None, None))


def test_flashinfer_attends_to_all_tokens(standing: rig.Standing) -> None:
    """Without metadata for the indexer, upstream's indexer selects nothing, and attention is over the whole cache."""
    backend = standing.module("sglang.srt.layers.attention.flashinfer_mla_backend").FlashInferMLAAttnBackend
    assert backend.get_indexer_metadata(SimpleNamespace(), 0, SimpleNamespace()) is None


@SM12X
def test_the_defaults_fit_upstreams_own_pool(standing: rig.Standing, resolve: Resolve, card: rig.Card) -> None:
    memory_pool = standing.module("sglang.srt.mem_cache.memory_pool")
    outcome = resolve(card, DENSE_MODELS[0])
    args = outcome.args
    with rig.present(card):
        config = outcome.model_config
    dtype = {"bfloat16": torch.bfloat16, "fp8_e4m3": torch.float8_e4m3fn}[args.kv_cache_dtype]
    later = {"index_buf_size": args.page_size}
    width = config.kv_lora_rank + config.qk_rope_head_dim
    if LINE == "0.5.9":
        mixin = standing.module("sglang.srt.model_executor.model_runner_kv_cache_mixin").ModelRunnerKVCacheMixin
        runner = SimpleNamespace(model_config=config, server_args=args, kv_cache_dtype=dtype, is_draft_worker=False)
        later, width = {}, mixin.calculate_mla_kv_cache_dim(runner)
    pool = getattr(memory_pool, f"{OWN.upper()}TokenToKVPool")(
        size=args.page_size,
        page_size=args.page_size,
        kv_lora_rank=config.kv_lora_rank,
        dtype=dtype,
        qk_rope_head_dim=config.qk_rope_head_dim,
        layer_num=1,
        device="cpu",
        index_head_dim=config.index_head_dim,
        enable_memory_saver=False,
        kv_cache_dim=width,
        **later,
    )
    assert (pool.get_key_buffer(0).shape[-1], pool.get_key_buffer(0).dtype) == (576, torch.bfloat16)


# What upstream chooses elsewhere: its FP8 kernels, and whether FP8 is the default.
FLASHMLA, TRTLLM = ("flashmla_auto", "flashmla_kv"), ("trtllm", "trtllm")
FP8_ON = {
    cards.H200: FLASHMLA if LINE == "0.5.9" else ("flashmla_kv", "flashmla_kv"),
    cards.B200: FLASHMLA if LINE == "0.5.9" else TRTLLM,
}


@pytest.mark.parametrize("card", [cards.H200, cards.B200], ids=["9.0", "10.0"])
@DSA
def test_other_capabilities_resolve_exactly_as_upstream(resolve: Resolve, card: rig.Card, model: models.Model) -> None:
    fp8 = Attention(OWN, OWN, "fp8_e4m3", 64, FP8_ON[card])
    bf16 = Attention(OWN, OWN, "bfloat16", 64, ("flashmla_sparse", "fa3" if card is cards.H200 else "trtllm"))
    default = bf16 if card is cards.H200 else fp8
    flashinfer = default._replace(prefill="flashinfer", decode="flashinfer")
    answers = {
        "nothing": attention(resolve(card, model)),
        "fp8": attention(resolve(card, model, kv_cache_dtype="fp8_e4m3")),
        "bf16": attention(resolve(card, model, kv_cache_dtype="bfloat16")),
        "flashinfer": attention(resolve(card, model, attention_backend="flashinfer")),
    }
    if LINE != "0.5.9":
        flashinfer = flashinfer._replace(kernels=(None, None))
    assert answers == {"nothing": default, "fp8": fp8, "bf16": bf16, "flashinfer": flashinfer}
    assert told(resolve(card, model)) == 0
    if SPARSE_GLM:
        captured = resolve(card, model, attention_backend="flashinfer").args.cuda_graph_config.prefill.backend
        assert captured == "breakable"


@pytest.mark.parametrize("card", [cards.H200, cards.B200], ids=["9.0", "10.0"])
@pytest.mark.parametrize(
    "asked",
    [*IMPOSSIBLE, *IMPOSSIBLE_BUT_FOR_SPARSE, *({**tree, "attention_backend": "flashinfer"} for tree in TREES)],
    ids=str,
)
def test_other_capabilities_accept_what_they_accepted(resolve: Resolve, card: rig.Card, asked: dict[str, Any]) -> None:
    assert resolve(card, **asked).refusal is None


@pytest.mark.parametrize("asked", XQA, ids=str)
def test_an_sm100_keeps_its_cache_for_trtllm_mla(resolve: Resolve, asked: dict[str, str]) -> None:
    assert attention(resolve(cards.B200, **asked)).kv == "fp8_e4m3"


@SM12X
@DSA
def test_a_server_that_does_not_use_the_card_stays_as_upstream_resolves_it(
    resolve: Resolve, card: rig.Card, model: models.Model
) -> None:
    outcome = resolve(card, model, device="cpu")
    assert (attention(outcome).kv, told(outcome)) == ("fp8_e4m3", 0)
