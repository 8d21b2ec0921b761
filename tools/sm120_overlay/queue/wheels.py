"""Wheels of a pin: fetched by hash through pip (which knows the user's index and proxies), read, laid out."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from platform import machine
from tempfile import TemporaryFile

from .. import report
from ..cache import cache_dir, publish
from ..errors import Missing
from .pins import Pin, Wheel

Say = Callable[[str], None]


def fetch_wheel(pin: Pin, say: Say, wheel: Wheel | None = None) -> Path:
    """The wheel file of a pin (for this interpreter where none is asked for), from the cache or from the index.

    Raises:
        Missing: it is not cached and the index does not give it, or gives another file.
    """
    wheel = wheel or suited(pin)
    place = cache_dir("wheels", wheel.sha256)
    if not place.exists():
        say(f"{pin.upstream}: downloading {pin.distribution} {pin.version} ({wheel.tag}) from the package index")
    files = list(publish(place, lambda partial: _download(pin, wheel, partial)).iterdir())
    if len(files) != 1:
        # why: which of several files was meant cannot be told
        raise Missing(
            f"{place}: expected one wheel, found {len(files)} files.", "Delete the folder; it is fetched again."
        )
    (file,) = files
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != wheel.sha256:
        # why: a cache that was cut or edited is not the pinned wheel
        raise Missing(
            f"{file}: expected sha256 {wheel.sha256}, found {found}.", f"Delete {place}; it is fetched again."
        )
    return file


def suited(pin: Pin) -> Wheel:
    """The wheel for this interpreter and machine; the first where none is: their layouts are one (a test holds it)."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}-"
    fits = (wheel for wheel in pin.wheels if wheel.tag.startswith(python) and wheel.tag.endswith(machine()))
    return next(fits, pin.wheels[0])


def _download(pin: Pin, wheel: Wheel, folder: Path) -> None:
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{pin.distribution}=={pin.version} --hash=sha256:{wheel.sha256}\n")
    options = [
        "--no-deps", "--only-binary=:all:", "--require-hashes", "--no-cache-dir", "--ignore-requires-python",
        "--dest", str(folder), *_platform(wheel.tag), "--requirement", str(wanted),
    ]  # fmt: skip
    _fetch(pin.distribution, f"{pin.version} ({wheel.tag})", options)
    wanted.unlink()


def _fetch(distribution: str, version: str, options: list[str]) -> None:
    """Lets pip download what the options say; the two names are for sentences."""
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", _bar()]
    code, errors = _run([sys.executable, "-m", "pip", "download", *quiet, *options], f"{distribution} {version}")
    if code:
        why = errors[-1].removeprefix("ERROR: ") if errors else f"pip exited {code}"
        # why: pip's last line says what the index or the network lacks
        raise Missing(
            f"{distribution} {version} could not be downloaded: {why}.",
            "Check the network and pip's index settings, or name another source with --source.",
        )


def fetch_release(distribution: str, version: str, say: Say) -> Path:
    """The wheel of a release that is no pin yet, for this interpreter: what comes first becomes its hash.

    Raises:
        Missing: the index gives no wheel of it.
    """
    place = cache_dir("releases", f"{distribution}-{version}")
    if not place.exists():
        say(f"downloading {distribution} {version} from the package index")

    def download(folder: Path) -> None:
        options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--ignore-requires-python"]
        _fetch(distribution, version, [*options, "--dest", str(folder), f"{distribution}=={version}"])

    (file,) = publish(place, download).iterdir()
    return file


def ask_pip(*arguments: str) -> str:
    """What `pip ARGUMENTS` prints.

    Raises:
        Missing: it fails; its last line says what the index or the network lacks.
    """
    _bar()  # pip is there
    command = [sys.executable, "-m", "pip", *arguments, "--disable-pip-version-check", "--no-input"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = _errors(done.stderr) or [f"pip exited {done.returncode}"]
        # why: what cannot be asked is not the same as what is not there
        raise Missing(
            f"pip {' '.join(arguments[:2])} {arguments[-1]}: {said[-1].removeprefix('ERROR: ')}.",
            "Check the network and pip's index settings.",
        )
    return done.stdout


def tag_of(name: str) -> str:
    """The platform tag in a wheel's file name, such as `py3-none-any`."""
    return "-".join(name.removesuffix(".whl").split("-")[-3:])


def _run(command: list[str], title: str) -> tuple[int, list[str]]:
    """pip's exit code and its error lines, its progress shown meanwhile."""
    with report.progress(title) as update, TemporaryFile("w+", encoding="utf-8") as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            for line in process.stdout or ():
                found = re.match(r"Progress (\d+) of (\d+)", line)
                if found:
                    update(int(found[1]), int(found[2]))
        errors.seek(0)
        said = _errors(errors.read())
    return process.returncode, said


def _errors(said: str) -> list[str]:
    """The lines that pip marks as errors, or all of them."""
    lines = said.splitlines()
    return [line for line in lines if line.startswith("ERROR") and not line.endswith("Exception:")] or lines


def _bar() -> str:
    """The kind of progress that pip can tell a program (since 24.1)."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        numbers = re.findall(r"\d+", version("pip"))
    except PackageNotFoundError:
        # why: pip knows the user's index, proxies and credentials, and we do not
        raise Missing(f"pip is not installed for {sys.executable}.", f"{sys.executable} -m ensurepip") from None
    return "raw" if tuple(map(int, numbers[:2])) >= (24, 1) else "off"


def _platform(tag: str) -> list[str]:
    """pip's options for a tag such as `cp312-cp312-manylinux_2_28_x86_64`; none for a pure one."""
    python, abi, platform = tag.split("-")
    if platform == "any":
        return []
    version = python.removeprefix("cp").removeprefix("py")
    return ["--python-version", version, "--implementation", python[:2], "--abi", abi, "--platform", platform]


def unpack(file: Path, folder: Path) -> None:
    """The wheel's files in `folder`, as an installer puts them into site-packages."""
    with zipfile.ZipFile(file) as archive:
        archive.extractall(folder)


def laid_out(pin: Pin, file: Path) -> dict[str, tuple[str, bytes]]:
    """The wheel's files as the repository has them: path → mode at the pin and bytes.

    What no patch may touch (generated files, submodules, symlinks) is left out.
    """
    with zipfile.ZipFile(file) as archive:
        mapped = {pin.repository_path(name): name for name in archive.namelist() if not name.endswith("/")}
        return {path: (pin.mode(path), archive.read(name)) for path, name in mapped.items() if path is not None}
