"""A target of either kind in three states (at the pin, with the older series, with the newer one) for runs to fail on.

Every run gets a fresh copy. `facts` says of it what a user would miss; things of the user's own lie in it everywhere.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest import mock

from sm120_overlay.queue.home import Home

from .scenes import Answer, Venv, ask, make_newer, make_venv, snapshot
from .toy import Toy, git, write

STATES = ("pin", "older", "newer")
MOVES = [("pin", "newer"), ("older", "newer"), ("newer", "pin")]
WORKPLACE = "sm120-overlay"


@dataclass(frozen=True)
class Ground:
    """The copies are made at `target`; `masters` and `facts` hold the three states, `homes` the two series."""

    kind: str
    target: Path
    masters: dict[str, Path]
    homes: dict[str, Home]
    facts: dict[str, dict[str, object]]

    @property
    def named(self) -> tuple[object, ...]:
        """The target on the command line."""
        return (
            ("--installed", Venv(self.target).python, "--only", "toy") if self.kind == "installed" else (self.target,)
        )

    @property
    def files(self) -> Path:
        """The folder that the touched files lie below."""
        return Venv(self.target).site if self.kind == "installed" else self.target

    @property
    def workplace(self) -> Path:
        """Where lock and journal lie."""
        return (Venv(self.target).info() if self.kind == "installed" else self.target / ".git") / WORKPLACE

    @property
    def journal(self) -> Path:
        """The journal."""
        return self.workplace / "journal.json"

    def fresh(self, state: str) -> None:
        """A new copy in that state."""
        shutil.rmtree(self.target, ignore_errors=True)
        shutil.copytree(self.masters[state], self.target, symlinks=True)

    def bring(self, goal: str) -> Answer:
        """apply (or reverse) to a state."""
        with self.home(goal):
            return ask("apply", *self.named, *(["--reverse"] if goal == "pin" else []))

    def tell(self, verb: str, goal: str) -> Answer:
        """status or verify."""
        with self.home(goal):
            return ask(verb, *self.named)

    @contextmanager
    def home(self, goal: str) -> Iterator[None]:
        """The project as it is with that state's series."""
        home = self.homes["older" if goal == "older" else "newer"]
        with mock.patch("sm120_overlay.verbs._options.find_home", lambda: home):
            yield

    def now(self) -> dict[str, object]:
        """The facts, as they are."""
        return facts(self)

    def whole(self, start: str, goal: str) -> None:
        """Every file is as before or as after, and nothing else of the user's is another one."""
        now, before, after = contents(self.files), contents_of(self.facts[start]), contents_of(self.facts[goal])
        ours = ("sm120-overlay-partial", f".dist-info/{WORKPLACE}")
        for path in now.keys() | before.keys() | after.keys():
            if not any(mark in path for mark in ours):
                assert now.get(path) in (before.get(path), after.get(path)), path


def contents(folder: Path) -> dict[str, object]:
    """Path → mode and bytes of the regular files."""
    return contents_of(snapshot(folder))


def contents_of(found: dict[str, object]) -> dict[str, object]:
    """Those of a snapshot that are no folders."""
    return {path: said for path, said in found.items() if isinstance(said, tuple) and not said[0].startswith("d")}


def facts(ground: Ground) -> dict[str, object]:
    """All that a user would miss: files and modes; of a checkout HEAD, refs, stash, index, and what we keep there."""
    found: dict[str, object] = dict(snapshot(ground.files))
    if ground.kind == "checkout":
        asked = {"refs": ["for-each-ref"], "HEAD": ["rev-parse", "HEAD", "--symbolic-full-name", "HEAD"],
                 "index": ["ls-files", "-s"], "status": ["status", "--porcelain", "--ignored"]}  # fmt: skip
        found |= {f"git {name}": git(ground.target, *arguments) for name, arguments in asked.items()}
        found["workplace"] = snapshot(ground.workplace) if ground.workplace.exists() else None
        found["locks"] = sorted(str(path) for path in (ground.target / ".git").rglob("*.lock"))
    return found


def own_work(clone: Path) -> None:
    """A user's own: a branch, a stash, a staged file, an edit, an untracked and an ignored file."""
    git(clone, "branch", "feature")
    write(clone, {"README.md": "stashed\n"})
    git(clone, "stash", "-q")
    write(clone, {"staged.txt": "staged\n", "README.md": "edited\n", "python/toy/mine.txt": "mine\n"})
    write(clone, {".git/info/exclude": "*.ign\n", "python/toy/mine.ign": "mine too\n"})
    git(clone, "add", "staged.txt")


def make_ground(kind: str, master: Toy, root: Path) -> Ground:
    """The three states of a target, each brought there by an uncut run; all below `root`."""
    shutil.copytree(master.root, root, symlinks=True)
    toy = Toy(root, Home(root / "home"), root / "wheels")
    toy.home.pins.write_text(toy.home.pins.read_text().replace(str(master.root), str(root)))
    older = Home(make_newer(toy))
    target = toy.root / "target"
    masters = {state: toy.root / f"master-{state}" for state in STATES}
    ground = Ground(kind, target, masters, {"older": older, "newer": toy.home}, {})
    if kind == "checkout":
        own_work(toy.clone(into="target"))
    else:
        make_venv(target, toy.wheels)
        write(Venv(target).site, {"toy/mine.txt": "mine\n"})
    for state in STATES:
        if state != "pin":
            assert ground.bring(state).code == 0
        ground.facts[state] = ground.now()
        shutil.copytree(target, masters[state], symlinks=True)
    return ground


def bringing(ground: Ground, goal: str) -> Callable[[], Answer]:
    """`bring` as work to be cut."""
    return partial(ground.bring, goal)
