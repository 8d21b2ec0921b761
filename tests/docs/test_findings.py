"""docs/findings.md speaks of patches that there are: a slug in it is carried, recorded as absent, or said to come."""

from __future__ import annotations

import re

from sm120_overlay.queue.home import find_home
from sm120_overlay.queue.pins import load_lines

from .patches import entries
from .source import ROOT

TO_COME = {"decode-padding-mask"}


def test_every_slug_that_it_names_is_known() -> None:
    text = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", text))
    home = find_home()
    known = {entry.slug for entry in entries(home, load_lines(home.pins).lines)}
    assert len(named) > 15
    assert named - known <= TO_COME
    assert not TO_COME & known, "it is there now: findings.md says that it is to come"
