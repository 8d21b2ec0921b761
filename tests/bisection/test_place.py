"""Trees on a host: whole, once each, and kept while they are in use."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from sm120_overlay.bisection.job import Cell, How, Job, Metric
from sm120_overlay.bisection.place import placed


def packed(**files: str) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return content.getvalue()


@pytest.fixture
def job(tmp_path: Path) -> Callable[[str], Job]:
    cell = Cell("true", Metric(How.EXIT))
    return lambda tree: Job(
        0, 0, "c" * 40, tree, "key", "build", cell, str(tmp_path), archive=packed(**{"python/a.py": tree})
    )


def trees(work: Path) -> set[str]:
    return {folder.name for folder in (work / "trees").iterdir()}


def test_a_tree_is_unpacked_once_from_bytes_or_from_a_file(job: Callable[[str], Job], tmp_path: Path) -> None:
    with placed(job("one")) as (folder, _):
        assert (folder / "python/a.py").read_text() == "one"
    with placed(replace(job("one"), archive=b"no tar: not read again")) as (again, _):
        assert again == folder
    (tmp_path / "two.tar").write_bytes(packed(b="two"))
    with placed(replace(job("two"), archive=None, tree_file=str(tmp_path / "two.tar"))) as (folder, _):
        assert (folder / "b").read_text() == "two"


def test_a_member_that_leaves_the_folder_is_refused_and_nothing_is_left(
    job: Callable[[str], Job], tmp_path: Path
) -> None:
    with pytest.raises(tarfile.TarError), placed(replace(job("bad"), archive=packed(**{"../../out": "x"}))):
        pass
    assert trees(tmp_path) == set()
    assert not (tmp_path.parent / "out").exists()


def test_the_least_recently_used_trees_are_removed_but_none_in_use(job: Callable[[str], Job], tmp_path: Path) -> None:
    with placed(job("old"), kept=2):
        for tree in ("a", "b", "a", "c"):
            with placed(job(tree), kept=2):
                pass
        assert trees(tmp_path) == {"old", "a", "c"}
    with placed(job("c"), kept=2):
        assert trees(tmp_path) == {"a", "c"}


def test_what_a_killed_run_left_half_unpacked_is_removed(job: Callable[[str], Job], tmp_path: Path) -> None:
    (tmp_path / "trees/.gone-x1y2").mkdir(parents=True)
    with placed(job("one")):
        assert trees(tmp_path) == {"one"}


def test_workers_at_once_find_whole_trees(job: Callable[[str], Job]) -> None:
    def read(number: int) -> bool:
        tree = "abc"[number % 3]
        with placed(job(tree), kept=1) as (folder, _):
            return (folder / "python/a.py").read_text() == tree

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(60)))
