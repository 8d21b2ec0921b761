"""A session on disk: what was written is there, whatever cut the writing."""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm120_overlay.bisection.decision.nouns import Culprit, Level, Rules, Status, Verdict
from sm120_overlay.bisection.events import (
    BESIDE,
    UNDONE,
    Concluded,
    Driven,
    Ended,
    Event,
    Opened,
    Reverted,
    Ruled,
    Skipped,
    Started,
    Undoing,
    Voided,
    event_from,
    event_json,
    from_json,
)
from sm120_overlay.bisection.history import History, PatchState, Reach
from sm120_overlay.bisection.job import Cell, How, Metric, Outcome, Ran, Scale, Server
from sm120_overlay.bisection.journal import LOCK, NAME, append, held, read
from sm120_overlay.errors import Missing, Refused
from sm120_overlay.queue.carry import State

from .driven import room, toy_history, toy_opened

OPENED = toy_opened(toy_history())

numbers = st.floats(allow_nan=False)
counts = st.integers(0, 10**9)
texts = st.text(max_size=8)
levels = st.builds(Level, numbers, numbers, numbers, counts)
programs = st.lists(counts, min_size=1, max_size=3).map(tuple)
culprits = st.builds(Culprit, programs, numbers, levels, levels)
verdicts = st.builds(
    Verdict, st.sampled_from(Status), st.lists(culprits, max_size=2).map(tuple), levels, levels, levels, numbers, texts
)
runs = st.builds(
    Ran, counts, st.sampled_from(Outcome), st.none() | numbers, texts, st.none() | counts, counts, texts, numbers,
    numbers, numbers, texts,
)  # fmt: skip
metrics = st.builds(Metric, st.sampled_from(How), texts, texts, st.sampled_from(Scale))
servers = st.none() | st.builds(Server, texts, texts, numbers, numbers)
cells = st.builds(Cell, texts, metrics, texts, servers, numbers, numbers, st.dictionaries(texts, texts, max_size=2))
rules = st.builds(Rules, st.sampled_from(Scale), numbers, numbers, counts, counts, st.booleans(), numbers, counts)
histories = st.dictionaries(texts, st.none() | texts | st.lists(counts, max_size=2), max_size=2)
events = st.one_of(
    st.builds(Opened, texts, texts, texts, cells, rules, histories, terms=st.tuples(texts, texts), at=numbers),
    st.builds(Driven, counts, texts, numbers),
    st.builds(Started, counts, st.sampled_from([0, 3, UNDONE, BESIDE]), numbers),
    st.builds(Ended, counts, texts, runs),
    st.builds(Voided, counts, texts, st.booleans()),
    st.builds(Skipped, counts, texts, st.booleans(), texts),
    st.builds(Concluded, verdicts),
    st.builds(Reverted, st.sampled_from(Undoing), texts, texts),
    st.builds(Ruled, rules),
)


@given(events)
def test_an_event_comes_back_from_its_line_bit_for_bit(event: Event) -> None:
    line = json.dumps(event_json(event), allow_nan=False)
    assert repr(event_from(json.loads(line))) == repr(event)


def test_a_history_comes_back_from_its_session_as_it_was() -> None:
    short = toy_history(3)
    revision = replace(
        short.revisions[1], patches=(PatchState("hook", State.CONFLICT, True, "a.py"),), pins={"flashinfer": "1.2"}
    )
    turned, moved = (("hook", State.CLEAN, State.CONFLICT),), (("flashinfer", "1.1", "1.2"),)
    change = replace(short.changes[0], reach=Reach.LAZY, turned=turned, moved_pins=moved, undone=True, prior=0.1)
    history = History((short.revisions[0], revision, short.revisions[2]), (change, short.changes[1]))
    opened = event_from(json.loads(json.dumps(event_json(toy_opened(history)))))
    assert isinstance(opened, Opened)
    assert from_json(History, opened.history) == history


@pytest.mark.parametrize(
    "line",
    [
        "[]", "7", "{}", '{"event": "guess"}', '{"event": "start"}', '{"event": "start", "number": "1", "program": 2}',
        '{"event": "start", "number": true, "program": 2}', '{"event": "start", "number": 1, "program": 2, "x": 3}',
        '{"event": "run", "program": 1, "key": "", "ran": {"number": 1, "outcome": "fine"}}',
        '{"event": "run", "program": 1, "key": "", "ran": {"number": 1, "outcome": "measured", "value": "many"}}',
        '{"event": "verdict", "verdict": {"status": "found", "culprits": 3}}', "not json", "", "[" * 100_000,
    ],
)  # fmt: skip
def test_a_line_that_is_none_of_ours_is_refused_by_its_number(tmp_path: Path, line: str) -> None:
    with held(tmp_path) as (journal, _):
        append(journal, OPENED)
    with (tmp_path / NAME).open("a") as file:
        file.write(line + "\n" + json.dumps(event_json(Started(1, 0))) + "\n")
    with pytest.raises(Refused) as refused:
        read(tmp_path)
    assert refused.value.what.startswith(f"{tmp_path / NAME}:2: ")


def test_a_session_that_is_not_there_is_not_made_up(tmp_path: Path) -> None:
    with pytest.raises(Missing) as missing:
        read(tmp_path / "none")
    assert missing.value.what == f"{tmp_path / 'none' / NAME} is not there."
    assert not (tmp_path / "none").exists()


def test_a_journal_of_another_schema_is_refused(tmp_path: Path) -> None:
    line = json.dumps({**event_json(OPENED), "schema": 2, "more": 1})
    (tmp_path / NAME).write_text(line + "\n")
    with pytest.raises(Refused) as refused:
        read(tmp_path)
    assert refused.value.what == f"{tmp_path / NAME}:1: a session of schema 2, expected 1."


@pytest.mark.parametrize("first", [Started(1, 0), Driven(1)])
def test_a_journal_that_does_not_begin_with_its_session_is_refused(tmp_path: Path, first: Event) -> None:
    (tmp_path / NAME).write_text(json.dumps(event_json(first)) + "\n")
    with pytest.raises(Refused) as refused:
        read(tmp_path)
    assert f"{NAME}:1: a session is opened once" in refused.value.what


def test_a_line_torn_at_any_byte_is_cut_off_and_said_and_the_rest_is_whole(tmp_path: Path) -> None:
    with held(tmp_path) as (journal, _):
        append(journal, OPENED)
        append(journal, Started(1, 0))
    whole = (tmp_path / NAME).read_bytes()
    first = whole.index(b"\n") + 1
    for length in range(1, len(whole) - first):
        (tmp_path / NAME).write_bytes(whole[: first + length])
        with held(tmp_path) as (journal, written):
            assert (written.events, written.torn) == ((OPENED,), length)
            append(journal, Started(1, 0))
        assert (tmp_path / NAME).read_bytes() == whole
    assert not read(tmp_path).torn


@pytest.mark.parametrize("tail", [b"\0" * 40, b'{"event"' + b"\0" * 9 + b"\n"])
def test_zeros_that_a_loss_of_power_left_are_a_torn_line(tmp_path: Path, tail: bytes) -> None:
    with held(tmp_path) as (journal, _):
        append(journal, OPENED)
    with (tmp_path / NAME).open("ab") as file:
        file.write(tail)
    assert (read(tmp_path).events, read(tmp_path).torn) == ((OPENED,), len(tail))


def test_a_look_at_a_session_changes_nothing_even_a_torn_line(tmp_path: Path) -> None:
    with held(tmp_path) as (journal, _):
        append(journal, OPENED)
        with (tmp_path / NAME).open("a") as file:
            file.write('{"event"')
        before = (tmp_path / NAME).read_bytes()
        assert read(tmp_path).torn == 8
        assert (tmp_path / NAME).read_bytes() == before


def test_a_second_driver_is_refused_by_the_name_of_the_first(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(Refused) as refused, held(tmp_path):
        pass
    what = f"{tmp_path}: another bisect is at work on this session, process {os.getpid()}."
    assert refused.value.what == what
    with held(tmp_path):
        assert int((tmp_path / LOCK).read_text()) == os.getpid()


def _holds(folder: Path) -> None:
    with held(folder):
        os.kill(os.getpid(), 9)


def test_the_lock_of_a_killed_driver_holds_nobody_off(tmp_path: Path) -> None:
    process = multiprocessing.get_context("forkserver").Process(target=_holds, args=(tmp_path,))
    process.start()
    process.join(30)
    assert process.exitcode == -9
    with held(tmp_path):
        pass


@pytest.mark.parametrize("spare", [0, 1, 20])
def test_a_disk_that_is_full_keeps_no_half_of_an_event_and_says_so(tmp_path: Path, spare: int) -> None:
    with held(tmp_path) as (journal, _):
        append(journal, OPENED)
        whole = (tmp_path / NAME).read_bytes()
        with pytest.raises(Missing) as missing, room(len(whole) + spare):
            append(journal, Started(1, 0))
        assert (tmp_path / NAME).read_bytes() == whole
        append(journal, Started(1, 0))
    assert "the event could not be written (File too large); what was there before is whole." in missing.value.what
    assert read(tmp_path).events == (OPENED, Started(1, 0))
