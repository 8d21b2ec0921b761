"""What a move refuses that no other test comes to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sm120_overlay.queue.git import Entry, GitError, Repository
from sm120_overlay.queue.merging import Sides, merge_files
from sm120_overlay.queue.origin import NAME
from sm120_overlay.queue.rebasing import state_file

from ..queue.toy import Toy, git
from .releases import core, rebase, release


def test_a_git_that_answers_fewer_merges_than_it_was_asked_is_not_believed(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = Repository(toy.upstream())
    blob = git(toy.upstream(), "rev-parse", "HEAD:README.md").strip()
    monkeypatch.setattr("sm120_overlay.queue.merging.run", lambda *words, **more: b"")
    entry = Entry("100644", blob)
    with pytest.raises(GitError, match="0 answers to 1 merges"):
        merge_files(repo, [Sides(entry, entry, entry)])


def test_an_origin_that_was_edited_is_refused(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    release(toy, "2.0", core(("# line 10\n", "# line ten\n")))
    assert rebase("--onto", "2.0", "--source", "pypi", "--unproved") == 0
    origin = toy.home.patches("v2.0", "toy") / NAME
    for text in ("not toml [", origin.read_text() + "# mine\n", "schema = 2\n"):
        origin.write_text(text)
        assert rebase("--onto", "2.0", "--from", "v1", "--source", "pypi") == 2
        assert "expected what tools/rebase.py writes" in capsys.readouterr().err


def test_a_state_that_cannot_be_read_is_kept_and_named(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    release(toy, "2.0", core(("return 41", "return 40")))
    assert rebase("--onto", "2.0", "--source", "pypi") == 3
    state_file(toy.home, "toy").write_text('{"schema": 99}')
    assert rebase("--continue") == 1
    assert "cannot read" in capsys.readouterr().err
    assert state_file(toy.home, "toy").read_text() == '{"schema": 99}'


def test_a_skip_of_a_patch_that_there_is_not_is_refused(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    release(toy, "2.0", core(("return 41", "return 40")))
    assert rebase("--onto", "2.0", "--source", "pypi") == 3
    assert rebase("--slug", "no-such", "--skip", "absorbed: toy#201, v2.0") == 2
    assert "expected a patch of the move, found no-such" in capsys.readouterr().err


def test_a_series_is_not_moved_inside_an_installed_wheel(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(Path(toy.home.root, "tests"))
    assert rebase("--onto", "2.0", "--source", "pypi") == 4
    assert "is moved in a clone of this project" in capsys.readouterr().err
