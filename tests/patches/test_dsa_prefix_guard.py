"""dsa-prefix-guard: a DSA model's FP8 KV cache lies as its attention backend reads it, and a cached prefix is read so.

Everything here runs upstream's own code on a CPU: its sizing of the KV cache, its KV pool, its attention backend for
FlashInfer MLA (a recorder stands where FlashInfer's kernel would), and the model's reader of a cached prefix.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sm120_overlay.serving import rig
from sm120_overlay.serving.rig import cards, models

LATENT, ROPE, NOPE, VALUE, HEADS = 512, 64, 192, 256, 2
PLAIN, QUANTIZED = LATENT + ROPE, LATENT + LATENT // 128 * 4 + ROPE * 2
FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16
PAGE = 64
SM12X = (cards.RTX_PRO_6000_SERVER, cards.DGX_SPARK)
ALL = pytest.mark.parametrize("card", [*SM12X, cards.H200, cards.B200], ids=["12.0", "12.1", "9.0", "10.0"])
OTHERS = pytest.mark.parametrize("card", [cards.H200, cards.B200], ids=["9.0", "10.0"])
DTYPES = pytest.mark.parametrize("dtype", [FP8, BF16], ids=["fp8", "bf16"])

Size = Callable[..., int]
Pool = Callable[[int, torch.dtype], Any]


@pytest.fixture
def size(standing: rig.Standing, tmp_path: Path) -> Size:
    """The width that upstream gives each token in the KV cache of a model, for arguments that it resolved on a card."""
    mixin = standing.module("sglang.srt.model_executor.model_runner_kv_cache_mixin").ModelRunnerKVCacheMixin

    def ask(card: rig.Card, model: models.Model = models.GLM_5, *, draft: bool = False, **asked: Any) -> int:
        with rig.present(card):
            outcome = rig.resolve(standing, models.checkpoint(tmp_path / model.name, model), tp_size=8, **asked)
            assert outcome.refusal is None, f"upstream refuses {asked}: {outcome.refusal}"
            config = outcome.args.get_model_config()
        kv_dtype = FP8 if outcome.args.kv_cache_dtype == "fp8_e4m3" else BF16
        runner = SimpleNamespace(
            model_config=config, server_args=outcome.args, kv_cache_dtype=kv_dtype, is_draft_worker=draft
        )
        return int(mixin.calculate_mla_kv_cache_dim(runner))

    return ask


@pytest.fixture
def pool(standing: rig.Standing) -> Pool:
    """Upstream's KV pool for DSA models, with one layer of two pages, at a width."""
    kind = standing.module("sglang.srt.mem_cache.memory_pool").NSATokenToKVPool

    def make(width: int, dtype: torch.dtype) -> Any:
        return kind(
            size=2 * PAGE,
            page_size=PAGE,
            kv_lora_rank=LATENT,
            dtype=dtype,
            qk_rope_head_dim=ROPE,
            layer_num=1,
            device="cpu",
            index_head_dim=128,
            enable_memory_saver=False,
            kv_cache_dim=width,
        )

    return make


def latent(tokens: int, seed: int) -> torch.Tensor:
    """What the model caches for each token: (tokens, 1, 576), in bf16."""
    return torch.randn(tokens, 1, PLAIN, generator=torch.Generator().manual_seed(seed)).to(BF16)


@ALL
@pytest.mark.parametrize(
    "asked",
    [
        {"attention_backend": "flashinfer"},
        {"attention_backend": "triton"},
        {"prefill_attention_backend": "flashinfer", "decode_attention_backend": "flashinfer"},
        {"attention_backend": "flashinfer", "nsa_prefill_backend": "tilelang", "nsa_decode_backend": "tilelang"},
    ],
    ids=str,
)
@pytest.mark.parametrize("kv", ["fp8_e4m3", "bfloat16"])
def test_a_backend_other_than_nsa_gets_the_plain_layout(
    size: Size, card: rig.Card, asked: dict[str, str], kv: str
) -> None:
    assert size(card, kv_cache_dtype=kv, **asked) == PLAIN


@OTHERS
def test_a_draft_gets_the_layout_of_its_own_backend(size: Size, card: rig.Card) -> None:
    asked = {"attention_backend": "nsa", "kv_cache_dtype": "fp8_e4m3", "speculative_algorithm": "EAGLE"}
    other = {**asked, "speculative_draft_attention_backend": "flashinfer"}
    assert (size(card, **asked), size(card, draft=True, **asked)) == (QUANTIZED, QUANTIZED)
    assert (size(card, **other), size(card, draft=True, **other)) == (QUANTIZED, PLAIN)


@OTHERS
@pytest.mark.parametrize("role", ["prefill_attention_backend", "decode_attention_backend"])
def test_one_fp8_cache_for_two_layouts_is_refused(size: Size, card: rig.Card, role: str) -> None:
    asked = {"attention_backend": "nsa", role: "flashinfer"}
    assert size(card, kv_cache_dtype="bfloat16", **asked) == PLAIN
    try:
        width = size(card, kv_cache_dtype="fp8_e4m3", **asked)
    except ValueError as refusal:
        assert "['flashinfer', 'nsa'] cannot share an FP8 KV cache" in str(refusal)
    else:
        pytest.fail(f"prefill and decode share a cache of {width} a token, which only one of them can read")


@OTHERS
def test_nsa_keeps_the_layouts_that_it_had(size: Size, card: rig.Card) -> None:
    trtllm = {"nsa_prefill_backend": "trtllm", "nsa_decode_backend": "trtllm"}
    widths = {
        "chosen by upstream": size(card, kv_cache_dtype="fp8_e4m3"),
        "named": size(card, kv_cache_dtype="fp8_e4m3", attention_backend="nsa"),
        "bf16": size(card, kv_cache_dtype="bfloat16", attention_backend="nsa"),
        "trtllm": size(card, kv_cache_dtype="fp8_e4m3", attention_backend="nsa", **trtllm),
    }
    assert widths == {"chosen by upstream": QUANTIZED, "named": QUANTIZED, "bf16": PLAIN, "trtllm": PLAIN}


@ALL
def test_a_model_without_dsa_keeps_its_layout(size: Size, card: rig.Card) -> None:
    assert size(card, models.DEEPSEEK_V3, kv_cache_dtype="fp8_e4m3", attention_backend="triton") == PLAIN


@DTYPES
def test_decode_on_flashinfer_reads_what_was_cached(
    standing: rig.Standing, size: Size, pool: Pool, dtype: torch.dtype
) -> None:
    """The kernel takes two views of the cache and checks the width of neither: what they hold is what it computes."""
    kv = "fp8_e4m3" if dtype is FP8 else "bfloat16"
    width = size(cards.RTX_PRO_6000_SERVER, attention_backend="flashinfer", kv_cache_dtype=kv)
    assert width == PLAIN, f"each token has {width} in the cache; the kernel reads the first {PLAIN}"
    backend = standing.module("sglang.srt.layers.attention.flashinfer_mla_backend")
    seen: list[torch.Tensor] = []

    def run(q_nope: torch.Tensor, q_rope: torch.Tensor, *cache: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        del q_nope, q_rope
        seen.extend(cache)
        return out

    layer = SimpleNamespace(layer_id=0, tp_q_head_num=HEADS, head_dim=PLAIN, v_head_dim=LATENT)
    new, where = latent(3, 1), torch.tensor([64, 65, 66])
    backend.FlashInferMLAAttnBackend.forward_decode(
        SimpleNamespace(forward_metadata=backend.DecodeMetadata(SimpleNamespace(run=run))),
        torch.zeros(3, HEADS * PLAIN, dtype=BF16),
        new,
        new[..., :LATENT],
        layer,
        SimpleNamespace(out_cache_loc=where, token_to_kv_pool=pool(width, dtype)),
    )
    nope, rope = (view[where] for view in seen)
    assert torch.equal(torch.cat([nope, rope], dim=-1), new.to(dtype).to(BF16))


class Attention:
    """What the reader asks of its layer: weights that are identities, two heads, GLM-5's head sizes."""

    q_lora_rank = None
    use_nsa = True
    kv_lora_rank, qk_rope_head_dim, qk_nope_head_dim, v_head_dim = LATENT, ROPE, NOPE, VALUE
    qk_head_dim = NOPE + ROPE
    num_local_heads = HEADS
    rotary_emb = None
    current_attention_backend = "flashinfer"
    attn_mha = SimpleNamespace(layer_id=0)

    def __init__(self, kv_cache_dtype: str) -> None:
        self.kv_cache_dtype = kv_cache_dtype
        weight = torch.Generator().manual_seed(7)
        self.weight = torch.randn(LATENT, HEADS * (NOPE + VALUE), generator=weight).to(BF16)

    def q_proj(self, hidden: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.zeros(hidden.shape[0], HEADS * self.qk_head_dim, dtype=BF16),)

    def kv_a_proj_with_mqa(self, hidden: torch.Tensor) -> tuple[torch.Tensor]:
        return (hidden.clone(),)

    def kv_a_layernorm(self, kv: torch.Tensor) -> torch.Tensor:
        return kv

    def kv_b_proj(self, kv: torch.Tensor) -> tuple[torch.Tensor]:
        return (kv @ self.weight,)


@pytest.fixture
def read(standing: rig.Standing, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Upstream's keys and values for new tokens behind a cached prefix, under FlashInfer MLA's own metadata."""
    forward_mha = standing.module("sglang.srt.models.deepseek_common.attention_forward_methods.forward_mha")
    backend = standing.module("sglang.srt.layers.attention.flashinfer_mla_backend")
    metadata = backend.PrefillMetadata(prefill_wrapper=None, use_ragged=False)

    def ask(layer: Attention, hidden: torch.Tensor, batch: dict[str, Any], **nsa: str | None) -> Any:
        kind = type("Layer", (Attention, forward_mha.DeepseekMHAForwardMixin), {})
        attention = kind(layer.kv_cache_dtype)
        monkeypatch.setattr(forward_mha, "get_global_server_args", lambda: SimpleNamespace(**nsa))
        forward_batch = SimpleNamespace(attn_backend=SimpleNamespace(forward_metadata=metadata), **batch)
        try:
            return attention.forward_normal_one_shot_prepare(None, hidden, forward_batch, None)[1:3]
        except AttributeError as error:
            pytest.fail(f"the prefix cannot be read under FlashInfer MLA: {error}")

    return ask


@DTYPES
@pytest.mark.parametrize("nsa", ["flashmla_auto", "trtllm", None], ids=str)
def test_a_cached_prefix_is_read_under_flashinfer(
    *, pool: Pool, read: Callable[..., Any], dtype: torch.dtype, nsa: str | None
) -> None:
    """Five tokens are cached and three are new; keys and values are of all eight, as the cache rounded them."""
    cache, layer = pool(PLAIN, dtype), Attention("fp8_e4m3" if dtype is FP8 else "bfloat16")
    prefix, new = latent(5, 2), latent(3, 3)
    where = torch.tensor([70, 71, 72, 64, 65, 66, 67, 68])
    cache.set_kv_buffer(layer.attn_mha, where[:5], prefix, None)
    batch = {
        "extend_prefix_lens_cpu": [5],
        "out_cache_loc": where[5:],
        "token_to_kv_pool": cache,
        "fetch_mha_one_shot_kv_indices": lambda: where,
    }
    keys, values = read(layer, new.squeeze(1), batch, nsa_prefill_backend=nsa, nsa_decode_backend=nsa)
    cached = torch.cat([prefix, new]).to(dtype).to(BF16).squeeze(1)
    expected = (cached[:, :LATENT] @ layer.weight).view(8, HEADS, NOPE + VALUE)
    assert torch.equal(keys[..., :NOPE], expected[..., :NOPE])
    assert torch.equal(keys[..., NOPE:], cached[:, None, LATENT:].expand(8, HEADS, ROPE))
    assert torch.equal(values, expected[..., NOPE:])


def test_nsas_own_layout_is_still_read_through_its_own_table(
    standing: rig.Standing, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward_mha = standing.module("sglang.srt.models.deepseek_common.attention_forward_methods.forward_mha")
    given: list[tuple[int, list[int]]] = []

    def dequantize(cache: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        given.append((cache.shape[-1], table.tolist()))
        return latent(8, 4)

    nsa = SimpleNamespace(nsa_prefill_backend="flashmla_auto", nsa_decode_backend="flashmla_kv")
    monkeypatch.setattr(forward_mha, "get_global_server_args", lambda: nsa)
    monkeypatch.setattr(forward_mha, "dequantize_k_cache_paged", dequantize)
    kind = type("Layer", (Attention, forward_mha.DeepseekMHAForwardMixin), {"_set_mla_kv_buffer": lambda *_: None})
    table = torch.arange(64, 72)
    forward_batch = SimpleNamespace(
        extend_prefix_lens_cpu=[5],
        token_to_kv_pool=pool(QUANTIZED, FP8),
        attn_backend=SimpleNamespace(forward_metadata=SimpleNamespace(page_table_1_flattened=table)),
    )
    kind("fp8_e4m3").forward_normal_one_shot_prepare(None, latent(3, 3).squeeze(1), forward_batch, None)
    assert given == [(QUANTIZED, table.tolist())]
