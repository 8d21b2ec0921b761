"""fp4-quantize-op: SGLang's fp4_quantize traces whole under torch.compile, and gives the eager bytes."""

from __future__ import annotations

from .kit import Answer, Card, Unshown, fp4_compiled_like_eager, upstream


def check(card: Card) -> Answer:
    """Through the name that SGLang's own layers call."""
    quantize = upstream("sglang.srt.layers.quantization.modelopt_quant").fp4_quantize
    if quantize is None:
        raise Unshown("SGLang has no fp4_quantize here: neither FlashInfer nor sgl-kernel has one to import")
    return fp4_compiled_like_eager(quantize, card, "SGLang's fp4_quantize")
