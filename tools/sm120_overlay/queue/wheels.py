"""Wheels of a pin: fetched by hash through pip (which knows the user's index and proxies), read, laid out."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from ..cache import cache_dir, publish
from ..errors import Missing
from .pins import Pin, Wheel

Say = Callable[[str], None]


def fetch_wheel(pin: Pin, say: Say, wheel: Wheel | None = None) -> Path:
    """The wheel file of a pin (its first tag where none is asked for), from the cache or from the index.

    Raises:
        Missing: it is not cached and the index does not give it, or gives another file.
    """
    wheel = wheel or pin.wheels[0]
    place = cache_dir("wheels", wheel.sha256)
    if not place.exists():
        say(f"{pin.upstream}: downloading {pin.distribution} {pin.version} ({wheel.tag}) from the package index")
    files = list(publish(place, lambda partial: _download(pin, wheel, partial)).iterdir())
    if len(files) != 1:
        raise Missing(
            f"{place}: expected one wheel, found {len(files)} files.", "Delete the folder; it is fetched again."
        )
    (file,) = files
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != wheel.sha256:
        raise Missing(
            f"{file}: expected sha256 {wheel.sha256}, found {found}.", f"Delete {place}; it is fetched again."
        )
    return file


def _download(pin: Pin, wheel: Wheel, folder: Path) -> None:
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{pin.distribution}=={pin.version} --hash=sha256:{wheel.sha256}\n")
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes",
        "--no-cache-dir", "--disable-pip-version-check", "--ignore-requires-python", "--dest", str(folder),
        *_platform(wheel.tag), "--requirement", str(wanted),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wanted.unlink()
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        why = errors[-1].removeprefix("ERROR: ") if errors else f"pip exited {done.returncode}"
        raise Missing(
            f"{pin.distribution} {pin.version} ({wheel.tag}) could not be downloaded: {why}.",
            "Check the network and pip's index settings, or name another source with --source.",
        )


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
