"""A question: which files it holds, and that its name changes with all that an answer depends on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sm120_overlay.serving.asking.question import Question, checkpoint_files, from_json
from sm120_overlay.serving.rig import cards, models
from sm120_overlay.serving.rig.errors import RigError
from sm120_overlay.serving.rig.models import QuantForm

BASE = Question("rtx-pro-6000", (("config.json", "{}"),), ("--tp-size", "8"))


@pytest.mark.parametrize("name", models.BUNDLED)
def test_a_bundled_model_has_its_published_shape_and_says_its_quantization(name: str) -> None:
    model, form = models.BUNDLED[name]
    config = json.loads(dict(checkpoint_files(name))["config.json"])
    assert {key: config[key] for key in model.config} == model.config
    assert ("quantization_config" in config) == (form is not QuantForm.NONE)
    assert name.endswith("-nvfp4") == (config.get("quantization_config", {}).get("quant_algo") == "NVFP4")


@pytest.mark.parametrize("form", [QuantForm.GENERIC, QuantForm.SIDE_FILE])
def test_a_folder_and_its_config_json_are_the_same_question(tmp_path: Path, form: QuantForm) -> None:
    models.checkpoint(tmp_path, models.GLM_5, form)
    (tmp_path / "model.safetensors").write_bytes(b"\0")
    found = checkpoint_files(str(tmp_path))
    assert found == checkpoint_files(str(tmp_path / "config.json"))
    assert {name: json.loads(text) for name, text in found} == {
        name: json.loads(text) for name, text in models.files(models.GLM_5, form).items()
    }


NESTED = pytest.param("[" * 100_000, id="nested")


@pytest.mark.parametrize("text", ["", "[]", "{", "{}", '{"architectures": []}', "\\xff", NESTED])
def test_what_is_no_checkpoint_is_refused_by_its_files_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(RigError, match=r"config\.json: expected"):
        checkpoint_files(str(tmp_path))


def test_a_name_that_is_nothing_is_refused_with_the_names_that_are(tmp_path: Path) -> None:
    with pytest.raises(RigError, match="glm-5-nvfp4"):
        checkpoint_files(str(tmp_path / "nowhere"))


def test_its_name_changes_with_all_that_it_asks_and_it_travels_whole() -> None:
    others = [
        Question("b200", BASE.files, BASE.flags),
        Question(BASE.card, (("config.json", "{ }"),), BASE.flags),
        Question(BASE.card, BASE.files, ("--tp-size", "4")),
        Question(BASE.card, BASE.files, ()),
    ]
    assert len({question.digest for question in (BASE, *others)}) == 5
    assert from_json(json.loads(json.dumps(BASE.as_json()))) == BASE


def test_every_card_has_a_name_and_only_those_with_nvlink_modules_are_connected() -> None:
    assert set(cards.BY_NAME.values()) == set(cards.ALL)
    assert BASE.presented is cards.RTX_PRO_6000_SERVER
    assert {card for card in cards.ALL if card.nvlink} == {cards.B200, cards.H200, cards.H100}
