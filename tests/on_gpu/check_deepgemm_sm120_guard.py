"""deepgemm-sm120-guard: on a real SM12x card SGLang leaves DeepGEMM and its scales off, though it is installed."""

from __future__ import annotations

import importlib.util

from .kit import NOT_APPLICABLE, Answer, Card, Unshown, one_of, upstream

FLAGS = ("ENABLE_JIT_DEEPGEMM", "DEEPGEMM_BLACKWELL", "DEEPGEMM_SCALE_UE8M0")


def check(card: Card) -> Answer:
    """The flags that every caller asks, set when the module is imported on this device."""
    if not card.is_sm12x:
        return Answer(NOT_APPLICABLE, f"DeepGEMM may exist for {card.capability}, and upstream decides")
    wrapper = upstream("sglang.srt.layers.deep_gemm_wrapper")
    on = [name for name in FLAGS if getattr(wrapper, name)]
    if not on and importlib.util.find_spec("deep_gemm") is None:
        raise Unshown("deep_gemm is not installed here, and without it the flags are false anyway")
    return one_of([f"{' and '.join(on)} on SM12x"] if on else [], f"{', '.join(FLAGS)} are all false")
