"""arch-list-parsing: FLASHINFER_CUDA_ARCH_LIST takes the usual separators, and names targets that SM12x kernels need.

The parser is the tree's own CompilationContext. What its targets mean is shown by nvcc: CUTLASS's block-scaled MMA and
the body of the grouped GEMM kernel that fused MoE launches, for the target that the list gives.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from sm120_overlay.serving.flashinfer import INCLUDES, import_flashinfer, version_of
from sm120_overlay.serving.nvcc.compile import CompileError, Output, Unit, compile_unit

VARIABLE = "FLASHINFER_CUDA_ARCH_LIST"
PROBE = Path(__file__).with_name("arch_list_parsing.cu")
# The kernel of every grouped GEMM that fused MoE launches on SM12x, and what it is where the target is too plain.
KERNEL = "cutlass/gemm/kernel/sm90_gemm_array_tma_warpspecialized_cooperative.hpp"
INSTEAD_OF_A_BODY = "ERROR : Arch conditional MMA instruction used without targeting appropriate compute capability"

# Since then upstream gives an item without a suffix the target of the detected card (flashinfer#2725).
NORMALISED = Version("0.6.7")

Target = tuple[int, str]
# One item of the list, and the target that it is there; the last is what upstream passes on to nvcc, which refuses it.
OTHERS: list[tuple[str, Target]] = [
    ("7.5", (7, "5")),
    ("8.0", (8, "0")),
    ("8.9", (8, "9")),
    ("9.0a", (9, "0a")),
    ("10.0a", (10, "0a")),
    ("10.3a", (10, "3a")),
    ("9.0+PTX", (9, "0+PTX")),
]
# The same, where the releases differ: before NORMALISED, and since.
PLAIN_OTHERS: list[tuple[str, Target, Target]] = [
    ("9.0", (9, "0"), (9, "0a")),
    ("10.0", (10, "0"), (10, "0a")),
    ("11.0", (11, "0"), (11, "0a")),
]
SM12X: list[tuple[str, Target]] = [
    ("12.1", (12, "1a")),
    ("12.0a", (12, "0a")),
    ("12.1a", (12, "1a")),
    ("12.0f", (12, "0f")),
]
PLAIN_SM12X: list[tuple[str, Target, Target]] = [("12.0", (12, "0a"), (12, "0f"))]
ITEMS = [*dict(OTHERS), *dict(SM12X), *(item for item, *_ in (*PLAIN_OTHERS, *PLAIN_SM12X))]

Refusal = ValueError | IndexError
Parse = Callable[[str], set[Target] | Refusal]


@pytest.fixture(scope="session")
def expected(tree: Path) -> dict[str, Target]:
    """Every item's target in this release."""
    is_normalised = version_of(tree) >= NORMALISED
    plain = {item: since if is_normalised else before for item, before, since in (*PLAIN_OTHERS, *PLAIN_SM12X)}
    return dict(OTHERS) | dict(SM12X) | plain


@pytest.fixture(scope="session")
def parse(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Parse:
    """The targets that the tree reads from a list, or its refusal."""
    import_flashinfer(tree, tmp_path_factory.mktemp("workspace"))
    return _parse


def _parse(value: str) -> set[Target] | Refusal:
    try:
        with mock.patch.dict(os.environ, {VARIABLE: value}):
            targets = sys.modules["flashinfer.compilation_context"].CompilationContext().TARGET_CUDA_ARCHS
    except (ValueError, IndexError) as refusal:
        return refusal
    return {(int(major), str(minor)) for major, minor in targets}


@pytest.mark.parametrize("item", [item for item in ITEMS if item.startswith("12.")])
def test_an_sm12x_target_is_specific(parse: Parse, expected: dict[str, Target], item: str) -> None:
    assert parse(item) == {expected[item]}


@pytest.mark.parametrize("item", [item for item in ITEMS if not item.startswith("12.")])
def test_other_targets_are_read_as_upstream(parse: Parse, expected: dict[str, Target], item: str) -> None:
    assert parse(item) == {expected[item]}


@given(
    items=st.lists(st.sampled_from(ITEMS), min_size=1, max_size=4),
    separators=st.lists(st.text(" ,;\t\n", min_size=1, max_size=3), min_size=3, max_size=3),
    around=st.tuples(st.text(" ,;\n", max_size=2), st.text(" ,;\n", max_size=2)),
)
@settings(max_examples=60, deadline=None, database=None)
def test_any_separators_give_the_union_of_the_items(
    parse: Parse,
    expected: dict[str, Target],
    items: Sequence[str],
    separators: Sequence[str],
    around: tuple[str, str],
) -> None:
    listed = items[0] + "".join(separator + item for separator, item in zip(separators, items[1:], strict=False))
    assert parse(f"{around[0]}{listed}{around[1]}") == {expected[item] for item in items}


@pytest.mark.parametrize("value", ["12.0;12.1", "12.0,12.1", "12.0, 12.1", "12.0 12.1", "12.0;12.1a;"])
def test_the_lists_that_people_write_are_read(parse: Parse, expected: dict[str, Target], value: str) -> None:
    assert parse(value) == {expected["12.0"], (12, "1a")}


@pytest.mark.parametrize("item", ["12.0+PTX", "12.1+PTX", "12.0-real", "12.0b", "12.", "12.0a+PTX"])
def test_an_sm12x_item_that_is_no_target_is_refused_by_name(parse: Parse, item: str) -> None:
    refusal = parse(f"9.0 {item}")
    assert isinstance(refusal, ValueError), "it is read, and fails in nvcc or later"
    assert VARIABLE in str(refusal)
    assert repr(item) in str(refusal)
    assert "12.0a" in str(refusal)


@pytest.mark.parametrize("value", ["", "  ", "120a", "sm_120a", "twelve.0", "9.0 90", "12.0.1"])
def test_what_upstream_cannot_read_stays_an_error(parse: Parse, value: str) -> None:
    assert isinstance(parse(value), ValueError)


@pytest.fixture
def detected(parse: Parse, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Be a machine with one card, on which nobody sets the variable."""

    def see(major: int, minor: int) -> None:
        monkeypatch.delenv(VARIABLE, raising=False)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (major, minor))

    return see


@pytest.mark.parametrize("item", ["12.0", "12.1", "10.0a", "9.0a", "8.9"])
def test_without_the_variable_the_device_decides_as_upstream(
    detected: Callable[[int, int], None], expected: dict[str, Target], item: str
) -> None:
    major, minor = map(int, item.rstrip("a").split("."))
    detected(major, minor)
    assert {expected[item]} == sys.modules["flashinfer.compilation_context"].CompilationContext().TARGET_CUDA_ARCHS


@pytest.mark.parametrize("item", ["12.0", "12.1"])
def test_a_plain_target_shares_the_cache_of_the_detected_one(
    detected: Callable[[int, int], None], monkeypatch: pytest.MonkeyPatch, item: str
) -> None:
    """And so never finds libraries for plain compute_120, as 0.6.3 builds them."""
    name_folder = sys.modules["flashinfer.jit.env"]._get_workspace_dir_name
    major, minor = map(int, item.split("."))
    detected(major, minor)
    found = name_folder()
    monkeypatch.setenv(VARIABLE, item)
    assert name_folder() == found


def _target(parsed: set[Target] | Refusal) -> str:
    """The one target of a list, as nvcc names it behind `compute_`."""
    assert isinstance(parsed, set)
    ((major, minor),) = parsed
    return f"{major}{minor}"


@pytest.mark.parametrize("item", ["12.0", "12.1"])
def test_nvfp4_compiles_for_the_target(tree: Path, parse: Parse, item: str) -> None:
    unit = Unit(PROBE.read_text(), tree, INCLUDES, Output.PTX, arch=_target(parse(item)))
    try:
        ptx = compile_unit(unit).read_text()
    except CompileError as error:
        pytest.fail(str(error))
    assert ptx.count("mma.sync.aligned.kind::mxf4nvf4") == 1


def _has_no_body(tree: Path, target: str) -> bool:
    """Whether fused MoE's kernel, as the device pass for a target sees it, only prints that it has no body."""
    unit = Unit(
        f"#include <cutlass/cutlass.h>\n#include <{KERNEL}>\n", tree, INCLUDES, Output.PREPROCESSED, arch=target
    )
    return INSTEAD_OF_A_BODY in compile_unit(unit).read_text()


@pytest.mark.parametrize("item", ["12.0", "12.1"])
def test_the_grouped_gemm_kernel_has_a_body_for_the_target(tree: Path, parse: Parse, item: str) -> None:
    assert not _has_no_body(tree, _target(parse(item)))


@pytest.mark.parametrize("target", ["120", "121"])
def test_the_grouped_gemm_kernel_has_none_for_a_plain_target_which_is_why(tree: Path, target: str) -> None:
    """When this fails, CUTLASS's kernels need no architecture-specific target any more: the promotion may go."""
    assert _has_no_body(tree, target)
