"""One layer of experts, run on the CPU as far as its first GPU kernel: how weights are processed, and what runs them.

The layer is the server's own, of the class, quantization and sizes that the model has, with a hidden size small enough
for this machine and weights of zeros. Only NVFP4 is run: the other quantizations process their weights on a GPU.
"""

from __future__ import annotations

import ast
import traceback
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from sm120_overlay.serving.asking.build import on_cpu
from sm120_overlay.serving.asking.trial import Ends
from sm120_overlay.serving.rig.errors import StubDecided, raised
from sm120_overlay.serving.rig.tree import Standing

HIDDEN = 128  # plus what the model's own leaves modulo 64: upstream pads block scales by that
TOKENS = 2


class ActivationType(IntEnum):
    """FlashInfer's own (flashinfer/tllm_enums.py, 0.7.2), as far as 0.6.14 has the same numbers, and Situ."""

    Gelu = 0
    Relu = 1
    Silu = 2
    Swiglu = 3
    Geglu = 4
    SwigluBias = 5
    Relu2 = 6
    Identity = 9
    Situ = 10


def is_nvfp4(layer: Any) -> bool:
    """Whether the layer holds ModelOpt's NVFP4 experts."""
    return hasattr(layer, "w13_blockscale_swizzled")


def auto_is_cutlass(standing: Standing) -> bool:
    """Whether this release runs NVFP4 experts by sgl-kernel's CUTLASS where no runner is named."""
    method = standing.module("sglang.srt.layers.quantization.modelopt_quant").ModelOptNvFp4FusedMoEMethod
    code = method.apply.__code__
    return "cutlass_moe_fp4" in code.co_names + code.co_varnames


def small(name: str, layer: Any) -> Any:
    """A layer like this one, on the CPU and of zeros; `name` is its name in the model, which quantization goes by."""
    import torch  # seconds, and the `rig` extra

    config = layer.moe_runner_config
    with on_cpu():
        made = type(layer)(
            num_experts=layer.num_experts, hidden_size=HIDDEN + layer.hidden_size % 64,
            intermediate_size=config.intermediate_size_per_partition * layer.moe_tp_size, layer_id=layer.layer_id,
            top_k=config.top_k, num_fused_shared_experts=layer.num_fused_shared_experts,
            quant_config=layer.quant_config, prefix=name, params_dtype=torch.bfloat16, activation=config.activation,
            apply_router_weight_on_input=config.apply_router_weight_on_input, is_gated=config.is_gated,
        )  # fmt: skip
    for parameter in made.parameters():
        parameter.data = torch.zeros(parameter.shape, dtype=parameter.dtype)
    return made


def processed(layer: Any) -> Any:
    """The layer after upstream's own processing of its weights."""
    with on_cpu():
        layer.quant_method.process_weights_after_loading(layer)
    return layer


def first_kernel(standing: Standing, layer: Any) -> str:
    """The first GPU kernel that a forward pass of the layer comes to, by its dotted name."""
    import torch

    dispatch = standing.module("sglang.srt.layers.moe.token_dispatcher.standard").StandardDispatchOutput
    quant = standing.module("sglang.srt.layers.quantization.modelopt_quant")
    top = layer.moe_runner_config.top_k or 1
    weights, ids = torch.ones(TOKENS, top), torch.zeros(TOKENS, top, dtype=torch.int32)
    tokens = torch.zeros(TOKENS, layer.hidden_size, dtype=torch.bfloat16)
    routed = SimpleNamespace(topk_weights=weights, topk_ids=ids, format=None)
    core = standing.module("flashinfer.fused_moe.core")
    # With DP attention it depends on the step's padding, and only where the output's memory comes from.
    with (
        on_cpu(),
        mock.patch.object(quant, "is_allocation_symmetric", lambda: False, create=True),
        mock.patch.dict(vars(core), ActivationType=ActivationType),
    ):
        try:
            return _until_kernel(lambda: layer.quant_method.apply(layer, dispatch(tokens, None, routed)))
        except AttributeError as error:
            raise _missing(error, standing, layer) from None


def _until_kernel(step: Callable[[], Any]) -> str:
    """The GPU kernel that ends the step; "none" where it comes to its end.

    Modules that import sgl-kernel only if there is CUDA did not: there the kernel is a name that is missing.
    """
    before = len(raised)
    try:
        step()
    except StubDecided as kernel:
        del raised[before:]
        return kernel.path
    except NameError as error:
        if not _imported_from_kernels(error):
            raise
        return f"sgl_kernel.{error.name}"
    return "none"


def _missing(error: AttributeError, standing: Standing, layer: Any) -> Exception:
    """The end of the server, where a kernel needs of the layer what the processing of its weights did not make."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if standing.tree in Path(frame.filename).parents]
    if not ours or not str(error).startswith(f"'{type(layer).__name__}' object has no attribute"):
        return error
    where = f"{Path(ours[-1].filename).relative_to(standing.tree)}:{ours[-1].lineno}"
    return Ends(str(error), where, AttributeError)


def _imported_from_kernels(error: NameError) -> bool:
    """Whether the module that misses the name imports it from sgl_kernel, under a condition."""
    module = ast.parse(Path(traceback.extract_tb(error.__traceback__)[-1].filename).read_text(encoding="utf-8"))
    kernels = (node for node in ast.walk(module) if isinstance(node, ast.ImportFrom) and node.module == "sgl_kernel")
    return any(error.name == alias.name for node in kernels for alias in node.names)


def kernel_entry(standing: Standing, layer: Any) -> str:
    """Upstream's `cutlass_moe_fp4` itself, given this rank's experts and the parameters that their processing makes.

    For a layer whose processing fails before it: the assertion that lies behind. Its first kernel where it has none.
    """
    import torch

    params = standing.module("sglang.srt.layers.moe.cutlass_moe_params")
    entry = standing.module("sglang.srt.layers.moe.cutlass_moe").cutlass_moe_fp4
    size, hidden = layer.moe_runner_config.intermediate_size_per_partition, layer.hidden_size
    top, scale = layer.moe_runner_config.top_k or 1, torch.ones(layer.num_local_experts)
    known = params.CutlassMoEParams(
        params.CutlassMoEType.BlockscaledFP4, torch.device("cpu"), layer.num_experts, size, hidden
    )
    call = {
        "a": torch.zeros(TOKENS, hidden, dtype=torch.bfloat16), "a1_gscale": scale, "a2_gscale": scale,
        "w1_fp4": layer.w13_weight.data, "w1_blockscale": layer.w13_blockscale_swizzled.data, "w1_alphas": scale,
        "w2_fp4": layer.w2_weight.data, "w2_blockscale": layer.w2_blockscale_swizzled.data, "w2_alphas": scale,
        "topk_weights": torch.ones(TOKENS, top), "topk_ids": torch.zeros(TOKENS, top, dtype=torch.int32),
        "params": known,
    }  # fmt: skip
    return _until_kernel(lambda: entry(**call))
