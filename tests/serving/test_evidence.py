"""The evidence of a run on a card, on recorded answers: what they count for, and that nothing names the machine."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sm120_overlay.errors import Missing
from sm120_overlay.serving import evidence
from sm120_overlay.serving.evidence import Asked, Machine, Ran, Result

PRO = Machine(
    {"name": "NVIDIA RTX PRO 6000 Blackwell Server Edition", "capability": [12, 0], "memory_mib": 97249},
    {"driver": "580.95.05", "cuda": "12.8", "torch": "2.9.1+cu128", "sglang": "0.5.9"},
)
SPARK = Machine({"name": "NVIDIA GB10", "capability": [12, 1]}, {})
B200 = Machine({"name": "NVIDIA B200", "capability": [10, 0]}, {})
TARGETS = (Ran("sglang", "0.5.9", "ab" * 32, "ab" * 32, True), Ran("flashinfer", "0.6.3", "cd" * 32, "cd" * 32, True))


def result(outcome: str, slug: str = "pdl-switch") -> Result:
    return Result(slug, "flashinfer", "applied", outcome, "a sentence", 1.5)


@pytest.mark.parametrize("machine", [PRO, SPARK])
def test_shown_on_sm12x_with_the_whole_series_is_a_full_yes(machine: Machine) -> None:
    results = (result("shown"), result("not applicable"))
    assert evidence.all_shown(machine, TARGETS, (), results)
    assert evidence.headline(machine, TARGETS, (), results).endswith(": 1 shown, 1 not applicable")


@pytest.mark.parametrize("outcome", ["ran", "not shown", "failed"])
def test_one_patch_that_is_not_shown_is_no_yes(outcome: str) -> None:
    results = (result("shown"), result(outcome))
    assert not evidence.all_shown(PRO, TARGETS, (), results)
    assert f"1 {outcome}" in evidence.headline(PRO, TARGETS, (), results)


def test_a_target_that_differs_or_strange_versions_or_nothing_shown_is_no_yes() -> None:
    shown = (result("shown"),)
    drifted = (replace(TARGETS[0], equal=False), TARGETS[1])
    assert not evidence.all_shown(PRO, drifted, (), shown)
    assert "sglang is NOT the series" in evidence.headline(PRO, drifted, (), shown)
    assert not evidence.all_shown(PRO, TARGETS, ("torch 2.11.0 (expected 2.9.1)",), shown)
    assert not evidence.all_shown(PRO, TARGETS, (), (result("not applicable"),))
    assert not evidence.all_shown(PRO, TARGETS, (), ())


def test_a_card_of_another_kind_is_named_as_one_and_counts_nothing() -> None:
    said = evidence.evidence("v0.5.9", B200, TARGETS, (), (result("ran"),))
    assert said["says"] == "of another kind: NVIDIA B200 (10,0); says nothing about SM120"
    assert (said["sm12x"], said["all_shown"]) == (False, False)
    assert evidence.judged("applied", False, "shown", "x") == ("ran", "x")
    assert evidence.judged("applied", False, "failed", "x") == ("failed", "x")
    assert evidence.judged("applied", True, "shown", "x") == ("shown", "x")


@pytest.mark.parametrize("state", ["pending", "drifted", "interrupted"])
@pytest.mark.parametrize("outcome", ["shown", "failed"])
def test_an_answer_without_the_patch_shows_nothing_of_it_but_is_kept(state: str, outcome: str) -> None:
    judged, said = evidence.judged(state, True, outcome, "3 of 400 have a NaN")
    assert judged == "not shown"
    assert state in said
    assert "3 of 400 have a NaN" in said


PRIVATE = ["node17.cluster", "alice", "node17"]
RAW = {
    "No such file: /home/alice/.cache/flashinfer/norm.so": "No such file: (path)",
    "in '/opt/venv/lib' (see ~/x/y.log)": "in '(path)' (see (path))",
    "device GPU-0a1b2c3d-1111-2222-3333-0123456789ab fell off": "device (id) fell off",
    "node17.cluster refused 10.0.12.7": "(name) refused (address)",
    "alice's malice": "(name)'s malice",
    "n/a, 3/4 of 16 tok/s": "n/a, 3/4 of 16 tok/s",
    "relative by 0.02; fraction 0.8, 2 x 400 launches": "relative by 0.02; fraction 0.8, 2 x 400 launches",
}


@pytest.mark.parametrize("raw", RAW)
def test_a_sentence_loses_what_names_the_machine_and_nothing_else(raw: str) -> None:
    assert evidence.scrubbed(raw, PRIVATE) == RAW[raw]


def test_this_machines_own_names_are_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-box-7.example.org")
    monkeypatch.setattr("getpass.getuser", lambda: "mallory")
    assert evidence.scrubbed("mallory on gpu-box-7.example.org, gpu-box-7") == "(name) on (name), (name)"


def test_a_user_without_a_name_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 1000")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert isinstance(evidence.private_words(), list)


def test_the_files_name_is_of_the_digests_and_the_card() -> None:
    name = evidence.file_name(PRO, TARGETS)
    assert name.endswith("-nvidia-rtx-pro-6000-blackwell-server-edition.json")
    assert name == evidence.file_name(PRO, TARGETS[::-1])
    assert name != evidence.file_name(PRO, (TARGETS[0], replace(TARGETS[1], digest="ef" * 32)))


def test_the_file_holds_all_that_it_stands_on_and_is_json() -> None:
    said = evidence.evidence("v0.5.9", PRO, TARGETS, (), (result("shown"),))
    assert json.loads(json.dumps(said)) == said
    assert list(said) == [
        "schema", "says", "sm12x", "all_shown", "line", "card", "software", "targets", "misfits", "results"
    ]  # fmt: skip
    assert said["targets"][0]["equal"]
    assert said["software"]["driver"] == "580.95.05"


def runner(folder: Path, text: str) -> Path:
    file = folder / "run.py"
    file.write_text("import json, os, sys, time\n" + text)
    return file


def ask(folder: Path, text: str, limit_s: int = 60) -> Result:
    checked = Asked("pdl-switch", "flashinfer", "applied", True)
    return evidence.run_check(sys.executable, runner(folder, text), checked, True, limit_s)


SAY = 'print("noise"); print("\\nsm120-overlay: " + json.dumps({"outcome": "shown", "said": "400 of 400"}))\n'


def test_the_last_answer_among_noise_counts(tmp_path: Path) -> None:
    found = ask(tmp_path, SAY.replace("shown", "failed") + SAY)
    assert (found.outcome, found.said) == ("shown", "400 of 400")


@pytest.mark.parametrize(
    ("text", "outcome", "part"),
    [
        ("time.sleep(60)", "not shown", "did not end within 1 s"),
        (SAY + "os.kill(os.getpid(), 11)", "failed", "died of SIGSEGV"),
        ("sys.exit('no driver in /usr/lib')", "not shown", "exit code 1 (no driver in (path))"),
        ('print("sm120-overlay: {broken")', "not shown", "exit code 0"),
        ('print("sm120-overlay: [1]")', "not shown", "exit code 0"),
        ('print("sm120-overlay: {}")', "not shown", "answers in another form"),
    ],
)
def test_a_process_that_does_not_answer_shows_nothing(tmp_path: Path, text: str, outcome: str, part: str) -> None:
    found = ask(tmp_path, text, limit_s=1 if "sleep" in text else 60)
    assert found.outcome == outcome
    assert part in found.said


def test_an_interpreter_that_does_not_start_is_missing(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="does not start") as error:
        evidence.ask_machine(str(tmp_path / "python"), tmp_path / "run.py")
    assert "--installed" in error.value.todo


def test_a_signal_without_a_name_is_its_number() -> None:
    assert evidence._signal(200) == "signal 200"
