"""xqa-mla-head-guard: XQA MLA, which decodes on SM12x, is not launched with query heads that it is not built for.

FlashInfer's own functions run here, on tensors without memory; the modules that its JIT would compile write down what
they are given. What the kernel does with another number of heads is not shown: nothing runs on a GPU.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from sm120_overlay.serving.flashinfer import import_flashinfer

# What the kernel is built for: csrc/xqa/defines.h, IS_MLA.
HEADS = 128
# 16 and 64: what tensor parallelism over 8 and 2 ranks leaves of DeepSeek's 128.
OTHER_HEADS = [1, 16, 64, 127, 129, 256]
BATCH, PAGE, PAGES, NOPE, RANK, ROPE = 3, 64, 4, 128, 512, 64
MEBI = 1 << 20
FP8 = torch.float8_e4m3fn

Capability = tuple[int, int]
SM12X = pytest.mark.parametrize("seen", [(12, 0), (12, 1)])
ELSEWHERE = pytest.mark.parametrize("seen", [(8, 9), (9, 0), (10, 0), (10, 3), (11, 0)])


@dataclass(frozen=True)
class Machine:
    """FlashInfer's Python on a GPU of some capability; `show` makes it another, the lists are its launches."""

    mla: ModuleType
    xqa: ModuleType
    show: Callable[[Capability], None]
    xqa_launches: list[tuple[Any, ...]] = field(default_factory=list)
    trtllm_launches: list[tuple[Any, ...]] = field(default_factory=list)
    built: list[tuple[Any, ...]] = field(default_factory=list)

    def gen_xqa_module_mla(self, *kind: Any) -> SimpleNamespace:
        """Stands for the JIT of XQA MLA."""
        self.built.append(kind)
        module = SimpleNamespace(xqa_wrapper_mla=lambda *given: self.xqa_launches.append(given))
        return SimpleNamespace(build_and_load=lambda: module)

    def get_trtllm_gen_fmha_module(self) -> SimpleNamespace:
        return SimpleNamespace(trtllm_paged_attention_decode=lambda *given: self.trtllm_launches.append(given))


@pytest.fixture
def machine(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    import_flashinfer(tree, tmp_path)
    # In newer releases flashinfer.mla is a package; what decodes is in its _core.
    mla = sys.modules.get("flashinfer.mla._core", sys.modules["flashinfer.mla"])
    xqa = sys.modules["flashinfer.xqa"]

    def show(seen: Capability) -> None:
        for module in (mla, xqa):
            monkeypatch.setattr(module, "get_compute_capability", lambda _device: seen)
        # What newer releases ask instead.
        monkeypatch.setattr(mla, "is_sm12x_supported", lambda _device: seen[0] == 12, raising=False)

    made = Machine(mla, xqa, show)
    for module in (mla, xqa):
        monkeypatch.setattr(module, "get_device_sm_count", lambda _device: 188)
    monkeypatch.setattr(xqa, "gen_xqa_module_mla", made.gen_xqa_module_mla)
    # Without its cache, which would keep this test's module.
    monkeypatch.setattr(xqa, "get_xqa_module_mla", xqa.get_xqa_module_mla.__wrapped__)
    monkeypatch.setattr(mla, "get_trtllm_gen_fmha_module", made.get_trtllm_gen_fmha_module)
    return made


def _tensor(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Not a fake CUDA one: torch built without CUDA cannot slice those, and the workspace is sliced."""
    return torch.empty(shape, dtype=dtype, device="meta")


def _query(heads: int, length: int = 1, dtype: torch.dtype = FP8) -> torch.Tensor:
    return _tensor(BATCH, length, heads, RANK + ROPE, dtype=dtype)


def _arguments(query: torch.Tensor) -> dict[str, Any]:
    """What a decode step of MLA is called with, besides its query."""
    return {
        "query": query,
        "kv_cache": _tensor(BATCH * PAGES, PAGE, RANK + ROPE, dtype=query.dtype),
        "workspace_buffer": _tensor(16 * MEBI, dtype=torch.int8),
        "qk_nope_head_dim": NOPE,
        "kv_lora_rank": RANK,
        "qk_rope_head_dim": ROPE,
        "block_tables": _tensor(BATCH, PAGES, dtype=torch.int32),
        "seq_lens": _tensor(BATCH, dtype=torch.int32),
        "max_seq_len": PAGE * PAGES,
        "bmm1_scale": 0.125,
    }


def _auto(machine: Machine, query: torch.Tensor) -> Any:
    return machine.mla.trtllm_batch_decode_with_kv_cache_mla(**_arguments(query))


def _by_name(machine: Machine, query: torch.Tensor) -> Any:
    return machine.mla.trtllm_batch_decode_with_kv_cache_mla(**_arguments(query), backend="xqa")


def _batch_decode(machine: Machine, query: torch.Tensor) -> Any:
    return machine.mla.xqa_batch_decode_with_kv_cache_mla(**_arguments(query))


def _into_output(machine: Machine, query: torch.Tensor) -> Any:
    out = _tensor(BATCH, query.shape[2], RANK, dtype=torch.bfloat16)
    return machine.mla.xqa_batch_decode_with_kv_cache_mla(**_arguments(query), out=out)


def _direct(machine: Machine, query: torch.Tensor) -> Any:
    """xqa_mla itself, as FlashInfer's tests call it."""
    cache = _tensor(BATCH * PAGES, PAGE, 1, RANK + ROPE, dtype=query.dtype)
    table, lengths = _tensor(BATCH, PAGES, dtype=torch.int32), _tensor(BATCH, 1, dtype=torch.uint32)
    out = _tensor(BATCH, 1, query.shape[2], RANK, dtype=torch.bfloat16)
    scratch, semaphores = _tensor(MEBI, dtype=torch.uint8), _tensor(64, dtype=torch.uint32)
    machine.xqa.xqa_mla(
        query, cache, cache, table, lengths, out, scratch, semaphores, PAGE, q_scale=0.125, kv_scale=1.0
    )
    return out


Entry = Callable[[Machine, torch.Tensor], Any]
# Every way to the kernel.
ENTRIES: list[Entry] = [_auto, _by_name, _batch_decode, _into_output, _direct]
ENTRY = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__.strip("_"))


def _decode(machine: Machine, seen: Capability, entry: Entry, query: torch.Tensor) -> Any:
    """What the call gives on a GPU of this capability, or what it raises."""
    machine.show(seen)
    try:
        return entry(machine, query)
    except Exception as error:  # what upstream raises is part of the verdict
        return error


@SM12X
@ENTRY
@pytest.mark.parametrize("heads", OTHER_HEADS)
def test_another_number_of_heads_is_refused_before_the_launch(
    machine: Machine, seen: Capability, entry: Entry, heads: int
) -> None:
    outcome = _decode(machine, seen, entry, _query(heads))
    assert not machine.xqa_launches, f"a kernel for {HEADS} heads a request is launched with {heads}"
    assert isinstance(outcome, ValueError), f"not a refusal: {outcome!r}"
    assert {str(HEADS), str(heads)} <= set(re.findall(r"\d+", str(outcome)))


@SM12X
@ENTRY
def test_128_heads_are_launched_as_upstream(machine: Machine, seen: Capability, entry: Entry) -> None:
    query = _query(HEADS)
    out = _decode(machine, seen, entry, query)
    assert isinstance(out, torch.Tensor), f"refused: {out!r}"
    assert machine.built == [(FP8, FP8, PAGE, RANK + ROPE, HEADS, False)]
    (given,) = machine.xqa_launches
    assert given[1] == 0.125
    assert given[3] is out
    assert given[4] is query
    assert given[10] == BATCH


@SM12X
@pytest.mark.parametrize("heads", [64, HEADS])
@pytest.mark.parametrize(("length", "dtype", "said"), [(2, FP8, "q_len_per_request"), (1, torch.bfloat16, "fp8")])
def test_what_upstream_refuses_is_refused_in_its_words(
    machine: Machine, seen: Capability, heads: int, length: int, dtype: torch.dtype, said: str
) -> None:
    outcome = _decode(machine, seen, _auto, _query(heads, length, dtype))
    assert isinstance(outcome, ValueError)
    assert said in str(outcome)
    assert not machine.xqa_launches


@pytest.mark.parametrize("seen", [(10, 0), (10, 3)])
@pytest.mark.parametrize("heads", [*OTHER_HEADS, HEADS])
def test_sm100_decodes_any_number_of_heads_as_upstream(machine: Machine, seen: Capability, heads: int) -> None:
    query = _query(heads)
    out = _decode(machine, seen, _auto, query)
    assert isinstance(out, torch.Tensor), f"refused: {out!r}"
    assert out.shape == (BATCH, 1, heads, RANK)
    (given,) = machine.trtllm_launches
    assert given[0] is out
    assert given[2].shape == (BATCH, heads, RANK + ROPE)
    assert not machine.xqa_launches


@ELSEWHERE
@pytest.mark.parametrize("heads", [64, HEADS])
@pytest.mark.parametrize("entry", [_batch_decode, _direct], ids=["batch_decode", "direct"])
def test_elsewhere_xqa_mla_is_refused_for_the_gpu_as_upstream(
    machine: Machine, seen: Capability, heads: int, entry: Entry
) -> None:
    outcome = _decode(machine, seen, entry, _query(heads))
    assert isinstance(outcome, RuntimeError)
    assert str(outcome) == "XQA MLA is only supported on SM120 GPUs"


@ELSEWHERE
@pytest.mark.parametrize("heads", [64, HEADS])
def test_elsewhere_the_backend_by_name_is_refused_as_upstream(machine: Machine, seen: Capability, heads: int) -> None:
    outcome = _decode(machine, seen, _by_name, _query(heads))
    assert isinstance(outcome, ValueError)
    assert "SM120 GPUs" in str(outcome)
    assert not machine.xqa_launches
