"""What releases of SGLang name or keep differently: each is found by what the tree has, never by its version.

Resolved arguments are `rig.resolve.resolved`, a ServerArgs or upstream's view of one.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
from collections.abc import Callable
from typing import Any

from sm120_overlay.serving.rig.tree import Standing

SPARSE = ("nsa", "dsa")  # one attention under two names
CONTEXT = "sglang.srt.runtime_context"
AUTOTUNE = "sglang.srt.model_executor.runner.flashinfer_autotune"
FUSION = (
    ("sglang.srt.layers.communicator", "apply_flashinfer_allreduce_fusion"),
    ("sglang.srt.layers.layer_boundary.residual.add_norm", "flashinfer_ar_fusion_applies"),
)


def there(module: str) -> bool:
    """Whether the tree has one of upstream's modules."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package above it
        return False


def accepted(function: Callable[..., Any], **wanted: Any) -> Any:
    """What the function returns for those of these arguments that this release's takes."""
    known = inspect.signature(function).parameters
    return function(**{name: value for name, value in wanted.items() if name in known})


def fields(record: Any) -> list[str]:
    """Names of the fields of upstream's ServerArgs."""
    if dataclasses.is_dataclass(record):
        return [field.name for field in dataclasses.fields(record)]
    return list(type(record).__struct_fields__)


def sparse_backend(args: Any, phase: str) -> str | None:
    """The kernels of DeepSeek's sparse attention in a phase, prefill or decode; of no meaning without it."""
    names = (f"{of}_{phase}_backend" for of in SPARSE)
    return next((getattr(args, name) for name in names if hasattr(args, name)), None)


def largest_graph(args: Any) -> int:
    """Requests of the largest CUDA graph of the decode; 0 without graphs."""
    phases = getattr(args, "cuda_graph_config", None)
    if phases is None:
        return 0 if args.disable_cuda_graph else max(args.cuda_graph_bs or [0])
    return 0 if phases.decode.backend == "disabled" else max(phases.decode.bs or [0])


def prefill_graphs(args: Any) -> str:
    """How prefills are captured: "off", "on" where a release has one way, else the way's name."""
    phases = getattr(args, "cuda_graph_config", None)
    if phases is None:
        return "on" if getattr(args, "enable_piecewise_cuda_graph", False) else "off"
    return "off" if phases.prefill.backend == "disabled" else str(phases.prefill.backend)


def reserved_for_prefill_graphs(args: Any, *, mla: bool) -> float:
    """MiB that upstream keeps free for the graphs of prefills, and for DeepEP's buffers; 0 where a release does not.

    reserve_for_graph_mb and reserve_for_deepep_a2a_mb (server_args.py of 0.5.16, arg_groups/memory_hook.py of 0.5.23).
    """
    phases = getattr(args, "cuda_graph_config", None)
    if phases is None:
        return 0.0
    graphs = 0.0
    if phases.prefill.backend != "disabled":
        graphs = 1.5 * 1024 if mla else 8.0 * len(phases.prefill.bs)
    buffers = args.moe_a2a_backend == "deepep" and phases.decode.backend != "disabled"
    return graphs + (2.0 * 1024 if buffers else 0.0)


def reserves_for_drafts(args: Any) -> bool:
    """Whether upstream keeps memory free for a draft's weights; later releases count them once they are loaded."""
    return not hasattr(args, "cuda_graph_config")


def replicas(args: Any) -> tuple[int, bool]:
    """Data-parallel ranks, and whether they share the cards of the tensor-parallel group (DP attention)."""
    width = getattr(args, "attn_dp_size", 1)
    if width > 1:
        return width, True
    return args.dp_size, bool(args.enable_dp_attention)


def keep_world(standing: Standing, group: Any) -> None:
    """Tell upstream's context of the group of all ranks, where a release keeps it there; it stays so."""
    parallel: Any = standing.module(CONTEXT).get_parallel() if there(CONTEXT) else None
    if hasattr(parallel, "override_permanently"):
        parallel.override_permanently(world_group=group)


def fusion_gate(standing: Standing) -> Callable[[int], bool]:
    """The runtime's own gate of FlashInfer's fusion of all-reduce and norm."""
    module, name = next(one for one in FUSION if there(one[0]))
    gate: Callable[[int], bool] = getattr(standing.module(module), name)
    return gate


def fusion_asked(args: Any) -> bool:
    """Whether the arguments ask for that fusion."""
    if hasattr(args, "flashinfer_allreduce_fusion_backend"):
        return args.flashinfer_allreduce_fusion_backend is not None
    return bool(args.enable_flashinfer_allreduce_fusion)


def autotunes(standing: Standing, runner: Any) -> bool:
    """Whether this ModelRunner tunes FlashInfer's kernels at its start."""
    own = getattr(runner, "_should_run_flashinfer_autotune", None)
    return bool(own() if own else standing.module(AUTOTUNE).should_run_flashinfer_autotune(runner))
