"""allreduce-fusion-guard: on SM12x, asking for FlashInfer's all-reduce fusion is answered once, and with no.

Everything here runs upstream's own argument resolution on presented cards, and its own decision whether to fuse.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay.serving import rig
from sm120_overlay.serving.rig import cards, models

SM12X = pytest.mark.parametrize("card", [cards.RTX_PRO_6000_SERVER, cards.DGX_SPARK], ids=["12.0", "12.1"])
OTHERS = pytest.mark.parametrize("card", [cards.H200, cards.B200], ids=["9.0", "10.0"])
# Qwen3-MoE and DeepSeek-V3 get the fusion by themselves on other cards; GLM-5 and a dense model do not.
MODELS = pytest.mark.parametrize(
    "model", [models.GLM_5, models.QWEN3_MOE, models.DEEPSEEK_V3, models.QWEN3_DENSE], ids=lambda model: model.name
)

Resolve = Callable[..., rig.Resolution]
Decide = Callable[[Any, bool], bool]


@pytest.fixture
def resolve(standing: rig.Standing, tmp_path: Path) -> Resolve:
    """Upstream's outcome at TP8, on a card."""

    def ask(card: rig.Card, model: models.Model, **asked: Any) -> rig.Resolution:
        with rig.present(card):
            return rig.resolve(standing, models.checkpoint(tmp_path / model.name, model), tp_size=8, **asked)

    return ask


@pytest.fixture
def fuses(standing: rig.Standing, monkeypatch: pytest.MonkeyPatch) -> Decide:
    """Whether upstream fuses a batch of 8 tokens under these arguments, on a machine of a capability it supports."""
    communicator = standing.module("sglang.srt.layers.communicator")
    monkeypatch.setattr(communicator, "is_dp_attention_enabled", lambda: False)
    monkeypatch.setattr(communicator, "_is_flashinfer_available", True)

    def decide(args: Any, supported: bool) -> bool:
        monkeypatch.setattr(communicator, "_is_sm100_supported", supported)
        monkeypatch.setattr(communicator, "get_global_server_args", lambda: args)
        return bool(communicator.apply_flashinfer_allreduce_fusion(8))

    return decide


def accepted(outcome: rig.Resolution) -> Any:
    assert outcome.refusal is None, f"upstream refuses {outcome.asked}: {outcome.refusal}"
    return outcome.args


def told(outcome: rig.Resolution) -> int:
    """How often the user was told about the flag."""
    return sum("--enable-flashinfer-allreduce-fusion" in text for text in outcome.warnings)


@SM12X
@MODELS
def test_the_flag_is_off_and_the_user_is_told_once(resolve: Resolve, card: rig.Card, model: models.Model) -> None:
    outcome = resolve(card, model, enable_flashinfer_allreduce_fusion=True)
    assert (accepted(outcome).enable_flashinfer_allreduce_fusion, told(outcome)) == (False, 1)


@SM12X
def test_it_stays_off_where_only_the_gate_of_the_architecture_is_lifted(
    resolve: Resolve, card: rig.Card, fuses: Decide
) -> None:
    args = accepted(resolve(card, models.DEEPSEEK_V3, enable_flashinfer_allreduce_fusion=True))
    assert (fuses(args, False), fuses(args, True)) == (False, False)


@SM12X
@MODELS
def test_nobody_is_told_who_did_not_ask(resolve: Resolve, card: rig.Card, model: models.Model) -> None:
    outcome = resolve(card, model)
    assert (accepted(outcome).enable_flashinfer_allreduce_fusion, told(outcome)) == (False, 0)


@OTHERS
@MODELS
def test_other_capabilities_keep_the_flag(resolve: Resolve, card: rig.Card, model: models.Model, fuses: Decide) -> None:
    outcome = resolve(card, model, enable_flashinfer_allreduce_fusion=True)
    args = accepted(outcome)
    assert (args.enable_flashinfer_allreduce_fusion, told(outcome)) == (True, 0)
    assert fuses(args, True)


@OTHERS
def test_other_capabilities_still_choose_it_by_themselves(resolve: Resolve, card: rig.Card) -> None:
    chosen = {
        model.name: accepted(resolve(card, model)).enable_flashinfer_allreduce_fusion
        for model in (models.GLM_5, models.QWEN3_MOE, models.DEEPSEEK_V3, models.QWEN3_DENSE)
    }
    assert chosen == {"GLM-5": False, "Qwen3-235B-A22B": True, "DeepSeek-V3": True, "Qwen3-32B": False}


@SM12X
def test_a_server_that_does_not_use_the_card_stays_as_upstream_resolves_it(resolve: Resolve, card: rig.Card) -> None:
    outcome = resolve(card, models.QWEN3_MOE, device="cpu", enable_flashinfer_allreduce_fusion=True)
    assert (accepted(outcome).enable_flashinfer_allreduce_fusion, told(outcome)) == (True, 0)
