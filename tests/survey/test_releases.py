"""Releases of the package index: which there are, what each does to every patch, and that nothing is fetched twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120_overlay.cache import cache_dir
from sm120_overlay.errors import Missing, UsageError
from sm120_overlay.queue.releases import chosen, released
from sm120_overlay.queue.wheels import ask_pip

from ..queue.scenes import Answer, ask
from ..queue.toy import TOY, Toy
from ..rebase.releases import release
from .upstream import CLASH, CORE, NEAR, QUIET, RENAMED, TAKEN, patch_of, states


def survey(*arguments: object) -> Answer:
    return ask("survey", "toy", "--releases", *arguments)


@pytest.fixture
def listed(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy's index without a process of pip's: it says what lies in the folder of wheels."""

    def index(*arguments: str) -> str:
        found = [file.name.split("-")[1] for file in toy.wheels.glob("toy-*.whl")]
        versions = sorted(found, key=lambda version: (version.partition("rc")[0], "rc" not in version), reverse=True)
        fine = [version for version in versions if "--pre" in arguments or "rc" not in version]
        return f"toy ({fine[0]})\nAvailable versions: {', '.join(fine)}\n"

    monkeypatch.setattr("sm120_overlay.queue.releases.ask_pip", index)


def test_every_release_since_the_pin_is_looked_at(toy: Toy, listed: None) -> None:
    release(toy, "1.1", NEAR)
    release(toy, "2.0", CLASH)
    release(toy, "2.1", {CORE: CLASH[CORE].replace("# line 50\n", "# line fifty\n")})
    answer = survey()
    assert (answer.code, answer.said["kind"], answer.said["commits"]) == (1, "releases", 3)
    assert (answer.said["old"]["commit"], answer.said["new"]["commit"]) == ("1.0", "2.1")
    found = patch_of(answer, "right-answer")
    assert (found["first"]["commit"], found["first"]["number"], found["changes"]) == ("2.0", None, 3)
    assert states(answer) == {"right-answer": "conflict", "bring-hook": "clean"}


def test_both_ways_of_looking_agree(toy: Toy, listed: None) -> None:
    release(toy, "1.1", NEAR, QUIET)
    release(toy, "2.0", TAKEN)
    release(toy, "3.0", RENAMED)
    by_commits = ask("survey", "toy", "1.0..3.0", "--history", toy.upstream())
    for name in ("right-answer", "bring-hook"):
        assert patch_of(survey("1.0..3.0"), name)["state"] == patch_of(by_commits, name)["state"]


def test_a_renamed_file_is_followed_and_a_lost_one_is_gone(toy: Toy, listed: None) -> None:
    release(toy, "2.0", RENAMED)
    release(toy, "3.0", {"python/toy/heart.py": None})
    assert states(survey("..2.0")) == {"right-answer": "moved", "bring-hook": "moved"}
    assert states(survey()) == {"right-answer": "gone", "bring-hook": "gone"}


def test_candidates_are_left_out_unless_they_are_asked_for(toy: Toy, listed: None) -> None:
    release(toy, "1.1rc1", CLASH)
    release(toy, "1.1", {CORE: TOY[CORE]})
    assert survey().code == 0
    turns = patch_of(survey("--pre"), "right-answer")["turns"]
    assert [turn["commit"] for turn in turns] == ["1.0", "1.1rc1", "1.1"]
    assert patch_of(survey("..1.1rc1", "--pre"), "right-answer")["first"]["commit"] == "1.1rc1"
    answer = survey("..1.1rc1")
    assert (answer.code, "1.1rc1 is not among the 2 releases" in answer.said["error"]["what"]) == (2, True)


def test_a_part_of_the_releases(toy: Toy, listed: None) -> None:
    release(toy, "1.1", NEAR)
    release(toy, "2.0", CLASH)
    assert survey("v1.0..v1.1").code == 0
    assert survey("1.1..").said["old"]["commit"] == "1.1"
    answer = survey("2.0..1.1")
    assert (answer.code, "older than the first" in answer.said["error"]["what"]) == (2, True)


def test_one_patch_by_halves_among_releases(toy: Toy, listed: None) -> None:
    release(toy, "1.1", NEAR)
    release(toy, "2.0", CLASH)
    answer = survey("--first", "right-answer")
    assert (answer.code, patch_of(answer, "right-answer")["first"]["commit"]) == (1, "2.0")


def test_nothing_is_fetched_twice(toy: Toy, listed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    release(toy, "2.0", CLASH)
    monkeypatch.setattr("sm120_overlay.queue.wheels._run", lambda *arguments: pytest.fail("pip was asked"))
    assert "downloading" not in survey().err
    assert cache_dir("releases", "toy-2.0").is_dir()


def test_in_words_and_pictures(toy: Toy, listed: None, tmp_path: Path) -> None:
    release(toy, "2.0", CLASH)
    answer = survey("--html", tmp_path / "x.html")
    assert answer.said["written"] == [str(tmp_path / "x.html")]
    page = (tmp_path / "x.html").read_text()
    assert ">1.0</text>" in page and ">2.0</text>" in page
    assert "/pull/" not in page


@pytest.mark.slow
def test_pip_itself_lists_and_fetches_the_toys_wheels(toy: Toy) -> None:
    release(toy, "2.0", CLASH)
    release(toy, "2.1rc1", NEAR)
    assert released("toy") == ("1.0", "2.0")
    assert released("toy", early=True) == ("1.0", "2.0", "2.1rc1")
    with pytest.raises(Missing, match="pip index versions nothing-of-ours"):
        released("nothing-of-ours")


def test_an_index_that_answers_otherwise_is_no_empty_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sm120_overlay.queue.releases.ask_pip", lambda *arguments: "something else")
    with pytest.raises(Missing, match="lists no versions"):
        released("toy")


def test_releases_are_chosen_by_their_order_in_the_list() -> None:
    versions = ("1.9", "1.10", "1.10.post1", "2.0")
    assert chosen(versions, "1.10", "", "toy") == ("1.10", "1.10.post1", "2.0")
    assert chosen(versions, "1.9", "1.10", "toy") == ("1.9", "1.10")
    with pytest.raises(UsageError):
        chosen(versions, "1.8", "2.0", "toy")


@pytest.mark.slow
@pytest.mark.network
def test_the_real_index_has_the_releases_after_a_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(variable, raising=False)
    versions = released("flashinfer-python")
    assert versions.index("0.6.3") < versions.index("0.6.14")
    assert not any("rc" in version for version in versions)
    assert "flashinfer-python" in ask_pip("index", "versions", "flashinfer-python")
