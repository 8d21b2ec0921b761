"""What a fabricated package does: bend while modules load, refuse to answer after that."""

from __future__ import annotations

import importlib
import importlib.util
import operator
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import pydantic
import pytest

from sm120_overlay.serving.rig import StubDecided, phase, stubs
from sm120_overlay.serving.rig.packages import GPU_PACKAGES, GpuPackage, LoadWatcher, Stubbed, StubFinder, missing

USES: dict[str, Callable[[Any], Any]] = {
    "truth": bool,
    "if": lambda s: 1 if s else 2,
    "not": operator.not_,
    "call": lambda s: s(1, key=2),
    "call result compared": lambda s: s.f(3) == 1,
    "equality": lambda s: s == 1,
    "inequality": lambda s: s != 1,
    "order": lambda s: s >= (3, 2),
    "order from the right": lambda s: sorted([3, s]),
    "len": len,
    "iteration": list,
    "unpacking": lambda s: [*s],
    "membership in it": lambda s: 1 in s,
    "membership of it": lambda s: s in {1, 2},
    "table lookup": {"a": 1}.get,
    "int": int,
    "float": float,
    "range": range,
    "indexing a list": lambda s: [1, 2][s],
    "item": lambda s: s[0],
    "item set": lambda s: operator.setitem(s, 0, 1),
    "sum": lambda s: s + 1,
    "sum from the right": lambda s: 1 + s,
    "negation": operator.neg,
    "context": lambda s: s.__class__.__enter__(s),
    "hasattr": lambda s: hasattr(s, "flag"),
    "getattr with a default": lambda s: getattr(s, "flag", None),
    "construction": lambda s: s.Config(),
}


@pytest.fixture
def package() -> Iterator[types.ModuleType]:
    """A fabricated package that no machine has, found through the rig's own finders."""
    finders = [StubFinder([Stubbed(GpuPackage("gpu_only_kernels", "gpu-only-kernels"), "1.2.3")]), LoadWatcher()]
    sys.meta_path[:0] = finders
    try:
        yield importlib.import_module("gpu_only_kernels")
    finally:
        for finder in finders:
            sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if n.partition(".")[0] == "gpu_only_kernels"]:
            del sys.modules[name]


def written(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> types.ModuleType:
    """A real module with this source, imported now through the rig's finders."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "real_module", raising=False)
    (folder / "real_module.py").write_text(source)
    importlib.invalidate_caches()
    return importlib.import_module("real_module")


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_stub_refuses_to_answer_at_use(package: Any, use: Callable[[Any], Any]) -> None:
    with pytest.raises(StubDecided, match="is a stub"):
        use(package.ops.kernel)


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_the_same_use_is_tolerated_while_a_module_loads(package: Any, use: Callable[[Any], Any]) -> None:
    # An empty stub unpacks to nothing, and the like: that is Python's own answer, not the stub's refusal.
    with phase.load(), suppress(TypeError, ValueError):
        use(package.ops.kernel)


def test_naming_a_stub_asks_nothing(package: Any) -> None:
    from gpu_only_kernels.deep.inside import something  # type: ignore[import-not-found]

    assert repr(something) == "<stub gpu_only_kernels.deep.inside.something>"
    assert something.further is not None
    assert package.ops is package.ops


def test_nothing_real_is_an_instance_of_a_fabricated_class(package: Any) -> None:
    assert not isinstance(3, package.Tensor)


def test_a_module_body_may_decorate_subclass_compute_and_branch(
    package: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del package
    module = written(
        tmp_path,
        monkeypatch,
        "import gpu_only_kernels as g\n"
        "import gpu_only_kernels.language as tl\n"
        "@g.jit\ndef kernel(x: tl.constexpr): return x\n"
        "@g.autotune(configs=[g.Config({}, num_warps=4)])\n@g.jit\ndef tuned(): ...\n"
        "class Layer(g.Base, metaclass=g.Base.__class__):\n    size = 3\n"
        "NEW = g.version >= 3\n"
        "PATH = 'new' if NEW else 'old'\n"
        "TABLE = {tl.float8: 1}\n",
    )
    assert module.PATH == "old"
    assert module.Layer.size == 3
    for asked in (module.NEW, module.kernel, module.tuned):
        with pytest.raises(StubDecided):
            bool(asked)


def test_a_decorated_kernel_is_the_stubs_work_and_does_not_run_as_python(
    package: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del package
    module = written(tmp_path, monkeypatch, "import gpu_only_kernels as g\n@g.jit\ndef kernel(): return 1\n")
    with pytest.raises(StubDecided, match="jit"):
        module.kernel()


def test_an_answer_forced_while_loading_is_kept_for_the_report(
    package: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del package
    monkeypatch.setattr(stubs, "answered", [])
    written(tmp_path, monkeypatch, "import gpu_only_kernels as g\nif g.fast: x = 1\n")
    assert [(path, asked) for path, asked, _ in stubs.answered] == [("gpu_only_kernels.fast", "bool")]
    assert stubs.answered[0][2].endswith("real_module.py:2")


def test_a_module_imported_inside_a_function_is_tolerated_and_its_caller_is_not(
    package: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lazy_module.py").write_text("import gpu_only_kernels as g\nFLAG = bool(g.flag)\n")
    module = written(
        tmp_path,
        monkeypatch,
        "def late():\n    import lazy_module\n    return lazy_module.FLAG\n"
        "def asked():\n    import gpu_only_kernels as g\n    return 1 if g.flag else 2\n",
    )
    assert module.late() is False
    assert not phase.loading()
    with pytest.raises(StubDecided):
        module.asked()
    monkeypatch.delitem(sys.modules, "lazy_module")
    assert package is not None


def test_a_module_that_fails_to_load_ends_the_tolerance(
    package: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ZeroDivisionError):
        written(tmp_path, monkeypatch, "1 / 0\n")
    with pytest.raises(StubDecided):
        bool(package.flag)


def test_a_subclass_of_a_stub_keeps_its_own_behaviour_but_cannot_be_built_by_the_stub(
    package: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del package
    module = written(
        tmp_path,
        monkeypatch,
        "import gpu_only_kernels as g\n"
        "class Own(g.Base):\n    def __init__(self): self.n = 3\n    def double(self): return 2 * self.n\n"
        "class Inherited(g.Base): ...\n",
    )
    assert module.Own().double() == 6
    with pytest.raises(StubDecided, match="construction"):
        module.Inherited()
    with pytest.raises(StubDecided):
        module.Own().inherited_method()


def test_a_fabricated_package_is_presented_as_installed_in_its_pinned_version(package: Any) -> None:
    assert importlib.util.find_spec("gpu_only_kernels") is not None
    assert (
        package.__version__ == metadata.version("gpu-only-kernels") == metadata.version("gpu_only_kernels") == "1.2.3"
    )


def test_only_what_is_required_and_cannot_be_imported_is_fabricated() -> None:
    assert missing({"numpy": None}) == ()
    found = missing({"sgl-kernel": "0.3.21", "flashinfer-python": None, "torch": "2.9.1"})
    by_module = {stub.package.module: stub.version for stub in found}
    absent = {name for name in ("sgl_kernel", "flashinfer", "triton") if importlib.util.find_spec(name) is None}
    assert set(by_module) == absent
    assert by_module.get("sgl_kernel", "0.3.21") == "0.3.21"
    assert by_module.get("triton", "3.5.1") == "3.5.1"


@pytest.mark.parametrize(("torch", "triton"), [("2.11.0", "3.6.0"), ("2.14.1", "3.8.0"), ("0.1", None)])
def test_what_comes_with_torch_has_the_version_that_this_torch_wants(torch: str, triton: str | None) -> None:
    package = next(package for package in GPU_PACKAGES if package.module == "triton")
    assert package.version({"torch": torch, "sglang-kernel": "0.4.5"}) == triton


def test_the_kernels_are_one_module_under_the_name_that_a_tree_requires() -> None:
    named = {package.distribution for package in GPU_PACKAGES if package.module == "sgl_kernel"}
    assert named == {"sgl-kernel", "sglang-kernel"}
    (stub,) = [stub for stub in missing({"sglang-kernel": "0.4.5"}) if stub.package.module == "sgl_kernel"]
    assert (stub.package.distribution, stub.version) == ("sglang-kernel", "0.4.5")


def test_a_pydantic_model_may_name_a_fabricated_class_and_a_value_of_it_is_refused(package: types.ModuleType) -> None:
    model = pydantic.create_model("Model", tag=(package.Tag | None, None))
    assert vars(model()) == {"tag": None}
    with pytest.raises(StubDecided, match="validation by pydantic"):
        model(tag={"a": 1})
