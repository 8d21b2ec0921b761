"""FlashInfer's CUTLASS MoE in NVFP4 on small matrices, with its tactics at will, beside the same in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .kit import Card, Fp4, Unshown, quantise, short, upstream

if TYPE_CHECKING:
    import torch

# Two experts a token: sums of two do not depend on who adds first, so that runs can be compared bit for bit.
EXPERTS, TOP_K, HIDDEN, INTER = 8, 2, 1024, 512
FAR = 0.2  # relative: two FP4 roundings of what is accumulated in another order differ by a few hundredths


@dataclass(frozen=True)
class Moe:
    """Weights of a gated layer: `up_gate` is (2 * INTER, HIDDEN) an expert, up first; `down` is (HIDDEN, INTER)."""

    up_gate: tuple[Fp4, ...]
    down: tuple[Fp4, ...]


@dataclass(frozen=True)
class Batch:
    """Tokens (rows, HIDDEN), the experts of each (rows, TOP_K), and their weights."""

    tokens: torch.Tensor
    experts: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True)
class Tactics:
    """How many there are of each GEMM; those of the second follow those of the first."""

    first: int
    second: int


def is_built_for(card: Card) -> bool:
    """FlashInfer 0.6.3 has the NVFP4 MoE for Blackwell alone."""
    return card.major in (10, 12)


def made(dtype: torch.dtype, seed: int = 0) -> Moe:
    """Random weights on the device."""
    import torch

    torch.manual_seed(seed)

    def weights(rows: int, columns: int) -> tuple[Fp4, ...]:
        each = torch.randn(EXPERTS, rows, columns, device="cuda", dtype=dtype) * columns**-0.5
        return tuple(quantise(one) for one in each)

    return Moe(weights(2 * INTER, HIDDEN), weights(HIDDEN, INTER))


def batch(rows: int, dtype: torch.dtype, seed: int) -> Batch:
    """Random tokens, routed at random."""
    import torch

    torch.manual_seed(seed)
    tokens = torch.randn(rows, HIDDEN, device="cuda", dtype=dtype)
    weights, experts = torch.rand(rows, EXPERTS, device="cuda").topk(TOP_K)
    return Batch(tokens, experts.to(torch.int32), weights / weights.sum(-1, keepdim=True))


def reference(moe: Moe, given: Batch) -> torch.Tensor:
    """What the layer should give, FP32: activations are rounded to NVFP4 with a scale of 1, as the kernels do."""
    import torch

    one = torch.ones((), device="cuda")
    tokens = quantise(given.tokens, one).value()
    out = torch.zeros(given.tokens.shape, device="cuda")
    for expert in range(EXPERTS):
        row, slot = torch.nonzero(given.experts == expert, as_tuple=True)
        up, gate = (tokens[row] @ moe.up_gate[expert].value().T).chunk(2, -1)
        inner = quantise(torch.nn.functional.silu(gate) * up, one).value()
        out.index_add_(0, row, inner @ moe.down[expert].value().T * given.weights[row, slot, None])
    return out


def launcher(moe: Moe, dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    """FlashInfer's own function on these weights: a batch, and where to write (default: new, NaN) → (rows, HIDDEN)."""
    import torch

    fused = upstream("flashinfer.fused_moe").cutlass_fused_moe
    one = torch.ones((), device="cuda")

    def packed(matrices: Sequence[Fp4]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        codes = torch.stack([matrix.codes for matrix in matrices]).view(torch.long)
        scales = torch.stack([matrix.swizzled for matrix in matrices]).view(torch.int32)
        return codes, scales, 1.0 / torch.stack([matrix.scale for matrix in matrices]).float()

    (first, first_scales, first_alpha), (second, second_scales, second_alpha) = packed(moe.up_gate), packed(moe.down)
    scales = [one, first_scales, first_alpha, one, second_scales, second_alpha]

    def launch(given: Batch, output: torch.Tensor | None = None) -> torch.Tensor:
        if output is None:
            output = torch.full((given.tokens.shape[0], HIDDEN), float("nan"), device="cuda", dtype=dtype)
        fused(
            given.tokens, given.experts, given.weights, first, second, dtype, quant_scales=scales, output=output
        )  # fmt: skip
        return output

    return launch


@contextmanager
def choosing(tactic: Callable[[int, Any], int]) -> Iterator[None]:
    """Lets `tactic` answer for FlashInfer's tuner: the GEMM's number and the runner → a tactic (-1: default)."""
    tuner = upstream("flashinfer.autotuner").AutoTuner.get()
    real = tuner.choose_one

    def choose(name: str, runners: Sequence[Any], *rest: Any, **more: Any) -> Any:
        if "fused_moe::gemm" not in name:
            return real(name, runners, *rest, **more)
        return runners[0], tactic(int(name[-1]), runners[0])

    tuner.choose_one = choose
    try:
        yield
    finally:
        del tuner.choose_one


def tactics(launch: Callable[..., torch.Tensor], given: Batch) -> Tactics:
    """Counted by FlashInfer's own runner during a launch with the defaults.

    Raises:
        Unshown: the layer cannot be built or launched at all.
    """
    import torch

    counted: list[Tactics] = []

    def note(_: int, runner: Any) -> int:
        inner = runner.fused_moe_runner
        counted.append(Tactics(inner.get_gemm1_tactic_count(), inner.get_gemm2_tactic_count()))
        return -1

    try:
        with choosing(note):
            launch(given)
            torch.cuda.synchronize()
    except Exception as error:
        raise Unshown(f"FlashInfer's CUTLASS MoE does not run here: {short(error)}") from error
    if not counted:
        raise Unshown("FlashInfer's CUTLASS MoE asked its tuner for no tactic")
    return counted[0]


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative, over the whole matrix; infinite where anything is NaN or infinite."""
    import torch

    if not torch.isfinite(found).all():
        return float("inf")
    return float((found.float() - expected).norm() / expected.norm())
