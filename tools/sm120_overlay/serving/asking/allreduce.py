"""How the ranks add up: upstream's own decisions, as far as they can be had without GPUs.

`CustomAllreduce` decides in its constructor, which is run here as rank 0 of the server on the presented cards: they lie
in one machine, NVLink is a fact of the card, and where it would test peer access or take memory the decision is made.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest import mock

from sm120_overlay.serving.asking import releases
from sm120_overlay.serving.rig.cards import Card
from sm120_overlay.serving.rig.tree import Standing

COMMUNICATORS = "sglang.srt.distributed.device_communicators"
# Where later releases ask what the constructor's own module asked before.
BESIDES = tuple(f"{COMMUNICATORS}.{name}" for name in ("custom_all_reduce_utils", "custom_all_reduce_v2"))
NCCL = "NCCL"
CUSTOM = "custom (one machine)"
UNTESTED = "decided at run time: custom if the peer-to-peer test passes, else NCCL"


class _Reached(Exception):
    """No error: the constructor has come to a step that needs a GPU, which the message names."""


def _reach(step: str) -> Any:
    def stop(*_: Any, **__: Any) -> Any:
        raise _Reached(step)

    return stop


def method(standing: Standing, args: Any, card: Card) -> str:
    """The all-reduce of a decode step's hidden states on one machine."""
    if args.tp_size == 1:
        return "none"
    if args.enable_mscclpp or getattr(args, "enable_torch_symm_mem", False):
        named = "MSCCL++" if args.enable_mscclpp else "torch symmetric memory"
        return f"decided at run time: {named} for the sizes it takes, else as without it"
    if _over_pcie(standing, args):
        return "decided at run time: FlashInfer's PCIe-IPC for the sizes it takes, else as without it"
    return NCCL if args.disable_custom_all_reduce else _constructed(standing, args, card)


def _constructed(standing: Standing, args: Any, card: Card) -> str:
    """What comes of upstream's constructor, and in later releases of the choice between two."""
    module = standing.module(f"{COMMUNICATORS}.custom_all_reduce")
    dist = SimpleNamespace(
        get_backend=lambda group: "gloo",
        Backend=SimpleNamespace(NCCL="nccl"),
        get_rank=lambda group: 0,
        get_world_size=lambda group: args.tp_size,
        all_gather=lambda ranks, mine, group: None,
    )
    same_node = [args.nnodes == 1] * args.tp_size
    peers = (lambda rank, world_size: True) if card.nvlink else _reach("peer")
    facts = {
        "dist": dist,
        "ops": SimpleNamespace(IS_CUSTOM_AR_AVAILABLE=True, meta_size=lambda: 0),
        "in_the_same_node_as": lambda group, source_rank: same_node,
        "is_full_nvlink": lambda devices, world_size: card.nvlink,
        "_can_p2p": peers,
        "can_p2p": peers,
    }
    where = [module, *(standing.module(name) for name in BESIDES if releases.there(name))]
    with ExitStack() as stack:
        for one, name in ((one, name) for one in where for name in facts if hasattr(one, name)):
            stack.enter_context(mock.patch.object(one, name, facts[name]))
        try:
            kind = releases.accepted(module.dispatch_custom_allreduce, group=None, device=_device())
            if kind is not module.CustomAllreduce:
                return CUSTOM  # the second kind is chosen by the same tests that its constructor repeats
            stack.enter_context(mock.patch.object(kind, "create_shared_buffer", staticmethod(_reach("memory"))))
            kind(group=None, device=0)
        except _Reached as step:
            return CUSTOM if str(step) == "memory" else UNTESTED
    return NCCL


def _device() -> Any:
    import torch  # seconds, and the `rig` extra

    return torch.device("cuda", 0)


def _over_pcie(standing: Standing, args: Any) -> bool:
    """Whether this release has FlashInfer's all-reduce for PCIe, and would build it for the ranks of a server."""
    name = f"{COMMUNICATORS}.pcie_ipc_ar"
    if not releases.there(name):
        return False
    deterministic = bool(args.enable_deterministic_inference)
    eligible = standing.module(name).eligible_group
    return bool(eligible(group_name="tp", world_size=args.tp_size, deterministic=deterministic))


def fusion(standing: Standing, args: Any) -> str:
    """FlashInfer's fusion of all-reduce and norm: on, off, or asked for without effect.

    The runtime's own gate decides; call it inside `flags.on_card` and with the global server arguments set.
    """
    gate = releases.fusion_gate(standing)
    works = args.tp_size > 1 and bool(gate(1))
    if works or not releases.fusion_asked(args):
        return "on" if works else "off"
    return "off (asked for, and without effect here)"


def quiet() -> None:
    """The constructor's warnings are the reason of its answer; they are wanted once, and not as the server's."""
    logging.getLogger(COMMUNICATORS).setLevel(logging.ERROR)
