"""Whatever the command line is, a verb answers in sentences and with an exit code it has promised."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sm120_overlay.cli import VERBS

from ..queue.scenes import snapshot
from ..queue.toy import Toy
from .spoken import every_option, options_of, speak, wrong

# What a shell can hand over, and no program expects.
ODD = {
    "empty": "",
    "a space": " ",
    "not UTF-8": "\udcff\udcfe",
    "a NUL": "a\0b",
    "a long name": "x" * 5000,
    "a long path": "x/" * 5000,
    "a line end": "a\nb",
    "an escape": "\x1b[31mred",
    "a format": "{0} %s $HOME",
    "a tilde of no one": "~no-such-user-of-ours/x",
    "a dash": "-",
    "a device": "/dev/null",
    "a folder of the system": "/proc/self/fd",
    "the root": "/",
}
OPTIONS = list(every_option())
NAMES = [f"{verb} {option.option_strings[0]}" for verb, option in OPTIONS]
VALUED = [number for number, (_, option) in enumerate(OPTIONS) if option.nargs != 0]
HARMLESS = {
    "apply": ["--dry-run"],
    "export": ["--check"],
    "adopt": ["--dry-run"],
    "rebase": ["--dry-run"],
    "upstream": ["--dry-run"],
}
CONTRADICTIONS = (
    ["apply", "--installed", "--into", "x"],
    ["apply", "x", "--into", "y"],
    ["apply", "x", "x"],
    ["apply", "x", "--source", "pypi"],
    ["apply", "--installed", "--source", "git"],
    ["apply", "--reverse", "--through", "right-answer"],
    ["apply", "--reverse", "--without", "right-answer"],
    ["apply", "--only", "gear", "--through", "right-answer"],
    ["apply", "--only", "nothing"],
    ["status", "--line", "v9"],
    ["verify", "--red-green", "no-such-patch"],
    ["verify", "--red-green", "--through", "right-answer"],
    ["verify", "--jobs", "0"],
    ["verify", "--jobs", "many"],
    ["status", "--through", "no-such-patch"],
    ["status", "--jobs", "2"],
    ["lint", "x"],
)


@pytest.fixture(autouse=True)
def in_an_empty_folder(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where fresh checkouts would go; and nothing can be fetched, whatever is asked for."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def check(*arguments: str) -> int:
    verb, *rest = arguments
    plain, as_json = speak(verb, *rest), speak(verb, "--json", *rest)
    assert wrong(plain, as_json=False) is None, (arguments, plain)
    assert wrong(as_json, as_json=True) is None, (arguments, as_json)
    assert plain.code == as_json.code
    return plain.code


@pytest.mark.parametrize(
    "arguments", [[], ["-h"], ["--version"], [""], ["no-such-verb"], ["a\0b"], ["\udcff"], ["--json"]]
)
def test_without_a_verb_there_is_an_answer_too(arguments: list[str]) -> None:
    said = speak(*arguments)
    assert said.code in (0, 2)
    assert said.out or "\n  → " in said.err


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_an_odd_name_for_a_target_is_an_answer(verb: str, odd: str) -> None:
    assert check(verb, *HARMLESS.get(verb, []), odd) != 0


@pytest.mark.parametrize("verb", VERBS)
def test_an_option_that_there_is_not_is_a_usage_error(verb: str) -> None:
    for argument in ("--no-such-option", "--no-such-option=1", "-x", "--jsonn", "--lin", "--=", "--json=yes"):
        assert check(verb, argument) == 2


@pytest.mark.parametrize(("verb", "option"), OPTIONS, ids=NAMES)
def test_an_option_with_an_odd_value_is_an_answer(verb: str, option: argparse.Action) -> None:
    name = option.option_strings[0]
    for odd in ODD.values() if option.nargs != 0 else ["1"]:
        check(verb, *HARMLESS.get(verb, []), f"{name}={odd}")
    if option.nargs is None:
        assert check(verb, name) == 2, "its value is missing"
    check(verb, *HARMLESS.get(verb, []), name, *(["x"] if option.nargs is None else []), "--", "-x")


@pytest.mark.parametrize("number", VALUED, ids=NAMES.__getitem__)
def test_an_empty_value_never_stands_for_the_default(number: int) -> None:
    verb, option = OPTIONS[number]
    name = option.option_strings[0]
    assert check(verb, f"{name}=") == 2
    assert check(verb, name, "") == 2


@pytest.mark.parametrize("verb", VERBS)
def test_an_empty_name_is_not_the_current_folder(toy: Toy, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = toy.clone()
    monkeypatch.chdir(clone)
    before = snapshot(clone, skip=())
    assert check(verb, "") == 2
    assert snapshot(clone, skip=()) == before


def test_a_path_that_is_not_utf8_can_be_shown() -> None:
    said = speak("apply", "--dry-run", "--into", "\udcff", errors="strict")
    assert said.code == 0


@pytest.mark.parametrize("arguments", CONTRADICTIONS, ids=" ".join)
def test_options_that_contradict_each_other_are_a_usage_error(arguments: list[str]) -> None:
    assert check(*arguments) == 2


def command_lines(toy: Toy, verb: str) -> st.SearchStrategy[list[str]]:
    """Arguments of a verb made of its real options, of values that fit and of values that do not."""
    names = [option.option_strings[0] for option in options_of(verb)]
    names.remove("--red-green") if "--red-green" in names else None  # it runs tests
    values = [*ODD.values(), "v1", "toy", "gear", "right-answer", "more-gears", "pypi", str(toy.root)]
    return st.lists(st.sampled_from([*names, *names, *values]), max_size=8)


@pytest.mark.parametrize("verb", VERBS)
def test_any_command_line_of_real_options_is_an_answer_and_changes_nothing(toy: Toy, verb: str) -> None:
    before = snapshot(toy.root)

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(command_lines(toy, verb))
    def say(arguments: list[str]) -> None:
        check(verb, *arguments, *HARMLESS.get(verb, []))

    say()
    assert snapshot(toy.root) == before
