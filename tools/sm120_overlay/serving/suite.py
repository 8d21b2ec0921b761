"""The ground on which upstream's own test files run here: what this machine lacks is fabricated, and said.

Nothing here knows of patches. A test file itself fakes the capabilities it is about, as upstream's do.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

# What upstream's shared test helpers import and a unit test does not use.
UNUSED_BY_UNITS = {"sglang": ("datasets",)}
NO_DEVICE = "9"  # a number, since sglang.test.test_utils reads one (test_utils.py:246 of 0.5.23); no such card is here


def lay(upstream: str, site: Path, workspace: Path) -> str:
    """Makes this process ready for a test file of upstream's over `site`; what it then stands on, as a sentence.

    Raises:
        RigError, Missing: the tree is no installed layout, or a package is missing.
    """
    if upstream == "sglang":
        return _sglang(site)
    if upstream == "flashinfer":
        return _flashinfer(site, workspace)
    sys.path.insert(0, str(site))
    return "nothing is fabricated"


def _sglang(site: Path) -> str:
    from . import rig
    from .rig import stubs

    standing = rig.load(site)
    absent = [name for name in UNUSED_BY_UNITS["sglang"] if find_spec(name) is None]
    for name in absent:
        module = sys.modules[name] = stubs.StubModule(name)
        module.__dict__.update(__path__=[], __spec__=ModuleSpec(name, None, is_package=True))
    os.environ["CUDA_VISIBLE_DEVICES"] = NO_DEVICE
    fabricated = [*(stub.package.module for stub in standing.stubbed), *absent]
    return f"no GPU, torch {standing.torch}; fabricated: {', '.join(fabricated)}"


def _flashinfer(site: Path, workspace: Path) -> str:
    """FlashInfer; where CuTe DSL is installed, modules of its ask what the first card is while they load."""
    import torch

    from .flashinfer import CUDA_VERSION, import_flashinfer
    from .rig.cards import RTX_PRO_6000_SERVER as CARD

    major, minor = CARD.capability
    seen = SimpleNamespace(multi_processor_count=CARD.sm_count, major=major, minor=minor, name=CARD.name)
    with mock.patch.object(torch.cuda, "get_device_properties", lambda _device=None: seen):
        import_flashinfer(site, workspace)
    return f"no GPU; told that nvcc is {CUDA_VERSION}, and while it loads that the first card is {CARD.name}"


def registration(site: Path, file: Path) -> str:
    """How upstream's CI would collect the file, by its own parser in the tree; "" where the tree has none."""
    parser = site / "sglang" / "test" / "ci" / "ci_register.py"
    if not parser.is_file():
        return ""
    spec = spec_from_file_location("ci_register", parser)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["ci_register"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    found, runs_itself = module.ut_parse_one_file(str(file))
    rows = (f"{one.backend.name} {one.effective_suite}" for one in found if not one.disabled)
    return (", ".join(rows) or "not registered") + ("" if runs_itself else ", but the file does not run itself")
