"""moe-smem-carveout: every tactic of the NVFP4 MoE launches, in both output types, and gives the right result.

Without the patch two second-GEMM tactics of each type ask for more shared memory than SM120 has and do not launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from . import moe
from .kit import NOT_APPLICABLE, Answer, Card, Unshown, one_of, short

if TYPE_CHECKING:
    import torch


def check(card: Card) -> Answer:
    """All first-GEMM tactics with the default second one, then the reverse."""
    import torch

    if not moe.is_built_for(card):
        return Answer(NOT_APPLICABLE, f"FlashInfer's CUTLASS MoE takes no NVFP4 on capability {card.capability}")
    failures: list[str] = []
    launched = 0
    for dtype in (torch.bfloat16, torch.float16):
        layer, given = moe.made(dtype), moe.batch(384, dtype, 1)
        launch, expected = moe.launcher(layer, dtype), moe.reference(layer, given)
        counts = moe.tactics(launch, given)
        if moe.distance(launch(given), expected) > moe.FAR:
            raise Unshown("the default tactics already differ from plain torch, so that no other can be judged")
        for what, chosen in _each(counts):
            launched += 1
            said = _tried(launch, given, expected, chosen)
            failures += [f"{what} with {str(dtype).removeprefix('torch.')} {said}"] if said else []
    return one_of(failures, f"{launched} tactics in bfloat16 and float16 launch and agree with plain torch")


def _each(counts: moe.Tactics) -> Iterator[tuple[str, Callable[[int, Any], int]]]:
    for gemm, first, count in ((1, 0, counts.first), (2, counts.first, counts.second)):
        for tactic in range(first, first + count):
            yield f"tactic {tactic} of GEMM {gemm}", partial(_only, gemm, tactic)


def _only(gemm: int, tactic: int, which: int, _: Any) -> int:
    return tactic if which == gemm else -1


def _tried(
    launch: Callable[[moe.Batch], torch.Tensor],
    given: moe.Batch,
    expected: torch.Tensor,
    chosen: Callable[[int, Any], int],
) -> str:
    """What is wrong with a tactic; empty where nothing is."""
    import torch

    try:
        with moe.choosing(chosen):
            found = launch(given)
            torch.cuda.synchronize()
    except Exception as error:
        return f"does not launch: {short(error)}"
    far = moe.distance(found, expected)
    return f"differs from plain torch by {far:.2g}" if far > moe.FAR else ""
