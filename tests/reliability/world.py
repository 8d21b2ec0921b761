"""What a run could reach: targets to name, a snapshot of all of it, and the class of what a verb did to it.

The class is computed from what was seen, never from what a test expects: `exact` needs the very bytes, commit ids and
digest of a plain target, nothing changed elsewhere, and a reverse that gives everything back; `refused` and `told` need
that not one byte changed, and no false yes of status. What is none of these is `silent` (exit 0, and it is not the
series), `lost` (something changed that should not have) or `mute` (a no without its two sentences).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay.queue.pins import Pin
from sm120_overlay.queue.series import Series, chains

from ..queue.scenes import Answer, Venv, ask, copy_venv, snapshot
from ..queue.toy import Toy, git

# What git may change without changing anything of the user's: objects no one names, stat data, records of HEAD.
VOLATILE = ("objects", "logs", "index")


@dataclass(frozen=True)
class World:
    """One test's own folder: the project, and beside it what the test makes; `monkeypatch` for its surroundings."""

    root: Path
    toy: Toy
    venv_master: Path
    monkeypatch: pytest.MonkeyPatch

    def venv(self, name: str = "venv") -> Venv:
        """An environment with both upstreams installed by pip."""
        return copy_venv(self.venv_master, self.root / name)

    def all(self) -> dict[str, object]:
        """Path → mode and bytes of everything but the cache, git's objects, and files that Python compiled."""
        found = snapshot(self.root, skip=("cache", "objects", "__pycache__"))
        return {path: seen for path, seen in found.items() if not path.startswith("elsewhere-")}


@dataclass(frozen=True)
class Case:
    """One row on one kind of target: how it comes about, what must be seen, and the words of the sentence.

    `arrange` makes the hazard and gives the arguments that name the target.
    """

    what: str
    target: str
    outcome: str
    arrange: Callable[[World], Sequence[object]]
    names: tuple[str, ...] = ()
    source: str = ""
    awaits: str = ""  # why it is not so yet


def marked(cases: Sequence[Case]) -> list[object]:
    """The cases as parameters of a test, each with the mark that puts it into the table."""
    return [pytest.param(case, id=f"{case.target}: {case.what}: {case.outcome}", marks=_marks(case)) for case in cases]


def _marks(case: Case) -> list[pytest.MarkDecorator]:
    where = {"source": case.source} if case.source else {}
    row = pytest.mark.case(case.what, target=case.target, outcome=case.outcome, **where)
    return [row, pytest.mark.xfail(strict=True, reason=case.awaits)] if case.awaits else [row]


def check(world: World, case: Case) -> None:
    """What is seen is what the case declares, and the sentence has its words."""
    arguments = case.arrange(world)
    seen, said = told(world, arguments) if case.outcome == "told" else applied(world, arguments)
    assert seen == case.outcome, said
    for name in case.names:
        assert name in said, said


def applied(world: World, arguments: Sequence[object]) -> tuple[str, str]:
    """The class of what `apply ARGUMENTS` did, and what it said."""
    before = world.all()
    index = _indexes(world)
    answer = ask("apply", *arguments)
    said = sentence(answer)
    if answer.code:
        status = ask("status", *arguments)
        changed = _changed(before, world.all()) or _changed(index, _indexes(world))
        if changed or _false_yes(world, status):
            return "lost" if changed else "silent", f"{changed} {said}"
        return "refused" if well_said(answer) else "mute", said
    wrong = [*_inexact(world, answer), *_strayed(world, answer, before)]
    if wrong:
        return "silent" if world.all() == before else "lost", f"{wrong} {said}"
    back = ask("apply", *arguments, "--reverse")
    differing = _differing(before, world.all()) if not back.code else [sentence(back)]
    return ("lost" if differing or _indexes(world) != index else "exact"), f"{differing} {said}"


def told(world: World, arguments: Sequence[object]) -> tuple[str, str]:
    """The class of what status and verify say of a target, and what they said."""
    before = world.all()
    answers = [ask(verb, *arguments) for verb in ("status", "verify")]
    said = " ".join(sentence(answer) for answer in answers)
    if world.all() != before:
        return "lost", said
    return ("told" if all(answer.code == 1 for answer in answers) else "silent"), said


def well_said(answer: Answer) -> bool:
    """A no is two sentences, in JSON and for a person, and no traceback."""
    error = answer.said.get("error", {})
    return bool(error.get("what") and error.get("todo")) and "Traceback" not in answer.err


def sentence(answer: Answer) -> str:
    """Everything that an answer says in words, for a program and for a person."""
    return json.dumps(answer.said, ensure_ascii=False) + answer.err


def touched(series: Series) -> dict[str, str | None]:
    """Repository path → the blob that the series makes of it."""
    return {path: chain.points[-1] for path, chain in chains(series).items()}


def canonical(world: World, pin: Pin) -> Path:
    """A plain clone with the series on it: what every other target is held beside."""
    folder = world.root / f"elsewhere-{pin.upstream}"
    if not folder.exists():
        git(world.root, "clone", "-q", str(world.toy.upstream(pin.upstream)), str(folder))
        assert ask("apply", folder).code == 0
    return folder


def _false_yes(world: World, status: Answer) -> bool:
    """Whether status says that all is applied, and a touched file is not what the series makes of it."""
    for name, target in status.targets.items() if not status.code else ():
        for path, blob in touched(world.toy.series(name)).items():
            data = _bytes(_place(world, name, target, path))
            found = None if data is None else hashlib.sha1(b"blob %d\0%s" % (len(data), data)).hexdigest()
            if found != blob:
                return True
    return False


def _place(world: World, name: str, target: dict[str, Any], path: str) -> Path:
    """Where a file of the repository lies in a target of an answer."""
    there = path if target["kind"] == "checkout" else str(world.toy.pin(name).installed_path(path))
    return Path(target["path"], there)


def _inexact(world: World, answer: Answer) -> Iterator[str]:
    """What of the targets is not byte for byte as on a plain clone."""
    for name, target in answer.targets.items():
        pin, series = world.toy.pin(name), world.toy.series(name)
        plain, top = canonical(world, pin), Path(target["path"])
        if target["digest"] != series.digest:
            yield f"{name}: another digest"
        if target["kind"] == "checkout" and _head(top) != _head(plain):
            yield f"{name}: another commit"
        for path in touched(series):
            there = _place(world, name, target, path)
            if _bytes(there) != _bytes(plain / path):
                yield f"{path}: other bytes"
            if target["kind"] == "checkout" and os.access(there, os.X_OK) != os.access(plain / path, os.X_OK):
                yield f"{path}: another mode"


def _strayed(world: World, answer: Answer, before: dict[str, object]) -> list[str]:
    """What changed although no series touches it: another file, another place, another repository."""
    ours: set[str] = set()
    inside: list[str] = []
    for name, target in answer.targets.items():
        pin, top = world.toy.pin(name), Path(target["path"]).resolve()
        checkout = target["kind"] == "checkout"
        files = {path if checkout else str(pin.installed_path(path)) for path in touched(world.toy.series(name))}
        infos = [path.relative_to(top) for path in top.glob("*.dist-info")]
        files |= set() if checkout else {f"{info}/RECORD" for info in infos}
        ours |= {os.path.relpath(top / file, world.root) for file in files}
        ours |= {os.path.relpath(folder, world.root) for file in files for folder in (top / file).parents}
        inside += [_git_dir(top)] if checkout else [str(top / info / "sm120-overlay") for info in infos]
    below = [os.path.relpath(folder, world.root) for folder in inside]
    after = world.all()
    changed = _changed(before, after)
    return sorted(p for p in set(changed) - ours if not any(p == b or p.startswith(f"{b}/") for b in below))


def _changed(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def _differing(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """What a reverse did not give back."""
    return sorted(path for path in _changed(before, after) if not set(Path(path).parts) & set(VOLATILE))


def _indexes(world: World) -> dict[str, str]:
    """Every index in the world as its user sees it, flags too."""
    tops = [Path(top) for top, folders, files in os.walk(world.root) if ".git" in folders + files]
    seen = {}
    for top in tops:
        try:
            seen[str(top)] = git(top, "ls-files", "-s", "-v")
        except Exception:  # a repository that git itself does not take is a case of ours
            seen[str(top)] = "none"
    return {top: said for top, said in seen.items() if not Path(top).name.startswith("elsewhere-")}


def _head(folder: Path) -> str:
    return git(folder, "rev-parse", "HEAD")


def _git_dir(folder: Path) -> str:
    """The git directory that all worktrees of a checkout share."""
    return str((folder / git(folder, "rev-parse", "--git-common-dir").removesuffix("\n")).resolve())


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def made(world: World, arguments: Sequence[object]) -> tuple[str, str]:
    """The class of what `apply ARGUMENTS` did where it makes a checkout, and what it said."""
    before = world.all()
    answer = ask("apply", *arguments)
    said, changed = sentence(answer), _changed(before, world.all())
    if answer.code:
        return "lost" if changed else "refused" if well_said(answer) else "mute", f"{changed} {said}"
    place = os.path.relpath(Path(answer.targets["toy"]["path"]).resolve(), world.root)
    parents = {str(folder) for folder in Path(place).parents}
    strayed = [path for path in changed if path not in parents and path != place and not path.startswith(f"{place}/")]
    wrong = [*_inexact(world, answer), *strayed]
    return "lost" if wrong else "exact", f"{wrong} {said}"
