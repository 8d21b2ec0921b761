"""A question: a checkpoint's JSON files, a card and the flags of a server: everything that an answer depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm120_overlay.serving.rig.cards import BY_NAME, Card
from sm120_overlay.serving.rig.errors import RigError
from sm120_overlay.serving.rig.models import BUNDLED, files

# What a server reads of a checkpoint before it loads weights.
READ = ("config.json", "hf_quant_config.json", "generation_config.json")


@dataclass(frozen=True)
class Question:
    """What is asked: `python -m sglang.launch_server --model-path CHECKPOINT FLAGS` on machines with this card."""

    card: str
    """A name of `rig.cards.BY_NAME`."""
    files: tuple[tuple[str, str], ...]
    """Name and text of the checkpoint's JSON files, sorted."""
    flags: tuple[str, ...]
    """The server's flags, without the model's path."""

    @property
    def presented(self) -> Card:
        """The card itself."""
        return BY_NAME[self.card]

    @property
    def digest(self) -> str:
        """The name of the question: sha256 over all of it."""
        return hashlib.sha256(json.dumps(self.as_json(), sort_keys=True).encode()).hexdigest()

    def as_json(self) -> dict[str, Any]:
        """The question as it goes to another process."""
        return {"card": self.card, "files": [list(file) for file in self.files], "flags": list(self.flags)}


def from_json(said: Mapping[str, Any]) -> Question:
    """The inverse of `as_json`."""
    return Question(said["card"], tuple((name, text) for name, text in said["files"]), tuple(said["flags"]))


def checkpoint_files(model: str) -> tuple[tuple[str, str], ...]:
    """The files of a bundled model, of a folder, or of the folder that a config.json lies in.

    Raises:
        RigError: it is neither; or config.json is not one JSON object with `architectures`.
    """
    if model in BUNDLED:
        return tuple(sorted(files(*BUNDLED[model]).items()))
    folder = Path(model).parent if Path(model).name == "config.json" else Path(model)
    found = tuple((name, _text(folder / name)) for name in sorted(READ) if (folder / name).is_file())
    if "config.json" not in dict(found):
        raise RigError(f"{model} is neither a bundled model ({', '.join(BUNDLED)}) nor a folder with a config.json.")
    return found


def _text(file: Path) -> str:
    try:
        said = json.loads(file.read_bytes())
        text = json.dumps(said, sort_keys=True)
    except RecursionError:
        raise RigError(f"{file}: expected a model's configuration, found JSON nested too deeply.") from None
    except (ValueError, OSError) as error:
        raise RigError(f"{file}: expected a model's configuration, found what is not JSON ({error}).") from error
    if not isinstance(said, dict) or (file.name == "config.json" and not said.get("architectures")):
        raise RigError(f"{file}: expected one JSON object{' with architectures' * (file.name == 'config.json')}.")
    return text
