"""Every patch of every line: its own test fails without it, by an assertion, and passes with it."""

from __future__ import annotations

import os
import re
from functools import cache

import pytest

from sm120_overlay import report
from sm120_overlay.queue.home import find_home
from sm120_overlay.queue.lint import lint_answers, lint_line
from sm120_overlay.queue.pins import Line, Pin, load_lines
from sm120_overlay.queue.proof import UNUSED, Proof, prove
from sm120_overlay.queue.series import load_series
from sm120_overlay.serving.nvcc.toolchain import describe_toolchain

HOME = find_home()
LINES = load_lines(HOME.pins)
PATCHES = [(pin, slug) for pin in LINES.all_pins() for slug in load_series(HOME, pin).slugs]


@cache
def proofs_of(pin: Pin) -> dict[str, Proof]:
    """Slug → proof, of a whole series at once: two trials at a time, and never one core waiting for the other."""
    series = load_series(HOME, pin)
    proofs = prove(HOME, series, series.slugs, {"nvcc": describe_toolchain()}, os.cpu_count() or 2, report.say)
    return {proof.slug: proof for proof in proofs}


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize(("pin", "slug"), PATCHES, ids=[f"{pin.line}-{slug}" for pin, slug in PATCHES])
def test_a_patch_is_red_without_and_green_with(pin: Pin, slug: str) -> None:
    proof = proofs_of(pin)[slug]
    assert proof.red.ok, proof.red
    assert proof.green.ok, proof.green


@pytest.mark.parametrize("line", LINES.lines, ids=lambda line: line.name)
def test_the_series_of_a_line_pass_lint(line: Line) -> None:
    assert (*lint_line(HOME, line), *lint_answers(HOME, LINES, line)) == ()


def test_the_readme_says_of_every_patch_the_evidence_that_the_patch_says() -> None:
    words = {"compiled": "compiled", "executed-cpu": "executed on a CPU", "reasoned": "reasoned"}
    rows = re.findall(r"^\|.*\| `([a-z0-9-]+)` \|.*\| ([^|]+) \|$", (HOME.root / "README.md").read_text(), re.MULTILINE)
    carried = {
        patch.slug: words[(patch.trailer("Evidence") or "").split()[0]]
        for pin in LINES.all_pins()
        for patch in load_series(HOME, pin).patches
    }
    assert dict(rows) == carried


def test_no_patch_is_judged_with_code_that_its_verdict_is_not_named_by() -> None:
    names = "|".join(name.removesuffix(".py") for name in sorted(UNUSED))
    tests = (HOME.root / "tests" / "patches").rglob("*.py")
    assert [str(file) for file in tests if re.search(rf"\bserving\b.*\b({names})\b", file.read_text())] == []
