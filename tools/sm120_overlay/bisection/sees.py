"""What commands run of a tree besides the launch: modules that `-m` names, and files below {tree} or {path}.

A change to these changes what is measured, though no server imports them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from posixpath import join, normpath

from ..queue.git import Repository, read_objects, tree_entries
from .reach.graph import module_name, within
from .reach.rules import Rules
from .reach.source import read
from .reach.steps import python_files

MODULE = re.compile(r"""(?:^|[\s'"])-[A-Za-z]*?m[\s'"]*([A-Za-z_]\w*(?:\.\w+)*)""")
VARIABLE = re.compile(r"""["']?\$(\{)?SM120_BISECT_(TREE|PATH)\b(?(1)\})["']?""")
PLACE = re.compile(
    r"""\{(tree|path)\}/+([^\s'"`;|&<>(){}$*?\[\\:,]*)"""  # as far as the text is plain,
    r"""([$*?\[{\\`]|['"](?=[^\s;|&<>()'"]))?"""  # and whether the shell makes the rest
)
STAY = re.compile(r"\bcd\s+(\{(?:tree|path)\}(?:/[^\s;&|'\"]*)?)\s*(?:&&|;)([^\n]*)")
WORD = re.compile(r"""(?:^|[\s='"])((?:\./)?[^\s'"`;|&<>(){}$*?\[\\:,=/-][^\s'"`;|&<>(){}\\:,=]*)""")


@dataclass(frozen=True)
class Sees:
    """Modules by their dotted names, and paths in the tree outside all packages (files, or folders with all of it)."""

    modules: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


def seen_by(commands: Iterable[str], folder: str, packages: Sequence[str], scripts: Sequence[tuple[str, str]]) -> Sees:
    """What the text of commands names.

    Args:
        commands: as they were typed, with placeholders.
        folder: where packages begin in the tree ("": its root).
        packages: the packages that count.
        scripts: commands that a package installs, with the module that each runs.
    """
    modules: dict[str, None] = {}
    paths: dict[str, None] = {}
    for text in commands:
        modules |= dict.fromkeys(name for name in MODULE.findall(text) if name.partition(".")[0] in packages)
        modules |= {module: None for script, module in scripts if re.search(rf"(?:^|[\s;&|(/]){script}\s+[a-z]", text)}
        for path, open_ended in _paths(text, folder):
            name = module_name(path, folder)
            if open_ended:
                paths[path] = None
            elif name and name.partition(".")[0] in packages:
                modules[name] = None
            elif not any(within(join(folder, package), path) for package in packages):
                paths[path] = None
    return Sees(tuple(modules), tuple(paths))


def rules_seeing(repo: Repository, trees: Sequence[str], rules: Rules, sees: Sees) -> Rules:
    """The rules of a launch that also runs what commands see: their modules, their files, and what these import.

    Args:
        trees: the ends, in which what a file imports is looked up.
    """
    found = dict.fromkeys((*rules.also, *sees.modules))
    for tree in trees if sees.paths else ():
        known = {module_name(path, rules.folder) for path in python_files(repo, tree, rules)}
        found |= dict.fromkeys(name for name in _imported(repo, tree, sees.paths, rules) if name in known)
    return replace(rules, also=tuple(found), named=sees.paths)


def _paths(text: str, folder: str) -> Iterator[tuple[str, bool]]:
    """Paths in the tree, and whether the shell makes the rest of it: then it is the folder that holds them all.

    Not the whole tree where it is named as such, and none that lead out of it.
    """
    text = VARIABLE.sub(lambda match: f"{{{match[2].lower()}}}", text)
    inside = [f"{place.rstrip('/')}/{word}" for place, rest in STAY.findall(text) for word in WORD.findall(rest)]
    for place, rest, more in PLACE.findall("\n".join((text, *inside))):
        plain = rest.rpartition("/")[0] if more else rest
        path = normpath(join(folder if place == "path" else "", plain))
        if (more or path != ".") and not path.startswith(("..", "/")):
            yield path, bool(more)


def _imported(repo: Repository, tree: str, paths: Sequence[str], rules: Rules) -> Iterator[str]:
    entries = tree_entries(repo, tree, [] if "." in paths else list(paths))
    blobs = {entry.blob for path, entry in entries.items() if path.endswith(".py")}
    for each in read_objects(repo, blobs).values():
        for ask in read(each.data, rules.packages).asks if each else ():
            yield from (name for name in ask.names if not ask.level)
