"""The cache: where it is, and that nothing in it is ever half there."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120_overlay.cache import cache_dir, publish


def test_the_variable_names_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SM120_OVERLAY_CACHE", str(tmp_path))
    assert cache_dir("wheels", "x") == tmp_path / "wheels" / "x"


@pytest.mark.parametrize("unset", [None, ""])
def test_without_the_variable_the_cache_is_the_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, unset: str | None
) -> None:
    monkeypatch.delenv("SM120_OVERLAY_CACHE", raising=False)
    if unset is not None:
        monkeypatch.setenv("SM120_OVERLAY_CACHE", unset)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "sm120-overlay"


def test_what_is_published_is_whole_and_made_once(tmp_path: Path) -> None:
    made = []

    def fill(folder: Path) -> None:
        made.append(folder)
        (folder / "a").write_text("a")
        assert not (tmp_path / "place").exists(), "nothing is there before it is whole"

    for _ in range(2):
        assert (publish(tmp_path / "place", fill) / "a").read_text() == "a"
    assert len(made) == 1


def test_a_failure_publishes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "a").write_text("half")
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        publish(tmp_path / "place", fill)
    assert list(tmp_path.iterdir()) == []


def test_the_first_of_two_runs_wins_and_the_second_takes_its_work(tmp_path: Path) -> None:
    def first(folder: Path) -> None:
        (folder / "a").write_text("first")

    def second(folder: Path) -> None:
        (folder / "a").write_text("second")
        publish(tmp_path / "place", first)

    assert (publish(tmp_path / "place", second) / "a").read_text() == "first"
