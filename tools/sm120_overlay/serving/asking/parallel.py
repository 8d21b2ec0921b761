"""Standing for one rank of a server, without the others: upstream's own group arithmetic, and no communication."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from sm120_overlay.serving.asking import releases
from sm120_overlay.serving.asking.trial import Ends
from sm120_overlay.serving.rig.tree import Standing

COORDINATOR = "sglang/srt/distributed/parallel_state.py"  # GroupCoordinator


@dataclass
class Group:
    """The group of rank 0, as upstream's code reads it. To communicate over it has no meaning, and no method."""

    ranks: list[int]
    rank: int = 0
    local_rank: int = 0
    rank_in_group: int = 0
    device_group: Any = None
    cpu_group: Any = None
    world_size: int = field(init=False)

    def __post_init__(self) -> None:
        """Derive what upstream asks for."""
        self.world_size = len(self.ranks)
        self.first_rank, self.last_rank = self.ranks[0], self.ranks[-1]
        self.is_first_rank, self.is_last_rank = True, self.world_size == 1


def _of_rank_0(group_ranks: list[list[int]], *_: Any, **__: Any) -> Group:
    ours = next((ranks for ranks in group_ranks if 0 in ranks), None)
    if ours is None:
        raise Ends(
            "the sizes leave rank 0 in no group of ranks (upstream: assert self.cpu_group is not None)", COORDINATOR
        )
    return Group(ours)


@contextmanager
def rank_0(standing: Standing, args: Any, model_config: Any) -> Iterator[None]:
    """Within the block this process is rank 0 of the server that `args` describe, as far as sizes and ranks go.

    The groups are those of upstream's `initialize_model_parallel`, whose assertions hold here too.
    """
    import torch  # seconds, and the `rig` extra

    state = standing.module("sglang.srt.distributed.parallel_state")
    world = args.tp_size * args.pp_size
    width, shared = releases.replicas(args)
    sizes = {
        "tensor_model_parallel_size": args.tp_size,
        "pipeline_model_parallel_size": args.pp_size,
        "expert_model_parallel_size": args.ep_size,
        "attention_data_parallel_size": width if shared else 1,
        "attention_context_model_parallel_size": getattr(args, "attn_cp_size", 1),
        "moe_data_model_parallel_size": getattr(args, "moe_dp_size", 1),
        "backend": "none",
    }
    groups = [name for name, value in vars(state).items() if name in _GROUPS and value is None]
    with ExitStack() as stack:
        for name in groups:
            stack.enter_context(mock.patch.object(state, name, None))
        stack.enter_context(mock.patch.object(state, "_WORLD", Group(list(range(world)))))
        releases.keep_world(standing, state._WORLD)
        stack.enter_context(mock.patch.object(torch.distributed, "is_initialized", lambda: True))
        stack.enter_context(mock.patch.object(torch.distributed, "get_world_size", lambda *_: world))
        stack.enter_context(mock.patch.object(torch.distributed, "get_rank", lambda *_: 0))
        with mock.patch.object(state, "init_model_parallel_group", _of_rank_0):
            releases.accepted(state.initialize_model_parallel, **sizes)
        attention = standing.module("sglang.srt.layers.dp_attention")
        releases.accepted(attention.initialize_dp_attention, server_args=args, model_config=model_config)
        if hasattr(attention, "init_dp_gathered_buffer"):
            attention.init_dp_gathered_buffer(model_config)
        yield


_GROUPS = frozenset({
    "_TP", "_PP", "_ATTN_TP", "_ATTN_CP", "_MOE_DP", "_MOE_EP", "_MOE_TP", "_PDMUX_PREFILL_TP_GROUP", "_DCP",
    "_SHARED_EXPERTS_TP", "_SELF_PP",
})  # fmt: skip
