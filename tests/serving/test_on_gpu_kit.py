"""The checks for a card, as far as a CPU can judge them: FP4 by hand, a patch each, and no false yes without CUDA."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sm120_overlay.queue.home import find_home
from sm120_overlay.queue.pins import load_lines
from sm120_overlay.queue.series import load_series

from ..on_gpu import check_arch_list_parsing, check_pdl_switch, kit, moe, run

CHECKS = sorted(Path(kit.__file__).parent.glob("check_*.py"))
SM120 = kit.Card("RTX", 12, 0)


def offset(row: int, column: int, columns: int) -> int:
    """Where FlashInfer keeps a block scale: get_sf_out_offset_128x4 of its quantization_utils.cuh, by hand."""
    tile = (row // 128) * -(-columns // 4) + column // 4
    return tile * 512 + (row % 32) * 16 + (row % 128) // 32 * 4 + column % 4


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 300), columns=st.integers(1, 20))
def test_scales_lie_where_flashinfer_looks_for_them(rows: int, columns: int) -> None:
    blocks = torch.randint(1, 120, (rows, columns), dtype=torch.uint8)
    flat = kit.swizzle(blocks.view(torch.float8_e4m3fn)).flatten()
    for row in {0, rows // 2, rows - 1}:
        for column in range(columns):
            assert flat[offset(row, column, columns)] == blocks[row, column]
    assert int((flat != 0).sum()) == rows * columns


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), scale=st.sampled_from([1e-3, 1.0, 50.0]))
def test_rounding_takes_the_nearest_value_that_fp4_has(seed: int, scale: float) -> None:
    torch.manual_seed(seed)
    matrix = torch.randn(4, 32) * scale
    found = kit.quantise(matrix)
    grid = torch.tensor([*kit.E2M1, *(-value for value in kit.E2M1)])
    steps = found.blocks.float().repeat_interleave(kit.BLOCK, -1) / found.scale
    nearest = (matrix.unsqueeze(-1) - steps.unsqueeze(-1) * grid).abs().min(-1).values
    assert torch.allclose((found.value() - matrix).abs(), nearest, rtol=1e-3, atol=1e-6 * scale)


def test_a_quantisation_that_writes_nothing_is_no_quantisation() -> None:
    def real(matrix: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = kit.quantise(matrix, scale)
        return made.codes, made.swizzled

    def empty(matrix: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.zeros_like(part) for part in real(matrix, scale))

    assert kit.fp4_quantises(real, SM120, "cpu") is None
    for card, outcome in ((SM120, kit.FAILED), (kit.Card("H200", 9, 0), kit.NOT_APPLICABLE)):
        said = kit.fp4_quantises(empty, card, "cpu")
        assert said is not None
        assert said.outcome == outcome


def test_what_fp4_holds_comes_back_as_it_was() -> None:
    matrix = torch.tensor([kit.E2M1 * 2, [-value for value in kit.E2M1] * 2])
    assert torch.equal(kit.quantise(matrix, torch.tensor(1.0)).value(), matrix)
    assert torch.equal(kit.quantise(torch.zeros(2, 16)).value(), torch.zeros(2, 16))


def test_a_distance_is_infinite_where_anything_is_not_a_number() -> None:
    one = torch.ones(4, 4)
    assert moe.distance(one, one) == 0
    assert moe.distance(one.clone().fill_(float("nan")), one) == float("inf")
    assert moe.distance(one * 2, one) == pytest.approx(1.0)


def test_equal_bytes_are_of_one_kind_and_shape() -> None:
    one = torch.tensor([0.0])
    assert kit.same_bytes(one, one.clone())
    assert not kit.same_bytes(one, -one)
    assert not kit.same_bytes(one, one.double())


def test_a_check_with_failures_names_the_first_and_their_number() -> None:
    assert kit.one_of([], "yes") == kit.Answer(kit.SHOWN, "yes")
    assert kit.one_of(["no"], "yes") == kit.Answer(kit.FAILED, "no")
    assert kit.one_of(["no", "neither"], "yes").said == "no (2 such)"


def test_a_function_that_does_not_trace_or_differs_is_a_failure() -> None:
    def python_only(rows: torch.Tensor) -> Any:
        sys.stdout.flush()
        return (rows * float(str(rows.shape)[-3] == "[") if rows.sum() > 0 else rows,)

    answer = kit.compiled_like_eager(python_only, [torch.ones(2)], "it")
    assert (answer.outcome, "does not trace" in answer.said) == (kit.FAILED, True)


@pytest.mark.parametrize("file", CHECKS, ids=lambda file: file.stem)
def test_a_check_says_of_which_patch_it_is_and_that_is_in_a_series(file: Path) -> None:
    slug = file.stem.removeprefix("check_").replace("_", "-")
    module = importlib.import_module(f"tests.on_gpu.{file.stem}")
    assert (module.__doc__ or "").startswith(f"{slug}: ")
    home = find_home()
    assert slug in {slug for pin in load_lines(home.pins).all_pins() for slug in load_series(home, pin).slugs}


@pytest.mark.parametrize("file", CHECKS, ids=lambda file: file.stem)
def test_without_a_device_or_upstream_no_check_shows_anything(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kit, "this_card", lambda: SM120)
    for name in ("on_gpu.kit", f"on_gpu.{file.stem}"):
        monkeypatch.setitem(sys.modules, name, importlib.import_module(f"tests.{name}"))
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    monkeypatch.setitem(sys.modules, "sglang", None)
    assert run.main([file.stem.removeprefix("check_").replace("_", "-")]) == 0
    assert f'"outcome": "{kit.NOT_SHOWN}"' in capsys.readouterr().out


@pytest.mark.parametrize(("capability", "supports", "outcome"), [
    ((12, 0), True, kit.FAILED), ((9, 0), True, kit.SHOWN), ((9, 0), False, kit.FAILED), ((8, 9), False, kit.SHOWN),
])  # fmt: skip
def test_the_pdl_switch_is_judged_by_the_card(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], supports: bool, outcome: str
) -> None:
    fake = SimpleNamespace(device_support_pdl=lambda device: supports)
    monkeypatch.setattr(check_pdl_switch, "upstream", lambda name: fake)
    assert check_pdl_switch.check(kit.Card("x", *capability)).outcome == outcome


@pytest.mark.parametrize(("flag", "outcome"), [("compute_120a", kit.SHOWN), ("compute_120", kit.FAILED)])
def test_a_list_is_judged_by_the_target_that_is_compiled(
    monkeypatch: pytest.MonkeyPatch, flag: str, outcome: str
) -> None:
    monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", "")
    context = SimpleNamespace(get_nvcc_flags_list=lambda: [f"-gencode=arch={flag},code=sm_120a", "-DX"])
    monkeypatch.setattr(
        check_arch_list_parsing, "upstream", lambda name: SimpleNamespace(CompilationContext=lambda: context)
    )
    assert check_arch_list_parsing.check(SM120).outcome == outcome


def test_stale_results_are_counted_and_inputs_that_cannot_tell_are_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    state = {"now": 0, "turns": 0}

    def produce(which: int) -> None:
        state["turns"] += 1
        state["now"] = which if state["turns"] != 7 else 1 - which

    found = check_pdl_switch._stale("it", produce, lambda: torch.tensor([float(state["now"])]))
    assert found == [f"it: 1 of {check_pdl_switch.ROUNDS} launches differ, 0 have a NaN"]
    with pytest.raises(kit.Unshown, match="one result for two inputs"):
        check_pdl_switch._stale("it", lambda which: None, lambda: torch.ones(1))
