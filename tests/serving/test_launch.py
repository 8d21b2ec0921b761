"""What a server launch of SGLang loads, on its real history: the nine commits of the 353 → 718 tok/s story."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120_overlay.bisection.history import Reach
from sm120_overlay.bisection.reach import judge
from sm120_overlay.queue.git import Repository, commit_exists, run
from sm120_overlay.serving.launch import flashinfer, launch_of, sglang

OLD, NEW = "bba2fc49a", "3207427d6"
CULLED = {"3207427d6", "d73f06f09", "d07e8aa4a", "e21fc78db", "19aa19b11"}
KEPT = {"963def7f2", "48642d538", "82a0bafc1", "0be30d4b0"}
GLM = "GlmMoeDsaForCausalLM"


@pytest.fixture
def history(request: pytest.FixtureRequest) -> Repository:
    """SGLang's history with the nine commits; skipped, saying so, where it is not at hand."""
    place = request.config.getoption("--sglang-repo")
    if not place:
        pytest.skip("upstream's history is not at hand: name it with --sglang-repo or $SM120_OVERLAY_SGLANG")
    found = Repository(Path(place))
    if not all(commit_exists(found, commit) for commit in (OLD, NEW)):
        pytest.skip(f"{place} does not hold {OLD} and {NEW}")
    return found


def test_five_of_the_nine_commits_cannot_be_reached_from_a_launch_and_four_can(history: Repository) -> None:
    commits = run(history, "rev-list", "--reverse", "--first-parent", "--abbrev-commit", "--abbrev=9", f"{OLD}..{NEW}")
    names = commits.decode().split()
    judged = dict(zip(names, judge(history, [OLD, *names], sglang([GLM])), strict=True))
    assert {name for name, one in judged.items() if one.reach is Reach.NONE} == CULLED
    assert {name for name, one in judged.items() if one.reach is not Reach.NONE} == KEPT
    assert "sglang.launch_server does not reach any module of sglang.multimodal_gen" in judged["d73f06f09"].why
    assert "(only sglang.cli.generate, sglang.cli.serve, sglang.cli.utils and" in judged["d73f06f09"].why
    assert "any module of sglang.jit_kernel.diffusion" in judged["19aa19b11"].why
    assert "loaded at the start" in judged["0be30d4b0"].why


def test_a_command_that_runs_the_diffusion_server_reaches_its_commits(history: Repository) -> None:
    (judged,) = judge(history, [f"{NEW}^^", f"{NEW}^"], sglang(also=["sglang.cli.serve"]))
    assert judged.reach is Reach.LAZY
    assert "imports it inside a function" in judged.why


def test_another_models_file_is_lazy_and_the_models_own_is_loaded(history: Repository) -> None:
    grok, glm = (
        run(history, "log", "-1", "--first-parent", "--format=%H", NEW, "--", f"python/sglang/srt/models/{name}.py")
        .decode()
        .strip()
        for name in ("grok", "glm4_moe")
    )
    others, _, own = judge(history, [f"{grok}^", grok, f"{glm}^", glm], sglang([GLM]))
    assert others.reach is Reach.LAZY
    assert "sglang.srt.models.registry imports it with all of sglang.srt.models" in others.why
    assert own.reach is Reach.LOADED
    assert f"sglang.srt.models.registry imports it, which serves {GLM}" in own.why


def test_the_rules_follow_where_packages_begin() -> None:
    assert sglang(folder="").build == ("pyproject.toml", "setup.py", "MANIFEST.in")
    assert sglang().build[0] == "python/pyproject.toml"


def test_an_upstream_is_found_by_its_name_and_another_has_no_rules() -> None:
    assert launch_of("sglang", [GLM], ["sglang.bench_serving"]) == sglang([GLM], ["sglang.bench_serving"])
    assert launch_of("sglang", folder=".") == sglang(folder="")
    assert launch_of("flashinfer") == flashinfer()
    assert launch_of("toy") is None


def test_kernels_of_flashinfer_are_compiled_on_demand() -> None:
    rules = flashinfer()
    assert dict(rules.data)["csrc"] == "it may be compiled when a kernel is first used"
    assert rules.whole == ("flashinfer",)
