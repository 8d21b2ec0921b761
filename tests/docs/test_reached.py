"""Runs last: every refusal that the catalogue names was made by some test."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sm120_overlay.errors import OverlayError, UsageError
from sm120_overlay.queue.pins import Lines

from .errors import catalogue
from .reached import (
    MISSING,
    SPREAD,
    _unwritten,
    missing_part,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
    unreached,
)
from .source import ROOT


def sites(function: str) -> set[str]:
    return {refusal.where for refusal in catalogue() if refusal.function == function}


def test_a_refusal_that_is_made_here_is_noted_and_no_other_one() -> None:
    with pytest.raises(UsageError):
        Lines("v1", ()).line("v2")
    left = {refusal.where for refusal in unreached()}
    assert not sites("line") & left
    with pytest.raises(OverlayError):
        raise UsageError("made in a test", "which is no site")
    assert {refusal.where for refusal in unreached()} == left


def test_a_refusal_in_a_forked_child_is_noted_too() -> None:
    child = os.fork()
    if child == 0:
        try:
            Lines("v1", ()).line("v2")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert not sites("line") & {refusal.where for refusal in unreached()}


def test_a_refusal_for_want_of_room_is_noted_when_there_is_some() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(UsageError):
            Lines("v1", ()).line("v3")
        assert _unwritten
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    unreached()
    assert not _unwritten


def session(paths: set[Path], *args: str, **more: Any) -> Any:
    config = SimpleNamespace(args=list(args), **more)
    return SimpleNamespace(config=config, items=[SimpleNamespace(path=path) for path in paths])


def test_a_part_of_the_suite_is_known_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.docs.reached._left_out", [])
    every = set((ROOT / "tests").rglob("test_*.py"))
    assert missing_part(session(every, "tests")) is None
    assert "test_mail.py is not part" in str(missing_part(session(every - {ROOT / "tests/queue/test_mail.py"})))
    assert "chosen" in str(missing_part(session(every, "tests/queue/test_mail.py::test_one")))
    monkeypatch.setattr("tests.docs.reached._left_out", ["one"])
    assert "chosen" in str(missing_part(session(every)))


@pytest.mark.parametrize(("parts", "left", "fails"), [
    ([None, None], ["one"], True), ([None, "only some"], ["one"], False), ([None], [], False), ([], ["one"], False),
])  # fmt: skip
def test_who_spread_the_tests_over_processes_fails_the_whole_suite_for_a_refusal_that_none_reaches(
    parts: list[str | None], left: list[str], fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.docs.reached._parts", [])
    monkeypatch.setattr(
        "tests.docs.reached.unreached", lambda: [SimpleNamespace(where=one, sentence="") for one in left]
    )
    for part in parts:
        pytest_testnodedown(SimpleNamespace(workeroutput={MISSING: part}))
    ended, said = SimpleNamespace(config=SimpleNamespace(), exitstatus=0), list[str]()
    pytest_sessionfinish(ended)  # type: ignore[arg-type]
    pytest_terminal_summary(SimpleNamespace(write_line=lambda line, **_: said.append(line)))  # type: ignore[arg-type]
    assert (ended.exitstatus, bool(said)) == (int(fails), fails)


def test_a_process_that_died_has_not_seen_the_whole_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[str | None] = []
    monkeypatch.setattr("tests.docs.reached._parts", parts)
    pytest_testnodedown(SimpleNamespace())
    assert parts == ["a process that ran tests died"]


def test_every_refusal_is_reached(request: pytest.FixtureRequest) -> None:
    missing = SPREAD if hasattr(request.config, "workerinput") else missing_part(request.session)
    if missing:
        pytest.skip(f"whether every refusal is reached is seen by the whole suite alone: {missing}")
    left = [f"{refusal.where}: {refusal.sentence}" for refusal in unreached()]
    assert not left, "no test reaches:\n" + "\n".join(left)
