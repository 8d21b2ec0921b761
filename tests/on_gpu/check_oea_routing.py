"""oea-routing: a CUDA graph of it gives at every replay what it gives eagerly, and fewer experts than without."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .kit import Answer, Card, load_alone, one_of

if TYPE_CHECKING:
    import torch

Routed = tuple["torch.Tensor", "torch.Tensor"]
ROUNDS, ROWS, EXPERTS, TOP_K, K0 = 50, 16, 128, 8, 3


def check(card: Card) -> Answer:
    """Softmax and sigmoid with a bias; some rows of some batches are padding."""
    oea = load_alone("sglang", "srt/layers/moe/oea.py")
    failures, before, after = [], 0, 0
    for scoring in ("softmax", "sigmoid"):
        wrong, without, with_oea = _compared(oea, scoring)
        failures += [f"{scoring}: {wrong} of {ROUNDS} replays differ from eager"] if wrong else []
        before, after = before + without, after + with_oea
    failures += [] if after < before else [f"{after} unique experts with OEA, {before} without"]
    steps = 2 * ROUNDS
    said = f"{steps} replays equal eager; {after / steps:.1f} unique experts a step with k0 {K0}, {before / steps:.1f}"
    return one_of(failures, f"{said} without")


def _router(oea: Any, scoring: str) -> Any:
    return oea.Router(
        top_k=TOP_K, num_shared=0, scoring_func=scoring, num_groups=1, topk_group=1,
        top2_group_score=scoring == "sigmoid", renormalize=True, output_scale=1.0, shared_scale=1.0,
    )  # fmt: skip


def _compared(oea: Any, scoring: str) -> tuple[int, int, int]:
    """Replays that differ from eager, and the unique experts of real rows without OEA and with it."""
    import torch

    torch.manual_seed(7)
    router = _router(oea, scoring)
    bias = torch.randn(EXPERTS, device="cuda") * 0.1 if scoring == "sigmoid" else None
    logits = torch.zeros(ROWS, EXPERTS, device="cuda")
    count = torch.full((1,), ROWS, device="cuda", dtype=torch.int32)

    def route() -> tuple[Routed, Routed]:
        scores = logits.sigmoid() if scoring == "sigmoid" else logits.softmax(-1)
        ids = (scores if bias is None else scores + bias).topk(TOP_K).indices
        weights = scores.gather(1, ids)
        plain = (weights / weights.sum(-1, keepdim=True), ids.to(torch.int32))
        real = oea.real_rows(logits, count)
        return plain, oea.reroute(router, logits, bias, *plain, k0=K0, real=real)

    replay = _captured(route)
    wrong = before = after = 0
    skew = torch.exp(torch.randn(EXPERTS, device="cuda") * 0.8)
    for turn in range(ROUNDS):
        logits.copy_(torch.randn(ROWS, EXPERTS, device="cuda") * skew)
        rows = ROWS - turn % 5
        count.fill_(rows)
        plain, routed = route()
        _, again = replay()
        wrong += not all(torch.equal(*pair) for pair in zip(routed, again, strict=True))
        before += len(set(plain[1][:rows].flatten().tolist()))
        after += len(set(routed[1][:rows].flatten().tolist()))
    return wrong, before, after


def _captured(function: Callable[[], Any]) -> Callable[[], Any]:
    """The function as a CUDA graph: warmed up on a stream of its own, as torch asks, and captured once."""
    import torch

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function()

    def replay() -> Any:
        graph.replay()
        torch.cuda.synchronize()
        return out

    return replay
