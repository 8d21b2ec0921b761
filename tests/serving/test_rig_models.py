"""Checkpoints without weights: each form says its quantization where ModelOpt says it, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay.serving.rig import cards, models
from sm120_overlay.serving.rig.models import QuantForm


def files(folder: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_text()) for path in folder.iterdir()}


def test_the_generic_form_names_method_and_algorithm_in_config_json(tmp_path: Path) -> None:
    quant = files(models.checkpoint(tmp_path, models.GLM_5, QuantForm.GENERIC))["config.json"]["quantization_config"]
    assert (quant["quant_method"], quant["quant_algo"]) == ("modelopt", "NVFP4")


def test_the_nameless_form_leaves_the_method_out(tmp_path: Path) -> None:
    written = files(models.checkpoint(tmp_path, models.GLM_5, QuantForm.NAMELESS, "FP8"))
    assert list(written) == ["config.json"]
    assert "quant_method" not in written["config.json"]["quantization_config"]
    assert written["config.json"]["quantization_config"]["quant_algo"] == "FP8"


def test_the_side_file_form_leaves_config_json_unquantized(tmp_path: Path) -> None:
    written = files(models.checkpoint(tmp_path / "new" / "folder", models.GLM_5, QuantForm.SIDE_FILE))
    assert written["config.json"] == models.GLM_5.config
    assert written["hf_quant_config.json"]["quantization"]["quant_algo"] == "NVFP4"
    assert written["hf_quant_config.json"]["quantization"]["group_size"] == 16


def test_a_checkpoint_without_quantization_is_the_models_own_config(tmp_path: Path) -> None:
    assert files(models.checkpoint(tmp_path, models.QWEN3_DENSE)) == {"config.json": models.QWEN3_DENSE.config}


@pytest.mark.parametrize("card", cards.ALL, ids=lambda card: card.name)
def test_a_cards_shared_memory_follows_its_capability(card: cards.Card) -> None:
    assert card.shared_memory_optin == {12: 101_376, 10: 232_448, 9: 232_448}[card.capability[0]]


def test_the_cards_are_told_apart_by_name_and_sorted_by_capability() -> None:
    assert len({card.name for card in cards.ALL}) == len(cards.ALL)
    assert {card.capability for card in cards.SM12X} == {(12, 0), (12, 1)}
    assert {card.capability for card in cards.OTHERS} == {(9, 0), (10, 0)}
