"""fp4-quantize-op: SGLang's fp4_quantize traces whole under torch.compile, and gives the eager bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .kit import Answer, Card, Unshown, compiled_like_eager, fp4_quantises, upstream

if TYPE_CHECKING:
    import torch

ROWS = (1, 16, 100, 128, 300)


def check(card: Card) -> Answer:
    """Through the name that SGLang's own layers call."""
    import torch

    quantize = upstream("sglang.srt.layers.quantization.modelopt_quant").fp4_quantize
    if quantize is None:
        raise Unshown("SGLang has no fp4_quantize here: neither FlashInfer nor sgl-kernel has one to import")
    scale = torch.full((1,), 100.0, device="cuda")
    inputs = [torch.randn(rows, 6144, device="cuda", dtype=torch.bfloat16) for rows in ROWS]

    def quantised(one: torch.Tensor) -> Any:
        return quantize(one, scale)

    wrong = fp4_quantises(quantize, card)
    return wrong or compiled_like_eager(quantised, inputs, "SGLang's fp4_quantize")
