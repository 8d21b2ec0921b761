"""allreduce-fusion-guard: on SM12x, asking for FlashInfer's all-reduce fusion is answered at once, and with no.

Everything here runs upstream's own argument resolution on presented cards, and its own decision whether to fuse. Asked
for on SM12x, v0.5.9 never fuses, so the flag is off there and said to be; later lines die of it after the weights are
loaded, so it is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sm120_overlay.serving import rig
from sm120_overlay.serving.rig import cards, models

SM12X = pytest.mark.parametrize("card", [cards.RTX_PRO_6000_SERVER, cards.DGX_SPARK], ids=["12.0", "12.1"])
OTHERS = pytest.mark.parametrize("card", [cards.H200, cards.B200], ids=["9.0", "10.0"])
# Some get the fusion by themselves on other cards; a dense model does not.
MODELS = pytest.mark.parametrize(
    "model", [models.GLM_5, models.QWEN3_MOE, models.DEEPSEEK_V3, models.QWEN3_DENSE], ids=lambda model: model.name
)
# By SGLang's version; the newest goes for one that is newer.
BACKENDS: dict[str, tuple[str, ...]] = {
    "0.5.9": (),
    "0.5.16": ("auto", "trtllm", "mnnvl"),
    "0.5.23": ("auto", "trtllm", "mnnvl", "cutedsl"),
}
CHOSEN = {
    "0.5.9": {"GLM-5": False, "Qwen3-235B-A22B": True, "DeepSeek-V3": True, "Qwen3-32B": False},
    "0.5.16": {"GLM-5": True, "Qwen3-235B-A22B": True, "DeepSeek-V3": True, "Qwen3-32B": False},
    "0.5.23": {"GLM-5": True, "Qwen3-235B-A22B": True, "DeepSeek-V3": True, "Qwen3-32B": False},
}
NEWEST = "0.5.23"
OLD_FLAG = {"enable_flashinfer_allreduce_fusion": True}

Resolve = Callable[..., rig.Resolution]
Decide = Callable[[Any, bool], bool]


@pytest.fixture
def resolve(standing: rig.Standing, tmp_path: Path) -> Resolve:
    """Upstream's outcome at TP8, on a card."""

    def ask(card: rig.Card, model: models.Model = models.QWEN3_MOE, **asked: Any) -> rig.Resolution:
        with rig.present(card):
            return rig.resolve(standing, models.checkpoint(tmp_path / model.name, model), **{"tp_size": 8, **asked})

    return ask


@pytest.fixture
def ways(standing: rig.Standing) -> list[dict[str, Any]]:
    """Every way to ask for the fusion: the flag of 0.5.9, which later lines still take, and the backends."""
    named = BACKENDS.get(standing.version, BACKENDS[NEWEST])
    return [OLD_FLAG, *({"flashinfer_allreduce_fusion_backend": name} for name in named)]


@pytest.fixture
def fuses(standing: rig.Standing, monkeypatch: pytest.MonkeyPatch) -> Decide:
    """Whether upstream fuses a batch of 8 tokens under these arguments, on a machine of a capability it supports."""
    first, older = standing.version == "0.5.9", standing.version in ("0.5.9", "0.5.16")
    boundary = "sglang.srt.layers." + ("communicator" if older else "layer_boundary.residual.add_norm")
    gate = standing.module(boundary)
    monkeypatch.setattr(gate, "is_dp_attention_enabled", lambda: False)
    monkeypatch.setattr(gate, "_is_flashinfer_available", True)
    if not first:
        monkeypatch.setattr(gate, "is_flashinfer_allreduce_unavailable", lambda: False)
    if not older:
        monkeypatch.setattr(gate, "uses_cutedsl_ar_fusion", lambda: False)

    def decide(args: Any, supported: bool) -> bool:
        monkeypatch.setattr(gate, "_is_sm100_supported", supported)
        if older:
            monkeypatch.setattr(gate, "get_global_server_args" if first else "get_server_args", lambda: args)
            return bool(gate.apply_flashinfer_allreduce_fusion(8))
        monkeypatch.setattr(gate, "get_exec", lambda: SimpleNamespace(comm=args))
        return bool(gate.flashinfer_ar_fusion_applies(8))

    return decide


def accepted(outcome: rig.Resolution) -> Any:
    assert outcome.refusal is None, f"upstream refuses {outcome.asked}: {outcome.refusal}"
    return outcome.args


def asks_for_it(args: Any) -> bool:
    """Whether the resolved arguments have the fusion on: by its flag in 0.5.9, by its backend later."""
    return bool(args.enable_flashinfer_allreduce_fusion or getattr(args, "flashinfer_allreduce_fusion_backend", None))


def told(outcome: rig.Resolution) -> int:
    """How often the user was told that the flag has no effect."""
    return sum("--enable-flashinfer-allreduce-fusion is ignored" in text for text in outcome.warnings)


@SM12X
@MODELS
def test_asking_for_it_is_answered_once_before_any_weight_is_loaded(
    standing: rig.Standing, resolve: Resolve, ways: list[dict[str, Any]], card: rig.Card, model: models.Model
) -> None:
    for asked in ways:
        outcome = resolve(card, model, **asked)
        if standing.version == "0.5.9":
            assert (asks_for_it(accepted(outcome)), told(outcome)) == (False, 1)
        else:
            assert isinstance(outcome.refusal, ValueError), f"{asked} is accepted: {outcome.refusal!r}"
            assert "allreduce fusion is not supported on SM12x" in str(outcome.refusal)


@SM12X
def test_it_stays_off_where_only_the_gate_of_the_architecture_is_lifted(
    resolve: Resolve, ways: list[dict[str, Any]], card: rig.Card, fuses: Decide
) -> None:
    outcomes = [resolve(card, models.DEEPSEEK_V3, **asked) for asked in ways]
    fused = [fuses(outcome.args, gate) for outcome in outcomes if outcome.refusal is None for gate in (False, True)]
    assert not any(fused)


@SM12X
@MODELS
def test_nobody_is_told_who_did_not_ask(resolve: Resolve, card: rig.Card, model: models.Model) -> None:
    outcome = resolve(card, model)
    assert (asks_for_it(accepted(outcome)), told(outcome)) == (False, 0)


@SM12X
def test_who_switches_it_off_as_well_is_served_without(
    standing: rig.Standing, resolve: Resolve, ways: list[dict[str, Any]], card: rig.Card
) -> None:
    switches = ["enable_deterministic_inference", "enforce_disable_flashinfer_allreduce_fusion"]
    if standing.version == "0.5.9":
        switches.pop()
    outcomes = [resolve(card, **asked, **{switch: True}) for asked in ways for switch in switches]
    assert not any(asks_for_it(accepted(outcome)) for outcome in outcomes)


@SM12X
def test_on_one_card_it_does_nothing_and_is_left_to_upstream(
    standing: rig.Standing, resolve: Resolve, card: rig.Card, fuses: Decide
) -> None:
    asked = OLD_FLAG if standing.version == "0.5.9" else {"flashinfer_allreduce_fusion_backend": "auto"}
    args = accepted(resolve(card, models.QWEN3_30B, tp_size=1, **asked))
    assert not fuses(args, False)


@OTHERS
@MODELS
def test_other_capabilities_keep_it(
    resolve: Resolve, ways: list[dict[str, Any]], card: rig.Card, model: models.Model, fuses: Decide
) -> None:
    for asked in ways:
        outcome = resolve(card, model, **asked)
        args = accepted(outcome)
        assert (asks_for_it(args), told(outcome)) == (True, 0)
        assert getattr(args, "flashinfer_allreduce_fusion_backend", "auto") == next(
            (name for name in asked.values() if name is not True), "auto"
        )
        assert fuses(args, True)


@OTHERS
def test_other_capabilities_still_choose_it_by_themselves(
    standing: rig.Standing, resolve: Resolve, card: rig.Card
) -> None:
    chosen = {
        model.name: asks_for_it(accepted(resolve(card, model)))
        for model in (models.GLM_5, models.QWEN3_MOE, models.DEEPSEEK_V3, models.QWEN3_DENSE)
    }
    assert chosen == CHOSEN.get(standing.version, CHOSEN[NEWEST])


@SM12X
def test_a_server_that_does_not_use_the_card_stays_as_upstream_resolves_it(
    resolve: Resolve, ways: list[dict[str, Any]], card: rig.Card
) -> None:
    for asked in ways:
        outcome = resolve(card, models.QWEN3_MOE, device="cpu", **asked)
        assert (asks_for_it(accepted(outcome)), told(outcome)) == (True, 0)
