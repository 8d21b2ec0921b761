"""What a launch is: which modules it starts from, and what no import statement says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sweep:
    """A package of which module `by` imports every module, though a launch uses only those that serve it.

    A module serves a class that it lists under `attribute` (`EntryClass = [A, B]`). Those that serve one of `classes`
    count as imported by `by`, the others as lazy; with no classes, all count as imported.
    """

    by: str
    package: str
    attribute: str
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rules:
    """A launch of one upstream.

    `launch` names it for people. Packages begin in `folder` ("": the root of the tree). `roots` are modules that the
    launch always loads, by their names; those that a tree does not have do not count, and in a tree with none of
    them everything is loaded. `also` are
    further ones that a person named: each must be there at one end. `build` are
    files that say what is installed; `data` are folders whose files are read or compiled on demand, with the sentence
    that says so; `whole` are packages of which any module may be asked for from outside. Files that end in one of
    `prose` count only where a loaded module of the same folder names them. `named` are files and folders that the
    measured command runs, and `scripts` commands that the packages install, each with the module that it runs.
    """

    launch: str
    folder: str
    packages: tuple[str, ...]
    roots: tuple[str, ...]
    sweeps: tuple[Sweep, ...] = ()
    build: tuple[str, ...] = ()
    data: tuple[tuple[str, str], ...] = ()
    whole: tuple[str, ...] = ()
    prose: tuple[str, ...] = (".md", ".rst", "LICENSE", "AUTHORS")
    also: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    scripts: tuple[tuple[str, str], ...] = ()
