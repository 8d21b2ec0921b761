"""What every patch's regression test stands on: the tree it is to judge.

`verify --red-green` runs each test in a process of its own, once per tree, and names the tree in
SM120_OVERLAY_TREE: a directory laid out as pip installs it (`sglang/…` or `flashinfer/…` with its dist-info),
holding the pin with some prefix of the series applied.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sm120_overlay.serving import rig

TREE = "SM120_OVERLAY_TREE"

# Without a tree there is nothing to judge: `tests/test_red_green.py` runs these, red and green, on every line.
collect_ignore_glob = [] if TREE in os.environ else ["test_*.py"]


@pytest.fixture(scope="session")
def tree() -> Path:
    """The tree under judgement; it is read-only for tests."""
    return Path(os.environ[TREE])


@pytest.fixture(scope="session")
def standing(tree: Path) -> rig.Standing:
    """SGLang's real code from the tree, on the CPU rig; what it stands on is printed."""
    from sm120_overlay.serving import rig  # torch: seconds that a compile proof need not pay

    loaded = rig.load(tree)
    print(loaded.report())
    return loaded
