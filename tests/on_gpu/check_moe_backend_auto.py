"""moe-backend-auto: for an NVFP4 MoE on SM12x SGLang's `auto` is FlashInfer's CUTLASS MoE, with EP and without."""

from __future__ import annotations

from .kit import Answer, Card, one_of, resolved

ASKED: tuple[dict[str, object], ...] = (
    {},
    {"quantization": "modelopt_fp4"},
    {"tp_size": 8, "ep_size": 8},
    {"quantization": "modelopt", "tp_size": 4},
)


def check(card: Card) -> Answer:
    """Real argument resolution on the real device; TP and EP need no further cards for that."""
    found = [str(resolved(**asked).moe_runner_backend) for asked in ASKED]
    if not card.is_sm12x:
        wrong = ["flashinfer_cutlass is chosen on another kind"] if "flashinfer_cutlass" in found else []
        return one_of(wrong, f"auto stays {' '.join(sorted(set(found)))} on {card.capability}")
    wrong = [f"{asked or 'no flags'} gives {one}" for asked, one in zip(ASKED, found, strict=True)
             if one != "flashinfer_cutlass"]  # fmt: skip
    return one_of(wrong, f"auto is flashinfer_cutlass for {len(found)} ways to ask")
