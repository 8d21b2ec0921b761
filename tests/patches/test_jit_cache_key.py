"""jit-cache-key: a module's library is made of the sources of the tree that loads it, whatever lies in the cache.

End to end where it matters: FlashInfer's own JitSpec writes build.ninja, runs ninja and the compiler and loads the
library, which answers with a number that a real header of the tree gave it. A prebuilt library is one made here, under
a `flashinfer_jit_cache` package as upstream ships it. The manifest is written as `apply` writes it.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tvm_ffi
from packaging.version import Version

from sm120_overlay.serving.flashinfer import version_of
from sm120_overlay.serving.nvcc.compile import OWN_HEADERS
from sm120_overlay.serving.nvcc.toolchain import find_toolchain

PROBE = "sm120_probe"
# A real header without CUDA in it, and a real source beside which the probe lies.
HEADER = "include/flashinfer/exception.h"
OTHER_HEADER = "include/flashinfer/fp16.h"
UNPATCHED, PATCHED, EDITED, PREBUILT = 1, 2, 3, 99
# tvm_ffi's C interface: one exported symbol a function, here without arguments.
SOURCE = f"""
#include <tvm/ffi/c_api.h>
#include <flashinfer/exception.h>
#ifndef SM120_PROBE
#define SM120_PROBE {UNPATCHED}
#endif
extern "C" __attribute__((visibility("default")))
int __tvm_ffi_value(void*, const TVMFFIAny*, int32_t, TVMFFIAny* result) {{
  result->type_index = kTVMFFIInt;
  result->v_int64 = SM120_PROBE;
  return 0;
}}
"""
OWN_FILE = "flashinfer/jit/sm120_overlay.py"
INSTALLED = (("csrc/", "flashinfer/data/csrc/"), ("include/", "flashinfer/data/include/"))
DIGEST = "1f" * 32
# Of the package's data: large, and no test edits it.
LEFT_OUT = ("cutlass", "cccl")


@dataclass(frozen=True)
class Copy:
    """A FlashInfer of the test's own, laid out as pip or, with `top`, as a checkout with an editable install has it."""

    site: Path
    version: str
    is_checkout: bool = False

    @property
    def dist_info(self) -> Path:
        return self.site / f"flashinfer_python-{self.version}.dist-info"

    def __str__(self) -> str:
        return str(self.site)

    def place(self, path: str) -> Path:
        """Where a file of the repository lies."""
        return self.site / (path if self.is_checkout else _installed(path))

    def append(self, path: str, text: str, age_s: int = 0) -> None:
        """Adds lines to a file, which is `age_s` seconds old then."""
        place = self.place(path)
        data = place.read_bytes() + text.encode()
        place.unlink()  # it may be a link to the tree under judgement
        place.write_bytes(data)
        if age_s:
            then = place.stat().st_mtime - age_s
            os.utime(place, (then, then))

    @contextmanager
    def edited(self, path: str) -> Iterator[None]:
        """Another content for a while; the first comes back with its time, as package managers bring it."""
        kept = self.site.parent / "kept"
        os.link(self.place(path), kept)
        self.append(path, _defines(EDITED))
        yield
        kept.replace(self.place(path))


def _installed(path: str) -> str:
    return next((new + path.removeprefix(old) for old, new in INSTALLED if path.startswith(old)), path)


def _defines(value: int) -> str:
    return f"\n#undef SM120_PROBE\n#define SM120_PROBE {value}\n"


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _left_out(folder: str, names: list[str]) -> set[str]:
    return {"__pycache__", *(LEFT_OUT if folder.endswith("data") else [])} & set(names)


def _copy(tree: Path, site: Path, is_checkout: bool = False) -> Copy:
    """The tree's FlashInfer at another place; what no test edits and no compiler here reads is the tree's own."""
    package = site / "flashinfer"
    package.mkdir(parents=True)
    for entry in (tree / "flashinfer").iterdir():
        if entry.name in ("data", "jit"):
            shutil.copytree(entry, package / entry.name, copy_function=_link, ignore=_left_out)
        elif entry.is_dir():
            (package / entry.name).symlink_to(entry)
        else:
            _link(str(entry), str(package / entry.name))
    for entry in (tree / "flashinfer" / "data" / name for name in LEFT_OUT):
        if entry.is_dir():
            (package / "data" / entry.name).symlink_to(entry)
    if is_checkout:
        for name in ("csrc", "include"):
            (site / "flashinfer" / "data" / name).rename(site / name)
            (site / "flashinfer" / "data" / name).symlink_to(site / name)
    copy = Copy(site, str(version_of(tree)), is_checkout)
    copy.place(f"csrc/{PROBE}.cc").write_text(SOURCE)
    return copy


def _manifest(touched: Sequence[str], digest: str = DIGEST) -> dict[str, Any]:
    files = {path: {"installed": _installed(path), "mode": "100644", "blob": "0" * 40} for path in (OWN_FILE, *touched)}
    patches = [{"slug": "jit-cache-key", "subject": "jit: ..."}]
    whose = {"line": "v0.5.9", "upstream": "flashinfer", "version": "0.6.3"}
    return {"schema": 1, **whose, "digest": digest, "patches": patches, "files": files}


def _describe(copy: Copy, touched: Sequence[str], digest: str = DIGEST) -> Copy:
    """Leaves the manifest where apply leaves it for this kind of target."""
    base = copy.site / ".git" if copy.is_checkout else copy.dist_info
    _write(base / "sm120-overlay" / "manifest.json", json.dumps(_manifest(touched, digest)))
    return copy


def _write(place: Path, text: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


@dataclass(frozen=True)
class Process:
    """What a fresh process finds: FlashInfer's jit package of one copy, under one home."""

    core: ModuleType
    env: ModuleType
    copy: Copy

    def probe(self) -> Any:
        """The probe module's specification, as FlashInfer's generators make theirs."""
        return self.core.gen_jit_spec(PROBE, [self.env.FLASHINFER_CSRC_DIR / f"{PROBE}.cc"])

    def value(self) -> int:
        """What the library answers that FlashInfer loads for the probe."""
        spec = self.probe()
        spec.build_and_load()
        return int(spec.load(_moved(spec.get_library_path())).value())


MOVED = itertools.count()


def _moved(library: Path) -> Path:
    """A copy: the dynamic loader keeps what a process once loaded from a path, and here one process stands for many."""
    return Path(shutil.copy2(library, library.with_name(f"moved-{next(MOVED)}.so")))


def _start(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> Process:
    """FlashInfer's jit package of this copy, imported anew; its parent package alone would import everything else."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "flashinfer"]:
        del sys.modules[name]
    parent = ModuleType("flashinfer")
    parent.__path__ = [str(copy.site / "flashinfer")]
    monkeypatch.setitem(sys.modules, "flashinfer", parent)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    importlib.import_module("flashinfer.jit")
    sys.modules["flashinfer.jit.cpp_ext"].get_cuda_version = lambda: Version("13.0")  # type: ignore[attr-defined]
    env = sys.modules["flashinfer.jit.env"]
    if hasattr(env, "FLASHINFER_AOT_PROVIDERS"):
        # What a provider has is read at import; here libraries are put into it later.
        providers = [dataclasses.replace(each, modules=Everything()) for each in env.FLASHINFER_AOT_PROVIDERS]
        vars(env)["FLASHINFER_AOT_PROVIDERS"] = tuple(providers)
    return Process(sys.modules["flashinfer.jit.core"], env, copy)


class Everything(frozenset[str]):
    """Has every name."""

    def __contains__(self, _name: object) -> bool:
        return True


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Libraries for FlashInfer's link line to name."""
    stubs = tmp_path_factory.mktemp("stubs")
    for name in ("cuda", "cudart"):
        subprocess.run(["c++", "-shared", "-x", "c", "/dev/null", "-o", stubs / f"lib{name}.so"], check=True)
    return stubs


@pytest.fixture(autouse=True)
def home(stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One home for every copy, and a machine with a compiler."""
    home = tmp_path / "home"
    variables = {
        "FLASHINFER_WORKSPACE_BASE": home,
        "FLASHINFER_CUDA_ARCH_LIST": "12.0a",
        "FLASHINFER_EXTRA_LDFLAGS": f"-L{stubs} -Wl,-rpath,{stubs}",
        "CUDA_HOME": find_toolchain().nvcc.parents[1],
        # pip's ninja, where the environment is not activated
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    for name in ("FLASHINFER_DISABLE_JIT", "FLASHINFER_EXTRA_CFLAGS", "CXX"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delitem(sys.modules, "flashinfer_jit_cache", raising=False)  # another test's
    return home


# What flashinfer-jit-cache tells FlashInfer: a folder, and since 0.7 the packages that bring it, one a CUDA release.
SHIM = """
from types import SimpleNamespace
__version__ = "{version}+cu130"
def get_jit_cache_dir():
    return {folder!r}
def get_jit_cache_providers():
    whose = dict(provider_id="cu130", distribution="flashinfer-jit-cache-cu130", version=__version__)
    return [SimpleNamespace(**whose, jit_cache_dir={folder!r}, cuda_architectures=["sm100a", "sm120a"], modules=[])]
"""


@pytest.fixture
def prebuilt(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The library folder of an installed flashinfer-jit-cache, empty."""
    package = tmp_path / "jit-cache" / "flashinfer_jit_cache"
    folder = package / "jit_cache"
    folder.mkdir(parents=True)
    (package / "__init__.py").write_text(SHIM.format(version=version_of(tree), folder=str(folder)))
    monkeypatch.syspath_prepend(str(package.parent))
    return folder


def _ship(prebuilt: Path, name: str) -> None:
    """Puts a library of this module into flashinfer-jit-cache, that answers `PREBUILT`."""
    (prebuilt / name).mkdir()
    source = SOURCE.replace("#include <flashinfer/exception.h>", f"#define SM120_PROBE {PREBUILT}")
    include = tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path()
    flags = ["-shared", "-fPIC", *(f"-I{folder}" for folder in include), "-x", "c++", "-"]
    target = prebuilt / name / f"{name}.so"
    subprocess.run(["c++", *flags, "-o", target], input=source.encode(), check=True)


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# Each builds with the tree's own JitSpec, ninja and a compiler.


def test_two_trees_under_one_home_load_their_own_library(tree: Path, tmp_path: Path, monkeypatch: Any) -> None:
    plain = _describe(_copy(tree, tmp_path / "plain"), [HEADER])
    patched = _describe(_copy(tree, tmp_path / "patched"), [HEADER])
    patched.append(HEADER, _defines(PATCHED))
    for copy, value in ((plain, UNPATCHED), (patched, PATCHED), (plain, UNPATCHED)):
        process = _start(copy, monkeypatch)
        assert process.value() == value, f"{copy} loads a library of other sources"
        ninja = process.probe().ninja_path.read_text()
        assert f"{copy}/" in ninja


def test_trees_of_the_same_content_do_not_share_either(tree: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Theirs is the same only until one of them is edited or deleted."""
    places = set()
    for name in ("one", "two"):
        copy = _describe(_copy(tree, tmp_path / name), [HEADER])
        places.add(_start(copy, monkeypatch).env.FLASHINFER_JIT_DIR)
    assert len(places) == 2


def test_an_edit_of_a_patched_file_gets_a_library_of_its_own(tree: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Also where its time says nothing: package managers and layers of images keep old times."""
    copy = _describe(_copy(tree, tmp_path / "site"), [HEADER])
    before = _start(copy, monkeypatch)
    assert before.value() == UNPATCHED
    copy.append(HEADER, _defines(EDITED), age_s=86_400)
    after = _start(copy, monkeypatch)
    assert after.value() == EDITED, "the library of the file before the edit is loaded"
    assert after.env.FLASHINFER_JIT_DIR != before.env.FLASHINFER_JIT_DIR


def test_an_edit_of_any_other_header_rebuilds_a_module_of_host_code(
    tree: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """FlashInfer's own headers are -isystem to the compiler, which -MMD leaves out of what ninja looks at."""
    copy = _describe(_copy(tree, tmp_path / "site"), [OTHER_HEADER])
    before = _start(copy, monkeypatch)
    assert before.value() == UNPATCHED
    copy.append(HEADER, _defines(EDITED), age_s=-5)
    spec = _start(copy, monkeypatch).probe()
    spec.build(verbose=False)
    loaded = spec.load(_moved(spec.jit_library_path))
    assert loaded.value() == EDITED, "the library of the file before the edit is loaded"


def test_a_build_file_of_another_tree_does_not_stay(tree: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Where a folder is given, as FlashInfer's AOT script gives its --build-dir, the name of the cache cannot help."""
    copies = {name: _describe(_copy(tree, tmp_path / name), [HEADER]) for name in ("plain", "patched")}
    copies["patched"].append(HEADER, _defines(PATCHED))
    for name, value in (("plain", UNPATCHED), ("patched", PATCHED), ("plain", UNPATCHED)):
        process = _start(copies[name], monkeypatch)
        process.env.FLASHINFER_JIT_DIR = tmp_path / "build-dir"  # type: ignore[attr-defined]
        process.core.build_jit_specs([process.probe()])
        loaded = process.probe().load(_moved(process.probe().jit_library_path))
        assert loaded.value() == value, f"{name}: built from the sources of another tree"


def test_a_second_start_builds_nothing(tree: Path, tmp_path: Path, monkeypatch: Any) -> None:
    copy = _describe(_copy(tree, tmp_path / "site"), [HEADER])
    spec = _start(copy, monkeypatch).probe()
    spec.build(verbose=False)
    then = spec.jit_library_path.stat().st_mtime_ns
    again = _start(copy, monkeypatch).probe()
    again.build(verbose=False)
    assert again.jit_library_path == spec.jit_library_path
    assert again.jit_library_path.stat().st_mtime_ns == then


def test_a_patched_header_means_no_prebuilt_library_and_another_cache(
    tree: Path, tmp_path: Path, monkeypatch: Any, prebuilt: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = _describe(_copy(tree, tmp_path / "site"), [OTHER_HEADER])
    _ship(prebuilt, PROBE)
    untouched = _start(copy, monkeypatch)
    assert untouched.value() == PREBUILT, "the prebuilt library of an untouched module serves as ever"
    assert not _warnings(caplog)
    copy.append(HEADER, _defines(PATCHED))
    _describe(copy, [OTHER_HEADER, HEADER], digest="2e" * 32)
    touched = _start(copy, monkeypatch)
    assert touched.value() == PATCHED, "the prebuilt library hides the patch"
    assert touched.env.FLASHINFER_JIT_DIR != untouched.env.FLASHINFER_JIT_DIR
    said = _warnings(caplog)
    assert len(said) == 1, "said once, however often it is asked"
    assert PROBE in said[0]
    assert HEADER in said[0]


def test_modules_built_together_are_judged_one_by_one(
    tree: Path, tmp_path: Path, monkeypatch: Any, prebuilt: Path
) -> None:
    process = _start(_describe(_copy(tree, tmp_path / "site"), [HEADER]), monkeypatch)
    _ship(prebuilt, PROBE)
    specs = [process.probe(), _of_sources(process, prebuilt, "csrc/nv_internal/cpp/common/stringUtils.cpp")]
    process.core.build_jit_specs(specs)
    assert [spec.jit_library_path.exists() for spec in specs] == [True, False]


def test_where_nothing_is_known_no_prebuilt_library_is_used(
    tree: Path, tmp_path: Path, monkeypatch: Any, prebuilt: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = _copy(tree, tmp_path / "site")
    _ship(prebuilt, PROBE)
    before = _start(copy, monkeypatch)
    assert before.value() == UNPATCHED, "a prebuilt library is used for a tree of which nothing is known"
    assert len(_warnings(caplog)) == 1
    assert "manifest" in _warnings(caplog)[0]
    copy.append(HEADER, _defines(EDITED), age_s=86_400)
    after = _start(copy, monkeypatch)
    assert after.value() == EDITED
    assert after.env.FLASHINFER_JIT_DIR != before.env.FLASHINFER_JIT_DIR


def test_with_jit_disabled_a_patched_module_is_refused_rather_than_taken_from_elsewhere(
    tree: Path, tmp_path: Path, monkeypatch: Any, prebuilt: Path
) -> None:
    copy = _describe(_copy(tree, tmp_path / "site"), [HEADER])
    _ship(prebuilt, PROBE)
    monkeypatch.setenv("FLASHINFER_DISABLE_JIT", "1")
    process = _start(copy, monkeypatch)
    with pytest.raises(process.core.MissingJITCacheError):
        process.value()


# Named by what lay there at import: nothing else may be compiled under that name.


def _alone(process: Process) -> None:
    process.probe().build_and_load()


def _with_others(process: Process) -> None:
    process.core.build_jit_specs([process.probe()])


def _refused(process: Process, build: Callable[[Process], None]) -> None:
    with pytest.raises(RuntimeError, match="was changed since this process imported it: start again"):
        build(process)


@pytest.mark.parametrize("build", [_alone, _with_others])
@pytest.mark.parametrize("is_known", [True, False])
def test_an_edit_between_import_and_build_is_refused(
    tree: Path, tmp_path: Path, monkeypatch: Any, is_known: bool, build: Callable[[Process], None]
) -> None:
    copy = _copy(tree, tmp_path / "site")
    if is_known:
        _describe(copy, [HEADER])
    process = _start(copy, monkeypatch)
    with copy.edited(HEADER):
        _refused(process, build)
    assert _start(copy, monkeypatch).value() == UNPATCHED, "the library of the edited file is loaded"


def test_another_series_between_import_and_build_is_refused(tree: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """One that touches what the first does not: the first's files tell nothing."""
    copy = _describe(_copy(tree, tmp_path / "site"), [OTHER_HEADER])
    process = _start(copy, monkeypatch)
    with copy.edited(HEADER):
        _describe(copy, [OTHER_HEADER, HEADER], digest="2e" * 32)
        _refused(process, _alone)
    _describe(copy, [OTHER_HEADER])
    assert process.value() == UNPATCHED, "what was taken back is as if it never was"


@pytest.mark.parametrize("build", [_alone, _with_others])
def test_an_edit_while_a_module_is_compiled_leaves_no_library(
    tree: Path, tmp_path: Path, monkeypatch: Any, build: Callable[[Process], None]
) -> None:
    copy = _describe(_copy(tree, tmp_path / "site"), [HEADER])
    process = _start(copy, monkeypatch)
    run_ninja, edits = process.core.run_ninja, [copy.edited(HEADER)]

    def edit_and_run(*arguments: Any, **more: Any) -> None:
        edits[0].__enter__()
        run_ninja(*arguments, **more)

    monkeypatch.setattr(process.core, "run_ninja", edit_and_run)
    _refused(process, build)
    edits[0].__exit__(None, None, None)
    assert not process.probe().jit_library_path.exists()
    assert _start(copy, monkeypatch).value() == UNPATCHED, "the library of the edited file is loaded"


# The rest looks at names and decisions.


@pytest.mark.parametrize("is_known", [True, False])
def test_a_place_whose_name_is_no_text_is_named_too(
    tree: Path, tmp_path: Path, monkeypatch: Any, is_known: bool, prebuilt: Path
) -> None:
    """Linux has bytes for names. FlashInfer cannot compile there, but it can use prebuilt libraries."""
    copies = [_copy(tree, tmp_path / os.fsdecode(name)) for name in (b"caf\xe9", b"caf\xe8")]
    _ship(prebuilt, PROBE)
    dirs = set()
    for copy in copies:
        if is_known:
            _describe(copy, [OTHER_HEADER])
        try:
            process = _start(copy, monkeypatch)
        except UnicodeError as error:
            pytest.fail(f"cannot be imported: {error}")
        dirs.add(process.env.FLASHINFER_JIT_DIR)
        assert process.probe().is_aot is is_known
    assert len(dirs) == 2


def _jit_dir(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> Path:
    return Path(_start(copy, monkeypatch).env.FLASHINFER_JIT_DIR)


def test_another_series_has_another_cache(tree: Path, tmp_path: Path, monkeypatch: Any) -> None:
    copy = _copy(tree, tmp_path / "site")
    dirs = [_jit_dir(_describe(copy, [HEADER], digest), monkeypatch) for digest in (DIGEST, "2e" * 32, DIGEST)]
    assert dirs[0] != dirs[1]
    assert dirs[0] == dirs[2]


def test_sources_and_libraries_lie_together_below_upstreams_folder(
    tree: Path, tmp_path: Path, monkeypatch: Any, home: Path
) -> None:
    """A generated source of another tree is as wrong as its library: fused MoE compiles every one that it finds."""
    copy = _describe(_copy(tree, tmp_path / "site"), [HEADER])
    env = _start(copy, monkeypatch).env
    upstream = home / ".cache" / "flashinfer" / copy.version / "120a"
    assert env.FLASHINFER_WORKSPACE_DIR.parent == upstream, "generated sources are shared with other trees"
    assert DIGEST[:12] in env.FLASHINFER_WORKSPACE_DIR.name
    assert env.FLASHINFER_JIT_DIR == env.FLASHINFER_WORKSPACE_DIR / "cached_ops"
    assert env.FLASHINFER_GEN_SRC_DIR == env.FLASHINFER_WORKSPACE_DIR / "generated"
    assert home / ".cache" / "flashinfer" / "cubins" == env.FLASHINFER_CUBIN_DIR


def test_clearing_the_cache_clears_this_trees(tree: Path, tmp_path: Path, monkeypatch: Any) -> None:
    one = _describe(_copy(tree, tmp_path / "one"), [HEADER])
    two = _describe(_copy(tree, tmp_path / "two"), [HEADER])
    kept = _jit_dir(one, monkeypatch) / "module"
    kept.mkdir(parents=True)
    process = _start(two, monkeypatch)
    gone = process.env.FLASHINFER_JIT_DIR / "module"
    gone.mkdir(parents=True, exist_ok=True)
    process.core.clear_cache_dir()
    assert not gone.exists()
    assert kept.exists(), "the other tree's libraries are cleared too"


@pytest.mark.parametrize("is_worktree", [False, True])
def test_a_checkouts_manifest_lies_in_its_git_folder(
    tree: Path, tmp_path: Path, monkeypatch: Any, prebuilt: Path, is_worktree: bool
) -> None:
    copy = _copy(tree, tmp_path / "checkout", is_checkout=True)
    place = copy.site / ".git"
    if is_worktree:
        place = tmp_path / "main" / ".git" / "worktrees" / "checkout"
        (copy.site / ".git").write_text(f"gitdir: {place}\n")
    _write(place / "sm120-overlay" / "manifest.json", json.dumps(_manifest([HEADER])))
    _ship(prebuilt, PROBE)
    process = _start(copy, monkeypatch)
    assert not process.probe().is_aot, "a prebuilt library hides the patch"
    assert _of_sources(process, prebuilt, "csrc/nv_internal/cpp/common/stringUtils.cpp").is_aot


def _of_sources(process: Process, prebuilt: Path, *paths: str) -> Any:
    """The specification of a module of these files, of which there is a prebuilt library."""
    name = Path(paths[0]).stem
    _write(prebuilt / name / f"{name}.so", "")
    return process.core.gen_jit_spec(name, [process.copy.place(path) for path in paths])


UNUSABLE: Mapping[str, str] = {
    "not JSON": "{",
    "not an object": "[]",
    "another schema": json.dumps({**_manifest([OTHER_HEADER]), "schema": 2}),
    "another upstream": json.dumps({**_manifest([OTHER_HEADER]), "upstream": "sglang"}),
    "no digest": json.dumps({**_manifest([OTHER_HEADER]), "digest": None}),
    "a digest that is a path": json.dumps({**_manifest([OTHER_HEADER]), "digest": "../../elsewhere/"}),
    "files of another form": json.dumps({**_manifest([OTHER_HEADER]), "files": [OWN_FILE, OTHER_HEADER]}),
    "a series without the reader": json.dumps({**_manifest([OTHER_HEADER]), "files": {}}),
}


@pytest.mark.parametrize("text", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_a_manifest_that_cannot_be_this_trees_is_as_none(
    tree: Path, tmp_path: Path, monkeypatch: Any, prebuilt: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    copy = _copy(tree, tmp_path / "site")
    _write(copy.dist_info / "sm120-overlay" / "manifest.json", text)
    _ship(prebuilt, PROBE)
    assert not _start(copy, monkeypatch).probe().is_aot, "a prebuilt library is used"
    assert len(_warnings(caplog)) == 1


def test_of_two_manifests_none_is_believed(tree: Path, tmp_path: Path, monkeypatch: Any, prebuilt: Path) -> None:
    copy = _describe(_copy(tree, tmp_path / "site"), [OTHER_HEADER])
    _write(copy.site / ".git" / "sm120-overlay" / "manifest.json", json.dumps(_manifest([HEADER])))
    _ship(prebuilt, PROBE)
    assert not _start(copy, monkeypatch).probe().is_aot


def test_build_files_are_the_same_in_every_process(tree: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """They are written at every build, and another order of architectures would compile everything anew."""
    monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", "12.0a 12.1a 10.0a 9.0a 8.9 10.3a")
    core = _start(_describe(_copy(tree, tmp_path / "site"), [HEADER]), monkeypatch).core
    flags = [flag for flag in core.current_compilation_context.get_nvcc_flags_list() if "arch=" in flag]
    assert flags == sorted(flags, key=lambda flag: int("".join(filter(str.isdigit, flag.partition(",")[0]))))


# Since then AutoTuner writes what it measured into a file, and reads one.
TUNING_FILES = Version("0.6.7")


def _reads(copy: Copy, monkeypatch: pytest.MonkeyPatch, file: Path) -> bool:
    """Whether this tree takes tactics from a file that a tree left."""
    _start(copy, monkeypatch)
    return bool(importlib.import_module("flashinfer.autotuner").AutoTuner.get().load_configs(str(file)))


def test_what_was_measured_on_other_sources_is_not_read(tree: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """The two environments that upstream tells apart itself differ in versions or in the card; here in the sources."""
    copy = _describe(_copy(tree, tmp_path / "site"), [HEADER])
    if version_of(tree) < TUNING_FILES:
        return
    _start(copy, monkeypatch)
    tuner = importlib.import_module("flashinfer.autotuner").AutoTuner.get()
    tuner._file_configs["operation"] = ("Runner", 3)
    file = tmp_path / "tactics.json"
    tuner.save_configs(str(file))
    moved = _describe(_copy(tree, tmp_path / "moved"), [HEADER])
    assert _reads(copy, monkeypatch, file)
    assert _reads(moved, monkeypatch, file), "the place of a tree is no matter"
    with copy.edited(HEADER):
        assert not _reads(copy, monkeypatch, file), "measured before a patched file was edited"
    _describe(copy, [HEADER], digest="2e" * 32)
    assert not _reads(copy, monkeypatch, file), "measured on another series"


# Since then a file can name the tactics that fail, which AutoTuner leaves out.
BLOCKLISTS = Version("0.7")


def test_a_users_list_of_failing_tactics_is_read_whatever_series_it_was_made_on(
    tree: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """One that is not read lets AutoTuner try what brings the process down."""
    if version_of(tree) < BLOCKLISTS:
        return
    copy = _describe(_copy(tree, tmp_path / "site"), [HEADER])
    file = tmp_path / "failing.json"
    _start(copy, monkeypatch)
    importlib.import_module("flashinfer.tactics_blocklist").TacticsBlocklist.save(str(file), {"operation::Runner": [3]})
    _describe(copy, [HEADER], digest="2e" * 32)
    _start(copy, monkeypatch)
    blocklist = importlib.import_module("flashinfer.tactics_blocklist").TacticsBlocklist()
    assert blocklist.load(str(file)), "a list of another series is dropped"
    content = json.loads(file.read_text())
    content["_metadata"]["cuda_version"] = "1.0"
    _write(file, json.dumps(content))
    assert not blocklist.load(str(file)), "a list of another CUDA is read"


# Real modules: what reaches a file, and what does not.

LAUNCHER = "csrc/nv_internal/tensorrt_llm/kernels/cutlass_kernels/moe_gemm/launchers/moe_gemm_tma_ws_launcher.inl"
LOGGER = "csrc/nv_internal/include/tensorrt_llm/common/logger.h"
# (generator in flashinfer.jit, its arguments, a file, does the module compile it?)
MODULES: list[tuple[str, str, tuple[Any, ...], str, bool]] = [
    ("fused_moe", "gen_cutlass_fused_moe_sm120_module", (), LAUNCHER, True),
    ("fused_moe", "gen_cutlass_fused_moe_sm90_module", (), LAUNCHER, True),
    ("fused_moe", "gen_cutlass_fused_moe_sm120_module", (), "include/flashinfer/gemm/fp4_gemm_template_sm120.h", False),
    ("gemm", "gen_gemm_sm120_module_cutlass_fp4", (), "include/flashinfer/gemm/fp4_gemm_template_sm120.h", True),
    ("gemm", "gen_gemm_sm120_module_cutlass_fp4", (), "csrc/fp4_gemm_cutlass_sm120.jinja", True),
    ("gemm", "gen_gemm_sm120_module_cutlass_fp4", (), LAUNCHER, False),
    ("gemm", "gen_gemm_sm120_module", (), "csrc/group_gemm_fp8_groupwise_sm120.cu", True),
    ("comm", "gen_trtllm_comm_module", (), "include/flashinfer/comm/trtllm_allreduce_fusion.cuh", True),
    ("comm", "gen_vllm_comm_module", (), "include/flashinfer/comm/trtllm_allreduce_fusion.cuh", False),
    ("norm", "gen_norm_module", (), "csrc/norm.cu", True),
    ("norm", "gen_norm_module", (), "include/flashinfer/vec_dtypes.cuh", True),
    ("norm", "gen_norm_module", (), "flashinfer/utils.py", False),
    ("activation", "gen_act_and_mul_module", ("silu",), "include/flashinfer/activation.cuh", True),
    ("activation", "gen_act_and_mul_module", ("silu",), "csrc/norm.cu", False),
    ("fp4_quantization", "gen_fp4_quantization_sm120_module", (), LOGGER, True),
    ("fp4_quantization", "gen_fp4_quantization_sm120_module", (), "csrc/norm.cu", False),
]  # fmt: skip
if version_of(Path(os.environ["SM120_OVERLAY_TREE"])) >= Version("0.7"):
    # It names CUTLASS's folders itself, whose headers include by macros.
    MODULES += [
        ("monomoe", "gen_monomoe_module", (), "csrc/fused_moe/monomoe/src/moe.cuh", True),
        ("monomoe", "gen_monomoe_module", (), "csrc/norm.cu", False),
    ]


@pytest.mark.parametrize(("package", "generator", "arguments", "touched", "expected"), MODULES)
def test_a_prebuilt_library_serves_exactly_the_modules_that_the_series_does_not_touch(
    tree: Path,
    tmp_path: Path,
    monkeypatch: Any,
    prebuilt: Path,
    package: str,
    generator: str,
    arguments: tuple[Any, ...],
    touched: str,
    expected: bool,
) -> None:
    monkeypatch.setenv(
        "FLASHINFER_CUDA_ARCH_LIST", "10.0a 12.0a"
    )  # without 10.0, trtllm_comm is not for 12.0 until 0.6.17
    process = _start(_describe(_copy(tree, tmp_path / "site"), [touched]), monkeypatch)
    spec = _generate(package, generator, arguments)
    _write(prebuilt / spec.name / f"{spec.name}.so", "")
    assert spec.is_aot is not expected
    assert (spec.get_library_path() == spec.aot_path) is not expected
    assert process.copy.place(touched).is_file()


def _generate(package: str, generator: str, arguments: tuple[Any, ...]) -> Any:
    return getattr(importlib.import_module(f"flashinfer.jit.{package}"), generator)(*arguments)


def test_folders_that_a_flag_names_are_searched_too(
    tree: Path, tmp_path: Path, monkeypatch: Any, prebuilt: Path
) -> None:
    """As trtllm_fmha_v2 names one; its generator runs a compiler, so a source stands in here for what it writes."""
    touched = "csrc/fmha_v2/fmha/kernel_traits.h"
    process = _start(_describe(_copy(tree, tmp_path / "site"), [touched]), monkeypatch)
    source = process.env.FLASHINFER_GEN_SRC_DIR / "kernel.cu"
    _write(source, "#include <fmha/kernel_traits.h>\n")
    for name, flags, is_aot in (
        ("without", [], True),
        ("with", [f"-I{process.env.FLASHINFER_CSRC_DIR / 'fmha_v2'}"], False),
    ):
        _write(prebuilt / name / f"{name}.so", "")
        assert process.core.gen_jit_spec(name, [source], extra_cuda_cflags=flags).is_aot is is_aot


def test_a_module_that_includes_by_a_macro_is_compiled_and_the_warning_says_why(
    tree: Path, tmp_path: Path, monkeypatch: Any, prebuilt: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As cake_sampling does since 0.7. What it includes is not known, so neither is whether the series touches it."""
    process = _start(_describe(_copy(tree, tmp_path / "site"), [OTHER_HEADER]), monkeypatch)
    source = process.env.FLASHINFER_GEN_SRC_DIR.resolve() / "kernel.cu"
    _write(source, "#define BODY <flashinfer/exception.h>\n#include BODY\n")
    _write(prebuilt / "by_macro" / "by_macro.so", "")
    assert not process.core.gen_jit_spec("by_macro", [source]).is_aot
    said = " ".join(_warnings(caplog))
    assert f"what {source} includes cannot be told" in said
    assert "overlay changes" not in said


def test_every_header_that_the_compiler_reads_counts(
    tree: Path, tmp_path: Path, monkeypatch: Any, prebuilt: Path
) -> None:
    """nvcc's own list of what norm.cu includes, with FlashInfer's own command; every fourth of its files is tried."""
    copy = _describe(_copy(tree, tmp_path / "site"), [HEADER])
    process = _start(copy, monkeypatch)
    spec = _of_sources(process, prebuilt, "csrc/norm.cu")
    command = spec.get_compile_commands()[0]["command"].replace(" -c ", f" -M -I{OWN_HEADERS} ").rpartition(" -o ")[0]
    listed = subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout.split()
    data = copy.site.resolve() / "flashinfer" / "data"
    own = tuple(f"{data}/{name}/" for name in ("csrc", "include"))
    read = sorted({os.path.relpath(name, data) for name in listed if name.startswith(own)})
    assert len(read) > 10
    for path in read[::4]:
        _describe(copy, [path])
        assert not _of_sources(_start(copy, monkeypatch), prebuilt, "csrc/norm.cu").is_aot, path
