"""A revision of upstream as files: laid out as pip installs it, and beside it the test that is to judge it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from .git import Repository, read_objects, tree_entries
from .home import Home
from .pins import Pin
from .toml import BadToml, parse_toml
from .wheels import unpack

SITE = "site"  # below the folder of a layout: what an installer would have filled


def upstream_tests(home: Home, upstream: str, slug: str) -> dict[str, bytes]:
    """A patch's test in the form of upstream's suite, by its path there; empty where none is written."""
    folder = home.root / "upstream" / upstream / slug
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and "__pycache__" not in file.parts)
    return {str(PurePosixPath(file.relative_to(folder))): file.read_bytes() for file in files}


def lay_out_revision(
    repo: Repository, commit: str, pin: Pin, wheel: Path, tests: Mapping[str, bytes], folder: Path
) -> Path:
    """The site-packages of a revision, below `folder`; the tests lie beside it, at their paths in the repository.

    What a repository does not hold (generated files, submodules, metadata) is the wheel's; requirements are the
    revision's own, where its project file names them.
    """
    site = folder / SITE
    site.mkdir()
    unpack(wheel, site)
    entries = tree_entries(repo, commit, [prefix for prefix, _ in pin.paths])
    places = {path: pin.installed_path(path) for path, entry in entries.items() if entry.mode.startswith("100")}
    blobs = read_objects(repo, [entries[path].blob for path, place in places.items() if place])
    kept = {place for place in places.values() if place}
    for file in [file for file in site.rglob("*") if file.is_file()]:
        name = str(PurePosixPath(file.relative_to(site)))
        if pin.repository_path(name) and name not in kept:
            file.unlink()
    for path, place in places.items():
        found = blobs.get(entries[path].blob) if place else None
        if place and found:
            _write(site / place, found.data)
    _require(repo, commit, pin, site)
    for path, data in {**_around(repo, commit, tests), **tests}.items():
        _write(folder / path, data)
    return site


def _write(place: Path, data: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)


def _around(repo: Repository, commit: str, tests: Iterable[str]) -> dict[str, bytes]:
    """What pytest reads on the way to a test: the conftest.py and __init__.py of the folders above it."""
    folders = {parent for path in tests for parent in PurePosixPath(path).parents if parent.name}
    names = {
        f"{commit}:{folder / name}": str(folder / name) for folder in folders for name in ("conftest.py", "__init__.py")
    }
    return {names[name]: found.data for name, found in read_objects(repo, names).items() if found}


def _require(repo: Repository, commit: str, pin: Pin, site: Path) -> None:
    """The requirements that the revision's pyproject.toml names, in the metadata."""
    above = {str(PurePosixPath(prefix).parent) for prefix, _ in pin.paths}
    names = [f"{commit}:{PurePosixPath(folder, 'pyproject.toml')}" for folder in sorted(above)]
    found = next((one for one in read_objects(repo, names).values() if one), None)
    try:
        said = parse_toml(found.data)[1].get("project", {}) if found else {}
    except BadToml:
        said = {}
    wanted = said.get("dependencies")
    for metadata in site.glob(f"{pin.distribution.replace('-', '_')}-*.dist-info/METADATA") if wanted else ():
        text = metadata.read_text(encoding="utf-8")
        plain = re.sub(r"^Requires-Dist: (?!.*extra ==).*\n", "", text, flags=re.MULTILINE)
        head, gap, rest = plain.rstrip("\n").partition("\n\n")
        rows = "".join(f"\nRequires-Dist: {requirement}" for requirement in wanted or ())
        metadata.write_text(head + rows + gap + rest + "\n", encoding="utf-8")
