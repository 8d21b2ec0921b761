"""Standing on a tree, and resolving on it: in processes of their own, on a made-up SGLang of a few lines."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

COMMON = """
import subprocess
from functools import lru_cache
import torch

@lru_cache(maxsize=1)
def is_sm120():
    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 12
"""
SERVER_ARGS = """
import logging, os
from dataclasses import dataclass
import sgl_kernel, triton
from sglang.srt.common import is_sm120

AT_IMPORT = is_sm120()
HAS_FAST = sgl_kernel.fast >= 3

@triton.jit
def kernel(): ...

@dataclass
class ServerArgs:
    model_path: str
    random_seed: int
    how: str = ""
    backend: str = ""

    def __post_init__(self):
        os.environ["SGLANG_LEAK"] = self.how
        logging.getLogger(__name__).warning("resolving %s", self.how)
        getattr(self, "how_" + self.how)()

    def how_plain(self):
        self.backend = "sm120" if is_sm120() else "other"
    def how_refused(self):
        assert False, "not on this card"
    def how_stub(self):
        self.backend = "fast" if HAS_FAST else "slow"
    def how_swallowed(self):
        try:
            kernel()
        except Exception:
            self.backend = "fallback"
    def how_broken(self):
        self.no_such_attribute
    def how_lazy(self):
        from sglang.srt import lazy
        self.backend = lazy.AT_IMPORT
"""
METADATA = """\
Metadata-Version: 2.1
Name: sglang
Version: 0.0.9
Requires-Dist: torch==0.1
Requires-Dist: sgl-kernel==9.8.7
Requires-Dist: torchvision ; extra == "vision"
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """An installed layout of a made-up SGLang."""
    root = tmp_path / "tree"
    files = {
        "sglang/__init__.py": "",
        "sglang/srt/__init__.py": "",
        "sglang/srt/common.py": COMMON,
        "sglang/srt/server_args.py": SERVER_ARGS,
        "sglang/srt/lazy.py": "from sglang.srt.common import is_sm120\nimport sgl_kernel\n"
        "AT_IMPORT = (is_sm120(), bool(sgl_kernel.f(1)))\n",
        "sglang-0.0.9.dist-info/METADATA": METADATA,
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def run(tree: Path, script: str) -> str:
    """What the script prints in a fresh process that stands on the tree; its last error line where it fails."""
    start = f"""
        import os
        from pathlib import Path
        from sm120_overlay.serving import rig
        from sm120_overlay.serving.rig import cards
        tree = Path({str(tree)!r})
    """
    code = textwrap.dedent(start) + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    return done.stdout if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def test_one_process_resolves_for_many_cards_and_reports_what_it_stands_on(tree: Path) -> None:
    printed = run(
        tree,
        """
        standing = rig.load(tree)
        for card in (cards.RTX_5090, cards.B200, cards.DGX_SPARK):
            with rig.present(card):
                for how in ("plain", "lazy", "refused"):
                    outcome = rig.resolve(standing, Path("nowhere"), how=how)
                    print(how, outcome.refusal or outcome.args.backend, outcome.warnings, outcome.environment)
        print(standing.module("sglang.srt.server_args").AT_IMPORT, "SGLANG_LEAK" in os.environ)
        print(standing.report())
        """,
    )
    for backend in ("sm120", "other"):
        assert f"plain {backend} ('resolving plain',) {{'SGLANG_LEAK': 'plain'}}" in printed
    assert printed.count("plain sm120") == 2
    assert printed.count("lazy (False, False)") == 3
    assert printed.count("refused not on this card") == 3
    assert "False False\nsglang 0.0.9 from " in printed
    assert "sgl_kernel 9.8.7" in printed
    assert "torchvision" not in printed
    assert "0.1 pinned" in printed
    assert "a stub answered while loading: bool of sgl_kernel.f() at " in printed


@pytest.mark.parametrize("how", ["stub", "swallowed"])
def test_a_stub_that_would_decide_is_raised_even_if_upstream_swallows_it(tree: Path, how: str) -> None:
    script = f"rig.resolve(rig.load(tree), Path('nowhere'), how={how!r})"
    assert run(tree, script).startswith("sm120_overlay.serving.rig.errors.StubDecided: ")


def test_an_attribute_that_this_release_lacks_is_no_refusal(tree: Path) -> None:
    assert run(tree, "rig.resolve(rig.load(tree), Path('nowhere'), how='broken')").startswith("AttributeError: ")


def test_asking_for_arguments_that_were_refused_quotes_upstream(tree: Path) -> None:
    said = run(tree, "rig.resolve(rig.load(tree), Path('nowhere'), how='refused').args")
    assert said.startswith("sm120_overlay.serving.rig.errors.RigError: Upstream refused ")
    assert "not on this card" in said


def test_a_second_tree_in_one_process_is_refused(tree: Path) -> None:
    assert "already loaded" in run(tree, "rig.load(tree).module('sglang.srt.common'); rig.load(tree)")


@pytest.mark.parametrize("lost", ["sglang/__init__.py", "sglang-0.0.9.dist-info/METADATA"])
def test_a_tree_without_code_or_metadata_is_refused(tree: Path, lost: str) -> None:
    (tree / lost).unlink()
    assert "is not an installed layout" in run(tree, "rig.load(tree)")


def test_loading_forbids_the_network(tree: Path) -> None:
    printed = run(tree, "rig.load(tree)\nfrom huggingface_hub import constants\nprint(constants.HF_HUB_OFFLINE)")
    assert printed == "True\n"
