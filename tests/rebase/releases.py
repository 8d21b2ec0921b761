"""Later releases of the toy upstream: commits and a tag in its repository, and a wheel of the same files."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path

from sm120_overlay.cache import cache_dir
from sm120_overlay.cli import main
from sm120_overlay.queue.rebasing import workshop_folder

from ..queue.toy import TOY, Toy, git, make_wheel, write

CORE = "python/toy/core.py"
Files = Mapping[str, str | bytes | None]


def release(toy: Toy, version: str, *steps: Files) -> None:
    """One commit of upstream's a step, then the release `version` of what there is."""
    upstream = toy.upstream()
    for number, files in enumerate(steps, 1):
        write(upstream, files)
        git(upstream, "add", "-A")
        git(upstream, "commit", "-q", "-m", f"Change {number} of {version} (#{100 * int(version[0]) + number})")
    git(upstream, "tag", f"v{version}")
    names = git(upstream, "ls-files", "python/toy").split()
    packed: dict[str, bytes] = {name.removeprefix("python/"): (upstream / name).read_bytes() for name in names}
    packed["toy/_version.py"] = f"version = '{version}'\n".encode()
    wheel = make_wheel(toy.wheels, "toy", version, packed)
    _cached(wheel, "releases", f"toy-{version}")
    _cached(wheel, "wheels", hashlib.sha256(wheel.read_bytes()).hexdigest())
    _cached(toy.wheels / "toy-1.0-py3-none-any.whl", "wheels", toy.pin().wheels[0].sha256)


def _cached(wheel: Path, *place: str) -> None:
    """A wheel as if it had been downloaded before: pip takes seconds, and has tests of its own."""
    folder = cache_dir(*place)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(wheel, folder)


def core(*changes: tuple[str, str]) -> dict[str, str]:
    """core.py with some text replaced."""
    text = TOY[CORE]
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return {CORE: text}


def rebase(*arguments: str) -> int:
    """The verb's exit code."""
    return main(["rebase", "toy", *arguments])


def worktree(toy: Toy) -> Path:
    """Where a conflict is handed over."""
    return workshop_folder(toy.home, "toy") / "worktree"


def tree_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def project(toy: Toy) -> dict[str, bytes]:
    """The project's own files, less what is built."""
    return {name: data for name, data in tree_of(toy.home.root).items() if not name.startswith("build/")}
