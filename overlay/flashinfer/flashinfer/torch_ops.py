"""
Copyright (c) 2026 The SM120 Overlay authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

  http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.

FP4 quantization and the CUTLASS fused MoE as operators of torch.library, which torch.compile puts into its graph
without a look inside: there a module is compiled in a process of its own, behind a lock, and tactics are chosen.

They are `torch.ops.sm120_overlay.fp4_quantize` and `torch.ops.sm120_overlay.cutlass_fused_moe`. Later releases have
operators in the namespace `flashinfer` with other arguments. The public functions go through them while torch.compile
or torch.export traces, and only then. An operator has the arguments of every release that carries this file, and hands
on those that the function beside it takes.
"""

import functools
import inspect
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

# What an operator runs: the public function of its name, as it is without tracing, and what that takes, in its order.
_eager: Dict[str, Callable[..., Any]] = {}
_takes: Dict[str, Tuple[str, ...]] = {}


def traced_as(
    traced: Callable[..., Any],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Has `traced`, which takes the same arguments by name, stand for the decorated function in a traced graph."""

    def decorate(eager: Callable[..., Any]) -> Callable[..., Any]:
        names = tuple(inspect.signature(eager).parameters)
        _eager[eager.__name__], _takes[eager.__name__] = eager, names

        @functools.wraps(eager)
        def call(*args, **kwargs):
            if torch.compiler.is_compiling():
                return traced(**dict(zip(names, args, strict=False)), **kwargs)
            return eager(*args, **kwargs)

        return call

    return decorate


def _run(name: str, arguments: Dict[str, Any]) -> Any:
    takes = _takes[name]
    return _eager[name](**{key: arguments[key] for key in arguments if key in takes})


@torch.library.custom_op("sm120_overlay::fp4_quantize", mutates_args=())
def _fp4_quantize(
    input: torch.Tensor,
    global_scale: Optional[torch.Tensor] = None,
    sf_vec_size: int = 16,
    sf_use_ue8m0: bool = False,
    is_sf_swizzled_layout: bool = True,
    is_sf_8x4_layout: bool = False,
    enable_pdl: Optional[bool] = None,
    is_global_scale_inversed: bool = False,
    nvfp4_4over6_code: int = -1,
) -> Tuple[torch.Tensor, torch.Tensor]:
    # None is decided at run time.
    arguments = dict(locals())
    if "nvfp4_4over6" in _takes["fp4_quantize"]:
        from .quantization.nvfp4_quantization_utils import nvfp4_4over6_from_code

        arguments["nvfp4_4over6"] = nvfp4_4over6_from_code(nvfp4_4over6_code)
    return _run("fp4_quantize", arguments)


@_fp4_quantize.register_fake
def _(
    input: torch.Tensor,
    global_scale: Optional[torch.Tensor] = None,
    sf_vec_size: int = 16,
    sf_use_ue8m0: bool = False,
    is_sf_swizzled_layout: bool = True,
    is_sf_8x4_layout: bool = False,
    enable_pdl: Optional[bool] = None,
    is_global_scale_inversed: bool = False,
    nvfp4_4over6_code: int = -1,
) -> Tuple[torch.Tensor, torch.Tensor]:
    if sf_vec_size not in (16, 32):
        raise NotImplementedError("sf_vec_size can only be 16 or 32")
    is_column_major = input.stride(-2) == 1
    if is_column_major:
        input = input.transpose(-2, -1)
    *rows, k = input.shape
    torch._check(
        k % sf_vec_size == 0, lambda: f"K = {k} is not divisible by {sf_vec_size}"
    )
    m, columns = 1, k // sf_vec_size
    for size in rows:
        m = m * size
    if is_sf_swizzled_layout:
        tile = 8 if is_sf_8x4_layout else 128
        m, padded = (m + tile - 1) // tile * tile, (columns + 3) // 4 * 4
        if "is_global_scale_inversed" in _takes["fp4_quantize"]:
            columns = padded
        else:
            # 0.6.3 cuts what is padded to `padded` columns into rows of `columns`.
            size = m * padded
            torch._check(
                size % columns == 0,
                lambda: (
                    f"K = {k} cannot have swizzled scale factors: use a multiple of {4 * sf_vec_size}"
                ),
            )
            m = size // columns
    x_q = torch.empty((*rows, k // 2), dtype=torch.uint8, device=input.device)
    sf = torch.empty((m, columns), dtype=torch.uint8, device=input.device)
    if is_column_major:
        return x_q.transpose(-2, -1), sf.transpose(-2, -1)
    return x_q, sf


def fp4_quantize(
    input: torch.Tensor, *, backend: str = "cuda", **more: Any
) -> Tuple[torch.Tensor, torch.Tensor]:
    if backend != "cuda":
        raise NotImplementedError(f"fp4_quantize: {backend!r} cannot be traced")
    if "nvfp4_4over6" in more:
        from .quantization import nvfp4_quantization_utils as utils

        recipe = more.pop("nvfp4_4over6")
        if recipe is not utils._UNSET:
            recipe = utils.resolve_nvfp4_4over6(recipe)
            more["nvfp4_4over6_code"] = utils.nvfp4_4over6_code(recipe)
    return _fp4_quantize(input, **more)


# Writes into `output`, as the kernel does: callers bring memory of their own (SGLang: symmetric memory).
@torch.library.custom_op(
    "sm120_overlay::cutlass_fused_moe", mutates_args=("output", "workspace_buffer")
)
def _cutlass_fused_moe(
    output: torch.Tensor,
    input: torch.Tensor,
    token_selected_experts: torch.Tensor,
    token_final_scales: Optional[torch.Tensor],
    fc1_expert_weights: torch.Tensor,
    fc2_expert_weights: torch.Tensor,
    output_dtype: torch.dtype,
    quant_scales: List[Optional[torch.Tensor]],
    fc1_expert_biases: Optional[torch.Tensor] = None,
    fc2_expert_biases: Optional[torch.Tensor] = None,
    input_sf: Optional[torch.Tensor] = None,
    swiglu_alpha: Optional[torch.Tensor] = None,
    swiglu_beta: Optional[torch.Tensor] = None,
    swiglu_limit: Optional[torch.Tensor] = None,
    tp_size: int = 1,
    tp_rank: int = 0,
    ep_size: int = 1,
    ep_rank: int = 0,
    cluster_size: int = 1,
    cluster_rank: int = 0,
    enable_alltoall: bool = False,
    use_deepseek_fp8_block_scale: bool = False,
    use_w4_group_scaling: bool = False,
    use_mxfp8_act_scaling: bool = False,
    use_packed_weights: bool = False,
    tune_max_num_tokens: int = 8192,
    enable_pdl: Optional[bool] = None,
    activation_type: int = 3,
    has_quant_scales: bool = True,
    swizzled_input_sf: bool = True,
    use_wfp4afp8_humming: bool = False,
    use_fused_finalize: bool = True,
    profile_ids: Optional[List[int]] = None,
    workspace_buffer: Optional[torch.Tensor] = None,
    clamped_relu2_limit: Optional[torch.Tensor] = None,
    situ_beta: Optional[torch.Tensor] = None,
    situ_linear_beta: Optional[torch.Tensor] = None,
) -> None:
    arguments = dict(locals())
    from .fused_moe.core import ActivationType

    arguments["activation_type"] = ActivationType(activation_type)
    if not has_quant_scales:  # An operator cannot have an optional list.
        arguments["quant_scales"] = None
    _run("cutlass_fused_moe", arguments)


@_cutlass_fused_moe.register_fake
def _(output: torch.Tensor, *args, **kwargs) -> None:
    return None


def cutlass_fused_moe(
    input: torch.Tensor,
    fc2_expert_weights: torch.Tensor,
    output_dtype: torch.dtype,
    quant_scales: Optional[List[torch.Tensor]],
    *,
    output: Optional[torch.Tensor] = None,
    min_latency_mode: bool = False,
    activation_type: int = 3,
    backend: str = "cutlass",
    **more: Any,
) -> List[torch.Tensor]:
    """What the public function returns: the output, and what is left undefined without min_latency_mode."""
    if backend != "cutlass":
        raise NotImplementedError(f"cutlass_fused_moe: {backend!r} cannot be traced")
    if min_latency_mode:
        raise NotImplementedError("min latency mode not yet implemented for Blackwell.")
    num_tokens, (num_experts, hidden_size, *_) = (
        input.shape[0],
        fc2_expert_weights.shape,
    )
    if output is None:
        output = torch.empty(
            (num_tokens, hidden_size), dtype=output_dtype, device=input.device
        )
    _cutlass_fused_moe(
        output,
        input,
        fc2_expert_weights=fc2_expert_weights,
        output_dtype=output_dtype,
        quant_scales=list(quant_scales or ()),
        activation_type=int(activation_type),
        has_quant_scales=quant_scales is not None,
        **more,
    )
    return [
        output,
        torch.empty((1,), dtype=torch.int32, device=input.device),
        torch.empty(
            (num_experts, num_tokens), dtype=torch.float32, device=input.device
        ),
        torch.empty((num_experts,), dtype=torch.int32, device=input.device),
    ]
