"""Where this project's own data lies: the pins, the patches, the overlay files and the patches' tests.

In a clone (or an editable install of one) that is the repository root; in a wheel it is `data/` in the package.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import Missing

PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Home:
    """A directory that holds pins.toml, patches/, overlay/ and tests/patches/."""

    root: Path

    @property
    def pins(self) -> Path:
        """The lines, as data."""
        return self.root / "pins.toml"

    def patches(self, line: str, upstream: str) -> Path:
        """The folder of one series."""
        return self.root / "patches" / line / upstream

    def overlay(self, upstream: str) -> Path:
        """The whole files that patches bring, at their paths in the upstream repository."""
        return self.root / "overlay" / upstream


def command(verb: str) -> str:
    """How a user calls a verb of this very copy."""
    return f"tools/{verb}.py" if (PACKAGE.parents[1] / "pins.toml").is_file() else f"sm120-overlay {verb}"


def find_home() -> Home:
    """The data that belongs to this very copy of the package, never another one's.

    Raises:
        Missing: neither the clone around the package nor the wheel's own data is there.
    """
    for root in (PACKAGE / "data", PACKAGE.parents[1]):
        if (root / "pins.toml").is_file():
            return Home(root)
    # why: pins and patches of another copy are not those that this code was tested with
    raise Missing(
        f"No pins.toml beside the package in {PACKAGE}.",
        "Install the wheel again, or run the tools from a clone of the project.",
    )
