"""What the real SGLang of the later lines answers as pinned: the same questions as of the first, and their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from sm120_overlay import report
from sm120_overlay.queue.home import find_home
from sm120_overlay.queue.pins import load_lines
from sm120_overlay.queue.proof import proof_tree
from sm120_overlay.queue.series import load_series
from sm120_overlay.queue.wheels import fetch_wheel
from sm120_overlay.serving import asking
from sm120_overlay.serving.asking.choices import ROWS, UNKNOWN
from sm120_overlay.serving.asking.plan import plan
from sm120_overlay.serving.asking.question import checkpoint_files

from .conftest import LINE

pytestmark = [pytest.mark.slow, pytest.mark.network]
Ask = Callable[..., dict[str, Any]]
LINES = load_lines(find_home().pins)
OTHERS = [line.name for line in LINES.lines if line.name != LINE]
NVFP4 = ("--quantization", "modelopt_fp4")
TP8 = ("--tp-size", "8")


def _asker(warm: Any) -> Ask:
    known: dict[str, dict[str, Any]] = {}

    def ask(model: str, *flags: str, card: str = "rtx-pro-6000") -> dict[str, Any]:
        question = asking.Question(card, checkpoint_files(model), flags)
        if question.digest not in known:
            known[question.digest] = warm.ask(question)
        return known[question.digest]

    return ask


@pytest.fixture(scope="module", params=OTHERS)
def both(request: pytest.FixtureRequest) -> Iterator[tuple[Ask, Ask]]:
    """Asks a line's bare pin, and the pin with the line's series: `(MODEL, FLAG, …, card=CARD)`."""
    series = load_series(find_home(), LINES.line(request.param).pin("sglang"))
    wheel = fetch_wheel(series.pin, report.say)
    bare, whole = proof_tree(replace(series, patches=()), wheel), proof_tree(series, wheel)
    with asking.start(bare) as host, host.stand(bare) as pinned, host.stand(whole) as ours:
        yield _asker(pinned), _asker(ours)


@pytest.fixture(scope="module")
def pinned(both: tuple[Ask, Ask]) -> Ask:
    """Asks the bare pin."""
    return both[0]


def test_glm_5_does_not_start_as_pinned_and_does_with_the_series(both: tuple[Ask, Ask]) -> None:
    for flags in (TP8, (*TP8, "--ep-size", "8")):
        before, after = (ask("glm-5-nvfp4", *flags) for ask in both)
        assert before["fails"]
        assert (after["fails"], after["unknown"], plan(after["facts"])["crashes"]) == ([], [], [])
        assert after["choices"]["moe_runner"] == "flashinfer_cutlass"
        assert after["choices"]["moe_first_kernel"] == "flashinfer.fused_moe.cutlass_fused_moe"


@pytest.mark.parametrize("card", ["h200", "b200"])
def test_on_other_cards_the_series_chooses_as_the_pin(both: tuple[Ask, Ask], card: str) -> None:
    before, after = (ask("qwen3-235b-a22b", *TP8, card=card) for ask in both)
    assert before["choices"] == after["choices"]
    assert before["fails"] == after["fails"] == []


def test_nothing_is_left_unasked_and_every_row_is_answered(pinned: Ask) -> None:
    told = pinned("glm-5-nvfp4", *TP8, *NVFP4)
    assert (told["fails"], told["unknown"]) == ([], [])
    assert set(told["choices"]) == set(ROWS)
    assert UNKNOWN not in told["choices"].values()
    assert told["choices"]["moe_runner"] == "flashinfer_cutlass"
    assert told["choices"]["moe_first_kernel"] == "flashinfer.fused_moe.cutlass_fused_moe"
    assert told["choices"]["attention_decode"].startswith("dsa (")


def test_a_quantization_that_only_the_checkpoint_names_meets_a_kernel_of_other_cards(pinned: Ask) -> None:
    told = pinned("glm-5-nvfp4", *TP8)
    ((stage, where),) = [(fail["stage"], fail["where"].partition(":")[0]) for fail in told["fails"]]
    assert (stage, where) == ("kernel", "sglang/srt/layers/quantization/modelopt_quant.py")
    assert told["choices"]["moe_runner"] == "auto (flashinfer_trtllm)"
    assert any("trtllm-gen MoE" in doubt for doubt in told["doubts"])
    assert all("not laid out for it" in " ".join(one["fails"]) for one in plan(told["facts"])["splits"])


def test_under_ep_the_same_weights_fail_before_a_kernel(pinned: Ask) -> None:
    told = pinned("glm-5-nvfp4", *TP8, "--ep-size", "8")
    (fail,) = told["fails"]
    assert (fail["stage"], told["unknown"]) == ("weights", [])
    assert "tensor a (256) must match the size of tensor b (32)" in fail["sentence"]


def test_the_weights_of_glm_5_are_what_its_shape_says(pinned: Ask) -> None:
    weights = pinned("glm-5-nvfp4", *TP8, *NVFP4)["facts"]["weights"]
    layers, experts, hidden, rows = 75, 256 + 1, 6144, 256
    at_least = layers * experts * 3 * hidden * rows * 9 // 16
    assert at_least <= weights["experts"] <= at_least * 1.001
    assert weights["experts"] < weights["loaded"] < weights["loading"]


def test_a_token_takes_what_the_shape_says_with_the_scales_where_the_layout_has_them(pinned: Ask) -> None:
    told = pinned("glm-5-nvfp4", *TP8, *NVFP4)
    place = 576 if "trtllm" in told["choices"]["attention_decode"] else 512 + 16 + 128
    indexer = 128 + 4
    assert told["facts"]["kv_counted"] == told["facts"]["kv_taken"] == 78 * (place + indexer)


def test_the_estimate_is_the_one_that_the_fraction_was_made_of(pinned: Ask) -> None:
    for model, flags in (("glm-5-nvfp4", TP8), ("qwen3-235b-a22b", TP8), ("deepseek-v3", TP8)):
        told = pinned(model, *flags)
        memory = plan(told["facts"])["memory"]
        assert memory["reserve"] == pytest.approx(memory["total"] * (1 - told["facts"]["fraction"]), abs=0.05)


@pytest.mark.parametrize(
    ("card", "flags", "said"),
    [
        ("rtx-pro-6000", TP8, "NCCL"),
        ("rtx-pro-6000", ("--tp-size", "2"), "decided at run time: custom if the peer-to-peer test passes, else NCCL"),
        ("rtx-pro-6000", (), "none"),
        ("h200", TP8, "custom (one machine)"),
        ("h200", (*TP8, "--disable-custom-all-reduce"), "NCCL"),
    ],
)
def test_the_all_reduce_is_upstreams_decision(pinned: Ask, card: str, flags: tuple[str, ...], said: str) -> None:
    assert pinned("qwen3-30b-a3b", *flags, card=card)["choices"]["all_reduce"] == said


@pytest.mark.parametrize(
    ("card", "said"), [("h200", "on"), ("rtx-pro-6000", "off (asked for, and without effect here)")]
)
def test_the_fusion_is_the_run_time_gates(pinned: Ask, card: str, said: str) -> None:
    flags = (*TP8, "--flashinfer-allreduce-fusion-backend", "auto")
    assert pinned("qwen3-30b-a3b", *flags, card=card)["choices"]["all_reduce_fusion"] == said


def test_dp_attention_is_answered_too(pinned: Ask) -> None:
    told = pinned("glm-5-nvfp4", *TP8, *NVFP4, "--dp-size", "8", "--enable-dp-attention")
    assert (told["unknown"], told["facts"]["dp"], told["facts"]["dp_attention"]) == ([], 8, True)


def test_sizes_and_flags_that_upstream_refuses_are_its_own_refusals(pinned: Ask) -> None:
    (flag,) = pinned("glm-5-nvfp4", "--no-such-flag")["fails"]
    assert (flag["stage"], flag["sentence"]) == ("flags", "unrecognized arguments: --no-such-flag")
    (ep,) = pinned("glm-5-nvfp4", *TP8, *NVFP4, "--ep-size", "4")["fails"]
    assert ep["stage"] == "arguments"
    assert ep["sentence"].startswith("The expert parallel size must be 1 or the same")
    fa3 = pinned("deepseek-v3", *TP8, "--attention-backend", "fa3")["fails"]
    assert ("attention", "AssertionError") in [(fail["stage"], fail["kind"]) for fail in fa3]
