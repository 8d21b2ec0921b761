"""Which version of this project a host runs: runs that are measured in two ways cannot be compared."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from ... import __version__
from ...errors import Missing

MEASURING = Path(__file__).parent.parent


@cache
def version() -> str:
    """This project's version, and the beginning of a digest of the code that measures."""
    digest = hashlib.sha256()
    for file in sorted((*MEASURING.glob("*.py"), *MEASURING.glob("hosts/*.py"))):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return f"{__version__} (code {digest.hexdigest()[:12]})"


def another(on: str, host: str, found: str) -> Missing:
    """The refusal of a host with another version, or with none."""
    # why: a host with other code measures in another way
    return Missing(
        f"--on {on}: {host} has sm120-overlay {found}, expected {version()}.",
        "Install this version for the Python that runs there.",
    )
