"""
Says at start which series of the SM120 overlay runs here, and checks it against the files.

`sm120-overlay apply` leaves a manifest of what it made: beside an installed package in its
.dist-info, or in a checkout's own git directory. Every file that it names is compared with
it by git's blob id. Nothing else is read, no git is run, nothing of sglang is imported.
"""

import functools
import hashlib
import importlib.util
import json
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

logger = logging.getLogger(__name__)

STRICT = "SM120_OVERLAY_STRICT"
SCHEMA = 1


@dataclass(frozen=True)
class Drift:
    """A file that is not what the series made it; a blob is None where there is no file."""

    path: str  # in the repository
    file: Path
    expected: Optional[str]
    found: Optional[str]

    def __str__(self) -> str:
        expected, found = (
            f"blob {blob}" if blob else "no file"
            for blob in (self.expected, self.found)
        )
        return (
            f"{self.file} is not what the series made it, "
            f"expected {expected}, found {found}"
        )


@dataclass(frozen=True)
class Overlay:
    """What the manifest of one upstream says, and where the files differ from it."""

    upstream: str
    package: Optional[Path]  # the folder that is imported
    line: Optional[str] = None
    version: Optional[str] = None
    digest: Optional[str] = None
    patches: Tuple[str, ...] = ()
    drifted: Tuple[Drift, ...] = ()
    trouble: Optional[str] = None  # why the manifest proves nothing

    @property
    def problems(self) -> List[str]:
        trouble = [f"{self.package}: {self.trouble}"] if self.trouble else []
        return trouble + [str(drift) for drift in self.drifted]

    def __str__(self) -> str:
        if self.digest is None:
            return f"{self.upstream}: no manifest"
        return (
            f"{self.upstream} {self.version}, line {self.line}, digest {self.digest}, "
            f"patches {' '.join(self.patches)}"
        )

    def as_json(self) -> Dict[str, Any]:
        """Without the paths of this machine."""
        return {
            "line": self.line,
            "version": self.version,
            "digest": self.digest,
            "patches": list(self.patches),
            "ok": not self.problems,
            "trouble": self.trouble,
            "drifted": [
                {"file": d.path, "expected": d.expected, "found": d.found}
                for d in self.drifted
            ],
        }


def check_overlay() -> None:
    """
    Log what runs here, and warn of whatever is not as it was applied.

    With SM120_OVERLAY_STRICT=1 the first such thing is a RuntimeError.
    """
    strict = os.environ.get(STRICT, "0")
    if strict not in ("0", "1"):
        raise RuntimeError(f"{STRICT} must be 0 or 1, found {strict!r}.")

    overlays = read_overlays()
    logger.info(f"SM120 overlay: {'; '.join(map(str, overlays))}")
    problems = [problem for overlay in overlays for problem in overlay.problems]
    for problem in problems:
        logger.warning(f"SM120 overlay: {problem}.")
    if problems and strict == "1":
        more = f" (the log names {len(problems) - 1} more)" if problems[1:] else ""
        raise RuntimeError(f"{STRICT}=1 refuses to start: {problems[0]}{more}.")


def overlay_report() -> Dict[str, Any]:
    """The same as JSON, as it was when this process looked first."""
    overlays = read_overlays()
    return {
        "schema": SCHEMA,
        "ok": not any(overlay.problems for overlay in overlays),
        "upstreams": {overlay.upstream: overlay.as_json() for overlay in overlays},
    }


@functools.lru_cache(maxsize=1)
def read_overlays() -> Tuple[Overlay, ...]:
    """SGLang's, and FlashInfer's if it has one: read once, as the code is loaded once."""
    package = Path(__file__).absolute().parents[1]
    sglang = read_overlay("sglang", package, "sglang", "python/sglang")
    if sglang.digest is None and sglang.trouble is None:  # this very file is a patch's
        sglang = replace(sglang, trouble="patched, but apply's manifest is not found")
    package = _package("flashinfer")
    return (
        sglang,
        read_overlay("flashinfer", package, "flashinfer_python", "flashinfer"),
    )


def read_overlay(
    upstream: str, package: Optional[Path], distribution: str, place: str
) -> Overlay:
    """
    The overlay of one package, without a digest where there is no manifest.

    Args:
        package: the folder that is imported, None where it is not installed.
        distribution: its name as the .dist-info folder spells it.
        place: where the package lies in a checkout.
    """
    overlay = Overlay(upstream, package)
    if package is None:
        return overlay
    try:
        pattern = f"{distribution}-*.dist-info/sm120-overlay/manifest.json"
        manifests = sorted(package.parent.glob(pattern))
        if len(manifests) > 1:  # which of them is of what is imported, nobody knows
            names = " and ".join(file.parents[1].name for file in manifests)
            return replace(overlay, trouble=f"{names} have a manifest of apply each")
        found = _find(package, manifests, place)
        if found is None:
            return overlay
        root, file, installed = found
        said = json.loads(file.read_bytes())
        if said["schema"] != SCHEMA or said["upstream"] != upstream:
            raise ValueError(said["schema"], said["upstream"])
        cut = (file.parent / "journal.json").exists()
        return replace(
            overlay,
            line=said["line"],
            version=said["version"],
            digest=said["digest"],
            patches=tuple(patch["slug"] for patch in said["patches"]),
            drifted=tuple(_drifted(root, said["files"], installed)),
            trouble="an apply is at work there, or was cut" if cut else None,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return replace(overlay, trouble="apply's manifest cannot be read")


def _find(
    package: Path, manifests: List[Path], place: str
) -> Optional[Tuple[Path, Path, bool]]:
    """The root of its paths, the manifest, and whether that is an installed package's."""
    if manifests:
        return package.parent, manifests[0], True
    # Only where the checkout has the package itself: an environment may lie in one, too.
    depth = place.count("/") + 1
    if "/".join(package.parts[-depth:]) == place:
        top = package.parents[depth - 1]
        file = _git_dir(top) / "sm120-overlay" / "manifest.json"
        if file.exists():
            return top, file, False
    return None


def _git_dir(top: Path) -> Path:
    git = top / ".git"
    if git.is_file():  # a linked worktree, or a submodule
        return top / git.read_text().strip().removeprefix("gitdir: ")
    return git


def _drifted(root: Path, files: Dict[str, Any], installed: bool) -> List[Drift]:
    drifts = []
    for path, entry in files.items():
        file = root / (entry["installed"] if installed else path)
        found = _blob_id(file)
        if found != entry["blob"]:
            drifts.append(Drift(path, file, entry["blob"], found))
    return drifts


def _blob_id(file: Path) -> Optional[str]:
    try:
        data = file.read_bytes()
    except OSError:
        return None
    header = b"blob %d\0" % len(data)
    return hashlib.sha1(header + data, usedforsecurity=False).hexdigest()


def _package(name: str) -> Optional[Path]:
    """The folder of an installed package, without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).absolute().parent if spec and spec.origin else None
