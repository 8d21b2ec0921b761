"""How the files of one revision become those of the next, read from git in a few processes."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import PurePosixPath
from posixpath import join, normpath

from ...errors import Missing, Refused
from ...queue.git import Change, Entry, Repository, object_ids, read_objects, run, tree_entries
from .graph import Module, module, module_name
from .rules import Rules
from .source import Ask, Source, read

LINK = "120000"
AT_ONCE = 400  # files whose text is in memory together


def python_files(repo: Repository, tree: str, rules: Rules) -> dict[str, Entry]:
    """Path → entry of every file of a tree that can be imported."""
    entries = tree_entries(repo, tree, [rules.folder] if rules.folder else [])
    return {path: entry for path, entry in entries.items() if module_name(path, rules.folder)}


def differences(repo: Repository, trees: Sequence[str]) -> list[tuple[Change, ...]]:
    """What differs at each step from one tree to the next; one process for all.

    Raises:
        Missing: the repository does not hold one of them.
    """
    ids = object_ids(repo, [f"{tree}^{{tree}}" for tree in trees])
    lost = next((tree[:12] for tree in trees if ids[f"{tree}^{{tree}}"] is None), None)
    if lost:
        # why: git would repeat the name as if it were a difference
        raise Missing(f"{repo.path}: {lost} is no commit and no tree there.", "Fetch it, or name another end.")
    asked = "".join(f"{old} {new}\n" for old, new in pairwise(ids[f"{tree}^{{tree}}"] for tree in trees))
    how = ("--stdin", "-r", "-z", "--no-renames", "--full-index", "--no-ext-diff")
    parts = iter(run(repo, "diff-tree", *how, stdin=asked.encode()).split(b"\0"))
    steps: list[list[Change]] = []
    for part in parts:
        head = part.decode()
        while not head.startswith(":") and head:  # a step is announced by its two trees, on a line of their own
            steps.append([])
            _, _, head = head.partition("\n")
        if head:
            old_mode, new_mode, old_blob, new_blob, _ = head.lstrip(":").split(" ")
            before = None if old_mode == "000000" else Entry(old_mode, old_blob)
            after = None if new_mode == "000000" else Entry(new_mode, new_blob)
            steps[-1].append(Change(os.fsdecode(next(parts)), before, after))
    return [tuple(step) for step in steps]


def modules_of(repo: Repository, files: Mapping[str, Entry], rules: Rules) -> list[Module]:
    """The modules that files are, parsed.

    Raises:
        Refused: the repository does not hold a file's text.
    """
    wanted = list(files.items())
    starts = range(0, len(wanted), AT_ONCE)
    with _no_collection():
        return [file for start in starts for file in _batch(repo, wanted[start : start + AT_ONCE], rules)]


@contextmanager
def _no_collection() -> Iterator[None]:
    """A syntax tree is a million objects and no cycle: looking for cycles among them takes a third of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _batch(repo: Repository, files: Sequence[tuple[str, Entry]], rules: Rules) -> Iterator[Module]:
    attributes = frozenset(sweep.attribute for sweep in rules.sweeps)
    objects = read_objects(repo, [entry.blob for _, entry in files])
    sources: dict[str, Source] = {}
    for path, entry in files:
        found = objects[entry.blob]
        if found is None:
            # why: what a file asks for cannot be told without its text
            raise Refused(f"{repo.path}: {path} cannot be read: a partial clone.", "Clone it again without a filter.")
        if entry.mode == LINK:
            yield module(path, rules.folder, _link(path, found.data, rules))
            continue
        if entry.blob not in sources:
            sources[entry.blob] = read(found.data, rules.packages, attributes)
        yield module(path, rules.folder, sources[entry.blob])


def _link(path: str, data: bytes, rules: Rules) -> Source:
    """A link asks for the file that it leads to."""
    target = normpath(join(str(PurePosixPath(path).parent), data.decode("utf-8", "replace")))
    name = module_name(target, rules.folder)
    return Source(
        (Ask((name,), False, 1, "is a link to it"),) if name else (), broken="" if name else "a link elsewhere"
    )
