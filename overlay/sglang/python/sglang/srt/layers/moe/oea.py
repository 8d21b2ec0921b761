"""OEA routing: fewer different experts in a decode batch.

The simplified form of opportunistic expert activation (arXiv:2511.02237). Each
token keeps its top-k0 experts; the union of those over the decode batch is the
active set; the other k - k0 slots are filled with the token's best experts inside
the active set. A token that finds fewer than k there keeps its own. A decode step
reads the weights of every expert in use, so fewer of them is less to read.

What may live here: the routing itself (`reroute`, torch only, static shapes, no
host sync), what of a model it can honour (`Router`), the state of this process
(`install`, `decode_batch`), its server arguments and its counters. Everything of
sglang is imported where it is used: this file runs with torch alone. It serves
SGLang 0.5.9, 0.5.16 and 0.5.23: where they differ, it asks the code that is there.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    List,
    NamedTuple,
    Optional,
    Set,
    Tuple,
)

import torch

if TYPE_CHECKING:
    from sglang.srt.eplb.expert_location_dispatch import ExpertLocationDispatchInfo
    from sglang.srt.layers.moe.topk import TopKConfig
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.server_args import ServerArgs

logger = logging.getLogger(__name__)

# Not measured: in the union of a few tokens there is little to choose from.
DEFAULT_MIN_TOKENS = 4

# One flag per expert and, last, the number of tokens. Of fixed size, because a rank
# without tokens takes part without knowing the layer.
_MESSAGE_SIZE = 2048

# -------------------------------- routing -----------------------------------


class Router(NamedTuple):
    """What of a layer's TopKConfig decides its routing, as select_experts reads it."""

    top_k: int  # routed experts a token, without the fused shared expert
    num_shared: int  # fused shared experts: 0 or 1, the last column
    scoring_func: str  # "softmax" or "sigmoid"
    num_groups: int  # 1: no grouped top-k
    topk_group: int
    top2_group_score: bool  # a group's score: sum of its best two, else its best
    renormalize: bool
    output_scale: float  # on the routed weights
    shared_scale: float  # routed sum / shared_scale = weight of the shared expert
    shared_constant: bool = False  # that weight does not depend on the routed ones


class _Select(NamedTuple):
    """What this release's select_experts makes of a TopKConfig, where releases differ."""

    grouped_scoring: bool  # scoring_func counts in a grouped top-k without bias
    free_scaling: bool  # the factor and the shared weight do not ask for renormalize


@functools.lru_cache(maxsize=1)
def _select() -> _Select:
    from sglang.srt.layers.moe import topk

    return _Select(
        # Since 0.5.16.
        "scoring_func" in inspect.signature(topk.grouped_topk_gpu).parameters,
        # 0.5.23 came with this function for both.
        hasattr(topk, "fused_shared_expert_weight"),
    )


def _num_shared(config: TopKConfig) -> int:
    if hasattr(config, "num_shared_topk_slots"):  # 0.5.23
        return config.num_shared_topk_slots
    return config.num_fused_shared_experts


def router_of(config: TopKConfig) -> Router:
    """Read a TopKConfig. Raises ValueError with the reason where OEA cannot honour it."""
    select = _select()
    shared, factor = _num_shared(config), config.routed_scaling_factor
    grouped, biased = config.use_grouped_topk, config.correction_bias is not None
    on_output = config.apply_routed_scaling_factor_on_output
    if config.custom_routing_function is not None:
        raise ValueError("it has a custom_routing_function, whose scores are unknown")
    if config.scoring_func not in ("softmax", "sigmoid"):
        raise ValueError(f"its scoring function is {config.scoring_func!r}")
    if biased and not grouped and config.scoring_func == "softmax":
        raise ValueError(
            "it has softmax scores with a correction bias, which fused_topk ignores "
            "and fused_topk_torch_native applies"
        )
    if biased and grouped and not config.renormalize and not select.free_scaling:
        raise ValueError(
            "it has a correction bias without renormalization, which moe_fused_gate "
            "ignores and biased_grouped_topk_impl obeys"
        )
    if shared not in (0, 1) or (shared and (not grouped or not factor)):
        raise ValueError(
            f"it has {shared} fused shared experts, and only one, in a grouped top-k "
            "with a routed_scaling_factor, is covered"
        )
    if on_output and not factor:
        raise ValueError("it applies a routed_scaling_factor that it does not have")
    if on_output and not (config.renormalize or grouped or select.free_scaling):
        raise ValueError(
            "it scales weights that it does not renormalize, which topk_sigmoid "
            "ignores and moe_fused_gate obeys"
        )
    scales = on_output and (config.renormalize or select.free_scaling)
    scoring_func = config.scoring_func
    if grouped and biased:
        scoring_func = "sigmoid"
    elif grouped and not select.grouped_scoring:
        scoring_func = "softmax"
    return Router(
        top_k=config.top_k - shared,
        num_shared=shared,
        scoring_func=scoring_func,
        num_groups=config.num_expert_group if grouped else 1,
        topk_group=config.topk_group if grouped else 1,
        top2_group_score=biased,
        renormalize=config.renormalize,
        output_scale=factor if scales else 1.0,
        shared_scale=factor if shared else 1.0,
        shared_constant=select.free_scaling,
    )


def _best_first(choice: torch.Tensor) -> torch.Tensor:
    """Indices in descending order; of equals, the lowest index first."""
    return choice.sort(dim=-1, descending=True, stable=True).indices


def _score(
    router: Router, router_logits: torch.Tensor, bias: Optional[torch.Tensor]
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Scores that weigh and scores that order, in fp32, (tokens, experts) each."""
    logits = router_logits.float()
    if router.scoring_func == "sigmoid":
        scores = logits.sigmoid()
    else:
        scores = logits.softmax(dim=-1)
    return scores, scores if bias is None else scores + bias.float()


def _in_token_groups(
    router: Router, choice: torch.Tensor, own: torch.Tensor
) -> torch.Tensor:
    """(tokens, experts): whether an expert is in one of the token's topk_group groups.

    The groups of the experts that it has come first, so that a tie, or a rounding of
    another kernel, cannot choose groups that they are not in.
    """
    num_experts = choice.shape[1]
    size = num_experts // router.num_groups
    groups = choice.view(-1, router.num_groups, size)
    if router.top2_group_score:
        group_score = groups.topk(min(2, size), dim=-1).values.sum(dim=-1)
    else:
        group_score = groups.amax(dim=-1)
    group_score = group_score.scatter(1, own // size, float("inf"))
    chosen = _best_first(group_score)[:, : router.topk_group]
    mask = torch.zeros_like(group_score, dtype=torch.bool).scatter(1, chosen, True)
    return mask.unsqueeze(-1).expand(-1, -1, size).reshape(-1, num_experts)


def _mark(ids: torch.Tensor, rows: torch.Tensor, num_experts: int) -> torch.Tensor:
    """(experts,): whether an expert is among the ids of the marked rows."""
    where = ids.masked_fill(~rows.unsqueeze(1), num_experts).flatten()
    flags = torch.zeros(num_experts + 1, dtype=torch.bool, device=ids.device)
    return flags.scatter(0, where, True)[:num_experts]


def _top_own(choice: torch.Tensor, own: torch.Tensor, k0: int) -> torch.Tensor:
    """(tokens, k0): the best k0 of the experts that a token has."""
    own = own.sort(dim=-1).values
    return own.gather(1, _best_first(choice.gather(1, own))[:, :k0])


def _exchange(
    active: torch.Tensor, num_real: torch.Tensor, reduce: Callable
) -> Tuple[torch.Tensor, torch.Tensor]:
    """The union and the number of tokens over all ranks."""
    num_experts = active.shape[0]
    assert num_experts < _MESSAGE_SIZE
    message = torch.zeros(_MESSAGE_SIZE, dtype=torch.float32, device=active.device)
    message[:num_experts] = active.float()
    message[-1:] = num_real.float()
    message = reduce(message)
    return message[:num_experts] > 0, message[-1:]


def _weigh(router: Router, scores: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Weights of the routed columns."""
    weights = scores.gather(1, ids)
    if router.renormalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights * router.output_scale


def real_rows(
    router_logits: torch.Tensor, num_token_non_padded: Optional[torch.Tensor]
) -> torch.Tensor:
    """(tokens,): which rows are tokens and not padding; all, where no count is known."""
    rows = torch.arange(router_logits.shape[0], device=router_logits.device)
    if num_token_non_padded is None:
        return rows >= 0
    return rows < num_token_non_padded


def reroute(
    router: Router,
    router_logits: torch.Tensor,
    correction_bias: Optional[torch.Tensor],
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    *,
    k0: int,
    min_tokens: int = 1,
    real: Optional[torch.Tensor] = None,
    reduce: Optional[Callable[[torch.Tensor], torch.Tensor]] = None,
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Route a decode batch by OEA, given how it was routed without.

    A token whose experts are all in the union keeps its row bit for bit, so k0 = k
    changes nothing whatever the kernel that routed does with ties. So does one for
    which the union has fewer than k. Static shapes, no host sync.

    Args:
        router_logits: (tokens, experts), correction_bias: (experts,)
        topk_weights, topk_ids: (tokens, router.top_k + router.num_shared), logical ids
        k0: experts of its own that each token keeps, 0 < k0 <= router.top_k
        min_tokens: with fewer real tokens nothing changes
        real: (tokens,) bool, as from real_rows; None: every row
        reduce: element-wise sum over ranks, for a union over all of them

    Returns: weights and ids like those given
    """
    num_experts, k = router_logits.shape[1], router.top_k
    if real is None:
        real = real_rows(router_logits, None)
    scores, choice = _score(router, router_logits, correction_bias)
    # Padding may hold NaN, for which a kernel may give any id.
    own = topk_ids[:, :k].long().clamp(0, num_experts - 1)

    active = _mark(_top_own(choice, own, k0), real, num_experts)
    num_real = real.sum(dtype=torch.int32).view(1)
    if reduce is not None:
        active, num_real = _exchange(active, num_real, reduce)

    allowed = active.unsqueeze(0)
    if router.topk_group < router.num_groups:
        # A padded row has to find active experts, but they need not be good ones.
        in_groups = _in_token_groups(router, choice, own)
        allowed = allowed & (in_groups | ~real.unsqueeze(1))
    allowed = allowed.expand(choice.shape)

    ids = _best_first(choice.masked_fill(~allowed, float("-inf")))[:, :k]
    # With too few a row keeps its own: MoE kernels count on k different experts.
    enough = allowed.gather(1, ids).all(dim=-1)
    weights = _weigh(router, scores, ids)

    if router.num_shared:
        shared_weight = topk_weights[:, k:]
        if not (router.renormalize or router.shared_constant):
            shared_weight = weights.sum(dim=-1, keepdim=True) / router.shared_scale
        weights = torch.cat([weights, shared_weight], dim=1)
        ids = torch.cat([ids, topk_ids[:, k:].long()], dim=1)

    changes = (num_real >= min_tokens) & enough & ~active[own].all(dim=-1)
    changes = changes.unsqueeze(1)
    return (
        torch.where(changes, weights.to(topk_weights.dtype), topk_weights),
        torch.where(changes, ids.to(topk_ids.dtype), topk_ids),
    )


def count_unique(
    router: Router, topk_ids: torch.Tensor, real: torch.Tensor, num_experts: int
) -> torch.Tensor:
    """How many routed experts the real rows use: a scalar on the device."""
    return _mark(topk_ids[:, : router.top_k].long(), real, num_experts).sum()


# -------------------------------- this process ------------------------------


class _Layer(NamedTuple):
    row: int  # in the counters
    router: Router
    config: TopKConfig  # kept alive: layers are found by its id


class _Runtime:
    """What OEA does in this process. There is one model and one thread that runs it."""

    def __init__(self, k0: int, min_tokens: int, reduce: Optional[Callable]):
        self.k0 = k0
        self.min_tokens = min_tokens
        self.reduce = reduce
        self.layers: Dict[int, _Layer] = {}
        self.names: List[str] = []
        # (layers, 3): decode steps, sum of unique experts without OEA and with it
        self.counters: Optional[torch.Tensor] = None


@dataclass
class DecodeBatch:
    """The decode batch that the model is running, as far as routing must know it."""

    num_token_non_padded: Optional[torch.Tensor]
    decodes: bool = True  # and is not an idle rank's, which only joins the union
    routed: Set[int] = field(default_factory=set)  # rows of the layers that came here
    without_tokens: int = 0  # layers that had no token to route


_runtime: Optional[_Runtime] = None
_batch: Optional[DecodeBatch] = None


def is_on() -> bool:
    """Whether this process routes by OEA."""
    return _runtime is not None


def counts_alone() -> bool:
    """Whether only OEA asks for the row count: no padded row may be masked by it then.

    Since 0.5.23, where TopK would find the count by itself.
    """
    if _runtime is None:
        return False
    from sglang.srt.model_executor.forward_batch_info import masks_padded_tokens

    return not masks_padded_tokens()


def decode_batch() -> Optional[DecodeBatch]:
    """The running decode batch; None if it is not one, or OEA is off."""
    return _batch


def _num_real(forward_batch: ForwardBatch) -> Optional[torch.Tensor]:
    """The number of rows that are tokens, of those that a MoE layer of this rank sees."""
    count = forward_batch.num_token_non_padded
    if count is None or not hasattr(forward_batch, "moe_num_token_non_padded"):
        return count
    count = forward_batch.moe_num_token_non_padded()  # since 0.5.23
    if count is None:
        raise RuntimeError(
            "OEA cannot tell which rows of this decode batch are padding: they are not "
            "the last ones. Start without --oea-k0."
        )
    return count


def _batch_of(forward_batch: Optional[ForwardBatch]) -> Optional[DecodeBatch]:
    if forward_batch is None or _runtime is None:
        return None
    mode = forward_batch.forward_mode
    decodes = mode.is_decode() or mode.is_target_verify()
    joins = decodes
    if _runtime.reduce is not None:
        # All ranks or none: an idle rank joins, and a prefill anywhere stops all.
        joins = (decodes or mode.is_idle()) and not forward_batch.is_extend_in_batch
    return DecodeBatch(_num_real(forward_batch), decodes) if joins else None


def _refuse_what_passed_by(batch: DecodeBatch) -> None:
    """Refuse a decode batch of which a layer did not come through select_experts."""
    passed = len(_runtime.names) - len(batch.routed) - batch.without_tokens
    if batch.decodes and passed > 0:
        missing = (
            name for i, name in enumerate(_runtime.names) if i not in batch.routed
        )
        raise RuntimeError(
            f"--oea-k0 does nothing in {passed} of {len(_runtime.names)} MoE layers, "
            f"among them {next(missing)}: their decode batches are routed past "
            "select_experts. Start without --oea-k0."
        )


def _watched(forward: Callable) -> Callable:
    """A model's forward that says which batch it runs while it runs."""

    @functools.wraps(forward)
    def watched(*args, **kwargs):
        global _batch
        given = (*args, *kwargs.values())
        forward_batch = next((a for a in given if hasattr(a, "forward_mode")), None)
        outer, _batch = _batch, _batch_of(forward_batch)
        try:
            output = forward(*args, **kwargs)
            if _batch is not None:
                _refuse_what_passed_by(_batch)
            return output
        finally:
            _batch = outer

    return watched


def reroute_batch(
    batch: DecodeBatch,
    topk_config: TopKConfig,
    router_logits: torch.Tensor,
    correction_bias: Optional[torch.Tensor],
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    num_token_non_padded: Optional[torch.Tensor],
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Route a layer of the running decode batch by OEA: logical ids in, and out."""
    layer = _runtime.layers.get(id(topk_config))
    if layer is None:
        raise RuntimeError("OEA meets a TopK that the model did not have at start.")
    if correction_bias is not None and correction_bias.dim() != 1:
        raise RuntimeError("OEA meets a correction bias of each token, of no router.")
    batch.routed.add(layer.row)
    count = num_token_non_padded
    if count is None:
        count = batch.num_token_non_padded
    real = real_rows(router_logits, count)
    before = topk_ids
    topk_weights, topk_ids = reroute(
        layer.router,
        router_logits,
        correction_bias,
        topk_weights,
        topk_ids,
        k0=_runtime.k0,
        min_tokens=_runtime.min_tokens,
        real=real,
        reduce=_runtime.reduce,
    )
    if _runtime.counters is not None:
        num_experts = router_logits.shape[1]
        unique = [
            count_unique(layer.router, ids, real, num_experts)
            for ids in (before, topk_ids)
        ]
        _runtime.counters[layer.row].add_(torch.stack([real.any().long(), *unique]))
    return topk_weights, topk_ids


def apply(
    batch: DecodeBatch,
    topk_config: TopKConfig,
    router_logits: torch.Tensor,
    correction_bias: Optional[torch.Tensor],
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    num_token_non_padded: Optional[torch.Tensor],
    expert_location_dispatch_info: Optional[ExpertLocationDispatchInfo],
) -> Tuple[torch.Tensor, torch.Tensor]:
    """The end of SGLang 0.5.9's select_experts for a decode batch, on logical ids.

    Ends as every path of it does: physical ids, and -1 in padded rows where the model
    gave a count. Since 0.5.16 one last step does that, and reroute_batch is enough.
    """
    from sglang.srt.eplb.expert_location_dispatch import topk_ids_logical_to_physical
    from sglang.srt.layers.moe.topk import _mask_topk_ids_padded_region

    topk_weights, topk_ids = reroute_batch(
        batch,
        topk_config,
        router_logits,
        correction_bias,
        topk_weights,
        topk_ids,
        num_token_non_padded,
    )
    topk_ids = topk_ids_logical_to_physical(topk_ids, expert_location_dispatch_info)
    _mask_topk_ids_padded_region(topk_ids, num_token_non_padded)
    return topk_weights, topk_ids


def join_union(device: torch.device) -> None:
    """Take part in the other ranks' union from a layer that has no tokens here."""
    if _batch is None:
        return
    _batch.without_tokens += 1
    if _runtime.reduce is not None:
        _runtime.reduce(torch.zeros(_MESSAGE_SIZE, dtype=torch.float32, device=device))


def _refuse_format(config: TopKConfig) -> None:
    """Refuse a layer whose TopK.forward_cuda does not come through select_experts."""
    from sglang.srt.layers import moe
    from sglang.srt.layers.moe.topk import TopKOutputFormat

    if hasattr(config, "runner_backend"):  # of each layer, since 0.5.23
        backend = config.runner_backend
    else:
        backend = moe.get_moe_runner_backend()
    runner = getattr(backend, "value", None)
    output_format = config.output_format
    if output_format is None and runner in _BYPASSING_RUNNERS:
        raise ValueError(
            f"the MoE runner {runner} routes by itself, past select_experts"
        )
    plain = not config.use_grouped_topk and config.correction_bias is None
    softmax = config.scoring_func == "softmax" and not config.renormalize
    if runner == "flashinfer_trtllm_routed" and plain and softmax:
        # fused_topk_softmax_torch_raw_logits
        raise ValueError(f"the MoE runner {runner} weighs its experts by their logits")
    if output_format not in (None, TopKOutputFormat.STANDARD):
        raise ValueError(
            f"its top-k output is {output_format.name}, which is not from select_experts"
        )


def install(
    model: torch.nn.Module, server_args: ServerArgs, device: torch.device
) -> None:
    """Turn OEA on for a loaded model. Raises ValueError where it could not be honoured.

    Called before CUDA graphs are captured, and not for a draft model: its tokens are
    only proposals, and each of its layers runs on few of them.
    """
    global _runtime
    from sglang.srt.distributed import get_tp_group
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
    from sglang.srt.layers.moe.topk import TopK

    reduce = get_tp_group().all_reduce if server_args.oea_global_union else None
    runtime = _Runtime(server_args.oea_k0, server_args.oea_min_tokens, reduce)
    experts = 0
    for name, module in model.named_modules():
        experts += isinstance(module, FusedMoE)
        if not isinstance(module, TopK):
            continue
        try:
            _refuse_format(module.topk_config)
            router = router_of(module.topk_config)
            if runtime.k0 > router.top_k:
                raise ValueError(f"it routes to {router.top_k} experts a token")
        except ValueError as e:
            raise ValueError(
                f"--oea-k0 {runtime.k0} cannot be honoured by {name or 'the model'}: {e}. "
                "Start without --oea-k0."
            ) from e
        row = len(runtime.names)
        runtime.layers[id(module.topk_config)] = _Layer(row, router, module.topk_config)
        runtime.names.append(name)
    # A pipeline stage may have none.
    if experts > len(runtime.names) or (not runtime.names and server_args.pp_size == 1):
        raise ValueError(
            f"--oea-k0 would do nothing, or not everywhere: {type(model).__name__} has "
            f"{experts} MoE layers, and {len(runtime.names)} of them route by TopK. "
            "Start without --oea-k0."
        )
    if server_args.enable_metrics:
        runtime.counters = torch.zeros(
            (len(runtime.names), 3), dtype=torch.int64, device=device
        )
    _runtime = runtime
    model.forward = _watched(model.forward)
    logger.info(
        f"OEA routing is on in {len(runtime.names)} layers: k0={runtime.k0}, "
        f"min_tokens={runtime.min_tokens}, "
        f"union={'global' if reduce is not None else 'local'}"
    )


def uninstall() -> None:
    """Forget what `install` did, except that the model's forward stays watched."""
    global _runtime, _batch
    _runtime = _batch = None


# -------------------------------- server arguments --------------------------

# MoeRunnerBackend values for which TopK.forward_cuda does not call select_experts.
_BYPASSING_RUNNERS = (
    "triton_kernel",
    "flashinfer_trtllm",
    "flashinfer_mxfp4",
    "experimental_sgl_trtllm",
)

# What model configs call the number of routed experts a token.
_TOP_K_NAMES = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_topk",
    "moe_k",
    "moe_top_k",
    "top_k_experts",
)


def _environment(field: Any) -> Optional[Any]:
    """An environment variable's value, or None; a value that does not parse is refused."""
    if not field.is_set():
        return None
    try:
        return field.parse(os.environ[field.name])
    except ValueError as e:
        raise ValueError(f"{field.name} cannot be read: {e}.") from e


def _compiles(args: ServerArgs) -> bool:
    """Whether torch.compile sees the model."""
    graphs = getattr(args, "cuda_graph_config", None)  # since 0.5.16
    phases = () if graphs is None else (graphs.decode, graphs.prefill)
    return (
        args.enable_torch_compile
        or getattr(args, "enable_piecewise_cuda_graph", False)
        or any(phase.backend == "tc_piecewise" for phase in phases)
    )


def _attends_in_parallel(args: ServerArgs) -> Tuple[bool, bool]:
    """Whether attention runs data parallel, and whether context parallel."""
    data = args.enable_dp_attention or getattr(args, "attn_dp_size", 1) > 1
    flags = ("enable_nsa_prefill_context_parallel", "enable_prefill_cp")
    sizes = (args.attn_cp_size, getattr(args, "dcp_size", 1))
    context = any(getattr(args, flag, False) for flag in flags) or max(sizes) > 1
    return data, context


def _environs(name: str) -> Any:
    """The value of one of SGLang's own variables; None where this release has it not."""
    from sglang.srt.environ import envs

    return getattr(envs, name).get() if hasattr(envs, name) else None


def _conflict(args: ServerArgs, global_union: bool) -> Optional[str]:
    """What among the resolved arguments OEA cannot work with, as a clause; or None."""
    from sglang.srt.utils import is_hip

    local_batches = args.moe_a2a_backend != "none"
    data_parallel, context_parallel = _attends_in_parallel(args)
    for conflicts, clause in (
        (
            args.device != "cuda" or is_hip(),
            f"device {args.device}: only CUDA's top-k paths are covered",
        ),
        (
            args.moe_runner_backend in _BYPASSING_RUNNERS,
            f"--moe-runner-backend {args.moe_runner_backend}: it routes by itself, past select_experts",
        ),
        (
            args.enable_deterministic_inference,
            "--enable-deterministic-inference: a token's experts depend on the rest of its batch",
        ),
        (
            args.disaggregation_mode == "prefill" or args.is_embedding,
            "--disaggregation-mode prefill and --is-embedding: such a server does not decode",
        ),
        (
            args.dllm_algorithm is not None,
            "--dllm-algorithm: a diffusion LLM has no decode batches",
        ),
        (
            args.enable_two_batch_overlap,
            "--enable-two-batch-overlap: each half would have a union of its own",
        ),
        (
            args.enable_pdmux,
            "--enable-pdmux: prefill and decode run at the same time",
        ),
        (
            _compiles(args),
            "--enable-torch-compile and piecewise CUDA graphs (tc_piecewise): which batch runs is not known in compiled code",
        ),
        (
            getattr(args, "enable_nvidia_megakernel", False),
            "--enable-nvidia-megakernel: it routes by itself, past select_experts",
        ),
        (
            _environs("SGLANG_EXPERIMENTAL_LORA_OPTI"),
            "SGLANG_EXPERIMENTAL_LORA_OPTI: it packs the experts before they are rerouted",
        ),
        (
            _environs("SGLANG_RAGGED_VERIFY_MODE") not in (None, "static"),
            "SGLANG_RAGGED_VERIFY_MODE other than static: the row count is then that of the padded batch",
        ),
        (
            data_parallel and not local_batches,
            "--enable-dp-attention without --moe-a2a-backend: in the gathered batch it is not known which rows are padding",
        ),
        (
            args.moe_dense_tp_size is not None and not local_batches,
            "--moe-dense-tp-size without --moe-a2a-backend: the row count is then that of the dense layers",
        ),
        (
            context_parallel,
            "context parallelism: the row count may then not be that of the rank",
        ),
        (
            global_union and not local_batches,
            "--oea-global-union without --moe-a2a-backend: every rank has the whole batch already",
        ),
        (
            global_union and _environs("SGLANG_SCHEDULER_SKIP_ALL_GATHER"),
            "--oea-global-union with SGLANG_SCHEDULER_SKIP_ALL_GATHER: ranks do not know of each other's prefill",
        ),
    ):
        if conflicts:
            return clause
    return None


def _model_top_k(model_config: Any) -> Optional[int]:
    """The number of routed experts a token by the model's config, or None."""
    config = model_config.hf_text_config
    found = [getattr(config, name, None) for name in _TOP_K_NAMES]
    return next((k for k in found if isinstance(k, int)), None)


class Arguments(NamedTuple):
    """OEA's own server arguments, all of them given."""

    oea_k0: int
    oea_min_tokens: int
    oea_global_union: bool


def resolve_arguments(
    args: ServerArgs, model_config: Callable[[], Any]
) -> Optional[Arguments]:
    """OEA's arguments, filled from the environment; None where it is off.

    Raises ValueError where it would not work. Comes last: other arguments decide the
    MoE runner.

    Args:
        args: every argument as it is resolved, OEA's own as they were given
        model_config: gives the ModelConfig
    """
    from sglang.srt.environ import envs

    k0, min_tokens = args.oea_k0, args.oea_min_tokens
    if k0 is None:
        k0 = _environment(envs.SGLANG_OEA_K0)
    if min_tokens is None:
        min_tokens = _environment(envs.SGLANG_OEA_MIN_TOKENS)
    global_union = args.oea_global_union
    if not global_union:
        global_union = bool(_environment(envs.SGLANG_OEA_GLOBAL_UNION))
    if k0 is None:
        if min_tokens is not None or global_union:
            raise ValueError(
                "--oea-min-tokens and --oea-global-union do nothing without --oea-k0. "
                "Give --oea-k0, or leave them out."
            )
        return None
    if min_tokens is None:
        min_tokens = DEFAULT_MIN_TOKENS
    if min_tokens < 1:
        raise ValueError(f"--oea-min-tokens is {min_tokens}. It must be at least 1.")
    if (clause := _conflict(args, global_union)) is not None:
        raise ValueError(
            f"--oea-k0 does not work with {clause}. Leave one of the two out."
        )
    top_k = _model_top_k(model_config())
    if k0 < 1 or (top_k is not None and k0 > top_k):
        raise ValueError(
            f"--oea-k0 is {k0}. It must be from 1 to the number of experts "
            f"a token{'' if top_k is None else f', which is {top_k}'}."
        )
    return Arguments(k0, min_tokens, global_union)


def resolve_server_args(args: ServerArgs) -> None:
    """Write OEA's arguments, resolved, into ServerArgs whose fields hold the outcome."""
    resolved = resolve_arguments(args, args.get_model_config)
    if resolved is not None:
        for name, value in resolved._asdict().items():
            setattr(args, name, value)


# -------------------------------- counters ----------------------------------


class _Counters:
    """Publishes the device's counters, without waiting for the device.

    Each call starts a copy to the host, and publishes an earlier one if that is done.
    """

    def __init__(self, runtime: _Runtime, labels: Dict[str, str]):
        # The scheduler has set PROMETHEUS_MULTIPROC_DIR by now, and this needs it set.
        from prometheus_client import Counter

        names = [*labels, "layer"]
        self.steps = Counter(
            name="sglang:oea_layer_steps_total",
            documentation="Decode steps that OEA routing has seen, per MoE layer.",
            labelnames=names,
        )
        self.unique = Counter(
            name="sglang:oea_unique_experts_total",
            documentation="Unique experts of those steps, summed: as routed without OEA and with it. Divide by sglang:oea_layer_steps_total.",
            labelnames=[*names, "routing"],
        )
        self.runtime = runtime
        self.labels = labels
        # What the first copy finds is of graph capture and warm-up.
        self.seen: Optional[List[List[int]]] = None
        on_gpu = runtime.counters.is_cuda
        self.host = torch.zeros(
            runtime.counters.shape, dtype=torch.int64, pin_memory=on_gpu
        )
        self.copied = torch.cuda.Event() if on_gpu else None
        self.copying = False

    def log(self) -> None:
        if self.copying and (self.copied is None or self.copied.query()):
            self._publish(self.host.tolist())
            self.copying = False
        if not self.copying:
            self.host.copy_(self.runtime.counters, non_blocking=True)
            if self.copied is not None:
                self.copied.record()
            self.copying = True

    def _publish(self, counted: List[List[int]]) -> None:
        for name, new, old in zip(self.runtime.names, counted, self.seen or counted):
            labels = {**self.labels, "layer": name}
            steps, vanilla, oea = (n - o for n, o in zip(new, old))
            self.steps.labels(**labels).inc(steps)
            self.unique.labels(**labels, routing="vanilla").inc(vanilla)
            self.unique.labels(**labels, routing="oea").inc(oea)
        self.seen = counted


_counters: Optional[_Counters] = None


def log_metrics(labels: Dict[str, str]) -> None:
    """Publish the unique experts per layer; nothing where OEA or metrics are off."""
    global _counters
    if _runtime is None or _runtime.counters is None:
        return
    if _counters is None:
        _counters = _Counters(_runtime, labels)
    _counters.log()
