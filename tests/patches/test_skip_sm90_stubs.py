"""skip-sm90-stubs: the SM12x fused MoE module compiles what it can use, and not SM90's fpA_intB kernels.

The lists are those of the tree's own gen_cutlass_fused_moe_sm…_module. That what the module leaves out is dead is shown
from both sides: nvcc makes no function of it for sm_120a, and nothing that the module compiles can name it. The
library is not linked here: its TUs are too heavy for that.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sm120_overlay.serving.flashinfer import INCLUDES, import_flashinfer
from sm120_overlay.serving.nvcc.compile import Output, Unit, compile_unit

# Where the generator puts fpA_intB's kernels, and what it instantiates there.
STUBS = Path("gemm", "90")
LAUNCHER = "sm90_generic_mixed_gemm_kernelLauncher"
# FlashInfer 0.6.3 generates 62 files for SM12x, 0.6.14 and 0.7.2 68, of which so many are fpA_intB's.
STUB_COUNT = 48
# What the folders that stay hold: SM120's grouped GEMMs, and SM80's, which the dispatch calls for 16-bit weights.
USED = {Path("gemm_grouped", "120"), Path("gemm_grouped", "80")}
ELSEWHERE = [89, 90, 100, 103]

DEFINE = re.compile(r"-D\w+(=\w+)?")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
FUNCTION = re.compile(r"\.(?:entry|func)\b")


@dataclass(frozen=True, slots=True)
class Module:
    """The fused MoE module of an architecture, as FlashInfer's JIT would build it."""

    sources: tuple[Path, ...]
    generated: Path
    """The folder of what its generator writes; the last that is searched for headers."""
    includes: tuple[Path, ...]
    defines: tuple[str, ...]

    def written(self) -> set[Path]:
        """Every generated source, relative to the folder."""
        return {file.relative_to(self.generated) for file in self.generated.rglob("*.generated.cu")}

    def compiled(self) -> set[Path]:
        """Those of them that the module compiles."""
        return {file.relative_to(self.generated) for file in self.sources if file.is_relative_to(self.generated)}

    def left_out(self) -> set[Path]:
        return self.written() - self.compiled()


@pytest.fixture
def module(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Module]:
    import_flashinfer(tree, tmp_path)
    context = sys.modules["flashinfer.jit.core"].current_compilation_context
    monkeypatch.setattr(context, "TARGET_CUDA_ARCHS", {(9, "0a"), (10, "0a"), (12, "0a")})
    return _module


@functools.cache
def _module(arch: int) -> Module:
    spec = getattr(sys.modules["flashinfer.jit.fused_moe"], f"gen_cutlass_fused_moe_sm{arch}_module")()
    includes = tuple(Path(folder) for folder in spec.extra_include_dirs)
    defines = tuple(flag for flag in spec.extra_cuda_cflags if DEFINE.fullmatch(flag))
    return Module(tuple(Path(source) for source in spec.sources), includes[-1], includes, defines)


def test_the_sm120_module_leaves_out_sm90s_kernels_and_nothing_else(module: Callable[[int], Module]) -> None:
    sm120 = module(120)
    stubs = {file for file in sm120.written() if file.parent == STUBS}
    assert len(stubs) == STUB_COUNT
    assert sm120.left_out() == stubs
    assert {file.parent for file in sm120.compiled()} == USED


def test_no_source_is_compiled_twice(module: Callable[[int], Module]) -> None:
    assert len(set(module(120).sources)) == len(module(120).sources)


@pytest.mark.parametrize("arch", ELSEWHERE)
def test_other_modules_compile_all_that_is_generated_as_upstream(module: Callable[[int], Module], arch: int) -> None:
    assert module(arch).left_out() == set()
    assert len([file for file in module(arch).compiled() if file.parent == STUBS]) == STUB_COUNT


def test_what_is_left_out_stays_on_disk(module: Callable[[int], Module]) -> None:
    """FlashInfer 0.6.3 writes a build.ninja once: one from before names these files, and must still find them."""
    again = sys.modules["flashinfer.jit.fused_moe"].gen_cutlass_fused_moe_sm120_module()
    assert {file for file in module(120).written() if file.parent == STUBS} != set()
    assert set(again.sources) == set(module(120).sources)


def _all_stubs(sm120: Module) -> str:
    """Every fpA_intB file of the module as one source: they include the same launcher, once is enough."""
    texts = [(sm120.generated / file).read_text() for file in sorted(sm120.written()) if file.parent == STUBS]
    heads, bodies = zip(*(text.split("\n", 1) for text in texts), strict=True)
    assert len(set(heads)) == 1, "the files include different launchers: adapt the test"
    return "\n".join([heads[0], *bodies])


def _functions(tree: Path, sm120: Module, source: str) -> int:
    """How many device functions nvcc makes of a source, with the module's macros and folders, for sm_120a."""
    # The folders that are in the tree, named as the cache wants them; generated sources bring no headers.
    folders = [os.path.relpath(folder, tree) for folder in sm120.includes if folder != sm120.generated]
    unit = Unit(source, tree, (*INCLUDES, *folders), Output.PTX, sm120.defines)
    return len(FUNCTION.findall(compile_unit(unit).read_text()))


def test_what_is_left_out_has_no_device_code(tree: Path, module: Callable[[int], Module]) -> None:
    source = _all_stubs(module(120))
    assert source.count(f"template void {LAUNCHER}<") >= STUB_COUNT
    assert _functions(tree, module(120), source) == 0
    assert _functions(tree, module(120), f"{source}\n__global__ void control() {{}}\n") == 1


def _reached(start: tuple[Path, ...], folders: list[Path]) -> dict[Path, str]:
    """Every file of FlashInfer that sources may include, on any branch of the preprocessor, with its text."""
    texts: dict[Path, str] = {}
    todo = list(start)
    while todo:
        file = todo.pop()
        if file not in texts:
            texts[file] = file.read_text(errors="replace")
            candidates = (folder / name for name in INCLUDE.findall(texts[file]) for folder in (file.parent, *folders))
            todo += [found.resolve() for found in candidates if found.is_file()]
    return texts


def test_nothing_that_the_module_compiles_can_name_what_is_left_out(
    tree: Path, module: Callable[[int], Module]
) -> None:
    """A file that does not declare a function template cannot call it."""
    sm120 = module(120)
    folders = [*(tree / name for name in INCLUDES), *sm120.includes]
    left_out = {sm120.generated / file for file in sm120.written() if file.parent == STUBS}
    kept = tuple(source for source in sm120.sources if source not in left_out)
    reached = _reached(kept, folders)
    assert len(reached) > 500, "headers are not found: adapt the test"
    assert [str(file) for file, text in reached.items() if LAUNCHER in text] == []
    # The control: from one of those that are left out, the name is reached.
    control = _reached((min(left_out),), folders)
    assert [file.name for file, text in control.items() if f"void {LAUNCHER}(" in text] != []
