"""What the real SGLang of v0.5.9 answers, on cards that this machine has not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay.serving.asking.choices import NOT_REACHED, ROWS, UNKNOWN
from sm120_overlay.serving.asking.plan import plan
from sm120_overlay.serving.rig import models

pytestmark = [pytest.mark.slow, pytest.mark.network]
Ask = Callable[..., dict[str, Any]]
TP8_EP8 = ("--tp-size", "8", "--ep-size", "8")
NVFP4 = ("--quantization", "modelopt_fp4")
NAMED = ("--moe-runner-backend", "flashinfer_cutlass")


def fails(told: dict[str, Any]) -> list[tuple[str, str]]:
    return [(fail["stage"], fail["sentence"]) for fail in told["fails"]]


def split(told: dict[str, Any], ep: int) -> dict[str, Any]:
    return next(one for one in plan(told["facts"])["splits"] if one["ep"] == ep)


def test_glm_5_at_ep8_does_not_start_as_pinned_and_does_with_the_series(pinned: Ask, ours: Ask) -> None:
    before, after = (ask("glm-5-nvfp4", *TP8_EP8) for ask in (pinned, ours))
    ((stage, sentence),) = fails(before)
    assert (stage, sentence.startswith("ModelOptFp8Config only supports static FP8")) == ("loader", True)
    assert before["choices"]["moe_runner"] == "auto"
    assert before["choices"]["moe_first_kernel"] == before["choices"]["fp4_gemm"] == NOT_REACHED
    assert (after["fails"], after["unknown"], plan(after["facts"])["crashes"]) == ([], [], [])
    assert after["choices"]["moe_runner"] == "flashinfer_cutlass"
    assert after["choices"]["moe_first_kernel"] == "flashinfer.fused_moe.cutlass_fused_moe"


def test_auto_under_ep_dies_on_its_weights_and_behind_that_on_the_kernels_own_assertion(pinned: Ask) -> None:
    told = pinned("glm-5-nvfp4", *TP8_EP8, *NVFP4)
    weights, kernel = told["fails"]
    assert "tensor a (256) must match the size of tensor b (32)" in weights["sentence"]
    assert (kernel["stage"], kernel["kind"]) == ("kernel", "AssertionError")
    assert kernel["sentence"] == "Number of experts must match between weights."
    assert kernel["where"].startswith("sglang/srt/layers/moe/cutlass_moe.py:")
    assert split(told, 8)["fails"] == ["auto is sgl-kernel's cutlass_moe_fp4, which wants all experts on a rank"]


def test_without_ep_auto_comes_to_sgl_kernels_cutlass(pinned: Ask) -> None:
    told = pinned("glm-5-nvfp4", "--tp-size", "8", *NVFP4)
    assert (told["fails"], told["unknown"]) == ([], [])
    assert told["choices"]["moe_first_kernel"] == "sgl_kernel.prepare_moe_input"


def test_flashinfer_cutlass_takes_no_ep_between_one_and_tp(pinned: Ask) -> None:
    told = pinned("glm-5-nvfp4", "--tp-size", "8", "--ep-size", "4", *NVFP4, *NAMED)
    assert fails(told) == [("arguments", "The expert parallel size must be 1 or the same as the tensor parallel size")]
    assert told["choices"] == {}
    whole = pinned("glm-5-nvfp4", *TP8_EP8, *NVFP4, *NAMED)
    assert [one["ep"] for one in plan(whole["facts"])["splits"] if one["fails"]] == [2, 4]


@pytest.mark.parametrize(("tp", "ep"), [(8, 1), (8, 8), (4, 1), (2, 1)])
def test_the_rule_of_64_is_upstreams_own_assertion(pinned: Ask, tp: int, ep: int) -> None:
    """768 rows: 96 a rank at TP8 are no multiple of 64, 192 and 384 are."""
    told = pinned("qwen3-30b-a3b-nvfp4", "--tp-size", str(tp), "--ep-size", str(ep), *NVFP4, *NAMED)
    padded = [stage for stage, sentence in fails(told) if "The intermediate size required padding" in sentence]
    assert (padded, bool(split(told, ep)["fails"])) == ((["weights"], True) if (tp, ep) == (8, 1) else ([], False))


def test_the_weights_of_glm_5_are_what_its_shape_says(pinned: Ask) -> None:
    """75 layers of 256 experts of three 6144 x 2048 matrices, at half a byte and a scale byte for 16, over 8 ranks."""
    weights = pinned("glm-5-nvfp4", *TP8_EP8, *NVFP4)["facts"]["weights"]
    parameters = 75 * 256 * 3 * 6144 * 2048 / 8
    assert weights["experts"] == pytest.approx(parameters * (1 / 2 + 1 / 16), rel=1e-4)
    assert weights["loading"] - weights["loaded"] == parameters / 16  # block scales are held twice meanwhile
    attention = 78 * (2048 * 6144 + 576 * 6144 + (64 * 256 * 2048 + 64 * 448 * 512 + 64 * 256 * 6144) / 8) * 2
    indexer = 78 * (32 * 128 * 2048 + 128 * 6144 + 32 * 6144) * 2
    vocabulary = 2 * 154880 * 6144 * 2 / 8
    shared_and_dense = (75 * 3 * 6144 * 2048 + 3 * 3 * 6144 * 12288) / 8 * (1 / 2 + 1 / 16)
    rest = attention + indexer + vocabulary + shared_and_dense + 75 * 256 * 6144 * 2
    assert weights["loaded"] - weights["experts"] == pytest.approx(rest, rel=0.01)


def test_a_token_of_glm_5_takes_what_its_shape_says_and_in_fp8_more_than_upstream_counts(pinned: Ask) -> None:
    bf16 = pinned("glm-5-nvfp4", *TP8_EP8, *NVFP4, "--kv-cache-dtype", "bf16")["facts"]
    fp8 = pinned("glm-5-nvfp4", *TP8_EP8, *NVFP4)["facts"]
    assert bf16["kv_counted"] == bf16["kv_taken"] == 78 * (576 * 2 + 132)
    assert (fp8["kv_counted"], fp8["kv_taken"]) == (78 * (576 + 132), 78 * (656 + 132))


@pytest.mark.parametrize("model", models.BUNDLED)
def test_every_bundled_model_is_answered_in_full(pinned: Ask, model: str) -> None:
    told = pinned(model, "--tp-size", "4", *(NVFP4 if model.endswith("nvfp4") else ()))
    assert told["unknown"] == []
    assert UNKNOWN not in told["choices"].values()
    assert set(ROWS) - set(told["choices"]) <= {"moe_first_kernel"}
    assert told["facts"]["weights"]["loaded"] > 0


@pytest.mark.parametrize(
    ("card", "flags", "expected"),
    [
        ("rtx-pro-6000", ("--tp-size", "8"), "NCCL"),
        ("rtx-pro-6000", ("--tp-size", "2"), "decided at run time: custom if the peer-to-peer test passes, else NCCL"),
        ("rtx-pro-6000", (), "none"),
        ("h200", ("--tp-size", "8"), "custom (one machine)"),
        ("h200", ("--tp-size", "8", "--disable-custom-all-reduce"), "NCCL"),
        ("h200", ("--tp-size", "8", "--nnodes", "2", "--node-rank", "0"), "NCCL"),
        ("h200", ("--tp-size", "3"), "NCCL"),
    ],
)
def test_the_all_reduce_is_upstreams_decision(pinned: Ask, card: str, flags: tuple[str, ...], expected: str) -> None:
    told = pinned("qwen3-30b-a3b", *flags, card=card)
    assert told["choices"].get("all_reduce") == expected or fails(told)[0][0] == "ranks"


@pytest.mark.parametrize(
    ("card", "flags", "expected"),
    [
        ("h200", (), "on"),
        ("rtx-pro-6000", (), "off"),
        ("rtx-pro-6000", ("--enable-flashinfer-allreduce-fusion",), "off (asked for, and without effect here)"),
    ],
)
def test_the_fusion_is_the_run_time_gates(pinned: Ask, card: str, flags: tuple[str, ...], expected: str) -> None:
    assert pinned("qwen3-30b-a3b", "--tp-size", "8", *flags, card=card)["choices"]["all_reduce_fusion"] == expected


@pytest.mark.parametrize("card", ["b200", "h200"])
def test_on_other_cards_the_series_chooses_as_the_pin(pinned: Ask, ours: Ask, card: str) -> None:
    before, after = (ask("glm-5-nvfp4", *TP8_EP8, *NVFP4, card=card) for ask in (pinned, ours))
    assert (before["choices"], fails(before)) == (after["choices"], fails(after))


def test_dp_attention_is_answered_too(pinned: Ask) -> None:
    told = pinned("glm-5-nvfp4", *TP8_EP8, "--dp-size", "8", "--enable-dp-attention", *NVFP4, *NAMED)
    assert told["unknown"] == []
    assert told["facts"]["weights"]["loaded"] > 80e9  # attention is on every rank


@pytest.mark.parametrize("flags", [("--no-such-flag",), ("--tp-size", "many"), ("--moe-runner-backend", "nothing")])
def test_upstreams_own_parser_says_what_it_does_not_know(pinned: Ask, flags: tuple[str, ...]) -> None:
    ((stage, sentence),) = fails(pinned("qwen3-30b-a3b", *flags))
    assert stage == "flags"
    assert flags[-1] in sentence


def test_a_check_after_the_arguments_counts(pinned: Ask) -> None:
    told = pinned("qwen3-30b-a3b", "--chunked-prefill-size", "100", "--page-size", "64")
    assert fails(told) == [("check", "chunked_prefill_size must be divisible by page_size")]


def test_an_answer_leaves_nothing_behind_for_the_next(pinned: Ask) -> None:
    first = pinned("glm-5-nvfp4", *TP8_EP8, *NVFP4)
    pinned("deepseek-v3", "--tp-size", "8", card="b200")
    assert pinned("glm-5-nvfp4", *TP8_EP8, *NVFP4, again=True) == first


def test_what_is_doubtful_on_the_card_is_said_and_on_others_not(pinned: Ask) -> None:
    (here,), elsewhere = (
        pinned("glm-5-nvfp4", *TP8_EP8, *NVFP4, card=card)["doubts"] for card in ("rtx-pro-6000", "b200")
    )
    assert "FlashMLA" in here
    assert elsewhere == []


def test_the_rules_of_nvfp4_hold_also_where_the_model_cannot_be_built(pinned: Ask) -> None:
    """GLM-4.5-Air at TP8: a dense layer's 1368 rows are no multiple of 16, and the experts' 176 none of 64."""
    told = pinned("glm-4.5-air-nvfp4", "--tp-size", "8", *NVFP4, *NAMED)
    assert [stage for stage, _ in fails(told)] == ["model"]
    assert "no multiple of 64" in split(told, 1)["fails"][0]


def test_the_question_may_be_a_folder_and_its_place_is_in_no_answer(pinned: Ask, tmp_path: Path) -> None:
    folder = models.checkpoint(tmp_path / "mine", models.QWEN3_30B)
    told = pinned(str(folder), "--tp-size", "4")
    assert told == pinned("qwen3-30b-a3b", "--tp-size", "4", again=True)
    assert "/tmp" not in json.dumps(told)


def test_an_architecture_that_upstream_has_no_file_for_is_not_guessed(pinned: Ask, tmp_path: Path) -> None:
    strange = models.Model("Strange", {**models.QWEN3_DENSE.config, "architectures": ["StrangeForCausalLM"]})
    told = pinned(str(models.checkpoint(tmp_path, strange)))
    assert [one["stage"] for one in told["unknown"]] == ["model"]
    assert "no model file for StrangeForCausalLM" in told["unknown"][0]["why"]
    assert plan(told["facts"])["memory"] is None


def test_sizes_that_leave_no_ranks_and_a_backend_of_other_cards_do_not_start(pinned: Ask) -> None:
    (ranks,) = pinned("qwen3-30b-a3b", "--tp-size", "4", "--ep-size", "8")["fails"]
    assert (ranks["stage"], ranks["where"]) == ("ranks", "sglang/srt/distributed/parallel_state.py")
    asked = ("qwen3-30b-a3b", "--tp-size", "8", "--attention-backend", "fa3")
    (fa3,) = pinned(*asked)["fails"]
    assert (fa3["stage"], "attention_registry.py:" in fa3["where"]) == ("attention", True)
    assert fails(pinned(*asked, card="h200")) == []


def test_flags_of_another_model_or_of_more_cards_than_are_pretended_are_not_asked(pinned: Ask, tmp_path: Path) -> None:
    for flags in (("--tp-size", "5000"), ("--model", str(tmp_path)), ("--tp-size", "4", "--dp-size", "4096")):
        told = pinned("qwen3-30b-a3b", *flags)
        assert (told["choices"], told["fails"], [one["stage"] for one in told["unknown"]]) == ({}, [], ["flags"])


def test_an_ep_that_does_not_divide_tp_is_said_by_ranks_or_by_the_planner(pinned: Ask) -> None:
    told = pinned("qwen3-30b-a3b", "--tp-size", "8", "--ep-size", "3")
    assert fails(told) or "EP 3 does not divide TP 8" in split(told, 3)["fails"]
