"""docs/errors.md is what the code says, every refusal of it says why, and none of its sentences is half a one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from .errors import Refusal, _refusals, area_of, catalogue, exit_codes, findings, page
from .source import ROOT, Module, modules

RERUN = "docs/errors.md is not current: run python -m tests.docs"


def read(text: str) -> list[Refusal]:
    module = Module("queue.sample", Path("sample.py"), ast.parse(text), tuple(text.splitlines()))
    return list(_refusals(module, exit_codes()))


def test_the_document_is_what_the_code_says() -> None:
    assert (ROOT / "docs" / "errors.md").read_text(encoding="utf-8") == page(), RERUN


def test_every_module_that_refuses_has_its_place_in_the_document() -> None:
    assert all(area_of(refusal.module) for refusal in catalogue())


def test_every_construction_in_the_source_is_in_the_catalogue() -> None:
    names = tuple(f"{name}(" for name in exit_codes())
    lines = {
        (module.name, number)
        for module in modules().values()
        for number, line in enumerate(module.lines, 1)
        if line.strip().removeprefix("raise ").removeprefix("return ").startswith(names)
    }
    assert len(lines) > 80
    assert lines <= {(refusal.module, refusal.line) for refusal in catalogue()}


@pytest.mark.parametrize("refusal", catalogue(), ids=lambda refusal: f"{refusal.module}-{refusal.function}")
def test_a_refusal_is_two_sentences_and_a_reason(refusal: Refusal) -> None:
    assert refusal.exit_code in (1, 2, 3, 4)
    assert refusal.sentence.endswith((".", ">", ")")), "a sentence ends"
    assert refusal.todo, "what to do is always said"
    assert refusal.why, f"{refusal.where}: write `# why: …` above it"
    assert refusal.why not in (refusal.sentence, refusal.todo)


def test_what_is_filled_in_is_named_and_what_is_known_is_written_out() -> None:
    (refusal,) = read(
        'MEND = "Mend it."\n'
        "def check(path, entry):\n"
        '    why = "is gone" if entry else "is a link"\n'
        "    # why: it was lost once\n"
        "    # (tool#1)\n"
        "    raise Refused(f\"{path}: {entry['blob']!r} {why} in {entry.repo.path}.\", MEND)\n"
    )
    assert refusal.sentence == "<path>: '<blob>' (is gone | is a link) in <repo path>."
    assert (refusal.todo, refusal.exit_code, refusal.function) == ("Mend it.", 1, "check")
    assert refusal.why == "it was lost once (tool#1)"


def test_a_reason_belongs_to_the_statement_right_below_it() -> None:
    (refusal,) = read('# why: other\nx = 1\nraise Missing(f"{x}", "Do.")\n')
    assert refusal.why == ""


def test_lint_is_listed_too() -> None:
    assert "it changes nothing" in findings()
