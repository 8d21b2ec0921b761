"""Where a real package here is newer than the one that a tree pins, and refuses what the pinned one takes.

Only what would keep upstream from loading at all belongs here, each with the fact that makes the pinned answer known.
Every other difference is told by `Standing.differences`, and left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from sm120_overlay.serving.rig import stubs

# Model types that transformers 5.19.0 brings and 5.12.1, which SGLang 0.5.16 pins, does not: there, SGLang's own class
# is the one that is registered.
_BROUGHT_SINCE = frozenset({"qwen3_asr"})


def _let_register(module: ModuleType) -> None:
    """Let upstream's configuration class take the place of the one that transformers has brought since."""
    mapping: Any = type(module.CONFIG_MAPPING)
    real = mapping.register

    def register(self: Any, key: str, value: Any, exist_ok: bool = False) -> None:
        real(self, key, value, exist_ok=exist_ok or key in _BROUGHT_SINCE)

    mapping.register = register


def _name(name: str) -> Callable[[ModuleType], None]:
    """Let upstream name a class that transformers 5.12.1 has and 5.19.0 has not; to use it is refused."""

    def put(module: ModuleType) -> None:
        if name not in vars(module):
            setattr(module, name, stubs.fabricate(module.__name__, name))

    return put


# Module → what is done to it once its body has run.
AFTER: Mapping[str, Callable[[ModuleType], None]] = {
    "transformers.models.auto.configuration_auto": _let_register,
    "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl": _name("Qwen2_5_VisionRotaryEmbedding"),
}
