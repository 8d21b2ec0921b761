"""decode-graph-batch: on SM12x no decode graph of more than 256 requests is captured, unless it is asked for.

Everything here runs upstream's own argument resolution on presented cards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay.serving import rig
from sm120_overlay.serving.rig import cards, models
from sm120_overlay.serving.rig.models import QuantForm

SM12X = pytest.mark.parametrize("card", [cards.RTX_PRO_6000_SERVER, cards.DGX_SPARK], ids=["12.0", "12.1"])
# Less memory than the 96 GB, in the bucket of the H100: 73,000 MiB stand for what a driver says of 72 GB.
SMALLER_PRO = replace(cards.RTX_PRO_6000_SERVER, name="a 72 GB card", memory_mib=73_000)
# What upstream gives an RTX 5090 at TP1 and at TP8, by SGLang's version; the newest goes for one that is newer.
RTX_5090 = {"0.5.16": (24, 80), "0.5.23": (48, 160)}
NEWEST = "0.5.23"

Resolve = Callable[..., rig.Resolution]


@pytest.fixture
def resolve(standing: rig.Standing, tmp_path: Path) -> Resolve:
    """Upstream's outcome at TP8, on a card; Qwen3-MoE without quantization unless another model is named."""

    def ask(card: rig.Card, model: models.Model = models.QWEN3_MOE, **asked: Any) -> rig.Resolution:
        folder = models.checkpoint(tmp_path / model.name, model, QuantForm.NONE)
        with rig.present(card):
            return rig.resolve(standing, folder, **{"tp_size": 8, **asked})

    return ask


def graphs(outcome: rig.Resolution) -> tuple[int, int]:
    """Limit of the decode graphs' sizes, and the largest of them."""
    assert outcome.refusal is None, f"upstream refuses {outcome.asked}: {outcome.refusal}"
    decode = outcome.args.cuda_graph_config.decode
    return decode.max_bs, max(decode.bs)


@SM12X
@pytest.mark.parametrize(
    "model", [models.QWEN3_MOE, models.GLM_5, models.DEEPSEEK_V3, models.QWEN3_DENSE], ids=lambda model: model.name
)
@pytest.mark.parametrize("tp", [4, 8])
def test_the_default_limit_is_256_requests(resolve: Resolve, card: rig.Card, model: models.Model, tp: int) -> None:
    assert graphs(resolve(card, model, tp_size=tp)) == (256, 256)


@SM12X
@pytest.mark.parametrize(
    "form",
    [
        {"disable_cuda_graph_padding": True},
        {"speculative_algorithm": "EAGLE"},
        {"ep_size": 8},
        {"dp_size": 8, "enable_dp_attention": True},
        {"disaggregation_mode": "decode"},
        {"tp_size": 4, "pp_size": 2},
    ],
    ids=str,
)
def test_it_holds_in_every_form_of_the_size_list_and_of_serving(
    resolve: Resolve, card: rig.Card, form: dict[str, Any]
) -> None:
    assert graphs(resolve(card, models.DEEPSEEK_V3, **form)) == (256, 256)


def test_a_card_with_less_memory_captures_no_more(resolve: Resolve) -> None:
    assert graphs(resolve(SMALLER_PRO)) == (256, 256)


@SM12X
@pytest.mark.parametrize("asked", [{}, {"dp_size": 8, "enable_dp_attention": True}], ids=str)
def test_the_memory_fraction_is_upstreams_own_for_the_smaller_graphs(
    resolve: Resolve, card: rig.Card, asked: dict[str, Any]
) -> None:
    default, named, larger = (
        resolve(card, **asked, **limit).args.mem_fraction_static
        for limit in ({}, {"cuda_graph_max_bs_decode": 256}, {"cuda_graph_max_bs_decode": 512})
    )
    assert larger < named
    assert default == named


@SM12X
@pytest.mark.parametrize(
    ("asked", "largest"),
    [
        ({"cuda_graph_max_bs_decode": 512}, 512),
        ({"cuda_graph_max_bs_decode": 300}, 300),
        ({"cuda_graph_bs_decode": [1, 8, 384]}, 384),
        ({"cuda_graph_config": {"decode": {"max_bs": 512}}}, 512),
        ({"cuda_graph_config": {"decode": {"bs": [1, 8, 384]}}}, 384),
    ],
    ids=str,
)
def test_what_the_user_set_is_kept(resolve: Resolve, card: rig.Card, asked: dict[str, Any], largest: int) -> None:
    assert graphs(resolve(card, **asked)) == (largest, largest)


@SM12X
def test_smaller_defaults_stay(standing: rig.Standing, resolve: Resolve, card: rig.Card) -> None:
    assert graphs(resolve(card, tp_size=2)) == (256, 256)
    one, eight = RTX_5090.get(standing.version, RTX_5090[NEWEST])
    assert graphs(resolve(cards.RTX_5090, tp_size=1)) == (one, one)
    assert graphs(resolve(cards.RTX_5090)) == (eight, eight)


@SM12X
def test_fewer_running_requests_limit_it_as_they_do_upstream(resolve: Resolve, card: rig.Card) -> None:
    """From 0.5.23 on upstream captures no more than can run; before, the limit does not look at them."""
    here, beside = (
        graphs(resolve(each, tp_size=2, max_running_requests=100))
        for each in (card, replace(cards.H200, memory_mib=card.memory_mib, smi_shows_memory=card.smi_shows_memory))
    )
    assert here == beside


@SM12X
def test_a_server_that_does_not_use_the_card_resolves_as_beside_another(resolve: Resolve, card: rig.Card) -> None:
    asked = {"device": "cpu", "torch_compile_max_bs": 512}
    assert graphs(resolve(card, **asked)) == graphs(resolve(cards.H200, **asked)) == (512, 512)


@pytest.mark.parametrize("card", [cards.H100, cards.H200, cards.B200], ids=lambda card: card.name)
@pytest.mark.parametrize("asked", [{}, {"ep_size": 8}, {"tp_size": 4}], ids=str)
def test_other_capabilities_resolve_exactly_as_upstream(
    resolve: Resolve, card: rig.Card, asked: dict[str, Any]
) -> None:
    outcome = resolve(card, **asked)
    assert graphs(outcome) == (512, 512)
    named = resolve(card, cuda_graph_max_bs_decode=512, **asked)
    assert outcome.args.mem_fraction_static == named.args.mem_fraction_static


def test_an_h200_with_the_memory_of_an_sm12x_card_keeps_its_bucket(resolve: Resolve) -> None:
    assert graphs(resolve(replace(cards.H200, memory_mib=cards.RTX_PRO_6000_SERVER.memory_mib))) == (512, 512)
