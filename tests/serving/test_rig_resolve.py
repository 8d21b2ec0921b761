"""Resolving where construction does not: what the fields say, and where upstream's processes read it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

METADATA = "Metadata-Version: 2.1\nName: sglang\nVersion: 0.0.9\nRequires-Dist: torch==2.11.0\n"
# As 0.5.23 has it: a record of what was asked, declarations beside it, and a context that holds what was resolved.
LATER = {
    "server_args.py": """
        import os
        from dataclasses import dataclass
        @dataclass
        class ServerArgs:
            model_path: str
            random_seed: int
            backend: str = "auto"
            size: int = 1
            def resolve_once(self):
                assert self.size < 9, "too large"
                os.environ.update(SGLANG_SIZE=str(self.size))
                os.environ.pop("SGLANG_OLD", None)
                self._resolved_overrides = [("a", {"backend": "first"}), ("b", {"backend": "last"})]
            def secret(self):
                return "of the record"
        def set_global_server_args_for_scheduler(record):
            raise AssertionError("the later way is publish")
    """,
    "arg_groups/__init__.py": "",
    "arg_groups/arg_utils.py": """
        def field_names(kind):
            return frozenset(kind.__dataclass_fields__)
    """,
    "arg_groups/overrides.py": """
        class ResolvedView:
            def __init__(self, record, overlay):
                self.__dict__.update(_record=record, _overlay=overlay)
            def __getattr__(self, name):
                return self._overlay[name] if name in self._overlay else getattr(self._record, name)
        def resolution_result(record, name):
            for _, declared in reversed(record._resolved_overrides):
                if name in declared:
                    return declared[name]
            return getattr(record, name)
        def model_config_of(record):
            return ("config of", record.model_path)
        def attention_backends_of(view):
            return view.backend, view.backend + "-decode"
    """,
    "runtime_context.py": """
        class SpawnRanks:
            def __init__(self, **placed):
                self.placed = placed
        class Context:
            __slots__ = ("published",)
            def __init__(self):
                self.published = None
            def config_leaf(self, name):
                if self.published is None:
                    raise ValueError("not published")
                from sglang.srt.arg_groups.overrides import resolution_result
                return resolution_result(self.published[0], name)
        _CONTEXT = Context()
        def get_context():
            return _CONTEXT
        def reset_context():
            _CONTEXT.published = None
        def snapshot_context():
            return _CONTEXT.published
        def restore_context(before):
            _CONTEXT.published = before
        def publish(record, *, role, ranks):
            _CONTEXT.published = (record, role, ranks.placed)
    """,
}
# As 0.5.16 has it: construction resolves, and a context holds the ServerArgs.
MIDDLE = {
    "server_args.py": """
        from dataclasses import dataclass
        import sglang.srt.runtime_context as context
        @dataclass
        class ServerArgs:
            model_path: str
            random_seed: int
            backend: str = "auto"
            def __post_init__(self):
                self.backend = "last"
            def get_model_config(self):
                return ("config of", self.model_path)
            def get_attention_backends(self):
                return self.backend, self.backend + "-decode"
        def set_global_server_args_for_scheduler(record):
            context.get_context().server_args = record
    """,
    "runtime_context.py": """
        class Context:
            __slots__ = ("parallel", "server_args", "flags")
            def __init__(self):
                self.parallel, self.server_args, self.flags = "parallel", None, []
        _CONTEXT = Context()
        def get_context():
            return _CONTEXT
        def reset_context():
            _CONTEXT.server_args, _CONTEXT.flags = None, []
    """,
}
# As 0.5.9 has it: a variable.
EARLIER = {
    "server_args.py": MIDDLE["server_args.py"].replace("import sglang.srt.runtime_context as context", "").replace(
        "context.get_context().server_args = record",
        "global _global_server_args; _global_server_args = record",
    )
    + "    _global_server_args = None\n        def get_global_server_args():\n            return _global_server_args\n",
}  # fmt: skip


def said(root: Path, files: dict[str, str], script: str) -> str:
    """What the script prints in a fresh process that stands on a tree of these files; its last error where it fails."""
    for name, text in {"__init__.py": "", "srt/__init__.py": "", **{f"srt/{n}": t for n, t in files.items()}}.items():
        file = root / "sglang" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    (root / "sglang-0.0.9.dist-info").mkdir()
    (root / "sglang-0.0.9.dist-info" / "METADATA").write_text(METADATA)
    start = f"""
        import os, sys
        from pathlib import Path
        from sm120_overlay.serving import rig
        standing = rig.load(Path({str(root)!r}))
    """
    code = textwrap.dedent(start) + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    return done.stdout if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


LINES = {"later": LATER, "middle": MIDDLE, "earlier": EARLIER}


@pytest.mark.parametrize("line", LINES)
def test_arguments_are_what_a_server_has_after_its_start_and_lie_where_its_processes_read(
    tmp_path: Path, line: str
) -> None:
    printed = said(
        tmp_path,
        LINES[line],
        """
        outcome = rig.resolve(standing, Path("nowhere"))
        print(outcome.args.backend, outcome.args.model_path, outcome.model_config, outcome.attention_backends)
        for _ in range(2):
            with rig.published(standing, outcome):
                print(rig.in_effect(standing, "backend"))
        try:
            print("left behind", rig.in_effect(standing, "backend"))
        except (ValueError, AttributeError):
            print("as before")
        """,
    )
    assert printed == "last nowhere ('config of', 'nowhere') ('last', 'last-decode')\nlast\nlast\nas before\n"


def test_a_record_that_keeps_what_was_asked_is_given_beside_what_was_resolved(tmp_path: Path) -> None:
    printed = said(
        tmp_path,
        LATER,
        """
        os.environ["SGLANG_OLD"] = "old"
        outcome = rig.resolve(standing, Path("nowhere"), size=2)
        print(outcome.args.backend, outcome.record.backend, outcome.args.size, outcome.args.secret())
        refused = rig.resolve(standing, Path("nowhere"), size=10)
        print(refused.refusal, refused.outcome, refused.record)
        try:
            with rig.published(standing, refused): ...
        except rig.RigError as error:
            print(str(error).partition(" {")[0])
        with rig.published(standing, outcome):
            context = sys.modules["sglang.srt.runtime_context"]._CONTEXT
            print(context.published[0] is outcome.record, *context.published[1:])
            print(os.environ.get("SGLANG_SIZE"), os.environ.get("SGLANG_OLD"))
        print(os.environ.get("SGLANG_SIZE"), os.environ.get("SGLANG_OLD"))
        """,
    )
    assert printed.splitlines() == [
        "last auto 2 of the record",
        "too large None None",
        "Upstream refused",
        "True scheduler {'world_rank': 0, 'gpu_id': 0}",
        "2 None",
        "None old",
    ]


def test_the_cuda_that_is_presented_is_that_of_the_torch_that_the_tree_pins(tmp_path: Path) -> None:
    script = """
        import torch
        with rig.present(rig.cards.RTX_5090):
            print(torch.version.cuda)
        with rig.present(rig.cards.RTX_5090, cuda="12.8"):
            print(torch.version.cuda)
        object.__setattr__(standing, "requirements", {"torch": "2.9.1"})
        with rig.present(rig.cards.RTX_5090):
            print(torch.version.cuda)
    """
    assert said(tmp_path, MIDDLE, script) == "13.0\n12.8\n12.9\n"


def test_a_model_type_that_transformers_has_brought_since_is_still_upstreams(tmp_path: Path) -> None:
    script = """
        from transformers import AutoConfig, PretrainedConfig
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
        class Own(PretrainedConfig):
            model_type = "qwen3_asr"
        AutoConfig.register("qwen3_asr", Own)
        print(CONFIG_MAPPING["qwen3_asr"] is Own)
        try:
            AutoConfig.register("llama", type("Llama", (PretrainedConfig,), {"model_type": "llama"}))
        except ValueError as error:
            print("llama" in str(error))
        from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionRotaryEmbedding
        print(Qwen2_5_VisionRotaryEmbedding.__module__)
        try:
            Qwen2_5_VisionRotaryEmbedding()
        except rig.StubDecided as error:
            print(error.operation)
    """
    module = "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl"
    assert said(tmp_path, MIDDLE, script) == f"True\nTrue\n{module}\nconstruction\n"
