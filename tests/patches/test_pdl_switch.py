"""pdl-switch: on SM12x no kernel that cannot wait is launched with PDL, and a switch decides about the others.

A kernel launched with programmatic dependent launch may start before its inputs are written and must wait for them
itself. CUTLASS 4.2.1 compiles no wait into FlashInfer 0.6.3's SM120 GEMMs, so PDL is off there unless the user says
otherwise. Since 0.6.8 the GEMMs wait and PDL is on unless the user says otherwise; the kernels that still have no wait
get one, or are launched without PDL.

Launchers are judged by running them: their host code is the tree's own, on a CUDA runtime that records launches. The
GEMMs of 0.6.3 are compiled for compute_100a, where CUTLASS leaves SM120 kernels empty: for sm_120a they take over 6 GB
of memory to compile, and no kernel runs here. What a GPU does with the launches is not shown.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from subprocess import CalledProcessError
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from packaging.version import Version
from torch._subclasses.fake_tensor import FakeTensorMode

from sm120_overlay.serving.flashinfer import INCLUDES, capability, import_flashinfer, version_of
from sm120_overlay.serving.nvcc.compile import CompileError, Output, Unit, compile_unit, run_program

SWITCH = "FLASHINFER_SM12X_PDL"
VERSION = version_of(Path(os.environ["SM120_OVERLAY_TREE"]))
# The first release whose SM120 GEMMs wait: CUTLASS 4.4 (flashinfer#2798, 0.6.7), told to (flashinfer#2913, 0.6.8).
ARE_GEMMS_WAITING = Version("0.6.8") <= VERSION

HERE = Path(__file__).parent
PROBE = HERE / "pdl_switch.cu"
# As gen_gemm_sm120_module_cutlass_fp4 has them (flashinfer/jit/gemm/core.py, 0.6.3); the FP8 module has no more.
MODULE_FLAGS = ("-DENABLE_BF16", "-DENABLE_FP4")

FP4 = "fp4_gemm_template_sm120.h"
FP8 = "group_gemm_fp8_groupwise_sm120.cuh"
# Every launch of those launchers, in order, by a part of the kernel's name.
LAUNCHES = [(FP4, "device_kernel"), (FP8, "compute_sm120_cutlass_group_gemm_args"), (FP8, "device_kernel")]

Capability = tuple[int, int]
SM12X: list[Capability] = [(12, 0), (12, 1)]
# What upstream answers elsewhere: PDL came with Hopper.
ELSEWHERE: list[tuple[Capability, bool]] = [
    ((11, 0), True),
    ((10, 3), True),
    ((10, 0), True),
    ((9, 0), True),
    ((8, 9), False),
]
VALUES: list[str | None] = [None, "", "0", "1", "true", " 1", "1 ", "01", "11", " 0", "00", "off"]

# The switch's C++ twin in 0.6.3, and the only files that may know of it.
CPP_SWITCH = b"sm12x_pdl_enabled"
CPP_SWITCH_FILES = {"cutlass_utils.cuh", FP4, FP8}


def _is_on(value: str | None) -> bool:
    """Only "1" switches PDL on where the GEMMs cannot wait, only "0" switches it off where they do."""
    return value != "0" if ARE_GEMMS_WAITING else value == "1"


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


@pytest.mark.parametrize("seen", SM12X)
@pytest.mark.parametrize("value", VALUES)
def test_on_sm12x_the_switch_decides(
    supports_pdl: Callable[[Capability], bool],
    set_switch: Callable[[str | None], None],
    seen: Capability,
    value: str | None,
) -> None:
    set_switch(value)
    assert supports_pdl(seen) is _is_on(value)


@pytest.mark.parametrize("seen", SM12X)
@pytest.mark.parametrize("value", ["0", "1"])
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
        set_switch("1" if value == "0" else "0")
        assert device_support_pdl(device) is first


@pytest.mark.parametrize(
    ("seen", "value", "expected"),
    [((12, 0), None, _is_on(None)), ((12, 0), "0", False), ((12, 0), "1", True), ((10, 0), "0", True)],
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
    monkeypatch.setattr(torch.cuda, "device", lambda *_: nullcontext())
    # Since 0.7 it asks for the capability itself, by a name of its own.
    monkeypatch.setattr(core, "get_compute_capability", lambda _device: seen, raising=False)
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


def _run(unit: Unit, environment: dict[str, str]) -> list[tuple[str, str, bool]]:
    """(launcher, mangled kernel name, launched with PDL?) of every launch, with this environment."""
    try:
        printed = run_program(compile_unit(unit), environment)
    except (CompileError, CalledProcessError) as error:
        pytest.fail(f"the tree's launchers do not run: {error} {getattr(error, 'stderr', '')}")
    launches, launcher = [], ""
    for line in printed.splitlines():
        if line.startswith("launcher "):
            launcher = line.removeprefix("launcher ")
        elif found := re.fullmatch(r"launch pdl=([01]) (\w+)", line):
            launches.append((launcher, found[2], found[1] == "1"))
    return launches


def _text(unit: Unit) -> str:
    """What the unit compiles to, as text."""
    try:
        return compile_unit(unit).read_text()
    except CompileError as error:
        pytest.fail(str(error))


def _cutlass_waits(text: str) -> list[str]:
    """The bodies of CUTLASS's wait."""
    return [body.strip() for body in re.findall(r"void wait_on_dependent_grids\(\)\s*\{([^}]*)\}", text)]


class TestGemmsThatCannotWait:
    """0.6.3: the launchers that never ask are switched as well, since CUTLASS's kernels have no wait."""

    __test__ = not ARE_GEMMS_WAITING

    def launches(self, tree: Path, environment: dict[str, str]) -> list[tuple[str, str, bool]]:
        flags = ("-O0", *MODULE_FLAGS)
        return _run(Unit(PROBE.read_text(), tree, INCLUDES, Output.EXECUTABLE, flags, arch="100a"), environment)

    @pytest.mark.parametrize("value", [value for value in VALUES if not _is_on(value)])
    def test_launchers_that_never_ask_launch_without_pdl_by_default(self, tree: Path, value: str | None) -> None:
        launches = self.launches(tree, {} if value is None else {SWITCH: value})
        assert [launcher for launcher, _, _ in launches] == [launcher for launcher, _ in LAUNCHES]
        with_pdl = [f"{launcher}: {kernel[:90]}" for launcher, kernel, pdl in launches if pdl]
        assert not with_pdl, f"launched with PDL and no wait: {with_pdl}"

    def test_launchers_that_never_ask_launch_with_pdl_by_the_switch(self, tree: Path) -> None:
        launches = self.launches(tree, {SWITCH: "1"})
        assert len(launches) == len(LAUNCHES)
        for (launcher, kernel, pdl), (expected_launcher, expected_kernel) in zip(launches, LAUNCHES, strict=True):
            assert launcher == expected_launcher
            assert expected_kernel in kernel
            assert pdl, f"{launcher} launched {kernel[:90]} without PDL"

    def test_the_cpp_switch_is_known_only_to_sm12x_launchers(self, tree: Path) -> None:
        """Where it is there at all: that it is, the launches above say."""
        found = [file for file in (tree / "flashinfer").rglob("*") if file.is_file()]
        files = [file for file in found if CPP_SWITCH in file.read_bytes()]
        assert {file.name for file in files} in (set(), CPP_SWITCH_FILES)
        assert len(files) in (0, len(CPP_SWITCH_FILES))

    def preprocessed(self, tree: Path, *flags: str) -> str:
        """The two GEMMs' sources as the device pass for sm_120a sees them."""
        return _text(Unit(PROBE.read_text(), tree, INCLUDES, Output.PREPROCESSED, (*MODULE_FLAGS, *flags)))

    def test_these_kernels_cannot_wait_which_is_why_the_switch_is_needed(self, tree: Path) -> None:
        """When this fails, CUTLASS has learnt to wait: the GEMM half may go; the argument kernel and XQA MLA still
        need the switch.
        """
        text = self.preprocessed(tree)
        assert _cutlass_waits(text) == [""], "CUTLASS's wait is not empty"
        # The other one is the CUDA header's cudaGridDependencySynchronize, which nothing calls.
        assert text.count("griddepcontrol.wait") == 1
        assert text.count("cudaGridDependencySynchronize") == 1

    def test_a_wait_is_seen_where_cutlass_is_told_to_compile_one(self, tree: Path) -> None:
        """The control of the test above."""
        text = self.preprocessed(tree, "-DCUTLASS_ENABLE_GDC_FOR_SM100")
        assert _cutlass_waits(text) == ['asm volatile("griddepcontrol.wait;");']
        assert text.count("griddepcontrol.wait") == 2


# Modules of SM120 GEMMs that are launched with PDL, and the CUTLASS kernels that they instantiate.
GEMM_MODULES = [
    ("flashinfer.jit.fused_moe", "gen_cutlass_fused_moe_sm120_module"),
    ("flashinfer.jit.gemm.core", "gen_gemm_sm120_module_cutlass_fp4"),
    ("flashinfer.jit.gemm.core", "gen_gemm_sm120_module_cutlass_mxfp8"),
    ("flashinfer.jit.gemm.core", "gen_gemm_sm120_module"),
]
KERNELS = "flashinfer/data/cutlass/include/cutlass/gemm/kernel"
GEMM_KERNELS = [
    "sm90_gemm_array_tma_warpspecialized_cooperative.hpp",
    "sm90_gemm_array_tma_warpspecialized_pingpong.hpp",
    "sm90_gemm_tma_warpspecialized_cooperative.hpp",
    "sm90_gemm_tma_warpspecialized_pingpong.hpp",
]


class TestKernelsThatStillCannotWait:
    """Since 0.6.8: each is given a wait, or is launched without PDL."""

    __test__ = ARE_GEMMS_WAITING

    @pytest.fixture
    def defines(self, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, ...]]:
        """The macros that a generator of the tree's JIT passes to nvcc for SM12x."""
        import_flashinfer(tree, tmp_path)
        monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", "12.0a")
        context = sys.modules["flashinfer.jit.core"].current_compilation_context
        monkeypatch.setattr(context, "TARGET_CUDA_ARCHS", {(12, "0a")})

        def ask(module: str, generator: str, *arguments: Any) -> tuple[str, ...]:
            flags = getattr(sys.modules[module], generator)(*arguments).extra_cuda_cflags
            return tuple(flag for flag in flags if flag.startswith("-D"))

        return ask

    def test_the_kernel_that_prepares_the_fp8_gemms_arguments_waits(self, tree: Path) -> None:
        """It is launched with PDL always, and reads m_indptr, which another kernel may just have written."""
        source = (HERE / "pdl_switch_args.cu").read_text()
        _assert_waits_first(_text(Unit(source, tree, INCLUDES, Output.PTX)))

    @pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16])
    def test_xqa_mla_waits(self, tree: Path, defines: Callable[..., tuple[str, ...]], dtype: torch.dtype) -> None:
        """It is launched with PDL by default, and by SGLang."""
        flags = defines("flashinfer.jit.xqa", "gen_xqa_module_mla", dtype, dtype, 64, 576, 128, False)
        unit = Unit('#include "xqa/mla_sm120.cu"\n', tree, INCLUDES, Output.PTX, flags)
        _assert_waits_first(_text(unit))

    def test_the_handwritten_gemms_are_launched_without_pdl(self, tree: Path) -> None:
        source = (HERE / "pdl_switch_cute.cu").read_text()
        launches = _run(Unit(source, tree, INCLUDES, Output.EXECUTABLE, ("-O0",)), {})
        assert launches, "nothing was launched"
        assert [launcher for launcher, _, pdl in launches if pdl] == []

    def test_the_handwritten_gemms_cannot_wait_which_is_why(self, tree: Path) -> None:
        """When this fails, upstream has given them a wait, and PDL is safe."""
        source = (HERE / "pdl_switch_cute.cu").read_text()
        text = _text(Unit(source, tree, INCLUDES, Output.PREPROCESSED, ("-DCUTLASS_ENABLE_GDC_FOR_SM100=1",)))
        assert _cutlass_waits(text) in ([], ['asm volatile("griddepcontrol.wait;");'])
        assert text.count("wait_on_dependent_grids()") == len(_cutlass_waits(text)), "something calls the wait"
        # The other one is the CUDA header's cudaGridDependencySynchronize, which nothing calls.
        assert text.count("griddepcontrol.wait") == 1 + len(_cutlass_waits(text))

    @pytest.mark.parametrize(
        ("seen", "asked", "expected"),
        [
            ((12, 0), None, False),
            ((12, 1), None, False),
            ((12, 0), True, True),
            ((10, 0), None, True),
            ((9, 0), None, True),
            ((10, 0), False, False),
            ((8, 9), None, False),
        ],
    )
    def test_pod_has_no_pdl_on_sm12x_unless_it_is_asked_for(
        self,
        tree: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        seen: Capability,
        asked: bool | None,
        expected: bool,
    ) -> None:
        """The half of its kernel that prefills has no wait, on any architecture (attention/prefill.cuh)."""
        import_flashinfer(tree, tmp_path)
        monkeypatch.delenv(SWITCH, raising=False)
        assert _pods_flag(monkeypatch, seen, asked) is expected

    @pytest.mark.parametrize(("module", "generator"), GEMM_MODULES)
    @pytest.mark.parametrize("arch", ["120a", "121a"])
    def test_cutlass_is_told_to_wait_which_is_why_pdl_is_on_by_default(
        self, tree: Path, defines: Callable[..., tuple[str, ...]], module: str, generator: str, arch: str
    ) -> None:
        flags = tuple(flag for flag in defines(module, generator) if "GDC" in flag)
        source = '#include "cutlass/arch/grid_dependency_control.h"\n'
        unit = Unit(source, tree, INCLUDES, Output.PREPROCESSED, flags, arch=arch)
        assert _cutlass_waits(_text(unit)) == ['asm volatile("griddepcontrol.wait;");']
        # The control: without the macro the wait is empty.
        unit = Unit(source, tree, INCLUDES, Output.PREPROCESSED, arch=arch)
        assert _cutlass_waits(_text(unit)) == [""]

    @pytest.mark.parametrize("kernel", GEMM_KERNELS)
    def test_cutlass_kernels_call_the_wait(self, tree: Path, kernel: str) -> None:
        assert "cutlass::arch::wait_on_dependent_grids();" in (tree / KERNELS / kernel).read_text()


class TestUnifiedMoeOfFp8:
    """Since 0.7: SM12xFp8Runner launches kernels without a wait, whatever device_support_pdl says."""

    __test__ = Version("0.7") <= VERSION

    @pytest.mark.parametrize("value", [None, "0", "1"])
    @pytest.mark.parametrize(("asked", "expected"), [(None, False), (False, False), (True, True)])
    def test_it_has_no_pdl_unless_it_is_asked_for(
        self,
        tree: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        set_switch: Callable[[str | None], None],
        value: str | None,
        asked: bool | None,
        expected: bool,
    ) -> None:
        import_flashinfer(tree, tmp_path)
        set_switch(value)
        assert _fp8_runners_flags(monkeypatch, asked) == {"fc1": expected, "fc2": expected}

    @pytest.mark.parametrize("name", ["fc1_act_q1", "fc2_finalize"])
    def test_its_kernels_cannot_wait_which_is_why(self, tree: Path, name: str) -> None:
        """When this fails, upstream has given them a wait, as their twins have it, and PDL is safe."""
        folder = tree / "flashinfer/fused_moe/cute_dsl/blackwell_sm12x"
        assert "griddepcontrol_wait" not in (folder / f"kernel_moe_fp8_{name}.py").read_text()
        assert "griddepcontrol_wait" in (folder / f"kernel_moe_mxfp8_mxfp4_{name}.py").read_text()


def _fp8_runners_flags(monkeypatch: pytest.MonkeyPatch, asked: bool | None) -> dict[str, bool]:
    """The PDL flag that the tree's SM12xFp8Runner hands to its two GEMMs, which record it here."""
    runners = importlib.import_module("flashinfer.fused_moe.runners")
    given: dict[str, bool] = {}
    monkeypatch.setattr(runners, "_sm12x_fp8_activation_kwargs", lambda _activation: {})
    runner: Any = object.__new__(runners.SM12xFp8Runner)
    runner.config = SimpleNamespace(
        execution=SimpleNamespace(enable_pdl=asked), routing=SimpleNamespace(num_experts=8), activation=None
    )
    runner._require_built = lambda: None
    runner._workspace_cls = lambda *_: None
    runner._route = lambda *_, **__: (None,) * 5
    runner._fc1 = lambda *_, enable_pdl, **__: given.update(fc1=enable_pdl)
    runner._fc2 = lambda *_, enable_pdl, **__: given.update(fc2=enable_pdl)
    rows = torch.zeros(4, 8)
    # 10 tensors before those of the workspace: the rows first, the output last.
    runner.forward([rows, *[None] * 8, torch.zeros(4, 8)])
    return given


def _assert_waits_first(ptx: str) -> None:
    """The one kernel of this PTX waits before it touches global memory."""
    _, entry, body = ptx.partition(".entry ")
    assert entry and ".entry " not in body, "one kernel is expected: adapt the test"
    waits = [found.start() for found in re.finditer(r"griddepcontrol\.wait", body)]
    assert waits, "the kernel has no dependency wait"
    touches = [found.start() for found in re.finditer(r"\b(?:ld\.global|st\.global|cp\.async|red\.|atom\.)", body)]
    assert touches, "the kernel touches no global memory: adapt the test"
    assert waits[0] < min(touches)


def _pods_flag(monkeypatch: pytest.MonkeyPatch, seen: Capability, asked: bool | None) -> bool:
    """What the tree's PODWithPagedKVCacheWrapper hands to its module as the PDL flag, on fake CUDA tensors."""
    pod = sys.modules["flashinfer.pod"]
    given: list[Any] = []
    module = SimpleNamespace(run_tensor=lambda *arguments: given.append(arguments[-1]))
    monkeypatch.setattr(pod, "get_pod_module", lambda *_: module)
    for name in ("_get_cache_buf", "_get_cache_alibi_slopes_buf"):
        monkeypatch.setattr(pod, name, lambda *_: None)
    # As pod.py has it where it asks for the capability itself.
    monkeypatch.setattr(pod, "get_compute_capability", lambda _device: seen, raising=False)
    wrapper: Any = object.__new__(type("Pod", (_Planned, pod.PODWithPagedKVCacheWrapper), {}))
    with FakeTensorMode(), capability(*seen):
        rows = torch.empty(4, 8, 64, dtype=torch.bfloat16, device="cuda:0")
        pages = torch.empty(2, 16, 8, 64, dtype=torch.bfloat16, device="cuda:0")
        wrapper.run(rows, rows, rows, rows, (pages, pages), enable_pdl=asked)
    (flag,) = given
    return bool(flag)


class _Planned:
    """A wrapper whose plan() is done: what run() reads of it, nothing where nothing is needed."""

    _kv_layout = "NHD"
    _pos_encoding_mode = "NONE"
    _window_left = -1
    _cached_q_data_type = _cached_kv_data_type = torch.bfloat16

    def __getattr__(self, name: str) -> None:
        return None
