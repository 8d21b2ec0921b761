"""The model of a server, built by upstream's own classes as rank 0 would build it, without its memory.

Every parameter lies on torch's meta device: it has a shape and a type and no bytes. So the layers' own assertions on
sizes are met, and what a GPU must hold is counted and not estimated.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from sm120_overlay.serving.rig.cards import Card
from sm120_overlay.serving.rig.errors import RigError
from sm120_overlay.serving.rig.tree import Standing

MODELS = "sglang/srt/models"
INDEXERS = tuple(f"sglang.srt.layers.attention.{name}.{name}_indexer" for name in ("nsa", "dsa"))


def model_class(standing: Standing, architecture: str) -> Any:
    """The class that upstream has for an architecture, imported from the file that defines it and no other.

    Raises RigError where no file defines it: the server would fall back to the Transformers implementation.
    """
    defined = re.compile(rf"^class {re.escape(architecture)}\b", re.MULTILINE)
    for file in sorted((standing.tree / MODELS).rglob("*.py")):
        if defined.search(file.read_text(encoding="utf-8")):
            relative = file.relative_to(standing.tree).with_suffix("")
            return getattr(standing.module(".".join(relative.parts)), architecture)
    raise RigError(f"SGLang {standing.version} has no model file for {architecture}: its weights are not counted.")


@contextmanager
def _without_memory(card: Card, dtype: Any) -> Iterator[None]:
    """Meta tensors, no CUDA streams, and the one fact that DeepGEMM is asked for while a model is built."""
    import torch  # seconds, and the `rig` extra

    before = torch.get_default_dtype()
    with ExitStack() as stack:
        stack.enter_context(on_cpu())
        stack.enter_context(mock.patch.object(torch.cuda, "Stream", lambda *_, **__: None))
        known = SimpleNamespace(get_num_sms=lambda: card.sm_count)
        for indexer in sys.modules.keys() & set(INDEXERS):
            stack.enter_context(mock.patch.object(sys.modules[indexer], "deep_gemm", known, create=True))
        if "deep_gemm" not in sys.modules:  # 0.5.23 imports it while it builds
            sys.modules["deep_gemm"] = known  # type: ignore[assignment]
            stack.callback(sys.modules.pop, "deep_gemm")
        torch.set_default_dtype(dtype)
        stack.callback(torch.set_default_dtype, before)
        stack.enter_context(torch.device("meta"))
        yield


@contextmanager
def on_cpu() -> Iterator[None]:
    """`tensor.cuda()` leaves the tensor where it is."""
    import torch

    with mock.patch.object(torch.Tensor, "cuda", lambda tensor, *_, **__: tensor):
        yield


def built(standing: Standing, kind: Any, model_config: Any, quant_config: Any, card: Card) -> Any:
    """The model as the weight loader initialises it, every parameter on the meta device; `kind` is its class."""
    loader = standing.module("sglang.srt.model_loader.loader")
    load = standing.module("sglang.srt.configs.load_config").LoadConfig()
    with (
        mock.patch.object(loader, "get_model_architecture", lambda _: (kind, kind.__name__)),
        _without_memory(card, model_config.dtype),
    ):
        return loader._initialize_model(model_config, load, quant_config)


def layers_of_experts(model: Any) -> list[tuple[str, Any]]:
    """Name and module of each layer that holds experts."""
    return [(name, module) for name, module in model.named_modules() if hasattr(module, "num_local_experts")]


def weights(model: Any) -> dict[str, int]:
    """Bytes on rank 0: `loading` is all that is created, `loaded` what stays, `experts` the experts' part of that.

    ModelOpt's NVFP4 experts hold their block scales twice until they are loaded: as the checkpoint has them, and
    swizzled; the first kind is deleted then (modelopt_quant.py, process_weights_after_loading).
    """
    seen = {id(parameter): _bytes(parameter) for parameter in model.parameters()}
    twice = {id(scale): _bytes(scale) for module in model.modules() for scale in _unswizzled(module)}
    expert = [p for _, module in layers_of_experts(model) for p in module.parameters() if id(p) not in twice]
    experts = sum({id(parameter): _bytes(parameter) for parameter in expert}.values())
    loading = sum(seen.values())
    return {"loading": loading, "loaded": loading - sum(twice.values()), "experts": experts}


def _bytes(parameter: Any) -> int:
    return int(parameter.numel() * parameter.element_size())


def _unswizzled(module: Any) -> list[Any]:
    own = dict(module.named_parameters(recurse=False))
    return [own[name] for name in own if name.replace("_weight_scale", "_blockscale_swizzled") in own.keys() - {name}]
