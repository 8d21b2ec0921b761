"""What the OEA reference costs on a CUDA device beside the router it follows, and that a graph replays it exactly.

    python benchmarks/oea_reference.py            a table
    python benchmarks/oea_reference.py --json     {"device", "torch", "ratios": {…}, "rows": […]}
    python benchmarks/oea_reference.py --oea PATH a copy of oea.py somewhere else

Needs torch and nothing else; oea.py is loaded by its path. For each router shape and batch size it checks, and fails
if not: (1) no call of the eager step synchronises with the host (torch's sync debug mode raises); (2) a graph captured
once and replayed on new logits and new row counts gives the eager result bit for bit; (3) k0 = k gives the router's own
result bit for bit; (4) real tokens are the same with and without padded rows. Then it times `LAYERS` layers in one
graph: the router alone, the router and OEA, and both with the counters that enabled metrics add. Runs are interleaved,
medians compared. `ratio` is the router and OEA over the router alone: what is paid a layer, before an expert is read.
The router is what SGLang's torch paths do (biased_grouped_topk_impl, fused_topk_torch_native), uncompiled: its kernels
are faster, so the added microseconds say more than the ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
OEA = ROOT / "overlay/sglang/python/sglang/srt/layers/moe/oea.py"
LAYERS = 32
ROUNDS = 15
BATCHES = (8, 16, 32, 64, 128)
# 16 tokens then use 49 of Qwen3-30B's experts, and 38 with k0 = 5; arXiv 2511.02237 reports 48.8 and 35.1.
SKEW = 0.8

Routed = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Shape:
    """One router: its size and how it scores."""

    name: str
    experts: int
    top_k: int
    sigmoid: bool
    k0: int
    groups: int = 1
    topk_group: int = 1


SHAPES = (
    Shape("Qwen3-30B-A3B", 128, 8, sigmoid=False, k0=5),
    Shape("GLM-5", 256, 8, sigmoid=True, k0=5),
    Shape("DeepSeek-V3", 256, 8, sigmoid=True, k0=5, groups=8, topk_group=4),
)


def load(path: Path) -> ModuleType:
    """oea.py, without sglang."""
    spec = spec_from_file_location("oea", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SystemExit(f"{path} is not there. Name a copy of oea.py with --oea.")
    module = module_from_spec(spec)
    sys.modules["oea"] = module  # its NamedTuples look their annotations up there
    spec.loader.exec_module(module)
    return module


def router(oea: ModuleType, shape: Shape) -> Any:
    """The shape as OEA reads it from a TopKConfig."""
    return oea.Router(
        top_k=shape.top_k,
        num_shared=0,
        scoring_func="sigmoid" if shape.sigmoid else "softmax",
        num_groups=shape.groups,
        topk_group=shape.topk_group,
        top2_group_score=shape.sigmoid,
        renormalize=True,
        output_scale=1.0,
        shared_scale=1.0,
    )


def vanilla(shape: Shape, logits: torch.Tensor, bias: torch.Tensor | None) -> Routed:
    """Top-k as SGLang's torch path does it."""
    scores = logits.sigmoid() if shape.sigmoid else logits.softmax(dim=-1)
    choice = scores if bias is None else scores + bias
    if shape.groups > 1:
        groups = choice.view(len(choice), shape.groups, -1)
        chosen = groups.topk(2, dim=-1).values.sum(dim=-1).topk(shape.topk_group, dim=-1, sorted=False).indices
        mask = torch.ones(groups.shape[:2], dtype=torch.bool, device=logits.device).scatter(1, chosen, False)
        choice = groups.masked_fill(mask.unsqueeze(-1), float("-inf")).view_as(choice)
    ids = choice.topk(shape.top_k, dim=-1, sorted=False).indices
    weights = scores.gather(1, ids)
    return weights / weights.sum(dim=-1, keepdim=True), ids.to(torch.int32)


@dataclass(frozen=True)
class Step:
    """One layer's routing on static buffers, as a graph holds them."""

    oea: ModuleType
    shape: Shape
    logits: torch.Tensor
    bias: torch.Tensor | None
    count: torch.Tensor

    def router(self) -> Routed:
        """The router alone."""
        return vanilla(self.shape, self.logits, self.bias)

    def rerouted(self, k0: int | None = None) -> Routed:
        """The router, and OEA after it."""
        return self._route(k0)[1]

    def counted(self) -> torch.Tensor:
        """The same, and the unique experts without and with it."""
        real = self.oea.real_rows(self.logits, self.count)
        described = router(self.oea, self.shape)
        pair = [self.oea.count_unique(described, ids, real, self.shape.experts) for _, ids in self._route(None)]
        return torch.stack(pair)

    def _route(self, k0: int | None) -> tuple[Routed, Routed]:
        own = self.router()
        real = self.oea.real_rows(self.logits, self.count)
        described, k0 = router(self.oea, self.shape), k0 or self.shape.k0
        return own, self.oea.reroute(described, self.logits, self.bias, *own, k0=k0, real=real)


def make(oea: ModuleType, shape: Shape, rows: int, device: torch.device) -> Step:
    """Buffers for a batch of so many rows."""
    bias = torch.linspace(-0.05, 0.05, shape.experts, device=device) if shape.sigmoid else None
    logits = torch.zeros(rows, shape.experts, device=device)
    return Step(oea, shape, logits, bias, torch.full((1,), rows, dtype=torch.int32, device=device))


def refill(step: Step, seed: int, count: int) -> None:
    """New logits of a skewed router, and a new row count, in the same buffers."""
    generator = torch.Generator().manual_seed(seed)
    popular = torch.randn(step.shape.experts, generator=generator) * SKEW
    step.logits.copy_(torch.randn(step.logits.shape, generator=generator) + popular)
    step.count.fill_(count)


def captured(work: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of `work`, warmed up as CUDA wants it, and its outputs."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work()
    return graph, out


@contextmanager
def no_sync() -> Iterator[None]:
    """Every synchronising call raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def equal(a: Routed, b: Routed, rows: int) -> bool:
    """Bit for bit, in the first rows."""
    return all(torch.equal(x[:rows], y[:rows]) for x, y in zip(a, b, strict=True))


def demand(holds: bool, what: str) -> None:
    """Stop with a sentence where a check does not hold."""
    if not holds:
        raise SystemExit(f"FAILED: {what}. Do not use this reference on this device; please report it with the output.")


def check(step: Step) -> None:
    """The four checks of the first docstring."""
    rows, where = step.logits.shape[0], f"{step.shape.name}, {step.logits.shape[0]} rows"
    graph, out = captured(step.rerouted)
    counting, counts = captured(step.counted)
    for seed in range(8):
        count = max(1, rows - seed)
        refill(step, seed, count)
        with no_sync():
            eager, counted, own = step.rerouted(), step.counted(), step.router()
            all_own = step.rerouted(step.shape.top_k)
        graph.replay()
        counting.replay()
        demand(equal(out, eager, rows), f"graph replay differs from eager ({where}, {count} real)")
        demand(torch.equal(counts, counted), f"the counters' replay differs from eager ({where})")
        demand(equal(all_own, own, count), f"k0 = k differs from the router ({where})")
        alone = Step(step.oea, step.shape, step.logits[:count].clone(), step.bias, step.count)
        demand(equal(alone.rerouted(), eager, count), f"padded rows changed a token ({where})")


def repeated(work: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """`LAYERS` times the same work in one graph."""
    return captured(lambda: [work() for _ in range(LAYERS)])[0]


def milliseconds(graph: torch.cuda.CUDAGraph) -> float:
    """One replay, timed on the device."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def measure(step: Step) -> dict[str, Any]:
    """Microseconds a layer, interleaved medians; and the unique experts of one batch."""
    refill(step, 1, step.logits.shape[0])
    graphs = [repeated(work) for work in (step.router, step.rerouted, step.counted)]
    times = [[milliseconds(g) for g in graphs] for _ in range(ROUNDS + 3)][3:]
    alone, both, counting = (statistics.median(column) * 1000 / LAYERS for column in zip(*times, strict=True))
    without, with_it = step.counted().tolist()
    return {
        "shape": step.shape.name,
        "rows": step.logits.shape[0],
        "k0": step.shape.k0,
        "router_us": round(alone, 2),
        "oea_added_us": round(both - alone, 2),
        "ratio": round(both / alone, 3),
        "counters_added_us": round(counting - both, 2),
        "unique_without": without,
        "unique_with": with_it,
    }


def show(result: dict[str, Any]) -> None:
    """The table."""
    print(f"{result['device']}, torch {result['torch']}; {LAYERS} layers a graph, medians of {ROUNDS}")
    columns = list(result["rows"][0])
    print("  ".join(f"{c:>15}" for c in columns))
    for row in result["rows"]:
        print("  ".join(f"{row[c]!s:>15}" for c in columns))
    print("graph replay equals eager, bit for bit; no host sync; k0 = k equals the router; padding changes no token")


def main(argv: list[str] | None = None) -> int:
    """Check, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--oea", type=Path, default=OEA)
    options = parser.parse_args(argv)
    oea = load(options.oea)
    if not torch.cuda.is_available():
        print("This needs a CUDA device, and torch sees none. Run it on a machine with a GPU.", file=sys.stderr)
        return 4
    device, rows = torch.device("cuda"), []
    for shape in SHAPES:
        for batch in BATCHES:
            step = make(oea, shape, batch, device)
            check(step)
            rows.append(measure(step))
    ratios = {f"{row['shape']} {row['rows']}": row["ratio"] for row in rows}
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "ratios": ratios, "rows": rows}
    if options.json:
        print(json.dumps(result))
    else:
        show(result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
