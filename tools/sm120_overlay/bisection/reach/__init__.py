"""Which files a launch can load, by Python's own rules of import, and so which commits cannot change what it does.

Static: nothing of the tree is run. What a file imports at its top is loaded, what it imports inside a function or names
in a string may be (lazy), and what no chain of such steps leads to cannot. Where the source does not tell, it counts
as reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...errors import Refused
from ...queue.git import Change, Entry, Repository
from ..history import Reach
from .graph import Module, closure, module_name
from .reasons import Ground, Judged, ground, listed, of_file
from .rules import Rules, Sweep
from .steps import differences, modules_of, python_files

__all__ = ["Judged", "Rules", "Sweep", "judge"]
WINDOW = 50  # steps whose files are read and parsed together
ORDER = (Reach.LOADED, Reach.LAZY, Reach.NONE)
Modules = dict[str, tuple[Module, ...]]


def judge(repo: Repository, trees: Sequence[str], rules: Rules) -> tuple[Judged, ...]:
    """How near a launch comes to what each step from one tree to the next changes; one less than there are trees.

    A step is as near as the nearest of its files, in the tree before or in the tree after.

    Args:
        trees: ids of trees or commits, in order.

    Raises:
        Missing: the repository does not hold one of the trees.
        Refused: the first tree has no module that the launch begins with, or no model of the classes asked for is there
            at either end, or the repository does not hold a file's text.
    """
    if len(trees) < 2:
        return ()
    steps = differences(repo, trees)
    modules: Modules = {}
    for file in modules_of(repo, python_files(repo, trees[0], rules), rules):
        modules[file.name] = (*modules.get(file.name, ()), file)
    _check(repo, trees, modules, rules)
    here = ground(modules, closure(modules, rules))
    judged = []
    for start in range(0, len(steps), WINDOW):
        window = steps[start : start + WINDOW]
        parsed = _parsed(repo, window, rules)
        for step in window:
            before, here = here, _stepped(here, step, parsed, rules)
            judged.append(_judged(step, before, here, rules))
    return tuple(judged)


def _check(repo: Repository, trees: Sequence[str], modules: Modules, rules: Rules) -> None:
    place = f"{repo.path}: {trees[0][:12]}"
    if not any(root in modules for root in rules.roots):
        # why: without a beginning nothing would be reached, and every change culled
        raise Refused(
            f"{place}: none of the modules that {rules.launch} begins with ({', '.join(rules.roots)}) is there.",
            "Name the upstream whose trees these are, or bisect without culling.",
        )
    missing = {(sweep.attribute, name) for sweep in rules.sweeps for name in sweep.classes}
    missing -= _serving(file for files in modules.values() for file in files)
    absent = set(rules.also) - modules.keys()
    if missing or absent:  # they may have come on the way; before a model did, every model's file counts
        last = python_files(repo, trees[-1], rules)
        absent -= {module_name(path, rules.folder) for path in last}
        packages = tuple(f"{sweep.package}." for sweep in rules.sweeps)
        models = {path: last[path] for path in last if module_name(path, rules.folder).startswith(packages)}
        missing -= _serving(modules_of(repo, models, rules))
    ends = f"{trees[0][:12]} or {trees[-1][:12]}"
    for name in sorted(absent):
        # why: a module that is spelled wrong would be left out of the launch without a word
        raise Refused(f"{repo.path}: there is no module {name} in {ends}.", "Name one by its dotted name, or none.")
    for _, name in sorted(missing):
        # why: a model that is spelled wrong would make every model's file look like another model's
        raise Refused(
            f"{repo.path}: no model file serves the architecture {name} in {ends}.",
            'Name one of "architectures" in the model\'s config.json, or none.',
        )


def _serving(files: Iterable[Module]) -> set[tuple[str, str]]:
    return {pair for file in files for pair in file.source.listed}


def _parsed(repo: Repository, steps: Iterable[Sequence[Change]], rules: Rules) -> dict[tuple[str, Entry], Module]:
    """(path, entry) → module for every Python file that the steps bring."""
    wanted = {
        (change.path, change.new)
        for step in steps
        for change in step
        if change.new and module_name(change.path, rules.folder)
    }
    order = sorted(wanted, key=lambda key: (key[0], key[1].blob))
    rounds: list[dict[str, Entry]] = []  # one path may come with several contents
    for path, entry in order:
        place = next((part for part in rounds if path not in part), None)
        if place is None:
            rounds.append(place := {})
        place[path] = entry
    return {(file.path, part[file.path]): file for part in rounds for file in modules_of(repo, part, rules)}


def _stepped(here: Ground, step: Sequence[Change], parsed: dict[tuple[str, Entry], Module], rules: Rules) -> Ground:
    """The tree after a step; its closure is made anew only where something that counts for it has changed."""
    modules = dict(here.modules)
    near, named = True, True  # whether the closure, and the names of files in it, are as before
    for change in step:
        name = module_name(change.path, rules.folder)
        if not name:
            continue
        old = next((file for file in modules.get(name, ()) if file.path == change.path), None)
        new = parsed[change.path, change.new] if change.new else None
        others = tuple(file for file in modules.get(name, ()) if file is not old)
        modules[name] = (*others, new) if new else others
        if not modules[name]:
            del modules[name]
        if old is None or new is None:
            near = False
        elif name in here.near:
            near = near and old.shape(modules) == new.shape(modules)
            named = named and old.source.files == new.source.files
    if near and named:
        return replace(here, modules=modules, asking={})
    return ground(modules, here.near if near else closure(modules, rules))


def _judged(step: Sequence[Change], before: Ground, after: Ground, rules: Rules) -> Judged:
    if not step:
        return Judged(Reach.NONE, "no file differs")
    by_why: dict[tuple[Reach, str], list[str]] = {}
    for change in step:
        sides = [(change.old, before), (change.new, after)]
        found = [of_file(change.path, side, rules) for entry, side in sides if entry]
        nearest = min(found, key=lambda one: ORDER.index(one.reach))
        by_why.setdefault((nearest.reach, nearest.why), []).append(change.path)
    reach = min((reach for reach, _ in by_why), key=ORDER.index)
    said = [f"{listed(paths)}: {why}" for (this, why), paths in by_why.items() if this is reach]
    more = len(said) - 3 if reach is not Reach.NONE else 0
    rest = [f"and {more} more such reasons"] if more > 0 else []
    return Judged(reach, ". ".join([*(said[:3] if rest else said), *rest]))
