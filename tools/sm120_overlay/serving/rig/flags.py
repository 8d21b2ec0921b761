"""What upstream's modules compute once, at import, from the machine: `_is_cuda = is_cuda()` and its like.

The rig withdraws a presented card while modules load, so that these say "no CUDA" whatever is presented. Whoever wants
to know what a server's own process would do asks inside `on_card`, where they say what they would on the card.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from sm120_overlay.serving.rig.errors import raised
from sm120_overlay.serving.rig.tree import UPSTREAM

# A whole line at the top level that binds one lower-case name to what a question about the machine answers.
_FLAG = re.compile(
    r"^(_?[a-z]\w*) = (.*\b(?:(?:is_[a-z0-9_]+|get_device_sm)\(.*\)|get_platform\(\)\.).*)$", re.MULTILINE
)


def _flags(module: ModuleType) -> list[tuple[str, str]]:
    """Name and expression of each flag that the module's source computes, in order."""
    file = getattr(module, "__file__", None)
    if not file or not file.endswith(".py"):
        return []
    lines = _FLAG.findall(Path(file).read_text(encoding="utf-8"))
    return [(name, expression) for name, expression in lines if name in vars(module)]


def _answered(expression: str, module: ModuleType) -> tuple[Any] | None:
    """The flag's value now; None where it cannot be told, so that it stays as it is."""
    before = len(raised)
    try:
        return (eval(expression, vars(module)),)
    except Exception:  # a line that begins a longer expression, a stub that was asked: left as it is
        del raised[before:]
        return None


@contextmanager
def on_card() -> Iterator[int]:
    """Within the block, the flags of all loaded modules of upstream are what they would be on the presented card.

    That goes for those that one module imports from another, too, unless two of the same name differ. Gives the number
    of flags that changed. What loads later inside the block still loads without a card.
    """
    changed: list[tuple[ModuleType, str, Any]] = []

    def put(module: ModuleType, flag: str, value: Any) -> None:
        if vars(module)[flag] != value:
            changed.append((module, flag, vars(module)[flag]))
            setattr(module, flag, value)

    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == UPSTREAM]
    try:
        own = {module: _flags(module) for module in modules if isinstance(module, ModuleType)}
        said: dict[str, list[Any]] = {}
        for module, flags in own.items():
            for flag, expression in flags:
                answer = _answered(expression, module)
                if answer is not None:
                    put(module, flag, answer[0])
                    said.setdefault(flag, []).append(answer[0])
        for module, flags in own.items():
            for flag in (said.keys() & vars(module).keys()) - {name for name, _ in flags}:
                if isinstance(vars(module)[flag], bool) and all(value == said[flag][0] for value in said[flag]):
                    put(module, flag, said[flag][0])
        yield len(changed)
    finally:
        for module, flag, value in reversed(changed):
            setattr(module, flag, value)
