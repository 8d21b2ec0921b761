"""What the tests of this package share: a toy project with the tools in it, verbs as real processes, all they leave.

A round is apply, status, verify, export and reverse. What it leaves is compared with a round in plain surroundings.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.queue.scenes import Answer, Venv, snapshot
from tests.queue.toy import Toy, commit, git, git_bytes, write

TOOLS = Path(__file__).parents[2] / "tools"
ODD = "python/toy/é日 ü.py"
WHO = {"GIT_AUTHOR_NAME": "Zoë Müller", "GIT_AUTHOR_EMAIL": "zoë@example.org"}
VERBS = ("apply", "status", "verify")
SERIES = "patches/v1/toy"
# For our own look at a repository whose configuration may be hostile.
LOOK = [
    part
    for setting in (
        "color.ui=false", "core.abbrev=40", "core.attributesFile=/dev/null", "core.autocrlf=false", "core.eol=lf",
        "core.excludesFile=/dev/null", "core.fileMode=true", "core.fsmonitor=false", "core.hooksPath=/dev/null",
        "core.untrackedCache=false", "status.branch=false", "status.short=false", "status.showUntrackedFiles=normal",
        "status.submoduleSummary=false", "core.quotePath=true", "core.ignoreCase=false", "gc.auto=0",
    )
    for part in ("-c", setting)
]  # fmt: skip


@dataclass(frozen=True)
class World:
    """A project, the surroundings in which its tools run, and the interpreter (with its flags) that runs them."""

    toy: Toy
    env: Mapping[str, str]
    python: Sequence[str] = (sys.executable,)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The folder that holds everything."""
        return self.toy.root

    def tool(self, verb: str) -> list[str]:
        """The command line of a verb."""
        return [*self.python, str(self.toy.home.root / "tools" / f"{verb}.py")]

    def ask(self, verb: str, *arguments: object) -> Answer:
        """A verb with --json, as a process of its own."""
        command = [*self.tool(verb), *map(str, arguments), "--json"]
        given = {"stdin": subprocess.DEVNULL, "capture_output": True, **self.options}
        done = subprocess.run(command, env=dict(self.env), check=False, **given)
        out = (done.stdout or b"").decode()
        return Answer(done.returncode, json.loads(out) if out else {}, (done.stderr or b"").decode("utf-8", "replace"))

    def clone(self, name: str = "clone-é") -> Path:
        """A user's checkout of toy at the pin, on main."""
        return self.toy.clone("toy", name)


def plain(root: Path, **more: str) -> dict[str, str]:
    """Plain surroundings: a home without any configuration, and what finds Python, git and the toy's wheels."""
    home = root / "user"
    home.mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "TMPDIR") if name in os.environ}
    own = {"HOME": str(home), "LANG": "C.UTF-8", "SM120_OVERLAY_CACHE": str(root / "cache")}
    return {**kept, **own, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(root / "wheels"), **more}


def git_version() -> tuple[int, ...]:
    """The version of the git on PATH."""
    said = subprocess.run(["git", "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in said.split()[2].split(".")[:3] if part.isdecimal())


def set_config(file: Path, settings: Sequence[str]) -> None:
    """Adds `key=value` settings to a configuration file of git's."""
    with file.open("a") as config:
        for setting in settings:
            key, _, value = setting.partition("=")
            section, _, rest = key.partition(".")
            part, _, name = rest.rpartition(".")
            head = f'[{section} "{part}"]' if part else f"[{section}]"
            config.write(f"\n{head}\n\t{name} = {json.dumps(value, ensure_ascii=False)}\n")  # git's quotes are JSON's


def add_odd_patch(toy: Toy) -> None:
    """A third patch on toy, with an author, a subject and a path in other alphabets."""
    from sm120_overlay.queue.checkout import open_checkout
    from sm120_overlay.queue.export import changes, export_commits, write_export
    from sm120_overlay.queue.pins import load_lines

    author = toy.root / "author-toy"
    write(toy.home.root, {"tests/patches/test_odd_names.py": ""})
    commit(author, "odd-names", {ODD: "WHO = 'Zoë'\n"}, Needs="bring-hook")
    said = git(author, "log", "-1", "--format=%B").replace("toy: do", "toy: höre 日")
    git(author, "commit", "-q", "--amend", "--reset-author", "-m", said, env=WHO)
    checkout = open_checkout(author, load_lines(toy.home.pins))
    write_export(toy.home, changes(toy.home, checkout.pin, export_commits(checkout)))


def copy_toy(master: Toy, root: Path) -> Toy:
    """The project as a test's own, with the tools in it, as a clone of the real one has them."""
    made_with = shutil.ignore_patterns("author-*", "roots")  # what made the series is no part of a user's world
    shutil.copytree(master.root, root, symlinks=True, ignore=made_with)
    pins = root / "home" / "pins.toml"
    pins.write_text(pins.read_text().replace(str(master.root), str(root)))
    return Toy(root, type(master.home)(root / "home"), root / "wheels")


# Whoever owns it: in these tests it is ours to look at.
TRUSTED = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}


def seen(clone: Path) -> dict[str, object]:
    """All of a checkout that a user could miss: files, index, refs, HEAD."""
    ids = git_bytes(clone, *LOOK, "for-each-ref", "--format=%(refname) %(objectname)", env=TRUSTED)
    return {
        "files": snapshot(clone),
        "index": git_bytes(clone, *LOOK, "ls-files", "-s", "-t", "-z", env=TRUSTED),
        "refs": ids.replace(b"refs/remotes/origin/HEAD", b""),
        "HEAD": (clone / ".git/HEAD").read_bytes(),
        "locks": [str(path) for path in (clone / ".git").rglob("*.lock")],
        "status": git_bytes(clone, *LOOK, "status", "--porcelain", env=TRUSTED),
    }


def checkout_round(world: World, clone: Path, verbs: Sequence[str] = VERBS) -> dict[str, Any]:
    """Step → what it left, of a round on a checkout; each step must succeed; export and reverse follow the verbs."""
    found: dict[str, Any] = {"before": seen(clone)}
    for verb in verbs:
        found[verb] = _digests(world, verb, clone)
    found["applied"] = seen(clone)
    found["exported"] = _exported(world, clone)
    found["reverse"] = _digests(world, "apply", clone, "--reverse")
    found["reversed"] = seen(clone)
    return found


def _digests(world: World, verb: str, *arguments: object) -> object:
    answer = world.ask(verb, *arguments)
    assert answer.code == 0, (verb, answer)
    return {name: (target["digest"], answer.states(name)) for name, target in answer.targets.items()}


def _exported(world: World, clone: Path) -> object:
    """What an export writes where the series was lost."""
    home = world.toy.home.root
    for file in (*(home / SERIES).iterdir(), *(home / "overlay").rglob("*.py")):
        file.unlink()
    answer = world.ask("export", clone)
    assert answer.code == 0, answer
    written = snapshot(home, ("tools", "__pycache__"))
    return {path: about[1] for path, about in written.items() if isinstance(about, tuple) and "pins" not in path}


def installed_round(world: World, venv: Venv) -> dict[str, Any]:
    """The same of an installed package."""
    named = ("--installed", venv.python, "--only", "toy")
    found: dict[str, Any] = {"before": packaged(venv)}
    for verb in VERBS:
        found[verb] = _digests(world, verb, *named)
    found["applied"] = packaged(venv)
    found["reverse"] = _digests(world, "apply", *named, "--reverse")
    found["reversed"] = packaged(venv)
    return found


def packaged(venv: Venv) -> dict[str, object]:
    """Path → bytes below site-packages."""
    return {path: about[1] for path, about in snapshot(venv.site).items() if isinstance(about, tuple)}
