"""moe-smem-carveout: every SM120 grouped GEMM that FlashInfer generates asks for no more shared memory than exists.

What is compiled, by nvcc's device pass for sm_120a, is the tree's own launcher macro, instantiated as the tree's own
generator lists it. Only the macro's tail, which fills in arguments and launches, is cut away: in its place stands a
kernel whose template arguments are the launched kernel's `sizeof(SharedStorage)` and whether its carve-out is
upstream's, and whose mangled name in the PTX is how a test reads them. So no GEMM is compiled, and none is run.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sm120_overlay.serving.flashinfer import INCLUDES, import_flashinfer
from sm120_overlay.serving.nvcc.compile import CompileError, Output, Unit, compile_unit

# cutlass::arch::sm120_smem_capacity_bytes: what a block can opt in to on compute capability 12.0.
LIMIT_BYTES = 101_376
# What the known four ask for with two stages, and the most that any SM120 kernel then asks for, by the number of
# kernels: 0.6.3 has 40; 0.6.14 and 0.7.2 have 88, the tiles 32 wide among them, which use all that there is.
TWO_STAGES_BYTES = 74_752
LARGEST_BYTES = {40: 98_304, 88: 101_376}

NV_INTERNAL = "flashinfer/data/csrc/nv_internal"
LAUNCHERS = f"{NV_INTERNAL}/tensorrt_llm/kernels/cutlass_kernels/moe_gemm/launchers"
LAUNCHER = "moe_gemm_tma_ws_launcher.inl"
# As gen_cutlass_fused_moe_module passes them (flashinfer/jit/fused_moe.py); the launchers' folder stands for the
# file's own, which its relative includes start from.
MOE_INCLUDES = (
    *INCLUDES,
    NV_INTERNAL,
    f"{NV_INTERNAL}/include",
    f"{NV_INTERNAL}/tensorrt_llm/cutlass_extensions/include",
    f"{NV_INTERNAL}/tensorrt_llm/kernels/cutlass_kernels",
    LAUNCHERS,
)
# Those of the fused_moe_120 module, and those of its SM90, SM100 and SM103 sisters, so that one unit holds all.
MOE_FLAGS = (
    "-DCOMPILE_BLACKWELL_SM120_TMA_GROUPED_GEMMS",
    "-DCOMPILE_HOPPER_TMA_GROUPED_GEMMS",
    "-DCOMPILE_BLACKWELL_TMA_GROUPED_GEMMS",
    "-DCOMPILE_BLACKWELL_SM103_TMA_GROUPED_GEMMS",
    "-DENABLE_BF16",
    "-DENABLE_FP8",
    "-DENABLE_FP4",
)

# The macro's part that launches, from the first of these to the end of the second.
TAIL_START = "if (kernel_occupancy != nullptr) {"
TAIL_END = "sync_check_cuda_error(stream);"
# The carve-out, whatever it is in the tree, and upstream's, which is named beside it.
CARVEOUT = re.compile(r"(?P<before>StageCountAutoCarveout<static_cast<int>\([\s\\]*)[^;]*>;")
UPSTREAM_CARVEOUT = "sizeof(typename CollectiveEpilogue::SharedStorage))>;"
UPSTREAM = f"cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>({UPSTREAM_CARVEOUT}"

MACRO = "INSTANTIATE_TMA_WARP_SPECIALIZED_MOE_GEMM"
PRELUDE = "template <int Line, int Bytes, bool IsUpstreams> __global__ void launched() {}\n"
NAMESPACE = "namespace tensorrt_llm { namespace kernels { namespace cutlass_kernels_oss {\n"
REPORT = (
    "(void)&launched<__LINE__, (int)sizeof(typename GemmKernel::SharedStorage), "
    "std::is_same_v<StageCountAutoCarveout, Upstreams>>;"
)


@dataclass(frozen=True, slots=True)
class Instance:
    """One instantiation of the launcher macro, by the macro's arguments."""

    arguments: tuple[str, ...]

    def __str__(self) -> str:
        arch, _, _, output, *_ = self.arguments
        fusion, m, n, k = self.arguments[6:10]
        return f"{arch} {output} {m}x{n}x{k} {fusion} swap={self.arguments[-1]}"

    @property
    def tile(self) -> int:
        """M times N of a block's tile, in elements."""
        return int(self.arguments[7]) * int(self.arguments[8])

    @property
    def is_finalize_unswapped(self) -> bool:
        return (self.arguments[6], self.arguments[-1]) == ("FINALIZE", "false")


@dataclass(frozen=True, slots=True)
class Launched:
    """The kernel that an instance launches."""

    bytes: int
    has_upstreams_carveout: bool
    """Nothing else of the macro chooses the stages, so its kernel is then the one that upstream launches."""


def _known_to_overflow() -> set[str]:
    tiles = [f"{shape}x128" for shape in ("128x256", "256x128")]
    return {f"Sm120 {output} {tile} FINALIZE swap=false" for output in ("half", "__nv_bfloat16") for tile in tiles}


@pytest.fixture(scope="session")
def generated(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[Instance]]:
    """What the tree's generator instantiates for an architecture, such as 120."""
    import_flashinfer(tree, tmp_path_factory.mktemp("workspace"))
    generate = sys.modules["flashinfer.jit.gemm.cutlass.generate_kernels"].generate_gemm_operations

    @functools.cache
    def instances(arch: int) -> list[Instance]:
        folder = tmp_path_factory.mktemp(f"sm{arch}")
        generate(folder, f"{arch};{arch}-real")
        text = "".join(file.read_text() for file in sorted((folder / "gemm_grouped" / str(arch)).glob("*.cu")))
        found = re.findall(rf"{MACRO}\(([^)]*)\)", text)
        return [Instance(tuple(argument.strip() for argument in one.split(","))) for one in found]

    return instances


@pytest.fixture(scope="session")
def sm120(generated: Callable[[int], list[Instance]]) -> list[Instance]:
    """Every SM120 instance."""
    instances = generated(120)
    assert len(instances) in LARGEST_BYTES, "another number of kernels: adapt the test"
    return instances


@pytest.fixture(scope="session")
def elsewhere(generated: Callable[[int], list[Instance]]) -> list[Instance]:
    """What the carve-out's condition would catch if it forgot to ask for SM120: one of each architecture."""
    instances = [
        next(one for one in generated(arch) if one.is_finalize_unswapped and one.tile > 128 * 128)
        for arch in (90, 100, 103)
    ]
    assert [one.arguments[0] for one in instances] == ["Sm90", "Sm100", "Sm103"]
    return instances


def _launcher(tree: Path) -> str:
    """The tree's launcher with its tail cut."""
    text = (tree / LAUNCHERS / LAUNCHER).read_text()
    head, start, rest = text.partition(TAIL_START)
    _, end, tail = rest.partition(TAIL_END)
    assert start and end, f"{LAUNCHER} has no launching part as this test knows it: adapt the test"
    return head + REPORT + tail


def _changed_carveout(launcher: str, changed: str) -> str:
    """The launcher with its one carve-out replaced; `\\g<0>` and `\\g<before>` stand for it and for its beginning."""
    text, count = CARVEOUT.subn(changed, launcher)
    assert count == 1, f"{LAUNCHER} has {count} carve-outs where one is expected: adapt the test"
    return text


def _compile(tree: Path, launcher: str, instances: list[Instance]) -> dict[Instance, Launched]:
    """What each instance launches.

    Raises:
        Refusals: nvcc refuses some instances.
    """
    both = _changed_carveout(launcher, rf"\g<0> using Upstreams = {UPSTREAM}")
    head = f"{PRELUDE}{both}\n{NAMESPACE}"
    first = head.count("\n") + 1
    body = "\n".join(f"{MACRO}({', '.join(one.arguments)});" for one in instances)
    unit = Unit(f"{head}{body}\n}}}}}}\n", tree, MOE_INCLUDES, Output.PTX, MOE_FLAGS)
    try:
        ptx = compile_unit(unit).read_text()
    except CompileError as error:
        refused = {instances[line - first] for line in error.lines() if 0 <= line - first < len(instances)}
        raise Refusals(refused, str(error)) from error
    names = re.findall(r"\.entry _Z8launchedILi(\d+)ELi(\d+)ELb([01])E\w+\(", ptx)
    launched = {instances[int(line) - first]: Launched(int(size), same == "1") for line, size, same in names}
    assert set(launched) == set(instances), "the probe lost instances"
    return launched


class Refusals(AssertionError):
    """nvcc refuses to compile some instances."""

    def __init__(self, instances: set[Instance], message: str) -> None:
        super().__init__(message)
        self.instances = instances
        self.message = message


@pytest.fixture(scope="session")
def launched(tree: Path, sm120: list[Instance], elsewhere: list[Instance]) -> Callable[[], dict[Instance, Launched]]:
    """What every instance launches with the tree's launcher as it is."""
    return functools.cache(lambda: _compile(tree, _launcher(tree), [*sm120, *elsewhere]))


def test_every_generated_sm120_kernel_fits_in_shared_memory(
    launched: Callable[[], dict[Instance, Launched]], sm120: list[Instance]
) -> None:
    sizes = {one: launched()[one].bytes for one in sm120}
    above = {str(one): size for one, size in sizes.items() if size > LIMIT_BYTES}
    assert above == {}, f"more than {LIMIT_BYTES} B"


def test_the_known_four_have_two_stages_and_the_largest_kernel_is_the_known_one(
    launched: Callable[[], dict[Instance, Launched]], sm120: list[Instance]
) -> None:
    sizes = {str(one): launched()[one].bytes for one in sm120}
    assert {one: sizes[one] for one in _known_to_overflow()} == dict.fromkeys(_known_to_overflow(), TWO_STAGES_BYTES)
    assert max(sizes.values()) == LARGEST_BYTES[len(sm120)]


def test_without_the_carveout_the_assertion_refuses_the_known_four(tree: Path, sm120: list[Instance]) -> None:
    """And no others, since those have upstream's carve-out and fit: the tests around this one."""
    known = [one for one in sm120 if str(one) in _known_to_overflow()]
    with pytest.raises(Refusals) as refusal:
        _compile(tree, _changed_carveout(_launcher(tree), rf"\g<before>{UPSTREAM_CARVEOUT}"), known)
    assert {str(one) for one in refusal.value.instances} == _known_to_overflow()
    assert "static assertion failed" in refusal.value.message


def test_every_other_carveout_is_upstreams(
    launched: Callable[[], dict[Instance, Launched]], sm120: list[Instance], elsewhere: list[Instance]
) -> None:
    """So SM90, SM100, SM103 and the SM120 rest are untouched."""
    others = [one for one in [*sm120, *elsewhere] if str(one) not in _known_to_overflow()]
    assert len(others) == len(sm120) + len(elsewhere) - len(_known_to_overflow())
    assert [str(one) for one in others if not launched()[one].has_upstreams_carveout] == []
