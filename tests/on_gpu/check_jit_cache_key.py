"""jit-cache-key: what FlashInfer compiles and loads on this card lies in the cache folder of this series."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from .kit import FAILED, SHOWN, Answer, Card, Unshown, file_of, short, upstream


def check(card: Card) -> Answer:
    """rms_norm, the smallest of them; which library runs is read from this process's own maps."""
    import torch

    norm = upstream("flashinfer.norm").rmsnorm
    rows = torch.randn(8, 1024, device="cuda", dtype=torch.bfloat16)
    try:
        norm(rows, torch.ones(1024, device="cuda", dtype=torch.bfloat16))
        torch.cuda.synchronize()
    except Exception as error:
        raise Unshown(f"FlashInfer compiles no module on {card.capability} here: {short(error)}") from error
    digest = _digest()
    loaded = sorted(set(re.findall(r"\S*/norm\.so$", Path("/proc/self/maps").read_text(), re.MULTILINE)))
    if not loaded:
        raise Unshown("no norm.so is among the libraries of the process")
    if all(digest in path for path in loaded):
        return Answer(SHOWN, f"norm.so was compiled on {card.capability} and loaded from the folder of {digest}")
    where = "prebuilt" if any(f"{os.sep}aot{os.sep}" in path or "jit_cache" in path for path in loaded) else "shared"
    return Answer(FAILED, f"norm.so is a {where} library, of no folder with {digest}")


def _digest() -> str:
    """The first twelve digits of the applied series' digest.

    Raises:
        Unshown: there is no manifest of an apply.
    """
    site = file_of("flashinfer", "__init__.py").parents[1]
    found = sorted(site.glob("flashinfer_python-*.dist-info/sm120-overlay/manifest.json"))
    if len(found) != 1:
        raise Unshown("FlashInfer has no manifest of an apply beside it")
    return str(json.loads(found[0].read_bytes())["digest"])[:12]
