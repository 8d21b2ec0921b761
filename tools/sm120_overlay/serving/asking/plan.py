"""Arithmetic on an answer: which expert-parallel sizes divide a model, and what fits into a GPU.

Every formula is stated in docs/resolve.md with the line of upstream's source that it is of. Weights and bytes of KV
cache are counted by upstream's own code (see `answer`); here they are added up. Not counted: the CUDA context, NCCL's
buffers, FlashInfer's workspaces and fragmentation, for which nothing here was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

GIB = 1 << 30
MIB_IN_GIB = 1024
SCALE_TILE = 64  # half of the 128 rows that block scales are padded to: gate and up lie in one tensor
TABLE_EXTRA = 4  # places that a request has besides its context
LEAST_REQUESTS, MOST_REQUESTS = 2048, 4096  # without --max-running-requests


@dataclass(frozen=True)
class Split:
    """One expert-parallel size for the given TP."""

    ep: int
    experts: float
    """Experts on a rank."""
    intermediate: float
    """Rows of each of a rank's gate and up projections."""
    fails: tuple[str, ...]
    """Why the server would not run it; empty where it would."""


def splits(facts: Mapping[str, Any]) -> list[Split]:
    """Each EP that divides TP, and the one asked for; whether model, rule of 64 and runner allow it. Dense: empty."""
    if not facts.get("experts") or not facts.get("intermediate"):
        return []
    tp = facts["tp"] // facts["moe_dp"]
    sizes = {ep for ep in range(1, tp + 1) if tp % ep == 0} | {facts["ep"]}
    return [_split(facts, ep, max(1, tp // ep)) for ep in sorted(sizes)]


def _split(facts: Mapping[str, Any], ep: int, moe_tp: int) -> Split:
    experts, rows = facts["experts"] / ep, facts["intermediate"] / moe_tp
    runner, nvfp4, made = facts["runner"], facts.get("nvfp4_experts"), facts.get("made_of_auto")
    tp = facts["tp"] // facts["moe_dp"]
    rules = {
        f"EP {ep} does not divide TP {tp}": tp % ep,
        f"{facts['experts']} experts do not divide by {ep}": experts % 1,
        f"intermediate size {facts['intermediate']} does not divide by {moe_tp}": rows % 1,
        f"{rows:g} rows a rank are no multiple of {SCALE_TILE} (NVFP4 block scales)": nvfp4
        and runner != "flashinfer_trtllm"
        and rows % SCALE_TILE,
        "flashinfer_cutlass takes EP 1 or TP": runner == "flashinfer_cutlass" and ep not in (1, facts["tp"]),
        "auto is sgl-kernel's cutlass_moe_fp4, which wants all experts on a rank": nvfp4
        and runner == "auto"
        and facts.get("auto_is_cutlass", True)
        and ep > 1,
        f"auto makes {made} of these weights, which are not laid out for it": nvfp4
        and runner == "auto"
        and made == "flashinfer_trtllm",
    }
    return Split(ep, experts, rows, tuple(rule for rule, broken in rules.items() if broken))


@dataclass(frozen=True)
class Memory:
    """One GPU of the answer, in GiB where nothing else is said. None: the weights could not be counted."""

    total: float
    loading: float
    """Weights at their most, while they load."""
    weights: float
    experts: float
    """The experts' part of them."""
    static: float
    """What the memory fraction gives to weights and KV cache."""
    kv: float
    """What is left of it for the KV cache."""
    tokens: int
    """Tokens that upstream makes room for."""
    pool: float
    """What their places take; more than `kv` where upstream counts fewer bytes than it takes."""
    requests: int
    """Requests that may run at once."""
    table: float
    """The table of their tokens' places."""
    reserve: float
    """Upstream's own estimate for activations and CUDA graphs."""
    left: float
    """What is then left of the card; negative: it does not fit."""
    fraction_fits: float | None
    """The largest memory fraction at which all of this fits; None: none does."""
    graph_fits: int
    """The largest CUDA graph at which all of this fits with the fraction as it is; 0: none."""


def memory(facts: Mapping[str, Any]) -> Memory | None:
    """What one GPU holds."""
    if "weights" not in facts or not facts.get("kv_counted"):
        return None
    total = facts["memory_mib"] / MIB_IN_GIB
    loading, weights, experts = (facts["weights"][part] / GIB for part in ("loading", "loaded", "experts"))
    static = facts["fraction"] * total
    tokens = _tokens(facts, static - weights)
    pool, counted = (tokens * facts[width] / GIB for width in ("kv_taken", "kv_counted"))
    requests = facts["running"] or _requests(tokens, facts["context"])
    table = requests * (facts["context"] + TABLE_EXTRA + facts["draft_tokens"]) * 4 / GIB
    reserve = _fixed(facts) + facts["graph"] * _of_graph(facts, facts["graph"])
    besides = total - static - table - max(0.0, pool - counted)
    return Memory(
        total, loading, weights, experts, static, static - weights, tokens, pool, requests, table, reserve,
        besides - reserve, _fraction(facts, total, weights, table + reserve),
        _graph(facts, besides - _fixed(facts)),
    )  # fmt: skip


def _tokens(facts: Mapping[str, Any], kv: float) -> int:
    tokens = int(max(0.0, kv) * GIB) // facts["kv_counted"]
    tokens = min(tokens, facts.get("max_tokens") or tokens)
    return int(tokens // facts["page"] * facts["page"])


def _requests(tokens: int, context: int) -> int:
    return min(max(int(tokens / context * 512), LEAST_REQUESTS), MOST_REQUESTS)


def _fixed(facts: Mapping[str, Any]) -> float:
    """Upstream's estimate less what grows with the CUDA graphs of the decode."""
    chunk = facts["chunk"] * (facts["dp"] if facts["dp_attention"] else 1)
    mib = 512 + 1.5 * max(chunk if chunk > 0 else facts["max_prefill"], 2048) + facts["tp"] * facts["pp"] / 8 * 1024
    mib += facts.get("prefill_graphs_mib", 0.0)
    drafts = {None: 0.0, "NGRAM": 0.0, "STANDALONE": 6.0 * 1024}
    if facts.get("draft_reserved", True):
        mib += drafts.get(facts.get("speculative"), 2.0 * 1024)
    return float(mib) / MIB_IN_GIB


def _of_graph(facts: Mapping[str, Any], graph: int) -> float:
    """Upstream's estimate for each request of the largest CUDA graph."""
    padded = (3 + 1.5 * (graph > 300)) * int(facts["dp"]) if facts["dp_attention"] else 0.0
    return (2 + padded) / MIB_IN_GIB


def _fraction(facts: Mapping[str, Any], total: float, weights: float, besides: float) -> float | None:
    """The f at which f·total·r + besides = total + weights·(r - 1), r being bytes taken for each byte counted."""
    ratio = facts["kv_taken"] / facts["kv_counted"] if facts.get("kv_taken") else 1.0
    fits = int((total - besides + weights * (ratio - 1)) / (total * ratio) * 1000) / 1000
    return fits if fits * total > weights else None


def _graph(facts: Mapping[str, Any], room: float) -> int:
    return max(0, min(int(room / _of_graph(facts, 0)), 512)) if room > 0 else 0


def crashes(found: Memory | None) -> list[str]:
    """What would end the server for want of memory, whatever the load."""
    if found is None:
        return []
    held = found.weights + found.pool + found.table
    said = {
        f"the weights take {found.loading:.1f} GiB while they load, and the card has {found.total:.1f}": found.loading
        > found.total,
        f"the memory fraction gives {found.static:.1f} GiB, and the weights take {found.weights:.1f}: "
        "no room for a KV cache (upstream: Not enough memory)": found.tokens <= 0,
        f"weights, KV cache and the requests' table take {held:.1f} GiB, and the card has {found.total:.1f}": held
        > found.total,
    }
    return [sentence for sentence, true in said.items() if true]


def plan(facts: Mapping[str, Any]) -> dict[str, Any]:
    """All of it as JSON has it."""
    if "tp" not in facts:
        return {"splits": [], "memory": None, "crashes": []}
    found = memory(facts)
    listed = [{**asdict(split), "fails": list(split.fails)} for split in splits(facts)]
    return {"splits": listed, "memory": asdict(found) if found else None, "crashes": crashes(found)}
