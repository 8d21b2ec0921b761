"""The modules of one tree, what each of them asks for, and which of them a launch comes to."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..history import Reach
from .rules import Rules, Sweep
from .source import Source


@dataclass(frozen=True)
class Edge:
    """One module asks for another, which may not exist."""

    target: str
    lazy: bool
    line: int
    form: str
    prefix: bool = False
    star: bool = False
    text: bool = False


@dataclass(frozen=True)
class Module:
    """One Python file. `eager` and `lazy` are what it asks for, once each."""

    name: str
    path: str
    source: Source
    eager: tuple[Edge, ...]
    lazy: tuple[Edge, ...]

    def shape(self, modules: Mapping[str, object]) -> tuple[object, ...]:
        """All that a closure over these modules depends on: two versions of a file with one shape ask for the same."""
        edges = (edge for edge in (*self.eager, *self.lazy) if edge.prefix or edge.target in modules)
        asks = frozenset((edge.target, edge.lazy, edge.prefix, edge.star, edge.text) for edge in edges)
        return asks, self.source.words, self.source.listed, self.source.sweeper, bool(self.source.broken)


@dataclass(frozen=True)
class Near:
    """How near a launch comes to a module, and through which other one; `how` where a rule of the launch says so."""

    reach: Reach
    by: str
    how: str = ""


Modules = Mapping[str, tuple[Module, ...]]  # by name; two files have one name where x.py lies beside x/__init__.py


def within(path: str, folder: str) -> bool:
    """Whether a path of the tree is a folder (or a file) or lies in it; all of them lie in "."."""
    return folder in (".", path) or path.startswith(f"{folder}/")


def module_name(path: str, folder: str) -> str:
    """The name under which a file is imported ("": under none)."""
    inside = path[len(folder) + 1 :] if folder else path
    if not path.endswith(".py") or (folder and not path.startswith(f"{folder}/")):
        return ""
    parts = inside.removesuffix(".py").split("/")
    parts = parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts
    return ".".join(parts) if all(part.isidentifier() for part in parts) else ""


def module(path: str, folder: str, source: Source) -> Module:
    """A file of a tree, with what it asks for by full names."""
    name = module_name(path, folder)
    package = name if path.endswith("__init__.py") else name.rpartition(".")[0]
    found = {(edge.target, edge.lazy, edge.prefix, edge.star, edge.text): edge for edge in _edges(package, source)}
    eager = tuple(edge for edge in found.values() if not edge.lazy)
    at_once = {(edge.target, edge.prefix) for edge in eager if not edge.star}
    later = (edge for edge in found.values() if edge.lazy)
    lazy = tuple(edge for edge in later if edge.text or (edge.target, edge.prefix) not in at_once)
    return Module(name, path, source, eager, lazy)


def _edges(package: str, source: Source) -> Iterator[Edge]:
    for ask in source.asks:
        base = _base(package, ask.level)
        names = ask.names or ("",)
        for name in names:
            whole = ".".join(filter(None, (base, name))) if ask.level else name
            if whole and not ask.prefix:
                for end in range(whole.count("."), -1, -1):
                    target = whole.rsplit(".", end)[0] if end else whole
                    yield Edge(
                        target, ask.lazy, ask.line, ask.form, False, ask.star and end == 0, ask.text and end == 0
                    )
            elif whole or ask.level:
                start = f"{base}.{name}" if ask.level else name
                yield Edge(start, ask.lazy, ask.line, ask.form, True)
        if ask.level and names != ("",) and base:
            yield Edge(base, ask.lazy, ask.line, ask.form)


def _base(package: str, level: int) -> str:
    """The package that a relative import of this level starts from."""
    parts = package.split(".")
    return ".".join(parts[: max(0, len(parts) - level + 1)]) if level else ""


def closure(modules: Modules, rules: Rules) -> dict[str, Near]:
    """Every module that a launch may load, by its name; all of them in a tree that has none of the roots."""
    if not any(root in modules for root in rules.roots):
        lost = Near(Reach.LOADED, "", f"counts as loaded, as all do here: {rules.launch} begins elsewhere")
        return dict.fromkeys(modules, lost)
    ordered = sorted(modules)
    walkers = {name for name, files in modules.items() if any(file.source.sweeper for file in files)}
    reached: dict[str, Near] = {}
    later: list[tuple[str, Near]] = []
    now = deque((root, Near(Reach.LOADED, "", f"is where {rules.launch} begins")) for root in rules.roots)
    now.extend((root, Near(Reach.LOADED, "", "was named as loaded, too")) for root in rules.also)
    for reach in (Reach.LOADED, Reach.LAZY):
        while now:
            name, near = now.popleft()
            if name in reached or name not in modules:
                continue
            reached[name] = near
            eager, lazy = _asked(name, modules, rules, ordered, walkers)
            now.extend((target, Near(reach, name, how)) for target, how in eager if target not in reached)
            later.extend((target, Near(Reach.LAZY, name, how)) for target, how in lazy if target not in reached)
            if reach is Reach.LAZY:
                now.extend(later)
                later = []
        now, later = deque(later), []
    for name in ordered:
        if name not in reached and name.partition(".")[0] in rules.whole:
            reached[name] = Near(Reach.LAZY, "", "may be asked for by whoever uses the package")
    return reached


def _asked(
    name: str, modules: Modules, rules: Rules, ordered: list[str], walkers: set[str]
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(module, what rule says so) that a module asks for at once, and later."""
    eager = [(parent, "") for parent in parents(name)]
    lazy: list[tuple[str, str]] = []
    for sweep in rules.sweeps:
        if sweep.by == name:
            for below, served, how in _swept(sweep, modules, ordered):
                (eager if served else lazy).append((below, how))
    for file in modules[name]:
        walks = file.source.sweeper or any(edge.target in walkers for edge in file.eager + file.lazy)
        for edge in (*file.eager, *file.lazy):
            to = lazy if edge.lazy else eager
            if edge.prefix:
                to.extend((below, edge.form) for below in _below(edge.target, ordered))
            elif edge.target in modules:
                to.append((edge.target, ""))
            if edge.star:
                words = (word for found in modules.get(edge.target, ()) for word in found.source.words)
                lazy.extend((f"{edge.target}.{word}", "imports all names of its package") for word in words)
            if edge.text and f"{edge.target}.__main__" in modules:
                lazy.append((f"{edge.target}.__main__", f'names "{edge.target}", which can be run'))
            if walks and edge.text and "." in edge.target:
                how = f'walks the package "{edge.target}"'
                lazy.extend((below, how) for below in _below(f"{edge.target}.", ordered))
    return eager, lazy


def _swept(sweep: Sweep, modules: Modules, ordered: list[str]) -> Iterator[tuple[str, bool, str]]:
    """(module, whether it may serve the launch, why) of a swept package."""
    classes = ", ".join(sweep.classes)
    wanted = {(sweep.attribute, name) for name in sweep.classes}
    depth = sweep.package.count(".") + 1
    below = [name for name in _below(f"{sweep.package}.", ordered) if name.count(".") == depth]
    serving = {name for name in below if any(wanted & file.source.listed for file in modules[name])}
    for name in below:
        if name in serving:
            yield name, True, f"imports it, which serves {classes}"
        elif not serving:
            why = f", and none of them serves {classes} here" if classes else ""
            yield name, True, f"imports it with all of {sweep.package}{why}"
        elif any(file.source.broken for file in modules[name]):
            yield name, True, f"imports it, and what it serves cannot be told ({sweep.package})"
        else:
            yield name, False, f"imports it with all of {sweep.package}, but it serves another model"


def _below(prefix: str, ordered: list[str]) -> Iterator[str]:
    at = bisect_left(ordered, prefix)
    while at < len(ordered) and ordered[at].startswith(prefix):
        yield ordered[at]
        at += 1


def parents(name: str) -> list[str]:
    """The packages that are loaded before a module is."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]
