"""What a run can see of a revision, and what an environment for it is built from, each as the name of its content."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from ..queue.git import Repository, object_ids, read_objects, tree_entries
from ..queue.pins import Pin
from ..queue.toml import BadToml, parse_toml

BUILD = ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "build_backend.py")
NATIVE = ("csrc", "include")
BESIDE = ("pyproject.toml", ".gitmodules")  # these are read, the others of BUILD count by their bytes
EXACT = re.compile(r"([A-Za-z0-9][\w.-]*)\s*(?:\[[^]]*\])?\s*\(?===?\s*([^\s;,)*]+)\)?\s*(?:;|$)")


@dataclass(frozen=True)
class Keys:
    """The names of a revision's content, and the exact versions that it requires, by distribution."""

    key: str
    build_key: str
    pins: Mapping[str, str]


def keys_of_commits(repo: Repository, pin: Pin, trees: Sequence[str], sees: Sequence[str] = ()) -> list[Keys]:
    """The keys of trees that are laid out as upstream's repository.

    A run sees the package, what its project file and those beside it require, and the commits of submodules; an
    environment is built from these files and submodules, and from sources that are no Python.

    Args:
        sees: paths outside the packages that a run sees, too; an environment may be built from them.
    """
    prefixes = [prefix.rstrip("/") for prefix, _ in pin.paths]
    folders = sorted({str(PurePosixPath(prefix).parent) for prefix in prefixes})
    beside = [str(PurePosixPath(folder, name)) for folder in folders for name in BUILD]
    found = _ids(repo, trees, [*prefixes, *beside, *sees, ".gitmodules"])
    read = [path for path in (*beside, ".gitmodules") if path.endswith(BESIDE)]
    blobs = read_objects(repo, {found[tree, path] for tree in trees for path in read} - {""})
    texts = {blob: each.data for blob, each in blobs.items() if each}
    modules = {tree: _submodules(texts.get(found[tree, ".gitmodules"], b"")) for tree in trees}
    found |= _ids(repo, trees, sorted({folder for folders in modules.values() for folder in folders}))
    native = [prefix for prefix in prefixes if PurePosixPath(prefix).name in NATIVE]
    plain = [path for path in beside if not path.endswith(BESIDE)]

    def keys(tree: str) -> Keys:
        said = [_said(texts.get(found[tree, path], b"")) for path in read if path.endswith("pyproject.toml")]
        seen = [f"{path} {found[tree, path]}" for path in (*prefixes, *plain, *sees, *modules[tree])]
        built = [f"{path} {found[tree, path]}" for path in (*beside, *native, *sees, *modules[tree])]
        return Keys(
            _named([*seen, *(each.text for each in said)]), _named(built), _pins(n for s in said for n in s.needs)
        )

    known = {tree: keys(tree) for tree in dict.fromkeys(trees)}
    return [known[tree] for tree in trees]


def _ids(repo: Repository, trees: Sequence[str], paths: Sequence[str]) -> dict[tuple[str, str], str]:
    """(tree, path) → the id of what lies there, "" where nothing does; the path "." is the tree."""
    names = {(tree, path): f"{tree}:{'' if path == '.' else path}" for tree in dict.fromkeys(trees) for path in paths}
    ids = object_ids(repo, names.values())
    return {place: ids[name] or "" for place, name in names.items()}


def _submodules(data: bytes) -> tuple[str, ...]:
    """The folders that submodules lie in: the id of such a folder names their commits, which no repository holds."""
    found = re.findall(r"^\s*path\s*=\s*(.+?)\s*$", data.decode("utf-8", "replace"), re.MULTILINE)
    return tuple(sorted({str(PurePosixPath(path).parent) for path in found}))


def keys_of_releases(repo: Repository, trees: Sequence[str]) -> list[Keys]:
    """The keys of trees that are laid out as a wheel installs them."""
    return [_of_release(repo, tree) for tree in trees]


def _of_release(repo: Repository, tree: str) -> Keys:
    entries = tree_entries(repo, tree, [])
    about = next((path for path in sorted(entries) if path.endswith(".dist-info/METADATA")), "")
    found = read_objects(repo, [entries[about].blob]).values() if about else ()
    text = "".join(each.data.decode("utf-8", "replace") for each in found if each)
    needs = re.findall(r"^Requires-Dist: (?!.*;.*\bextra\s*==)(.+)$", text.partition("\n\n")[0], re.MULTILINE)
    package = [f"{path} {entry.blob}" for path, entry in sorted(entries.items()) if ".dist-info/" not in path]
    return Keys(_named([*package, *sorted(needs)]), _named(sorted(needs)), _pins(needs))


@dataclass(frozen=True)
class _Said:
    """What a project file says of its environment: all of it in one text, and what it requires."""

    text: str
    needs: tuple[str, ...]


def _said(data: bytes) -> _Said:
    try:
        file = parse_toml(data)[1]
    except BadToml:  # whatever it requires, another text of it is another program
        return _Said(hashlib.sha256(data).hexdigest(), ())
    project = file.get("project", {})
    more = project.get("optional-dependencies") or {}
    needs = [*(project.get("dependencies") or ()), *(need for group in more.values() for need in group)]
    parts = (sorted(map(str, needs)), file.get("build-system"), file.get("tool", {}).get("setuptools"))
    return _Said(json.dumps(parts, sort_keys=True, default=str), tuple(map(str, needs)))


def _pins(needs: Iterable[str]) -> dict[str, str]:
    """Distribution → its exact version; all of them where markers name several."""
    found: dict[str, set[str]] = {}
    for need in needs:
        match = EXACT.match(need)
        if match:
            found.setdefault(re.sub(r"[-_.]+", "-", match[1]).lower(), set()).add(match[2])
    return {name: " or ".join(sorted(versions)) for name, versions in found.items()}


def _named(rows: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(rows).encode("utf-8", "surrogateescape")).hexdigest()
