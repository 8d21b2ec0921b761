"""Doubts: what is known not to work on SM12x is said of it, and of no other card."""

from __future__ import annotations

import pytest

from sm120_overlay.serving.asking.known import doubts
from sm120_overlay.serving.rig import cards


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"attention_prefill": "nsa (flashmla_auto)", "attention_decode": "nsa (flashmla_kv)"}, ["first prefill"]),
        ({"attention_prefill": "flashinfer", "attention_decode": "nsa (flashmla_kv)"}, ["first decode"]),
        (
            {"attention_prefill": "nsa (flashmla_sparse)", "attention_decode": "nsa (trtllm)"},
            ["FlashMLA", "sparse MLA"],
        ),
        ({"attention_prefill": "trtllm_mla", "attention_decode": "trtllm_mla"}, ["sglang#24633", "128 query heads"]),
        ({"attention_prefill": "flashinfer", "attention_decode": "trtllm_mla"}, ["128 query heads"]),
        ({"attention_prefill": "cutlass_mla", "attention_decode": "cutlass_mla"}, ["not established"]),
        ({"moe_runner": "flashinfer_trtllm"}, ["MoE"]),
        ({"moe_runner": "flashinfer_mxfp4"}, ["MoE"]),
        ({"moe_runner": "auto (flashinfer_trtllm)"}, ["MoE"]),
        ({"moe_runner": "auto"}, []),
        ({"attention_prefill": "dsa (trtllm)", "attention_decode": "dsa (trtllm)"}, ["by name"]),
        ({"attention_prefill": "dsa (flashinfer_sparse_mla)"}, []),
        ({"moe_runner": "flashinfer_cutlass", "attention_prefill": "flashinfer"}, []),
        ({}, []),
    ],
    ids=str,
)
def test_a_choice_that_cannot_work_on_sm12x_is_doubted_there_alone(choices: dict[str, str], says: list[str]) -> None:
    for card in cards.SM12X:
        found = doubts(choices, card, {})
        assert len(found) == len(says)
        assert all(word in doubt for word, doubt in zip(says, found, strict=True))
    for card in cards.OTHERS:
        assert doubts(choices, card, {}) == []


@pytest.mark.parametrize(
    ("sizes", "heads"), [({"tp": 1}, ""), ({"tp": 8}, "16"), ({"tp": 8, "dp": 8, "dp_attention": True}, "")], ids=str
)
def test_the_heads_of_a_rank_are_held_against_what_xqa_takes(sizes: dict[str, int], heads: str) -> None:
    facts = {"heads": 128, "dp": 1, "dp_attention": False, **sizes}
    (found,) = doubts({"attention_decode": "trtllm_mla"}, cards.SM12X[0], facts)
    assert found.endswith(f"here a rank has {heads}, and the first decode fails" if heads else "flashinfer#2750)")


def test_what_later_wheels_are_built_for_is_said_of_them() -> None:
    chosen, card = {"attention_decode": "dsa (flashmla_kv)"}, cards.SM12X[0]
    assert "sgl-kernel/cmake" in doubts(chosen, card, {"flash_mla": None})[0]
    assert "sgl-flash-mla 1.0.0" in doubts(chosen, card, {"flash_mla": "1.0.0"})[0]
    for flashinfer, alone in (("0.6.3", True), ("0.6.14", False)):
        (found,) = doubts({"attention_decode": "trtllm_mla"}, card, {"flashinfer": flashinfer})
        assert ("an FP8 KV cache and" in found) is alone
