"""Finds the distributions of a Python environment by asking its interpreter for its path and reading the metadata."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from ..errors import Missing, Refused
from .home import command
from .pins import Line, Lines, Pin

if TYPE_CHECKING:
    from importlib.metadata import Distribution

SAID = "sm120-overlay: "  # begins our line among whatever an environment prints when it starts
# The module path, and for each name the folder that Python would import it from (through whatever finder), unimported.
# Without safe_path the first entry is the folder of this very call.
ASK = f"""
import json, os, sys
from importlib.util import find_spec
sys.path[:] = sys.path[0 if getattr(sys.flags, "safe_path", False) else 1:]
def there(name):
    try:
        spec = find_spec(name)
    except Exception:
        return None
    if spec is None or spec.origin is None:  # nothing, or a plain folder that any real package takes precedence over
        return None
    return os.path.dirname([*(spec.submodule_search_locations or []), spec.origin][0])
print("\\n{SAID}" + json.dumps([sys.path, {{name: there(name) for name in sys.argv[1:]}}]))
"""


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
    """A Python environment: its interpreter, and of the distributions asked for those it has.

    `imported` has for the upstreams' top-level names the folder that Python imports each from (None: from nowhere).
    """

    python: str
    packages: dict[str, Package]
    imported: dict[str, str | None]


def find_environment(python: str | None, lines: Lines) -> Environment:
    """The environment of an interpreter (None: the one that runs this), with every distribution the lines name.

    Raises:
        Missing: the interpreter does not run.
        Refused: one folder of its path holds two versions of one of them, or metadata that cannot be read.
    """
    names = {pin.distribution for pin in lines.all_pins()}
    names |= {name for line in lines.lines for name, _ in line.joint}
    names |= {name for pin in lines.all_pins() for name, _ in pin.prebuilt}
    python = python or sys.executable
    tops = {top for pin in lines.all_pins() for top in _tops(pin)}
    path, imported = ask_interpreter(python, sorted(tops))
    return Environment(python, find_packages(path, names), imported)


def find_packages(paths: Iterable[str], names: Iterable[str]) -> dict[str, Package]:
    """Distribution name → package, of those of `names` that lie on a module path.

    Raises:
        Refused: one folder of it holds two versions of one of them, or metadata that cannot be read.
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


def ask_interpreter(python: str, tops: Sequence[str]) -> tuple[list[str], dict[str, str | None]]:
    """`sys.path` of an interpreter as a plain run of it has it, and where it imports each of `tops` from.

    Raises:
        Missing: it does not run.
    """
    try:
        program = os.path.abspath(python) if os.sep in python else python
        done = subprocess.run(
            [program, "-c", ASK, *tops], stdin=subprocess.DEVNULL, capture_output=True, check=True, cwd="/"
        )
        lines = done.stdout.decode("utf-8", "replace").splitlines()
        said = [line for line in lines if line.startswith(SAID)]
        if not said:
            raise ValueError("it says something else")
        path, imported = json.loads(said[-1].removeprefix(SAID))
        return [str(entry) for entry in path if entry], imported
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        exited = f"exit code {error.returncode}" if isinstance(error, subprocess.CalledProcessError) else error
        why = error.strerror if isinstance(error, OSError) else exited
        # why: only the interpreter itself knows the path that it imports from
        raise Missing(
            f"{python}: expected a Python interpreter, and it does not run ({why}).",
            "Name the interpreter of the environment that the packages are in: --installed PATH/bin/python.",
        ) from None


def _tops(pin: Pin) -> list[str]:
    """The top-level names that an upstream is imported by."""
    return sorted({there.partition("/")[0] for _, there in pin.paths})


def recognise(lines: Lines, environment: Environment, name: str | None) -> Line:
    """The one line that the installed upstreams belong to.

    Raises:
        Missing: none of the upstreams is installed.
        Refused: they belong to no line or to different ones, or one is not installed and imported all the same.
    """
    packages = environment.packages
    here = [(pin, packages[pin.distribution]) for pin in _one_per_distribution(lines) if pin.distribution in packages]
    if not here:
        for pin in lines.all_pins():
            check_absent(environment, pin)
        wanted = " and ".join(sorted({pin.distribution for pin in lines.all_pins()}))
        # why: patching nothing and saying done is how servers ran unpatched (Hyperloom#516)
        raise Missing(
            f"{wanted} are not installed for {environment.python}.",
            "Name their interpreter: --installed PATH/bin/python.",
        )
    candidates = [line for line in lines.lines if name in (None, line.name)]
    fitting = [line for line in candidates if all(_fits(line, pin.upstream, package) for pin, package in here)]
    if not fitting:
        found = ", ".join(f"{package.name} {package.version}" for _, package in here)
        expected = "; ".join(f"{line.name}: {_versions(line)}" for line in candidates) or f"no line {name}"
        # why: pin 0.5.9 met image 0.5.10 and nobody was told (Hyperloom#207)
        raise Refused(
            f"{found} are installed together; expected those of one line ({expected}).",
            f"{environment.python} -m pip install {_requirements(candidates or list(lines.lines))}, then run again.",
        )
    return fitting[0]


def check_imported(environment: Environment, pin: Pin, package: Package) -> None:
    """What Python imports is what pip installed.

    Raises:
        Refused: Python finds the same top-level name elsewhere: earlier on the path, in a zip, through an import hook.
    """
    for top in _tops(pin):
        place = environment.imported.get(top)
        if place and Path(place).resolve() != package.site.resolve():
            # why: what is patched would not be what is imported
            raise Refused(
                f"{environment.python} imports {top} from {place}, not from {package.site}, where pip installed it.",
                "Take that one off PYTHONPATH (or uninstall it), or apply to it as a checkout.",
            )


def check_absent(environment: Environment, pin: Pin) -> None:
    """An upstream that pip did not install cannot be imported either.

    Raises:
        Refused: Python imports it from somewhere all the same, where nothing says what it is.
    """
    for top in _tops(pin):
        place = environment.imported.get(top)
        if place:
            # why: without pip's metadata neither version nor files of what is imported are known
            raise Refused(
                f"{environment.python} imports {top} from {place}, and pip's metadata of {pin.distribution} is not "
                f"beside it.",
                f"If that is a checkout, apply to it ({command('apply')} {_top_folder(Path(place))}) and name the "
                f"other upstream here with --only; else install {pin.distribution}=={pin.version} with pip.",
            )


def check_editable(environment: Environment, lines: Lines) -> None:
    """No upstream is an editable install, which has no files of its own.

    Raises:
        Refused: one is; naming its checkout.
    """
    for name in sorted({pin.distribution for pin in lines.all_pins()} & environment.packages.keys()):
        editable = environment.packages[name].editable
        if editable:
            top = _top_folder(Path(unquote(urlsplit(editable).path)))
            # why: its files are those of a checkout, whose branch and index must move with them
            raise Refused(
                f"{name} is an editable install of {top}: it has no files of its own.",
                f"Apply to that checkout instead: {command('apply')} {top}",
            )


def _top_folder(path: Path) -> Path:
    """The checkout that a folder lies in, where there is one."""
    return next((folder for folder in (path, *path.parents) if (folder / ".git").exists()), path)


def misfits(line: Line, environment: Environment) -> dict[str, tuple[str, str]]:
    """Distribution → version found and expected, of all that is installed and that the line names otherwise."""
    packages = environment.packages
    return {
        name: (packages[name].version, version)
        for name, version in line.joint
        if name in packages and packages[name].version.partition("+")[0] != version
    }


def misfits_said(wrong: dict[str, tuple[str, str]]) -> list[str]:
    """Each misfit in words."""
    return [f"{name} {version} (expected {expected})" for name, (version, expected) in wrong.items()]


def check_joint(line: Line, environment: Environment) -> None:
    """Everything that is installed and that the line names has the line's version.

    Raises:
        Refused: naming each one that has not.
    """
    wrong = misfits(line, environment)
    if wrong:
        found = misfits_said(wrong)
        pinned = " ".join(f"{name}=={expected}" for name, (_, expected) in wrong.items())
        # why: SGLang pins its companions exactly; with others the proofs say nothing (Hyperloom#1157)
        raise Refused(
            f"{environment.python} does not fit line {line.name}: it has {', '.join(found)}.",
            f"{environment.python} -m pip install {pinned}, then run again.",
        )


def _package(dist: Distribution) -> Package | None:
    info = getattr(dist, "_path", None)
    if not isinstance(info, Path) or info.suffix != ".dist-info":
        return None
    try:
        said = dist.read_text("METADATA") or ""
        wheel = dist.read_text("WHEEL") or ""
        origin = json.loads(dist.read_text("direct_url.json") or "{}")
        editable = origin.get("url") if origin.get("dir_info", {}).get("editable") else None
    except (ValueError, AttributeError) as error:
        raise _unreadable(
            info, f"its METADATA, WHEEL and direct_url.json are not as pip writes them ({error})"
        ) from None
    headers = said.partition("\n\n")[0]
    name, version = (re.search(rf"^{field}: *(\S+)", headers, re.MULTILINE) for field in ("Name", "Version"))
    if not (name and version):
        raise _unreadable(info, "expected METADATA with a name and a version, found none")
    tags = re.findall(r"^Tag: (\S+)", wheel, re.MULTILINE)
    return Package(name[1], version[1], tags[0] if tags else "", info.parent, info, editable)


def _unreadable(info: Path, why: str) -> Refused:
    # why: damaged metadata makes a package invisible, and it would be passed over in silence
    return Refused(
        f"{info}: {why}.",
        f"If it is what is left of another installation, remove it; else install {info.name.partition('-')[0]} again.",
    )


def _check_single(first: Package | None, second: Package) -> None:
    if first is not None and first.info != second.info:
        # why: which of the two is imported depends on the order of a folder's entries
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
