"""The planner's arithmetic, against sums done by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm120_overlay.serving.asking.plan import GIB, crashes, memory, plan, splits

# A card of 100 GiB, weights of 40, a KV cache of 1 MiB a token.
FACTS: dict[str, Any] = {
    "memory_mib": 102_400, "tp": 8, "ep": 1, "dp": 1, "pp": 1, "moe_dp": 1, "dp_attention": False, "fraction": 0.8,
    "chunk": 8192, "graph": 256, "running": 512, "max_prefill": 16384, "context": 131_068, "page": 64,
    "draft_tokens": 0, "max_tokens": None, "speculative": None, "runner": "flashinfer_cutlass", "experts": 128,
    "intermediate": 768, "nvfp4_experts": True, "kv_counted": 1 << 20, "kv_taken": 1 << 20,
    "weights": {"loading": 44 * GIB, "loaded": 40 * GIB, "experts": 30 * GIB},
}  # fmt: skip


def planned(**changes: Any) -> Any:
    found = memory({**FACTS, **changes})
    assert found is not None
    return found


def test_what_a_gpu_holds_adds_up() -> None:
    found = planned()
    assert (found.total, found.static, found.kv, found.tokens, found.pool) == (100, 80, 40, 40_960, 40)
    assert (found.requests, found.table) == (512, 0.25)  # 512 x 131,072 x 4 bytes
    assert found.reserve == 0.5 + 12 + 1 + 0.5  # a constant, 1.5 MiB a chunk's token, 8 ranks, 2 MiB a graph's request
    assert found.left == pytest.approx(100 - 80 - 0.25 - 14)
    assert (found.fraction_fits, found.graph_fits) == (0.857, 512)


def test_bytes_that_upstream_does_not_count_come_off_what_is_left() -> None:
    found = planned(kv_taken=(1 << 20) * 11 // 10)
    assert found.pool == pytest.approx(44, rel=1e-3)
    assert found.left == pytest.approx(planned().left - 4, rel=1e-3)


def test_pages_and_a_limit_on_tokens_are_kept() -> None:
    assert planned(kv_counted=1_000_000, page=64).tokens % 64 == 0
    assert planned(max_tokens=1000).tokens == 960


@pytest.mark.parametrize(("context", "requests"), [(131_068, 2048), (4096, 4096), (8192, 2560)])
def test_requests_follow_the_kv_cache_where_nobody_limits_them(context: int, requests: int) -> None:
    assert planned(running=None, context=context).requests == requests


def test_dp_attention_and_a_draft_reserve_more() -> None:
    plain = planned().reserve
    assert planned(dp_attention=True, dp=8, chunk=1024).reserve == plain + 256 * 3 * 8 / 1024
    assert planned(speculative="EAGLE").reserve == plain + 2
    assert planned(speculative="NGRAM").reserve == plain
    assert planned(chunk=-1).reserve == plain + 12  # no chunks: as long as a prefill may be


def test_later_releases_reserve_for_the_graphs_of_prefills_and_not_for_a_draft() -> None:
    plain = planned().reserve
    assert planned(prefill_graphs_mib=1536.0).reserve == plain + 1.5
    assert planned(speculative="EAGLE", draft_reserved=False).reserve == plain


def test_auto_wants_all_experts_on_a_rank_only_where_it_is_sgl_kernels_cutlass() -> None:
    said = {one.ep: one.fails for one in splits({**FACTS, "runner": "auto", "auto_is_cutlass": False})}
    assert not any("cutlass_moe_fp4" in fail for fails in said.values() for fail in fails)
    later = {**FACTS, "runner": "auto", "auto_is_cutlass": False, "made_of_auto": "flashinfer_trtllm"}
    assert all("not laid out for it" in " ".join(one.fails) for one in splits(later))
    said = {one.ep: one.fails for one in splits({**FACTS, "runner": "auto"})}
    assert ["cutlass_moe_fp4" in " ".join(said[ep]) for ep in (1, 8)] == [False, True]


@given(
    loaded=st.integers(1, 90), taken=st.integers(0, 30), graph=st.integers(0, 512), running=st.integers(1, 4096),
    chunk=st.sampled_from([2048, 8192, 16384]),
)  # fmt: skip
def test_the_largest_fraction_fits_and_a_larger_one_does_not(
    loaded: int, taken: int, graph: int, running: int, chunk: int
) -> None:
    counted = 50_000
    asked = {
        "weights": {"loading": loaded * GIB, "loaded": loaded * GIB, "experts": 0}, "kv_counted": counted,
        "kv_taken": counted * (100 + taken) // 100, "graph": graph, "running": running, "chunk": chunk, "page": 1,
    }  # fmt: skip
    fits = planned(**asked).fraction_fits
    if fits is None:
        assert planned(**asked, fraction=loaded / 100 + 0.002).left < 0
    else:
        assert planned(**asked, fraction=fits).left >= -1e-3
        assert planned(**asked, fraction=fits + 0.002).left < 0


def test_the_largest_graph_fits_and_a_larger_one_does_not() -> None:
    found = planned(fraction=0.862)
    assert 0 < found.graph_fits < 512
    assert planned(fraction=0.862, graph=found.graph_fits).left >= 0
    assert planned(fraction=0.862, graph=found.graph_fits + 1).left < 0
    assert planned(fraction=0.95).graph_fits == 0


def test_weights_that_fill_the_card_or_the_fraction_end_the_server() -> None:
    assert crashes(planned()) == []
    (loading,) = crashes(planned(weights={"loading": 101 * GIB, "loaded": 70 * GIB, "experts": 0}))
    (full,) = crashes(planned(fraction=0.3))
    (above,) = crashes(planned(fraction=2.0))
    assert "and the card has 100.0" in above
    assert "while they load" in loading
    assert "no room for a KV cache" in full


def test_each_ep_is_judged_by_what_divides_and_by_what_runs_it() -> None:
    found = {split.ep: split for split in splits(FACTS)}
    assert {ep: (split.experts, split.intermediate) for ep, split in found.items()} == {
        1: (128, 96), 2: (64, 192), 4: (32, 384), 8: (16, 768),
    }  # fmt: skip
    assert found[8].fails == ()
    assert "no multiple of 64" in found[1].fails[0]
    assert found[2].fails == found[4].fails == ("flashinfer_cutlass takes EP 1 or TP",)


@pytest.mark.parametrize(
    ("changes", "runs"),
    [
        ({"runner": "auto"}, []),
        ({"runner": "auto", "intermediate": 1024}, [1]),
        ({"runner": "auto", "nvfp4_experts": False}, [1, 2, 4, 8]),
        ({"runner": "flashinfer_trtllm"}, [1, 2, 4, 8]),
        ({"experts": 60, "intermediate": 1024}, [1]),
        ({"intermediate": 1408}, [8]),
        ({"tp": 6, "experts": 132, "intermediate": 768}, [1, 6]),
        ({"experts": None}, []),
    ],
    ids=str,
)
def test_which_ep_runs(changes: dict[str, Any], runs: list[int]) -> None:
    assert [split.ep for split in splits({**FACTS, **changes}) if not split.fails] == runs


def test_an_answer_that_ended_early_has_no_plan() -> None:
    assert plan({}) == {"splits": [], "memory": None, "crashes": []}
    without = plan({key: value for key, value in FACTS.items() if key != "weights"})
    assert (without["memory"], without["crashes"], len(without["splits"])) == (None, [], 4)


def test_an_ep_that_was_asked_for_and_does_not_divide_tp_is_listed_and_fails() -> None:
    for ep in (3, 16):
        (row,) = (split for split in splits({**FACTS, "ep": ep}) if split.ep == ep)
        assert row.fails[0] == f"EP {ep} does not divide TP 8"
