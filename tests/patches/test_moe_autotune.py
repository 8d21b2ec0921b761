"""moe-autotune: on SM12x, FlashInfer tunes its CUTLASS MoE at start, and nothing that must not be tuned.

SGLang 0.5.9 does not tune it. Its own ModelRunner.kernel_warmup runs here on arguments that it resolved. Its forward
pass is a recorder, and so are FlashInfer's tuner and the CUDA streams. In that pass upstream's own FP4 GEMM operator is
called, down to FlashInfer's mm_fp4, which notes whether the tuner is on. Later releases tune the MoE; there the
question whether to tune, and the FP4 GEMM operator in the tuned pass and after it, are upstream's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from sm120_overlay.serving import rig
from sm120_overlay.serving.rig import cards, models, ops
from sm120_overlay.serving.rig.models import QuantForm

FIRST = next(iter(metadata.distributions(name="sglang", path=[os.environ["SM120_OVERLAY_TREE"]]))).version == "0.5.9"
SWITCH = "SGLANG_SM120_FLASHINFER_CUTLASS_MOE_AUTOTUNE"
SM12X = pytest.mark.parametrize("card", [cards.RTX_PRO_6000_SERVER, cards.DGX_SPARK], ids=["12.0", "12.1"])
CUTLASS = {"moe_runner_backend": "flashinfer_cutlass", "quantization": "modelopt_fp4"}
TRTLLM = {"moe_runner_backend": "flashinfer_trtllm", "quantization": "modelopt_fp4"}

EAGLE = {
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}
DP2 = {"dp_size": 2, "enable_dp_attention": True}
DENSE = ("flashinfer_cudnn", "auto", "flashinfer_cutlass", "flashinfer_trtllm")


@dataclass(frozen=True)
class Start:
    """What a server did when it started."""

    tuned: int | None
    """The batch of the dummy run that was tuned on, or None where there was none."""
    captured: tuple[int, ...]
    """The batches that upstream then captures CUDA graphs for; empty where it captures none, or refuses to."""


Starting = Callable[..., Start]
Warmup = Callable[..., "int | None"]
# SGLang's name of a backend → FlashInfer's name for it, and whether its tuner was on when it was called.
Dense = Callable[[str], tuple[str, bool]]


class Tuner:
    """What stands in for FlashInfer's autotuner: it knows whether it is on, nests and restores as FlashInfer's does."""

    def __init__(self) -> None:
        self.on = False

    @contextmanager
    def autotune(self, tune_mode: bool = True) -> Iterator[None]:
        before, self.on = self.on, tune_mode
        try:
            yield
        finally:
            self.on = before


@pytest.fixture(scope="session")
def runners(standing: rig.Standing) -> ModuleType:
    """Upstream's model runner."""
    return standing.module("sglang.srt.model_executor.model_runner")


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch) -> Tuner:
    """A tuner and streams that upstream finds where FlashInfer's and CUDA's would be."""
    made, stream = Tuner(), SimpleNamespace(wait_stream=lambda _other: None)
    monkeypatch.setitem(sys.modules, "flashinfer.autotuner", SimpleNamespace(autotune=made.autotune))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _stream: nullcontext())
    return made


@pytest.fixture(scope="session")
def quant(standing: rig.Standing) -> Iterator[ModuleType]:
    """Upstream's NVFP4 layers, their GEMM operator on CPU tensors."""
    loaded = standing.module("sglang.srt.layers.quantization.modelopt_quant")
    with ops.on_cpu("fp4_gemm"):
        yield loaded


@pytest.fixture
def start(
    standing: rig.Standing, runners: ModuleType, tuner: Tuner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Starting:
    """The warm-up of a server that was started so; `forward` runs within its dummy run."""
    monkeypatch.delenv(SWITCH, raising=False)
    folder = models.checkpoint(tmp_path / "model", models.GLM_5, QuantForm.GENERIC)

    def ask(
        card: rig.Card,
        pool: int = 2048,
        *,
        draft: bool = False,
        generates: bool = True,
        forward: Callable[[], None] = lambda: None,
        **flags: Any,
    ) -> Start:
        with rig.present(card):
            outcome = rig.resolve(standing, folder, tp_size=8, **flags)
            assert outcome.refusal is None, f"upstream refuses {flags}: {outcome.refusal}"
            lay_groups(standing, outcome.args, monkeypatch)
            runner = runner_of(standing, runners, outcome.args, pool, draft=draft)
            runner.is_generation = generates
            seen: list[tuple[int, bool]] = []

            def dummy_run(batch_size: int, run_ctx: Any) -> None:
                with run_ctx:
                    seen.append((batch_size, tuner.on))
                    forward()

            runner._dummy_run = dummy_run
            try:
                runner.kernel_warmup()
            except AssertionError as error:
                pytest.fail(f"the warm-up does not end: {error}")
            captured = captured_by(standing, runner)
        assert all(tuned for _, tuned in seen)
        assert len(seen) <= 1
        assert not tuner.on, "tuning goes on after the start"
        return Start(seen[0][0] if seen else None, captured)

    return ask


@pytest.fixture
def warmup(start: Starting) -> Warmup:
    """The batch alone that a server so started is tuned on, or None."""
    return lambda *args, **flags: start(*args, **flags).tuned


def lay_groups(standing: rig.Standing, args: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention's process groups, of the sizes that upstream gives them."""
    state = standing.module("sglang.srt.distributed.parallel_state")
    sizes = standing.module("sglang.srt.layers.dp_attention").compute_dp_attention_world_info
    _, tp_size, _ = sizes(args.enable_dp_attention, 0, args.tp_size, args.dp_size, args.attn_cp_size)
    monkeypatch.setattr(state, "_ATTN_TP", SimpleNamespace(world_size=tp_size))
    monkeypatch.setattr(state, "_ATTN_CP", SimpleNamespace(world_size=args.attn_cp_size))


def captured_by(standing: rig.Standing, runner: Any) -> tuple[int, ...]:
    """The batches that upstream captures for this runner, by its own rule."""
    if runner.server_args.disable_cuda_graph or not runner.is_generation:
        return ()
    rule = standing.module("sglang.srt.model_executor.cuda_graph_runner").get_batch_sizes_to_capture
    drafted = 1 if runner.spec_algorithm.is_none() else runner.server_args.speculative_num_draft_tokens
    try:
        return tuple(rule(runner, drafted)[0])
    except AssertionError:
        return ()


def runner_of(standing: rig.Standing, runners: ModuleType, args: Any, pool: int, *, draft: bool) -> Any:
    """A model runner that has got as far as its warm-up, with a pool of this many requests."""
    spec = standing.module("sglang.srt.speculative.spec_info").SpeculativeAlgorithm
    runner = object.__new__(runners.ModelRunner)
    runner.device, runner.server_args, runner.is_draft_worker = "cuda", args, draft
    runner.spec_algorithm = spec.from_string(args.speculative_algorithm)
    runner.req_to_token_pool = SimpleNamespace(size=pool)
    runner.forward_stream = SimpleNamespace(wait_stream=lambda _other: None)
    return runner


@pytest.fixture
def dense(standing: rig.Standing, quant: ModuleType, tuner: Tuner, monkeypatch: pytest.MonkeyPatch) -> Dense:
    """A product of a dense NVFP4 layer, 4 tokens, 32 channels in, 64 out."""
    utils = standing.module("sglang.srt.layers.quantization.fp4_utils")
    asked: list[tuple[str, bool]] = []

    def mm_fp4(*args: Any, backend: str) -> torch.Tensor:
        asked.append((backend, tuner.on))
        return torch.zeros(args[0].shape[0], args[1].shape[1], dtype=args[5])

    def run(backend: str) -> tuple[str, bool]:
        before = tuner.on
        utils.initialize_fp4_gemm_config(SimpleNamespace(fp4_gemm_runner_backend=backend))
        rows, weight = torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(16, 64, dtype=torch.uint8)
        scales, alpha = torch.zeros(128, 4, dtype=torch.uint8), torch.ones(1)
        quant.fp4_gemm(rows, weight, scales, scales.T, alpha, torch.bfloat16, 64)
        assert tuner.on == before, "the layers after this one are tuned otherwise than those before it"
        return asked[-1]

    monkeypatch.delenv("SGLANG_FLASHINFER_FP4_GEMM_BACKEND", raising=False)
    monkeypatch.setattr(utils, "FP4_GEMM_RUNNER_BACKEND", None)
    monkeypatch.setattr(quant, "flashinfer_fp4_gemm", mm_fp4)
    return run


if FIRST:

    @SM12X
    def test_cutlass_moe_is_tuned_on_the_largest_graph_batch(warmup: Warmup, card: rig.Card) -> None:
        assert warmup(card, **CUTLASS, cuda_graph_max_bs=256) == 256

    @SM12X
    def test_a_smaller_pool_is_tuned_whole(warmup: Warmup, card: rig.Card) -> None:
        assert warmup(card, 48, **CUTLASS, cuda_graph_max_bs=256) == 48

    @SM12X
    def test_the_list_of_graph_sizes_bounds_the_batch_too(warmup: Warmup, card: rig.Card) -> None:
        assert warmup(card, **CUTLASS, cuda_graph_bs=[1, 2, 4, 8, 16]) == 16

    @SM12X
    @pytest.mark.parametrize("ep", [1, 8])
    def test_the_default_batch_is_one_that_a_graph_is_captured_for(warmup: Warmup, card: rig.Card, ep: int) -> None:
        tuned = warmup(card, 4096, **CUTLASS, ep_size=ep)
        assert tuned is not None, "nothing is tuned"
        assert tuned <= 512

    @SM12X
    @pytest.mark.parametrize(
        ("pool", "flags", "largest"),
        [
            (2048, {**DP2, "cuda_graph_max_bs": 10}, 8),
            (50, {**DP2, "max_running_requests": 50}, 48),
            (25, {**DP2, "max_running_requests": 50}, 24),
            (2048, {"moe_dense_tp_size": 1, "cuda_graph_max_bs": 100}, 96),
            (50, {**DP2, **EAGLE}, 50),
            (2048, {**DP2, **EAGLE, "cuda_graph_max_bs": 3}, 3),
            (2048, {"cuda_graph_max_bs": 530}, 512),
            (50, {}, 50),
        ],
        ids=["dp", "dp, pool", "dp, half pool", "dense tp", "dp, 4 drafts", "dp, 4 drafts, 3", "step of 32", "pool"],
    )
    def test_the_batch_is_the_largest_that_upstream_captures(
        start: Starting, card: rig.Card, pool: int, flags: dict[str, Any], largest: int
    ) -> None:
        """With gathered buffers a batch whose tokens are no multiple of the attention TP size cannot be run."""
        found = start(card, pool, **CUTLASS, **flags)
        assert found.tuned in found.captured
        assert (found.tuned, found.captured[-1]) == (largest, largest)

    @SM12X
    @pytest.mark.parametrize("uncaptured", ["disable_cuda_graph", "generates"])
    @pytest.mark.parametrize(
        ("pool", "flags", "expected"),
        [
            (2048, {"cuda_graph_max_bs": 100}, 100),
            (50, {}, 50),
            (2048, {**DP2, "cuda_graph_max_bs": 10}, 8),
            (50, DP2, 48),
            (3, DP2, None),
            (2048, {"moe_dense_tp_size": 1, "cuda_graph_max_bs": 100}, 96),
        ],
        ids=["cap", "pool", "dp", "dp, pool", "dp, small pool", "dense tp"],
    )
    def test_where_nothing_is_captured_the_batch_is_still_one_that_can_be_run(
        start: Starting, card: rig.Card, uncaptured: str, pool: int, flags: dict[str, Any], expected: int | None
    ) -> None:
        found = start(card, pool, **CUTLASS, **flags, **{uncaptured: uncaptured != "generates"})
        assert found == Start(expected, ())

    @SM12X
    @pytest.mark.parametrize("backend", DENSE)
    def test_the_dense_gemm_of_the_tuned_pass_is_not_tuned(
        start: Starting, dense: Dense, card: rig.Card, backend: str
    ) -> None:
        """FlashInfer 0.6.3 would run a cuDNN plan of another graph at most sizes."""
        seen: list[tuple[str, bool]] = []
        start(card, **CUTLASS, forward=lambda: seen.append(dense(backend)))
        assert seen, "nothing is tuned"
        assert seen == [(backend.removeprefix("flashinfer_"), False)]

    @SM12X
    @pytest.mark.parametrize("backend", DENSE)
    def test_the_dense_gemm_is_not_tuned_beside_any_other_moe_either(
        dense: Dense, tuner: Tuner, card: rig.Card, backend: str
    ) -> None:
        """Upstream tunes for flashinfer_trtllm and flashinfer_mxfp4 wherever they are named."""
        with rig.present(card):
            with tuner.autotune():
                tuned = dense(backend)
            assert [tuned, dense(backend)] == [(backend.removeprefix("flashinfer_"), False)] * 2

    @pytest.mark.parametrize("card", [cards.H200, cards.B200], ids=["9.0", "10.0"])
    @pytest.mark.parametrize("backend", DENSE)
    def test_on_other_capabilities_the_dense_gemm_is_tuned_as_upstream(
        dense: Dense, tuner: Tuner, card: rig.Card, backend: str
    ) -> None:
        name = backend.removeprefix("flashinfer_")
        with rig.present(card):
            with tuner.autotune():
                tuned = dense(backend)
            assert [tuned, dense(backend)] == [(name, True), (name, False)]

    def test_on_sm100_the_dense_gemm_of_the_tuned_pass_is_tuned_as_upstream(start: Starting, dense: Dense) -> None:
        seen: list[tuple[str, bool]] = []
        start(cards.B200, **TRTLLM, forward=lambda: seen.append(dense("flashinfer_cutlass")))
        assert seen == [("cutlass", True)]

    @SM12X
    @pytest.mark.parametrize("off", ["0", "false"])
    def test_the_variable_switches_it_off(
        warmup: Warmup, card: rig.Card, off: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert warmup(card, **CUTLASS) is not None, "there is nothing to switch off"
        monkeypatch.setenv(SWITCH, off)
        assert warmup(card, **CUTLASS) is None

    @SM12X
    @pytest.mark.parametrize("flag", ["disable_flashinfer_autotune", "enable_deterministic_inference"])
    def test_upstreams_own_switch_and_deterministic_inference_keep_it_off(
        warmup: Warmup, card: rig.Card, flag: str
    ) -> None:
        how: dict[str, Any] = {flag: True}
        if flag == "enable_deterministic_inference":
            how["attention_backend"] = "triton"
        assert warmup(card, **CUTLASS, **how) is None

    @SM12X
    def test_a_draft_worker_is_never_tuned_and_its_target_is(warmup: Warmup, card: rig.Card) -> None:
        eagle = {**CUTLASS, "speculative_algorithm": "EAGLE", "cuda_graph_max_bs": 32}
        assert (warmup(card, **eagle), warmup(card, **eagle, draft=True)) == (32, None)

    @SM12X
    @pytest.mark.parametrize("runner", ["triton", "cutlass"])
    def test_other_runners_are_not_tuned(warmup: Warmup, card: rig.Card, runner: str) -> None:
        assert warmup(card, quantization="modelopt_fp4", moe_runner_backend=runner) is None

    @pytest.mark.parametrize(
        ("card", "flags", "expected"),
        [
            (cards.H200, CUTLASS, None),
            (cards.B200, CUTLASS, None),
            (cards.B200, TRTLLM, 2048),
            (cards.B200, {**TRTLLM, "cuda_graph_max_bs": 64}, 2048),
            (cards.B200, {**TRTLLM, "disable_flashinfer_autotune": True}, None),
        ],
        ids=["9.0 cutlass", "10.0 cutlass", "10.0 trtllm", "10.0 trtllm, small graphs", "10.0 trtllm, off"],
    )
    @pytest.mark.parametrize("switch", [None, "0", "1"])
    def test_other_capabilities_are_tuned_exactly_as_upstream_whatever_the_variable(
        warmup: Warmup,
        card: rig.Card,
        flags: dict[str, Any],
        expected: int | None,
        switch: str | None,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        if switch is not None:
            monkeypatch.setenv(SWITCH, switch)
        assert warmup(card, **flags) == expected


class CountingTuner:
    """FlashInfer 0.6.14's autotuner as far as it decides: it counts the contexts that tune, and stacks skipped ops."""

    def __init__(self) -> None:
        self.tuning = 0
        self.skipped: list[frozenset[str]] = [frozenset()]

    @contextmanager
    def autotune(self, tune_mode: bool = True, skip_ops: set[str] | None = None) -> Iterator[None]:
        self.tuning += tune_mode
        self.skipped.append(self.skipped[-1] | (skip_ops or set()))
        try:
            yield
        finally:
            self.skipped.pop()
            self.tuning -= tune_mode

    def tactic(self, op: str) -> str:
        """Where the tactic of an operation comes from that is called now."""
        if op in self.skipped[-1]:
            return "fallback"
        return "profiled" if self.tuning else "looked up"


if not FIRST:

    @pytest.fixture
    def counting(monkeypatch: pytest.MonkeyPatch) -> CountingTuner:
        """A tuner that upstream finds where FlashInfer's would be."""
        made = CountingTuner()
        monkeypatch.setitem(sys.modules, "flashinfer.autotuner", SimpleNamespace(autotune=made.autotune))
        return made

    @pytest.fixture
    def tactics(
        standing: rig.Standing, quant: ModuleType, counting: CountingTuner, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[[rig.Card, str], list[str]]:
        """Where mm_fp4's tactic comes from: in the tuned pass of a server with this backend, and after it."""
        utils = standing.module("sglang.srt.layers.quantization.fp4_utils")
        rows, weight = torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(16, 64, dtype=torch.uint8)
        scales, alpha = torch.zeros(128, 4, dtype=torch.uint8), torch.ones(1)
        asked: list[str] = []

        def mm_fp4(*args: Any, backend: str) -> torch.Tensor:
            asked.extend([backend, counting.tactic("fp4_gemm")])
            return torch.zeros(args[0].shape[0], args[1].shape[1], dtype=args[5])

        def ask(card: rig.Card, backend: str) -> list[str]:
            with rig.present(card):
                utils.initialize_fp4_gemm_config(SimpleNamespace(fp4_gemm_runner_backend=backend))
                with counting.autotune():
                    quant.fp4_gemm(rows, weight, scales, scales.T, alpha, torch.bfloat16, 64)
                    assert counting.tactic("trtllm::fused_moe::gemm1") == "profiled", "the MoE is not tuned any more"
                quant.fp4_gemm(rows, weight, scales, scales.T, alpha, torch.bfloat16, 64)
            return asked

        monkeypatch.setattr(utils, "FP4_GEMM_RUNNER_BACKEND", None)
        monkeypatch.setattr(quant, "flashinfer_fp4_gemm", mm_fp4)
        return ask

    @pytest.fixture
    def tunes(standing: rig.Standing, tmp_path: Path) -> Callable[..., bool]:
        """Whether a server of GLM-5 with these arguments tunes."""
        gate = standing.module("sglang.srt.model_executor.runner.flashinfer_autotune").should_run_flashinfer_autotune
        spec = standing.module("sglang.srt.speculative.spec_info").SpeculativeAlgorithm
        folder = models.checkpoint(tmp_path / "model", models.GLM_5, QuantForm.GENERIC)

        def ask(card: rig.Card, **flags: Any) -> bool:
            with rig.present(card):
                outcome = rig.resolve(standing, folder, tp_size=8, attention_backend="triton", **flags)
                assert outcome.refusal is None, f"upstream refuses {flags}: {outcome.refusal}"
                runner = SimpleNamespace(
                    device="cuda",
                    server_args=outcome.args,
                    model_config=outcome.model_config,
                    spec_algorithm=spec.from_string(None),
                    is_draft_worker=False,
                )
                with rig.published(standing, outcome):
                    return bool(gate(runner))

        return ask

    @SM12X
    def test_a_cudnn_tactic_is_neither_timed_nor_looked_up(
        tactics: Callable[[rig.Card, str], list[str]], card: rig.Card
    ) -> None:
        """FlashInfer 0.6.14 would run a plan of the graph of another M, where cuDNN cannot override shapes."""
        assert tactics(card, "flashinfer_cudnn") == ["cudnn", "fallback"] * 2

    @SM12X
    @pytest.mark.parametrize("backend", ["flashinfer_cutlass", "flashinfer_trtllm"])
    def test_other_gemms_are_tuned_as_upstream(
        tactics: Callable[[rig.Card, str], list[str]], card: rig.Card, backend: str
    ) -> None:
        name = backend.removeprefix("flashinfer_")
        assert tactics(card, backend) == [name, "profiled", name, "looked up"]

    @pytest.mark.parametrize("card", [cards.H200, cards.B200], ids=["9.0", "10.0"])
    @pytest.mark.parametrize("backend", ["flashinfer_cudnn", "flashinfer_cutlass", "flashinfer_trtllm"])
    def test_on_other_capabilities_every_gemm_is_tuned_as_upstream(
        tactics: Callable[[rig.Card, str], list[str]], card: rig.Card, backend: str
    ) -> None:
        name = backend.removeprefix("flashinfer_")
        assert tactics(card, backend) == [name, "profiled", name, "looked up"]

    @SM12X
    def test_a_deterministic_server_is_not_tuned(tunes: Callable[..., bool], card: rig.Card) -> None:
        """Half of the CUTLASS MoE's second tactics add in no fixed order."""
        found = {flag: tunes(card, **CUTLASS, enable_deterministic_inference=flag) for flag in (False, True)}
        assert found == {False: True, True: False}

    @SM12X
    def test_upstreams_own_switch_is_kept(tunes: Callable[..., bool], card: rig.Card) -> None:
        assert not tunes(card, **CUTLASS, disable_flashinfer_autotune=True)

    @pytest.mark.parametrize("card", [cards.H200, cards.B200], ids=["9.0", "10.0"])
    def test_other_capabilities_are_tuned_as_upstream(tunes: Callable[..., bool], card: rig.Card) -> None:
        flags = CUTLASS if card is cards.H200 else TRTLLM
        found = {flag: tunes(card, **flags, enable_deterministic_inference=flag) for flag in (False, True)}
        assert found == {False: True, True: True}
