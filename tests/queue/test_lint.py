"""Lint, rule by rule: each bad series gives exactly its finding, and what is allowed gives none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sm120_overlay.cli import main
from sm120_overlay.queue.blobs import blob_id
from sm120_overlay.queue.lint import lint_answers, lint_line, lint_series
from sm120_overlay.queue.mail import parse_trailers
from sm120_overlay.queue.patch import Edit, Hunk, Patch
from sm120_overlay.queue.pins import load_lines
from sm120_overlay.queue.series import Series

from .toy import HOOK, Toy, message, snapshot, write

CORE = "python/toy/core.py"
ONE, TWO = blob_id(b"one\n"), blob_id(b"two\n")
NOTES = "docs/evidence/run.md"


def said(patch: Patch, text: str) -> Patch:
    """The patch with another message."""
    return replace(patch, message=text, trailers=parse_trailers(text))


def first(series: Series) -> Patch:
    return series.patches[0]


def with_first(series: Series, patch: Patch) -> Series:
    return replace(series, patches=(patch, *series.patches[1:]))


def trailers(**changed: str) -> Callable[[Series], Series]:
    """The first patch with these trailers added or replaced."""
    return lambda series: with_first(series, said(first(series), message("right-answer", **changed)))


def text(old: str, new: str) -> Callable[[Series], Series]:
    """The first patch with this in its message replaced."""

    def change(series: Series) -> Series:
        whole = message("right-answer")
        assert old in whole
        return with_first(series, said(first(series), whole.replace(old, new, 1)))

    return change


def edited(*edits: Edit) -> Callable[[Series], Series]:
    """The first patch with these edits more."""
    return lambda series: with_first(series, replace(first(series), edits=(*first(series).edits, *edits)))


def new(path: str, data: bytes = b"one\n", mode: str = "100644") -> Edit:
    return Edit(path, mode, None, blob_id(data), (Hunk(0, (), tuple(data.splitlines(keepends=True))),))


def edit(path: str, mode: str = "100644", old: bytes = b"one\n", after: bytes = b"two\n") -> Edit:
    return Edit(path, mode, blob_id(old), blob_id(after), (Hunk(1, (old,), (after,)),))


def body(line: str) -> Callable[[Series], Series]:
    return text("What breaks,", f"What\n{line}\nbreaks,")


RED: dict[str, tuple[Callable[[Series], Series], str]] = {
    **{
        f"no {key}": (text(f"{key}: {value}\n", ""), f"`{key}:` is missing")
        for key, value in (
            ("Scope", "any"), ("Upstream-Status", "Pending"), ("Drop-When", "The toy answers by itself."),
            ("Evidence", "executed-cpu"), ("Test", "tests/patches/test_right_answer.py"),
        )
    },
    "unknown trailer": (trailers(Colour="red"), "`Colour:` is not one of"),
    "misspelt trailer": (trailers(Drop_when="The toy answers."), "`Drop-when:` is not one of"),
    "trailer twice": (text("Scope: any\n", "Scope: any\nScope: sm12x\n"), "`Scope:` comes 2 times"),
    "scope": (trailers(Scope="sm120"), "`Scope: sm120` should be"),
    "status": (trailers(Upstream_Status="Upstreamed"), "should be"),
    "submitted where": (trailers(Upstream_Status="Submitted [soon]"), "should be"),
    "backport of what": (trailers(Upstream_Status="Inappropriate []"), "should be"),
    "issue": (trailers(Issue="39807"), "`Issue: 39807` should be"),
    "drop when": (trailers(Drop_When="later"), "`Drop-When: later` should be"),
    "evidence": (trailers(Evidence="tried"), "`Evidence: tried` should be"),
    "evidence without its file": (trailers(Evidence="executed-sm120"), "should be"),
    "evidence of nothing": (trailers(Evidence="executed-h200 docs/evidence/none.md"), "none.md does not exist"),
    "sign-off": (trailers(Signed_off_by="Ann"), "`Signed-off-by: Ann` should be"),
    "another test": (trailers(Test="tests/patches/test_other.py"), "should name tests/patches/test_right_answer.py"),
    "need": (trailers(Needs="no-such"), "it needs no-such, which does not come before it"),
    "need of a later one": (trailers(Needs="bring-hook"), "it needs bring-hook, which does not come before it"),
    "need of itself": (trailers(Needs="right-answer"), "it needs right-answer, which does not come before it"),
    "subject without an area": (text("toy: do right-answer", "do right-answer"), "should read `area: what it does`"),
    "subject with a period": (text("toy: do right-answer", "toy: do it."), "should read `area: what it does`"),
    "long subject": (text("toy: do right-answer", "toy: " + "x" * 68), "at most 72 characters"),
    "two reasons": (text("toy: do right-answer", "toy: answer and also hook"), "gives two reasons"),
    "no body": (text("What breaks, and how it is known.\n\n", ""), "the body is missing"),
    "generated file": (edited(new("python/toy/_version.py")), "_version.py has no place in the installed package"),
    "outside the map": (edited(new("docs/x.md")), "docs/x.md has no place in the installed package"),
    "mode change": (edited(edit("python/toy/run.py")), "declares mode 100644, expected 100755"),
    "mode change the other way": (edited(edit("python/toy/bare.txt", "100755")), "mode 100755, expected 100644"),
    "new executable": (edited(new("python/toy/new.py", mode="100755")), "mode 100755, expected 100644"),
    "binary": (edited(new("python/toy/x.bin", b"a\0\n")), "x.bin is not text"),
    "binary taken away": (edited(edit("python/toy/x.bin", "100644", b"a\0\n", b"a\n")), "x.bin is not text"),
    **{
        f"hazard {line!r}": (body(line), "git am would misread the line")
        for line in ("From the start", ">From x", "diff --git a/x b/x", "diff -u x", "Index: x", "---", "--- a/x",
        "From: x",
                     "Date: x", "Subject: x", "-- >8 --")
    },
    "no edits": (lambda series: replace(series, patches=(*series.patches, replace(
        said(first(series), message("empty")), slug="empty", edits=()))), "nothing"),
    "climbing path": (edited(new("python/toy/../../x.py")), "x.py"),
    "line ends": (edited(edit("python/toy/dos2.py", "100644", b"A = 1\r\n", b"A = 2\n")), "line end"),
}  # fmt: skip


def linted(toy: Toy, change: Callable[[Series], Series]) -> list[tuple[str, str]]:
    found = lint_series(toy.home, change(toy.series()))
    return [(finding.where, finding.what) for finding in found]


def test_the_toy_series_has_no_findings(toy: Toy) -> None:
    assert lint_line(toy.home, toy.line) == ()
    assert linted(toy, lambda series: with_first(series, said(first(series), message("right-answer")))) == []


@pytest.mark.parametrize("case", RED)
def test_each_bad_patch_has_exactly_its_finding(toy: Toy, case: str) -> None:
    change, what = RED[case]
    write(toy.home.root, {"tests/patches/test_empty.py": ""})
    ((where, found),) = linted(toy, change)
    assert where == ("empty" if case == "no edits" else "right-answer")
    assert what in found


def test_a_later_diff_to_an_overlay_file_is_found(toy: Toy) -> None:
    series = toy.series()
    write(toy.home.root, {"tests/patches/test_more_hook.py": ""})
    old = next(edit.new for edit in series.patches[1].edits if edit.path == HOOK)
    diff = Edit(HOOK, "100644", old, ONE, (Hunk(1, (b"HOOK = True\n",), (b"one\n",)),))
    more = replace(said(first(series), message("more-hook")), slug="more-hook", edits=(diff,))
    ((where, what),) = linted(toy, lambda s: replace(s, patches=(*s.patches, more)))
    assert (where, f"{HOOK} is an overlay file" in what) == ("more-hook", True)


def test_a_missing_test_is_named(toy: Toy) -> None:
    write(toy.home.root, {"tests/patches/test_right_answer.py": None})
    assert linted(toy, lambda series: series) == [
        ("right-answer", "its test tests/patches/test_right_answer.py does not exist")
    ]


@pytest.mark.parametrize("slug", ["Right-Answer", "right_answer", "right--answer", "-right", ""])
def test_a_slug_that_is_not_lower_case_words_is_named(toy: Toy, slug: str) -> None:
    write(toy.home.root, {f"tests/patches/test_{slug.replace('-', '_')}.py": ""})
    found = linted(toy, lambda s: with_first(s, replace(said(first(s), message(slug)), slug=slug)))
    named = [(where, what) for where, what in found if "needs right-answer" not in what]
    assert [what for _, what in named if "Slug" in what] == [what for _, what in named][:1] != []


GREEN: dict[str, Callable[[Series], Series]] = {
    "submitted": trailers(Upstream_Status="Submitted [https://github.com/sgl-project/sglang/pull/1]"),
    "backport": trailers(Upstream_Status="Backport [toy#1, v1.1]"),
    "inappropriate": trailers(Upstream_Status="Inappropriate [a choice of this project]"),
    "issue": trailers(Issue="sglang#39807"),
    "issues": text("Scope: any\n", "Scope: any\nIssue: sglang#39807\nIssue: cutlass#3096\n"),
    "measured": trailers(Evidence=f"executed-sm120 {NOTES}"),
    "signed": trailers(Signed_off_by="Ann B. <ann@example.org>"),
    "plugin": trailers(Why_Not_Plugin="The hook runs too late."),
    "small scope": trailers(Scope="sm12x"),
    "executable": edited(edit("python/toy/run.py", "100755")),
    "executable deleted": edited(Edit("python/toy/run.py", "100755", ONE, None, (Hunk(1, (b"one\n",), ()),))),
    "not UTF-8": edited(new("python/toy/latin.py", b"# \xe9\n")),
    "windows line ends": edited(edit("python/toy/dos2.py", "100644", b"A = 1\r\n", b"A = 2\r\n")),
    "indented diff": body("    diff --git a/x b/x"),
    "dashes": body("-- one --- two"),
    "from": body("from here"),
}


@pytest.mark.parametrize("case", GREEN)
def test_what_is_allowed_has_no_finding(toy: Toy, case: str) -> None:
    write(toy.home.root, {NOTES: "measured\n", "NOTICE": "toy; right-answer is upstream's own change\n"})
    assert linted(toy, GREEN[case]) == []


def test_a_backport_that_the_notice_does_not_name_is_found(toy: Toy) -> None:
    change = trailers(Upstream_Status="Backport [toy#1, v1.1]")
    for notice in ("toy\n", None):
        write(toy.home.root, {"NOTICE": notice})
        ((where, what),) = linted(toy, change)
        assert (where, "NOTICE must name its slug" in what) == ("right-answer", True)


PRO, H200 = "NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA H200"


def recorded(outcome: str, card: str = PRO, slug: str = "right-answer") -> str:
    """As verify --on-gpu writes it, in small."""
    said = {"sm12x": card == PRO, "card": {"name": card}, "results": [{"slug": slug, "outcome": outcome}]}
    return json.dumps(said)


@pytest.mark.parametrize(
    ("kind", "text", "part"),
    [
        ("executed-sm120", recorded("shown"), None),
        ("executed-h200", recorded("ran", H200), None),
        ("executed-sm120", recorded("failed"), "says failed on NVIDIA RTX"),
        ("executed-sm120", recorded("ran", H200), "says ran on NVIDIA H200; expected shown for executed-sm120"),
        ("executed-sm120", recorded("shown", H200), "says shown on NVIDIA H200"),
        ("executed-sm120", recorded("shown", slug="bring-hook"), "says not there"),
        ("executed-h200", recorded("shown"), "expected ran for executed-h200"),
        ("executed-sm120", "{}", "is not what verify --on-gpu writes"),
        ("executed-sm120", "[1]", "is not what verify --on-gpu writes"),
        ("executed-sm120", "# notes", "is not what verify --on-gpu writes"),
    ],
)
def test_recorded_evidence_must_say_of_the_patch_what_its_trailer_says(
    toy: Toy, kind: str, text: str, part: str | None
) -> None:
    write(toy.home.root, {"docs/evidence/run.json": text})
    found = linted(toy, trailers(Evidence=f"{kind} docs/evidence/run.json"))
    assert [where for where, _ in found] == ([] if part is None else ["right-answer"])
    assert part is None or part in found[0][1]


def test_a_chain_that_comes_back_to_a_blob_is_found(toy: Toy) -> None:
    def change(series: Series) -> Series:
        second = series.patches[1]
        back = replace(second.edits[0], new=first(series).edits[0].old)
        assert back.path == CORE
        return replace(series, patches=(first(series), replace(second, edits=(back, *second.edits[1:]))))

    ((where, what),) = linted(toy, change)
    assert (where, f"{CORE} becomes blob" in what) == ("toy", True)


def test_a_file_that_comes_and_goes_is_found(toy: Toy) -> None:
    def change(series: Series) -> Series:
        gone = Edit("python/toy/x.py", "100644", ONE, None, (Hunk(1, (b"one\n",), ()),))
        second = replace(series.patches[1], edits=(*series.patches[1].edits, gone))
        return edited(new("python/toy/x.py"))(replace(series, patches=(first(series), second)))

    assert [(where, "python/toy/x.py becomes" in what) for where, what in linted(toy, change)] == [("toy", True)]


def test_patches_that_do_not_follow_each_other_are_found(toy: Toy) -> None:
    found = linted(toy, lambda s: with_first(s, replace(first(s), edits=(replace(first(s).edits[0], new=ONE),))))
    ((where, what),) = found
    assert where == "toy"
    assert "should be made on blob" in what


def test_a_slug_of_both_upstreams_is_found(toy: Toy) -> None:
    folder = toy.home.patches("v1", "gear")
    mail = (folder / "more-gears.patch").read_bytes().replace(b"more-gears", b"right-answer").replace(
        b"more_gears", b"right_answer")  # fmt: skip
    write(folder, {"series": "right-answer\n", "right-answer.patch": mail, "more-gears.patch": None})
    ((where, what),) = [(finding.where, finding.what) for finding in lint_line(toy.home, toy.line)]
    assert (where, "taken by toy" in what) == ("right-answer", True)


def record_absent(toy: Toy, upstream: str, slug: str, text: str = "n/a: it is not needed in this line") -> None:
    pins = toy.home.pins.read_text()
    table = f"[line.v1.{upstream}]\n"
    assert table in pins
    toy.home.pins.write_text(pins.replace(table, f'{table}absent.{slug} = "{text}"\n'))


def test_a_patch_that_is_recorded_as_absent_and_carried_is_found(toy: Toy) -> None:
    record_absent(toy, "toy", "bring-hook", "absorbed: toy#12, v1.2")
    record_absent(toy, "toy", "late-fix")
    assert [(finding.where, finding.what) for finding in lint_line(toy.home, toy.line)] == [
        ("bring-hook", "pins.toml records it as absorbed, and toy carries it")
    ]


def test_a_patch_that_the_other_upstream_carries_or_records_as_well_is_found(toy: Toy) -> None:
    record_absent(toy, "toy", "more-gears")
    record_absent(toy, "toy", "late-fix")
    record_absent(toy, "gear", "late-fix")
    assert [(finding.where, finding.what) for finding in lint_line(toy.home, toy.line)] == [
        ("more-gears", "pins.toml records it as n/a, and gear carries it"),
        ("late-fix", "pins.toml records it twice, for toy and gear"),
    ]


def test_a_series_that_cannot_be_read_is_one_finding_and_the_other_upstream_is_still_read(toy: Toy) -> None:
    write(toy.home.patches("v1", "toy"), {"right-answer.patch": None})
    write(toy.home.root, {"tests/patches/test_more_gears.py": None})
    found = [(finding.where, finding.what) for finding in lint_line(toy.home, toy.line)]
    assert [where for where, _ in found] == ["v1/toy", "more-gears"]
    assert "right-answer.patch" in found[0][1]


@pytest.mark.parametrize("stray", ["patches/v1/toy/forgotten.patch", "overlay/toy/python/toy/forgotten.py"])
def test_a_file_that_belongs_to_no_patch_of_the_series_is_found(toy: Toy, stray: str) -> None:
    write(toy.home.root, {stray: "x\n"})
    assert any("forgotten" in finding.where + finding.what for finding in lint_line(toy.home, toy.line))


def test_the_verb_says_each_finding_and_exits_1(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(toy.home.root)
    assert main(["lint"]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    write(toy.home.root, {"tests/patches/test_more_gears.py": None})
    assert main(["lint", "--line", "v1"]) == 1
    assert "v1: more-gears: its test" in capsys.readouterr().out
    assert main(["lint", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["ok"], len(said["findings"])) == (False, 1)
    assert main(["lint", "--line", "v9"]) == 2
    assert snapshot(toy.home.root).keys() == before.keys() - {"tests/patches/test_more_gears.py"}


def test_the_projects_own_series_have_no_findings(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["lint"])
    assert (code, Path(capsys.readouterr().out.strip()).name) == (0, "nothing is wrong")


def test_a_patch_of_another_line_that_is_neither_carried_nor_recorded_is_a_finding(toy: Toy) -> None:
    """A patch that was forgotten in a move looks like one that was not needed."""
    write(toy.home.root, {"patches/v2/toy/series": "right-answer\n"})
    text = toy.home.pins.read_text()
    toy_table = text[text.index("[line.v1.toy]") : text.index("[line.v1.gear]")].replace("line.v1", "line.v2")
    toy.home.pins.write_text(text + toy_table)
    lines = load_lines(toy.home.pins)
    found = lint_answers(toy.home, lines, lines.line("v2"))
    assert [(finding.where, finding.what) for finding in found] == [
        ("bring-hook", "line v1 has an answer for it and v2 has none: carry it, or record it as absent")
    ]
    toy.home.pins.write_text(text + toy_table + 'absent = { bring-hook = "absorbed: toy#12, v2.0" }\n')
    lines = load_lines(toy.home.pins)
    assert lint_answers(toy.home, lines, lines.line("v2")) == ()


def test_where_upstream_has_plugins_a_patch_says_why_it_is_none(toy: Toy) -> None:
    series = toy.series()
    hooked = replace(series, pin=replace(series.pin, plugins="toy.plugins"))
    found = {(finding.where, finding.what) for finding in lint_series(toy.home, hooked)}
    said = "the trailer `Why-Not-Plugin:` is missing: toy has plugins; say why no hook can do it"
    assert found == {(slug, said) for slug in series.slugs}
