"""Remembers what a compiler made, by content, in the way of ccache's direct mode.

An entry is found by its key (everything but the headers) and is a hit for a tree in which every header that the
first compile read has the same bytes. Header names are relative to the tree, so a second tree with those bytes hits
too. As in ccache's direct mode, a header that appears only later, at a place searched earlier, goes unseen.

Every file is published by one rename and its content is checked when it is used: a torn or edited entry is a miss.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...cache import publish_file


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of results; `roots` are the folders that header names are relative to, by a short name."""

    folder: Path
    roots: Mapping[str, Path]

    def find(self, key: str) -> Path | None:
        """The stored output for `key` whose headers are all as they are now, None where there is none."""
        for entry in sorted((self.folder / "entries" / key).glob("*.json")):
            output = self._trusted(entry)
            if output is not None:
                return output
        return None

    def _trusted(self, entry: Path) -> Path | None:
        try:
            recorded = json.loads(entry.read_bytes())
            output = self._object(recorded["output"], recorded["suffix"])
            headers: dict[str, str] = recorded["headers"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        if any(self._digest_of(name) != digest for name, digest in headers.items()):
            return None
        return output if _digest(output) == recorded["output"] else None

    def keep(self, key: str, output: Path, headers: Iterable[Path]) -> Path:
        """Stores a copy of `output` under `key` and the bytes of `headers`; headers outside the roots are not named."""
        digest = _digest(output)
        assert digest is not None, f"{output} vanished"
        named = {name: self._digest_of(name) for path in headers if (name := self._name(path)) is not None}
        stored = self._object(digest, output.suffix)
        publish_file(stored, output.read_bytes(), executable=os.access(output, os.X_OK))
        record = json.dumps({"output": digest, "suffix": output.suffix, "headers": named}, indent=0, sort_keys=True)
        variant = hashlib.sha256(record.encode()).hexdigest()[:16]
        publish_file(self.folder / "entries" / key / f"{variant}.json", record.encode())
        return stored

    def _object(self, digest: str, suffix: str) -> Path:
        return self.folder / "objects" / digest[:2] / f"{digest}{suffix}"

    def _name(self, path: Path) -> str | None:
        for name, root in self.roots.items():
            if path.is_relative_to(root):
                return f"{name}:{path.relative_to(root)}"
        return None

    def _digest_of(self, name: str) -> str | None:
        root, _, relative = name.partition(":")
        return _digest(self.roots[root] / relative) if root in self.roots else None


@contextmanager
def exclusive(place: Path) -> Iterator[None]:
    """Waits until no other process is making `place`; the lock dies with its holder."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f".{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _digest(path: Path) -> str | None:
    """A file's sha256, None where there is none; hashed once while its size and times stay."""
    try:
        facts = path.stat()
        return _hash(path, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)
    except OSError:
        return None


@functools.cache
def _hash(path: Path, *_facts: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
