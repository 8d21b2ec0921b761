"""The oldest git that the tools promise: what they ask of git, compared with a table of what 2.34 was seen to accept.

`git_2_34.txt` has a line for each subcommand with the options that we use. A run with $SM120_OVERLAY_GIT naming a git
2.34 proves the table: every one of these calls then really goes to it.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.queue.toy import commit, git, write

from .conftest import OTHER_GIT
from .test_environment import changed
from .test_partial_clone import partial_clone
from .world import SERIES, TOOLS, World

TABLE = Path(__file__).with_name("git_2_34.txt")
NEWER = Path(__file__).with_name("git_2_39.txt")
# What moves a series between commits: `merging.check_git` asks for git 2.39 before anything else runs there.
MOVING = {
    *("alone", "carry", "causes", "handoff", "merging", "moving", "needed"),
    *("outbox", "pinning", "ranges", "rebasing", "releases", "survey"),
}
RECORDER = """#!/bin/sh
printf '%s\\0' "$@" >> "{log}"; printf '\\n\\0' >> "{log}"
exec "{git}" "$@"
"""
DYING = """#!/bin/sh
case " $* " in *" symbolic-ref "*) kill -9 $PPID; exit;; esac
exec "{git}" "$@"
"""
Asked = dict[str, set[str]]


def table(file: Path = TABLE) -> Asked:
    """Subcommand (`git` itself too) → the options that git of that version was seen to accept."""
    rows = (line.partition(":") for line in file.read_text().splitlines() if line and not line.startswith("#"))
    return {name: set(options.split()) for name, _, options in rows}


def asked_of_git(calls: Iterable[list[str]]) -> Asked:
    """Subcommand → options, of calls of git."""
    found: Asked = {"git": set()}
    for call in calls:
        words = iter(call)
        name = "git"
        for word in words:
            if word == "-c" and name == "git":
                next(words)
            elif word == "--":
                break
            elif word.startswith("-"):
                found[name].add(option(word))
            elif name == "git":
                name = word
                found.setdefault(name, set())
    return found


def option(word: str) -> str:
    """An option without its value; where git's own vocabulary grows, with it."""
    if word[:2] in ("-O", "-o"):
        return word[:2]
    return word if word.startswith(("--path-format", "--date-format", "--diff-algorithm")) else word.partition("=")[0]


def recorded(log: Path) -> list[list[str]]:
    """The calls that a recorder wrote down."""
    calls: list[list[str]] = [[]]
    for word in log.read_bytes().split(b"\0")[:-1]:
        if word == b"\n":
            calls.append([])
        else:
            calls[-1].append(os.fsdecode(word))
    return calls[:-1]


def with_git(world: World, folder: Path, script: str) -> World:
    """The world with this script for its git."""
    write(folder, {"git": script.format(git=shutil.which("git"), log=folder / "log")})
    (folder / "git").chmod(0o755)
    return changed(world, {"PATH": f"{folder}{os.pathsep}{world.env['PATH']}"})


@pytest.fixture
def asked(world: World, tmp_path: Path) -> Asked:
    """What the tools ask of git while they do all that they do."""
    inside = with_git(world, tmp_path / "recorder", RECORDER)
    for scene in (_fresh, _upgrade, _authors, _sparse, _linked, _refused, _cut, _partial):
        scene(inside)
    return asked_of_git(recorded(tmp_path / "recorder" / "log"))


def _does(world: World, code: int, *arguments: object) -> None:
    verb, *rest = arguments
    answer = world.ask(str(verb), *rest)
    assert answer.code == code and "Traceback" not in answer.err, (arguments, answer)


def _fresh(world: World) -> None:
    for source, only in (("git", "toy"), ("pypi", "gear"), (world.toy.upstream(), "toy")):
        into = world.root / f"fresh-{only}-{len(str(source))}"
        _does(world, 0, "apply", "--into", into, "--source", source, "--only", only)


def _upgrade(world: World) -> None:
    clone = world.clone("upgraded")
    for more in (["--dry-run"], ["--through", "right-answer"], ["--dry-run"], [], ["--reverse"], []):
        _does(world, 0, "apply", clone, *more)
    _does(world, 0, "status", clone)
    _does(world, 0, "verify", clone)


def _authors(world: World) -> None:
    clone = world.clone("author")
    _does(world, 0, "apply", clone)
    _does(world, 0, "export", clone, "--check")
    commit(clone, "mine", {"python/toy/bare.txt": "mine\n"})
    write(world.toy.home.root, {"tests/patches/test_mine.py": ""})
    _does(world, 1, "apply", clone)
    kept = (world.toy.home.root / SERIES / "series").read_bytes()
    _does(world, 0, "export", clone)
    _does(world, 0, "verify", clone)
    (world.toy.home.root / SERIES / "mine.patch").unlink()
    (world.toy.home.root / SERIES / "series").write_bytes(kept)


def _sparse(world: World) -> None:
    clone = world.clone("sparse")
    git(clone, "sparse-checkout", "init", "--cone")  # `set --cone` is younger than 2.34
    git(clone, "sparse-checkout", "set", "python/toy")
    _does(world, 0, "apply", clone)
    _does(world, 0, "apply", clone, "--reverse")


def _linked(world: World) -> None:
    clone = world.clone("main-tree")
    git(clone, "worktree", "add", "-q", "--detach", "../linked", "main")
    _does(world, 0, "apply", world.root / "linked")
    _does(world, 1, "apply", clone)


def _refused(world: World) -> None:
    clone = world.clone("refused")
    _does(world, 1, "apply", clone / "python")
    (clone / "python/toy/core.py").chmod(0o755)
    _does(world, 1, "apply", clone)
    (clone / "python/toy/core.py").write_text("edited\n")
    _does(world, 1, "apply", clone)


def _cut(world: World) -> None:
    """A run is killed as HEAD should move, then the user commits on the branch that it had made."""
    clone = world.clone("cut")
    dying = with_git(world, world.root / "dying", DYING)
    assert dying.ask("apply", clone).code == -9
    git(clone, "update-ref", "refs/heads/sm120/v1", git(clone, "commit-tree", "-m", "x", "-p", "sm120/v1",
                                                        "sm120/v1^{tree}").strip())  # fmt: skip
    _does(world, 1, "apply", clone)
    git(clone, "update-ref", "refs/heads/sm120/v1", "sm120/v1~1")
    _does(world, 0, "apply", clone)


def _partial(world: World) -> None:
    _does(world, 1, "apply", partial_clone(world, "blob:none", "--no-checkout"))


def test_every_call_of_a_full_run_is_one_that_git_2_34_knows(asked: Asked) -> None:
    assert _unknown(asked) == []


def _unknown(asked: Asked, known: Asked | None = None) -> list[str]:
    known = known or table()
    new = [f"git {name}" for name in asked if name not in known]
    new += [f"git {name} {word}" for name in asked for word in sorted(asked[name] - known.get(name, set()))]
    return [f"{call}: not known to git 2.34, check it there and add it to {TABLE.name}" for call in new]


def test_the_sources_name_no_call_that_the_table_lacks() -> None:
    """What no run of the tests reaches is read from the sources: the words in calls of the gateway."""
    assert _unknown(asked_of_git(_written())) == []


def test_what_moves_a_series_asks_for_no_more_than_git_2_39_was_seen_to_accept() -> None:
    known = table()
    for name, options in table(NEWER).items():
        known[name] = known.get(name, set()) | options
    assert _unknown(asked_of_git(_written(MOVING)), known) == []


def _written(modules: set[str] | None = None) -> Iterator[list[str]]:
    """Calls of the gateway as the sources write them, also those that are put down as a tuple or a list first.

    Args:
        modules: those below queue/ that are read; else all that must do with git 2.34.
    """
    own = set(subprocess.run(["git", "--list-cmds=main"], capture_output=True, text=True, check=True).stdout.split())
    for file in sorted((TOOLS / "sm120_overlay" / "queue").rglob("*.py")):
        if (file.stem not in modules) if modules else (file.stem in MOVING):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            words: list[str] = []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("run", "attempt"):
                words = [word for word in map(_word, node.args[1:]) if word]
            elif isinstance(node, ast.Tuple | ast.List):
                words = [word for word in map(_word, node.elts) if word]
                words = words if words[:1] and words[0] in own and any(w.startswith("-") for w in words) else []
            if any(not word.startswith("-") for word in words):
                yield words


def _word(node: ast.expr) -> str:
    """The text that an argument is, or begins with."""
    first = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def test_the_recorder_hears_what_is_asked() -> None:
    """The guard's own reading of calls."""
    heard = asked_of_git([["-c", "a=b", "--literal-pathspecs", "log", "-z", "--format=%H", "-O/dev/null", "--", "-x"]])
    assert heard == {"git": {"--literal-pathspecs"}, "log": {"-z", "--format", "-O"}}
    assert _unknown({"log": {"--from-the-future"}}) == [
        "git log --from-the-future: not known to git 2.34, check it there and add it to git_2_34.txt"
    ]


def test_this_run_has_a_git_2_34_to_prove_the_table_on() -> None:
    """Says aloud where it has none: then the table stands for it."""
    if not os.environ.get(OTHER_GIT):
        pytest.skip(f"${OTHER_GIT} names no git 2.34: the table of what it knows stands for it")
    said = subprocess.run(["git", "--version"], capture_output=True, text=True, check=True).stdout
    assert said.startswith("git version 2.34."), said


TOO_OLD = """#!/bin/sh
case " $* " in *" version "*) echo git version 2.25.1; exit;; *" --path-format"*) echo unknown >&2; exit 129;; esac
exec "{git}" "$@"
"""


@pytest.mark.case("git is older than 2.34", target="checkout", outcome="refused")
def test_a_git_that_is_too_old_is_said_to_be(world: World) -> None:
    write(world.root, {"old/git": TOO_OLD.format(git=shutil.which("git"))})
    (world.root / "old/git").chmod(0o755)
    old = changed(world, {"PATH": f"{world.root / 'old'}{os.pathsep}{world.env['PATH']}"})
    answer = old.ask("apply", world.clone())
    assert answer.code == 4, answer
    assert "git 2.25.1 is too old; expected 2.34 or newer" in answer.said["error"]["what"]
