"""docs/patches.md is what the patch files say, of every patch of every line, and what the lines record as absent."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from sm120_overlay.queue.home import find_home
from sm120_overlay.queue.patch import Patch
from sm120_overlay.queue.pins import load_lines

from ..queue.toy import Toy
from .patches import Entry, entries, page, plain, why
from .source import ROOT

HOME = find_home()
LINES = load_lines(HOME.pins).lines
EVERY = entries(HOME, LINES)
PAGE = page()
RERUN = "docs/patches.md is not current: run python -m tests.docs"


def patch(body: str, *trailers: tuple[str, str]) -> Patch:
    return Patch("late-fix", "Ann <a@example.org>", "", f"area: mend it\n\n{body}", trailers, ())


def test_the_document_is_what_the_patch_files_say() -> None:
    assert (ROOT / "docs" / "patches.md").read_text(encoding="utf-8") == PAGE, RERUN


@pytest.mark.parametrize("entry", [entry for entry in EVERY if entry.carried], ids=lambda entry: entry.slug)
def test_every_patch_has_its_section_with_all_that_a_reader_asks(entry: Entry) -> None:
    section = PAGE.partition(f"### {entry.slug}\n")[2].partition("\n##")[0]
    for word in ("Lines: ", "Scope: ", "Evidence: ", "Upstream: ", "Goes when: ", "Test: [tests/patches/"):
        assert f"* {word}" in section, word
    assert len(why(entry.newest)) > 80, "its first paragraph says too little"


@pytest.mark.parametrize("entry", [entry for entry in EVERY if entry.absent], ids=lambda entry: entry.slug)
def test_what_a_line_does_without_is_listed_with_its_reason(entry: Entry) -> None:
    listed = PAGE.partition("## What a line does without\n")[2]
    assert all(f"- `{entry.slug}` ({entry.upstream}), {plain(text)}" in listed for text in entry.absent.values())


def test_every_file_that_it_links_is_there() -> None:
    links = re.findall(r"\]\(([^)#][^)]*)\)", PAGE)
    files = {link for link in links if not link.startswith("https://")}
    assert len(files) > len(EVERY)
    assert {file for file in files if not (ROOT / "docs" / file).is_file()} == set()


def test_a_list_behind_a_colon_belongs_to_the_reason_and_lines_are_joined() -> None:
    body = "Two things\nbreak:\n\n- one, which\n  is long\n- two\n\nHow established: read.\n\nSlug: late-fix"
    assert why(patch(body)) == "Two things break:\n\n- one, which is long\n- two"
    assert why(patch("It breaks\nhere.\n\nHow established: read.\n\nSlug: x")) == "It breaks here."


def test_what_markdown_would_take_for_marks_is_shown_as_it_is() -> None:
    assert plain("a * b <T> and __init__ of device_support_pdl") == r"a \* b \<T> and \__init\__ of device_support_pdl"
    assert plain("`a * b <T>` is code [x]") == r"`a * b <T>` is code \[x\]"
    assert plain("x | y", cell=True) == r"x \| y"


def test_a_patch_of_two_lines_says_the_state_of_each(toy: Toy) -> None:
    text = toy.home.pins.read_text()
    second = text.partition("[line.v1.joint]")[2].replace("line.v1", "line.v2")
    second = second.replace("[line.v2.toy]\n", '[line.v2.toy]\nabsent.right-answer = "absorbed: toy#12, v2.0"\n')
    toy.home.pins.write_text(f"{text}\n[line.v2.joint]{second}")
    for upstream in ("toy", "gear"):
        (toy.home.patches("v2", upstream)).mkdir(parents=True)
        (toy.home.patches("v2", upstream) / "series").write_text("")
    said = page(toy.home)
    assert "| patch | of | v1 | v2 | scope |" in said
    assert "| [`right-answer`](#right-answer) | toy | carried | absorbed |" in said
    assert "| [`bring-hook`](#bring-hook) | toy | carried | not decided |" in said
    assert "v2 absorbed: toy#12, v2.0" in said
    assert "### On v2\n\n- `right-answer` (toy), absorbed: toy#12, v2.0" in said


def test_what_is_said_of_a_patch_is_in_words_and_links_its_issue(toy: Toy) -> None:
    (first, *_) = entries(toy.home, (toy.line,))
    other = replace(first, carried={"v1": patch("It breaks here.\n\nSlug: x", ("Issue", "sglang#20043"), (
        "Issue", "elsewhere#1"), ("Evidence", "executed-sm120 docs/evidence/x.json"), ("Needs", "bring-hook"),
        ("Overlay", "a/b.py 00"), ("Scope", "any"))})  # fmt: skip
    from .patches import _section

    said = _section(other, (toy.line,))
    assert "[sglang#20043](https://github.com/sgl-project/sglang/issues/20043), elsewhere#1" in said
    assert "executed on an SM120 card ([docs/evidence/x.json](evidence/x.json))" in said
    assert "* Needs: [`bring-hook`](#bring-hook)" in said
    assert "* Brings: `a/b.py`" in said
    assert "* Scope: every card" in said
