"""allreduce-pdl-flag: on SM12x the trtllm all-reduce wrappers ask for PDL only where the PDL switch allows it, and the
one whose kernels cannot wait there no longer does by default, or at all.

The wrappers are the tree's own, on fake CUDA tensors and a module that records what it is given. Why, is shown by nvcc:
which of the kernels that they launch have a dependency wait. No kernel runs here.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version
from torch._subclasses.fake_tensor import FakeTensorMode

from sm120_overlay.serving.flashinfer import INCLUDES, capability, import_comm, version_of
from sm120_overlay.serving.nvcc.compile import CompileError, Output, Unit, compile_unit

# Three of the four wrappers are deprecated upstream; SGLang calls one of them.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SWITCH = "FLASHINFER_SM12X_PDL"
PROBE = Path(__file__).with_name("allreduce_pdl_flag.cu")
HEADERS = (*INCLUDES, "flashinfer/data/spdlog/include")

RELEASE = version_of(Path(os.environ["SM120_OVERLAY_TREE"]))
# From 0.6.8 on PDL is on unless the switch says no (pdl-switch), before it is off unless the switch says yes.
IS_ON_BY_DEFAULT = Version("0.6.8") <= RELEASE
# From 0.6.17 on the kernels of the custom all-reduce wait on SM12x too (flashinfer#3903); 0.7 has no wrapper of them.
IS_CUSTOM_WAITING = Version("0.6.17") <= RELEASE

Capability = tuple[int, int]
SM12X: list[Capability] = [(12, 0), (12, 1)]
ELSEWHERE: list[Capability] = [(9, 0), (10, 0), (10, 3), (11, 0)]
CUSTOM = "trtllm_custom_all_reduce"
FUSED = ["trtllm_allreduce_fusion", "trtllm_moe_allreduce_fusion", "trtllm_moe_finalize_allreduce_fusion"]
WRAPPERS = [*([] if Version("0.7") <= RELEASE else [CUSTOM]), *FUSED]


def _is_allowed(wrapper: str, value: str | None) -> bool:
    """Whether a wrapper may hand on the caller's wish for PDL on SM12x."""
    if not IS_ON_BY_DEFAULT:
        return value == "1"
    return value != "0" and (wrapper != CUSTOM or IS_CUSTOM_WAITING)


# Where trtllm_custom_all_reduce, which names no argument, hands the flag to the module.
FLAG_POSITION = 8

ENTRY = re.compile(r"\.entry (\w+)\(.*?\n\{(.*?)\n\}", re.DOTALL)


@pytest.fixture
def asked(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Capability, bool], bool]:
    """The flag that a wrapper hands on, by its name, the device's capability and the flag that it is given."""
    import_comm(tree, tmp_path)
    recorded: list[bool] = []
    trtllm_ar = sys.modules["flashinfer.comm.trtllm_ar"]
    monkeypatch.setattr(trtllm_ar, "get_trtllm_comm_module", lambda: _Recorder(recorded))

    def ask(wrapper: str, seen: Capability, flag: bool) -> bool:
        # Where trtllm_ar.py asks for the capability itself, it has a name of its own for it.
        monkeypatch.setattr(trtllm_ar, "get_compute_capability", lambda _device: seen, raising=False)
        with FakeTensorMode(), capability(*seen):
            getattr(trtllm_ar, wrapper)(**_arguments(wrapper), launch_with_pdl=flag)
        assert len(recorded) == 1, "the module is called once"
        return recorded.pop()

    return ask


class _Recorder:
    """A trtllm_comm module that notes the PDL flag of every call."""

    def __init__(self, recorded: list[bool]) -> None:
        self._recorded = recorded

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*args: Any, **kwargs: Any) -> None:
            self._recorded.append(kwargs["launch_with_pdl"] if kwargs else args[FLAG_POSITION])

        return call


def _arguments(wrapper: str) -> dict[str, Any]:
    """Everything a wrapper wants but the flag: 16 tokens, 64 wide, on 2 ranks; nothing where nothing is needed."""
    wanted = inspect.signature(getattr(sys.modules["flashinfer.comm.trtllm_ar"], wrapper)).parameters.values()
    names = [one.name for one in wanted if one.default is one.empty and one.name != "launch_with_pdl"]
    rows = torch.empty(16, 64, dtype=torch.bfloat16, device="cuda:0")
    known = {"token_num": 16, "hidden_dim": 64, "world_size": 2, "world_rank": 0, "use_oneshot": True}
    tensors = dict.fromkeys(("inp", "allreduce_in", "moe_reduction_token_input", "residual_in"), rows)
    return {name: {**known, **tensors}.get(name) for name in names}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("seen", SM12X)
@pytest.mark.parametrize("value", [None, "0", "1"])
@pytest.mark.parametrize("flag", [True, False])
def test_sm12x_gets_what_the_caller_asks_only_where_it_is_allowed(
    asked: Callable[[str, Capability, bool], bool],
    monkeypatch: pytest.MonkeyPatch,
    wrapper: str,
    seen: Capability,
    value: str | None,
    flag: bool,
) -> None:
    monkeypatch.delenv(SWITCH, raising=False) if value is None else monkeypatch.setenv(SWITCH, value)
    assert asked(wrapper, seen, flag) is (flag and _is_allowed(wrapper, value))


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("seen", ELSEWHERE)
@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("value", ["0", "1"])
def test_other_capabilities_get_what_the_caller_asks_whatever_the_switch(
    asked: Callable[[str, Capability, bool], bool],
    monkeypatch: pytest.MonkeyPatch,
    wrapper: str,
    seen: Capability,
    flag: bool,
    value: str,
) -> None:
    monkeypatch.setenv(SWITCH, value)
    assert asked(wrapper, seen, flag) is flag


@functools.cache
def _kernels(tree: Path, arch: str) -> dict[str, str]:
    """Every kernel's body in PTX, by its mangled name."""
    try:
        ptx = compile_unit(Unit(PROBE.read_text(), tree, HEADERS, Output.PTX, arch=arch)).read_text()
    except CompileError as error:
        pytest.fail(str(error))
    return dict(ENTRY.findall(ptx))


def _waits(kernels: dict[str, str], namespace: str) -> list[int]:
    """How many waits the kernels of a namespace have, least first."""
    mangled = f"{len(namespace)}{namespace}"
    return sorted(body.count("griddepcontrol.wait") for name, body in kernels.items() if mangled in name)


@pytest.mark.parametrize("arch", ["120a", "121a"])
def test_which_kernels_of_the_custom_all_reduce_wait_on_sm12x(tree: Path, arch: str) -> None:
    """None, which is why; where they all do, PDL is policy."""
    assert _waits(_kernels(tree, arch), "trtllm_allreduce") == [int(IS_CUSTOM_WAITING)] * 7


@pytest.mark.parametrize("arch", ["120a", "121a"])
def test_the_fusion_kernels_wait_on_sm12x(tree: Path, arch: str) -> None:
    """So for these the switch is policy, and turning it on is no race."""
    kernels = _kernels(tree, arch)
    assert _waits(kernels, "trtllm_allreduce_fusion") == [1] * 3
    assert _waits(kernels, "trtllm_moe_allreduce_fusion") == [1, 2]


@pytest.mark.parametrize("arch", ["120a", "121a"])
def test_whether_the_lamport_kernel_of_the_custom_all_reduce_is_empty_on_sm12x(tree: Path, arch: str) -> None:
    (body,) = [body for name, body in _kernels(tree, arch).items() if "lamport_style_one_shot" in name]
    assert (body.split() == ["ret;"]) is not IS_CUSTOM_WAITING


def test_on_sm90_every_kernel_waits(tree: Path) -> None:
    """The control of the three above."""
    assert [name for name, body in _kernels(tree, "90a").items() if "griddepcontrol.wait" not in body] == []
    assert len(_kernels(tree, "90a")) == 12
