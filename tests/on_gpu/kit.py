"""What the checks share: answers, the card, FP4 by hand in plain torch, and upstream's modules or why not."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SHOWN, NOT_SHOWN, FAILED, NOT_APPLICABLE = "shown", "not shown", "failed", "not applicable"
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_MAX, E4M3_MAX = 6.0, 448.0
BLOCK = 16


@dataclass(frozen=True)
class Answer:
    """What a check saw: one of the four outcomes, and a sentence with the numbers."""

    outcome: str
    said: str


@dataclass(frozen=True)
class Card:
    """The device that checks run on, number 0 of those that are visible."""

    name: str
    major: int
    minor: int

    @property
    def is_sm12x(self) -> bool:
        """Whether it is one of those that this project is about."""
        return self.major == 12

    @property
    def capability(self) -> str:
        """As people write it, such as 12.0."""
        return f"{self.major}.{self.minor}"


class Unshown(Exception):
    """A check cannot say anything here; the text says why."""


def this_card() -> Card:
    """The card as torch names it."""
    import torch

    major, minor = torch.cuda.get_device_capability(0)
    return Card(torch.cuda.get_device_name(0), major, minor)


def one_of(failures: Sequence[str], shown: str) -> Answer:
    """Failed with the first failure and their number, else shown."""
    if failures:
        more = f" ({len(failures)} such)" if len(failures) > 1 else ""
        return Answer(FAILED, failures[0] + more)
    return Answer(SHOWN, shown)


def short(error: BaseException) -> str:
    """An exception in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def upstream(name: str) -> Any:
    """A module of upstream.

    Raises:
        Unshown: it cannot be imported here.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:  # an import runs upstream's code, which may raise anything
        raise Unshown(f"{name} cannot be imported here: {short(error)}") from error


def file_of(package: str, path: str) -> Path:
    """A file in an upstream package, whose own imports are not run.

    Raises:
        Unshown: the package or the file is not there.
    """
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = next((Path(folder) / path for folder in folders if (Path(folder) / path).is_file()), None)
    if found is None:
        raise Unshown(f"{package} has no {path} here: the patch is not on it")
    return found


def load_alone(package: str, path: str) -> Any:
    """A module of an upstream package by its file, without the packages around it."""
    file = file_of(package, path)
    spec = importlib.util.spec_from_file_location(f"alone_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        sys.modules[spec.name] = module  # dataclasses look their module up there
        spec.loader.exec_module(module)
    except Exception as error:
        raise Unshown(f"{path} cannot be loaded by itself: {short(error)}") from error
    return module


MOE = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "max_position_embeddings": 40960, "dtype": "bfloat16",
    "torch_dtype": "bfloat16",
}  # fmt: skip
NVFP4 = {
    "producer": {"name": "modelopt"},
    "quantization": {
        "quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": BLOCK, "exclude_modules": ["lm_head"]
    },
}  # fmt: skip


def resolved(**asked: Any) -> Any:
    """Upstream's ServerArgs on this machine for an NVFP4 checkpoint of Qwen3-30B-A3B's shape (its JSON files alone).

    Raises:
        Unshown: SGLang cannot be imported, or resolves nothing here.
    """
    server_args = upstream("sglang.srt.server_args").ServerArgs
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MOE), encoding="utf-8")
        Path(folder, "hf_quant_config.json").write_text(json.dumps(NVFP4), encoding="utf-8")
        try:
            return server_args(model_path=folder, random_seed=0, **asked)
        except Exception as error:
            raise Unshown(f"ServerArgs resolves nothing here: {short(error)}") from error


@dataclass(frozen=True)
class Fp4:
    """A matrix (rows, columns) in NVFP4: two E2M1 codes a byte, E4M3 scales of 16 columns each, one FP32 scale.

    Its value is E2M1 * block scale / `scale`.
    """

    codes: torch.Tensor
    blocks: torch.Tensor
    scale: torch.Tensor

    @property
    def swizzled(self) -> torch.Tensor:
        """The block scales as tensor cores read them (128 by 4 tiles), padded with zeros, uint8."""
        return swizzle(self.blocks)

    def value(self) -> torch.Tensor:
        """FP32."""
        import torch

        table = torch.tensor([*E2M1, *(-value for value in E2M1)], device=self.codes.device)
        low, high = self.codes & 0xF, self.codes >> 4
        values = table[torch.stack([low, high], -1).long()].flatten(-2)
        return values * self.blocks.float().repeat_interleave(BLOCK, -1) / self.scale


def quantise(matrix: torch.Tensor, scale: torch.Tensor | None = None) -> Fp4:
    """Rounds a matrix (rows, columns) to NVFP4; `scale` defaults to what fits its largest element."""
    import torch

    if scale is None:
        scale = E2M1_MAX * E4M3_MAX / matrix.float().abs().max().clamp(min=1e-6)
    scaled = (matrix.float() * scale).view(*matrix.shape[:-1], -1, BLOCK)
    blocks = (scaled.abs().amax(-1) / E2M1_MAX).clamp(max=E4M3_MAX).to(torch.float8_e4m3fn)
    inside = scaled / blocks.float().clamp(min=2.0**-9).unsqueeze(-1)
    table = torch.tensor(E2M1, device=matrix.device)
    middles = (table[1:] + table[:-1]) / 2
    codes = torch.bucketize(inside.abs().clamp(max=E2M1_MAX), middles).to(torch.uint8)
    codes = (codes | (inside < 0).to(torch.uint8) * 8).flatten(-2)
    return Fp4(codes[..., ::2] | codes[..., 1::2] << 4, blocks, scale)


def swizzle(blocks: torch.Tensor) -> torch.Tensor:
    """Scales (rows, columns) in tiles of 128 by 4: row r of a tile lies at (r % 32, r // 32), uint8, padded."""
    import torch

    rows, columns = blocks.shape
    padded = torch.zeros(-(-rows // 128) * 128, -(-columns // 4) * 4, dtype=torch.uint8, device=blocks.device)
    padded[:rows, :columns] = blocks.view(torch.uint8)
    tiles = padded.view(padded.shape[0] // 128, 4, 32, padded.shape[1] // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(padded.shape).contiguous()


def fp4_quantises(
    quantize: Callable[[torch.Tensor, torch.Tensor], Any], card: Card, device: str = "cuda"
) -> Answer | None:
    """Whether a quantisation kernel is one: its bytes beside those by hand. None: it is.

    FlashInfer 0.6.3's is compiled empty below capability 10.0: on an H200 it left its outputs as they were allocated.
    """
    import torch

    scale = torch.full((1,), 100.0, device=device)
    matrix = torch.randn(16, 6144, device=device, dtype=torch.bfloat16)
    by_hand = quantise(matrix, scale)
    try:
        codes, blocks = quantize(matrix, scale)
    except Exception as error:
        raise Unshown(f"fp4_quantize does not run on {card.capability} here: {short(error)}") from error
    written = by_hand.swizzled != 0
    same = [
        (one.contiguous().view(torch.uint8).flatten() == other.flatten())[where].float().mean().item()
        for one, other, where in (
            (codes, by_hand.codes, torch.ones_like(by_hand.codes, dtype=torch.bool).flatten()),
            (blocks, by_hand.swizzled, written.flatten()),
        )
    ]
    if min(same) > 0.9:  # what is left: ties, and a reciprocal in place of a division
        return None
    said = f"fp4_quantize gives {same[0]:.0%} of the codes and {same[1]:.0%} of the scales that it should"
    return Answer(FAILED if card.major >= 10 else NOT_APPLICABLE, f"on {card.capability}, {said}")


def fp4_compiled_like_eager(quantize: Callable[[torch.Tensor, torch.Tensor], Any], card: Card, what: str) -> Answer:
    """A quantisation that is one, over row counts on both sides of a tile."""
    import torch

    scale = torch.full((1,), 100.0, device="cuda")
    inputs = [torch.randn(rows, 6144, device="cuda", dtype=torch.bfloat16) for rows in (1, 16, 100, 128, 300)]

    def quantised(one: torch.Tensor) -> Any:
        return quantize(one, scale)

    return fp4_quantises(quantize, card) or compiled_like_eager(quantised, inputs, what)


def compiled_like_eager(function: Callable[[torch.Tensor], Any], inputs: Sequence[torch.Tensor], what: str) -> Answer:
    """Whether a function traces whole and gives the same bytes as without torch.compile."""
    import torch

    eager = [function(one) for one in inputs]
    try:
        compiled = torch.compile(function, fullgraph=True, dynamic=False)
        traced = [compiled(one) for one in inputs]
    except Exception as error:
        return Answer(FAILED, f"{what} does not trace with fullgraph=True: {short(error)}")
    wrong = [
        f"{what} gives other bytes compiled than eager for {one.shape[0]} rows"
        for one, before, after in zip(inputs, eager, traced, strict=True)
        if not all(same_bytes(*pair) for pair in zip(before, after, strict=True))
    ]
    return one_of(wrong, f"{what} traces with fullgraph=True and gives the eager bytes for {len(inputs)} sizes")


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal in shape, kind and every bit."""
    import torch

    alike = one.shape == other.shape and one.dtype == other.dtype
    return alike and torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
