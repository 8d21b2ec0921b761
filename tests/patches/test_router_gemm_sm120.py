"""router-gemm-sm120: FlashInfer's router GEMM of GLM-5's shape takes SM12x, where its kernel compiles and waits.

FlashInfer's own function runs here, on tensors without memory and a module that records its launches; the kernel is
compiled by nvcc. What it computes on a card is not shown.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from packaging.version import Version
from torch._subclasses.fake_tensor import FakeTensorMode

from sm120_overlay.serving.flashinfer import INCLUDES, capability, import_flashinfer, version_of
from sm120_overlay.serving.nvcc.compile import CompileError, Output, Unit, compile_unit

GLM, DEEPSEEK = "mm_M1_16_K6144_N256", "mm_M1_16_K7168_N256"
HIDDEN = {GLM: 6144, DEEPSEEK: 7168}
TOKENS, EXPERTS = 4, 256
# Hopper came with 0.7 (routergemm.py).
HAS_HOPPER = version_of(Path(os.environ["SM120_OVERLAY_TREE"])) >= Version("0.7")

Capability = tuple[int, int]
SM12X: list[Capability] = [(12, 0), (12, 1)]
ELSEWHERE: list[tuple[Capability, bool]] = [
    ((8, 9), False),
    ((9, 0), HAS_HOPPER),
    ((10, 0), True),
    ((10, 3), True),
    ((11, 0), False),
]

KERNEL = "flashinfer::trtllm_dsv3_router_gemm::router_gemm_kernel"
INSTANCE = "template __global__ void {}<__nv_bfloat16, float, 128, 8, {}, 256, 6144>({});\n"


@pytest.fixture
def launched(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Capability], bool]:
    """Whether the tree's router GEMM of a name launches its kernel on a capability, or refuses."""
    import_flashinfer(tree, tmp_path)
    routergemm = sys.modules["flashinfer.gemm.routergemm"]
    launches: list[str] = []
    module = SimpleNamespace(**{name: lambda *_, name=name: launches.append(name) for name in HIDDEN})
    for getter in ("get_dsv3_router_gemm_module", "get_cake_router_gemm_module"):
        monkeypatch.setattr(routergemm, getter, lambda: module, raising=False)

    def launch(name: str, seen: Capability) -> bool:
        # Since 0.7 it asks for the capability itself, by a name of its own, and keeps the answer.
        monkeypatch.setattr(routergemm, "get_compute_capability", lambda _device: seen, raising=False)
        if hasattr(routergemm, "_router_gemm_module_for_device"):
            routergemm._router_gemm_module_for_device.cache_clear()
        launches.clear()
        with FakeTensorMode(), capability(*seen):
            rows = torch.empty(TOKENS, HIDDEN[name], dtype=torch.bfloat16, device="cuda:0")
            weights = torch.empty(EXPERTS, HIDDEN[name], dtype=torch.bfloat16, device="cuda:0")
            out = torch.empty(TOKENS, EXPERTS, dtype=torch.float32, device="cuda:0")
            try:
                getattr(routergemm, name)(rows, weights.t(), out)
            except Exception as refusal:  # what upstream raises is the verdict, if it is about the card
                assert "capability" in str(refusal), f"not a refusal of the card: {refusal!r}"
        assert launches in ([], [name])
        return bool(launches)

    return launch


@pytest.mark.parametrize("seen", SM12X)
def test_glms_router_gemm_is_launched_on_sm12x(launched: Callable[[str, Capability], bool], seen: Capability) -> None:
    assert launched(GLM, seen), "refused"


@pytest.mark.parametrize("seen", SM12X)
def test_other_shapes_are_refused_on_sm12x_as_upstream(
    launched: Callable[[str, Capability], bool], seen: Capability
) -> None:
    assert not launched(DEEPSEEK, seen)


@pytest.mark.parametrize(("seen", "upstream"), ELSEWHERE)
@pytest.mark.parametrize("name", [GLM, DEEPSEEK])
def test_other_capabilities_answer_as_upstream(
    launched: Callable[[str, Capability], bool], name: str, seen: Capability, upstream: bool
) -> None:
    assert launched(name, seen) is upstream


@pytest.mark.parametrize("arch", ["120a", "121a"])
def test_its_kernels_compile_and_wait(tree: Path, arch: str) -> None:
    """It is launched with PDL by default. One token and sixteen: the least and the most that it takes."""
    instances = [
        INSTANCE.format(KERNEL, tokens, "float*, __nv_bfloat16 const*, __nv_bfloat16 const*") for tokens in (1, 16)
    ]
    source = '#include <cuda_bf16.h>\n#include "flashinfer/gemm/dsv3_router_gemm.cuh"\n' + "".join(instances)
    try:
        ptx = compile_unit(Unit(source, tree, INCLUDES, Output.PTX, arch=arch)).read_text()
    except CompileError as error:
        pytest.fail(str(error))
    kernels = ptx.split(".entry ")[1:]
    assert [kernel.count("griddepcontrol.wait") for kernel in kernels] == [1, 1]
    assert all("fma.rn" in kernel for kernel in kernels), "a kernel without arithmetic"
