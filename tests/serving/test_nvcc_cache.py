"""The compile cache: a hit only on the same bytes, on whatever tree, and never on a half-trusted entry."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm120_overlay.serving.nvcc.cache import Store, exclusive


def make_tree(root: Path, headers: dict[str, str]) -> Path:
    """A tree with these headers."""
    for name, text in headers.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def store_of(tmp_path: Path, tree: Path) -> Store:
    return Store(tmp_path / "cache", {"tree": tree})


def keep(store: Store, tmp_path: Path, headers: list[Path], content: bytes = b"made") -> Path:
    output = tmp_path / "output.ptx"
    output.write_bytes(content)
    return store.keep("key", output, headers)


def only_entry(tmp_path: Path) -> Path:
    (entry,) = (tmp_path / "cache" / "entries" / "key").glob("*.json")
    return entry


def test_another_tree_with_the_same_header_bytes_is_a_hit(tmp_path: Path) -> None:
    first = make_tree(tmp_path / "first", {"a.h": "1", "unread.h": "x"})
    second = make_tree(tmp_path / "second", {"a.h": "1", "unread.h": "y"})
    kept = keep(store_of(tmp_path, first), tmp_path, [first / "a.h"])
    assert store_of(tmp_path, second).find("key") == kept
    assert kept.read_bytes() == b"made"


@pytest.mark.parametrize("headers", [{"a.h": "2"}, {}], ids=["changed", "gone"])
def test_a_tree_with_another_header_is_a_miss(tmp_path: Path, headers: dict[str, str]) -> None:
    first = make_tree(tmp_path / "first", {"a.h": "1"})
    second = make_tree(tmp_path / "second", {"other.h": "", **headers})
    keep(store_of(tmp_path, first), tmp_path, [first / "a.h"])
    assert store_of(tmp_path, second).find("key") is None


def test_another_key_is_a_miss(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", {"a.h": "1"})
    store = store_of(tmp_path, tree)
    keep(store, tmp_path, [tree / "a.h"])
    assert store.find("other") is None


def test_each_tree_gets_its_own_result_of_one_key(tmp_path: Path) -> None:
    trees = [make_tree(tmp_path / name, {"a.h": name}) for name in ("red", "green")]
    for tree in trees:
        keep(store_of(tmp_path, tree), tmp_path, [tree / "a.h"], tree.name.encode())
    found = [store_of(tmp_path, tree).find("key") for tree in trees]
    assert [path.read_bytes() for path in found if path is not None] == [b"red", b"green"]


def test_a_header_edited_in_place_is_a_miss(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", {"a.h": "1"})
    store = store_of(tmp_path, tree)
    keep(store, tmp_path, [tree / "a.h"])
    (tree / "a.h").write_text("22")
    assert store.find("key") is None


def test_headers_outside_the_roots_are_not_recorded(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", {"a.h": "1"})
    keep(store_of(tmp_path, tree), tmp_path, [tree / "a.h", Path("/usr/include/stdio.h")])
    assert list(json.loads(only_entry(tmp_path).read_text())["headers"]) == ["tree:a.h"]


@pytest.mark.parametrize("damage", [b"", b"mad", b"made."])
def test_a_damaged_output_is_a_miss_and_is_repaired_by_the_next_keep(tmp_path: Path, damage: bytes) -> None:
    tree = make_tree(tmp_path / "tree", {"a.h": "1"})
    store = store_of(tmp_path, tree)
    kept = keep(store, tmp_path, [tree / "a.h"])
    kept.write_bytes(damage)
    assert store.find("key") is None
    keep(store, tmp_path, [tree / "a.h"])
    assert store.find("key") == kept


@given(garbage=st.binary(max_size=60) | st.sampled_from([b"[]", b"{}", b'{"output": 1}', b"null"]))
def test_a_damaged_entry_is_a_miss(tmp_path_factory: pytest.TempPathFactory, garbage: bytes) -> None:
    tmp_path = tmp_path_factory.mktemp("damaged")
    tree = make_tree(tmp_path / "tree", {"a.h": "1"})
    store = store_of(tmp_path, tree)
    keep(store, tmp_path, [tree / "a.h"])
    only_entry(tmp_path).write_bytes(garbage)
    assert store.find("key") is None


@pytest.mark.parametrize("executable", [True, False])
def test_an_output_stays_as_executable_as_it_was(tmp_path: Path, executable: bool) -> None:
    tree = make_tree(tmp_path / "tree", {"a.h": "1"})
    output = tmp_path / "output.exe"
    output.write_bytes(b"made")
    output.chmod(0o755 if executable else 0o644)
    kept = store_of(tmp_path, tree).keep("key", output, [tree / "a.h"])
    assert os.access(kept, os.X_OK) == executable


def test_a_failed_publish_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = make_tree(tmp_path / "tree", {"a.h": "1"})

    def full_disk(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        keep(store_of(tmp_path, tree), tmp_path, [tree / "a.h"])
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def _append(log: Path) -> None:
    with exclusive(log.with_name("place")):
        seen = log.read_text()
        log.write_text(f"{seen}in ")
        log.write_text(f"{log.read_text()}out ")


def test_only_one_process_at_a_time_makes_a_place(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_append, args=(log,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert log.read_text() == "in out " * 4
