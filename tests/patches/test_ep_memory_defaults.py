"""ep-memory-defaults: expert parallelism on SM12x starts from smaller memory defaults, and never from smaller wishes.

Everything here runs upstream's own argument resolution on presented cards. The line v0.5.9 limits graphs with it; on
later lines that is a patch of its own, which is applied or not where these run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sm120_overlay.serving import rig
from sm120_overlay.serving.rig import cards, models
from sm120_overlay.serving.rig.models import QuantForm

SM12X = pytest.mark.parametrize("card", [cards.RTX_PRO_6000_SERVER, cards.DGX_SPARK], ids=["12.0", "12.1"])
SDAR = models.Model("SDAR", {**models.QWEN3_MOE.config, "architectures": ["SDARMoeForCausalLM"]})
DP_ATTENTION: dict[str, Any] = {"dp_size": 8, "enable_dp_attention": True}

Resolve = Callable[..., rig.Resolution]


class Memory(NamedTuple):
    """The two answers that this is about on every line."""

    fraction: float
    running: int | None


CAPPED = Memory(0.80, 512)
# What upstream makes of Qwen3-MoE at TP8 with a graph limit of 512: with EP8, and with DeepEP.
OTHERS = {
    cards.H100.name: {"0.5.9": (0.818, 0.818), "0.5.16": (0.812, 0.793), "0.5.23": (0.812, 0.777)},
    cards.H200.name: {"0.5.9": (0.897, 0.897), "0.5.16": (0.893, 0.882), "0.5.23": (0.893, 0.873)},
    cards.B200.name: {"0.5.9": (0.852, 0.852), "0.5.16": (0.849, 0.841), "0.5.23": (0.849, 0.834)},
}
# And at TP8 without EP, on the cards that this is about; then at TP1 with DeepEP, which is no EP.
WITHOUT = {
    cards.RTX_PRO_6000_SERVER.name: {"0.5.9": (0.848, 0.857), "0.5.16": (0.844, 0.837), "0.5.23": (0.844, 0.823)},
    cards.DGX_SPARK.name: {"0.5.9": (0.879, 0.886), "0.5.16": (0.875, 0.869), "0.5.23": (0.875, 0.859)},
}
NEWEST = "0.5.23"


@pytest.fixture
def resolve(standing: rig.Standing, tmp_path: Path) -> Resolve:
    """Upstream's outcome at TP8, on a card; Qwen3-MoE without quantization unless another model is named.

    `graphs` is the limit, or the list, of decode graph sizes, by the name that the tree has for it.
    """
    first = standing.version == "0.5.9"

    def ask(
        card: rig.Card, model: models.Model = models.QWEN3_MOE, graphs: int | list[int] | None = None, **asked: Any
    ) -> rig.Resolution:
        folder = models.checkpoint(tmp_path / model.name, model, QuantForm.NONE)
        name = ("cuda_graph_bs" if isinstance(graphs, list) else "cuda_graph_max_bs") + ("" if first else "_decode")
        named = {} if graphs is None else {name: graphs}
        with rig.present(card):
            return rig.resolve(standing, folder, **{"tp_size": 8, **named, **asked})

    return ask


@pytest.fixture
def limited(standing: rig.Standing) -> int | None:
    """The graph limit that EP brings with this patch; None where it leaves that to another."""
    return 256 if standing.version == "0.5.9" else None


def of_line(values: dict[str, tuple[float, float]], standing: rig.Standing) -> tuple[float, float]:
    """What is written down for the tree's version; the newest there is for one that is newer."""
    return values.get(standing.version, values[NEWEST])


def memory(outcome: rig.Resolution) -> Memory:
    assert outcome.refusal is None, f"upstream refuses {outcome.asked}: {outcome.refusal}"
    return Memory(outcome.args.mem_fraction_static, outcome.args.max_running_requests)


def graphs_of(outcome: rig.Resolution) -> tuple[int, int]:
    """Limit of the decode graphs' sizes, and the largest of them."""
    assert outcome.refusal is None, f"upstream refuses {outcome.asked}: {outcome.refusal}"
    if hasattr(outcome.args, "cuda_graph_config"):
        decode = outcome.args.cuda_graph_config.decode
        return decode.max_bs, max(decode.bs)
    return outcome.args.cuda_graph_max_bs, max(outcome.args.cuda_graph_bs)


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
def test_an_all_to_all_backend_counts_as_expert_parallelism(resolve: Resolve, card: rig.Card) -> None:
    assert memory(resolve(card, moe_a2a_backend="deepep")) == CAPPED
    flashinfer = {"moe_a2a_backend": "flashinfer", "moe_runner_backend": "flashinfer_cutlass"}
    assert memory(resolve(card, **flashinfer, **DP_ATTENTION)) == memory(resolve(card, ep_size=8, **DP_ATTENTION))


@SM12X
def test_pipeline_stages_do_not_lift_the_caps(resolve: Resolve, card: rig.Card) -> None:
    assert memory(resolve(card, tp_size=4, pp_size=2, ep_size=4)) == CAPPED


@SM12X
@pytest.mark.parametrize(
    "form", [{}, {"disable_cuda_graph_padding": True}, {"speculative_algorithm": "EAGLE"}], ids=str
)
def test_no_graph_is_captured_above_the_limit_in_any_form_of_the_size_list(
    resolve: Resolve, limited: int | None, card: rig.Card, form: dict[str, Any]
) -> None:
    captured = graphs_of(resolve(card, models.DEEPSEEK_V3, ep_size=8, **form))
    assert captured == graphs_of(resolve(card, models.DEEPSEEK_V3, graphs=limited, **form))


@SM12X
@pytest.mark.parametrize(
    ("model", "asked"), [(models.QWEN3_MOE, DP_ATTENTION), (models.GLM_4_5V, {})], ids=["DP attention", "vision"]
)
def test_what_upstream_reserves_beyond_the_cap_stays_reserved_and_is_not_taken_from_it(
    resolve: Resolve, limited: int | None, card: rig.Card, model: models.Model, asked: dict[str, Any]
) -> None:
    upstream = memory(resolve(card, model, graphs=limited, **asked))
    assert upstream.fraction < CAPPED.fraction or card is cards.DGX_SPARK
    with_ep = memory(resolve(card, model, ep_size=8, **asked))
    assert with_ep == Memory(min(upstream.fraction, CAPPED.fraction), 512)


def test_a_card_whose_own_defaults_are_smaller_keeps_them(resolve: Resolve) -> None:
    upstream, small = (resolve(cards.RTX_5090, ep_size=ep, chunked_prefill_size=8192) for ep in (1, 8))
    assert memory(upstream).fraction < CAPPED.fraction
    assert memory(small) == (memory(upstream).fraction, 512)
    assert graphs_of(small) == graphs_of(upstream)


@SM12X
@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ({"mem_fraction_static": 0.85}, {"fraction": 0.85}),
        ({"mem_fraction_static": 0.92}, {"fraction": 0.92}),
        ({"max_running_requests": 2048}, {"running": 2048}),
    ],
    ids=str,
)
def test_what_the_user_set_is_kept_and_the_rest_is_capped(
    resolve: Resolve, card: rig.Card, asked: dict[str, Any], kept: dict[str, Any]
) -> None:
    assert memory(resolve(card, ep_size=8, **asked)) == CAPPED._replace(**kept)


@SM12X
@pytest.mark.parametrize("graphs", [512, [1, 8, 384]], ids=str)
def test_graphs_that_the_user_set_are_kept_and_the_rest_is_capped(
    resolve: Resolve, card: rig.Card, graphs: int | list[int]
) -> None:
    outcome = resolve(card, graphs=graphs, ep_size=8)
    largest = graphs if isinstance(graphs, int) else max(graphs)
    assert (memory(outcome), graphs_of(outcome)) == (CAPPED, (largest, largest))


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
    outcome = resolve(card, SDAR, ep_size=8, dllm_algorithm="LowConfidence")
    assert memory(outcome) == CAPPED._replace(running=None)


@SM12X
def test_without_expert_parallelism_on_the_card_it_resolves_as_upstream(
    standing: rig.Standing, resolve: Resolve, card: rig.Card
) -> None:
    plain, one_rank = of_line(WITHOUT[card.name], standing)
    assert memory(resolve(card, graphs=512)) == Memory(plain, None)
    assert memory(resolve(card, graphs=512, tp_size=1, moe_a2a_backend="deepep")) == Memory(one_rank, None)


@SM12X
def test_a_server_that_does_not_use_the_card_resolves_as_beside_another(resolve: Resolve, card: rig.Card) -> None:
    asked = {"device": "cpu", "ep_size": 8}
    other = replace(cards.H200, memory_mib=card.memory_mib, smi_shows_memory=card.smi_shows_memory)
    assert memory(resolve(card, **asked)) == memory(resolve(other, **asked))
    assert not warned(resolve(card, mem_fraction_static=0.92, **asked))


@pytest.mark.parametrize("card", [cards.H100, cards.H200, cards.B200], ids=lambda card: card.name)
@pytest.mark.parametrize("a2a", [False, True], ids=["EP8", "DeepEP"])
def test_other_capabilities_resolve_exactly_as_upstream(
    standing: rig.Standing, resolve: Resolve, card: rig.Card, a2a: bool
) -> None:
    asked = {"moe_a2a_backend": "deepep"} if a2a else {"ep_size": 8}
    default, explicit = resolve(card, **asked), resolve(card, mem_fraction_static=0.92, **asked)
    assert (memory(default), warned(explicit)) == (Memory(of_line(OTHERS[card.name], standing)[a2a], None), False)
    assert memory(explicit) == Memory(0.92, None)
    assert graphs_of(default) == (512, 512)
