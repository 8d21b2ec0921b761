"""fp4-gemm-default: on SM12x a dense NVFP4 layer runs on cuDNN unless the user names another GEMM.

Everything here runs upstream's own argument resolution and its own FP4 GEMM operator, down to FlashInfer's mm_fp4,
which is a recorder there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from sm120_overlay.serving import rig
from sm120_overlay.serving.rig import cards, models, ops
from sm120_overlay.serving.rig.models import QuantForm

ENV = "SGLANG_FLASHINFER_FP4_GEMM_BACKEND"
SM12X = pytest.mark.parametrize("card", [cards.RTX_PRO_6000_SERVER, cards.DGX_SPARK], ids=["12.0", "12.1"])
OTHERS = pytest.mark.parametrize("card", [cards.H200, cards.B200], ids=["9.0", "10.0"])
NAMED = ("flashinfer_cudnn", "flashinfer_cutlass", "flashinfer_trtllm")

Backend = Callable[..., str]


@pytest.fixture(scope="session")
def quant(standing: rig.Standing) -> Iterator[ModuleType]:
    """Upstream's NVFP4 layers, their GEMM operator on CPU tensors."""
    loaded = standing.module("sglang.srt.layers.quantization.modelopt_quant")
    with ops.on_cpu("fp4_gemm"):
        yield loaded


@pytest.fixture
def backend(
    standing: rig.Standing, quant: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Backend]:
    """What FlashInfer's mm_fp4 is asked for by a server with these arguments, and this in the environment."""
    utils = standing.module("sglang.srt.layers.quantization.fp4_utils")
    asked: list[str] = []

    def mm_fp4(*args: Any, backend: str) -> torch.Tensor:
        asked.append(backend)
        return torch.zeros(args[0].shape[0], args[1].shape[1], dtype=args[5])

    # moe-autotune, a later patch, turns FlashInfer's tuner off around the call.
    tuner = SimpleNamespace(autotune=lambda tune_mode=True: nullcontext(tune_mode))
    monkeypatch.setitem(sys.modules, "flashinfer.autotuner", tuner)
    monkeypatch.setattr(quant, "flashinfer_fp4_gemm", mm_fp4)
    monkeypatch.setattr(utils, "FP4_GEMM_RUNNER_BACKEND", None)
    folder = models.checkpoint(tmp_path / "model", models.QWEN3_DENSE, QuantForm.SIDE_FILE)

    def ask(card: rig.Card, env: str | None = None, **flags: str) -> str:
        monkeypatch.delenv(ENV, raising=False)
        if env is not None:
            monkeypatch.setenv(ENV, env)
        with rig.present(card):
            outcome = rig.resolve(standing, folder, **flags)
            assert outcome.refusal is None, f"upstream refuses {flags}: {outcome.refusal}"
            utils.initialize_fp4_gemm_config(outcome.args)
            run_gemm(quant)
        return asked[-1]

    yield ask


def run_gemm(quant: ModuleType) -> None:
    """One product of a layer: 4 tokens, 32 channels in, 64 out."""
    rows, weight = torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(16, 64, dtype=torch.uint8)
    scales, alpha = torch.zeros(128, 4, dtype=torch.uint8), torch.ones(1)
    quant.fp4_gemm(rows, weight, scales, scales.T, alpha, torch.bfloat16, 64)


@SM12X
def test_a_server_that_was_told_nothing_runs_on_cudnn(backend: Backend, card: rig.Card) -> None:
    assert backend(card) == "cudnn"


@SM12X
def test_auto_does_not_leave_the_choice_to_flashinfer(backend: Backend, card: rig.Card) -> None:
    """FlashInfer 0.6.3's own auto prefers CUTLASS on CUDA 12, and may tune to it anywhere."""
    assert backend(card, fp4_gemm_runner_backend="auto") == "cudnn"


@SM12X
@pytest.mark.parametrize("name", NAMED)
def test_a_backend_that_the_user_named_is_kept(backend: Backend, card: rig.Card, name: str) -> None:
    assert backend(card, fp4_gemm_runner_backend=name) == name.removeprefix("flashinfer_")


@SM12X
def test_the_deprecated_variable_counts_where_upstream_lets_it_count(backend: Backend, card: rig.Card) -> None:
    found = {
        "beside auto": backend(card, "cutlass", fp4_gemm_runner_backend="auto"),
        "alone": backend(card, "cutlass"),
        "beside a name": backend(card, "cudnn", fp4_gemm_runner_backend="flashinfer_cutlass"),
    }
    assert found == {"beside auto": "cutlass", "alone": "cudnn", "beside a name": "cutlass"}


@OTHERS
def test_other_capabilities_choose_exactly_as_upstream(backend: Backend, card: rig.Card) -> None:
    found = {name: backend(card, fp4_gemm_runner_backend=name) for name in ("auto", *NAMED)}
    assert found == {"auto": "auto", **{name: name.removeprefix("flashinfer_") for name in NAMED}}
    alone = {env: backend(card, env) for env in (None, "cudnn")}
    assert alone == {None: "cutlass", "cudnn": "cutlass"}
    assert backend(card, "cudnn", fp4_gemm_runner_backend="auto") == "cudnn"


@SM12X
def test_a_server_that_does_not_use_the_card_stays_as_upstream_resolves_it(backend: Backend, card: rig.Card) -> None:
    assert backend(card, device="cpu") == "cutlass"
    assert backend(card, device="cpu", fp4_gemm_runner_backend="auto") == "auto"


@pytest.mark.parametrize(
    ("card", "flags", "expected"),
    [
        (cards.RTX_PRO_6000_SERVER, [], "flashinfer_cudnn"),
        (cards.RTX_PRO_6000_SERVER, ["--fp4-gemm-backend", "flashinfer_cutlass"], "flashinfer_cutlass"),
        (cards.B200, [], "flashinfer_cutlass"),
    ],
    ids=["12.0", "12.0 named", "10.0"],
)
def test_the_command_line_says_the_same(
    standing: rig.Standing, tmp_path: Path, card: rig.Card, flags: list[str], expected: str
) -> None:
    folder = models.checkpoint(tmp_path / "model", models.QWEN3_DENSE, QuantForm.SIDE_FILE)
    server_args = standing.module("sglang.srt.server_args")
    with rig.present(card):
        found = server_args.prepare_server_args(["--model-path", str(folder), *flags])
    assert found.fp4_gemm_runner_backend == expected


@pytest.mark.parametrize("card", [cards.H200, cards.B200, cards.RTX_PRO_6000_SERVER], ids=["9.0", "10.0", "12.0"])
@pytest.mark.parametrize("path", ["dummy", "none"])
@pytest.mark.parametrize("name", [None, "flashinfer_cudnn"])
def test_arguments_without_a_model_still_configure_the_gemm_as_upstream(
    standing: rig.Standing, monkeypatch: pytest.MonkeyPatch, card: rig.Card, path: str, name: str | None
) -> None:
    """Upstream resolves next to nothing for them. The backend that it then has must be one that it accepts."""
    utils = standing.module("sglang.srt.layers.quantization.fp4_utils")
    monkeypatch.delenv(ENV, raising=False)
    monkeypatch.setattr(utils, "FP4_GEMM_RUNNER_BACKEND", None)
    named = {} if name is None else {"fp4_gemm_runner_backend": name}
    with rig.present(card):
        args = standing.module("sglang.srt.server_args").ServerArgs(model_path=path, **named)
        try:
            utils.initialize_fp4_gemm_config(args)
        except ValueError as error:
            pytest.fail(f"upstream does not take {args.fp4_gemm_runner_backend!r}: {error}")
    assert utils.get_fp4_gemm_runner_backend().value == (name or "flashinfer_cutlass")
