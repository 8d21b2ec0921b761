"""fp4-gemm-default: on SM12x SGLang takes cuDNN for dense NVFP4, and that gives no NaN in batches of every size."""

from __future__ import annotations

from . import moe
from .kit import Answer, Card, Unshown, one_of, quantise, resolved, short, upstream

ROWS = (1, 2, 3, 7, 8, 16, 33, 64, 127, 128, 129, 200, 256, 511, 777, 1024, 2048)
COLUMNS, INNER = 1536, 2048
ROUNDS = 20


def check(card: Card) -> Answer:
    """The choice on the real device, then cuDNN through FlashInfer beside plain torch."""
    chosen = resolved().fp4_gemm_runner_backend
    expected = "flashinfer_cudnn" if card.is_sm12x else "flashinfer_cutlass"
    if chosen != expected:
        return one_of([f"SGLang chooses {chosen}, expected {expected}"], "")
    if not card.is_sm12x:
        return one_of([], f"SGLang chooses {chosen} on {card.capability}, as upstream has it")
    failures = _wrong_sizes()
    return one_of(failures, f"SGLang chooses {chosen}; {ROUNDS} rounds of {len(ROWS)} batch sizes agree with torch")


def _wrong_sizes() -> list[str]:
    import torch

    multiply = upstream("flashinfer").mm_fp4
    torch.manual_seed(6)
    weight = quantise(torch.randn(COLUMNS, INNER, device="cuda"))
    failures = []
    for _ in range(ROUNDS):
        for rows in ROWS:
            tokens = quantise(torch.randn(rows, INNER, device="cuda"))
            alpha = (1.0 / (tokens.scale * weight.scale)).float()
            try:
                found = multiply(
                    tokens.codes, weight.codes.T, tokens.swizzled, weight.swizzled.T, alpha, torch.bfloat16,
                    backend="cudnn",
                )  # fmt: skip
            except Exception as error:
                raise Unshown(f"mm_fp4 with cudnn does not run here: {short(error)}") from error
            far = moe.distance(found, tokens.value() @ weight.value().T)
            failures += [f"{rows} rows differ from torch by {far:.2g}"] if far > 0.02 else []
    return failures
