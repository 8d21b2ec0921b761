"""ep-memory-defaults: on a real SM12x card EP leaves room: memory fraction, running requests, graph batch."""

from __future__ import annotations

from .kit import Answer, Card, one_of, resolved


def check(card: Card) -> Answer:
    """TP 8 and EP 8, of which the arguments alone are resolved here."""
    args = resolved(tp_size=8, ep_size=8)
    found = (args.mem_fraction_static, args.max_running_requests, args.cuda_graph_max_bs)
    said = f"fraction {found[0]}, running requests {found[1]}, graphs up to {found[2]}"
    if not card.is_sm12x:
        wrong = [said] if found[1] == 512 else []
        return one_of(wrong, f"{said} on {card.capability}, as upstream has it")
    fits = found[0] <= 0.80 and found[1] is not None and found[1] <= 512 and found[2] <= 256
    return one_of([] if fits else [said], said)
