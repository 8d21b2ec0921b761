"""How near a launch comes to one file of a tree, and why, in words that a person can check in the sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from posixpath import dirname

from ..history import Reach
from .graph import Modules, Near, module_name, parents, within
from .rules import Rules

SHOWN = 3  # files, importers or links of a chain that a reason spells out; the rest is a number


@dataclass(frozen=True)
class Judged:
    """How near a launch comes to what a step changes, and why one can tell."""

    reach: Reach
    why: str


@dataclass(frozen=True)
class Ground:
    """One tree as a launch sees it: its modules, what is reached, and what loaded modules name or lie beside.

    `named` maps a file's name to the path of a module that has it in its text, `folders` maps a folder to whether a
    module in it is reached (and which), `packages` have a reached module. `asking` remembers what was said of packages.
    """

    modules: Modules
    near: Mapping[str, Near]
    named: Mapping[str, str]
    folders: Mapping[str, str]
    packages: frozenset[str]
    asking: dict[str, str] = field(default_factory=dict)


def ground(modules: Modules, near: Mapping[str, Near]) -> Ground:
    """What the reasons for a tree's files stand on."""
    named: dict[str, str] = {}
    folders: dict[str, str] = {}
    for name, files in modules.items():
        for file in files:
            folder = dirname(file.path)
            if name in near:
                folders[folder] = folders.get(folder) or name
                named |= dict.fromkeys(file.source.files, file.path)
            else:
                folders.setdefault(folder, "")
    packages = frozenset(package for name in near for package in (name, *parents(name)))
    return Ground(modules, near, named, folders, packages)


def of_file(path: str, here: Ground, rules: Rules) -> Judged:
    """How near a launch comes to a file, in a tree that has it."""
    name = module_name(path, rules.folder)
    if any(within(path, one) for one in rules.named):
        return Judged(Reach.LOADED, "the measured command names it")
    if path in rules.build:
        return Judged(Reach.LOADED, "it says what is built and installed")
    for folder, why in rules.data:
        if path.startswith(f"{folder}/"):
            return Judged(Reach.LAZY, why)
    if name and (name in here.near or _packaged(path, rules)):
        return _of_module(name, here, rules)
    if not _packaged(path, rules):
        return Judged(Reach.NONE, "it lies outside the package")
    return _of_data(path, here, rules)


def _packaged(path: str, rules: Rules) -> bool:
    tops = (f"{rules.folder}/{package}/" if rules.folder else f"{package}/" for package in rules.packages)
    return path.startswith(tuple(tops))


def _of_data(path: str, here: Ground, rules: Rules) -> Judged:
    """A file that is no module: read by name, or by whatever lies beside it."""
    base = PurePosixPath(path).name
    prose = base.endswith(rules.prose)
    if base in here.named and (not prose or _named_beside(path, here)):
        return Judged(Reach.LAZY, f"its name stands in {here.named[base]}")
    if prose:
        return Judged(Reach.NONE, "it is text for people, which no loaded module beside it names")
    folder = next((str(above) for above in PurePosixPath(path).parents if str(above) in here.folders), "")
    if beside := here.folders.get(folder):
        return Judged(Reach.LAZY, f"it is data below {folder}, where {beside} is loaded")
    return Judged(Reach.NONE, f"it is data below {folder or 'no package'}, where no module is loaded")


def _named_beside(path: str, here: Ground) -> bool:
    """Whether a loaded module of the same folder names a file."""
    folder, _, base = path.rpartition("/")
    files = (file for name in here.near for file in here.modules[name])
    return any(dirname(file.path) == folder and base in file.source.files for file in files)


def _of_module(name: str, here: Ground, rules: Rules) -> Judged:
    near = here.near.get(name)
    if near is None:
        return Judged(Reach.NONE, _unreached(name, here, rules))
    broken = [file.source.broken for file in here.modules[name] if file.source.broken]
    said = f" (it cannot be parsed, {broken[0]}: all that its text names counts)" if broken else ""
    when = "loaded when needed" if near.reach is Reach.LAZY else "loaded at the start"
    return Judged(near.reach, f"{when}, {_chain(name, here)}{said}")


def _chain(name: str, here: Ground) -> str:
    """Who asks for a module, who asks for that one, and so on to where the launch begins."""
    links = []
    at, near = name, here.near[name]
    while near.by:
        links.append(f"{_link(at, near, here)}")
        at, near = near.by, here.near[near.by]
    if len(links) > SHOWN:
        links[SHOWN - 1 :] = [f"and so on, {len(links) - SHOWN + 1} steps up to {at}"]
    return "; ".join(links) or f"it {near.how}"


def _link(target: str, near: Near, here: Ground) -> str:
    """The line that asks for a module, as it stands in this very tree."""
    if near.how:
        return f"{near.by} {near.how}"
    for file in here.modules[near.by]:
        for edge in (*file.eager, *file.lazy):
            if edge.target == target:
                return f"{file.path}:{edge.line} {edge.form}"
    return f"{near.by} lies in it" if target in parents(near.by) else f"{near.by} asks for it"


def _unreached(name: str, here: Ground, rules: Rules) -> str:
    """Of the widest package around a module of which nothing is reached: who asks for it from outside."""
    around = next((package for package in parents(name) if package not in here.packages), name)
    if around not in here.asking:
        asking = sorted(_asking(around, here))
        who = f"only {listed(asking)} would" if asking else "nothing else imports or names it"
        what = f"any module of {around}" if around != name else name
        here.asking[around] = f"{rules.launch} does not reach {what} ({who})"
    return here.asking[around]


def _asking(around: str, here: Ground) -> Iterator[str]:
    """Modules outside a package, none of them reached, that ask for a module of it."""
    inside = f"{around}."
    for asker, files in here.modules.items():
        if asker in here.near or asker == around or asker.startswith(inside):
            continue
        targets = (edge.target for file in files for edge in (*file.eager, *file.lazy))
        if any(target == around or target.startswith(inside) for target in targets):
            yield asker


def listed(names: list[str]) -> str:
    """The first few, and how many more there are."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
