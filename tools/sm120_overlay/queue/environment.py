"""Finds the distributions of a Python environment by asking its interpreter for its path and reading the metadata."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from ..errors import Missing, Refused
from .home import command
from .pins import Line, Lines, Pin

if TYPE_CHECKING:
    from importlib.metadata import Distribution

# Without safe_path the first entry is the folder of this very call.
ASK = "import json, sys; print(json.dumps(sys.path[0 if getattr(sys.flags, 'safe_path', False) else 1:]))"


@dataclass(frozen=True)
class Package:
    """One distribution where an interpreter finds it: `site` holds its files, `info` is its .dist-info folder."""

    name: str
    version: str
    tag: str
    site: Path
    info: Path
    editable: str | None


@dataclass(frozen=True)
class Environment:
    """A Python environment: its interpreter, its module path, and of the distributions asked for those it has."""

    python: str
    path: tuple[str, ...]
    packages: dict[str, Package]


def find_environment(python: str | None, lines: Lines) -> Environment:
    """The environment of an interpreter (None: the one that runs this), with every distribution the lines name.

    Raises:
        Missing: the interpreter does not run.
        Refused: one folder of its path holds two versions of one of them.
    """
    names = {pin.distribution for pin in lines.all_pins()}
    names |= {name for line in lines.lines for name, _ in line.joint}
    names |= {name for pin in lines.all_pins() for name, _ in pin.prebuilt}
    python = python or sys.executable
    path = interpreter_path(python)
    return Environment(python, tuple(path), find_packages(path, names))


def find_packages(paths: Iterable[str], names: Iterable[str]) -> dict[str, Package]:
    """Distribution name → package, of those of `names` that lie on a module path.

    Raises:
        Refused: one folder of it holds two versions of one of them.
    """
    from importlib.metadata import distributions  # 10 ms that a checkout need not pay

    wanted = sorted(names)
    found: dict[str, Package] = {}
    for path in paths:
        here: dict[str, Package] = {}
        for name in wanted:
            # Asked by name, it goes by the names of the .dist-info folders and reads no other package's metadata.
            for package in filter(None, map(_package, distributions(name=name, path=[path]))):
                _check_single(here.get(name), package)
                here[name] = package
        found = here | found  # what comes first on the path is what is imported
    return found


def interpreter_path(python: str) -> list[str]:
    """`sys.path` of an interpreter as a plain run of it has it.

    Raises:
        Missing: it does not run.
    """
    try:
        program = os.path.abspath(python) if os.sep in python else python
        done = subprocess.run([program, "-c", ASK], capture_output=True, text=True, check=True, cwd="/")
        return [str(path) for path in json.loads(done.stdout) if path]
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise Missing(
            f"{python}: expected a Python interpreter, and it does not run ({why}).",
            "Name the interpreter of the environment that the packages are in: --installed PATH/bin/python.",
        ) from None


def recognise(lines: Lines, environment: Environment, name: str | None) -> Line:
    """The one line that the installed upstreams belong to.

    Raises:
        Missing: none of the upstreams is installed.
        Refused: they belong to no line, or to different ones, or something else does not match.
    """
    packages = environment.packages
    here = [(pin, packages[pin.distribution]) for pin in _one_per_distribution(lines) if pin.distribution in packages]
    if not here:
        wanted = " and ".join(sorted({pin.distribution for pin in lines.all_pins()}))
        raise Missing(
            f"{wanted} are not installed for {environment.python}.",
            "Name their interpreter: --installed PATH/bin/python.",
        )
    candidates = [line for line in lines.lines if name in (None, line.name)]
    fitting = [line for line in candidates if all(_fits(line, pin.upstream, package) for pin, package in here)]
    if not fitting:
        found = ", ".join(f"{package.name} {package.version}" for _, package in here)
        expected = "; ".join(f"{line.name}: {_versions(line)}" for line in candidates) or f"no line {name}"
        raise Refused(
            f"{found} are installed together; expected those of one line ({expected}).",
            f"{environment.python} -m pip install {_requirements(candidates or list(lines.lines))}, then run again.",
        )
    return fitting[0]


def check_imported(environment: Environment, pin: Pin, package: Package) -> None:
    """What Python imports is what pip installed.

    Raises:
        Refused: a folder earlier on the path holds the same top-level name.
    """
    tops = {there.partition("/")[0] for _, there in pin.paths}
    for path in environment.path:
        if Path(path).resolve() == package.site.resolve():
            return
        shadow = next((top for top in sorted(tops) if _importable(Path(path), top)), None)
        if shadow:
            raise Refused(
                f"{environment.python} imports {shadow} from {path}, not from {package.site}, where pip installed it.",
                "Take that folder off PYTHONPATH, or apply to it as a checkout.",
            )


def _importable(folder: Path, name: str) -> bool:
    """Whether a regular package or module of that name is there; a plain folder gives way to one found later."""
    return (folder / name / "__init__.py").is_file() or (folder / f"{name}.py").is_file()


def check_editable(environment: Environment, lines: Lines) -> None:
    """No upstream is an editable install, which has no files of its own.

    Raises:
        Refused: one is; naming its checkout.
    """
    for name in sorted({pin.distribution for pin in lines.all_pins()} & environment.packages.keys()):
        editable = environment.packages[name].editable
        if editable:
            top = _top_folder(Path(unquote(urlsplit(editable).path)))
            raise Refused(
                f"{name} is an editable install of {top}: it has no files of its own.",
                f"Apply to that checkout instead: {command('apply')} {top}",
            )


def _top_folder(path: Path) -> Path:
    """The checkout that a folder lies in, where there is one."""
    return next((folder for folder in (path, *path.parents) if (folder / ".git").exists()), path)


def check_joint(line: Line, environment: Environment) -> None:
    """Everything that is installed and that the line names has the line's version.

    Raises:
        Refused: naming each one that has not.
    """
    packages = environment.packages
    wrong = {
        name: version
        for name, version in line.joint
        if name in packages and packages[name].version.partition("+")[0] != version
    }
    if wrong:
        found = (f"{name} {packages[name].version} (expected {version})" for name, version in wrong.items())
        pinned = " ".join(f"{name}=={version}" for name, version in wrong.items())
        raise Refused(
            f"{environment.python} does not fit line {line.name}: it has {', '.join(found)}.",
            f"{environment.python} -m pip install {pinned}, then run again.",
        )


def _package(dist: Distribution) -> Package | None:
    info = getattr(dist, "_path", None)
    if not isinstance(info, Path) or info.suffix != ".dist-info":
        return None
    wheel = dist.read_text("WHEEL") or ""
    tags = re.findall(r"^Tag: (\S+)", wheel, re.MULTILINE)
    origin = json.loads(dist.read_text("direct_url.json") or "{}")
    editable = origin.get("url") if origin.get("dir_info", {}).get("editable") else None
    return Package(dist.metadata["Name"], dist.version, tags[0] if tags else "", info.parent, info, editable)


def _check_single(first: Package | None, second: Package) -> None:
    if first is not None and first.info != second.info:
        raise Refused(
            f"{second.site} holds two versions of {second.name}: {first.version} and {second.version}.",
            f"Remove one (pip uninstall {second.name}, twice), and install the one that is meant.",
        )


def _one_per_distribution(lines: Lines) -> list[Pin]:
    return list({pin.distribution: pin for pin in lines.all_pins()}.values())


def _fits(line: Line, upstream: str, package: Package) -> bool:
    return any(pin.upstream == upstream and pin.version == package.version for pin in line.pins)


def _requirements(lines: list[Line]) -> str:
    return " ".join(f"{pin.distribution}=={pin.version}" for pin in lines[0].pins)


def _versions(line: Line) -> str:
    return ", ".join(f"{pin.distribution} {pin.version}" for pin in line.pins)
