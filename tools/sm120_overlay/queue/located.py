"""Which repository paths the names of a foreign diff mean.

git writes the path itself, perhaps as it is in an installed package. `diff -u` writes any folders before it: a file
that is changed is known by being there, a new one by how the names of the others are meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from .foreign import Foreign
from .pins import Pin

NO_PLACE = "has no place in the installed package (a test, a document, generated)"


def names(found: Foreign) -> tuple[str, ...]:
    """The one or two names of a file of a diff."""
    return tuple(dict.fromkeys(name for name in (found.source, found.path) if name))


def suffixes(found: Foreign, name: str) -> tuple[str, ...]:
    """What a name may say: itself, and of `diff -u` without its first folder, its first two, and so on."""
    parts = name.split("/")
    return tuple("/".join(parts[start:]) for start in range(len(parts))) if found.plain else (name,)


def readings(pin: Pin, found: Foreign, name: str) -> tuple[str | None, ...]:
    """The repository path that each suffix of a name means (None: no patch may touch it)."""
    return tuple(
        suffix if pin.installed_path(suffix) is not None else pin.repository_path(suffix)
        for suffix in suffixes(found, name)
    )


def locate(pin: Pin, files: Sequence[Foreign], there: Callable[[str], bool]) -> tuple[Foreign, ...]:
    """The files with repository paths for names; of which name that cannot be said, it is the file's `problem`.

    Args:
        there: whether a repository path is a file, on the branch or at the pin.
    """
    depths = _depths(pin, files, there)
    return tuple(_located(pin, one, depths, there) for one in files)


def _depths(pin: Pin, files: Sequence[Foreign], there: Callable[[str], bool]) -> set[int]:
    """How many folders every name of a `diff -u` may have too many, by its files that are there."""
    found = [
        {depth for depth, path in enumerate(readings(pin, one, one.source)) if path and there(path)}
        for one in files
        if one.plain and one.source
    ]
    known = [depths for depths in found if depths]
    return set.intersection(*known) if known else set() if found else {1}


def _located(pin: Pin, found: Foreign, depths: set[int], there: Callable[[str], bool]) -> Foreign:
    paths = {name: sorted(set(_meant(pin, found, name, depths, there))) for name in names(found)}
    odd = next((name for name, meant in paths.items() if len(meant) != 1), None)
    if odd is None:
        source, path = (paths[name][0] if name else None for name in (found.source, found.path))
        return replace(found, source=source, path=path)
    if paths[odd]:
        said = f"may mean any of {', '.join(paths[odd])}: make the diff with git"
    elif any(readings(pin, found, odd)):
        said = "is named with folders before it, and no file of the diff that is there tells which: make it with git"
    else:
        said = NO_PLACE
    return replace(found, source=None, path=odd, problem=said)


def _meant(pin: Pin, found: Foreign, name: str, depths: set[int], there: Callable[[str], bool]) -> Iterator[str]:
    """The repository paths that a name can mean."""
    every = readings(pin, found, name)
    lying = [path for path in every if path and there(path)] if found.plain and found.source else []
    if found.plain and not lying:
        lying = [str(every[depth]) for depth in depths if depth < len(every) and every[depth]]
    yield from lying if found.plain else (path for path in every if path)
