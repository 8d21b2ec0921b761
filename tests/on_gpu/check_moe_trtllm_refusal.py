"""moe-trtllm-refusal: on SM12x a TRTLLM-gen MoE that the user names is refused before anything is loaded."""

from __future__ import annotations

from .kit import FAILED, NOT_APPLICABLE, SHOWN, Answer, Card, resolved, short


def check(card: Card) -> Answer:
    """Real argument resolution on the real device; that it resolves without the name is asked first."""
    if not card.is_sm12x:
        return Answer(NOT_APPLICABLE, f"the runner may exist on {card.capability}, and upstream decides")
    resolved(quantization="modelopt_fp4")
    for name in ("flashinfer_trtllm", "flashinfer_mxfp4"):
        said = _refusal(name)
        if "SM12" not in said:
            return Answer(FAILED, f"{name} is not refused for the card: {said or 'accepted'}")
    return Answer(SHOWN, "both names are refused when the arguments are read, with the reason")


def _refusal(name: str) -> str:
    """The reason that SGLang gives; empty where it accepts the runner."""
    try:
        resolved(quantization="modelopt_fp4", moe_runner_backend=name)
    except Exception as error:  # `resolved` keeps upstream's own as the cause
        return short(error.__cause__ or error)
    return ""
