"""skip-sm90-stubs: the MoE module builds, links and loads without what is left out, and gives the right result."""

from __future__ import annotations

from . import moe
from .kit import NOT_APPLICABLE, Answer, Card, one_of, upstream


def check(card: Card) -> Answer:
    """A launch; loading alone already resolves every symbol."""
    import torch

    if not card.is_sm12x:
        return Answer(NOT_APPLICABLE, f"the module of capability {card.capability} keeps its files")
    layer, given = moe.made(torch.bfloat16), moe.batch(64, torch.bfloat16, 2)
    launch = moe.launcher(layer, torch.bfloat16)
    moe.tactics(launch, given)
    far = moe.distance(launch(given), moe.reference(layer, given))
    spec = upstream("flashinfer.jit.fused_moe").gen_cutlass_fused_moe_sm120_module(False)
    wrong = [f"the MoE differs from plain torch by {far:.2g}"] if far > moe.FAR else []
    return one_of(wrong, f"the module of {len(spec.sources)} files loads, and its MoE agrees with plain torch")
