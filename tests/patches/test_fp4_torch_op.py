"""fp4-torch-op: torch.compile puts FP4 quantization and the CUTLASS fused MoE into one graph, with eager results.

What runs is FlashInfer's own Python; the module that its JIT would compile, in a process of its own, is one that
computes on the CPU and writes down what it is given.
"""

from __future__ import annotations

import contextlib
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from sm120_overlay.serving.flashinfer import CUDA_VERSION, capability, import_flashinfer

BF16 = torch.bfloat16
Pair = tuple[torch.Tensor, torch.Tensor]


# What run_moe takes between the limit and tp_size, by how much it takes behind the scales: 0.6.14 and 0.7.2.
NEWER = {16: ["swizzled"], 20: ["clamped_limit", "situ_beta", "situ_linear_beta", "swizzled"]}


@dataclass(eq=False)  # by identity, as a compiled module is
class FakeModule:
    """Stands for a compiled module: the arithmetic is its own, the arguments and buffers are FlashInfer's."""

    pdl: list[bool] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def fp4_quantize(
        self,
        rows: torch.Tensor,
        scale: torch.Tensor | None,
        values: torch.Tensor,
        factors: torch.Tensor,
        vector: int,
        ue8m0: bool,
        swizzled: bool,
        tile_8x4: bool,
        *rest: Any,
    ) -> None:
        """Every byte of both buffers depends on the input or on an argument; `rest` is as the release has it."""
        inverted, pdl, recipe = {1: (False, *rest, 0), 2: (*rest, 0), 3: rest}[len(rest)]
        self.pdl.append(pdl)
        self.calls.append({"rows": rows.shape, "contiguous": rows.is_contiguous(), "scale": scale, "recipe": recipe})
        low, high = ((rows.float() * 4).to(torch.int64)[..., at::2] & 15 for at in (0, 1))
        values.copy_(low | high << 4)
        factors.fill_(1 + 2 * ue8m0 + 4 * swizzled + 8 * tile_8x4 + vector + 64 * bool(inverted))
        blocks = rows.float().abs().reshape(-1, vector).amax(-1)
        factors[: blocks.numel()] += (blocks * (1 if scale is None else float(scale))).to(torch.uint8)

    def set_deepgemm_jit_include_dirs(self, _folders: list[str]) -> None:
        pass

    def init(self, *_types: Any) -> FakeModule:
        return self

    def get_gemm1_tactic_count(self) -> int:
        return 1

    get_gemm2_tactic_count = get_gemm1_tactic_count
    interleave_moe_weights_for_sm90_mixed_gemm = None  # FlashInfer hands it on

    def run_moe(self, output: torch.Tensor, rows: torch.Tensor, *more: Any) -> None:
        """Each output row is a sum over the row's experts; `more` is as run_moe of the binding has it."""
        experts, scales, first, first_bias, second, second_bias, quant_scales, *rest = more
        names = ["input_sf", "alpha", "beta", "limit", *NEWER.get(len(rest), ())]
        names += ["tp_size", "tp_rank", "ep_size", "ep_rank", "cluster_size", "cluster_rank"]
        names += ["alltoall", "min_latency", "tactics", "pdl", "activation", "workspace"]
        self.calls.append(dict(zip(names, rest, strict=False)) | {"quant_scales": quant_scales})
        self.pdl.append(self.calls[-1]["pdl"])
        weight = first.float().sum((1, 2)) + second.float().sum((1, 2))
        by_row = (weight[experts.long()] * (1 if scales is None else scales)).sum(1) * rows.float().sum(1)
        biases = [bias.float().sum() for bias in (first_bias, second_bias) if bias is not None]
        output.copy_((by_row[:, None] + sum(biases) + torch.arange(output.shape[1])).to(output.dtype))


@dataclass(frozen=True)
class FlashInfer:
    """The tree's FlashInfer on a machine that has the faked module."""

    package: ModuleType
    module: FakeModule
    monkeypatch: pytest.MonkeyPatch

    @property
    def quantization(self) -> ModuleType:
        newer = sys.modules.get("flashinfer.quantization.fp4_quantization")
        return newer or sys.modules["flashinfer.fp4_quantization"]

    def takes(self, name: str, argument: str) -> bool:
        """Whether a public function has this argument in this release."""
        return argument in inspect.signature(getattr(self.package, name)).parameters

    @property
    def moe(self) -> ModuleType:
        return sys.modules["flashinfer.fused_moe.core"]

    def see(self, major: int, minor: int) -> None:
        """The capability of every device, for the modules that have the function by value too."""
        for name in (self.quantization, self.moe):
            self.monkeypatch.setattr(name, "get_compute_capability", lambda _device: (major, minor))
        self.monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (major, minor))

    def allow_pdl(self, allowed: bool) -> None:
        for name in (self.quantization, self.moe):
            self.monkeypatch.setattr(name, "device_support_pdl", lambda _device: allowed)


@pytest.fixture
def flashinfer(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FlashInfer]:
    monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", "9.0a 10.0a 12.0a 12.1a")  # read once, while it is imported
    package = import_flashinfer(tree, tmp_path)
    module = FakeModule()

    def build(*_: Any, **__: Any) -> None:
        subprocess.run([sys.executable, "-S", "-c", ""], check=True)  # as ninja is run

    monkeypatch.setattr(_jit_spec(), "build", build)
    monkeypatch.setattr(_jit_spec(), "load", lambda *_: module)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.version, "cuda", CUDA_VERSION)  # upstream's own choice of a target may ask it
    loaded = FlashInfer(package, module, monkeypatch)
    # Its sources' list is the generator's, which writes them; none is compiled here.
    monkeypatch.setattr(sys.modules["flashinfer.jit.fused_moe"], "generate_gemm_operations", lambda *_: None)
    caches = (loaded.quantization.get_fp4_quantization_module, loaded.moe.get_cutlass_fused_moe_module)
    for cache in caches:
        cache.cache_clear()
    torch._dynamo.reset()
    with capability(12, 0):
        loaded.see(12, 0)
        loaded.allow_pdl(False)
        yield loaded
    for cache in caches:
        cache.cache_clear()


def _jit_spec() -> type:
    """The class of specifications that ninja builds."""
    core = sys.modules["flashinfer.jit.core"]
    found: type = getattr(core, "JitSpecNvcc", core.JitSpec)
    return found


def _compiled(function: Callable[..., Any], backend: Any = "aot_eager", **options: Any) -> Callable[..., Any]:
    """The function as one graph. That tracing fails is a failure of the test: upstream's own error says why."""
    traced = torch.compile(function, fullgraph=True, backend=backend, **options)

    def call(*args: Any) -> Any:
        try:
            return traced(*args)
        except (torch._dynamo.exc.TorchDynamoException, RuntimeError) as error:
            pytest.fail(f"not traced as one graph: {type(error).__name__}: {str(error)[:300]}")

    return call


def _operator(name: str) -> Any:
    operators = torch.ops.sm120_overlay
    assert hasattr(operators, name), f"there is no operator sm120_overlay::{name}"
    return getattr(operators, name)


def _rows(m: int, k: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(m, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float32).to(BF16)


def _same(one: torch.Tensor, other: torch.Tensor) -> None:
    """Bit for bit, and laid out alike."""
    assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())
    assert torch.equal(one, other)


LAYOUTS = [  # sf_vec_size, sf_use_ue8m0, is_sf_swizzled_layout, is_sf_8x4_layout
    (16, False, True, False),
    (16, False, True, True),
    (16, False, False, False),
    (32, True, True, False),
    (32, True, False, False),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_quantization_is_traced_and_gives_what_eager_mode_gives(
    flashinfer: FlashInfer, layout: tuple[int, bool, bool, bool]
) -> None:
    def quantize(x: torch.Tensor, scale: torch.Tensor) -> Pair:
        values, factors = flashinfer.package.fp4_quantize(x * 2, scale, *layout)
        return values, factors

    one_graph = _compiled(quantize, dynamic=True)
    scale = torch.tensor([1.5])
    for m in (1, 5, 8, 128, 300):
        expected = quantize(_rows(m, 256), scale)
        for got, wanted in zip(one_graph(_rows(m, 256), scale), expected, strict=True):
            _same(got, wanted)
        assert expected[0].dtype == expected[1].dtype == torch.uint8


def test_export_keeps_the_operator(flashinfer: FlashInfer) -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor, scale: torch.Tensor) -> Pair:
            values, factors = flashinfer.package.fp4_quantize(x, scale)
            return values, factors

    arguments = _rows(5, 256), torch.ones(1)
    try:
        exported = torch.export.export(Layer(), arguments)
    except Exception as error:
        pytest.fail(f"not exported: {type(error).__name__}: {str(error)[:300]}")
    for got, wanted in zip(exported.module()(*arguments), Layer()(*arguments), strict=True):
        _same(got, wanted)
    assert [node.target for node in exported.graph.nodes if "sm120_overlay" in str(node.target)]


@pytest.mark.parametrize(("m", "rows"), [(1, 128), (128, 128), (129, 256)])
def test_swizzled_factors_are_padded(flashinfer: FlashInfer, m: int, rows: int) -> None:
    values, factors = _compiled(flashinfer.package.fp4_quantize)(_rows(m, 256), torch.ones(1))
    assert (values.shape, factors.shape) == ((m, 128), (rows, 16))


def test_no_shape_is_compiled_twice(flashinfer: FlashInfer) -> None:
    """Tokens and hidden size both dynamic: one graph for all."""
    counter: Any = CompileCounterWithBackend("aot_eager")
    quantize = _compiled(flashinfer.package.fp4_quantize, counter, dynamic=True)
    for m, k in ((3, 256), (5, 512), (200, 6144), (129, 64)):
        values, factors = quantize(_rows(m, k), torch.ones(1))
        assert (values.shape, factors.shape) == ((m, k // 2), (-(-m // 128) * 128, k // 16))
    assert counter.frame_count == 1


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("swizzled", [True, False])
def test_column_major_and_batched_input_keep_their_strides(flashinfer: FlashInfer, dim: int, swizzled: bool) -> None:
    batch = (2,) if dim == 3 else ()
    column_major = _rows(2 * 6, 128).reshape(*batch, -1, 128).transpose(-2, -1)

    def quantize(x: torch.Tensor) -> Pair:
        values, factors = flashinfer.package.fp4_quantize(x, torch.ones(1), is_sf_swizzled_layout=swizzled)
        return values, factors

    for x in (column_major, column_major.transpose(-2, -1)):
        torch._dynamo.reset()
        for got, wanted in zip(_compiled(quantize)(x), quantize(x), strict=True):
            _same(got, wanted)


@pytest.mark.parametrize(("k", "swizzled"), [(32, True), (80, True), (96, True), (80, False)])
def test_a_width_that_is_no_multiple_of_64_is_as_in_eager_mode(flashinfer: FlashInfer, k: int, swizzled: bool) -> None:
    """0.6.3 cuts the padded, swizzled factors into rows of K / 16 (odd rows, or an error), newer ones pad the rows."""

    def quantize(x: torch.Tensor) -> Pair:
        values, factors = flashinfer.package.fp4_quantize(x, torch.ones(1), is_sf_swizzled_layout=swizzled)
        return values, factors

    x = _rows(5, k)
    one_graph = torch.compile(quantize, fullgraph=True, backend="aot_eager")
    try:
        expected = quantize(x)
    except RuntimeError:
        with pytest.raises(Exception, match="swizzled scale factors: use a multiple of 64"):
            one_graph(x)
        return
    for got, wanted in zip(_compiled(quantize)(x), expected, strict=True):
        _same(got, wanted)


@pytest.mark.parametrize("arguments", [(17,), (16, False, True)])
def test_what_eager_mode_refuses_is_refused(flashinfer: FlashInfer, arguments: tuple[Any, ...]) -> None:
    x = _rows(4, 256 if arguments == (17,) else 40)
    with pytest.raises((NotImplementedError, AssertionError)):
        flashinfer.package.fp4_quantize(x, None, *arguments)
    operator = _operator("fp4_quantize")
    with pytest.raises((NotImplementedError, AssertionError)):
        operator(x, None, *arguments)
    with pytest.raises(Exception, match=r"can only be 16 or 32|not divisible by 16"):
        torch.compile(lambda x: flashinfer.package.fp4_quantize(x, None, *arguments), fullgraph=True)(x)


def test_pdl_is_decided_when_the_graph_runs(flashinfer: FlashInfer) -> None:
    quantize = _compiled(lambda x: flashinfer.package.fp4_quantize(x, torch.ones(1)))
    for allowed in (False, True, False):
        flashinfer.allow_pdl(allowed)
        quantize(_rows(4, 64))
    assert flashinfer.module.pdl == [False, True, False]


@pytest.mark.parametrize("wanted", [True, False])
def test_an_explicit_pdl_reaches_the_kernel(flashinfer: FlashInfer, wanted: bool) -> None:
    flashinfer.allow_pdl(not wanted)
    _compiled(lambda x: flashinfer.package.fp4_quantize(x, None, enable_pdl=wanted))(_rows(4, 64))
    _operator("fp4_quantize")(_rows(4, 64), None, enable_pdl=wanted)
    assert flashinfer.module.pdl == [wanted, wanted]


@pytest.mark.parametrize("seen", [(9, 0), (10, 0), (12, 0), (12, 1)])
def test_eager_mode_knows_nothing_of_operators(flashinfer: FlashInfer, seen: tuple[int, int]) -> None:
    """On every capability: which module is asked for, and no operator is called."""
    flashinfer.see(*seen)
    asked: list[str] = []
    load = flashinfer.quantization.get_fp4_quantization_module

    def get_module(arch: str) -> Any:
        asked.append(arch)
        return load(arch)

    flashinfer.monkeypatch.setattr(flashinfer.quantization, "get_fp4_quantization_module", get_module)
    with torch.profiler.profile() as profile:
        flashinfer.package.fp4_quantize(_rows(4, 64), torch.ones(1))
    assert asked == ["".join(map(str, seen))]
    assert not [event.key for event in profile.key_averages() if "sm120_overlay" in event.key]


@pytest.mark.parametrize("seen", [(9, 0), (10, 0), (12, 0), (12, 1)])
def test_a_graph_asks_for_the_module_of_the_card(flashinfer: FlashInfer, seen: tuple[int, int]) -> None:
    flashinfer.see(*seen)
    names: list[str] = []
    spec = _jit_spec()
    load = spec.build_and_load  # type: ignore[attr-defined]

    def build_and_load(self: Any) -> Any:
        names.append(self.name)
        return load(self)

    flashinfer.monkeypatch.setattr(spec, "build_and_load", build_and_load)
    _compiled(flashinfer.package.fp4_quantize)(_rows(4, 64), torch.ones(1))
    family = "120f" if flashinfer.takes("fp4_quantize", "backend") else ""  # with nvcc 12.9 or newer
    assert names == [f"fp4_quantization_{family if seen[0] == 12 and family else f'{seen[0]}{seen[1]}'}"]


CHECKED = [  # rows, columns, layout
    (1, 64, LAYOUTS[0]),
    (5, 256, LAYOUTS[1]),
    (130, 6144, LAYOUTS[2]),
    (3, 128, LAYOUTS[3]),
    (5, 32, LAYOUTS[0]),
]


@pytest.mark.parametrize(("m", "k", "layout"), CHECKED)
def test_the_quantization_operator_passes_opcheck(
    flashinfer: FlashInfer, m: int, k: int, layout: tuple[int, bool, bool, bool]
) -> None:
    _opcheck("fp4_quantize", (_rows(m, k), torch.ones(1), *layout, None))


def test_the_quantization_operator_passes_opcheck_on_column_major_input(flashinfer: FlashInfer) -> None:
    _opcheck("fp4_quantize", (_rows(6, 128).t(), None))


def _opcheck(name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
    _check_operator(_operator(name).default, args, kwargs)


def _check_operator(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
    try:
        torch.library.opcheck(operator, args, kwargs)
    except Exception as error:
        pytest.fail(f"opcheck: {type(error).__name__}: {str(error)[:600]}")


# What newer releases have besides.


def test_an_inverted_scale_stays_inverted(flashinfer: FlashInfer) -> None:
    """An argument that 0.6.14 put before enable_pdl: by position and by name."""
    if not flashinfer.takes("fp4_quantize", "is_global_scale_inversed"):
        return
    x, scale = _rows(4, 64), torch.ones(1)
    for by_position in (False, True):
        more = ((16, False, True, False, True), {}) if by_position else ((), {"is_global_scale_inversed": True})

        def quantize(x: torch.Tensor, more: Any = more) -> Pair:
            values, factors = flashinfer.package.fp4_quantize(x, scale, *more[0], **more[1])
            return values, factors

        for got, wanted in zip(_compiled(quantize)(x), quantize(x), strict=True):
            _same(got, wanted)
    assert not torch.equal(quantize(x)[1], flashinfer.package.fp4_quantize(x, scale)[1])


def test_a_4over6_recipe_reaches_the_kernel(flashinfer: FlashInfer) -> None:
    """0.7.2 takes one as an object, which no operator can."""
    if not flashinfer.takes("fp4_quantize", "nvfp4_4over6"):
        return
    utils = sys.modules["flashinfer.quantization.nvfp4_quantization_utils"]
    for recipe in (None, utils.NVFP44Over6Config(e4m3_max=256), utils.NVFP44Over6Config()):
        _compiled(lambda x, recipe=recipe: flashinfer.package.fp4_quantize(x, torch.ones(1), nvfp4_4over6=recipe))(
            _rows(4, 64)
        )
        assert flashinfer.module.calls[-1]["recipe"] == utils.nvfp4_4over6_code(recipe)


def test_another_backend_is_refused_while_tracing(flashinfer: FlashInfer) -> None:
    for name, backend, arguments in (
        ("fp4_quantize", "cute-dsl", {"input": _rows(4, 64)}),
        ("cutlass_fused_moe", "cake", _moe_arguments(3)),
    ):
        if not flashinfer.takes(name, "backend"):
            continue
        function = getattr(flashinfer.package, name)
        with pytest.raises(Exception, match=f"'{backend}' cannot be traced|lock|dynamo"):
            torch.compile(lambda f=function, b=backend, a=arguments: f(backend=b, **a), fullgraph=True)()


UPSTREAMS = [(6, 128), (2, 6, 128)]


@pytest.mark.parametrize("shape", UPSTREAMS)
@pytest.mark.parametrize("pdl", [None, True, False])
def test_upstreams_own_operator_does_what_the_function_does(
    flashinfer: FlashInfer, shape: tuple[int, ...], pdl: bool | None
) -> None:
    """It came with 0.6.12; 0.6.14's hands enable_pdl on as is_global_scale_inversed, which inverts the scale."""
    operator = getattr(torch.ops.flashinfer, "fp4_quantize", None)
    if operator is None:
        return
    flashinfer.allow_pdl(False)
    rows = _rows(shape[-2] * (shape[0] if len(shape) == 3 else 1), 128).reshape(shape)
    for x in (rows, rows.transpose(-2, -1)):  # and column-major
        wanted = flashinfer.package.fp4_quantize(x, torch.ones(1), enable_pdl=pdl)
        for got, want in zip(operator(x, torch.ones(1), enable_pdl=pdl), wanted, strict=True):
            _same(got, want)
        assert flashinfer.module.pdl[-2:] == [bool(pdl)] * 2


@pytest.mark.parametrize("shape", UPSTREAMS)
@pytest.mark.parametrize("swizzled", [True, False])
def test_upstreams_own_operator_passes_opcheck_on_column_major_input(
    flashinfer: FlashInfer, shape: tuple[int, ...], swizzled: bool
) -> None:
    if getattr(torch.ops.flashinfer, "fp4_quantize", None) is None:
        return
    x = torch.zeros(shape, dtype=BF16).transpose(-2, -1)  # K, the last but one, lies dense
    _check_operator(torch.ops.flashinfer.fp4_quantize.default, (x, None, 16, False, swizzled))


# The fused MoE.


def _moe_arguments(tokens: int, packed: bool = True) -> dict[str, Any]:
    """As SGLang calls it: NVFP4 packed into int64 with six scales, or bfloat16 with none."""
    experts, hidden, intermediate, top_k = 4, 64, 32, 2
    weight, width = (torch.int64, 16) if packed else (BF16, 1)
    return {
        "input": torch.randint(0, 256, (tokens, hidden // 2), dtype=torch.uint8) if packed else _rows(tokens, hidden),
        "token_selected_experts": torch.arange(tokens * top_k, dtype=torch.int32).reshape(tokens, top_k) % experts,
        "token_final_scales": torch.full((tokens, top_k), 0.5),
        "fc1_expert_weights": torch.ones(experts, 2 * intermediate, hidden // width, dtype=weight),
        "fc2_expert_weights": torch.ones(experts, hidden, intermediate // width, dtype=weight),
        "output_dtype": BF16,
        "quant_scales": [torch.full((experts,), float(at)) for at in range(6)] if packed else None,
        "input_sf": torch.ones(tokens, hidden // 16, dtype=torch.uint8) if packed else None,
        "ep_size": 2,
        "ep_rank": 1,
        "tune_max_num_tokens": 1024,
    }


@pytest.mark.parametrize("packed", [True, False])
def test_fused_moe_is_traced_and_gives_what_eager_mode_gives(flashinfer: FlashInfer, packed: bool) -> None:
    def moe(arguments: dict[str, Any]) -> torch.Tensor:
        output: torch.Tensor = flashinfer.package.cutlass_fused_moe(**arguments)[0]
        return output * 2

    one_graph = _compiled(moe, dynamic=True)
    for tokens in (2, 5, 300):
        arguments = _moe_arguments(tokens, packed)
        _same(one_graph(arguments), moe(arguments))
        traced, eager = flashinfer.module.calls[-2:]
        assert traced.keys() == eager.keys()
        for name in eager.keys() - {"quant_scales", "input_sf"}:
            assert traced[name] == eager[name], name
        for name in ("quant_scales", "input_sf"):
            torch.testing.assert_close(traced[name], eager[name])


@pytest.mark.parametrize("scales", [None, [], [None], [torch.ones(4), None], (torch.ones(4),)])
def test_fused_moe_gets_the_scales_as_in_eager_mode(flashinfer: FlashInfer, scales: Any) -> None:
    """No list, an empty one and one with gaps are three things to the binding."""

    def moe(arguments: dict[str, Any]) -> torch.Tensor:
        output: torch.Tensor = flashinfer.package.cutlass_fused_moe(**arguments)[0]
        return output * 2

    arguments = {**_moe_arguments(3), "quant_scales": scales}
    _same(_compiled(moe)(arguments), moe(arguments))
    traced, eager = (call["quant_scales"] for call in flashinfer.module.calls[-2:])
    assert (traced is None) == (eager is None)
    for got, wanted in zip(traced or (), eager or (), strict=True):
        assert (got is None) == (wanted is None)
        assert got is None or torch.equal(got, wanted)


def test_fused_moe_returns_as_many_tensors_as_in_eager_mode(flashinfer: FlashInfer) -> None:
    """Only the first is defined without the minimum-latency mode; 0.6.3 gives them all."""
    eager = flashinfer.package.cutlass_fused_moe(**_moe_arguments(3))
    traced = _compiled(lambda arguments: flashinfer.package.cutlass_fused_moe(**arguments))(_moe_arguments(3))
    assert type(traced) is type(eager)
    for got, wanted in zip(traced, eager, strict=True):
        assert (got.shape, got.dtype, got.stride()) == (wanted.shape, wanted.dtype, wanted.stride())


def test_fused_moe_writes_into_the_callers_memory(flashinfer: FlashInfer) -> None:
    """SGLang brings symmetric memory, which a collective reads afterwards."""
    mine = torch.zeros(3, 64, dtype=BF16)

    def moe(output: torch.Tensor, arguments: dict[str, Any]) -> torch.Tensor:
        got: torch.Tensor = flashinfer.package.cutlass_fused_moe(output=output, **arguments)[0]
        return got + 1

    wanted = flashinfer.package.cutlass_fused_moe(**_moe_arguments(3, packed=False))[0]
    got = _compiled(moe)(mine, _moe_arguments(3, packed=False))
    _same(mine, wanted)
    _same(got, wanted + 1)


def test_fused_moe_without_minimum_latency_says_so_while_tracing(flashinfer: FlashInfer) -> None:
    def moe(arguments: dict[str, Any]) -> Any:
        return flashinfer.package.cutlass_fused_moe(min_latency_mode=True, **arguments)

    with pytest.raises(NotImplementedError, match="min latency"):
        moe(_moe_arguments(3))
    with pytest.raises(Exception, match="min latency"):
        torch.compile(moe, fullgraph=True, backend="aot_eager")(_moe_arguments(3))


def test_pdl_of_fused_moe_is_decided_when_the_graph_runs(flashinfer: FlashInfer) -> None:
    moe = _compiled(lambda arguments: flashinfer.package.cutlass_fused_moe(**arguments)[0])
    for allowed in (False, True):
        flashinfer.allow_pdl(allowed)
        moe(_moe_arguments(3))
    flashinfer.allow_pdl(False)
    moe({**_moe_arguments(3), "enable_pdl": True})
    assert flashinfer.module.pdl == [False, True, True]


def test_the_activation_reaches_the_kernel(flashinfer: FlashInfer) -> None:
    relu2 = flashinfer.moe.ActivationType.Relu2
    moe = _compiled(lambda arguments: flashinfer.package.cutlass_fused_moe(**arguments)[0])
    moe({**_moe_arguments(3), "activation_type": relu2})
    assert flashinfer.module.calls[-1]["activation"] is relu2


@pytest.mark.parametrize("packed", [True, False])
def test_the_moe_operator_passes_opcheck(flashinfer: FlashInfer, packed: bool) -> None:
    arguments = _moe_arguments(4, packed)
    arguments["has_quant_scales"] = packed
    arguments["quant_scales"] = [*arguments["quant_scales"], None] if packed else []
    output = torch.zeros(4, 64, dtype=BF16)
    _opcheck("cutlass_fused_moe", (output, arguments.pop("input")), arguments)


def test_quantization_and_moe_become_one_graph_and_machine_code(flashinfer: FlashInfer) -> None:
    """With the C++ backend of inductor, which also decides about the buffers."""

    def layer(x: torch.Tensor, scale: torch.Tensor, arguments: dict[str, Any]) -> torch.Tensor:
        values, factors = flashinfer.package.fp4_quantize(x * 2, scale, is_sf_swizzled_layout=False)
        output: torch.Tensor = flashinfer.package.cutlass_fused_moe(**arguments, input=values, input_sf=factors)[0]
        return torch.relu(output) + x

    one_graph = _compiled(layer, "inductor", dynamic=True)
    for tokens in (3, 17):
        arguments = _moe_arguments(tokens)
        del arguments["input"], arguments["input_sf"]
        x, scale = _rows(tokens, 64), torch.tensor([1.5])
        torch.testing.assert_close(one_graph(x, scale, arguments), layer(x, scale, arguments), rtol=0, atol=0)
