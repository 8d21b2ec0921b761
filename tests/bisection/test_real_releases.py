"""End to end on SGLang's own releases: which of them began to take FlashInfer's CUTLASS MoE on SM120?"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from ..queue.scenes import ask

ASK = Path(__file__).with_name("ask_moe.py")


@pytest.mark.slow
@pytest.mark.network
def test_the_release_that_began_to_take_cutlass_for_fp4_is_found(tmp_path: Path) -> None:
    """0.5.9 to 0.5.12.post1 leave "auto" there, 0.5.13 and later name it (each release was asked, once, by hand)."""
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(ASK))} {{path}}"
    answer = ask(
        "bisect", "run", "sglang", "0.5.12..0.5.13.post1", "--releases", "--no-series", "--session", tmp_path / "one",
        "--cmd", command, "--metric", r"regex:^cutlass (\d)", "--scale", "exact",
    )  # fmt: skip
    assert answer.code == 0, answer
    (culprit,) = answer.said["culprits"]
    assert [change["commit"] for change in culprit["changes"]] == ["0.5.13"]
    assert (culprit["before"]["mean"], culprit["after"]["mean"]) == (0.0, 1.0)
    assert len(answer.said["runs"]) == 4
    assert any(pin["distribution"] == "flashinfer-python" for pin in culprit["changes"][0]["moved_pins"])
