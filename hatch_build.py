"""Puts pins, patches, overlay files, and the patches' tests and checks inside the wheel, where `queue/home.py` looks.

Not into an editable install: that reads them from the repository root.
"""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CARRIED = ("pins.toml", "NOTICE", "patches", "overlay", "tests/patches", "tests/on_gpu")


class Carry(BuildHookInterface):  # type: ignore[type-arg]
    """Named by pyproject.toml."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the files to a wheel that is to be installed as it is."""
        if version == "standard":
            build_data["force_include"].update({name: f"sm120_overlay/data/{name}" for name in CARRIED})
