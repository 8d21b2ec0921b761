"""A measurement for bisect: does SGLang take FlashInfer's CUTLASS MoE for an NVFP4 checkpoint on eight RTX PRO 6000?

Run as a command on a release or on a commit: `python ask_moe.py {path}` prints `cutlass 1` or `cutlass 0`. Upstream's
own code resolves the arguments, on a CPU that presents itself as the cards.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def installed(tree: Path, folder: Path) -> Path:
    """The tree where it is installed; of a checkout a copy with the metadata that building it would write."""
    if any(tree.glob("sglang-*.dist-info")):
        return tree
    shutil.copytree(tree / "sglang", folder / "sglang", ignore=shutil.ignore_patterns("multimodal_gen"))
    needs = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    lines = ["Metadata-Version: 2.1", "Name: sglang", "Version: 0", *(f"Requires-Dist: {need}" for need in needs)]
    (folder / "sglang-0.dist-info").mkdir()
    (folder / "sglang-0.dist-info" / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def main(tree: Path) -> None:
    """Resolves and prints."""
    sys.path[:] = [
        entry for entry in sys.path if Path(entry or ".").resolve() != tree.resolve()
    ]  # the rig puts it there
    from sm120_overlay.serving import rig

    with tempfile.TemporaryDirectory() as folder:
        standing = rig.load(installed(tree, Path(folder)))
        model = rig.models.checkpoint(Path(folder), rig.models.QWEN3_MOE, rig.models.QuantForm.GENERIC)
        with rig.present(rig.cards.RTX_PRO_6000_SERVER, count=8):
            args = rig.resolve(standing, model, tp_size=8, quantization="modelopt_fp4").args
    print("cutlass", int(args.moe_runner_backend == "flashinfer_cutlass"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
