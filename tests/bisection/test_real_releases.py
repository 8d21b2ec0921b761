"""End to end on SGLang's own releases: which of them began to take FlashInfer's CUTLASS MoE on SM120?

Four wheels, 39 MB, and with our series that of the pin, 5 MB; they are downloaded once into the suite's cache.
"""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path

import pytest

from ..queue.scenes import Answer, ask

ASK = Path(__file__).with_name("ask_moe.py")


@pytest.fixture(autouse=True)
def own_cache() -> None:
    """Not a cache of its own: the wheels are those of the whole suite."""


def asked(span: str, folder: Path, *options: str) -> Answer:
    """The answer about these releases, measured with upstream's own code on a CPU."""
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(ASK))} {{path}}"
    return ask(
        "bisect", "run", "sglang", span, "--releases", "--session", folder, "--cmd", command,
        "--metric", r"regex:^cutlass (\d)", "--scale", "exact", *options,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.network
def test_the_release_that_began_to_take_cutlass_for_fp4_is_found(tmp_path: Path) -> None:
    """0.5.9 to 0.5.12.post1 leave "auto" there, 0.5.13 and later name it (each release was asked, once, by hand)."""
    answer = asked("0.5.12..0.5.13.post1", tmp_path / "one", "--no-series")
    assert answer.code == 0, answer
    (culprit,) = answer.said["culprits"]
    assert [change["commit"] for change in culprit["changes"]] == ["0.5.13"]
    assert (culprit["before"]["mean"], culprit["after"]["mean"]) == (0.0, 1.0)
    programs = 1 + max(one["program"] for one in answer.said["commits"])
    assert len(answer.said["runs"]) <= 4 + math.ceil(math.log2(programs - 1))  # both ends twice, then halves
    assert any(pin["distribution"] == "flashinfer-python" for pin in culprit["changes"][0]["moved_pins"])


@pytest.mark.slow
@pytest.mark.network
def test_with_our_series_on_every_release_the_same_question_is_answered_by_no_change(tmp_path: Path) -> None:
    """moe-backend-auto does on 0.5.12 what upstream does from 0.5.13 on; what goes onto none is left out, and said."""
    answer = asked("0.5.12..0.5.13.post1", tmp_path / "two", "--on-conflict", "drop")
    assert (answer.code, answer.said["status"], answer.said["line"]) == (1, "no-change", "v0.5.9"), answer
    assert [run["value"] for run in answer.said["runs"]] == [1.0] * 4
    for release in answer.said["commits"]:
        here = {patch["slug"]: (patch["state"], patch["left_out"]) for patch in release["patches"]}
        assert here["moe-backend-auto"] == here["allreduce-fusion-guard"] == ("clean", False)
        assert here["ep-memory-defaults"] == here["overlay-manifest"] == ("conflict", True)
