"""dsa-backend-defaults: on SM12x a DSA model runs as dense MLA on FlashInfer, in bf16, unless told otherwise.

Everything here runs upstream's own argument resolution on presented cards, and asks its own backend and KV pool what
such arguments mean.
"""

from __future__ import annotations

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
SM12X = pytest.mark.parametrize("card", [cards.RTX_PRO_6000_SERVER, cards.DGX_SPARK], ids=["12.0", "12.1"])
DSA = pytest.mark.parametrize("model", [models.GLM_5, DEEPSEEK_V3_2], ids=lambda model: model.name)
TILELANG = {"nsa_prefill_backend": "tilelang", "nsa_decode_backend": "tilelang"}
# What names nsa in some way, so that kernels would be needed which SM12x does not have.
IMPOSSIBLE: tuple[dict[str, Any], ...] = (
    {"attention_backend": "nsa"},
    {"attention_backend": "nsa", "kv_cache_dtype": "fp8_e4m3"},
    {"attention_backend": "flashinfer", "decode_attention_backend": "nsa"},
    {"prefill_attention_backend": "nsa"},
    {"nsa_prefill_backend": "tilelang"},
    {"nsa_decode_backend": "trtllm", "kv_cache_dtype": "bfloat16"},
    {"nsa_prefill_backend": "flashmla_sparse", "nsa_decode_backend": "flashmla_kv"},
    {"nsa_prefill_backend": "fa3", "nsa_decode_backend": "fa3"},
    {"speculative_algorithm": "EAGLE", "speculative_draft_attention_backend": "nsa"},
    {"enable_nsa_prefill_context_parallel": True},
)
# FlashInfer decodes these with XQA on SM12x, which takes an FP8 cache only.
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
    nsa: tuple[str | None, str | None]


DENSE = Attention("flashinfer", "flashinfer", "bfloat16", 64, (None, None))


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
    prefill, decode = args.get_attention_backends()
    nsa = args.nsa_prefill_backend, args.nsa_decode_backend
    return Attention(prefill, decode, args.kv_cache_dtype, args.page_size, nsa)


def told(outcome: rig.Resolution) -> int:
    """How often the user was told that attention is dense."""
    return sum("dense MLA" in text for text in outcome.warnings)


@SM12X
@DSA
def test_a_dsa_model_gets_flashinfer_and_bf16_and_the_user_is_told_once(
    resolve: Resolve, card: rig.Card, model: models.Model
) -> None:
    outcome = resolve(card, model)
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
    assert attention(resolve(card, **asked)) == DENSE


@SM12X
def test_an_fp8_cache_that_the_user_asked_for_is_kept(resolve: Resolve, card: rig.Card) -> None:
    assert attention(resolve(card, kv_cache_dtype="fp8_e4m3")) == DENSE._replace(kv="fp8_e4m3")


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
@DSA
@pytest.mark.parametrize("named", [{}, {"attention_backend": "flashinfer"}], ids=["unnamed", "named"])
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
    assert attention(resolve(card, **asked)) == DENSE


@SM12X
@pytest.mark.parametrize("asked", TREES, ids=lambda asked: asked["speculative_algorithm"])
def test_a_tree_of_a_model_without_dsa_stays_as_upstream_resolves_it(
    resolve: Resolve, card: rig.Card, asked: dict[str, Any]
) -> None:
    assert resolve(card, models.DEEPSEEK_V3, attention_backend="flashinfer", **asked).refusal is None


@SM12X
@DSA
@pytest.mark.parametrize("asked", IMPOSSIBLE, ids=str)
def test_nsa_on_kernels_that_are_not_there_is_refused(
    resolve: Resolve, card: rig.Card, model: models.Model, asked: dict[str, Any]
) -> None:
    refusal = resolve(card, model, **asked).refusal
    assert isinstance(refusal, ValueError), f"{asked} is accepted, or fails otherwise: {refusal!r}"
    assert "NSA backends" in str(refusal)
    assert "not supported on SM12x" in str(refusal)


@SM12X
@pytest.mark.parametrize(
    ("kv", "kept"), [("auto", "bfloat16"), ("bfloat16", "bfloat16"), ("fp8_e4m3", "fp8_e4m3")], ids=str
)
def test_nsa_on_kernels_that_are_compiled_where_they_run_is_kept(
    resolve: Resolve, card: rig.Card, kv: str, kept: str
) -> None:
    outcome = resolve(card, kv_cache_dtype=kv, **TILELANG)
    assert attention(outcome) == Attention("nsa", "nsa", kept, 64, ("tilelang", "tilelang"))
    assert told(outcome) == 0


@SM12X
def test_nsa_kernels_named_beside_another_backend_decide_nothing(resolve: Resolve, card: rig.Card) -> None:
    named = {"nsa_prefill_backend": "flashmla_auto", "nsa_decode_backend": "flashmla_kv"}
    outcome = resolve(card, attention_backend="flashinfer", **named)
    assert attention(outcome) == DENSE._replace(nsa=("flashmla_auto", "flashmla_kv"))


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
    mixin = standing.module("sglang.srt.model_executor.model_runner_kv_cache_mixin").ModelRunnerKVCacheMixin
    args = resolve(card).args
    with rig.present(card):
        config = args.get_model_config()
    dtype = {"bfloat16": torch.bfloat16, "fp8_e4m3": torch.float8_e4m3fn}[args.kv_cache_dtype]
    runner = SimpleNamespace(model_config=config, server_args=args, kv_cache_dtype=dtype, is_draft_worker=False)
    pool = memory_pool.NSATokenToKVPool(
        size=args.page_size,
        page_size=args.page_size,
        kv_lora_rank=config.kv_lora_rank,
        dtype=dtype,
        qk_rope_head_dim=config.qk_rope_head_dim,
        layer_num=1,
        device="cpu",
        index_head_dim=config.index_head_dim,
        enable_memory_saver=False,
        kv_cache_dim=mixin.calculate_mla_kv_cache_dim(runner),
    )
    assert (pool.get_key_buffer(0).shape[-1], pool.get_key_buffer(0).dtype) == (576, torch.bfloat16)


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        (cards.H200, Attention("nsa", "nsa", "bfloat16", 64, ("flashmla_sparse", "fa3"))),
        (cards.B200, Attention("nsa", "nsa", "fp8_e4m3", 64, ("flashmla_auto", "flashmla_kv"))),
    ],
    ids=["9.0", "10.0"],
)
@DSA
def test_other_capabilities_resolve_exactly_as_upstream(
    resolve: Resolve, card: rig.Card, expected: Attention, model: models.Model
) -> None:
    fp8 = ("flashmla_auto", "flashmla_kv")
    bf16 = ("flashmla_sparse", "fa3" if card is cards.H200 else "trtllm")
    answers = {
        "nothing": attention(resolve(card, model)),
        "fp8": attention(resolve(card, model, kv_cache_dtype="fp8_e4m3")),
        "bf16": attention(resolve(card, model, kv_cache_dtype="bfloat16")),
        "flashinfer": attention(resolve(card, model, attention_backend="flashinfer")),
    }
    assert answers == {
        "nothing": expected,
        "fp8": expected._replace(kv="fp8_e4m3", nsa=fp8),
        "bf16": expected._replace(kv="bfloat16", nsa=bf16),
        "flashinfer": expected._replace(prefill="flashinfer", decode="flashinfer"),
    }
    assert told(resolve(card, model)) == 0


@pytest.mark.parametrize("card", [cards.H200, cards.B200], ids=["9.0", "10.0"])
@pytest.mark.parametrize(
    "asked", [*IMPOSSIBLE, *({**tree, "attention_backend": "flashinfer"} for tree in TREES)], ids=str
)
def test_other_capabilities_accept_what_they_accepted(resolve: Resolve, card: rig.Card, asked: dict[str, Any]) -> None:
    assert resolve(card, **asked).refusal is None


@pytest.mark.parametrize("asked", XQA, ids=str)
def test_an_sm100_keeps_its_cache_for_trtllm_mla(resolve: Resolve, asked: dict[str, str]) -> None:
    assert attention(resolve(cards.B200, **asked)).kv == "fp8_e4m3"


@SM12X
def test_a_server_that_does_not_use_the_card_stays_as_upstream_resolves_it(resolve: Resolve, card: rig.Card) -> None:
    outcome = resolve(card, device="cpu")
    assert (attention(outcome).kv, told(outcome)) == ("fp8_e4m3", 0)
