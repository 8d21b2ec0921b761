"""fp4-arch-consistency: FP4 quantization is compiled for a target that the nvcc knows which compiles it.

What chooses is the tree's own get_fp4_quantization_module, and the flags are those of the module that it asks for; the
two CUDA releases that it may look at, torch's and nvcc's, are made up.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from packaging.version import Version

from sm120_overlay.serving.flashinfer import import_flashinfer

# Which SM12x targets an nvcc knows, by its release (documentation of `nvcc --list-gpu-arch`).
KNOWN = {"12.8": {"120a"}, "12.9": {"120a", "120f", "121a"}, "13.0": {"120a", "120f", "121a"}}
CUDAS = ["12.8", "12.9", "13.0"]
ELSEWHERE = {"90": "90a", "100": "100a", "103": "103a", "110": "110a"}
Target = Callable[[str, str, str | None], str]


class Asked(Exception):
    """A module is about to be loaded, or compiled."""


@pytest.fixture
def target(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    """What FP4 quantization is compiled for on a card, with this nvcc and a torch that was built with that CUDA."""
    monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", "9.0a 10.0a 12.0a")  # as SGLang sets it
    import_flashinfer(tree, tmp_path)
    quantization = sys.modules["flashinfer.quantization.fp4_quantization"]

    def ask(spec: object) -> None:
        raise Asked(spec)

    monkeypatch.setattr(sys.modules["flashinfer.jit.core"].JitSpec, "build_and_load", ask)

    def find(card: str, nvcc: str, torchs: str | None) -> str:
        monkeypatch.setattr(sys.modules["flashinfer.jit.cpp_ext"], "get_cuda_version", lambda: Version(nvcc))
        monkeypatch.setattr(torch.version, "cuda", torchs)
        quantization.get_fp4_quantization_module.cache_clear()
        with pytest.raises(Asked) as asked:
            quantization.get_fp4_quantization_module(card)
        spec = asked.value.args[0]
        (flag,) = [flag for flag in spec.extra_cuda_cflags if flag.startswith("-gencode=arch=compute_")]
        return str(flag).removeprefix("-gencode=arch=compute_").partition(",")[0]

    yield find
    quantization.get_fp4_quantization_module.cache_clear()


@pytest.mark.parametrize("torchs", CUDAS)
@pytest.mark.parametrize("nvcc", CUDAS)
def test_an_sm120_target_is_one_that_this_nvcc_knows(target: Target, nvcc: str, torchs: str) -> None:
    assert target("120", nvcc, torchs) in KNOWN[nvcc], f"nvcc {nvcc} refuses it"


@pytest.mark.parametrize("torchs", CUDAS)
@pytest.mark.parametrize("nvcc", CUDAS)
@pytest.mark.parametrize("card", ["120", "121"])
def test_torch_has_no_say(target: Target, card: str, nvcc: str, torchs: str) -> None:
    assert target(card, nvcc, torchs) == target(card, nvcc, nvcc)


@pytest.mark.parametrize("card", ["120", "121"])
@pytest.mark.parametrize("both", CUDAS)
def test_where_torch_and_nvcc_agree_nothing_changes(target: Target, card: str, both: str) -> None:
    assert target(card, both, both) == ("120f" if both != "12.8" else f"{card}a")


@pytest.mark.parametrize("torchs", CUDAS)
@pytest.mark.parametrize("nvcc", CUDAS)
@pytest.mark.parametrize("card", ELSEWHERE)
def test_other_cards_are_as_upstream(target: Target, card: str, nvcc: str, torchs: str) -> None:
    assert target(card, nvcc, torchs) == ELSEWHERE[card]
