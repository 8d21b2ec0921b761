"""Putting upstream's real code under this process: which tree, on top of which packages.

One process stands on one tree, from its first import to its end, as a server does.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType

from sm120_overlay.serving.rig import packages, stubs
from sm120_overlay.serving.rig.errors import RigError
from sm120_overlay.serving.rig.packages import canonicalize_name

UPSTREAM = "sglang"
# A test must never wait for a network, and a real GPU must not answer in a presented one's place.
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
_EXACT = re.compile(r"^\s*([A-Za-z0-9._-]+)\s*(?:\[[^]]*\])?\s*(?:\(?\s*==\s*([^\s,;)]+)\s*\)?)?")


@dataclass(frozen=True)
class Standing:
    """What the rig's answers stand on."""

    tree: Path
    """The directory that holds `sglang/` and its dist-info."""
    version: str
    """SGLang's version, from the tree's metadata."""
    torch: str
    """The torch that runs here."""
    stubbed: tuple[packages.Stubbed, ...]
    """What is fabricated."""
    requirements: dict[str, str | None]
    """The tree's unconditional requirements: normalised name → exact version, or None where it is not exact."""

    @property
    def cuda(self) -> str | None:
        """CUDA of the torch that the tree pins; None where the rig does not know that torch."""
        return packages.CUDA.get(self.requirements.get("torch") or "")

    def module(self, name: str) -> ModuleType:
        """Import one of upstream's modules, refusing one that does not come from this tree."""
        found = importlib.import_module(name)
        origin = getattr(found, "__file__", None)
        if name.partition(".")[0] == UPSTREAM and (origin is None or self.tree not in Path(origin).resolve().parents):
            raise RigError(f"{name} came from {origin}, not from {self.tree}. Start a fresh process for each tree.")
        return found

    def differences(self) -> list[tuple[str, str, str]]:
        """Packages whose version here is not the one that the tree pins: (name, pinned, here)."""
        exact = {name: version for name, version in self.requirements.items() if version}
        here = {name: _installed(name) for name in exact}
        return [(name, exact[name], found) for name, found in here.items() if found and found != exact[name]]

    def report(self) -> str:
        """What a reader must know before believing an answer, as text of several lines."""
        fabricated = ", ".join(f"{s.package.module} {s.version or '(no version)'}" for s in self.stubbed) or "nothing"
        lines = [
            f"sglang {self.version} from {self.tree}",
            f"torch {self.torch}, no GPU; modules are loaded as on a machine without CUDA",
            f"stubs: {fabricated}",
            *(f"{name} {found} here, {pinned} pinned" for name, pinned, found in self.differences()),
            *(
                f"a stub answered while loading: {operation} of {path} at {at}"
                for path, operation, at in stubs.answered
            ),
        ]
        return "\n".join(lines)


# What this process stands on: nothing, or one tree.
standing: list[Standing] = []


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _distribution(tree: Path) -> metadata.Distribution:
    """The tree's own sglang metadata; a tree without both code and metadata is refused."""
    # A dist-info that lost its METADATA has no name, whatever the type says.
    named = [(d.metadata["Name"] or "", d) for d in metadata.distributions(path=[str(tree)])]
    found = [d for name, d in named if canonicalize_name(name) == UPSTREAM]
    if not (tree / UPSTREAM / "__init__.py").is_file() or len(found) != 1:
        raise RigError(
            f"{tree} is not an installed layout: it needs {UPSTREAM}/__init__.py and one {UPSTREAM}-*.dist-info. "
            f"Name the directory that `pip install --target` or unpacking the wheel filled."
        )
    return found[0]


def requirements(distribution: metadata.Distribution) -> dict[str, str | None]:
    """Unconditional requirements of a distribution: normalised name → the version after `==`, or None."""
    wanted: dict[str, str | None] = {}
    for line in distribution.requires or []:
        match = _EXACT.match(line)
        if match and "extra ==" not in line:
            wanted.setdefault(canonicalize_name(match[1]), match[2])
    return wanted


def _preload() -> str:
    """Import torch, and let it find out that this machine has no triton, before a fabricated one can be found."""
    # Here, not above: the `rig` extra may be absent, and torch takes seconds that only a loaded rig should cost.
    import torch
    import torch._dynamo
    import torch.utils._triton
    import torch.utils.flop_counter

    torch.utils._triton.has_triton_package()
    if torch.cuda.is_available():
        raise RigError("torch was already using a GPU. Start a fresh process and load the rig first.")
    return str(torch.__version__)


def _refuse_second(tree: Path) -> None:
    loaded = getattr(sys.modules.get(UPSTREAM), "__file__", None)
    if loaded is not None:
        raise RigError(f"{UPSTREAM} is already loaded from {loaded}. Start a fresh process to stand on {tree}.")


@dataclass(frozen=True)
class Ground:
    """A process that is ready for a tree: torch loaded without a GPU, the stubs in place, nothing of sglang loaded."""

    torch: str
    stubbed: tuple[packages.Stubbed, ...]


def lay_ground(tree: Path) -> Ground:
    """Make this process ready for `tree`, and for every tree with the same requirements.

    Processes that are forked off from here share what they load before they `stand`. Raises RigError as `load`.
    """
    _refuse_second(tree)
    distribution = _distribution(tree)
    os.environ.update(ENVIRONMENT)
    torch = _preload()
    stubbed = packages.missing(requirements(distribution))
    sys.meta_path[:0] = [packages.StubFinder(stubbed), packages.LoadWatcher()]
    return Ground(torch, stubbed)


def stand(ground: Ground, tree: Path) -> Standing:
    """Stand on `tree` for the rest of this process, whose ground was laid for it or for a tree that requires the same.

    Raises RigError where sglang is loaded already, or where the tree wants other packages in other versions.
    """
    tree = tree.resolve()
    _refuse_second(tree)
    distribution = _distribution(tree)
    wanted = requirements(distribution)
    for stub in ground.stubbed:
        version = stub.package.version(wanted)
        if version != stub.version:
            raise RigError(
                f"{tree} wants {stub.package.distribution} {version}, and {stub.version} is presented. "
                f"Lay the ground for it in a fresh process."
            )
    sys.path.insert(0, str(tree))
    importlib.invalidate_caches()
    standing.append(Standing(tree, distribution.version, ground.torch, ground.stubbed, wanted))
    return standing[-1]


def load(tree: Path) -> Standing:
    """Stand on `tree` for the rest of this process. Nothing of sglang may be loaded yet.

    Raises RigError where the tree is no installed layout, where sglang or a GPU is already in use.
    """
    return stand(lay_ground(tree.resolve()), tree)
