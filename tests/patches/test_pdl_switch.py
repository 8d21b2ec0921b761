"""pdl-switch: on SM12x, nothing whose kernel cannot wait is launched with PDL unless the user says so.

A kernel launched with programmatic dependent launch may start before its inputs are written and must wait for them
itself; CUTLASS 4.2.1 compiles no wait into FlashInfer 0.6.3's SM120 GEMMs (the last tests here).

The launchers are judged by running them: their host code is the tree's own, on a CUDA runtime that records launches.
Their kernels are compiled for compute_100a, where CUTLASS leaves SM120 kernels empty: for sm_120a they take
over 6 GB of memory to compile, and no kernel runs here. What a GPU does with the launches is not shown.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CalledProcessError
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from sm120_overlay.serving.flashinfer import INCLUDES, capability, import_flashinfer
from sm120_overlay.serving.nvcc.compile import CompileError, Output, Unit, compile_unit, run_program

SWITCH = "FLASHINFER_SM12X_PDL"
PROBE = Path(__file__).with_name("pdl_switch.cu")
# As gen_gemm_sm120_module_cutlass_fp4 has them (flashinfer/jit/gemm/core.py); the FP8 module has no more.
MODULE_FLAGS = ("-DENABLE_BF16", "-DENABLE_FP4")

FP4 = "fp4_gemm_template_sm120.h"
FP8 = "group_gemm_fp8_groupwise_sm120.cuh"
# Every launch of those launchers, in order, by a part of the kernel's name.
LAUNCHES = [(FP4, "device_kernel"), (FP8, "compute_sm120_cutlass_group_gemm_args"), (FP8, "device_kernel")]

Capability = tuple[int, int]
SM12X: list[Capability] = [(12, 0), (12, 1)]
# What 0.6.3 answers elsewhere: PDL came with Hopper.
ELSEWHERE: list[tuple[Capability, bool]] = [
    ((11, 0), True),
    ((10, 3), True),
    ((10, 0), True),
    ((9, 0), True),
    ((8, 9), False),
]
# Only "1" switches PDL on.
OFF: list[str | None] = [None, "", "0", "true", " 1", "1 ", "01", "11"]

# The switch's C++ twin, and the only files that may know of it.
CPP_SWITCH = b"sm12x_pdl_enabled"
CPP_SWITCH_FILES = {"cutlass_utils.cuh", FP4, FP8}


@pytest.fixture
def set_switch(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Sets the variable, or takes it out of the environment."""

    def put(value: str | None) -> None:
        if value is None:
            monkeypatch.delenv(SWITCH, raising=False)
        else:
            monkeypatch.setenv(SWITCH, value)

    return put


@pytest.fixture
def supports_pdl(tree: Path, tmp_path: Path) -> Callable[[Capability], bool]:
    """The tree's device_support_pdl, asked about a CUDA device of a capability."""
    import_flashinfer(tree, tmp_path)
    return _supports_pdl


def _supports_pdl(seen: Capability) -> bool:
    with capability(*seen):
        return bool(sys.modules["flashinfer.utils"].device_support_pdl(torch.device("cuda", 0)))


@functools.cache
def _launcher_program(tree: Path) -> Path:
    unit = Unit(PROBE.read_text(), tree, INCLUDES, Output.EXECUTABLE, ("-O0", *MODULE_FLAGS), arch="100a")
    return compile_unit(unit)


def _launches(tree: Path, environment: dict[str, str]) -> list[tuple[str, str, bool]]:
    """(launcher, mangled kernel name, launched with PDL?) of every launch, with this environment."""
    try:
        printed = run_program(_launcher_program(tree), environment)
    except (CompileError, CalledProcessError) as error:
        pytest.fail(f"the tree's launchers do not run: {error} {getattr(error, 'stderr', '')}")
    launches, launcher = [], ""
    for line in printed.splitlines():
        if line.startswith("launcher "):
            launcher = line.removeprefix("launcher ")
        elif found := re.fullmatch(r"launch pdl=([01]) (\w+)", line):
            launches.append((launcher, found[2], found[1] == "1"))
    return launches


@pytest.mark.parametrize("seen", SM12X)
@pytest.mark.parametrize("value", OFF)
def test_sm12x_has_no_pdl_by_default(
    supports_pdl: Callable[[Capability], bool],
    set_switch: Callable[[str | None], None],
    seen: Capability,
    value: str | None,
) -> None:
    set_switch(value)
    assert supports_pdl(seen) is False


@pytest.mark.parametrize("seen", SM12X)
def test_sm12x_has_pdl_by_the_switch(
    supports_pdl: Callable[[Capability], bool], set_switch: Callable[[str | None], None], seen: Capability
) -> None:
    set_switch("1")
    assert supports_pdl(seen) is True


@pytest.mark.parametrize("seen", SM12X)
@pytest.mark.parametrize("value", [None, "1"])
def test_an_answer_for_a_device_stays_when_the_variable_changes(
    tree: Path, tmp_path: Path, set_switch: Callable[[str | None], None], seen: Capability, value: str | None
) -> None:
    """So a process's kernels do not differ by when they were first asked for."""
    import_flashinfer(tree, tmp_path)
    device_support_pdl = sys.modules["flashinfer.utils"].device_support_pdl
    device = torch.device("cuda", 0)
    with capability(*seen):
        set_switch(value)
        first = device_support_pdl(device)
        set_switch("1" if value is None else None)
        assert device_support_pdl(device) is first


@pytest.mark.parametrize(
    ("seen", "value", "expected"), [((12, 0), None, False), ((12, 0), "1", True), ((10, 0), None, True)]
)
def test_fused_moe_that_is_not_told_gets_the_switchs_answer(
    tree: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    set_switch: Callable[[str | None], None],
    seen: Capability,
    value: str | None,
    expected: bool,
) -> None:
    """FlashInfer's own cutlass_fused_moe, on fake CUDA tensors and a module that records what it is given."""
    import_flashinfer(tree, tmp_path)
    core = sys.modules["flashinfer.fused_moe.core"]
    asked: list[bool] = []
    module = SimpleNamespace(cutlass_fused_moe=lambda *_, enable_pdl, **__: asked.append(enable_pdl))
    monkeypatch.setattr(core, "get_cutlass_fused_moe_module", lambda _arch: module)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: seen)
    set_switch(value)
    tokens, experts, hidden, top_k = 4, 8, 16, 2
    with FakeTensorMode(), capability(*seen):
        rows, chosen, first, second = (
            torch.empty(shape, device="cuda:0")
            for shape in ((tokens, hidden), (tokens, top_k), (experts, 2 * hidden, hidden), (experts, hidden, hidden))
        )
        core.cutlass_fused_moe(rows, chosen, chosen, first, second, torch.bfloat16, [])
    assert asked == [expected]


@pytest.mark.parametrize(("seen", "upstream"), ELSEWHERE)
@pytest.mark.parametrize("value", [None, "0", "1"])
def test_other_capabilities_answer_as_upstream_whatever_the_switch(
    supports_pdl: Callable[[Capability], bool],
    set_switch: Callable[[str | None], None],
    seen: Capability,
    upstream: bool,
    value: str | None,
) -> None:
    set_switch(value)
    assert supports_pdl(seen) is upstream


@pytest.mark.parametrize("value", OFF)
def test_launchers_that_never_ask_launch_without_pdl_by_default(tree: Path, value: str | None) -> None:
    launches = _launches(tree, {} if value is None else {SWITCH: value})
    assert [launcher for launcher, _, _ in launches] == [launcher for launcher, _ in LAUNCHES]
    with_pdl = [f"{launcher}: {kernel[:90]}" for launcher, kernel, pdl in launches if pdl]
    assert not with_pdl, f"launched with PDL and no wait: {with_pdl}"


def test_launchers_that_never_ask_launch_with_pdl_by_the_switch(tree: Path) -> None:
    launches = _launches(tree, {SWITCH: "1"})
    assert len(launches) == len(LAUNCHES)
    for (launcher, kernel, pdl), (expected_launcher, expected_kernel) in zip(launches, LAUNCHES, strict=True):
        assert launcher == expected_launcher
        assert expected_kernel in kernel
        assert pdl, f"{launcher} launched {kernel[:90]} without PDL"


def test_the_cpp_switch_is_known_only_to_sm12x_launchers(tree: Path) -> None:
    """Where it is there at all: that it is, the launches above say."""
    files = [file for file in (tree / "flashinfer").rglob("*") if file.is_file() and CPP_SWITCH in file.read_bytes()]
    assert {file.name for file in files} in (set(), CPP_SWITCH_FILES)
    assert len(files) in (0, len(CPP_SWITCH_FILES))


def _preprocessed(tree: Path, *flags: str) -> str:
    """The two GEMMs' sources as the device pass for sm_120a sees them."""
    try:
        unit = Unit(PROBE.read_text(), tree, INCLUDES, Output.PREPROCESSED, (*MODULE_FLAGS, *flags))
        return compile_unit(unit).read_text()
    except CompileError as error:
        pytest.fail(str(error))


def _cutlass_waits(text: str) -> list[str]:
    """The bodies of CUTLASS's wait."""
    return [body.strip() for body in re.findall(r"void wait_on_dependent_grids\(\)\s*\{([^}]*)\}", text)]


def test_these_kernels_cannot_wait_which_is_why_the_switch_is_needed(tree: Path) -> None:
    """When this fails, CUTLASS has learnt to wait: the GEMM half may go; the argument kernel and XQA MLA still need
    the switch.
    """
    text = _preprocessed(tree)
    assert _cutlass_waits(text) == [""], "CUTLASS's wait is not empty"
    # The other one is the CUDA header's cudaGridDependencySynchronize, which nothing calls.
    assert text.count("griddepcontrol.wait") == 1
    assert text.count("cudaGridDependencySynchronize") == 1


def test_a_wait_is_seen_where_cutlass_is_told_to_compile_one(tree: Path) -> None:
    """The control of the test above."""
    text = _preprocessed(tree, "-DCUTLASS_ENABLE_GDC_FOR_SM100")
    assert _cutlass_waits(text) == ['asm volatile("griddepcontrol.wait;");']
    assert text.count("griddepcontrol.wait") == 2
