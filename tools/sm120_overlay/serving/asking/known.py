"""What is known of choices that upstream makes without a word and that cannot work on the card: read, not run here.

Each names where it can be read. They are said as doubts, and are no refusal of upstream's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sm120_overlay.serving.rig.cards import Card

FLASHMLA = (
    "FlashMLA is built for sm_90a, sm_100a and sm_103a only (sgl-kernel/cmake/flashmla.cmake): the first {phase} fails"
)
FLASHMLA_WHEEL = (
    "FlashMLA is built for sm_90, sm_100, sm_103 and sm_107 only (the cubins of sgl-flash-mla 1.0.0): "
    "the first {phase} fails"
)
TRTLLM_MLA = "trtllm_mla has no prefill on SM12x (sglang#24633): the first prefill fails"
XQA_MLA = (
    "trtllm_mla decodes by XQA on SM12x, which takes {cache}128 query heads a rank and nothing else "
    "(flashinfer/xqa.py, flashinfer#2750)"
)
XQA_FP8_ALONE = ("0.6.3",)  # later FlashInfer takes BF16 too (flashinfer/mla/_core.py)
XQA_HEADS = 128
CUTLASS_MLA = (
    "cutlass_mla decodes by a kernel that is written for SM100 (sgl-kernel/csrc/attention/cutlass_mla_kernel.cu): "
    "that it runs on SM12x was not established"
)
TRTLLM_MOE = "trtllm-gen MoE kernels are for SM100 alone (flashinfer/jit/fused_moe.py): the first step fails"
TRTLLM_BY_NAME = (
    "{backend} asks FlashInfer for trtllm-gen by name (dsa_backend.py), which is for SM100: the first {phase} fails"
)
TRTLLM_SPARSE = "FlashInfer has sparse MLA in trtllm-gen alone, for SM100 (flashinfer/mla.py): the first {phase} fails"


def doubts(choices: Mapping[str, Any], card: Card, facts: Mapping[str, Any]) -> list[str]:
    """What speaks against these choices on this card, as sentences; empty where nothing is known."""
    if card.capability[0] != 12:
        return []
    found: list[str] = []
    prefill, decode = (str(choices.get(f"attention_{phase}")) for phase in ("prefill", "decode"))
    for phase, attention in (("prefill", prefill), ("decode", decode)):
        if "flashmla" in attention and not any("FlashMLA" in doubt for doubt in found):
            found.append((FLASHMLA_WHEEL if facts.get("flash_mla") else FLASHMLA).format(phase=phase))
        if attention == "nsa (trtllm)" and not any("sparse MLA" in doubt for doubt in found):
            found.append(TRTLLM_SPARSE.format(phase=phase))
        if attention == "dsa (trtllm)" and not any("trtllm-gen" in doubt for doubt in found):
            found.append(TRTLLM_BY_NAME.format(backend=attention, phase=phase))
    if prefill == "trtllm_mla":
        found.append(TRTLLM_MLA)
    if decode == "trtllm_mla":
        cache = "an FP8 KV cache and " if facts.get("flashinfer", "0.6.3") in XQA_FP8_ALONE else ""
        found.append(XQA_MLA.format(cache=cache) + _heads(facts))
    if decode == "cutlass_mla":
        found.append(CUTLASS_MLA)
    if str(choices.get("moe_runner")).removeprefix("auto (").removesuffix(")") in (
        "flashinfer_trtllm",
        "flashinfer_mxfp4",
    ):
        found.append(TRTLLM_MOE)
    return found


def _heads(facts: Mapping[str, Any]) -> str:
    """What a rank's query heads say about XQA; "" where their number fits or the answer did not come to it."""
    if not facts.get("heads"):
        return ""
    ranks = facts["tp"] // facts["dp"] if facts["dp_attention"] else facts["tp"]
    heads = facts["heads"] / max(1, ranks)
    return "" if heads == XQA_HEADS else f": here a rank has {heads:g}, and the first decode fails"
