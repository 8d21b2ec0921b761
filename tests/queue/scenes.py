"""What several test modules set up around the toy project: verbs as calls, snapshots, newer series, venvs."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm120_overlay.cli import main
from sm120_overlay.queue.checkout import open_checkout
from sm120_overlay.queue.export import changes, export_commits, write_export
from sm120_overlay.queue.pins import load_lines

from .toy import FIRST, Toy, commit, git, write

LEVER = "python/toy/extra/lever.py"
NEWER = {
    "python/toy/core.py": FIRST["python/toy/core.py"].replace("# line 40\n", "# line forty\n"),
    "python/toy/bare.txt": "one\ntwo\nfour",
    "python/toy/extra/__init__.py": "# newer\n",
    LEVER: "LEVER = 1\n",
}
CUT = 77


@dataclass(frozen=True)
class Answer:
    """How a verb ended: its exit code, its JSON answer (empty where it printed none) and what it said meanwhile."""

    code: int
    said: dict[str, Any]
    err: str

    @property
    def targets(self) -> dict[str, dict[str, Any]]:
        """Upstream → target of the answer."""
        return {target["upstream"]: target for target in self.said["targets"]}

    def states(self, upstream: str = "toy") -> dict[str, str]:
        """Slug → state on one target."""
        return {patch["slug"]: patch["state"] for patch in self.targets[upstream]["patches"]}


def ask(*arguments: object) -> Answer:
    """A verb with --json, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*map(str, arguments), "--json"])
    return Answer(code, json.loads(out.getvalue()) if out.getvalue() else {}, err.getvalue())


def snapshot(folder: Path, skip: Iterable[str] = ("__pycache__", ".git"), stats: bool = False) -> dict[str, object]:
    """Path → mode and content of everything below a folder, empty folders too; with `stats` inode and times as well."""
    found: dict[str, object] = {}
    for top, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in skip]
        for name in [*folders, *files]:
            path = Path(top, name)
            about = path.lstat()
            data = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            seen = (about.st_ino, about.st_mtime_ns) if stats and name not in folders else ()
            found[str(path.relative_to(folder))] = (stat.filemode(about.st_mode), data, *seen)
    return found


def make_newer(toy: Toy) -> Path:
    """Replaces toy's series by a newer one; the home as it was before.

    `right-answer` stays, `bring-hook` goes and with it the change of dos.py; `bring-lever` changes bare.txt instead.
    """
    older = toy.root / "older"
    shutil.copytree(toy.home.root, older)
    clone = toy.clone("toy", "author-newer")
    git(clone, "checkout", "-q", "-b", "sm120/v1")
    commit(clone, "right-answer", FIRST)
    commit(clone, "bring-lever", NEWER, Overlay=LEVER)
    write(toy.home.root, {"tests/patches/test_bring_lever.py": ""})
    checkout = open_checkout(clone, load_lines(toy.home.pins))
    write_export(toy.home, changes(toy.home, checkout.pin, export_commits(checkout)))
    return older


def use_series(toy: Toy, home: Path) -> None:
    """Makes the series of another home (see `make_newer`) the project's."""
    for name in ("patches", "overlay"):
        shutil.rmtree(toy.home.root / name)
        shutil.copytree(home / name, toy.home.root / name)


def make_venv(folder: Path, wheels: Path) -> Path:
    """A venv with both upstreams installed by pip, for copies."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    install = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "-q", "--no-deps"]
    subprocess.run([*install, "--no-index", *map(str, sorted(wheels.glob("*.whl")))], check=True, capture_output=True)
    return folder


@dataclass(frozen=True)
class Venv:
    """A virtual environment of one test's own."""

    root: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.root / "bin" / "python"

    @property
    def site(self) -> Path:
        """Its site-packages."""
        return next((self.root / "lib").glob("python3*")) / "site-packages"

    def info(self, name: str = "toy") -> Path:
        """The .dist-info of a distribution."""
        return next(self.site.glob(f"{name}-*.dist-info"))

    def run(self, code: str) -> str:
        """What its Python prints."""
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        done = subprocess.run([self.python, "-c", code], cwd="/", check=True, capture_output=True, text=True, env=env)
        return done.stdout.strip()

    def pip(self, *arguments: str) -> None:
        """The pip of the tests at work on this environment."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), *arguments]
        subprocess.run(pip, check=True, capture_output=True, stdin=subprocess.DEVNULL)


def copy_venv(master: Path, folder: Path) -> Venv:
    """A copy that is as new: a venv knows its place by where its interpreter is."""
    shutil.copytree(master, folder, symlinks=True)
    return Venv(folder)


def add_distribution(site: Path, name: str, version: str, **files: str) -> None:
    """A distribution without content, as metadata knows it."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    write(site, {f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"})
    write(site, {f"{info}/{file}": text for file, text in files.items()})
