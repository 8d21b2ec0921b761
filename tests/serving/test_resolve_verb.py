"""The verb: both sides in one answer, its exit codes, its refusals, and the patch behind each difference."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay import report
from sm120_overlay.cli import main
from sm120_overlay.queue.home import find_home
from sm120_overlay.queue.pins import load_lines
from sm120_overlay.queue.proof import proof_tree
from sm120_overlay.queue.series import Series, load_series
from sm120_overlay.queue.wheels import fetch_wheel
from sm120_overlay.serving import asking
from sm120_overlay.serving.asking.question import checkpoint_files
from sm120_overlay.serving.rig.errors import RigError
from sm120_overlay.verbs import _explained, resolve

from .conftest import LINE

Ask = Callable[..., dict[str, Any]]
CALL = ("resolve", "--line", LINE, "--model", "glm-5-nvfp4", "--tp", "8")
FAIL = {"stage": "loader", "kind": "ValueError", "sentence": "Not this one.", "where": "sglang/x.py:7"}
FACTS = {
    "memory_mib": 102_400, "tp": 8, "ep": 8, "dp": 1, "pp": 1, "moe_dp": 1, "dp_attention": False, "fraction": 0.8,
    "chunk": 8192, "graph": 256, "running": 512, "max_prefill": 16384, "context": 131_068, "page": 64,
    "draft_tokens": 0, "speculative": None, "runner": "auto", "experts": 256, "intermediate": 2048,
    "kv_counted": 1 << 20, "kv_taken": 1 << 20, "weights": {"loading": 1 << 35, "loaded": 1 << 35, "experts": 1 << 34},
}  # fmt: skip


def told(**changes: Any) -> dict[str, Any]:
    said = [{"level": "warning", "text": "Both say this."}, {"level": "info", "text": "Nobody need know."}]
    base = {"version": "0.5.9", "choices": {"moe_runner": "auto", "page_size": 64}, "facts": FACTS, "fails": []}
    return {**base, "arguments": {}, "unknown": [], "doubts": [], "said": said, **changes}


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[int]]:
    """Puts these answers in the rig's place, for the pin, the series and any prefix; gives the lengths asked for."""

    def put(pinned: dict[str, Any] | Exception, ours: dict[str, Any] | None = None, at: int = 1) -> list[int]:
        asked: list[int] = []

        def answers(trees: Sequence[Path], *_: Any, **__: Any) -> list[dict[str, Any]]:
            if isinstance(pinned, Exception):
                raise pinned
            lengths = [int(tree.name) for tree in trees]
            asked.extend(lengths)
            return [(ours or pinned) if length >= at else pinned for length in lengths]

        def tree(series: Series, _wheel: Path) -> Path:
            return tmp_path / str(len(series.patches))

        monkeypatch.setattr(resolve, "answers", answers)
        monkeypatch.setattr(resolve, "fetch_wheel", lambda pin, say: tmp_path)
        monkeypatch.setattr(resolve, "proof_tree", tree)
        return asked

    return put


def as_json(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    code = main([*CALL, "--json", *more])
    return code, json.loads(capsys.readouterr().out)


def test_both_sides_stand_in_one_table_and_what_changes_is_marked(
    answered: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    line = {"level": "info", "text": "Chosen on sm120."}
    changed = told(choices={"moe_runner": "flashinfer_cutlass", "page_size": 64}, said=[told()["said"][0], line])
    answered(told(fails=[FAIL], doubts=["It is dense."]), changed)
    assert main([*CALL]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    assert ["MoE", "runner", "auto", "flashinfer_cutlass", "changed"] in rows
    assert ["page", "size", "64", "64"] in rows
    assert "as pinned  loader  sglang/x.py:7  Not this one." in out
    assert "as pinned  doubt   -              It is dense." in out
    assert "both             Both say this." in out
    assert "with the series  Chosen on sm120." in out
    assert "as pinned        Nobody need know." in out
    assert "as pinned: would NOT start: Not this one." in out
    assert "with the series: would start, as far as can be told without a GPU" in out


def test_it_fails_where_the_server_would_not_start_with_the_series(
    answered: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answered(told(), told(fails=[FAIL]))
    code, said = as_json(capsys)
    assert (code, said["ok"], said["pinned"]["starts"], said["series"]["starts"]) == (1, False, True, False)
    answered(told(), told(facts={**FACTS, "fraction": 0.1}))
    code, said = as_json(capsys)
    assert (code, said["ok"]) == (1, False)
    assert "no room for a KV cache" in said["series"]["plan"]["crashes"][0]


def test_a_doubt_is_said_and_is_no_refusal(answered: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    answered(told(), told(doubts=["It is dense."], unknown=[{"stage": "model", "why": "no file"}]))
    assert main([*CALL]) == 0
    out = capsys.readouterr().out
    assert "would start, as far as was asked: model not asked; but It is dense." in out
    assert "not asked: no file" in out


def test_the_heading_counts_the_gpus_and_a_fraction_that_is_none_leaves_no_amount(
    answered: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answered(told(), told(facts={**FACTS, "dp": 2, "fraction": 2.0}))
    assert main([*CALL]) == 1
    out = capsys.readouterr().out
    assert "glm-5-nvfp4 on 16 GPUs, " in out
    left = next(line.split() for line in out.splitlines() if line.split()[:1] == ["left"] and "KV" not in line)
    assert left[-1] == "-"
    answered(told())
    assert main([*CALL]) == 0
    assert "GPUs, " not in capsys.readouterr().out


def test_the_json_has_what_the_contract_says(answered: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    answered(told(), told(choices={"moe_runner": "x"}))
    code, said = as_json(capsys, "--gpu", "b200", "--", "--page-size", "64")
    assert code == 0
    head = {key: said[key] for key in ("schema", "verb", "line", "ok", "targets")}
    assert head == {"schema": 1, "verb": "resolve", "line": LINE, "ok": True, "targets": []}
    flags = ["--tp-size", "8", "--page-size", "64"]
    assert said["question"] == {"model": "glm-5-nvfp4", "gpu": "b200", "flags": flags}
    assert said["rows"] == [
        {"choice": "moe_runner", "pinned": "auto", "series": "x", "changed": True},
        {"choice": "page_size", "pinned": 64, "series": None, "changed": False},
    ]
    side = {"starts", "version", "choices", "arguments", "fails", "doubts", "unknown", "said", "facts", "plan"}
    assert set(said["pinned"]) == side
    assert set(said["series"]) == {*side, "digest", "patches"}
    assert set(said["series"]["plan"]) == {"splits", "memory", "crashes"}
    assert "explained" not in said


def test_other_arguments_that_differ_are_named_with_their_patch(
    answered: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    last = whole().slugs[-1]
    before = {"page_size": 1, "nccl_port": None, "oddity": False}
    after = {"page_size": 64, "nccl_port": None, "oddity": True, "oea_k0": 5}
    answered(told(arguments=before), told(arguments=after), len(whole().slugs))
    assert main([*CALL, "--explain"]) == 0
    table = capsys.readouterr().out.partition("other arguments that differ\n")[2].partition("\n\n")[0]
    rows = [line.split() for line in table.splitlines()[1:]]
    assert rows == [["oddity", "False", "True", last], ["oea_k0", "not", "there", "5", last]]


def whole() -> Series:
    home = find_home()
    return load_series(home, load_lines(home.pins).line(LINE).pin("sglang"))


def test_explain_names_the_patch_behind_each_difference(
    answered: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    slugs, at = whole().slugs, len(whole().slugs)
    changed = told(choices={"moe_runner": "flashinfer_cutlass", "page_size": 64})
    asked = answered(told(fails=[FAIL]), changed, at)
    assert main([*CALL, "--explain"]) == 0
    out = capsys.readouterr().out
    assert f"flashinfer_cutlass  changed  {slugs[at - 1]}" in out
    assert f"Not this one.  {slugs[at - 1]}" in out
    assert len(asked) == len(set(asked))
    code, said = as_json(capsys, "--explain")
    assert (code, said["explained"]) == (0, {"moe_runner": [slugs[at - 1]], "Not this one.": [slugs[at - 1]]})
    assert said["rows"][0]["patches"] == [slugs[at - 1]]


@pytest.mark.parametrize(
    "flips", [{3: "a"}, {1: "a", 16: "b"}, {2: "a", 3: "b", 4: "c"}, {5: "a", 9: "a", 10: "b"}, {}]
)
def test_halving_finds_every_patch_and_asks_no_length_twice(flips: dict[int, str]) -> None:
    """Row `x` of the prefixes becomes `flips[n]` with patch n; 16 patches."""
    patches = [replace(whole().patches[0], slug=f"p{number}") for number in range(1, 17)]
    series = replace(whole(), patches=tuple(patches))
    asked: list[int] = []

    def one(length: int) -> dict[str, Any]:
        seen = [flips[number] for number in sorted(flips) if number <= length]
        return {"choices": {"x": seen[-1] if seen else "-"}, "arguments": {}, "fails": [], "doubts": [], "said": []}

    def ask(lengths: Sequence[int]) -> list[dict[str, Any]]:
        asked.extend(lengths)
        return [one(length) for length in lengths]

    found = _explained.explained(series, [one(0), one(16)], ask)
    states = [one(length)["choices"]["x"] for length in range(17)]
    expected = [f"p{number}" for number in range(1, 17) if states[number] != states[number - 1]]
    assert found == ({"x": expected} if expected else {})
    assert len(asked) == len(set(asked)) <= 4 * max(1, len(expected))


def test_patches_that_undo_each_other_between_two_lengths_are_passed_over() -> None:
    patches = tuple(replace(whole().patches[0], slug=f"p{number}") for number in range(1, 5))

    def ask(lengths: Sequence[int]) -> list[dict[str, Any]]:
        return [
            {"choices": {"x": "abcbb"[length]}, "arguments": {}, "fails": [], "doubts": [], "said": []}
            for length in lengths
        ]

    found = _explained.explained(replace(whole(), patches=patches), ask([0, 4]), ask)
    assert found == {"x": ["p1", "p2", "p3"]}
    again = _explained.explained(replace(whole(), patches=patches), [*ask([0]), *ask([0])], ask)
    assert again == {}


def test_an_empty_series_explains_nothing() -> None:
    answer: dict[str, Any] = {"choices": {}, "arguments": {}, "fails": [], "doubts": [], "said": []}
    assert _explained.explained(replace(whole(), patches=()), [answer, answer], lambda lengths: []) == {}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "no-such-model"], "is neither a bundled model"),
        (["--model", "glm-5-nvfp4", "--gpu", "abacus"], "invalid choice: 'abacus'"),
        (["--model", "glm-5-nvfp4", "--tp", "0"], "expected a number of at least 1"),
        (["--model", "glm-5-nvfp4", "--tp=99999999999999999999"], "expected at most 4096"),
        (["--model", "glm-5-nvfp4", "--tp", "8", "--", "--tp", "4"], "--tp was given, and the same size once more"),
        (["--model", "glm-5-nvfp4", "--ep", "8", "--", "--expert-par=4"], "--ep was given, and the same size"),
        (["--model", "glm-5-nvfp4", "--line", "v9"], "v9"),
        (["--model", "glm-5-nvfp4", "--", "--model-path=x"], "among the server's flags"),
        (["--model", "glm-5-nvfp4", "--", "--model-pa", "x"], "among the server's flags"),
        ([], "--model"),
    ],
)
def test_a_call_that_is_wrong_is_a_usage_error(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resolve", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_a_flag_that_the_servers_own_parser_does_not_know_is_a_usage_error(
    answered: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    parser = {**FAIL, "stage": "flags", "sentence": "unrecognized arguments: --foo"}
    answered(told(), told(choices={}, fails=[parser]))
    assert main([*CALL, "--", "--foo"]) == 2
    assert "SGLang 0.5.9: unrecognized arguments: --foo.\n" in capsys.readouterr().err
    answered(told(choices={}, fails=[parser]), told())  # a flag that the series brings
    assert main([*CALL, "--", "--foo"]) == 0


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (asking.Absent("torch"), "The module torch is not installed for "),
        (RigError("The rig does not know the card."), "The rig does not know the card.\n"),
    ],
)
def test_what_the_rig_lacks_is_missing_and_how_to_get_it_is_said(
    answered: Callable[..., Any], capsys: pytest.CaptureFixture[str], error: Exception, says: str
) -> None:
    answered(error)
    assert main([*CALL]) == 4
    err = capsys.readouterr().err
    assert says in err
    assert ("[rig]" in err) == isinstance(error, asking.Absent)


def test_an_answer_without_a_choice_or_a_refusal_says_nothing_about_the_server(
    answered: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answered(told(), told(choices={}, unknown=[{"stage": "arguments", "why": "a stub would decide."}]))
    assert main([*CALL]) == 4
    assert "arguments: a stub would decide.\n" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.network
def test_the_whole_way_answers_for_glm_5_on_rtx_pro_6000(
    capsys: pytest.CaptureFixture[str], pinned: Ask, ours: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(trees: Sequence[Path], question: asking.Question, *_: Any, **__: Any) -> list[dict[str, Any]]:
        assert len({tree.name for tree in trees}) == 2
        return [ask("glm-5-nvfp4", *question.flags, card=question.card) for ask in (pinned, ours)]

    monkeypatch.setattr(resolve, "answers", answers)
    code, said = as_json(capsys, "--gpu", "rtx-pro-6000", "--ep", "8")
    rows = {row["choice"]: row for row in said["rows"]}
    assert (code, said["pinned"]["starts"], said["series"]["starts"]) == (0, False, True)
    assert {key: rows["moe_runner"][key] for key in ("pinned", "series", "changed")} == {
        "pinned": "auto", "series": "flashinfer_cutlass", "changed": True,
    }  # fmt: skip
    assert said["series"]["plan"]["memory"]["left"] > 0


@pytest.mark.slow
@pytest.mark.network
def test_a_real_patch_is_found_behind_its_difference(host: asking.Host) -> None:
    series, files = whole(), checkpoint_files("glm-5-nvfp4")
    question = asking.Question("rtx-pro-6000", files, ("--tp-size", "8", "--ep-size", "8"))
    at = series.slugs.index("moe-backend-auto")
    wheel = fetch_wheel(series.pin, report.say)
    trees = [proof_tree(replace(series, patches=series.patches[:length]), wheel) for length in (at, at + 1)]
    before, after = asking.answers(trees, question, lambda: host, cached=False)
    only = replace(series, patches=(series.patches[at],))
    behind = _explained.explained(only, [before, after], lambda lengths: [])
    assert behind["moe_runner"] == behind["quantization"] == ["moe-backend-auto"]
    assert "page_size" not in behind
