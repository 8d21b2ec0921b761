"""docs/reliability.md is what the tests' marks say, and marks that do not make a table are refused."""

from __future__ import annotations

from typing import Any

import pytest

from .reliability import Case, Unsound, answering, collected, heading, page, read_mark, rows_of
from .seen_elsewhere import OVERLAYS, TOOLS, Seen
from .source import ROOT

RERUN = "docs/reliability.md is not current: run python -m tests.docs"
MARK = {"file": "tests/a/test_a.py", "about": "About a.", "test": "test_a", "args": ["it rains"], "target": "checkout",
        "outcome": "exact"}  # fmt: skip


def case(**other: Any) -> Case:
    return read_mark({**MARK, **other})


def test_the_document_is_what_the_tests_say() -> None:
    assert (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8") == page(collected()), RERUN


def test_nothing_is_silent_or_lost() -> None:
    cells = {(mark.what, mark.target): mark.outcome for mark in collected()}
    assert len(cells) > 50
    assert set(cells.values()) <= {"exact", "refused", "undone", "told"}


@pytest.mark.parametrize("wrong", [{"outcome": "silent"}, {"outcome": "lost"}, {"target": "moon"}, {"args": []},
                                   {"sources": "x"}])  # fmt: skip
def test_a_mark_of_another_form_is_refused_with_its_test(wrong: dict[str, Any]) -> None:
    with pytest.raises(Unsound, match=r"tests/a/test_a\.py, test_a"):
        case(**wrong)


def test_two_outcomes_in_one_cell_are_refused() -> None:
    with pytest.raises(Unsound, match=r"'it rains' on checkout: exact \(test_a\) and refused \(test_b\)"):
        rows_of([case(), case(test="test_b", outcome="refused")])
    assert len(rows_of([case(), case(target="installed", outcome="refused")])) == 1
    assert len(rows_of([case(), case(outcome="told")])) == 1, "apply does, status tells"


def test_a_cell_links_every_test_and_a_row_names_every_source_once() -> None:
    marks = [case(source="a/b#1"), case(test="test_b", source="a/b#1, c/d#2"), case(target="export", outcome="told")]
    text = page(marks)
    assert "| it rains | [exact][a/a 1] [2][a/a 2] | [told][a/a 1] | a/b#1, c/d#2 |" in text
    assert '[a/a 2]: ../tests/a/test_a.py "test_b"' in text
    assert "1 rows, 2 cells" in text


def test_the_heading_is_what_the_file_says_of_itself() -> None:
    assert heading(case(about="Damaged checkouts: each is refused.")) == "Damaged checkouts"
    assert heading(case(about="")) == "A"


@pytest.mark.parametrize("seen", [*TOOLS, *OVERLAYS], ids=lambda seen: seen.what)
def test_everything_that_was_seen_elsewhere_has_its_row(seen: Seen) -> None:
    assert seen.answer or answering(seen, rows_of(collected())), f"no test's mark names {', '.join(seen.references)}"


def test_a_row_that_is_said_to_answer_is_there() -> None:
    there = {case.what for case in collected()}
    assert not {row for seen in (*TOOLS, *OVERLAYS) for row in seen.rows} - there
