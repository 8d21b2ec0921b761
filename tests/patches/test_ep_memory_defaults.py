"""ep-memory-defaults: expert parallelism on SM12x starts from smaller memory defaults, and never from smaller wishes.

Everything here runs upstream's own argument resolution on presented cards.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sm120_overlay.serving import rig
from sm120_overlay.serving.rig import cards, models
from sm120_overlay.serving.rig.models import QuantForm

SM12X = pytest.mark.parametrize("card", [cards.RTX_PRO_6000_SERVER, cards.DGX_SPARK], ids=["12.0", "12.1"])

Resolve = Callable[..., rig.Resolution]


class Memory(NamedTuple):
    """The four answers that decide how much of a card is taken."""

    fraction: float
    running: int | None
    graph_max: int
    largest_graph: int


CAPPED = Memory(0.80, 512, 256, 256)


@pytest.fixture
def resolve(standing: rig.Standing, tmp_path: Path) -> Resolve:
    """Upstream's outcome at TP8, on a card; Qwen3-MoE without quantization unless another model is named."""

    def ask(card: rig.Card, model: models.Model = models.QWEN3_MOE, **asked: Any) -> rig.Resolution:
        folder = models.checkpoint(tmp_path / model.name, model, QuantForm.NONE)
        with rig.present(card):
            return rig.resolve(standing, folder, **{"tp_size": 8, **asked})

    return ask


def memory(outcome: rig.Resolution) -> Memory:
    assert outcome.refusal is None, f"upstream refuses {outcome.asked}: {outcome.refusal}"
    args = outcome.args
    return Memory(args.mem_fraction_static, args.max_running_requests, args.cuda_graph_max_bs, max(args.cuda_graph_bs))


def warned(outcome: rig.Resolution) -> bool:
    """Whether the user was told that their memory fraction is large for expert parallelism."""
    return any("--mem-fraction-static" in text and "expert parallelism" in text for text in outcome.warnings)


@SM12X
@pytest.mark.parametrize("model", [models.QWEN3_MOE, models.GLM_5, models.DEEPSEEK_V3], ids=lambda m: m.name)
@pytest.mark.parametrize("ep", [2, 8])
def test_expert_parallelism_starts_from_smaller_defaults(
    resolve: Resolve, card: rig.Card, model: models.Model, ep: int
) -> None:
    outcome = resolve(card, model, ep_size=ep)
    assert (memory(outcome), warned(outcome)) == (CAPPED, False)


@SM12X
@pytest.mark.parametrize(
    "asked",
    [{"moe_a2a_backend": "deepep"}, {"moe_a2a_backend": "flashinfer", "moe_runner_backend": "flashinfer_cutlass"}],
    ids=lambda asked: str(asked["moe_a2a_backend"]),
)
def test_an_all_to_all_backend_counts_as_expert_parallelism(
    resolve: Resolve, card: rig.Card, asked: dict[str, str]
) -> None:
    assert memory(resolve(card, **asked)) == CAPPED


@SM12X
def test_pipeline_stages_do_not_lift_the_caps(resolve: Resolve, card: rig.Card) -> None:
    assert memory(resolve(card, tp_size=4, pp_size=2, ep_size=4)) == CAPPED


@SM12X
def test_no_graph_is_captured_above_the_cap_in_any_form_of_the_size_list(resolve: Resolve, card: rig.Card) -> None:
    padded, exact, draft = (
        memory(resolve(card, models.DEEPSEEK_V3, ep_size=8, **form)).largest_graph
        for form in ({}, {"disable_cuda_graph_padding": True}, {"speculative_algorithm": "EAGLE"})
    )
    assert (padded, exact, draft) == (256, 256, 256)


@SM12X
def test_with_dp_attention_the_fraction_is_the_one_for_the_smaller_graphs(resolve: Resolve, card: rig.Card) -> None:
    attention = {"ep_size": 8, "dp_size": 8, "enable_dp_attention": True}
    named = memory(resolve(card, **attention, cuda_graph_max_bs=256, max_running_requests=512))
    assert memory(resolve(card, **attention)) == named


@SM12X
def test_a_vision_models_own_reduction_is_not_taken_from_the_cap(resolve: Resolve, card: rig.Card) -> None:
    upstream = memory(resolve(card, models.GLM_4_5V, ep_size=1, cuda_graph_max_bs=256, max_running_requests=512))
    assert upstream.fraction < CAPPED.fraction
    assert memory(resolve(card, models.GLM_4_5V, ep_size=8)) == upstream


def test_a_card_whose_own_defaults_are_smaller_keeps_them(resolve: Resolve) -> None:
    small = resolve(cards.RTX_5090, ep_size=8, chunked_prefill_size=8192)
    assert memory(small) == Memory(0.571, 512, 80, 80)


@SM12X
@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ({"mem_fraction_static": 0.85}, {"fraction": 0.85}),
        ({"mem_fraction_static": 0.92}, {"fraction": 0.92}),
        ({"max_running_requests": 2048}, {"running": 2048}),
        ({"cuda_graph_max_bs": 512}, {"graph_max": 512, "largest_graph": 512}),
        ({"cuda_graph_bs": [1, 8, 384]}, {"graph_max": 384, "largest_graph": 384}),
    ],
    ids=str,
)
def test_what_the_user_set_is_kept_and_the_rest_is_capped(
    resolve: Resolve, card: rig.Card, asked: dict[str, Any], kept: dict[str, Any]
) -> None:
    assert memory(resolve(card, ep_size=8, **asked)) == CAPPED._replace(**kept)


@SM12X
def test_a_large_fraction_is_warned_about_only_under_expert_parallelism(resolve: Resolve, card: rig.Card) -> None:
    told = {
        (fraction, ep): warned(resolve(card, ep_size=ep, mem_fraction_static=fraction))
        for fraction in (0.85, 0.86, 0.92)
        for ep in (1, 8)
    }
    assert told == {(f, ep): f > 0.85 and ep == 8 for f, ep in told}


@SM12X
@pytest.mark.parametrize(
    ("model", "asked"),
    [
        (models.DEEPSEEK_V3, {"speculative_algorithm": "EAGLE"}),
        (models.DEEPSEEK_V3, {"speculative_algorithm": "NEXTN"}),
        (models.QWEN3_MOE, {"speculative_algorithm": "NGRAM"}),
    ],
    ids=str,
)
def test_speculative_decoding_keeps_its_own_request_limit(
    resolve: Resolve, card: rig.Card, model: models.Model, asked: dict[str, str]
) -> None:
    assert memory(resolve(card, model, ep_size=8, **asked)) == CAPPED._replace(running=48)


@SM12X
def test_a_diffusion_llm_keeps_its_own_request_limit(resolve: Resolve, card: rig.Card) -> None:
    outcome = resolve(card, ep_size=8, dllm_algorithm="LowConfidence")
    assert memory(outcome) == CAPPED._replace(running=None)


@pytest.mark.parametrize(
    ("card", "asked", "expected"),
    [
        (cards.RTX_PRO_6000_SERVER, {}, Memory(0.848, None, 512, 512)),
        (cards.RTX_PRO_6000_SERVER, {"ep_size": 8, "device": "cpu"}, Memory(0.848, None, 512, 512)),
        (cards.RTX_PRO_6000_SERVER, {"tp_size": 1, "moe_a2a_backend": "deepep"}, Memory(0.863, None, 256, 256)),
        (cards.RTX_5090, {}, Memory(0.854, None, 80, 80)),
        (cards.DGX_SPARK, {}, Memory(0.879, None, 512, 512)),
    ],
    ids=lambda value: getattr(value, "name", None) or str(value),
)
def test_without_expert_parallelism_on_the_card_it_resolves_as_upstream(
    resolve: Resolve, card: rig.Card, asked: dict[str, Any], expected: Memory
) -> None:
    assert memory(resolve(card, **asked)) == expected


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        (cards.H100, Memory(0.818, None, 512, 512)),
        (cards.H200, Memory(0.897, None, 512, 512)),
        (cards.B200, Memory(0.852, None, 512, 512)),
    ],
    ids=lambda value: getattr(value, "name", None) or str(value),
)
@pytest.mark.parametrize("asked", [{"ep_size": 8}, {"moe_a2a_backend": "deepep"}], ids=str)
def test_other_capabilities_resolve_exactly_as_upstream(
    resolve: Resolve, card: rig.Card, expected: Memory, asked: dict[str, Any]
) -> None:
    explicit = resolve(card, mem_fraction_static=0.92, **asked)
    assert (memory(resolve(card, **asked)), warned(explicit)) == (expected, False)
    assert memory(explicit) == expected._replace(fraction=0.92)
