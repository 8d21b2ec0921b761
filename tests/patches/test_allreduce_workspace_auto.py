"""allreduce-workspace-auto: "auto" picks an all-reduce workspace that can work on SM12x, or says why none can.

What selects is the tree's own create_allreduce_fusion_workspace; the two workspaces that it may make are replaced by
their names, and the driver by its answer about multicast. That neither works on SM12x is shown with the real classes
and the real generators of their modules, up to where they refuse.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from packaging.version import Version

from sm120_overlay.serving.flashinfer import CUDA_PYTHON, import_comm, version_of

Capability = tuple[int, int]
SM12X: list[Capability] = [(12, 0), (12, 1)]
ELSEWHERE: list[Capability] = [(8, 9), (9, 0), (10, 0), (10, 3), (11, 0)]
GPUS = 8
CURRENT = 5
# Since then both workspaces lie in torch's symmetric memory, on the current device, and neither asks for multicast;
# and the mnnvl module is no longer built for SM12x either.
SYMMETRIC = Version("0.6.14")
MULTICAST = "CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED"
CLASSES = {"trtllm": "TRTLLMAllReduceFusionWorkspace", "mnnvl": "MNNVLAllReduceFusionWorkspace"}


class Driver:
    """A CUDA driver that knows one fact of its devices, and notes who asks."""

    def __init__(self, multicast: bool) -> None:
        self.asked: list[int] = []
        self.CUdevice_attribute = SimpleNamespace(**{MULTICAST: MULTICAST})
        self._multicast = multicast

    def cuDeviceGetAttribute(self, attribute: str, device: int) -> tuple[SimpleNamespace, int]:
        assert attribute == MULTICAST
        self.asked.append(device)
        return SimpleNamespace(value=0), int(self._multicast)

    def __getattr__(self, name: str) -> Callable[..., tuple[SimpleNamespace, int]]:
        if not name.startswith("cu"):
            raise AttributeError(name)
        return lambda *_: (SimpleNamespace(value=0), 0)


class Machine:
    """`GPUS` devices of a capability, with multicast or without, as the tree's FlashInfer sees them."""

    def __init__(self, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_symmetric = version_of(tree) >= SYMMETRIC
        self.seen: list[int] = []
        self.driver = Driver(False)
        self._patch = monkeypatch

    def be(self, capability: Capability, multicast: bool) -> None:
        def get_capability(device: int) -> Capability:
            self.seen.append(device)
            return capability

        self.driver = Driver(multicast)
        self._patch.setattr(torch.cuda, "device_count", lambda: GPUS)
        self._patch.setattr(torch.cuda, "current_device", lambda: CURRENT)
        self._patch.setattr(torch.cuda, "get_device_capability", get_capability)
        self._patch.setattr(sys.modules["flashinfer.comm.mnnvl"], "cuda", self.driver)
        sys.modules["flashinfer.utils"].get_compute_capability.cache_clear()


@pytest.fixture
def machine(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    import_comm(tree, tmp_path)
    return Machine(tree, monkeypatch)


def _create(backend: str, world_size: int = 8, rank: int = 0) -> Any:
    create = sys.modules["flashinfer.comm"].create_allreduce_fusion_workspace
    return create(
        backend,
        world_size=world_size,
        rank=rank,
        max_token_num=128,
        hidden_dim=64,
        dtype=torch.bfloat16,
        comm_backend=SimpleNamespace(barrier=lambda: None),
    )


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The backend that is taken, or the sentence of its refusal; after `machine`."""

    def choose(backend: str = "auto", world_size: int = 8, rank: int = 0) -> str:
        allreduce = sys.modules["flashinfer.comm.allreduce"]
        for name, workspace in CLASSES.items():
            monkeypatch.setattr(allreduce, workspace, lambda name=name, **_: name)
        try:
            return str(_create(backend, world_size, rank))
        except ValueError as refusal:
            return str(refusal)

    return choose


@pytest.mark.parametrize("seen", SM12X)
@pytest.mark.parametrize("world_size", [2, 8, 32])
def test_auto_without_multicast_on_sm12x_is_refused_with_the_reason(
    machine: Machine, chosen: Callable[..., str], seen: Capability, world_size: int
) -> None:
    machine.be(seen, multicast=False)
    said = chosen(world_size=world_size)
    assert said not in CLASSES, "a workspace that cannot work is chosen"
    for part in ("SM12x", "trtllm", "mnnvl", *(["multicast"] if not machine.is_symmetric else [])):
        assert part in said


@pytest.mark.parametrize("seen", SM12X)
@pytest.mark.parametrize("world_size", [2, 8, 32])
def test_with_multicast_on_sm12x_auto_is_mnnvl_only_if_that_is_built_for_it(
    machine: Machine, chosen: Callable[..., str], seen: Capability, world_size: int
) -> None:
    machine.be(seen, multicast=True)
    said = chosen(world_size=world_size)
    assert "SM12x" in said if machine.is_symmetric else said == "mnnvl"


@pytest.mark.parametrize(("rank", "device"), [(0, 0), (7, 7), (11, 3)])
def test_the_device_that_is_asked_is_the_one_that_a_workspace_lies_on(
    machine: Machine, chosen: Callable[..., str], rank: int, device: int
) -> None:
    machine.be((12, 0), multicast=False)
    chosen(world_size=16, rank=rank)
    assert set(machine.seen) == {CURRENT if machine.is_symmetric else device}
    assert set(machine.driver.asked) == (set() if machine.is_symmetric else {device})


@pytest.mark.parametrize("seen", ELSEWHERE)
@pytest.mark.parametrize("multicast", [True, False])
@pytest.mark.parametrize("world_size", [2, 8, 32])
def test_other_capabilities_get_upstreams_choice_and_no_question(
    machine: Machine, chosen: Callable[..., str], seen: Capability, multicast: bool, world_size: int
) -> None:
    machine.be(seen, multicast)
    assert chosen(world_size=world_size) == "mnnvl"
    assert machine.driver.asked == []


@pytest.mark.parametrize("seen", [*SM12X, *ELSEWHERE])
@pytest.mark.parametrize("backend", list(CLASSES))
def test_a_backend_that_is_named_is_taken_as_upstream(
    machine: Machine, chosen: Callable[..., str], seen: Capability, backend: str
) -> None:
    machine.be(seen, multicast=False)
    assert chosen(backend) == backend


class OnCpu:
    """torch, for a module that makes its tensors on the GPU."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, *_: Any) -> torch.device:
        return torch.device("cpu")


@pytest.fixture
def symmetric_memory(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch gives on a machine without multicast: memory, and a multicast pointer of 0."""

    def allocate(size: int, world_size: int, *_: Any) -> tuple[list[int], torch.Tensor, SimpleNamespace]:
        pointers = [1] * world_size
        facts = {"buffer_size": size, "buffer_ptrs": pointers, "buffer_ptrs_dev": 1, "multicast_ptr": 0}
        return pointers, torch.zeros(4), SimpleNamespace(**facts)

    for name in ("trtllm_ar", "trtllm_mnnvl_ar"):
        monkeypatch.setattr(sys.modules[f"flashinfer.comm.{name}"], "_alloc_symm_buffer_bytes", allocate, raising=False)
    monkeypatch.setattr(sys.modules["flashinfer.comm.trtllm_mnnvl_ar"], "torch", OnCpu())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.distributed, "group", SimpleNamespace(WORLD=SimpleNamespace(group_name="world")))


@pytest.mark.usefixtures("symmetric_memory")
@pytest.mark.parametrize("backend", list(CLASSES))
def test_neither_workspace_can_be_used_without_multicast_which_is_why(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """The real ones. When this fails, one of them has learnt to do without, and auto may choose it."""
    machine.be((12, 0), multicast=False)
    for name in CUDA_PYTHON:
        monkeypatch.setitem(sys.modules, name, _package(name))
    monkeypatch.setattr(sys.modules["cuda.bindings.runtime"], "cudaSetDevice", machine.driver.cuInit, raising=False)
    _compile_for_sm12x(monkeypatch)
    if machine.is_symmetric and backend == "mnnvl":
        assert _create(backend).mc_ptr == 0
        return
    refused = "No supported CUDA architectures" if machine.is_symmetric else "Device does not support multicasting"
    with pytest.raises(RuntimeError, match=refused):
        _create(backend)


def _package(name: str) -> ModuleType:
    """An empty package, inside which nothing is found."""
    package = ModuleType(name)
    package.__path__ = []
    return package


def _compile_for_sm12x(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The generators of flashinfer.comm's modules, on a machine that has SM12x cards only."""
    comm = sys.modules["flashinfer.jit.comm"]
    monkeypatch.setattr(comm.current_compilation_context, "TARGET_CUDA_ARCHS", {(12, "0a"), (12, "1a")})
    return comm


@pytest.mark.parametrize("backend", list(CLASSES))
def test_neither_module_is_built_for_sm12x_which_is_why(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """When this fails, upstream builds it, and auto may choose it. 0.6.3 builds mnnvl's for every card."""
    comm = _compile_for_sm12x(monkeypatch)
    generate = {"trtllm": comm.gen_trtllm_comm_module, "mnnvl": comm.gen_trtllm_mnnvl_comm_module}[backend]
    if backend == "mnnvl" and not machine.is_symmetric:
        assert generate().name == "trtllm_mnnvl_comm"
        return
    with pytest.raises(RuntimeError, match="No supported CUDA architectures"):
        generate()
