"""Upstream's own formatters, in the versions that its .pre-commit-config.yaml pins, on the files that a patch touches.

Each is installed once, by version, into the cache. What cannot be installed or is no formatter is named, never passed
over in silence.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..cache import cache_dir, publish
from ..errors import Missing
from .git import Repository, read_objects

CONFIG = ".pre-commit-config.yaml"
PYTHON, NATIVE = (".py", ".pyi"), (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp")
_CLANG = ("-c", "from clang_format import clang_format; clang_format()", "-i")


@dataclass(frozen=True)
class Kind:
    """A formatter: its distribution, how Python runs it, and which files it is for; `checks`: it only complains."""

    distribution: str
    command: tuple[str, ...]
    suffixes: tuple[str, ...]
    checks: bool = False


# By the id that its hook has in pre-commit.
KINDS = {
    "isort": Kind("isort", ("-m", "isort"), PYTHON),
    "ruff": Kind("ruff", ("-m", "ruff", "check"), PYTHON),
    "ruff-check": Kind("ruff", ("-m", "ruff", "check"), PYTHON),
    "ruff-format": Kind("ruff", ("-m", "ruff", "format"), PYTHON),
    "black": Kind("black", ("-m", "black", "--quiet"), PYTHON),
    "black-jupyter": Kind("black", ("-m", "black", "--quiet"), PYTHON),
    "clang-format": Kind("clang-format", _CLANG, NATIVE),
    "codespell": Kind("codespell", ("-m", "codespell_lib"), (*PYTHON, *NATIVE), checks=True),
}


@dataclass(frozen=True)
class Hook:
    """One hook of upstream's configuration: its id, its pinned version, its arguments, and which paths it takes."""

    id: str
    version: str
    arguments: tuple[str, ...]
    files: str
    exclude: str

    @property
    def changes(self) -> bool:
        """Whether it changes files, and does not only complain."""
        return self.id in KINDS and not KINDS[self.id].checks

    def takes(self, path: str) -> bool:
        """Whether the hook runs on a path."""
        wanted = not self.files or re.search(self.files, path)
        fits = self.id in KINDS and path.endswith(KINDS[self.id].suffixes)
        return bool(fits and wanted and not (self.exclude and re.search(self.exclude, path)))


@dataclass(frozen=True)
class Ran:
    """What one hook did: `said` is "" where it ran and had no objection, else why it did not run, or its complaint."""

    hook: str
    version: str
    ran: bool
    said: str = ""


def hooks_of(repo: Repository, commit: str) -> tuple[Hook, ...]:
    """The hooks that upstream has at a commit; none where it has no configuration, as in a tree of a wheel.

    Raises:
        Missing: PyYAML is not installed.
    """
    name = f"{commit}:{CONFIG}"
    found = read_objects(repo, [name])[name]
    if found is None:
        return ()
    try:
        import yaml
    except ImportError:
        # why: which versions upstream pins is written in YAML alone
        raise Missing(
            f"PyYAML is not installed for {sys.executable}, and {CONFIG} says which formatters upstream uses.",
            f"{sys.executable} -m pip install PyYAML, or leave them out: --no-format.",
        ) from None
    try:
        said = yaml.safe_load(found.data)
    except yaml.YAMLError:
        return ()
    general = said.get("exclude", "") if isinstance(said, dict) else ""
    rows = said.get("repos", []) if isinstance(said, dict) else []
    return tuple(_hook(row, hook, general) for row in rows for hook in row.get("hooks", ()))


def _hook(row: Mapping[str, Any], hook: Mapping[str, Any], general: str) -> Hook:
    excludes = [f"(?:{pattern})" for pattern in (general, hook.get("exclude", "")) if pattern]
    if any("(?x)" in pattern for pattern in excludes):
        excludes = ["(?x)" + "|".join(pattern.replace("(?x)", "") for pattern in excludes)]
    arguments = tuple(str(argument) for argument in hook.get("args", ()))
    version = str(row.get("rev", "")).lstrip("v")
    return Hook(str(hook["id"]), version, arguments, str(hook.get("files", "")), "|".join(excludes))


def run_formatters(hooks: Sequence[Hook], tree: Path, paths: Sequence[str]) -> tuple[Ran, ...]:
    """Runs on files of a worktree every hook that is a formatter, and says which others upstream has for such files.

    Hooks of other kinds (pre-commit's own, local ones) are left to upstream's CI and not named.
    """
    return tuple(_run(hook, tree, taken) for hook in hooks if (taken := [path for path in paths if hook.takes(path)]))


def _run(hook: Hook, tree: Path, paths: Sequence[str]) -> Ran:
    kind = KINDS[hook.id]
    ran = Ran(hook.id, hook.version, ran=False)
    try:
        place = _installed(kind.distribution, hook.version)
    except Missing as error:
        return replace(ran, said=error.what)
    command = [sys.executable, "-P", *kind.command] if sys.version_info >= (3, 11) else [sys.executable, *kind.command]
    surroundings = {
        "PYTHONPATH": str(place),
        "PATH": "/usr/bin:/bin",
        "HOME": str(place),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [*command, *hook.arguments, *paths], cwd=tree, env=surroundings, capture_output=True, text=True, check=False
    )
    words = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return replace(ran, ran=True, said=(words or ["it failed"])[0] if done.returncode else "")


def _installed(distribution: str, version: str) -> Path:
    """A folder with that version of it, for PYTHONPATH; from the cache or the package index.

    Raises:
        Missing: it is not cached and the index does not give it.
    """

    def fill(folder: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        wanted = ["--target", str(folder), f"{distribution}=={version}"]
        done = subprocess.run([*command, *wanted], capture_output=True, text=True, check=False)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
            # why: a formatter of another version would format otherwise
            raise Missing(
                f"{distribution} {version} could not be installed: {said[-1].removeprefix('ERROR: ')}",
                "Check the network, or leave the formatters out: --no-format.",
            )

    tag = f"{distribution}-{version}-{sys.implementation.cache_tag}"
    return publish(cache_dir("formatters", tag), fill)
