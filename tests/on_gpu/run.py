"""Runs one check, or tells of the card, in the interpreter that runs this file; one JSON object behind a mark.

`python run.py card` and `python run.py SLUG`. `verify --on-gpu` starts it, a process for each check, so that a device
that a kernel has broken says nothing of the next patch.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import platform
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

SAID = "sm120-overlay: "
DISTRIBUTIONS = (
    "torch", "triton", "sglang", "sgl-kernel", "flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache",
    "nvidia-cudnn-frontend",
)  # fmt: skip


def main(argv: list[str]) -> int:
    """0 where there is an answer."""
    (asked,) = argv
    said = card() if asked == "card" else check(asked)
    print("\n" + SAID + json.dumps(said), flush=True)
    return 0


def card() -> dict[str, Any]:
    """The card and the software, without anything that names the machine; `missing` says what is not there."""
    try:
        import torch
    except Exception as error:
        return {"missing": f"torch cannot be imported ({type(error).__name__})"}
    if not torch.cuda.is_available():
        return {"missing": "torch finds no CUDA device"}
    props = torch.cuda.get_device_properties(0)
    return {
        "card": {
            "name": props.name,
            "capability": [props.major, props.minor],
            "memory_mib": props.total_memory >> 20,
            "multiprocessors": props.multi_processor_count,
            "visible": torch.cuda.device_count(),
        },
        "software": {
            "driver": _driver(),
            "cuda": torch.version.cuda,
            "cudnn": _cudnn(torch),
            "python": platform.python_version(),
            **{name: found for name in DISTRIBUTIONS if (found := _version(name))},
        },
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cudnn(torch: Any) -> str | None:
    with contextlib.suppress(Exception):
        return str(torch.backends.cudnn.version())
    return None


def _driver() -> str | None:
    """The kernel module's version, where the container shows it, else what nvidia-smi says."""
    with contextlib.suppress(OSError):
        found = re.search(r"Module\s+(?:for \S+\s+)?(\d[\d.]+)", Path("/proc/driver/nvidia/version").read_text())
        if found:
            return found[1]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        return done.stdout.split()[0] if done.stdout.split() else None
    return None


def check(slug: str) -> dict[str, str]:
    """The answer of a slug's check; one that raises shows nothing."""
    kit = importlib.import_module("on_gpu.kit")
    try:
        answer = importlib.import_module(f"on_gpu.check_{slug.replace('-', '_')}").check(kit.this_card())
    except kit.Unshown as error:
        answer = kit.Answer(kit.NOT_SHOWN, str(error))
    except Exception as error:
        answer = kit.Answer(kit.NOT_SHOWN, f"the check itself broke: {kit.short(error)}")
    return {"outcome": answer.outcome, "said": answer.said}


def _load_package(folder: Path) -> None:
    """This folder as the package `on_gpu`, by its place: nothing beside it comes onto the path."""
    spec = importlib.util.spec_from_file_location(
        "on_gpu", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    sys.modules["on_gpu"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["on_gpu"])


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    _load_package(here)
    sys.exit(main(sys.argv[1:]))
