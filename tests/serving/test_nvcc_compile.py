"""Compiling, running and disassembling small sources with the real nvcc; no GPU is needed and none is used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sm120_overlay.serving.nvcc import compile as nvcc
from sm120_overlay.serving.nvcc.compile import CompileError, Output, Unit, compile_unit, run_program, sass
from sm120_overlay.serving.nvcc.toolchain import Toolchain, find_toolchain

KERNEL = '#include "width.h"\n__global__ void fill(int* out) { out[threadIdx.x] = WIDTH; }\n'


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    return find_toolchain()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with one header, and an empty cache."""
    monkeypatch.setenv("SM120_OVERLAY_CACHE", str(tmp_path / "cache"))
    return make_tree(tmp_path / "tree", 7)


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The calls of nvcc that were made, as they are made."""
    calls: list[list[str]] = []
    real = nvcc._nvcc

    def counted(unit: Unit, toolchain: Toolchain, arguments: list[str], work: Path) -> None:
        calls.append(arguments)
        real(unit, toolchain, arguments, work)

    monkeypatch.setattr(nvcc, "_nvcc", counted)
    return calls


def make_tree(tree: Path, width: int) -> Path:
    (tree / "include").mkdir(parents=True)
    (tree / "include" / "width.h").write_text(f"#define WIDTH {width}\n")
    return tree


def unit_of(tree: Path, output: Output = Output.PTX, source: str = KERNEL, arch: str = "120a") -> Unit:
    return Unit(source, tree, ("include",), output, arch=arch)


def test_ptx_is_for_sm_120a_and_sees_the_trees_header(tree: Path, toolchain: Toolchain) -> None:
    ptx = compile_unit(unit_of(tree), toolchain).read_text()
    assert ".target sm_120a" in ptx
    assert ".entry _Z4fillPi" in ptx


def test_another_architecture_is_compiled_when_asked(tree: Path, toolchain: Toolchain) -> None:
    assert ".target sm_100a" in compile_unit(unit_of(tree, arch="100a"), toolchain).read_text()


def test_a_cubin_disassembles_to_machine_code(tree: Path, toolchain: Toolchain) -> None:
    text = sass(compile_unit(unit_of(tree, Output.CUBIN), toolchain))
    assert "sm_120" in text.lower()
    assert "EXIT" in text


def test_a_preprocessed_unit_is_the_device_pass(tree: Path, toolchain: Toolchain) -> None:
    source = '#include "width.h"\n#ifdef __CUDA_ARCH_FEAT_SM120_ALL\nint seen = WIDTH;\n#endif\n'
    assert "int seen = 7;" in compile_unit(unit_of(tree, Output.PREPROCESSED, source), toolchain).read_text()


@pytest.mark.parametrize("output", list(Output))
def test_the_same_bytes_in_another_tree_are_compiled_once(
    tree: Path, tmp_path: Path, toolchain: Toolchain, compiles: list[list[str]], output: Output
) -> None:
    source = f"{KERNEL}int main() {{}}\n" if output is not Output.EXECUTABLE else HOST
    first = compile_unit(unit_of(tree, output, source), toolchain)
    second = compile_unit(unit_of(make_tree(tmp_path / "same", 7), output, source), toolchain)
    assert first == second
    assert len(compiles) == 1


@pytest.mark.parametrize("output", [Output.PTX, Output.PREPROCESSED])
def test_other_header_bytes_are_compiled_again(
    tree: Path, tmp_path: Path, toolchain: Toolchain, compiles: list[list[str]], output: Output
) -> None:
    first = compile_unit(unit_of(tree, output), toolchain)
    second = compile_unit(unit_of(make_tree(tmp_path / "other", 8), output), toolchain)
    assert first.read_bytes() != second.read_bytes()
    assert len(compiles) == 2


def test_a_header_that_only_the_device_pass_reads_counts(tree: Path, toolchain: Toolchain) -> None:
    source = f"#ifdef __CUDA_ARCH__\n{KERNEL}#else\n__global__ void fill(int*);\n#endif\n"
    before = compile_unit(unit_of(tree, Output.PTX, source), toolchain).read_bytes()
    (tree / "include" / "width.h").write_text("#define WIDTH 1234\n")
    assert compile_unit(unit_of(tree, Output.PTX, source), toolchain).read_bytes() != before


@pytest.mark.parametrize(
    "change", [{"flags": ("-DX",)}, {"arch": "100a"}, {"source": KERNEL + "\n"}, {"includes": ("include", ".")}]
)
def test_whatever_decides_the_output_is_in_the_key(tree: Path, change: dict[str, object]) -> None:
    toolchain = Toolchain(Path("nvcc"), "13.0.88", "g++ 12")
    base: dict[str, object] = {"source": KERNEL, "tree": tree, "includes": ("include",), "output": Output.PTX}
    assert nvcc._key(Unit(**base), toolchain) != nvcc._key(Unit(**{**base, **change}), toolchain)  # type: ignore[arg-type]


def test_compilers_are_in_the_key(tree: Path) -> None:
    unit = unit_of(tree)
    chains = [Toolchain(Path("nvcc"), *versions) for versions in (("13.0", "12"), ("13.1", "12"), ("13.0", "13"))]
    assert len({nvcc._key(unit, chain) for chain in chains}) == 3


def test_a_refused_source_names_its_lines_and_is_not_cached(
    tree: Path, toolchain: Toolchain, compiles: list[list[str]]
) -> None:
    source = 'static_assert(true);\nstatic_assert(false, "one");\n\nstatic_assert(false, "two");\n'
    for _ in range(2):
        with pytest.raises(CompileError, match='static assertion failed with "two"') as refusal:
            compile_unit(unit_of(tree, Output.PTX, source), toolchain)
        assert refusal.value.lines() == {2, 4}
    assert len(compiles) == 2


def test_an_error_message_is_short_whatever_nvcc_prints(tree: Path) -> None:
    message = str(CompileError(unit_of(tree), "unit.cu(1): error: " + "x" * 9000 + "\nnote: in\n" * 900))
    assert len(message) < 700 + len(str(tree))
    assert message.startswith("nvcc cannot compile the unit for compute_120a")


def test_flags_from_the_environment_do_not_reach_nvcc(
    tree: Path, toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DWIDTH=99 -no-such-flag")
    assert ".target sm_120a" in compile_unit(unit_of(tree), toolchain).read_text()


HOST = """\
#include "recording_cudart.h"
__global__ void plain(int) {}
__global__ void chosen(int) {}
int main() {
  plain<<<1, 32>>>(1);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  cudaLaunchConfig_t config{};
  config.attrs = &attribute;
  config.numAttrs = 1;
  for (int allowed = 0; allowed < 2; ++allowed) {
    attribute.val.programmaticStreamSerializationAllowed = allowed;
    cudaLaunchKernelEx(&config, chosen, 2);
  }
  for (int bytes : {101376, 101377}) {
    cudaFuncSetAttribute(chosen, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  }
}
"""


def test_a_program_says_what_it_would_have_launched(tree: Path, toolchain: Toolchain) -> None:
    program = compile_unit(unit_of(tree, Output.EXECUTABLE, HOST), toolchain)
    assert os.access(program, os.X_OK)
    assert run_program(program, {}).splitlines() == [
        "launch pdl=0 _Z5plaini",
        "launch pdl=0 _Z6choseni",
        "launch pdl=1 _Z6choseni",
        "refused 101377 _Z6choseni",
    ]
