"""pdl-switch: PDL is off on SM12x, and GEMMs right behind the kernel that writes their input read what it wrote.

A race that was not lost here could be lost elsewhere: what is shown for certain is the switch. So nothing else may be
launched between the two, and the producer is a kernel, since a copy is none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from . import moe
from .kit import Answer, Card, Unshown, one_of, quantise, short, upstream

if TYPE_CHECKING:
    import torch

ROUNDS = 400
ROWS, COLUMNS, INNER = 64, 2048, 4096


def check(card: Card) -> Answer:
    """The switch, then both GEMMs many times over with their input changed just before each launch."""
    import torch

    supports = upstream("flashinfer.utils").device_support_pdl(torch.device("cuda", 0))
    if not card.is_sm12x:
        wrong = [] if supports == (card.major >= 9) else [f"device_support_pdl is {supports} on {card.capability}"]
        return one_of(wrong, f"device_support_pdl is {supports} on {card.capability}, as upstream has it")
    if supports:
        return one_of(["device_support_pdl is true on SM12x (or FLASHINFER_SM12X_PDL=1 is set)"], "")
    failures = [*_stale("the NVFP4 MoE", *_moe()), *_stale("the dense NVFP4 GEMM", *_dense())]
    said = f"device_support_pdl is false; 2 x {ROUNDS} launches right behind their producers all gave the same result"
    return one_of(failures, said)


Work = tuple[Callable[[int], None], Callable[[], "torch.Tensor"]]


def _stale(what: str, produce: Callable[[int], None], consume: Callable[[], torch.Tensor]) -> list[str]:
    """Launches whose result is not the one that the same input gives when everything waits."""
    import torch

    expected = []
    for which in (0, 1):
        torch.cuda.synchronize()
        produce(which)
        torch.cuda.synchronize()
        expected.append(consume().clone())
    if torch.equal(*expected):
        raise Unshown(f"{what} gives one result for two inputs: stale ones could not be told")
    found = []
    for turn in range(ROUNDS):
        produce(turn % 2)
        found.append(consume().clone())
    torch.cuda.synchronize()
    wrong = sum(not torch.equal(one, expected[turn % 2]) for turn, one in enumerate(found))
    nan = sum(bool(torch.isnan(one).any()) for one in found)
    return [f"{what}: {wrong} of {ROUNDS} launches differ, {nan} have a NaN"] if wrong or nan else []


def _moe() -> Work:
    import torch

    layer = moe.made(torch.bfloat16)
    given = [moe.batch(ROWS, torch.bfloat16, seed) for seed in (3, 4)]
    launch = moe.launcher(layer, torch.bfloat16)
    buffer = moe.Batch(given[0].tokens.clone(), given[0].experts.clone(), given[0].weights.clone())
    output = torch.empty_like(buffer.tokens)
    moe.tactics(launch, buffer)

    def produce(which: int) -> None:
        buffer.experts.copy_(given[which].experts)
        buffer.weights.copy_(given[which].weights)
        torch.mul(given[which].tokens, 1.0, out=buffer.tokens)

    return produce, lambda: launch(buffer, output)


def _dense() -> Work:
    import torch

    multiply = upstream("flashinfer").mm_fp4
    torch.manual_seed(5)
    one = torch.ones((), device="cuda")
    inputs = [quantise(torch.randn(ROWS, INNER, device="cuda"), one) for _ in range(2)]
    weight = quantise(torch.randn(COLUMNS, INNER, device="cuda"), one)
    codes, scales = inputs[0].codes.clone(), inputs[0].swizzled.clone()
    swizzled, weight_scales = [matrix.swizzled for matrix in inputs], weight.swizzled

    def produce(which: int) -> None:
        torch.bitwise_or(swizzled[which], 0, out=scales)
        torch.bitwise_or(inputs[which].codes, 0, out=codes)

    def consume() -> torch.Tensor:
        found = multiply(codes, weight.codes.T, scales, weight_scales.T, one, torch.bfloat16, backend="cutlass")
        assert isinstance(found, torch.Tensor)
        return found

    try:
        consume()
        torch.cuda.synchronize()
    except Exception as error:
        raise Unshown(f"mm_fp4 with cutlass does not run here: {short(error)}") from error
    return produce, consume
