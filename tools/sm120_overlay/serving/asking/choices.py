"""What was decided, read from the resolved arguments and, for what they leave open, from upstream's run-time functions.

`ROWS` is the contract: the keys of an answer's choices, in the order of the table, with the words for people.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from sm120_overlay.serving.asking import allreduce, kv, releases
from sm120_overlay.serving.asking.trial import Findings, attempt
from sm120_overlay.serving.rig.cards import Card
from sm120_overlay.serving.rig.resolve import attention_backends
from sm120_overlay.serving.rig.tree import Standing

ROWS: Mapping[str, str] = {
    "quantization": "quantization",
    "moe_runner": "MoE runner",
    "moe_first_kernel": "  its first kernel",
    "moe_a2a": "MoE all-to-all",
    "shared_experts_fusion": "shared expert fused",
    "attention_prefill": "attention, prefill",
    "attention_decode": "attention, decode",
    "kv_cache_dtype": "KV cache type",
    "fp4_gemm": "FP4 GEMM",
    "all_reduce": "all-reduce",
    "all_reduce_fusion": "all-reduce fusion",
    "mem_fraction_static": "memory fraction",
    "max_running_requests": "running requests",
    "cuda_graph_max_bs": "largest CUDA graph",
    "chunked_prefill_size": "prefill chunk",
    "page_size": "page size",
    "radix_cache": "radix cache",
    "piecewise_cuda_graph": "piecewise graphs",
    "autotune": "FlashInfer autotune",
}
FROM_KV = "by KV cache size"
UNKNOWN = "unknown"
NOT_REACHED = "not reached"


def of_arguments(args: Any) -> dict[str, Any]:
    """What the resolved arguments say by themselves."""
    prefill, decode = attention_backends(args)
    return {
        "quantization": args.quantization or "none given",
        "moe_runner": args.moe_runner_backend,
        "moe_a2a": args.moe_a2a_backend,
        "attention_prefill": _attention(prefill, releases.sparse_backend(args, "prefill")),
        "attention_decode": _attention(decode, releases.sparse_backend(args, "decode")),
        "mem_fraction_static": round(args.mem_fraction_static, 3),
        "max_running_requests": args.max_running_requests or FROM_KV,
        "cuda_graph_max_bs": releases.largest_graph(args) or "off",
        "chunked_prefill_size": args.chunked_prefill_size if args.chunked_prefill_size > 0 else "off",
        "page_size": args.page_size,
        "radix_cache": "off" if args.disable_radix_cache else "on",
        "piecewise_cuda_graph": releases.prefill_graphs(args),
    }


# Arguments that ROWS shows in their own words, or that follow from those.
SHOWN = frozenset({
    "quantization", "moe_runner_backend", "moe_a2a_backend", "attention_backend", "prefill_attention_backend",
    "decode_attention_backend", "nsa_prefill_backend", "nsa_decode_backend", "dsa_prefill_backend",
    "dsa_decode_backend", "mem_fraction_static",
    "max_running_requests", "cuda_graph_max_bs", "cuda_graph_bs", "disable_cuda_graph", "chunked_prefill_size",
    "page_size", "disable_radix_cache", "enable_piecewise_cuda_graph", "kv_cache_dtype", "fp4_gemm_runner_backend",
})  # fmt: skip


def arguments(args: Any, record: Any) -> dict[str, Any]:
    """Every resolved argument that JSON can say, by upstream's name; with a series' own among them.

    Args:
        record: the ServerArgs that they are of.
    """
    values = {name: getattr(args, name) for name in releases.fields(record)}
    return {name: value for name, value in values.items() if value is None or isinstance(value, _PLAIN)}


_PLAIN = (bool, int, float, str, list)


def _attention(backend: str, sparse: str | None) -> str:
    return f"{backend} ({sparse})" if backend in releases.SPARSE and sparse else str(backend)


def runner(standing: Standing, args: Any, record: Any, model_config: Any, quant_config: Any) -> Any:
    """Upstream's ModelRunner with the attributes its constructor takes from the arguments, and nothing started."""
    module = standing.module("sglang.srt.model_executor.model_runner")
    made = object.__new__(module.ModelRunner)
    width, shared = releases.replicas(args)
    sizes = {
        "tp_size": args.tp_size, "tp_rank": 0, "moe_ep_size": args.ep_size, "moe_ep_rank": 0, "pp_size": args.pp_size,
        "pp_rank": 0, "dp_size": width if shared else 1,
    }  # fmt: skip
    vars(made).update(
        server_args=copy.copy(record), model_config=model_config, device=args.device, gpu_id=0, is_draft_worker=False,
        mem_fraction_static=args.mem_fraction_static, dtype=model_config.dtype, page_size=args.page_size,
        spec_algorithm=module.SpeculativeAlgorithm.from_string(args.speculative_algorithm),
        use_mla_backend=model_config.attention_arch.name == "MLA", is_multimodal=model_config.is_multimodal,
        is_hybrid_swa=model_config.is_hybrid_swa, model=SimpleNamespace(quant_config=quant_config, modules=list),
        ps=SimpleNamespace(**sizes, moe_dp_size=getattr(args, "moe_dp_size", 1)), draft_attention_backend=None, **sizes,
    )  # fmt: skip
    return made


def at_run_time(found: Findings, args: Any, quant_config: Any, made: Any, card: Card) -> None:
    """What the server decides after its arguments: each by upstream's own function, in the place of a scheduler."""
    standing = found.standing
    steps: dict[str, Callable[[], str]] = {
        "kv_cache_dtype": lambda: _kv_type(made),
        "fp4_gemm": lambda: _fp4_gemm(standing, args, quant_config),
        "autotune": lambda: "on" if releases.autotunes(standing, made) else "off",
        "all_reduce": lambda: allreduce.method(standing, args, card),
        "all_reduce_fusion": lambda: allreduce.fusion(standing, args),
    }
    for row, step in steps.items():
        found.choices[row] = attempt(found, ROWS[row], step) or UNKNOWN


def _kv_type(made: Any) -> str:
    made.configure_kv_cache_dtype()
    return str(made.kv_cache_dtype).removeprefix("torch.")


def _fp4_gemm(standing: Standing, args: Any, quant_config: Any) -> str:
    """The backend that FP4 layers ask for; upstream's initialisation reads the environment too."""
    utils = standing.module("sglang.srt.layers.quantization.fp4_utils")
    releases.accepted(utils.initialize_fp4_gemm_config, server_args=args)
    name = quant_config.get_name() if quant_config is not None else ""
    return str(utils.get_fp4_gemm_runner_backend().value) if "fp4" in name else "not used"


def quantized_to(model_config: Any, quant_config: Any) -> str:
    """What the loader takes the checkpoint for, or what its config.json says where the loader refuses; lower case."""
    if quant_config is not None:
        return str(quant_config.get_name()).lower()
    said = getattr(model_config.hf_config, "quantization_config", None) or {}
    return str(said.get("quant_algo", "") if isinstance(said, dict) else "").lower()


def sizes(found: Findings, args: Any, model_config: Any, made: Any) -> None:
    """Facts for the planner: what is divided by what, and bytes for each token of the KV cache."""
    text = model_config.hf_text_config
    width, shared = releases.replicas(args)
    found.facts.update(
        tp=args.tp_size, ep=args.ep_size, dp=width, pp=args.pp_size, dp_attention=shared,
        moe_dp=getattr(args, "moe_dp_size", 1), fraction=args.mem_fraction_static, chunk=args.chunked_prefill_size,
        graph=releases.largest_graph(args), running=args.max_running_requests,
        max_prefill=args.max_prefill_tokens, context=model_config.context_len, page=args.page_size,
        layers=model_config.num_hidden_layers, hidden=model_config.hidden_size, vocab=model_config.vocab_size,
        heads=model_config.num_attention_heads, kv_heads=model_config.get_total_num_kv_heads(),
        max_tokens=args.max_total_tokens, speculative=args.speculative_algorithm, runner=args.moe_runner_backend,
        mla=bool(made.use_mla_backend), draft_tokens=args.speculative_num_draft_tokens or 0,
        experts=_first(text, "n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"),
        top_k=_first(text, "num_experts_per_tok", "moe_top_k"),
        intermediate=_first(text, "moe_intermediate_size") or text.to_dict().get("intermediate_size"),
    )  # fmt: skip
    found.facts["prefill_graphs_mib"] = releases.reserved_for_prefill_graphs(args, mla=made.use_mla_backend)
    found.facts["draft_reserved"] = releases.reserves_for_drafts(args)
    layers = found.facts["layers"] // args.pp_size
    found.facts["kv_counted"] = attempt(found, "KV bytes", lambda: kv.counted(found.standing, made, layers))
    found.facts["kv_taken"] = attempt(found, "KV pool", lambda: kv.taken(found, made, layers))


def _first(config: Any, *names: str) -> int | None:
    values = (getattr(config, name, None) for name in names)
    return next((value for value in values if isinstance(value, int) and value > 1), None)
