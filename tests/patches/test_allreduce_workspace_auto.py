"""allreduce-workspace-auto: "auto" picks an all-reduce workspace that can work on SM12x, or says why none can.

What selects is the tree's own create_allreduce_fusion_workspace; the two workspaces that it may make are replaced by
their names, and the driver by its answer about multicast. That neither works on SM12x without multicast is shown
with the real classes, up to where they refuse.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from sm120_overlay.serving.flashinfer import CUDA_PYTHON, import_comm

Capability = tuple[int, int]
SM12X: list[Capability] = [(12, 0), (12, 1)]
ELSEWHERE: list[Capability] = [(8, 9), (9, 0), (10, 0), (10, 3), (11, 0)]
GPUS = 8
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


@pytest.fixture
def machine(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Capability, bool], Driver]:
    """Be a machine with 8 devices of a capability, with multicast or without."""
    import_comm(tree, tmp_path)

    def be(seen: Capability, multicast: bool) -> Driver:
        driver = Driver(multicast)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: GPUS)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: seen)
        monkeypatch.setattr(sys.modules["flashinfer.comm.mnnvl"], "cuda", driver)
        sys.modules["flashinfer.utils"].get_compute_capability.cache_clear()
        return driver

    return be


def _create(backend: str, world_size: int = 8, rank: int = 0) -> Any:
    create = sys.modules["flashinfer.comm"].create_allreduce_fusion_workspace
    return create(
        backend,
        world_size=world_size,
        rank=rank,
        max_token_num=128,
        hidden_dim=64,
        dtype=torch.bfloat16,
        comm_backend=object(),
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
    machine: Callable[[Capability, bool], Driver], chosen: Callable[..., str], seen: Capability, world_size: int
) -> None:
    machine(seen, False)
    said = chosen(world_size=world_size)
    assert said not in CLASSES, "a workspace that cannot be made is chosen"
    for part in ("SM12x", "multicast", "trtllm", "mnnvl"):
        assert part in said


@pytest.mark.parametrize("seen", SM12X)
@pytest.mark.parametrize("world_size", [2, 8, 32])
def test_auto_with_multicast_on_sm12x_is_mnnvl_as_upstream(
    machine: Callable[[Capability, bool], Driver], chosen: Callable[..., str], seen: Capability, world_size: int
) -> None:
    machine(seen, True)
    assert chosen(world_size=world_size) == "mnnvl"


@pytest.mark.parametrize(("rank", "device"), [(0, 0), (7, 7), (11, 3)])
def test_the_device_that_is_asked_is_the_ranks_own(
    machine: Callable[[Capability, bool], Driver], chosen: Callable[..., str], rank: int, device: int
) -> None:
    driver = machine((12, 0), False)
    chosen(world_size=16, rank=rank)
    assert set(driver.asked) == {device}


@pytest.mark.parametrize("seen", ELSEWHERE)
@pytest.mark.parametrize("multicast", [True, False])
@pytest.mark.parametrize("world_size", [2, 8, 32])
def test_other_capabilities_get_upstreams_choice_and_no_question(
    machine: Callable[[Capability, bool], Driver],
    chosen: Callable[..., str],
    seen: Capability,
    multicast: bool,
    world_size: int,
) -> None:
    driver = machine(seen, multicast)
    assert chosen(world_size=world_size) == "mnnvl"
    assert driver.asked == []


@pytest.mark.parametrize("seen", [*SM12X, *ELSEWHERE])
@pytest.mark.parametrize("backend", list(CLASSES))
def test_a_backend_that_is_named_is_taken_as_upstream(
    machine: Callable[[Capability, bool], Driver], chosen: Callable[..., str], seen: Capability, backend: str
) -> None:
    machine(seen, False)
    assert chosen(backend) == backend


@pytest.mark.parametrize("backend", list(CLASSES))
def test_neither_workspace_can_be_made_without_multicast_which_is_why(
    machine: Callable[[Capability, bool], Driver], monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """The real ones. When this fails, trtllm has learnt to do without, and auto may choose it."""
    driver = machine((12, 0), False)
    for name in CUDA_PYTHON:
        monkeypatch.setitem(sys.modules, name, _package(name))
    monkeypatch.setattr(sys.modules["cuda.bindings.runtime"], "cudaSetDevice", driver.cuInit, raising=False)
    with pytest.raises(RuntimeError, match="Device does not support multicasting"):
        _create(backend)


def _package(name: str) -> ModuleType:
    """An empty package, inside which nothing is found."""
    package = ModuleType(name)
    package.__path__ = []
    return package


def test_the_trtllm_module_is_not_built_for_sm12x_which_is_why(
    machine: Callable[[Capability, bool], Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When this fails, upstream builds it: whether auto may choose trtllm on SM12x is then a question of multicast."""
    machine((12, 0), True)
    comm = sys.modules["flashinfer.jit.comm"]
    monkeypatch.setattr(comm.current_compilation_context, "TARGET_CUDA_ARCHS", {(12, "0a"), (12, "1a")})
    with pytest.raises(RuntimeError, match="No supported CUDA architectures"):
        comm.gen_trtllm_comm_module()
