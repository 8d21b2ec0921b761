"""fp4-quantize-op: on SM12x an NVFP4 linear layer can be traced whole, though FlashInfer compiles its kernel at a call.

Upstream's own layer runs here, from a copy of its module that is loaded as on each card: which fp4_quantize it takes is
decided at import. FlashInfer's is a stand-in with its signature and its shapes. It takes a lock and starts a process at
its first call, as FlashInfer's JIT does, and that is what torch.compile cannot trace.
"""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from sm120_overlay.serving import rig
from sm120_overlay.serving.rig import cards, ops, phase

MODULE = "sglang.srt.layers.quantization.modelopt_quant"
SCHEME = "sglang.srt.layers.quantization.compressed_tensors.schemes.compressed_tensors_w4a4_nvfp4"
SM12X = pytest.mark.parametrize("card", [cards.RTX_PRO_6000_SERVER, cards.DGX_SPARK], ids=["12.0", "12.1"])
OTHERS = pytest.mark.parametrize("card", [cards.H200, cards.B200], ids=["9.0", "10.0"])
CHANNELS_OUT, GROUP = 64, 16


@functools.cache
def build_and_load() -> ModuleType:
    """What FlashInfer does at the first call: under a lock, it runs a compiler."""
    lock = threading.Lock()
    with lock:
        subprocess.run([sys.executable, "-c", ""], check=True)
    return ModuleType("kernels")


def round_up(value: int, to: int) -> int:
    return (value + to - 1) // to * to


def standin_fp4_quantize(
    input: torch.Tensor,
    global_scale: torch.Tensor | None = None,
    sf_vec_size: int = GROUP,
    sf_use_ue8m0: bool = False,
    is_sf_swizzled_layout: bool = True,
    is_sf_8x4_layout: bool = False,
    enable_pdl: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes and types as FlashInfer 0.6.3 gives them (fp4_quantization.py:155-185, 677-686); the values are any."""
    del sf_use_ue8m0, is_sf_8x4_layout, enable_pdl
    build_and_load()
    assert is_sf_swizzled_layout
    assert global_scale is not None
    rows, channels = input.shape
    scaled = (input.float() * global_scale).abs()
    packed = scaled[:, ::2].to(torch.uint8)
    scales = torch.zeros(round_up(rows, 128) * round_up(channels // sf_vec_size, 4), dtype=torch.uint8)
    scales[:rows] = scaled.amax(dim=1).to(torch.uint8)
    return packed, scales.reshape(-1, channels // sf_vec_size)


def standin_mm_fp4(*args: Any, backend: str) -> torch.Tensor:
    """Any function of what was quantized."""
    del backend
    packed, weight, scales = args[:3]
    total: torch.Tensor = packed.float().sum(dim=1, keepdim=True) + scales.float().sum()
    return total.expand(-1, weight.shape[1]).to(args[5])


def loaded_as_on(standing: rig.Standing, card: rig.Card, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A copy of an upstream module, as a server on this card would have it."""
    common = standing.module("sglang.srt.utils.common")
    with rig.present(card):
        is_sm120 = common.is_sm120_supported()
    monkeypatch.setattr(common, "is_sm120_supported", lambda: is_sm120)
    spec = importlib.util.spec_from_file_location(name, str(standing.module(name).__file__))
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    with phase.load():
        spec.loader.exec_module(copy)
    return copy


@pytest.fixture
def quant(standing: rig.Standing, card: rig.Card, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Upstream's NVFP4 module on a card, with the stand-ins for FlashInfer, its operators on CPU tensors."""
    first = standing.module(MODULE)
    monkeypatch.setitem(vars(sys.modules["flashinfer"]), "fp4_quantize", standin_fp4_quantize)
    monkeypatch.setattr(first, "flashinfer_fp4_gemm", standin_mm_fp4)  # fp4_gemm is registered once, from here
    copy = loaded_as_on(standing, card, MODULE, monkeypatch)
    torch._dynamo.reset()
    with ops.on_cpu("fp4_gemm", *(["fp4_quantize"] if hasattr(torch.ops.sglang, "fp4_quantize") else [])):
        yield copy
    torch._dynamo.reset()


def layer_of(channels: int) -> Any:
    """What upstream's NVFP4 linear method keeps of a layer after loading."""
    layer: Any = torch.nn.Module()
    layer.output_size_per_partition, layer.weights_padding_cols = CHANNELS_OUT, 0
    layer.weight = torch.zeros(CHANNELS_OUT, channels // 2, dtype=torch.uint8)
    layer.weight_scale_interleaved = torch.zeros(128, round_up(channels // GROUP, 4)).to(torch.float8_e4m3fn)
    layer.alpha, layer.input_scale_inv = torch.ones(()), torch.tensor(3.0)
    return layer


def tokens(count: int, channels: int) -> torch.Tensor:
    return torch.randn(count, channels, generator=torch.Generator().manual_seed(count)).to(torch.bfloat16)


def compiled(function: Any, backend: Any = "eager", dynamic: bool | None = None) -> Any:
    return torch.compile(function, fullgraph=True, backend=backend, dynamic=dynamic)


def run_traced(call: Any, *args: Any) -> Any:
    try:
        return call(*args)
    except (torch._dynamo.exc.Unsupported, torch._dynamo.exc.TorchRuntimeError) as error:
        pytest.fail(f"the layer cannot be traced whole: {str(error).splitlines()[0]}")


@SM12X
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_linear_layer_is_traced_whole_and_gives_what_it_gives_untraced(quant: ModuleType, backend: str) -> None:
    method, layer, given = quant.ModelOptFp4LinearMethod(SimpleNamespace()), layer_of(128), tokens(5, 128)
    traced = run_traced(compiled(lambda rows: method.apply(layer, rows), backend), given)
    assert traced.shape == (5, CHANNELS_OUT)
    assert torch.equal(traced, method.apply(layer, given))


@SM12X
def test_one_graph_serves_every_number_of_tokens(quant: ModuleType) -> None:
    graphs: list[Any] = []

    def count(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    method, layer = quant.ModelOptFp4LinearMethod(SimpleNamespace()), layer_of(128)
    call = compiled(lambda rows: method.apply(layer, rows), count, dynamic=True)
    for rows in (5, 128, 129, 1000):
        given = tokens(rows, 128)
        assert torch.equal(run_traced(call, given), method.apply(layer, given))
    assert len(graphs) == 1


@SM12X
@pytest.mark.parametrize(("rows", "channels"), [(1, 64), (5, 32), (129, 64), (300, 2048)])
def test_the_operator_promises_the_shapes_types_and_strides_that_it_gives(
    quant: ModuleType, rows: int, channels: int
) -> None:
    """`opcheck` is torch's own judge of an operator: its schema, its fake against the real one, its tracing."""
    assert isinstance(quant.fp4_quantize, torch._ops.OpOverloadPacket), "there is no operator to judge"
    given = (tokens(rows, channels), torch.tensor(3.0))
    torch.library.opcheck(quant.fp4_quantize.default, given)
    raw = standin_fp4_quantize(*given)
    assert all(torch.equal(*pair) for pair in zip(quant.fp4_quantize(*given), raw, strict=True))


@SM12X
def test_compressed_tensors_take_the_same_one(
    standing: rig.Standing, quant: ModuleType, card: rig.Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing.module(SCHEME)
    monkeypatch.setitem(sys.modules, MODULE, quant)
    scheme = loaded_as_on(standing, card, SCHEME, monkeypatch)
    assert scheme.fp4_quantize is quant.fp4_quantize
    traced = run_traced(compiled(scheme.fp4_quantize), tokens(5, 64), torch.tensor(3.0))
    assert [part.shape for part in traced] == [(5, 32), (128, 4)]


@SM12X
def test_what_cannot_be_traced_is_the_jit(card: rig.Card) -> None:
    """The control: the stand-in alone breaks a whole trace, on any tree."""
    del card
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(standin_fp4_quantize)(tokens(5, 64), torch.tensor(3.0))


@OTHERS
def test_other_capabilities_take_sgl_kernels_as_upstream_does(quant: ModuleType, card: rig.Card) -> None:
    del card
    assert quant.fp4_quantize is sys.modules["sgl_kernel"].scaled_fp4_quant
