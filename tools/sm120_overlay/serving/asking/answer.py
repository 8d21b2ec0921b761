"""One answer: the way of a server's start on one tree, step by step, until a step fails.

    flags      upstream's own command-line parser
    arguments  ServerArgs and its resolution, on the presented cards
    check      ServerArgs.check_server_args
    ranks      the groups of ranks
    attention  FA3's assertion on the capability
    loader     the quantization that the weight loader makes of the checkpoint
    model      the model's own classes, without memory
    weights    one NVFP4 expert layer: the processing of its weights
    kernel     the same layer's forward pass, up to its first GPU kernel

It runs in a process of its own and leaves upstream's globals changed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest import mock

from sm120_overlay.serving.asking import allreduce, build, choices, experts, known, parallel, releases
from sm120_overlay.serving.asking.question import Question
from sm120_overlay.serving.asking.trial import Findings, Unknown, attempt
from sm120_overlay.serving.rig import flags
from sm120_overlay.serving.rig.cards import Card
from sm120_overlay.serving.rig.errors import RigError
from sm120_overlay.serving.rig.present import present
from sm120_overlay.serving.rig.publish import publish
from sm120_overlay.serving.rig.resolve import model_config as config_of
from sm120_overlay.serving.rig.resolve import resolved
from sm120_overlay.serving.rig.tree import Standing

# Loaded before the first question: what every answer needs.
MODULES = (
    "sglang.srt.server_args",
    "sglang.srt.configs.model_config",
    "sglang.srt.layers.moe.fused_moe_triton.layer",
    "sglang.srt.layers.quantization.modelopt_quant",
    "sglang.srt.layers.quantization.fp4_utils",
    "sglang.srt.model_loader.weight_utils",
    "sglang.srt.distributed.device_communicators.custom_all_reduce",
    "sglang.srt.model_executor.model_runner",
    "sglang.srt.layers.communicator",
    "sglang.srt.layers.layer_boundary.residual.add_norm",
)
FAILS_BEFORE = "none: it fails before"
MOST_CARDS = 4096  # that are pretended: every one has an entry in upstream's lists of ranks
BEHIND_RANKS = ("loader", "attention", "model", "weights", "kernel")
# Said because of what is installed here, not because of what was asked.
OF_THIS_MACHINE = ("Transformers version", "Failed to load generation config", "Cannot detect CUDA architecture")


class _Said(logging.Handler):
    """Keeps what upstream logs, each line once."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[dict[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        line = {"level": "warning" if record.levelno >= logging.WARNING else "info", "text": text}
        if line not in self.lines and not text.startswith(OF_THIS_MACHINE):
            self.lines.append(line)


@contextmanager
def _listening() -> Iterator[list[dict[str, str]]]:
    handler, logger = _Said(), logging.getLogger("sglang")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    allreduce.quiet()
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)


def answer(standing: Standing, question: Question) -> dict[str, Any]:
    """What upstream's code in the tree makes of the question, as JSON has it."""
    found = Findings(standing)
    with TemporaryDirectory(prefix="sm120-overlay-") as folder, _listening() as said:
        place = Path(folder, "model")
        place.mkdir()
        for name, text in question.files:
            (place / name).write_text(text, encoding="utf-8")
        with _own_parser_speaks() as parser_said:
            raw = attempt(found, "flags", lambda: _parsed(standing, place, question), strict=True)
        if raw is not None:
            with present(question.presented, _cards(raw)):
                _resolved(found, raw, question.presented)
    told = found.as_json()
    for fail in told["fails"]:
        if fail["stage"] == "flags":
            fail["sentence"] = parser_said() or fail["sentence"]
    doubts = known.doubts(found.choices, question.presented, found.facts)
    answered: dict[str, Any] = {"version": standing.version, **told, "doubts": doubts, "said": said}
    return {key: _without(str(place), value) for key, value in answered.items()}


def _without(place: str, said: Any) -> Any:
    """The same, with the model's temporary place called MODEL."""
    if isinstance(said, dict):
        return {key: _without(place, value) for key, value in said.items()}
    if isinstance(said, list):
        return [_without(place, value) for value in said]
    return said.replace(place, "MODEL") if isinstance(said, str) else said


@contextmanager
def _own_parser_speaks() -> Iterator[Any]:
    """argparse says what is wrong on standard error, and exits: the last line is kept, without the program's name."""
    written = io.StringIO()
    with contextlib.redirect_stderr(written):
        yield lambda: (written.getvalue().strip().splitlines() or [""])[-1].partition("error: ")[2]


def _parsed(standing: Standing, place: Path, question: Question) -> argparse.Namespace:
    """The flags as upstream's own parser reads them, before anything is resolved."""
    module = standing.module("sglang.srt.server_args")
    argv = ["--model-path", str(place), "--random-seed", "0", *question.flags]
    try:
        with mock.patch.object(module.ServerArgs, "from_cli_args", staticmethod(lambda raw: raw)):
            parsed: argparse.Namespace = module.prepare_server_args(argv)
    except SystemExit as stop:
        raise ValueError("upstream's parser ends the program at these flags") from stop
    if parsed.model_path != str(place):
        raise RigError("the flags name another model than the one that was asked about")
    if _cards(parsed) > MOST_CARDS:
        raise RigError(f"the flags ask for {_cards(parsed)} cards, and at most {MOST_CARDS} are pretended")
    return parsed


def _cards(raw: argparse.Namespace) -> int:
    """How many cards the flags need; without DP attention every data-parallel replica has its own."""
    sizes = {name: _size(raw, name) for name in ("tensor", "pipeline", "data")}
    replicas = 1 if raw.enable_dp_attention else sizes["data"]
    return max(1, sizes["tensor"] * sizes["pipeline"] * replicas)


def _size(raw: argparse.Namespace, parallel: str) -> int:
    """One of the parallel sizes among the parsed flags, which call it by its long or its short name."""
    short = {"tensor": "tp_size", "pipeline": "pp_size", "data": "dp_size"}[parallel]
    return int(getattr(raw, short, None) or getattr(raw, f"{parallel}_parallel_size"))


def _resolved(found: Findings, raw: argparse.Namespace, card: Card) -> None:
    """From the flags to arguments, and on to the rest of the way."""
    kind = found.standing.module("sglang.srt.server_args").ServerArgs
    record = attempt(found, "arguments", lambda: kind.from_cli_args(raw), strict=True)
    args = None if record is None else attempt(found, "arguments", lambda: resolved(record), strict=True)
    if record is None or args is None:
        return
    found.choices.update(choices.of_arguments(args))
    found.arguments.update(choices.arguments(args, record))
    wanted = found.standing.requirements
    found.facts.update(
        memory_mib=card.memory_mib, flashinfer=wanted.get("flashinfer-python"), flash_mla=wanted.get("sgl-flash-mla")
    )
    attempt(found, "check", record.check_server_args, strict=True)
    model_config = config_of(record)
    publish(found.standing, record)
    kind = attempt(found, "model", lambda: build.model_class(found.standing, model_config.hf_config.architectures[0]))
    with flags.on_card(), contextlib.ExitStack() as stack:
        ranks = parallel.rank_0(found.standing, args, model_config)
        if attempt(found, "ranks", lambda: (stack.enter_context(ranks), True)):
            _started(found, args, record, card, kind)
        else:
            _unasked(found)


def _unasked(found: Findings) -> None:
    """Where ranks could not be asked, nothing behind them was: neither is a no."""
    if any(one.stage == "ranks" for one in found.unknown):
        found.unknown += [Unknown(stage, "it comes after ranks") for stage in BEHIND_RANKS]


def _started(found: Findings, args: Any, record: Any, card: Card, kind: Any) -> None:
    """A scheduler's start: globals, the loader's quantization, what is decided late, and the model."""
    standing = found.standing
    releases.accepted(standing.module("sglang.srt.layers.moe.utils").initialize_moe_config, server_args=record)
    model_config = standing.module("sglang.srt.configs.model_config").ModelConfig.from_server_args(record)
    failed = len(found.fails)
    quant_config = attempt(found, "loader", lambda: _quantization(standing, model_config))
    refused = len(found.fails) > failed
    made = choices.runner(standing, args, record, model_config, quant_config)
    choices.at_run_time(found, args, quant_config, made, card)
    choices.sizes(found, args, model_config, made)
    attempt(found, "attention", lambda: _attention(standing, found.choices, card))
    found.facts["nvfp4_experts"] = "fp4" in choices.quantized_to(model_config, quant_config)
    found.facts["auto_is_cutlass"] = experts.auto_is_cutlass(standing)
    if not refused and kind is not None:
        attempt(found, "model", made.check_quantized_moe_compatibility)
        _model(found, kind, model_config, quant_config, card)
    else:
        found.choices["fp4_gemm"] = found.choices["moe_first_kernel"] = choices.NOT_REACHED
    fused = found.facts.get("fused_shared_experts")
    found.choices["shared_experts_fusion"] = choices.NOT_REACHED if fused is None else "yes" if fused else "no"


def _attention(standing: Standing, chosen: dict[str, Any], card: Card) -> None:
    """FA3's own assertion on the capability; the other backends look at the card only in their kernels."""
    fa3 = "fa3" in (chosen.get("attention_prefill"), chosen.get("attention_decode"))
    if fa3 and card.capability[0] not in (8, 9):
        registry = standing.module("sglang.srt.layers.attention.attention_registry")
        registry.ATTENTION_BACKENDS["fa3"](SimpleNamespace(use_mla_backend=False))


def _quantization(standing: Standing, model_config: Any) -> Any:
    """The quantization that the weight loader makes of the checkpoint; None for an unquantized one."""
    if model_config.quantization is None:
        return None
    load = standing.module("sglang.srt.configs.load_config").LoadConfig()
    return standing.module("sglang.srt.model_loader.weight_utils").get_quant_config(model_config, load, {})


def _model(found: Findings, kind: Any, model_config: Any, quant_config: Any, card: Card) -> None:
    """The model without memory, what it weighs, and one of its NVFP4 expert layers in earnest."""
    model = attempt(found, "model", lambda: build.built(found.standing, kind, model_config, quant_config, card))
    if model is None:
        return
    found.facts["weights"] = build.weights(model)
    layers = build.layers_of_experts(model)
    found.facts["fused_shared_experts"] = layers[0][1].num_fused_shared_experts if layers else 0
    found.facts["nvfp4_experts"] = bool(layers) and experts.is_nvfp4(layers[0][1])
    found.facts["expert_layers"] = len(layers)
    _runner(found, layers)
    if found.facts["nvfp4_experts"]:
        found.choices["moe_first_kernel"] = _experts(found, *layers[0])


def _runner(found: Findings, layers: list[tuple[str, Any]]) -> None:
    """The runner that the layers made of `auto`, where a release keeps it with them."""
    chosen = getattr(layers[0][1].quant_method, "_moe_runner_backend", None) if layers else None
    if chosen is not None and chosen.value != found.facts["runner"]:
        found.choices["moe_runner"] = f"{found.facts['runner']} ({chosen.value})"
        found.facts["made_of_auto"] = chosen.value


def _experts(found: Findings, name: str, layer: Any) -> str:
    """The first kernel that runs the layer, or that it fails before."""
    failed = len(found.fails)
    made = attempt(found, "weights", lambda: experts.small(name, layer))
    ready = attempt(found, "weights", lambda: experts.processed(made)) if made is not None else None
    if ready is not None:
        kernel = attempt(found, "kernel", lambda: experts.first_kernel(found.standing, ready))
        return kernel or (choices.UNKNOWN if len(found.fails) == failed else FAILS_BEFORE)
    if made is not None and len(found.fails) > failed:
        _behind(found, name, layer)
    return FAILS_BEFORE if len(found.fails) > failed else choices.UNKNOWN


def _behind(found: Findings, name: str, layer: Any) -> None:
    """The kernel's own entry assertion, where sgl-kernel's CUTLASS would run the layer: it lies behind the failure."""
    backend = found.standing.module("sglang.srt.layers.moe.utils").get_moe_runner_backend()
    if backend.is_auto() and found.facts["auto_is_cutlass"]:
        attempt(found, "kernel", lambda: experts.kernel_entry(found.standing, experts.small(name, layer)))
