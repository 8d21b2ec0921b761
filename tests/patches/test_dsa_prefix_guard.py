"""dsa-prefix-guard: a DSA model's FP8 KV cache lies as its attention backend reads it, and a cached prefix is read so.

Everything here runs upstream's own code on a CPU: its sizing of the KV cache, its KV pool, its attention backend for
FlashInfer MLA (a recorder stands where FlashInfer's kernel would), and the model's reader of a cached prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
Kernels = Callable[[str | None], dict[str, Any]]


def first(standing: rig.Standing) -> bool:
    """Whether this is 0.5.9, which says nsa where later releases say dsa, and builds the pool elsewhere."""
    return standing.version == "0.5.9"


@pytest.fixture
def own(standing: rig.Standing) -> str:
    """The attention backend that reads the layout of the scales."""
    return "nsa" if first(standing) else "dsa"


@pytest.fixture
def kernels(own: str) -> Kernels:
    """The options that name one kind of kernels of that backend for both phases."""
    return lambda name: {f"{own}_{phase}_backend": name for phase in ("prefill", "decode")}


@contextmanager
def serving(standing: rig.Standing, outcome: rig.Resolution) -> Iterator[None]:
    """A process of the server that has these arguments."""
    if standing.version in ("0.5.9", "0.5.16"):  # the arguments themselves are handed to whoever asks
        yield
        return
    context = standing.module("sglang.srt.runtime_context")
    with context.use_context(context.create_context(outcome.record, role="scheduler")):
        yield


@pytest.fixture
def one_rank(standing: rig.Standing) -> Iterator[None]:
    """Whoever asks finds that no rank shares the context of a sequence with another."""
    if first(standing):
        yield
        return
    parallel = standing.module("sglang.srt.runtime_context").get_parallel()
    with parallel.override(dcp_enabled=False):
        yield


def built(standing: rig.Standing, outcome: rig.Resolution, dtype: torch.dtype, draft: bool) -> int:
    """The width of the pool that upstream builds on the CPU, for one layer of a page; up to 0.5.9 it only sizes it."""
    config = outcome.model_config
    if first(standing):
        mixin = standing.module("sglang.srt.model_executor.model_runner_kv_cache_mixin").ModelRunnerKVCacheMixin
        runner = SimpleNamespace(
            model_config=config, server_args=outcome.args, kv_cache_dtype=dtype, is_draft_worker=draft
        )
        return int(mixin.calculate_mla_kv_cache_dim(runner))
    configurator = standing.module("sglang.srt.mem_cache.kv_cache_configurator")
    made = object.__new__(configurator.KVCacheConfigurator)
    one_layer = SimpleNamespace(num_effective_layers=1, start_layer=0, end_layer=1)
    given = {"model_config": config, "server_args": outcome.args, "kv_cache_dtype": dtype, "is_draft_worker": draft}
    for name, value in {**given, "device": "cpu", "layer_info": one_layer, "page_size": PAGE}.items():
        setattr(made, name, value)
    more: dict[str, Any] = {}
    if standing.version != "0.5.16":
        made.kv_shard_rank = None
        made.kv_shard_size = 1
        more = {"max_running_requests": 1, "dsa_pool_class": configurator.DSATokenToKVPool}
    return int(made._build_dsa_kv_pool(max_total_num_tokens=PAGE, **more).kv_cache_dim)


@pytest.fixture
def size(standing: rig.Standing, tmp_path: Path) -> Size:
    """The width that upstream gives each token in the KV cache of a model, for arguments that it resolved on a card."""

    def ask(card: rig.Card, model: models.Model = models.GLM_5, *, draft: bool = False, **asked: Any) -> int:
        with rig.present(card):
            outcome = rig.resolve(standing, models.checkpoint(tmp_path / model.name, model), tp_size=8, **asked)
            assert outcome.refusal is None, f"upstream refuses {asked}: {outcome.refusal}"
            dtype = FP8 if outcome.args.kv_cache_dtype == "fp8_e4m3" else BF16
            with serving(standing, outcome):
                return built(standing, outcome, dtype, draft)

    return ask


@pytest.fixture
def pool(standing: rig.Standing, own: str) -> Pool:
    """Upstream's KV pool for DSA models, with one layer of two pages, at a width."""
    kind = getattr(standing.module("sglang.srt.mem_cache.memory_pool"), f"{own.upper()}TokenToKVPool")

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
            **({} if first(standing) else {"index_buf_size": 2 * PAGE}),
        )

    return make


def latent(tokens: int, seed: int) -> torch.Tensor:
    """What the model caches for each token: (tokens, 1, 576), in bf16."""
    return torch.randn(tokens, 1, PLAIN, generator=torch.Generator().manual_seed(seed)).to(BF16)


@ALL
@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"attention_backend": "flashinfer"}, None),
        ({"attention_backend": "flashinfer"}, "tilelang"),
        ({"attention_backend": "flashinfer"}, "flashmla_kv"),
        ({"attention_backend": "triton"}, None),
        ({"prefill_attention_backend": "flashinfer", "decode_attention_backend": "flashinfer"}, None),
        ({"attention_backend": "flashinfer", "kv_cache_dtype": "bfloat16"}, None),
    ],
    ids=str,
)
def test_a_backend_other_than_its_own_gets_the_plain_layout(
    *, size: Size, kernels: Kernels, card: rig.Card, asked: dict[str, str], named: str | None
) -> None:
    assert size(card, **{"kv_cache_dtype": "fp8_e4m3", **asked, **kernels(named)}) == PLAIN


@OTHERS
def test_a_draft_gets_the_layout_of_its_own_backend(size: Size, own: str, kernels: Kernels, card: rig.Card) -> None:
    asked = {"attention_backend": own, "kv_cache_dtype": "fp8_e4m3", "speculative_algorithm": "EAGLE"}
    asked.update(kernels("flashmla_kv"))
    other = {**asked, "speculative_draft_attention_backend": "flashinfer"}
    assert (size(card, **asked), size(card, draft=True, **asked)) == (QUANTIZED, QUANTIZED)
    assert (size(card, **other), size(card, draft=True, **other)) == (QUANTIZED, PLAIN)


@OTHERS
@pytest.mark.parametrize("role", ["prefill_attention_backend", "decode_attention_backend"])
def test_one_fp8_cache_for_two_layouts_is_refused(
    *, size: Size, own: str, kernels: Kernels, card: rig.Card, role: str
) -> None:
    asked = {"attention_backend": own, role: "flashinfer"}
    assert size(card, kv_cache_dtype="bfloat16", **asked) == PLAIN
    try:
        width = size(card, kv_cache_dtype="fp8_e4m3", **asked, **kernels("flashmla_kv"))
    except ValueError as refusal:
        assert f"{sorted(['flashinfer', own])} cannot share an FP8 KV cache" in str(refusal)
    else:
        pytest.fail(f"prefill and decode share a cache of {width} a token, which only one of them can read")


@OTHERS
def test_its_own_backend_keeps_the_layouts_that_it_had(
    *, standing: rig.Standing, size: Size, own: str, kernels: Kernels, card: rig.Card
) -> None:
    fp8 = {"kv_cache_dtype": "fp8_e4m3"}
    widths = {
        "chosen by upstream": size(card, **fp8),
        "named": size(card, attention_backend=own, **fp8, **kernels("flashmla_kv")),
        "by its old name": size(card, attention_backend="nsa", **fp8, **kernels("flashmla_kv")),
        "bf16": size(card, kv_cache_dtype="bfloat16", attention_backend=own),
        "trtllm": size(card, attention_backend=own, **fp8, **kernels("trtllm")),
    }
    # From 0.5.16 on upstream chooses trtllm on SM100, whose kernels read the plain layout.
    chosen = QUANTIZED if first(standing) or card is cards.H200 else PLAIN
    named = {"named": QUANTIZED, "by its old name": QUANTIZED, "bf16": PLAIN, "trtllm": PLAIN}
    assert widths == {"chosen by upstream": chosen, **named}


@ALL
def test_a_model_without_dsa_keeps_its_layout(standing: rig.Standing, tmp_path: Path, card: rig.Card) -> None:
    checkpoint = models.checkpoint(tmp_path, models.DEEPSEEK_V3)
    with rig.present(card):
        outcome = rig.resolve(standing, checkpoint, kv_cache_dtype="fp8_e4m3", attention_backend="triton")
        if first(standing):
            assert built(standing, outcome, FP8, draft=False) == PLAIN
            return
        given = {"model_config": outcome.model_config, "kv_cache_dtype": FP8}
        if standing.version == "0.5.16":
            given["server_args"] = outcome.args
        configurator = standing.module("sglang.srt.mem_cache.kv_cache_configurator")
        assert configurator.calculate_mla_kv_cache_dim(**given) == PLAIN


@pytest.mark.usefixtures("one_rank")
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

    def run(
        q_nope: torch.Tensor, q_rope: torch.Tensor, *cache: torch.Tensor, out: torch.Tensor, **_: Any
    ) -> torch.Tensor:
        del q_nope, q_rope
        seen.extend(cache)
        return out

    layer = SimpleNamespace(layer_id=0, tp_q_head_num=HEADS, head_dim=PLAIN, v_head_dim=LATENT)
    new, where, cache = latent(3, 1), torch.tensor([64, 65, 66]), pool(width, dtype)
    batch = SimpleNamespace(out_cache_loc=where, out_cache_loc_is_physical=False, token_to_kv_pool=cache)
    batch.forward_mode = SimpleNamespace(is_decode=lambda: False)
    backend.FlashInferMLAAttnBackend.forward_decode(
        SimpleNamespace(forward_metadata=backend.DecodeMetadata(SimpleNamespace(run=run)), token_to_kv_pool=cache),
        torch.zeros(3, HEADS * PLAIN, dtype=BF16),
        new,
        new[..., :LATENT],
        layer,
        batch,
    )
    nope, rope = (view[where] for view in seen)
    assert torch.equal(torch.cat([nope, rope], dim=-1), new.to(dtype).to(BF16))


class Attention:
    """What the reader asks of its layer: weights that are identities, two heads, GLM-5's head sizes."""

    q_lora_rank = None
    use_nsa = use_dsa = True
    dcp_size = 1
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


@contextmanager
def prefill(standing: rig.Standing, monkeypatch: pytest.MonkeyPatch, on: Any, options: dict[str, Any]) -> Iterator[Any]:
    """Upstream's module with the reader, in a forward pass on an attention backend, in a server with these options."""
    forward_mha = standing.module("sglang.srt.models.deepseek_common.attention_forward_methods.forward_mha")
    args = SimpleNamespace(**options)
    if first(standing):
        monkeypatch.setattr(forward_mha, "get_global_server_args", lambda: args)
        yield forward_mha
        return
    monkeypatch.setattr(forward_mha, "get_server_args", lambda: args, raising=False)
    monkeypatch.setattr(forward_mha, "get_exec", lambda: SimpleNamespace(kernel=args), raising=False)
    context = standing.module("sglang.srt.model_executor.forward_context")
    with context.forward_context(context.ForwardContext(attn_backend=on)):
        yield forward_mha


@pytest.mark.usefixtures("one_rank")
@DTYPES
@pytest.mark.parametrize("named", ["flashmla_auto", "trtllm", None], ids=str)
def test_a_cached_prefix_is_read_under_flashinfer(
    *,
    standing: rig.Standing,
    monkeypatch: pytest.MonkeyPatch,
    kernels: Kernels,
    pool: Pool,
    dtype: torch.dtype,
    named: str | None,
) -> None:
    """Five tokens are cached and three are new; keys and values are of all eight, as the cache rounded them."""
    backend = standing.module("sglang.srt.layers.attention.flashinfer_mla_backend")
    cache, kv = pool(PLAIN, dtype), "fp8_e4m3" if dtype is FP8 else "bfloat16"
    prefix, new = latent(5, 2), latent(3, 3)
    where = torch.tensor([70, 71, 72, 64, 65, 66, 67, 68])
    cache.set_kv_buffer(Attention.attn_mha, *write(standing, where[:5]), prefix, None)
    flashinfer = SimpleNamespace(
        forward_metadata=backend.PrefillMetadata(prefill_wrapper=None, use_ragged=False), token_to_kv_pool=cache
    )
    batch = SimpleNamespace(
        extend_prefix_lens_cpu=[5],
        out_cache_loc=where[5:],
        out_cache_loc_is_physical=False,
        token_to_kv_pool=cache,
        attn_backend=flashinfer,
        fetch_mha_one_shot_kv_indices=lambda: where,
    )
    with prefill(standing, monkeypatch, flashinfer, kernels(named)) as forward_mha:
        layer = type("Layer", (Attention, forward_mha.DeepseekMHAForwardMixin), {})(kv)
        try:
            keys, values = layer.forward_normal_one_shot_prepare(None, new.squeeze(1), batch, None)[1:3]
        except AttributeError as error:
            pytest.fail(f"the prefix cannot be read under FlashInfer MLA: {error}")
    cached = torch.cat([prefix, new]).to(dtype).to(BF16).squeeze(1)
    expected = (cached[:, :LATENT] @ layer.weight).view(8, HEADS, NOPE + VALUE)
    assert torch.equal(keys[..., :NOPE], expected[..., :NOPE])
    assert torch.equal(keys[..., NOPE:], cached[:, None, LATENT:].expand(8, HEADS, ROPE))
    assert torch.equal(values, expected[..., NOPE:])


def write(standing: rig.Standing, where: torch.Tensor) -> tuple[Any, ...]:
    """How the release names the slots to write."""
    memory_pool = standing.module("sglang.srt.mem_cache.memory_pool")
    return (memory_pool.KVWriteLoc(where),) if hasattr(memory_pool, "KVWriteLoc") else (where,)


@pytest.mark.usefixtures("one_rank")
def test_its_own_layout_is_still_read_through_its_own_table(
    standing: rig.Standing, monkeypatch: pytest.MonkeyPatch, own: str, pool: Pool
) -> None:
    given: list[tuple[int, list[int]]] = []

    def dequantize(cache: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        given.append((cache.shape[-1], table.tolist()))
        return latent(8, 4)

    table, cache = torch.arange(64, 72), pool(QUANTIZED, FP8)
    on = SimpleNamespace(
        forward_metadata=SimpleNamespace(page_table_1_flattened=table),
        token_to_kv_pool=cache,
        kv_index_translator=None,
    )
    batch = SimpleNamespace(extend_prefix_lens_cpu=[5], token_to_kv_pool=cache, attn_backend=on)
    options = {f"{own}_prefill_backend": "flashmla_auto", f"{own}_decode_backend": "flashmla_kv"}
    with prefill(standing, monkeypatch, on, options) as forward_mha:
        for name in ("dequantize_k_cache_paged", "dequantize_k_cache_paged_dsa"):
            monkeypatch.setattr(forward_mha, name, dequantize, raising=False)
        bases = (Attention, forward_mha.DeepseekMHAForwardMixin)
        layer = type("Layer", bases, {"_set_mla_kv_buffer": lambda *_: None})("fp8_e4m3")
        layer.forward_normal_one_shot_prepare(None, latent(3, 3).squeeze(1), batch, None)
    assert given == [(QUANTIZED, table.tolist())]
