"""A measurement for bisect: does SGLang take FlashInfer's CUTLASS MoE for an NVFP4 checkpoint on eight RTX PRO 6000?

Run as a command on an installed layout: `python ask_moe.py TREE` prints `cutlass 1` or `cutlass 0`. Upstream's own code
resolves the arguments, on a CPU that presents itself as the cards.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path


def main(tree: Path) -> None:
    """Resolves and prints."""
    sys.path[:] = [
        entry for entry in sys.path if Path(entry or ".").resolve() != tree.resolve()
    ]  # the rig puts it there
    from sm120_overlay.serving import rig

    standing = rig.load(tree)
    with tempfile.TemporaryDirectory() as folder:
        model = rig.models.checkpoint(Path(folder), rig.models.QWEN3_MOE, rig.models.QuantForm.GENERIC)
        with rig.present(rig.cards.RTX_PRO_6000_SERVER, count=8):
            args = rig.resolve(standing, model, tp_size=8, quantization="modelopt_fp4").args
    print("cutlass", int(args.moe_runner_backend == "flashinfer_cutlass"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
