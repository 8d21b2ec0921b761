"""The graph beside what Python really loads, and beside grimp's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sm120_overlay.bisection.history import Reach
from sm120_overlay.bisection.reach import Rules
from sm120_overlay.bisection.reach.graph import Modules, closure, module, module_name
from sm120_overlay.bisection.reach.source import read
from sm120_overlay.queue.home import find_home
from sm120_overlay.queue.pins import load_lines
from sm120_overlay.queue.wheels import fetch_wheel, unpack
from sm120_overlay.serving.launch import sglang

NAMES = ["a", "b", "p", "p.a", "p.b", "p.q", "p.q.a", "p.q.b"]
PACKAGES = {"p", "p.q"}
STATIC = [
    "import toy.{0}", "from toy.{0} import x", "from toy import {1}", "from . import {1}", "from .. import {1}",
    "from .{1} import x",
]  # fmt: skip
BY_NAME = [
    "import importlib; importlib.import_module('toy.{0}')", "load('toy.{0}')", "load('.{1}', __package__)",
    "importlib_ = __import__('importlib'); importlib_.import_module(__package__ + '.{1}')",
    "load(f'toy.{{PARTS[0]}}')", "load('.'.join(['toy', *PARTS]))",
]  # fmt: skip
Temporary = pytest.TempPathFactory
LOADER = "from importlib import import_module as load\n"


def modules_below(root: Path, rules: Rules) -> Modules:
    """The modules of a folder's packages, by their names."""
    attributes = frozenset(sweep.attribute for sweep in rules.sweeps)
    found: dict[str, Any] = {}
    for package in rules.packages:
        for file in sorted((root / package).rglob("*.py")):
            path = str(file.relative_to(root))
            if module_name(path, ""):
                one = module(path, "", read(file.read_bytes(), rules.packages, attributes))
                found[one.name] = (*found.get(one.name, ()), one)
    return found


@st.composite
def package(draw: st.DrawFn, forms: list[str]) -> dict[str, str]:
    """Name → text of modules that ask for one another, each guarded: much of it fails, or goes round in circles."""
    texts = {}
    for name in ["", *NAMES]:
        lines = [LOADER, "x = 1\nPARTS = ['p']"]
        for _ in range(draw(st.integers(0, 2))):
            target = draw(st.sampled_from(NAMES))
            form = draw(st.sampled_from(forms)).format(target, target.rpartition(".")[2])
            lines.append(f"try:\n    {form}\nexcept Exception:\n    pass")
        texts[name] = "\n".join(lines) + "\n"
    return texts


def loads(root: Path, texts: dict[str, str], start: str) -> tuple[set[str], dict[str, Reach]]:
    """The modules that Python loads, and those that we say a launch reaches."""
    for name, text in texts.items():
        base = root.joinpath("toy", *filter(None, name.split(".")))
        file = base / "__init__.py" if name in PACKAGES | {""} else base.with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    rules = Rules("it", "", ("toy",), (f"toy.{start}",))
    code = f"import sys; sys.path.insert(0, {str(root)!r}); import toy.{start}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-B", "-I", "-c", code], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.partition(".")[0] == "toy"}
    return loaded, {name: near.reach for name, near in closure(modules_below(root, rules), rules).items()}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=package(STATIC), start=st.sampled_from(NAMES))
def test_what_python_imports_is_loaded(tmp_path_factory: Temporary, texts: dict[str, str], start: str) -> None:
    loaded, reached = loads(tmp_path_factory.mktemp("packages"), texts, start)
    assert loaded <= {name for name, reach in reached.items() if reach is Reach.LOADED}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=package([*STATIC, *BY_NAME]), start=st.sampled_from(NAMES))
def test_what_python_imports_by_name_is_reached(tmp_path_factory: Temporary, texts: dict[str, str], start: str) -> None:
    loaded, reached = loads(tmp_path_factory.mktemp("packages"), texts, start)
    assert loaded <= set(reached)


@pytest.mark.slow
@pytest.mark.network
def test_every_import_that_grimp_finds_between_modules_of_a_launch_is_ours_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import grimp

    unpack(fetch_wheel(load_lines(find_home().pins).line(None).pin("sglang"), lambda text: None), tmp_path)
    rules = sglang(["GlmMoeDsaForCausalLM"], folder="")
    modules = modules_below(tmp_path, rules)
    reached = closure(modules, rules)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        monkeypatch.delitem(sys.modules, name)
    theirs = grimp.build_graph("sglang", cache_dir=None, exclude_type_checking_imports=True)
    missing = []
    for name, near in reached.items():
        asked = {edge.target: edge.lazy for file in modules[name] for edge in (*file.lazy, *file.eager)}
        for target in theirs.find_modules_directly_imported_by(name) if name in theirs.modules else ():
            if target not in asked or target not in reached:
                missing.append((name, target))
            assert near.reach is Reach.LAZY or asked.get(target, True) or reached[target].reach is Reach.LOADED
    assert not missing
