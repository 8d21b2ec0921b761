"""serving/rig/ops.py: an operator that upstream registers for CUDA alone runs on CPU tensors, within a block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sm120_overlay.serving.rig import ops

NAME = "rig_ops_probe"


@pytest.fixture(scope="module")
def operator() -> Iterator[Any]:
    """An operator as upstream registers its own: defined, and given a function for CUDA."""
    make: Any = torch.library.Library
    library = make("sglang", "FRAGMENT")
    library.define(f"{NAME}(Tensor x, int by, Tensor? more=None) -> (Tensor, Tensor)")
    library.impl(NAME, lambda x, by, more=None: (x * by, x if more is None else more), "CUDA")
    yield getattr(torch.ops.sglang, NAME)
    library._destroy()


def test_the_registered_function_runs_with_what_it_was_given(operator: Any) -> None:
    with ops.on_cpu(NAME):
        doubled, more = operator(torch.ones(2), 2, torch.zeros(1))
        assert operator(torch.ones(2), 3)[0].tolist() == [3.0, 3.0]
    assert (doubled.tolist(), more.tolist()) == ([2.0, 2.0], [0.0])


def test_after_the_block_it_is_for_cuda_alone_again(operator: Any) -> None:
    with ops.on_cpu(NAME):
        operator(torch.ones(1), 1)
    with pytest.raises(NotImplementedError):
        operator(torch.ones(1), 1)
    with ops.on_cpu(NAME):
        assert operator(torch.ones(1), 4)[0].item() == 4.0


def test_a_failure_inside_the_block_ends_it_too(operator: Any) -> None:
    with pytest.raises(KeyError), ops.on_cpu(NAME):
        raise KeyError
    with pytest.raises(NotImplementedError):
        operator(torch.ones(1), 1)
