"""oea-routing: each token of a decode batch keeps its best k0 experts and fills up inside the batch's union of those.

What may live here: an oracle in plain Python that knows nothing of tensors, upstream's real TopK and select_experts
run on a CPU inside a model's forward, and the ways in: ServerArgs, ModelRunner, the graph's buffers, the metrics.
Where releases differ in how they are asked, the difference stands in one helper; what must hold is one test.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from sm120_overlay.serving import rig
from sm120_overlay.serving.rig import cards, models
from sm120_overlay.serving.rig.models import QuantForm

EXPERTS = 32
# Few values, so that ties are common; no two sums of them are equal but for the same terms.
LOGITS = (-1.7, -0.6, 0.3, 1.1, 2.9)
BIASES = (0.0, 0.13, -0.21)

MANY = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def _release() -> tuple[int, ...]:
    """SGLang's version in the tree that is judged: which cases there are is decided before a fixture can say."""
    (info,) = Path(os.environ["SM120_OVERLAY_TREE"]).glob("sglang-*.dist-info")
    return tuple(int(part) for part in info.name.split("-")[1].removesuffix(".dist").split(".")[:3])


RELEASE = _release()
# From here on the factor and a shared expert's weight do not ask whether the routed weights are renormalised.
FREE_SCALING = RELEASE >= (0, 5, 23)


# ---- routers, and the oracle ----


@dataclass(frozen=True)
class Spec:
    """A router, in the words of upstream's TopK."""

    top_k: int = 4
    """Routed experts a token."""
    scoring: str = "softmax"
    groups: int = 1
    topk_group: int = 1
    grouped: bool = False
    biased: bool = False
    renormalize: bool = True
    shared: int = 0
    factor: float | None = None
    on_output: bool = False

    def arguments(self, bias: torch.Tensor | None) -> dict[str, Any]:
        """What upstream's TopK is constructed with."""
        grouped = {"num_expert_group": self.groups, "topk_group": self.topk_group} if self.grouped else {}
        return {
            "top_k": self.top_k + self.shared,
            "layer_id": 0,
            "use_grouped_topk": self.grouped,
            "renormalize": self.renormalize,
            "num_fused_shared_experts": self.shared,
            "scoring_func": self.scoring,
            "correction_bias": bias,
            "routed_scaling_factor": self.factor,
            "apply_routed_scaling_factor_on_output": self.on_output,
            **grouped,
        }


SPECS = {
    "softmax": Spec(),
    "softmax as it is": Spec(renormalize=False),
    "sigmoid": Spec(scoring="sigmoid"),
    "sigmoid and bias": Spec(scoring="sigmoid", biased=True),
    "GLM-5": Spec(grouped=True, biased=True, factor=2.5),
    "GLM-5, scaled": Spec(grouped=True, biased=True, factor=2.5, on_output=True),
    "GLM-5, fused shared expert": Spec(grouped=True, biased=True, factor=2.5, shared=1),
    "groups and bias": Spec(grouped=True, biased=True, groups=4, topk_group=2, factor=2.5),
    "groups, bias, shared, scaled": Spec(
        grouped=True, biased=True, groups=4, topk_group=2, factor=2.5, shared=1, on_output=True
    ),
    "groups": Spec(grouped=True, groups=4, topk_group=2),
    "groups as they are, and what the factor does to them": Spec(
        grouped=True, groups=4, topk_group=2, renormalize=False, factor=16.0, on_output=True
    ),
    "groups as they are, shared": Spec(grouped=True, groups=4, topk_group=2, renormalize=False, shared=1, factor=16.0),
}
if RELEASE > (0, 5, 9):
    SPECS["groups by sigmoid"] = Spec(scoring="sigmoid", grouped=True, groups=4, topk_group=2)
if FREE_SCALING:
    SPECS["scaled"] = Spec(factor=2.5, on_output=True)
    SPECS["bias and groups as they are, scaled"] = Spec(
        grouped=True, biased=True, groups=4, topk_group=2, renormalize=False, factor=2.5, on_output=True
    )
EVERY_SPEC = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())


def score(spec: Spec, logits: list[float]) -> list[float]:
    """A token's scores, as the router of that kind defines them."""
    if spec.biased or spec.scoring == "sigmoid":
        return [1 / (1 + math.exp(-x)) for x in logits]
    powers = [math.exp(x) for x in logits]
    return [p / sum(powers) for p in powers]


def best(ids: Any, choice: list[float]) -> list[int]:
    """Experts from best to worst; of equals, the lowest id first."""
    return sorted(ids, key=lambda e: (-choice[e], e))


def token_groups(spec: Spec, choice: list[float], own: list[int]) -> set[int]:
    """The groups a token may use: those of its own experts, then the best, up to topk_group."""
    size = len(choice) // spec.groups
    mine = {e // size for e in own}
    value = []
    for g in range(spec.groups):
        members = sorted(choice[g * size : (g + 1) * size], reverse=True)
        value.append(math.inf if g in mine else sum(members[:2]) if spec.biased else members[0])
    return set(best(range(spec.groups), value)[: spec.topk_group])


@dataclass(frozen=True)
class Case:
    """A decode batch: what its tokens score, and which rows are tokens."""

    spec: Spec
    logits: list[list[float]]
    bias: list[float] | None
    real: int
    k0: int
    min_tokens: int = 1

    @property
    def tensor(self) -> torch.Tensor:
        return torch.tensor(self.logits)

    def choices(self, row: int) -> list[float]:
        """What orders a token's experts: scores, and the bias where there is one."""
        return [s + b for s, b in zip(score(self.spec, self.logits[row]), self.bias or [0.0] * EXPERTS, strict=True)]

    def union(self, own: list[list[int]]) -> set[int]:
        """The union of the real tokens' best k0, given the experts each was routed to."""
        return {e for row in range(self.real) for e in best(own[row], self.choices(row))[: self.k0]}

    def filled(self, row: int, own: list[int], union: set[int]) -> list[int]:
        """A token's experts by OEA, best first; fewer than k where the union has no more for it."""
        choice = self.choices(row)
        size = EXPERTS // self.spec.groups
        groups = token_groups(self.spec, choice, own)
        return best({e for e in union if e // size in groups}, choice)[: self.spec.top_k]

    def weights(self, row: int, experts: list[int]) -> list[float]:
        """Their weights: unbiased scores, renormalised and scaled where the router does so."""
        scores = score(self.spec, self.logits[row])
        weights = [scores[e] for e in experts]
        if self.spec.renormalize:
            weights = [w / sum(weights) for w in weights]
        if self.spec.on_output and self.spec.factor and (self.spec.renormalize or FREE_SCALING):
            weights = [w * self.spec.factor for w in weights]
        return weights


def cases(spec: Spec, padding: bool = False, min_tokens: bool = False) -> st.SearchStrategy[Case]:
    """Batches of 1 to 8 tokens with many ties, and rows of padding where asked for."""

    @st.composite
    def draw_case(draw: Any) -> Case:
        rows = draw(st.integers(1, 8))
        real = draw(st.integers(0, rows)) if padding else rows
        noise = draw(st.binary(min_size=rows * EXPERTS, max_size=rows * EXPERTS))
        logits = [[LOGITS[b % len(LOGITS)] for b in noise[r * EXPERTS : (r + 1) * EXPERTS]] for r in range(rows)]
        offsets = draw(st.binary(min_size=EXPERTS, max_size=EXPERTS))
        bias = [BIASES[b % len(BIASES)] for b in offsets] if spec.biased else None
        least = draw(st.integers(1, 8)) if min_tokens else 1
        return Case(spec, logits, bias, real, draw(st.integers(1, spec.top_k)), least)

    return draw_case()


# ---- the real thing ----


def routing(standing: rig.Standing) -> ModuleType:
    """The routing that the patch brings; without it there is nothing to ask."""
    there = importlib.util.find_spec("sglang.srt.layers.moe.oea") is not None
    assert there, "this SGLang routes every decode batch to each token's own experts: it has no OEA routing"
    return standing.module("sglang.srt.layers.moe.oea")


@pytest.fixture(autouse=True)
def _eager_and_clean(standing: rig.Standing) -> Iterator[None]:
    """Upstream's compiled top-k functions run as they are written; what a test installs does not outlive it."""
    with torch.compiler.set_stance("force_eager"):
        yield
    oea: Any = sys.modules.get("sglang.srt.layers.moe.oea")
    if oea is not None:
        oea.uninstall()
        oea._counters = None
    del standing


@pytest.fixture(scope="module")
def plainly(standing: rig.Standing, tmp_path_factory: pytest.TempPathFactory) -> rig.Resolution:
    """Upstream's arguments for one GPU and nothing else asked."""
    folder = models.checkpoint(tmp_path_factory.mktemp("plainly"), models.QWEN3_MOE, QuantForm.NONE)
    with rig.present(cards.RTX_PRO_6000_SERVER):
        return rig.resolve(standing, folder)


@pytest.fixture(autouse=True)
def _published(standing: rig.Standing, plainly: rig.Resolution) -> Iterator[None]:
    """Later releases' layers ask for the process's arguments."""
    with rig.published(standing, plainly):
        yield


def asked(k0: int, **others: Any) -> Any:
    """The resolved server arguments that OEA reads once the model is loaded."""
    given = {"oea_min_tokens": 1, "oea_global_union": False, "enable_metrics": False, "pp_size": 1, **others}
    return SimpleNamespace(oea_k0=k0, **given)


def top_k(standing: rig.Standing, **given: Any) -> Any:
    """Upstream's TopK. From 0.5.23 on it learns of fused shared experts from the model that is being built."""
    layer = standing.module("sglang.srt.layers.moe.topk").TopK
    if "num_fused_shared_experts" in inspect.signature(layer.__init__).parameters:
        return layer(**{"layer_id": 0, **given})
    shared = given.pop("num_fused_shared_experts", 0)
    config = standing.module("sglang.srt.configs.shared_experts").SharedExpertsConfig(num_fused_shared_experts=shared)
    with standing.module("sglang.srt.runtime_context").get_model().override(shared_experts=config):
        return layer(**{"layer_id": 0, **given, "top_k": given["top_k"] - shared})


class Model(torch.nn.Module):
    """Layers of upstream's TopK, called as upstream's models call them; it returns what each layer routed."""

    def __init__(self, standing: rig.Standing, *specs: tuple[Spec, list[float] | None]) -> None:
        super().__init__()
        biases = [None if bias is None else torch.tensor(bias) for _, bias in specs]
        layers = (top_k(standing, **spec.arguments(b)) for (spec, _), b in zip(specs, biases, strict=True))
        self.topk = torch.nn.ModuleList(layers)

    def forward(self, input_ids: torch.Tensor, positions: Any, forward_batch: Any, **kwargs: Any) -> list[Any]:
        del positions, forward_batch
        return [layer(torch.zeros(len(input_ids), 8), input_ids.clone(), **kwargs) for layer in self.topk]


def batch(standing: rig.Standing, mode: str, count: torch.Tensor | None = None, **others: Any) -> Any:
    """Upstream's ForwardBatch, as far as routing is concerned."""
    module = standing.module("sglang.srt.model_executor.forward_batch_info")
    return module.ForwardBatch(
        forward_mode=getattr(module.ForwardMode, mode),
        batch_size=1,
        input_ids=None,
        req_pool_indices=None,
        seq_lens=None,
        out_cache_loc=None,
        seq_lens_sum=0,
        num_token_non_padded=count,
        **others,
    )


def running(standing: rig.Standing, now: Any) -> AbstractContextManager[Any]:
    """As upstream's runners run a batch: from 0.5.23 on its layers ask a context about it."""
    if not hasattr(now, "moe_num_token_non_padded"):
        return nullcontext()
    context = standing.module("sglang.srt.model_executor.forward_context")
    entered: AbstractContextManager[Any] = context.forward_context(
        context.ForwardContext(attn_backend=None), forward_batch=now
    )
    return entered


Routed = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Server:
    """A model in a process where OEA may be on."""

    standing: rig.Standing
    model: Model

    def run(self, logits: torch.Tensor, mode: str = "DECODE", count: int | None = None, **kwargs: Any) -> list[Routed]:
        """Route a batch in every layer: (weights, ids) each."""
        rows = None if count is None else torch.tensor([count], dtype=torch.int32)
        now = batch(self.standing, mode, rows)
        with running(self.standing, now):
            out = self.model.forward(logits, None, now, **kwargs)
        return [(o.topk_weights, o.topk_ids) for o in out]


def serve(standing: rig.Standing, case: Case, **others: Any) -> Server:
    """A server with one layer of the case's router and OEA on."""
    model = Model(standing, (case.spec, case.bias))
    args = asked(case.k0, **{"oea_min_tokens": case.min_tokens, **others})
    routing(standing).install(model, args, torch.device("cpu"))
    return Server(standing, model)


def both(standing: rig.Standing, case: Case) -> tuple[Routed, Routed]:
    """A case as upstream routes it, and as a decode batch with OEA."""
    server = serve(standing, case)
    (vanilla,) = server.run(case.tensor, "EXTEND")
    (oea,) = server.run(case.tensor, "DECODE", case.real)
    return vanilla, oea


def same(a: Routed, b: Routed) -> bool:
    """Bit for bit, dtypes included."""
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(a, b, strict=True))


def routed(ids: torch.Tensor, spec: Spec) -> list[list[int]]:
    """The routed columns, as lists."""
    columns: list[list[int]] = ids[:, : spec.top_k].tolist()
    return columns


def check_row(case: Case, row: int, vanilla: Routed, oea: Routed, union: set[int]) -> None:
    """One real token against the oracle."""
    own = routed(vanilla[1], case.spec)[row]
    expected, k = case.filled(row, own, union), case.spec.top_k
    if set(own) <= union or len(expected) < k:
        assert same((vanilla[0][row], vanilla[1][row]), (oea[0][row], oea[1][row])), "nothing was to be changed"
        return
    weights, ids = oea[0][row].tolist(), oea[1][row].tolist()
    assert sorted(ids[:k]) == sorted(expected)
    by_id = dict(zip(expected, case.weights(row, expected), strict=True))
    assert weights[:k] == pytest.approx([by_id[e] for e in ids[:k]], rel=1e-5)
    if case.spec.shared:
        constant = case.spec.renormalize or FREE_SCALING
        shared = vanilla[0][row, k].item() if constant else sum(weights[:k]) / (case.spec.factor or 1)
        assert (ids[k], weights[k]) == (EXPERTS, pytest.approx(shared, rel=1e-5))


# ---- routing ----


@EVERY_SPEC
def test_with_k0_equal_to_k_it_is_the_real_select_experts_bit_for_bit(standing: rig.Standing, spec: Spec) -> None:
    @MANY
    @given(case=cases(spec, padding=True))
    def check(case: Case) -> None:
        vanilla, oea = both(standing, replace(case, k0=spec.top_k))
        assert same((vanilla[0][: case.real], vanilla[1][: case.real]), (oea[0][: case.real], oea[1][: case.real]))

    routing(standing)
    check()


@EVERY_SPEC
def test_every_token_is_routed_as_the_oracle_says(standing: rig.Standing, spec: Spec) -> None:
    @MANY
    @given(case=cases(spec, padding=True, min_tokens=True))
    def check(case: Case) -> None:
        vanilla, oea = both(standing, case)
        if case.real < case.min_tokens:
            assert same(vanilla, oea), "below the minimum nothing changes, padding included"
            return
        union = case.union(routed(vanilla[1], spec))
        for row in range(case.real):
            check_row(case, row, vanilla, oea, union)

    routing(standing)
    check()


@EVERY_SPEC
def test_padded_rows_add_no_expert_and_change_no_token(standing: rig.Standing, spec: Spec) -> None:
    @MANY
    @given(case=cases(spec, padding=True))
    def check(case: Case) -> None:
        if case.real == 0:
            return
        vanilla, oea = both(standing, case)
        (alone,) = serve(standing, case).run(case.tensor[: case.real])
        assert same(alone, (oea[0][: case.real], oea[1][: case.real]))
        union = case.union(routed(vanilla[1], spec))
        padding = range(case.real, len(case.logits))
        if len(union) >= spec.top_k:
            assert {e for row in padding for e in routed(oea[1], spec)[row]} <= union
        else:
            assert all(same((vanilla[0][row], vanilla[1][row]), (oea[0][row], oea[1][row])) for row in padding)
        assert torch.isfinite(oea[0]).all()

    routing(standing)
    check()


def identical(spec: Spec, k0: int) -> Case:
    """A batch of one token eight times over, as graph capture and warm-up run it."""
    logits = torch.randn(EXPERTS, generator=torch.Generator().manual_seed(2)).tolist()
    return Case(spec, [logits] * 8, [0.0] * EXPERTS if spec.biased else None, 8, k0)


@EVERY_SPEC
def test_no_row_holds_an_expert_twice_or_one_that_is_not_there(standing: rig.Standing, spec: Spec) -> None:
    def hold(ids: torch.Tensor) -> None:
        for row in ids.tolist():
            assert len(set(row)) == len(row), "a MoE kernel counts on k different experts"
            assert set(row) <= set(range(EXPERTS + spec.shared))

    @MANY
    @given(case=cases(spec, padding=True))
    def check(case: Case) -> None:
        _, (_, ids) = both(standing, case)
        hold(ids)

    routing(standing)
    check()
    for k0 in range(1, spec.top_k + 1):
        vanilla, oea = both(standing, identical(spec, k0))
        hold(oea[1])
        assert same(vanilla, oea), "tokens that all want the same have nothing to share"


def test_padding_may_hold_anything(standing: rig.Standing) -> None:
    oea = routing(standing)
    server = serve(standing, SKEWED)
    ((_, ids),) = server.run(SKEWED.tensor, "EXTEND")
    garbage = SKEWED.tensor.clone()
    garbage[6:], ids[6], ids[7] = math.nan, -1, EXPERTS + 100
    router, weights = oea.router_of(server.model.topk[0].topk_config), torch.ones(8, 4)
    got = oea.reroute(router, garbage, None, weights, ids, k0=1, real=torch.arange(8) < 6)
    alone = oea.reroute(router, garbage[:6], None, weights[:6], ids[:6], k0=1)
    assert same(alone, (got[0][:6], got[1][:6]))


def test_without_ties_it_is_the_identity_of_the_paper(standing: rig.Standing) -> None:
    oea = routing(standing)
    generator = torch.Generator().manual_seed(0)
    for k0 in (1, 2, 3):
        logits = torch.randn(16, EXPERTS, generator=generator)
        case = Case(Spec(), logits.tolist(), None, 16, k0)
        _, (_, ids) = both(standing, case)
        active = torch.zeros(EXPERTS, dtype=torch.bool)
        active[logits.topk(k0).indices.flatten()] = True
        wanted = torch.where(active, logits, -math.inf).topk(4).indices
        assert torch.equal(ids.sort().values, wanted.sort().values)
        oea.uninstall()


def test_a_token_for_which_the_union_is_too_small_keeps_its_own_and_the_others_do_not(standing: rig.Standing) -> None:
    first, second, third = ([0.0] * EXPERTS for _ in range(3))
    for row, best_four in ((first, (0, 1, 2, 3)), (second, (0, 2, 4, 6)), (third, (8, 9, 0, 1))):
        for e, value in zip(best_four, (4.0, 3.0, 2.0, 1.0), strict=True):
            row[e] = value
    vanilla, oea = both(standing, Case(Spec(), [first, second], None, 2, 2))
    assert same(vanilla, oea), "three experts are active, and a token needs four"
    one_group = Spec(grouped=True, groups=4, topk_group=1)
    vanilla, oea = both(standing, Case(one_group, [first, second, third], None, 3, 2))
    assert same(vanilla, oea), "five are active, but three in the first group and two in the second"
    _, (weights, ids) = both(standing, Case(Spec(), [first, second, third], None, 3, 3))
    assert [sorted(row) for row in ids.tolist()] == [[0, 1, 2, 4], [0, 1, 2, 4], [0, 1, 8, 9]]
    assert weights.sum(dim=-1).tolist() == pytest.approx([1.0] * 3)


def test_of_equal_experts_the_lowest_ids_are_taken(standing: rig.Standing) -> None:
    flat = [0.0] * EXPERTS
    first, second = list(flat), list(flat)
    first[30] = first[31] = first[29] = first[28] = 5.0
    second[12] = second[11] = second[10] = second[9] = 5.0
    _, (_, ids) = both(standing, Case(Spec(), [first, second], None, 2, 2))
    assert [sorted(row) for row in ids.tolist()] == [[9, 10, 28, 29], [9, 10, 28, 29]]


def test_the_bias_orders_and_does_not_weigh(standing: rig.Standing) -> None:
    low, bias = [-4.0] * EXPERTS, [0.0] * EXPERTS
    mine, other = list(low), list(low)
    mine[0] = mine[1] = 3.0
    mine[5], mine[6] = -1.0, -0.5  # 6 scores higher, 5 is preferred
    other[5] = other[6] = 3.0
    bias[5] = 0.3
    spec = Spec(top_k=3, scoring="sigmoid", biased=True)
    vanilla, (weights, ids) = both(standing, Case(spec, [mine, other], bias, 2, 2))
    assert sorted(vanilla[1][0].tolist()) == [0, 1, 5]
    assert sorted(ids[0].tolist()) == [0, 1, 5]
    scores = {e: 1 / (1 + math.exp(-mine[e])) for e in (0, 1, 5)}
    wanted = [scores[e] / sum(scores.values()) for e in ids[0].tolist()]
    assert weights[0].tolist() == pytest.approx(wanted, rel=1e-5)


@pytest.fixture
def as_on_a_gpu(standing: rig.Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows the routing since 0.5.16 depends on a module's flag for CUDA; its mask is a kernel."""
    topk: Any = standing.module("sglang.srt.layers.moe.topk")
    real = getattr(topk, "_post_process_topk_ids", None)
    if real is None:
        return

    def mask(ids: torch.Tensor, count: torch.Tensor) -> None:
        ids[torch.arange(len(ids)) >= count] = -1

    def post_process(**given: Any) -> Any:
        with monkeypatch.context() as on_cuda:
            on_cuda.setattr(topk, "_is_cuda", True)
            on_cuda.setattr(topk, "mask_topk_ids", mask)
            return real(**given)

    monkeypatch.setattr(topk, "_post_process_topk_ids", post_process)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_logical_ids_are_chosen_before_eplb_maps_them(standing: rig.Standing) -> None:
    routing(standing)
    info_type = standing.module("sglang.srt.eplb.expert_location_dispatch").ExpertLocationDispatchInfo
    physical = torch.arange(EXPERTS).flip(0).to(torch.int32) + 100
    info = info_type("static", physical, physical[:, None], torch.ones(EXPERTS, dtype=torch.int32), 200)
    case = Case(SPECS["GLM-5"], torch.randn(6, EXPERTS).tolist(), [0.0] * EXPERTS, 6, 2)
    server = serve(standing, case)
    ((weights, ids),) = server.run(case.tensor)
    ((mapped_weights, mapped),) = server.run(case.tensor, expert_location_dispatch_info=info)
    assert torch.equal(mapped.long(), physical[ids.long()].long())
    assert torch.equal(weights, mapped_weights)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_models_own_row_count_wins_and_its_padding_is_masked_as_upstream_masks_it(standing: rig.Standing) -> None:
    case = Case(SPECS["GLM-5"], torch.randn(6, EXPERTS).tolist(), [0.0] * EXPERTS, 4, 2)
    server = serve(standing, case)
    ((_, ids),) = server.run(case.tensor, "DECODE", 6, num_token_non_padded=torch.tensor(4, dtype=torch.int32))
    ((_, alone),) = server.run(case.tensor[:4])
    assert torch.equal(ids[:4], alone)
    assert (ids[4:] == -1).all()


def test_the_recorders_see_what_is_routed(standing: rig.Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(SPECS["GLM-5"], torch.randn(6, EXPERTS).tolist(), [0.0] * EXPERTS, 6, 2)
    server, seen, topk = serve(standing, case), mock.MagicMock(), standing.module("sglang.srt.layers.moe.topk")
    monkeypatch.setattr(topk, "get_global_expert_distribution_recorder", lambda: seen)
    monkeypatch.setattr(topk, "get_global_experts_capturer", lambda: seen)
    ((_, ids),) = server.run(case.tensor)
    ((_, vanilla),) = server.run(case.tensor, "EXTEND")
    assert not torch.equal(ids, vanilla)
    calls = (*seen.on_select_experts.mock_calls, *seen.capture.mock_calls)
    told = [next(call.kwargs[k] for k in ("topk_ids", "topk_indices") if k in call.kwargs) for call in calls]
    assert all(map(torch.equal, told, (ids, vanilla, ids, vanilla)))


# ---- when ----


SKEWED = Case(Spec(), torch.randn(8, EXPERTS, generator=torch.Generator().manual_seed(3)).tolist(), None, 8, 1)


def test_only_decode_and_speculative_verify_are_rerouted(standing: rig.Standing) -> None:
    server = serve(standing, SKEWED)
    plain = Server(standing, Model(standing, (SKEWED.spec, None)))
    (vanilla,) = plain.run(SKEWED.tensor)
    modes = [mode.name for mode in standing.module("sglang.srt.model_executor.forward_batch_info").ForwardMode]
    assert {"EXTEND", "MIXED", "IDLE"} < set(modes)
    for mode in modes:
        (got,) = server.run(SKEWED.tensor, mode)
        assert same(vanilla, got) is (mode not in ("DECODE", "TARGET_VERIFY")), mode
        (after,) = plain.run(SKEWED.tensor)
        assert same(vanilla, after), "outside the model's forward nothing is rerouted"


class _Bypassing(Model):
    """A model that routes its last layer by a kernel of its own."""

    def forward(self, input_ids: torch.Tensor, positions: Any, forward_batch: Any, **kwargs: Any) -> list[Any]:
        layers, self.topk = self.topk, self.topk[:-1]
        try:
            return super().forward(input_ids, positions, forward_batch, **kwargs)
        finally:
            self.topk = layers


def test_a_layer_whose_decode_batches_pass_select_experts_by_is_refused(standing: rig.Standing) -> None:
    oea = routing(standing)
    model = _Bypassing(standing, (SKEWED.spec, None), (SKEWED.spec, None))
    oea.install(model, asked(1), torch.device("cpu"))
    server = Server(standing, model)
    assert len(server.run(SKEWED.tensor, "EXTEND")) == 1
    with pytest.raises(RuntimeError, match=r"does nothing in 1 of 2 MoE layers, among them topk\.1"):
        server.run(SKEWED.tensor)
    with pytest.raises(RuntimeError, match="does nothing"):
        server.run(SKEWED.tensor, "TARGET_VERIFY")
    assert oea.decode_batch() is None


def test_after_a_forward_that_raised_nothing_is_rerouted(standing: rig.Standing) -> None:
    oea, server = routing(standing), serve(standing, SKEWED)
    with pytest.raises(RuntimeError, match="out of range"):
        server.run(torch.zeros(3, 2))  # two experts, of which four are wanted
    assert oea.decode_batch() is None


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lists what torch does."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def operations(server: Server, mode: str) -> list[str]:
    seen = _Operations()
    with seen:
        server.run(SKEWED.tensor, mode)
    return seen.names


def test_where_it_is_off_or_does_not_apply_no_operation_is_added(standing: rig.Standing) -> None:
    routing(standing)
    plain = Server(standing, Model(standing, (SKEWED.spec, None)))
    off = operations(plain, "DECODE")
    assert operations(plain, "EXTEND") == off
    on = serve(standing, SKEWED)
    assert operations(on, "EXTEND") == off
    assert len(operations(on, "DECODE")) > len(off)


def test_every_rank_gets_the_same_union_whatever_the_order_of_its_rows(standing: rig.Standing) -> None:
    logits = torch.tensor([LOGITS])[0][torch.randint(0, 5, (8, EXPERTS), generator=torch.Generator().manual_seed(5))]
    case = Case(Spec(), logits.tolist(), None, 8, 2)
    server, order = serve(standing, case), torch.randperm(8)
    ((weights, ids),) = server.run(logits)
    ((other_weights, other),) = server.run(logits[order])
    assert torch.equal(ids[order], other)
    assert torch.equal(weights[order], other_weights)


# ---- no host sync ----


@EVERY_SPEC
def test_it_traces_with_symbolic_shapes_and_reads_nothing_back(standing: rig.Standing, spec: Spec) -> None:
    oea = routing(standing)
    bias = torch.linspace(0, 0.1, EXPERTS) if spec.biased else None
    plain = Server(standing, Model(standing, (spec, None if bias is None else bias.tolist())))
    router = oea.router_of(plain.model.topk[0].topk_config)

    def step(logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, count: torch.Tensor) -> Any:
        real = oea.real_rows(logits, count)
        new = oea.reroute(router, logits, bias, weights, ids, k0=2, min_tokens=4, real=real, reduce=lambda x: x * 2)
        return (*new, oea.count_unique(router, new[1], real, EXPERTS))

    def given_rows(rows: int) -> tuple[torch.Tensor, ...]:
        logits = torch.randn(rows, EXPERTS, generator=torch.Generator().manual_seed(rows))
        return (logits, *plain.run(logits)[0], torch.tensor([rows - 1], dtype=torch.int32))

    traced = make_fx(step, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*given_rows(7))
    read_back = [n.name for n in traced.graph.nodes if "scalar_dense" in str(n.target) or "nonzero" in str(n.target)]
    assert not read_back
    for rows in (3, 7, 11):
        arguments = given_rows(rows)
        for got, wanted in zip(traced(*arguments), step(*arguments), strict=True):
            assert torch.equal(got, wanted)


@EVERY_SPEC
def test_a_whole_decode_step_runs_on_tensors_that_have_no_data(standing: rig.Standing, spec: Spec) -> None:
    case = Case(spec, torch.zeros(5, EXPERTS).tolist(), [0.0] * EXPERTS if spec.biased else None, 5, 2)
    with FakeTensorMode(allow_non_fake_inputs=True):
        server = serve(standing, case, enable_metrics=True)
        ((weights, ids),) = server.run(torch.empty(5, EXPERTS), "DECODE", 4)
    assert weights.shape == ids.shape == (5, spec.top_k + spec.shared)


def test_it_compiles_into_one_graph(standing: rig.Standing) -> None:
    oea = routing(standing)
    plain = Server(standing, Model(standing, (SPECS["groups and bias"], [0.0] * EXPERTS)))
    router = oea.router_of(plain.model.topk[0].topk_config)
    logits = torch.randn(6, EXPERTS, generator=torch.Generator().manual_seed(0))
    arguments = (logits, torch.zeros(EXPERTS), *plain.run(logits)[0])
    with torch.compiler.set_stance("default"):
        compiled: Any = torch.compile(oea.reroute, fullgraph=True, dynamic=True, backend="eager")
        got = compiled(router, *arguments, k0=2)
    assert all(torch.equal(a, b) for a, b in zip(got, oea.reroute(router, *arguments, k0=2), strict=True))


# ---- ranks ----


class _Group:
    """A tensor-parallel group of which one rank is here: the others' messages are known."""

    def __init__(self) -> None:
        self.sent: list[torch.Tensor] = []
        self.others: list[torch.Tensor] = []

    def all_reduce(self, message: torch.Tensor) -> torch.Tensor:
        self.sent.append(message.clone())
        return message + sum(self.others, torch.zeros_like(message))


@pytest.fixture
def group(standing: rig.Standing, monkeypatch: pytest.MonkeyPatch) -> _Group:
    there = _Group()
    monkeypatch.setattr(standing.module("sglang.srt.distributed"), "get_tp_group", lambda: there)
    return there


def test_the_global_union_is_that_of_one_batch_with_every_ranks_tokens(standing: rig.Standing, group: _Group) -> None:
    routing(standing)
    logits = torch.randn(8, EXPERTS, generator=torch.Generator().manual_seed(1))
    case = Case(Spec(), logits.tolist(), None, 8, 1, min_tokens=8)
    (whole,) = serve(standing, case).run(logits)
    server = serve(standing, case, oea_global_union=True)
    server.run(logits[:5])
    first = group.sent.pop()
    server.run(logits[5:])
    second = group.sent.pop()
    group.others = [second]
    (a,) = server.run(logits[:5])
    group.others = [first]
    (b,) = server.run(logits[5:])
    assert same(whole, (torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]])))


class _WithoutTokens(Model):
    """A rank that no token reached: upstream's models then ask each TopK for an empty output."""

    def forward(self, input_ids: torch.Tensor, positions: Any, forward_batch: Any, **kwargs: Any) -> list[Any]:
        del positions, forward_batch, kwargs
        layers: list[Any] = list(self.topk)
        return [layer.empty_topk_output(input_ids.device) for layer in layers]


def test_every_rank_sends_as_many_messages_of_one_size_whether_it_has_tokens_or_not(
    standing: rig.Standing, group: _Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    oea, topk = routing(standing), standing.module("sglang.srt.layers.moe.topk")
    tensor_parallel = SimpleNamespace(tp_group=None)
    monkeypatch.setattr(topk, "get_tp_group", lambda: None, raising=False)
    monkeypatch.setattr(topk, "get_parallel", lambda: tensor_parallel, raising=False)
    monkeypatch.setattr(topk, "is_allocation_symmetric", lambda: False)
    monkeypatch.setattr(topk, "use_symmetric_memory", lambda *_, **__: nullcontext())

    def sent(mode: str, rows: int, **others: Any) -> list[torch.Size]:
        group.sent.clear()
        model = (Model if rows else _WithoutTokens)(standing, (SPECS["softmax"], None), (SPECS["sigmoid"], None))
        oea.install(model, asked(1, oea_global_union=True), torch.device("cpu"))
        model.forward(torch.zeros(rows, EXPERTS), None, batch(standing, mode, torch.tensor(rows), **others))
        return [message.shape for message in group.sent]

    decoding = sent("DECODE", 3)
    assert len(decoding) == 2, "one a layer"
    assert decoding == sent("TARGET_VERIFY", 1) == sent("IDLE", 0) == sent("IDLE", 2)
    assert not sent("EXTEND", 3, is_extend_in_batch=True)
    assert not sent("DECODE", 3, is_extend_in_batch=True), "where one rank prefills, none waits for it"
    assert not sent("IDLE", 0, is_extend_in_batch=True)


# ---- the ways in ----


class _Loaded(Exception):
    """Raised where 0.5.9's start goes on to what needs a GPU; later ones go on to what can be stood in for."""


Load = Callable[..., None]
Resolve = Callable[..., rig.Resolution]


@pytest.fixture
def load(standing: rig.Standing, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Upstream's own ModelRunner.initialize with a model, until the model is loaded."""
    module = standing.module("sglang.srt.model_executor.model_runner")
    for name in (
        "compute_initial_expert_location_metadata",
        "set_global_expert_location_metadata",
        "get_global_expert_location_metadata",
        "set_global_expert_distribution_recorder",
        "ExpertDistributionRecorder",
        "ExpertLocationUpdater",
        "TorchMemorySaverAdapter",
        "create_sampler",
        "prepare_moe_topk",
        "resolve_layer_indices",
        "adjust_hybrid_swa_layer_ids",
        "disable_routed_experts_capture_for_draft",
        "install_megakernel",
    ):
        monkeypatch.setattr(module, name, mock.MagicMock(), raising=False)

    def initialize(model: Model, resolution: rig.Resolution, draft: bool = False) -> None:
        args = resolution.record
        runner = mock.MagicMock(server_args=args, is_draft_worker=draft, model=model, device="cpu", tp_rank=1)
        with rig.published(standing, resolution):
            if len(inspect.signature(module.ModelRunner.initialize).parameters) == 1:
                module.ModelRunner.initialize(runner)
                return
            args.remote_instance_weight_loader_use_transfer_engine = mock.Mock(side_effect=[False, _Loaded()])
            with pytest.raises(_Loaded):
                module.ModelRunner.initialize(runner, 0)

    return initialize


def test_asked_for_in_the_environment_a_decode_batch_uses_fewer_experts(
    standing: rig.Standing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: Load
) -> None:
    monkeypatch.setenv("SGLANG_OEA_K0", "1")
    folder = models.checkpoint(tmp_path, models.QWEN3_MOE, QuantForm.NONE)
    with rig.present(cards.RTX_PRO_6000_SERVER):
        resolution = rig.resolve(standing, folder, tp_size=8)
    server = Server(standing, Model(standing, (SKEWED.spec, None)))
    ((_, vanilla),) = server.run(SKEWED.tensor)
    load(server.model, resolution)
    ((_, oea),) = server.run(SKEWED.tensor)
    assert len(set(oea.flatten().tolist())) < len(set(vanilla.flatten().tolist())), (
        "each token still uses experts that no other token needs"
    )


def test_the_model_runner_turns_it_on_for_the_target_and_not_for_a_draft(
    standing: rig.Standing, load: Load, resolve: Resolve
) -> None:
    routing(standing)

    def rerouted(draft: bool, k0: int | None) -> bool:
        server = Server(standing, Model(standing, (SKEWED.spec, None)))
        (vanilla,) = server.run(SKEWED.tensor)
        load(server.model, resolve(oea_k0=k0), draft)
        (got,) = server.run(SKEWED.tensor)
        return not same(vanilla, got)

    assert (rerouted(False, 1), rerouted(True, 1), rerouted(False, None)) == (True, False, False)


def test_a_model_it_cannot_honour_is_refused_when_it_is_loaded(standing: rig.Standing) -> None:
    oea = routing(standing)
    formats = standing.module("sglang.srt.layers.moe.topk").TopKOutputFormat
    bias = torch.zeros(EXPERTS)
    glm = SPECS["GLM-5"].arguments(bias)
    scaled = {"scoring_func": "sigmoid", "renormalize": False, "routed_scaling_factor": 2.5}
    kernels_disagree = (
        (glm | {"renormalize": False}, "renormalization"),
        (scaled | {"apply_routed_scaling_factor_on_output": True}, "does not renormalize"),
    )
    for wrong, why in (
        *(() if FREE_SCALING else kernels_disagree),
        ({"custom_routing_function": lambda **_: None}, "custom_routing_function"),
        ({"output_format": formats.BYPASSED}, "BYPASSED"),
        ({"output_format": formats.TRITON_KERNEL}, "TRITON_KERNEL"),
        ({"correction_bias": bias}, "softmax scores with a correction bias"),
        ({"scoring_func": "tanh"}, "scoring function"),
        ({"num_fused_shared_experts": 2}, "shared experts"),
        ({"num_fused_shared_experts": 1, "routed_scaling_factor": 2.5}, "shared experts"),
        ({"apply_routed_scaling_factor_on_output": True}, "routed_scaling_factor"),
    ):
        model = Model(standing, (Spec(), None), (Spec(), None))
        model.topk[1] = top_k(standing, **{"top_k": 4, **wrong})
        with pytest.raises(ValueError, match=f"topk.1.*{why}"):
            oea.install(model, asked(1), torch.device("cpu"))
    with pytest.raises(ValueError, match=r"k0 5 .*4 experts"):
        oea.install(Model(standing, (Spec(), None)), asked(5), torch.device("cpu"))
    with pytest.raises(ValueError, match="would do nothing"):
        oea.install(torch.nn.Linear(2, 2), asked(1), torch.device("cpu"))


BYPASSING = ["TRITON_KERNELS", "FLASHINFER_TRTLLM", "FLASHINFER_MXFP4"]


@pytest.mark.parametrize("runner", BYPASSING + (["EXPERIMENTAL_SGL_TRTLLM"] if RELEASE > (0, 5, 9) else []))
def test_a_runner_that_was_chosen_after_the_arguments_is_refused_when_the_model_is_loaded(
    standing: rig.Standing, monkeypatch: pytest.MonkeyPatch, runner: str
) -> None:
    oea = routing(standing)
    backend = standing.module("sglang.srt.layers.moe.utils").MoeRunnerBackend[runner]
    moe: Any = standing.module("sglang.srt.layers.moe")
    monkeypatch.setattr(moe, "get_moe_runner_backend", lambda: backend, raising=False)
    passing, standard = Model(standing, (Spec(), None)), standing.module("sglang.srt.layers.moe.topk").TopKOutputFormat
    config: Any = passing.topk[0].topk_config
    if hasattr(config, "runner_backend"):
        config.runner_backend = backend
    with pytest.raises(ValueError, match=f"{backend.value} routes by itself"):
        oea.install(passing, asked(1), torch.device("cpu"))
    config.output_format = standard.STANDARD  # such a layer passes select_experts whatever the runner
    oea.install(passing, asked(1), torch.device("cpu"))


@pytest.mark.parametrize(("renormalize", "refused"), [(True, False), (False, RELEASE > (0, 5, 9))])
def test_a_runner_that_weighs_by_logits_is_refused(
    standing: rig.Standing, monkeypatch: pytest.MonkeyPatch, renormalize: bool, refused: bool
) -> None:
    """Since 0.5.16; 0.5.9's MoE runners all take the router's own scores."""
    oea = routing(standing)
    backends: Any = standing.module("sglang.srt.layers.moe.utils").MoeRunnerBackend
    backend = backends["FLASHINFER_TRTLLM_ROUTED" if RELEASE > (0, 5, 9) else "TRITON"]
    moe: Any = standing.module("sglang.srt.layers.moe")
    monkeypatch.setattr(moe, "get_moe_runner_backend", lambda: backend, raising=False)
    model = Model(standing, (Spec(renormalize=renormalize), None))
    config: Any = model.topk[0].topk_config
    if hasattr(config, "runner_backend"):
        config.runner_backend = backend
    with pytest.raises(ValueError, match="by their logits") if refused else nullcontext():
        oea.install(model, asked(1), torch.device("cpu"))


def test_a_layer_that_has_experts_and_no_topk_is_refused(standing: rig.Standing) -> None:
    oea = routing(standing)
    fused_moe = standing.module("sglang.srt.layers.moe.fused_moe_triton.layer").FusedMoE
    model = Model(standing, (Spec(), None))
    for name in ("experts", "more_experts"):
        experts = fused_moe.__new__(fused_moe)
        torch.nn.Module.__init__(experts)
        model.add_module(name, experts)
    with pytest.raises(ValueError, match="2 MoE layers, and 1 of them"):
        oea.install(model, asked(1), torch.device("cpu"))


# ---- the row count without expert parallelism ----


def _filled_0_5_9(standing: rig.Standing, now: Any, flag: bool, rows: int) -> torch.Tensor | None:
    """The row count in a graph's buffers after they took a batch, in 0.5.9."""
    sizes = {"max_bs": 8, "max_num_token": 8, "hidden_size": 4, "vocab_size": 4, "dp_size": 1, "pp_size": 1}
    buffers = standing.module("sglang.srt.model_executor.input_buffers").GraphInputBuffers.create(
        device=torch.device("cpu"),
        **sizes,
        dtype=torch.float32,
        is_encoder_decoder=False,
        require_mlp_tp_gather=False,
        seq_len_fill_value=1,
        encoder_len_fill_value=0,
        num_tokens_per_bs=1,
        cache_loc_dtype=torch.int64,
        enable_mamba_track=False,
    )
    buffers.num_token_non_padded[...] = 8  # as a capture leaves it
    buffers.populate_from_forward_batch(
        forward_batch=now,
        raw_bs=rows,
        raw_num_token=rows,
        bs=8,
        seq_len_fill_value=1,
        require_gathered_buffer=False,
        num_tokens_per_bs=1,
        nsa_enable_prefill_cp=False,
        enable_num_token_non_padded_flag=flag,
    )
    return buffers.num_token_non_padded if flag else None


def _filled(standing: rig.Standing, now: Any, flag: bool, rows: int) -> torch.Tensor | None:
    """The same in later releases, where a batch is copied slot by slot."""
    if RELEASE == (0, 5, 9):
        return _filled_0_5_9(standing, now, flag, rows)
    registry = standing.module("sglang.srt.model_executor.cuda_graph_buffer_registry").build_decode_registry(
        device=torch.device("cpu"),
        max_bs=8,
        max_num_token=8,
        seq_len_fill_value=1,
        cache_loc_dtype=torch.int64,
        enable_num_token_non_padded=flag,
        share_pool=False,
    )
    if not registry.has_slot("num_token_non_padded"):
        return None
    slot = registry.get_slot("num_token_non_padded")
    slot.buffer.fill_(8)  # as a capture leaves it
    registry.fill_from(now, raw_bs=rows, padded_bs=8, raw_num_tokens=rows, padded_num_tokens=8)
    return slot.buffer  # type: ignore[no-any-return]


@pytest.mark.parametrize(("k0", "there"), [(None, False), (2, True)])
def test_without_ep_a_graphs_buffer_gets_the_row_count(
    standing: rig.Standing, monkeypatch: pytest.MonkeyPatch, k0: int | None, there: bool
) -> None:
    oea: Any = routing(standing)
    info = standing.module("sglang.srt.model_executor.forward_batch_info")
    if k0:
        oea.install(Model(standing, (Spec(), None)), asked(k0), torch.device("cpu"))
    if RELEASE < (0, 5, 23):
        monkeypatch.setattr(info, "get_moe_expert_parallel_world_size", lambda: 1, raising=False)
        monkeypatch.setattr(info, "get_parallel", lambda: SimpleNamespace(moe_ep_size=1), raising=False)
    ask = info.enable_num_token_non_padded
    flag = ask(*([SimpleNamespace(oea_k0=k0)] if inspect.signature(ask).parameters else []))
    assert flag is there
    rows = torch.zeros(5, dtype=torch.int64)
    scopes = {f.name for f in fields(info.ForwardBatch)} & {"num_token_non_padded", "global_num_token_non_padded"}
    count = torch.tensor(5, dtype=torch.int32) if flag else None
    now = replace(
        batch(standing, "DECODE"),
        **dict.fromkeys(("input_ids", "req_pool_indices", "seq_lens", "out_cache_loc", "positions"), rows),
        **dict.fromkeys(scopes, count),
    )
    filled = _filled(standing, now, flag, 5)
    assert (None if filled is None else filled.tolist()) == ([5] if there else None)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_without_ep_a_padded_row_keeps_the_experts_that_upstream_gives_it(standing: rig.Standing) -> None:
    """That OEA knows which rows are padding changes nothing for the kernels behind it."""
    server = serve(standing, replace(SKEWED, min_tokens=9))
    (vanilla,) = Server(standing, Model(standing, (SKEWED.spec, None))).run(SKEWED.tensor)
    for mode in ("EXTEND", "DECODE"):
        (counted,) = server.run(SKEWED.tensor, mode, 5)
        assert same(vanilla, counted), mode


if RELEASE >= (0, 5, 23):

    def test_where_padding_is_not_at_the_end_a_decode_batch_is_refused(standing: rig.Standing) -> None:
        """A sharded sequence is whole again where a MoE layer sees it; a graph's batch then has no count of it."""
        server = serve(standing, SKEWED)
        now = batch(standing, "DECODE", torch.tensor([5], dtype=torch.int32), attn_tp_sequence_sharded=True)
        with running(standing, now), pytest.raises(RuntimeError, match="are padding"):
            server.model.forward(SKEWED.tensor, None, now)

    def test_a_bias_of_each_token_is_refused(standing: rig.Standing) -> None:
        server = serve(standing, identical(SPECS["sigmoid and bias"], 1))
        bias = torch.zeros(8, EXPERTS)
        assert len(server.run(SKEWED.tensor, "EXTEND", dynamic_expert_bias=bias)) == 1
        with pytest.raises(RuntimeError, match="bias of each token"):
            server.run(SKEWED.tensor, dynamic_expert_bias=bias)


# ---- server arguments ----


@pytest.fixture
def resolve(standing: rig.Standing, tmp_path: Path) -> Resolve:
    """Upstream's outcome at TP8 on a card, for Qwen3-MoE unless another model is named."""

    def ask(
        model: models.Model = models.QWEN3_MOE, card: rig.Card = cards.RTX_PRO_6000_SERVER, **given: Any
    ) -> rig.Resolution:
        server_args = standing.module("sglang.srt.server_args").ServerArgs
        assert hasattr(server_args, "oea_k0"), "this SGLang has no --oea-k0"
        folder = models.checkpoint(tmp_path / model.name, model, QuantForm.NONE)
        with rig.present(card):
            return rig.resolve(standing, folder, **{"tp_size": 8, **given})

    return ask


@pytest.mark.parametrize(
    "card", [cards.RTX_PRO_6000_SERVER, cards.DGX_SPARK, cards.B200, cards.H200], ids=lambda c: c.name
)
@pytest.mark.parametrize("model", [models.QWEN3_MOE, models.GLM_5], ids=lambda m: m.name)
def test_it_is_off_unless_asked_for_and_on_when_asked(resolve: Resolve, card: rig.Card, model: models.Model) -> None:
    off, on = resolve(model, card), resolve(model, card, oea_k0=5, moe_runner_backend="triton")
    assert (off.args.oea_k0, off.args.oea_min_tokens, off.args.oea_global_union) == (None, None, False)
    assert (on.args.oea_k0, on.args.oea_min_tokens, on.args.oea_global_union) == (5, 4, False)


A2A = {"moe_a2a_backend": "deepep"}
REFUSED_SINCE: dict[tuple[int, ...], list[tuple[dict[str, Any], str]]] = {
    (0, 5, 9): [
        ({"dllm_algorithm": "LowConfidence"}, "dllm"),
        ({"enable_piecewise_cuda_graph": True}, "piecewise"),
    ],
    (0, 5, 16): [
        ({"cuda_graph_backend_prefill": "tc_piecewise"}, "piecewise"),
        ({"cuda_graph_backend_decode": "tc_piecewise"}, "piecewise"),
        ({"variable": "SGLANG_EXPERIMENTAL_LORA_OPTI=1"}, "LORA_OPTI"),
        ({"variable": "SGLANG_RAGGED_VERIFY_MODE=compact"}, "RAGGED_VERIFY"),
    ],
    (0, 5, 23): [
        ({"attn_dp_size": 8}, "dp-attention"),
        ({"variable": "SGLANG_EXPERIMENTAL_LORA_OPTI=1"}, "LORA_OPTI"),
        ({"variable": "SGLANG_RAGGED_VERIFY_MODE=compact"}, "RAGGED_VERIFY"),
    ],
}
"""What a release can be asked that others cannot; "variable" is one of its environment."""


@pytest.mark.parametrize(
    ("given_args", "words"),
    [
        ({"moe_runner_backend": "triton_kernel"}, "triton_kernel"),
        # On SM12x the series refuses these two for themselves.
        ({"moe_runner_backend": "flashinfer_mxfp4", "card": cards.B200}, "flashinfer_mxfp4"),
        (
            {"moe_runner_backend": "flashinfer_trtllm", "quantization": "modelopt_fp4", "card": cards.B200},
            "flashinfer_trtllm",
        ),
        ({"enable_deterministic_inference": True}, "deterministic"),
        ({"rl_on_policy_target": "fsdp"}, "deterministic"),
        ({"disaggregation_mode": "prefill"}, "prefill"),
        ({"is_embedding": True}, "is-embedding"),
        ({"enable_torch_compile": True}, "torch-compile"),
        ({"enable_dp_attention": True, "dp_size": 8}, "dp-attention"),
        ({"moe_dense_tp_size": 1}, "moe-dense-tp-size"),
        ({"enable_two_batch_overlap": True, **A2A}, "two-batch-overlap"),
        ({"enable_pdmux": True}, "pdmux"),
        ({"oea_global_union": True}, "whole batch"),
        ({"device": "cpu"}, "device cpu"),
        ({"oea_k0": 0}, "oea-k0 is 0"),
        ({"oea_k0": 9}, "which is 8"),
        ({"oea_min_tokens": 0}, "oea-min-tokens is 0"),
        ({"oea_k0": None, "oea_min_tokens": 4}, "without --oea-k0"),
        ({"oea_k0": None, "oea_global_union": True}, "without --oea-k0"),
        *REFUSED_SINCE[max(since for since in REFUSED_SINCE if since <= RELEASE)],
    ],
    ids=str,
)
def test_what_it_cannot_work_with_is_refused_at_argument_time(
    resolve: Resolve, monkeypatch: pytest.MonkeyPatch, given_args: dict[str, Any], words: str
) -> None:
    given = dict(given_args)
    if "variable" in given:
        monkeypatch.setenv(*given.pop("variable").split("="))
    outcome = resolve(**{"oea_k0": 5, **given})
    assert outcome.refusal is not None
    assert words in str(outcome.refusal)
    assert "oea" in str(outcome.refusal)


def test_the_routed_experts_may_be_returned(resolve: Resolve) -> None:
    args = resolve(oea_k0=5, enable_return_routed_experts=True).args
    assert (args.oea_k0, args.enable_return_routed_experts) == (5, True)


def test_with_dp_attention_and_an_all_to_all_backend_the_union_may_be_global(resolve: Resolve) -> None:
    both_ways = {"enable_dp_attention": True, "dp_size": 8, "oea_k0": 5, **A2A}
    assert resolve(**both_ways).args.oea_global_union is False
    assert resolve(**both_ways, oea_global_union=True).args.oea_global_union is True


def test_the_environment_stands_in_for_the_arguments_and_is_read_strictly(
    resolve: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_OEA_K0", "3")
    monkeypatch.setenv("SGLANG_OEA_MIN_TOKENS", "6")
    args = resolve().args
    assert (args.oea_k0, args.oea_min_tokens) == (3, 6)
    named = resolve(oea_k0=5, oea_min_tokens=2).args
    assert (named.oea_k0, named.oea_min_tokens) == (5, 2)
    monkeypatch.setenv("SGLANG_OEA_K0", "three")
    assert "SGLANG_OEA_K0" in str(resolve().refusal)
    monkeypatch.delenv("SGLANG_OEA_K0")
    assert "without --oea-k0" in str(resolve().refusal)


def test_the_command_line_knows_the_options(standing: rig.Standing, resolve: Resolve) -> None:
    del resolve
    server_args = standing.module("sglang.srt.server_args").ServerArgs
    assert hasattr(server_args, "oea_k0"), "this SGLang has no --oea-k0"
    parser = argparse.ArgumentParser()
    with rig.present(cards.RTX_PRO_6000_SERVER):
        server_args.add_cli_args(parser)
    line = ["--model", "m", "--oea-k0", "5", "--oea-min-tokens", "8", "--oea-global-union"]
    told = parser.parse_args(line)
    assert (told.oea_k0, told.oea_min_tokens, told.oea_global_union) == (5, 8, True)


# ---- counters ----


class _Metric:
    """A prometheus metric: remembers its values by label."""

    made: dict[str, _Metric] = {}  # noqa: RUF012

    def __init__(self, name: str, documentation: str = "", labelnames: Any = (), **_: Any) -> None:
        del documentation
        assert name not in self.made, f"{name} is defined twice"
        self.labelnames, self.values = list(labelnames), dict[tuple[str, ...], float]()
        self.key: tuple[str, ...] = ()
        self.made[name] = self

    def labels(self, **labels: Any) -> _Metric:
        assert list(labels) == self.labelnames, "prometheus wants exactly the labels of the metric"
        bound = object.__new__(_Metric)
        bound.values, bound.key = self.values, tuple(str(v) for v in labels.values())
        return bound

    def inc(self, amount: float = 1) -> None:
        assert amount >= 0
        self.values[self.key] = self.values.get(self.key, 0) + amount

    def set(self, value: float) -> None:
        self.values[self.key] = value

    observe = set


@pytest.fixture
def prometheus(monkeypatch: pytest.MonkeyPatch) -> dict[str, _Metric]:
    """A recorder in the place of prometheus_client, which this environment has not; what it made, by name."""
    _Metric.made.clear()
    names = ("Counter", "Gauge", "Histogram", "Summary")
    monkeypatch.setitem(sys.modules, "prometheus_client", SimpleNamespace(**dict.fromkeys(names, _Metric)))
    return _Metric.made


def collector(standing: rig.Standing) -> tuple[Any, Any]:
    """Upstream's own collector, and stats for it to log."""
    collectors = ("sglang.srt.metrics.collector", "sglang.srt.observability.metrics_collector")
    module = standing.module(collectors[RELEASE > (0, 5, 9)])
    labels = {"model_name": "m", "moe_ep_rank": 0}
    args = standing.module("sglang.srt.server_args").ServerArgs(model_path="dummy")
    return module.SchedulerMetricsCollector(labels, server_args=args), module.SchedulerStats()


def test_upstreams_collector_publishes_unique_experts_per_layer_with_and_without(
    standing: rig.Standing, prometheus: dict[str, _Metric]
) -> None:
    routing(standing)
    model = Model(standing, (Spec(), None), (SPECS["sigmoid"], None))
    routing(standing).install(model, asked(1, enable_metrics=True), torch.device("cpu"))
    server = Server(standing, model)
    metrics, stats = collector(standing)
    server.run(SKEWED.tensor)  # as graph capture and warm-up do
    metrics.log_stats(stats)
    real, steps = SKEWED.tensor[:6], 3
    for _ in range(steps):
        server.run(SKEWED.tensor, "DECODE", 6)
        server.run(SKEWED.tensor, "EXTEND")
        server.run(SKEWED.tensor, "DECODE", 0)  # an idle rank's graph is no step
    metrics.log_stats(stats)
    metrics.log_stats(stats)
    vanilla = len(set(real.topk(4).indices.flatten().tolist()))
    active = len(set(real.topk(1).indices.flatten().tolist()))
    assert prometheus["sglang:oea_layer_steps_total"].values == {
        ("m", "0", "topk.0"): steps,
        ("m", "0", "topk.1"): steps,
    }
    assert prometheus["sglang:oea_unique_experts_total"].values == {
        ("m", "0", layer, kind): steps * unique
        for layer in ("topk.0", "topk.1")
        for kind, unique in (("vanilla", vanilla), ("oea", active))
    }


def test_without_oea_nothing_is_published(standing: rig.Standing, prometheus: dict[str, _Metric]) -> None:
    routing(standing)
    metrics, stats = collector(standing)
    for _ in range(3):
        metrics.log_stats(stats)
    assert not [name for name in prometheus if "oea" in name]


def test_without_metrics_nothing_is_counted(standing: rig.Standing, prometheus: dict[str, _Metric]) -> None:
    counting = operations(serve(standing, SKEWED, enable_metrics=True), "DECODE")
    silent = operations(serve(standing, SKEWED), "DECODE")
    assert len(silent) < len(counting)
    metrics, stats = collector(standing)
    for _ in range(3):
        metrics.log_stats(stats)
    assert not [name for name in prometheus if "oea" in name]


def test_publishing_never_waits_for_the_device(standing: rig.Standing, prometheus: dict[str, _Metric]) -> None:
    oea = routing(standing)
    serve(standing, SKEWED, enable_metrics=True).run(SKEWED.tensor)
    metrics, stats = collector(standing)
    metrics.log_stats(stats)
    event = mock.MagicMock()
    event.query.return_value = False
    oea._counters.copied = event
    seen = _Operations()
    with seen:
        for _ in range(5):
            metrics.log_stats(stats)
    assert not seen.names
    assert not event.synchronize.called
    assert not prometheus["sglang:oea_layer_steps_total"].values
