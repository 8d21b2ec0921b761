"""fp4-torch-op: FlashInfer's FP4 quantisation and CUTLASS MoE trace whole in torch.compile, with the eager bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import moe
from .kit import SHOWN, Answer, Card, compiled_like_eager, fp4_compiled_like_eager, upstream

if TYPE_CHECKING:
    import torch


def check(card: Card) -> Answer:
    """Through the public functions; the MoE where this card has one in NVFP4."""
    quantised = fp4_compiled_like_eager(upstream("flashinfer").fp4_quantize, card, "FlashInfer's fp4_quantize")
    if quantised.outcome != SHOWN or not moe.is_built_for(card):
        return quantised
    routed = _routed()
    return routed if routed.outcome != SHOWN else Answer(SHOWN, f"{quantised.said}; {routed.said}")


def _routed() -> Answer:
    import torch

    given = moe.batch(64, torch.bfloat16, 8)
    launch = moe.launcher(moe.made(torch.bfloat16), torch.bfloat16)
    moe.tactics(launch, given)

    def routed(tokens: torch.Tensor) -> Any:
        return (launch(moe.Batch(tokens, given.experts, given.weights)),)

    return compiled_like_eager(routed, [given.tokens], "FlashInfer's MoE")
