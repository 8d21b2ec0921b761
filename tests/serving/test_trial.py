"""A step of upstream's that raises: its own no, or nothing that can be known here."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sm120_overlay.serving.asking import answer
from sm120_overlay.serving.asking.trial import Fail, Findings, Unknown, attempt
from sm120_overlay.serving.rig import Standing

UPSTREAM = """
from sm120_overlay.serving.rig import NeedsGpu, StubDecided
def yes(): return 7
def asserts(): assert False, ("Number must match", " between weights.")
def asserts_nothing(): assert False
def refuses(): raise ValueError("not on\\n  this card")
def shapes(): raise RuntimeError("tensor a (256) must match tensor b (32)")
def cannot_here(): raise RuntimeError('"exp" not implemented for \\'Float8_e4m3fn\\'')
def gpu(): raise NeedsGpu("a card")
def stub(): raise StubDecided("sgl_kernel.f", "a call")
def incomplete(): return {}["moe_layer_freq"]
def swallows():
    try: raise StubDecided("triton.g", "a call")
    except Exception: return "a guess"
"""


@pytest.fixture
def upstream(tmp_path: Path) -> ModuleType:
    file = tmp_path / "sglang" / "steps.py"
    file.parent.mkdir()
    file.write_text(UPSTREAM)
    spec = importlib.util.spec_from_file_location("made_up_steps", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def found(tmp_path: Path) -> Findings:
    return Findings(Standing(tmp_path.resolve(), "0.0.9", "2", (), {}))


def lines(name: str) -> str:
    return f"sglang/steps.py:{1 + next(n for n, line in enumerate(UPSTREAM.splitlines()) if f'def {name}(' in line)}"


@pytest.mark.parametrize(
    ("step", "kind", "sentence"),
    [
        ("asserts", "AssertionError", "Number must match between weights."),
        ("asserts_nothing", "AssertionError", "AssertionError"),
        ("refuses", "ValueError", "not on this card"),
        ("shapes", "RuntimeError", "tensor a (256) must match tensor b (32)"),
    ],
)
def test_upstreams_no_is_kept_in_its_words_and_with_its_place(
    found: Findings, upstream: ModuleType, step: str, kind: str, sentence: str
) -> None:
    assert attempt(found, "model", getattr(upstream, step)) is None
    assert (found.fails, found.unknown) == ([Fail("model", kind, sentence, lines(step))], [])


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ("cannot_here", "RuntimeError: \"exp\" not implemented for 'Float8_e4m3fn'"),
        ("gpu", "Upstream tried to compute on a card"),
        ("stub", "sgl_kernel.f is a stub"),
        ("swallows", "triton.g is a stub"),
        ("incomplete", "KeyError: 'moe_layer_freq'"),
    ],
)
def test_what_cannot_be_known_here_is_no_refusal(found: Findings, upstream: ModuleType, step: str, why: str) -> None:
    assert attempt(found, "model", getattr(upstream, step)) is None
    assert found.fails == []
    (unknown,) = found.unknown
    assert unknown == Unknown("model", unknown.why)
    assert unknown.why.startswith(why)


def test_before_a_server_looks_at_a_gpu_every_exception_is_its_own(found: Findings, upstream: ModuleType) -> None:
    attempt(found, "arguments", upstream.incomplete, strict=True)
    attempt(found, "arguments", upstream.stub, strict=True)
    assert [fail.kind for fail in found.fails] == ["KeyError"]
    assert len(found.unknown) == 1


def test_an_exception_of_our_own_code_is_not_upstreams(found: Findings) -> None:
    def ours() -> Any:
        raise ValueError("a fault of the rig")

    attempt(found, "model", ours)
    assert (found.fails, found.unknown) == ([], [Unknown("model", "ValueError: a fault of the rig")])


def test_a_value_comes_back(found: Findings, upstream: ModuleType) -> None:
    step: Callable[[], int] = upstream.yes
    assert attempt(found, "model", step) == 7
    assert found.as_json() == {"choices": {}, "arguments": {}, "facts": {}, "fails": [], "unknown": []}


@pytest.fixture(autouse=True)
def forget() -> Any:
    """Refusals that these tests make are not those of others."""
    from sm120_overlay.serving.rig.errors import raised

    before = len(raised)
    yield
    del raised[before:]


def test_what_comes_after_ranks_that_could_not_be_asked_was_not_asked_either(
    found: Findings, upstream: ModuleType
) -> None:
    attempt(found, "ranks", upstream.refuses)
    answer._unasked(found)
    assert found.unknown == []
    attempt(found, "ranks", upstream.gpu)
    answer._unasked(found)
    assert [one.stage for one in found.unknown] == ["ranks", *answer.BEHIND_RANKS]
