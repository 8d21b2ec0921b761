"""Bytes for each token of the KV cache, counted by upstream's own functions.

Releases since 0.5.16 count in `pool_configurator`, for a `KVCacheConfigurator` that is made from the ModelRunner; here
it is what those functions ask of it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sm120_overlay.serving.asking import releases
from sm120_overlay.serving.asking.trial import Findings
from sm120_overlay.serving.rig.errors import RigError
from sm120_overlay.serving.rig.tree import Standing

POOLS = "sglang.srt.model_executor.pool_configurator"
CONFIGURATOR = "sglang.srt.mem_cache.kv_cache_configurator"


def counted(standing: Standing, runner: Any, layers: int) -> int:
    """Bytes that upstream makes room by, for a rank's `layers`.

    Raises RigError where a model's layers have caches of several kinds, which share the room by other rules.
    """
    if hasattr(runner, "get_cell_size_per_token"):
        return int(runner.get_cell_size_per_token(layers))
    pools = standing.module(POOLS)
    if runner.is_hybrid_swa or pools.mambaish_config(runner.model_config) is not None:
        raise RigError(f"SGLang {standing.version} shares the KV cache between layers of several kinds: not counted.")
    asked = SimpleNamespace(
        **vars(runner), model_dtype=runner.dtype, mambaish_config=None,
        layer_info=SimpleNamespace(start_layer=0, end_layer=layers, num_effective_layers=layers),
    )  # fmt: skip
    configurator = object.__new__(pools.DefaultPoolConfigurator)
    configurator.kv_cache_dtype_str = getattr(runner, "kv_cache_dtype_str", None)
    return int(configurator._compute_cell_size(asked, layers))


def taken(found: Findings, runner: Any, layers: int) -> int:
    """Bytes that a token's place in the pool takes: what `counted` says, but for DSA models before 0.5.23.

    Their pool's width is `calculate_mla_kv_cache_dim`, which an FP8 cache without trtllm makes larger than what
    was counted (512 + 16 + 128 bytes against 576).
    """
    room = int(found.facts["kv_counted"] or 0)
    if not runner.use_mla_backend:
        return room
    config, width = runner.model_config, _width(found.standing, runner)
    if width is None or _by_width(found.standing):
        return room
    wider = width - config.kv_lora_rank - config.qk_rope_head_dim
    return room + int(wider * runner.kv_cache_dtype.itemsize * layers)


def _width(standing: Standing, runner: Any) -> int | None:
    """Elements of a place in an MLA pool; None where a release does not say."""
    own = getattr(runner, "calculate_mla_kv_cache_dim", None)
    if own is not None:
        return int(own())
    if not releases.there(CONFIGURATOR):
        return None
    width = releases.accepted(
        standing.module(CONFIGURATOR).calculate_mla_kv_cache_dim,
        model_config=runner.model_config, kv_cache_dtype=runner.kv_cache_dtype, server_args=runner.server_args,
    )  # fmt: skip
    return int(width)


def _by_width(standing: Standing) -> bool:
    """Whether this release counts by that width."""
    if not releases.there(POOLS):
        return False
    count = standing.module(POOLS).DefaultPoolConfigurator._compute_cell_size
    return "calculate_mla_kv_cache_dim" in count.__code__.co_names + count.__code__.co_varnames
