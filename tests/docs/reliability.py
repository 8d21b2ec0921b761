"""docs/reliability.md: what is established for every hazard and kind of target, from the `case` marks of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .cases import OUT
from .seen_elsewhere import OVERLAYS, TOOLS, Seen
from .source import ROOT

TARGETS = ("checkout", "installed", "series", "source", "export", "adopt")
TOLD = "told"  # by status and verify, so that it may stand beside what apply does
OUTCOMES = ("exact", "refused", "undone", TOLD)


@dataclass(frozen=True)
class Case:
    """One mark: this test, in this file (`about`: its first line), establishes the outcome of a case on a target."""

    file: str
    about: str
    test: str
    what: str
    target: str
    outcome: str
    source: str


@dataclass(frozen=True)
class Row:
    """One hazard: the marks of every target, and where it was seen."""

    what: str
    cases: tuple[Case, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """The references, each once."""
        named = [part.strip() for case in self.cases for part in case.source.split(",")]
        return tuple(dict.fromkeys(filter(None, named)))


class Unsound(ValueError):
    """The marks do not make a table."""


@cache
def collected() -> tuple[Case, ...]:
    """Every mark of the suite, by a pytest of its own that runs nothing."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "cases.json")
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "tests.docs.cases"]
        command += ["-p", "no:cacheprovider", "-o", "addopts=--strict-markers", "tests"]
        env = os.environ | {OUT: str(out), "PYTEST_ADDOPTS": ""}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unsound(f"pytest could not collect the tests:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return tuple(dict.fromkeys(map(read_mark, json.loads(out.read_bytes()))))


def read_mark(said: dict[str, Any]) -> Case:
    """A mark as a case.

    Raises:
        Unsound: it names a target or an outcome that there is not, or lacks one; its test is named.
    """
    where = f"{said['file']}, {said['test']}"
    known = {"file", "about", "test", "args", "target", "outcome", "source"}
    if len(said["args"]) != 1 or said.keys() - known or not {"target", "outcome"} <= said.keys():
        raise Unsound(f"{where}: expected case(WHAT, target=, outcome=, source=)")
    for key, words in (("target", TARGETS), ("outcome", OUTCOMES)):
        if said[key] not in words:
            raise Unsound(f"{where}: expected {key} to be one of {', '.join(words)}, found {said[key]!r}")
    source = said.get("source", "")
    return Case(said["file"], said["about"], said["test"], said["args"][0], said["target"], said["outcome"], source)


def rows_of(cases: Iterable[Case]) -> tuple[Row, ...]:
    """The rows, in the order of the tests.

    Raises:
        Unsound: two tests claim different outcomes of one case on one target.
    """
    by_what: dict[str, list[Case]] = {}
    for case in cases:
        by_what.setdefault(case.what, []).append(case)
    for what, marks in by_what.items():
        for target in TARGETS:
            outcomes = {case.outcome: case.test for case in marks if case.target == target and case.outcome != TOLD}
            if len(outcomes) > 1:
                said = " and ".join(f"{outcome} ({test})" for outcome, test in outcomes.items())
                raise Unsound(f"{what!r} on {target}: {said}")
    return tuple(Row(what, tuple(marks)) for what, marks in by_what.items())


INTRODUCTION = """\
# What happens when things go wrong

Made by `python -m tests.docs` from the marks of the tests: a row is something that happens, a column is what the tools
are let loose on, and a cell is the outcome that a test establishes; its link is that test's file, and pointing at it
names the test. An empty cell is not tested (most are of no meaning there). {rows} rows, {cells} cells.

| outcome | what the test has seen |
|---|---|
| exact | done; files, commit ids and digest are byte for byte what they are without the hazard |
| refused | exit code not 0, one sentence that names it and one that says what to do; nothing at all was changed |
| undone | a run that was cut or failed half way; everything is as before, at once or by the next run |
| told | `status` and `verify` say so, with exit code 1, and name the file |

| on | is |
|---|---|
| checkout, installed | a target of `apply`, `status` and `verify` |
| series | our own patch files, overlay files and pins |
| source | where a fresh checkout comes from: upstream, a mirror, a wheel, the cache |
| export, adopt | those verbs, on what they are given |
"""


def page(cases: Sequence[Case]) -> str:
    """The text of docs/reliability.md.

    Raises:
        Unsound: the marks contradict each other.
    """
    rows = rows_of(cases)
    parts = [INTRODUCTION.format(rows=len(rows), cells=len({(case.what, case.target) for case in cases}))]
    headings: dict[str, list[Row]] = {}
    for row in rows:
        headings.setdefault(heading(row.cases[0]), []).append(row)
    labels = labels_of(cases)
    parts += [_table(title, group, labels) for title, group in sorted(headings.items(), key=_place)]
    parts.append(_elsewhere("Seen in patch tools", TOOLS, rows))
    parts.append(_elsewhere("Seen with patches on inference servers", OVERLAYS, rows))
    parts.append("".join(f'[{label}]: ../{file} "{test}"\n' for (file, test), label in labels.items()))
    return "\n".join(parts)


def heading(case: Case) -> str:
    """What the file of a case says it is about, up to the first stop."""
    said = case.about.partition(": ")[0].rstrip(".:").strip()
    return said or Path(case.file).stem.removeprefix("test_").replace("_", " ").capitalize()


def _place(section: tuple[str, Sequence[Row]]) -> tuple[int, str]:
    """Sections about targets come first, in the order of the columns; else by their titles."""
    return min(TARGETS.index(case.target) for row in section[1] for case in row.cases), section[0]


def _table(title: str, rows: Sequence[Row], labels: Mapping[tuple[str, str], str]) -> str:
    targets = [target for target in TARGETS if any(case.target == target for row in rows for case in row.cases)]
    lines = [
        f"## {title}",
        "",
        f"| what happens | {' | '.join(targets)} | seen in |",
        "|---" * (len(targets) + 2) + "|",
    ]
    for row in rows:
        cells = [_cell([case for case in row.cases if case.target == target], labels) for target in targets]
        lines.append(f"| {_plain(row.what)} | {' | '.join(cells)} | {_plain(', '.join(row.sources))} |")
    return "\n".join(lines) + "\n"


def _cell(cases: Sequence[Case], labels: Mapping[tuple[str, str], str]) -> str:
    """Each outcome, linked to its first test; further tests as numbers."""
    parts = []
    for outcome in OUTCOMES:
        tests = list(dict.fromkeys(labels[case.file, case.test] for case in cases if case.outcome == outcome))
        words = [outcome, *map(str, range(2, len(tests) + 1))]
        parts.append(" ".join(f"[{word}][{label}]" for word, label in zip(words, tests, strict=False)))
    return ", ".join(filter(None, parts))


def labels_of(cases: Iterable[Case]) -> dict[tuple[str, str], str]:
    """File and test → a short name that stays when other files gain tests."""
    labels: dict[tuple[str, str], str] = {}
    for case in cases:
        stem = case.file.removesuffix(".py").removeprefix("tests/").replace("/test_", "/")
        number = sum(file == case.file for file, _ in labels) + 1
        labels.setdefault((case.file, case.test), f"{stem} {number}")
    return labels


def _elsewhere(title: str, seen: Sequence[Seen], rows: Sequence[Row]) -> str:
    lines = [f"## {title}", "", "| what | reported in | here |", "|---|---|---|"]
    for one in seen:
        here = one.answer or "; ".join(row.what for row in answering(one, rows)) or "no row"
        lines.append(f"| {_plain(one.what)} | {_plain(', '.join(one.references) or 'nowhere yet')} | {_plain(here)} |")
    return "\n".join(lines) + "\n"


def answering(seen: Seen, rows: Iterable[Row]) -> list[Row]:
    """The rows whose tests name where it was seen."""
    named = {_number(reference) for reference in seen.references}
    return [row for row in rows if row.what in seen.rows or named & set(map(_number, row.sources))]


def _number(reference: str) -> str:
    """A reference without its owner: electron/electron#28360 is also electron#28360."""
    return reference.rpartition("/")[2] if "#" in reference else reference


def _plain(text: str) -> str:
    return text.replace("|", "\\|")
