"""What survey says of a history: the state of every patch, who ended it, the exit code; and what it refuses."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from sm120_overlay.cli import main

from ..queue.scenes import ask
from ..queue.toy import HOOK, TOY, Toy, git
from ..rebase.releases import tree_of
from .upstream import CLASH, CORE, DOS, NEAR, QUIET, RENAMED, TAKEN, Upstream, patch_of, states, survey


def test_patches_that_go_in_are_a_yes(upstream: Upstream) -> None:
    upstream.commit(QUIET)
    upstream.commit(NEAR)
    answer = survey(upstream)
    assert (answer.code, answer.said["ok"], answer.said["kind"]) == (0, True, "commits")
    assert states(answer) == {"right-answer": "clean", "bring-hook": "clean"}
    assert patch_of(answer, "right-answer")["first"] is None


def test_the_change_that_breaks_a_patch_is_named_and_is_a_no(upstream: Upstream) -> None:
    upstream.commit(QUIET, 1)
    culprit = upstream.commit(CLASH, 2, "Answer less")
    upstream.commit({CORE: CLASH[CORE].replace("# line 50\n", "# line fifty\n")}, 3)
    answer = survey(upstream)
    assert answer.code == 1
    found = patch_of(answer, "right-answer")
    assert found["state"] == "conflict"
    assert found["stopped"] == [CORE]
    assert found["changes"] == 2
    assert found["first"] == {
        "state": "conflict", "undone": False, "commit": culprit, "date": "2026-03-01", "number": 2,
        "subject": "Answer less (#2)",
    }  # fmt: skip


def test_a_patch_that_upstream_takes_is_no_reason_to_worry(upstream: Upstream) -> None:
    taken = upstream.commit(TAKEN, 7)
    answer = survey(upstream)
    assert answer.code == 0
    assert states(answer) == {"right-answer": "absorbed", "bring-hook": "clean"}
    assert patch_of(answer, "right-answer")["first"]["commit"] == taken


def test_a_file_that_goes_is_gone_and_one_that_is_renamed_moves(upstream: Upstream) -> None:
    upstream.commit(RENAMED, 1)
    answer = survey(upstream)
    assert states(answer) == {"right-answer": "moved", "bring-hook": "moved"}
    assert patch_of(answer, "right-answer")["changes"] == 1
    assert "calls python/toy/core.py python/toy/heart.py now" in patch_of(answer, "right-answer")["reason"]
    upstream.commit({"python/toy/heart.py": None}, 2)
    answer = survey(upstream)
    assert states(answer) == {"right-answer": "gone", "bring-hook": "gone"}
    assert [turn["state"] for turn in patch_of(answer, "right-answer")["turns"]] == ["clean", "moved", "gone"]


def test_what_breaks_and_heals_shows_both_turns(upstream: Upstream) -> None:
    culprit = upstream.commit(CLASH, 1)
    upstream.commit({CORE: TOY[CORE]}, 2)
    answer = survey(upstream)
    assert answer.code == 0
    found = patch_of(answer, "right-answer")
    assert [turn["state"] for turn in found["turns"]] == ["clean", "conflict", "clean"]
    assert found["first"]["commit"] == culprit


def test_a_change_of_the_release_branch_that_main_never_had_is_taken_back(upstream: Upstream) -> None:
    upstream.on("release-1.1", new=True)
    own = upstream.commit(TAKEN, 1)
    upstream.tag("v1.1").on("main").commit(QUIET, 2)
    answer = survey(upstream, "v1.1..main")
    assert (answer.said["undone"], answer.said["commits"]) == (1, 1)
    turns = patch_of(answer, "right-answer")["turns"]
    assert [(turn["state"], turn["undone"], turn["commit"]) for turn in turns] == [
        ("absorbed", False, own), ("clean", True, own),
    ]  # fmt: skip


def test_a_change_on_main_is_named_before_one_that_was_taken_back(toy: Toy, upstream: Upstream) -> None:
    upstream.commit(CLASH, 1)
    upstream.on("release-1.1", new=True)
    upstream.commit({CORE: TOY[CORE]}, 2)
    upstream.tag("v1.1").on("main").commit({CORE: TOY[CORE]}, 3)
    culprit = upstream.commit(CLASH, 4)
    found = patch_of(survey(upstream, "v1.1.."), "right-answer")
    assert [turn["undone"] for turn in found["turns"]] == [False, True, False, False]
    assert found["first"]["commit"] == culprit


def test_the_table_names_patch_state_pull_request_day_and_subject(
    upstream: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    culprit = upstream.commit(CLASH, 12, "Answer less")
    assert main(["survey", "toy", "v1.0..main", "--history", str(upstream.path)]) == 1
    out = capsys.readouterr().out
    (row,) = [line.split() for line in out.splitlines() if line.strip().startswith("right-answer ")]
    assert row == ["right-answer", "conflict", "1", "conflict", "2026-03-01", "#12", culprit[:12], "Answer", "less"]
    assert "1 of 2 go onto main by themselves (1 clean, 1 conflict)" in out
    assert "the first to end was right-answer (conflict), on 2026-03-01 by #12" in out
    assert (
        f"main is 1 commits and 0 days after v1.0, since {git(upstream.path, 'rev-parse', 'v1.0')[:12]}; 1 of them"
        in out
    )


def test_release_branches_are_said_apart_in_words_too(upstream: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    upstream.on("release-1.1", new=True).commit(NEAR)
    upstream.tag("v1.1").on("main").commit(QUIET)
    upstream.on("release-2.0", new=True).commit(CLASH)
    upstream.tag("v2.0")
    assert main(["survey", "toy", "1.1..2.0", "--history", str(upstream.path)]) == 1
    out = capsys.readouterr().out
    assert "1 commits are on the release branch of 1.1 alone, and were taken back first" in out
    assert "the last 1 commits are on the release branch of 2.0" in out


def test_one_patch_by_halves_agrees_with_the_whole_survey(upstream: Upstream) -> None:
    for number in range(30):
        changed = CLASH[CORE] if number > 16 else TOY[CORE]
        upstream.commit({CORE: changed.replace("# line 50\n", f"# line {number}, fifty\n")}, number)
    whole, one = survey(upstream), survey(upstream, "..", "--first", "right-answer")
    assert (one.code, one.said["halved"], whole.said["halved"]) == (1, True, False)
    assert patch_of(one, "right-answer")["first"] == patch_of(whole, "right-answer")["first"]
    assert patch_of(one, "right-answer")["first"]["number"] == 17
    assert [patch["slug"] for patch in one.said["patches"]] == ["right-answer"]
    fine = survey(upstream, "..", "--first", "bring-hook")
    assert (fine.code, patch_of(fine, "bring-hook")["first"]) == (0, None)


def test_a_long_survey_says_what_it_is_at(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sm120_overlay.verbs.survey.LONG", 1)
    upstream.commit(NEAR)
    assert "toy: 2 patches on 2 revisions" in survey(upstream).err


def test_a_search_by_halves_says_what_it_takes_for_granted(
    upstream: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.commit(CLASH)
    main(["survey", "toy", "--history", str(upstream.path), "--first", "right-answer"])
    assert "what ended it is taken to stay so" in capsys.readouterr().out


def test_what_was_broken_at_the_old_end_already_is_found_by_halves(upstream: Upstream) -> None:
    broken = upstream.commit(CLASH, 1)
    upstream.commit({CORE: CLASH[CORE].replace("# line 50\n", "# line fifty\n")}, 2)
    found = patch_of(survey(upstream, f"{broken}..main", "--first", "right-answer"), "right-answer")
    assert (found["first"]["commit"], len(found["turns"])) == (broken, 1)


def test_nothing_is_written_into_the_clone(upstream: Upstream, tmp_path: Path) -> None:
    upstream.commit(CLASH)
    before = tree_of(upstream.path)
    for options in ((), ("--first", "right-answer"), ("--html", tmp_path / "x.html")):
        assert survey(upstream, "..", *options).code == 1
    assert tree_of(upstream.path) == before


def test_a_read_only_clone_is_enough(upstream: Upstream, tmp_path: Path) -> None:
    upstream.commit(NEAR)
    mirror = tmp_path / "mirror"
    git(tmp_path, "clone", "-q", "--mirror", str(upstream.path), str(mirror))
    shutil.rmtree(mirror / "refs" / "tags", ignore_errors=True)
    answer = ask("survey", "toy", "--history", mirror)
    assert (answer.code, answer.said["old"]["commit"]) == (
        0,
        git(mirror, "rev-list", "--max-parents=0", "main").strip(),
    )


def test_the_first_history_that_has_both_ends_is_taken(upstream: Upstream, toy: Toy, tmp_path: Path) -> None:
    old = toy.clone("toy", "clone-of-old")
    upstream.commit(CLASH)
    upstream.tag("v1.1")
    answer = ask("survey", "toy", "..v1.1", "--history", old, "--history", upstream.path)
    assert answer.code == 1


@pytest.mark.parametrize("name", ["v1.1", "1.1"])
def test_an_end_may_be_a_tag_a_version_or_a_commit(upstream: Upstream, name: str) -> None:
    made = upstream.commit(CLASH)
    upstream.tag("v1.1").commit(NEAR)
    assert (
        survey(upstream, f"..{name}").said["new"]["commit"]
        == survey(upstream, f"..{made}").said["new"]["commit"]
        == made
    )


def test_a_pin_whose_commit_the_history_lacks_is_laid_out_from_its_wheel(toy: Toy, upstream: Upstream) -> None:
    rewritten = toy.root / "rewritten"
    shutil.copytree(upstream.path, rewritten)
    git(rewritten, "commit", "-q", "--amend", "-m", "the same files, another commit")
    git(rewritten, "tag", "-f", "v1.0")
    git(rewritten, "reflog", "expire", "--expire=all", "--all")
    git(rewritten, "gc", "-q", "--prune=now")
    other = Upstream(rewritten)
    other.commit(CLASH)
    answer = survey(other, "v1.0..")
    assert states(answer) == {"right-answer": "conflict", "bring-hook": "clean"}
    answer = survey(other)
    assert (answer.code, "does not hold toy v1.0" in answer.said["error"]["what"]) == (4, True)


def _second_line(toy: Toy, upstream: Upstream) -> None:
    """A line v2 without a patch, pinned to a newer commit."""
    upstream.commit(NEAR)
    upstream.tag("v2.0")
    text = toy.home.pins.read_text()
    block = text[text.index("[line.v1.joint]") : text.index("[line.v1.gear]")]
    newer = block.replace("line.v1", "line.v2").replace('tag = "v1.0"', 'tag = "v2.0"')
    newer = newer.replace(toy.pin().commit, upstream.head).replace('version = "1.0"', 'version = "2.0"')
    toy.home.pins.write_text(text + newer)
    (toy.home.root / "patches/v2/toy").mkdir(parents=True)
    (toy.home.root / "patches/v2/toy/series").write_text("")


def test_the_line_is_the_one_whose_pin_is_the_old_end_or_nearest(toy: Toy, upstream: Upstream) -> None:
    _second_line(toy, upstream)
    beyond = upstream.commit(QUIET)
    upstream.commit(CLASH)
    assert survey(upstream, f"{beyond}..").said["line"] == "v2"
    assert survey(upstream, "v1.0..").said["line"] == "v1"
    assert survey(upstream, f"{beyond}..", "--line", "v1").said["line"] == "v1"
    empty = survey(upstream, "v2..", "--line", "v2")
    assert (empty.code, empty.said["patches"]) == (0, [])
    assert "has no such patch" in survey(upstream, "v2..", "--line", "v2", "--first", "hook").said["error"]["what"]


def test_a_history_that_has_no_pin_says_whose_series_goes_onto_it(toy: Toy, upstream: Upstream) -> None:
    _second_line(toy, upstream)
    git(upstream.path, "checkout", "-q", "--orphan", "retold")
    git(upstream.path, "commit", "-q", "-m", "all of it, anew")
    for name in git(upstream.path, "for-each-ref", "--format=%(refname)").split():
        if not name.endswith("/retold"):
            git(upstream.path, "update-ref", "-d", name)
    git(upstream.path, "reflog", "expire", "--expire=all", "--all")
    git(upstream.path, "gc", "-q", "--prune=now")
    upstream.commit(QUIET)
    answer = survey(upstream, "HEAD~1..HEAD")
    assert (answer.code, answer.said["line"]) == (0, "v1"), answer
    assert "none of the commits that the lines of toy are pinned to: the series of v1, the default line," in answer.err
    assert "pinned to" not in survey(upstream, "HEAD~1..HEAD", "--line", "v1").err


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (("toy", "v1.0"), 2, "expected OLD..NEW"),
        (("toy", "v1.0...main"), 2, "expected OLD..NEW"),
        (("toy", "--pre"), 2, "--pre is about --releases"),
        (("toy", "--releases", "--history", "."), 2, "together with --releases"),
        (("toy", "--first", "right-answer", "--png", "x.png"), 2, "no picture"),
        (("toy", "--html", "."), 2, "expected a file to write, found a folder"),
        (("toy", "--first", "no-such"), 2, "has no such patch"),
        (("else", ".."), 2, "has no upstream 'else'"),
        (("toy", "..v9.9"), 4, "lacks v9.9"),
        (("toy", "v9.9.."), 4, "lacks v9.9"),
        (("toy", "..", "--line", "v7"), 2, "There is no line 'v7'"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    upstream: Upstream, arguments: tuple[str, ...], code: int, what: str
) -> None:
    upstream.commit(NEAR)
    history = () if "--releases" in arguments else ("--history", upstream.path)
    answer = ask("survey", *arguments, *history)
    assert (answer.code, what in answer.said["error"]["what"]) == (code, True), answer.said["error"]


def test_without_a_history_it_says_how_to_get_one(toy: Toy, tmp_path: Path) -> None:
    answer = ask("survey", "toy")
    assert answer.code == 4
    assert answer.said["error"]["todo"].startswith(f"git clone --bare {toy.pin().repository}")
    answer = ask("survey", "toy", "--history", tmp_path / "nowhere")
    assert (answer.code, "expected a git repository" in answer.said["error"]["what"]) == (2, True)


@pytest.mark.parametrize(("pin_at_hand", "code"), [(False, 1), (True, 4)])
def test_a_partial_clone_is_refused_with_what_helps(
    upstream: Upstream, tmp_path: Path, pin_at_hand: bool, code: int
) -> None:
    for number in range(3):
        upstream.commit({CORE: TOY[CORE].replace("# line 50\n", f"# line {number}\n"), DOS: "A = 1\r\n" * number})
    git(upstream.path, "config", "uploadpack.allowFilter", "true")
    part = tmp_path / "part"
    how = ("-q", "--filter=blob:none", *(("--branch", "v1.0") if pin_at_hand else ("--no-checkout",)))
    git(tmp_path, "-c", "advice.detachedHead=false", "clone", *how, f"file://{upstream.path}", str(part))
    answer = ask("survey", "toy", "--history", part)
    assert answer.code == code
    assert "a partial clone" in answer.said["error"]["what"]


def test_another_projects_history_is_refused(toy: Toy) -> None:
    gear = Upstream(toy.upstream("gear")).tag("v1.0")
    gear.commit(QUIET)
    answer = survey(gear, "v1.0..")
    assert (answer.code, "has none of the 4 files" in answer.said["error"]["what"]) == (2, True)


def test_an_older_git_is_named(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sm120_overlay.queue.merging.git_version", lambda repo: (2, 34, 1))
    answer = survey(upstream)
    assert (answer.code, "git 2.34.1" in answer.said["error"]["what"]) == (4, True)


def test_overlay_files_go_in_as_long_as_upstream_has_none_there(upstream: Upstream) -> None:
    upstream.commit({HOOK: "HOOK = 7\n"}, 1)
    assert states(survey(upstream)) == {"right-answer": "clean", "bring-hook": "conflict"}


def test_the_document_names_every_key(upstream: Upstream) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "json.md").read_text()
    part = text[text.index("### survey") : text.index("### resolve")]
    upstream.commit(CLASH, 1)
    said = survey(upstream).said
    for place in (said, said["new"], said["patches"][0], said["patches"][0]["turns"][0]):
        for key in place.keys() - {"schema", "verb"}:
            assert f"`{key}`" in part, key


def test_the_shim_runs_the_verb(upstream: Upstream) -> None:
    shim = Path(__file__).resolve().parents[2] / "tools" / "survey.py"
    assert os.access(shim, os.X_OK) == os.access(shim.with_name("adopt.py"), os.X_OK)
    assert 'main(["survey"' in shim.read_text()
