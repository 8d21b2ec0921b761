"""mla-prefill-guard: on SM12x trtllm_mla is refused where it would prefill, and kept where it decodes only.

Everything here runs upstream's own argument resolution on presented cards.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay.serving import rig
from sm120_overlay.serving.rig import cards, models

SM12X = pytest.mark.parametrize("card", [cards.RTX_PRO_6000_SERVER, cards.DGX_SPARK], ids=["12.0", "12.1"])
PREFILLS: tuple[dict[str, str], ...] = (
    {"attention_backend": "trtllm_mla"},
    {"prefill_attention_backend": "trtllm_mla"},
    {"prefill_attention_backend": "trtllm_mla", "decode_attention_backend": "flashinfer"},
    {"prefill_attention_backend": "trtllm_mla", "decode_attention_backend": "trtllm_mla"},
    {"attention_backend": "trtllm_mla", "decode_attention_backend": "flashinfer"},
    {"attention_backend": "trtllm_mla", "kv_cache_dtype": "fp8_e4m3"},
    {
        "attention_backend": "flashinfer",
        "speculative_algorithm": "EAGLE",
        "speculative_draft_attention_backend": "trtllm_mla",
    },
)
DECODES_ONLY: tuple[dict[str, str], ...] = (
    {"prefill_attention_backend": "flashinfer", "decode_attention_backend": "trtllm_mla"},
    {"attention_backend": "trtllm_mla", "prefill_attention_backend": "flashinfer", "kv_cache_dtype": "fp8_e4m3"},
    {"attention_backend": "triton", "decode_attention_backend": "trtllm_mla"},
)

# Of trtllm_mha, which is another backend: what else is asked, and upstream's own words where it refuses.
_SM100_ONLY = "TRTLLM MHA backend is only supported on Blackwell GPUs (SM100)"
_SM100_PREFILL = "TRTLLM MHA backend for prefill is only supported on Blackwell GPUs (SM100)"
_BF16_PREFILL = "TRTLLM FMHAv2 prefill on SM120 does not support fp8_e4m3 KV cache"
NEWEST = "0.5.23"
TRTLLM_MHA: dict[str, dict[str, tuple[dict[str, str], str]]] = {
    "0.5.9": {
        "attention_backend": ({}, _SM100_ONLY),
        "prefill_attention_backend": ({}, _SM100_ONLY),
        "decode_attention_backend": ({}, _SM100_ONLY),
    },
    "0.5.16": {
        "attention_backend": ({}, _SM100_PREFILL),
        "prefill_attention_backend": ({}, _SM100_PREFILL),
        "decode_attention_backend": ({}, ""),
    },
    "0.5.23": {
        "attention_backend": ({"kv_cache_dtype": "fp8_e4m3"}, _BF16_PREFILL),
        "prefill_attention_backend": ({}, ""),
        "decode_attention_backend": ({}, ""),
    },
}

Resolve = Callable[..., rig.Resolution]


@pytest.fixture
def resolve(standing: rig.Standing, tmp_path: Path) -> Resolve:
    """Upstream's outcome at TP8 for DeepSeek-V3, on a card."""

    def ask(card: rig.Card, **asked: Any) -> rig.Resolution:
        folder = models.checkpoint(tmp_path / "model", models.DEEPSEEK_V3)
        with rig.present(card):
            return rig.resolve(standing, folder, tp_size=8, **asked)

    return ask


def backends(outcome: rig.Resolution) -> tuple[str, str, int]:
    """Prefill's backend, decode's backend, and the page size."""
    assert outcome.refusal is None, f"upstream refuses {outcome.asked}: {outcome.refusal}"
    return *outcome.attention_backends, outcome.args.page_size


@SM12X
@pytest.mark.parametrize("asked", PREFILLS, ids=str)
def test_prefill_on_trtllm_mla_is_refused_with_its_reason(
    resolve: Resolve, card: rig.Card, asked: dict[str, str]
) -> None:
    refusal = resolve(card, **asked).refusal
    assert isinstance(refusal, ValueError), f"{asked} is accepted, or fails otherwise: {refusal!r}"
    assert "MLA" in str(refusal)
    assert "prefill on SM12x" in str(refusal)


@SM12X
@pytest.mark.parametrize("asked", DECODES_ONLY, ids=str)
def test_decode_on_trtllm_mla_stays_as_upstream_resolves_it(
    resolve: Resolve, card: rig.Card, asked: dict[str, str]
) -> None:
    prefill = asked.get("prefill_attention_backend", "triton")
    assert backends(resolve(card, **asked)) == (prefill, "trtllm_mla", 64)


@SM12X
def test_other_backends_are_kept(resolve: Resolve, card: rig.Card) -> None:
    named = {name: backends(resolve(card, attention_backend=name)) for name in ("flashinfer", "triton")}
    assert named == {"flashinfer": ("flashinfer", "flashinfer", 1), "triton": ("triton", "triton", 1)}
    assert backends(resolve(card)) == ("triton", "triton", 1)


@SM12X
@pytest.mark.parametrize("role", sorted(TRTLLM_MHA["0.5.9"]), ids=str)
def test_trtllm_mha_stays_to_upstream_itself(
    standing: rig.Standing, resolve: Resolve, card: rig.Card, role: str
) -> None:
    asked, said = TRTLLM_MHA.get(standing.version, TRTLLM_MHA[NEWEST])[role]
    refusal = resolve(card, **{role: "trtllm_mha"}, **asked).refusal
    assert said in str(refusal) if said else refusal is None


@pytest.mark.parametrize("asked", [*PREFILLS, *DECODES_ONLY], ids=str)
def test_an_sm100_accepts_what_it_accepted(resolve: Resolve, asked: dict[str, str]) -> None:
    prefill, decode, _ = backends(resolve(cards.B200, **asked))
    default = asked.get("attention_backend", "trtllm_mla")
    assert prefill == asked.get("prefill_attention_backend", default)
    if "attention_backend" in asked or "decode_attention_backend" in asked:
        assert decode == asked.get("decode_attention_backend", default)


@pytest.mark.parametrize("asked", [*PREFILLS[:1], *DECODES_ONLY], ids=str)
def test_an_sm90_refuses_with_upstreams_own_words(resolve: Resolve, asked: dict[str, str]) -> None:
    refusal = resolve(cards.H200, **asked).refusal
    assert "TRTLLM MLA backend is only supported on Blackwell GPUs (SM100/SM12x)" in str(refusal)


@pytest.mark.parametrize("asked", [PREFILLS[1], PREFILLS[2], PREFILLS[-1]], ids=str)
def test_an_sm90_accepts_what_it_accepted(resolve: Resolve, asked: dict[str, str]) -> None:
    assert resolve(cards.H200, **asked).refusal is None


@SM12X
def test_a_server_that_does_not_use_the_card_stays_as_upstream_resolves_it(resolve: Resolve, card: rig.Card) -> None:
    assert backends(resolve(card, device="cpu", attention_backend="trtllm_mla"))[:2] == ("trtllm_mla", "trtllm_mla")
