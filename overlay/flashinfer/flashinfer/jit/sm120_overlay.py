"""
Copyright (c) 2026 The SM120 Overlay authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

  http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.

What the SM120 overlay changed in this tree: names the JIT cache of exactly these
sources, and tuning results, and tells for which modules a prebuilt library is not made
of them.

`sm120-overlay apply` leaves a manifest of the series and of the files that it touches.
Without one nothing is known about the tree: everything counts as changed then.
"""

import contextlib
import functools
import hashlib
import json
import logging
import os
import re
import shutil
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from . import env as jit_env

if TYPE_CHECKING:
    from .core import JitSpec

logger = logging.getLogger(__name__)

_PACKAGE = Path(__file__).resolve().parents[1]
_TOP = _PACKAGE.parent  # site-packages, or the top folder of a checkout
_THIS_FILE = "flashinfer/jit/sm120_overlay.py"
_MANIFEST = Path("sm120-overlay", "manifest.json")

_INCLUDE = re.compile(rb"^[ \t]*#[ \t]*include[ \t]*(\S.*)$", re.MULTILINE)
_NAME = re.compile(rb'<([^>\n]+)>|"([^"\n]+)"')

_TOUCHED = "the SM120 overlay changes {}"


class _Series(NamedTuple):
    digest: str
    # Repository path -> where the file can lie: a checkout has `csrc/x` and `flashinfer/data/csrc/x`,
    # and the second is a link to the first, or a copy of it.
    files: Dict[str, Tuple[str, ...]]


def _git_dir() -> Path:
    dot_git = _TOP / ".git"
    if dot_git.is_file():  # a linked worktree, or a submodule
        return _TOP / dot_git.read_text().partition("gitdir:")[2].strip()
    return dot_git


def _read_manifest(place: Path) -> Optional[_Series]:
    try:
        manifest = json.loads(place.read_bytes())
        installed = {
            path: entry["installed"] for path, entry in manifest["files"].items()
        }
        # A manifest that does not know the file that reads it is another tree's.
        if (manifest["schema"], manifest["upstream"], installed[_THIS_FILE]) != (
            1,
            "flashinfer",
            _THIS_FILE,
        ):
            return None
        files = {
            path: (os.path.realpath(_TOP / path), os.path.realpath(_TOP / other))
            for path, other in installed.items()
        }
        if not re.fullmatch("[0-9a-f]{12,}", manifest["digest"]):
            return None
        return _Series(manifest["digest"], files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _manifests() -> List[Path]:
    try:
        return [
            *_TOP.glob(f"flashinfer_python-*.dist-info/{_MANIFEST}"),
            *(p for p in [_git_dir() / _MANIFEST] if p.exists()),
        ]
    except (OSError, ValueError):
        return []


def _read_series() -> Optional[_Series]:
    places = _manifests()
    return _read_manifest(places[0]) if len(places) == 1 else None


@functools.cache
def _series() -> Optional[_Series]:
    series = _read_series()
    if series is None:
        places = _manifests()
        found = "more than one manifest" if len(places) > 1 else "no usable manifest"
        logger.warning(
            f"flashinfer in {_TOP} carries patches of the SM120 overlay, but {found} of them: "
            "prebuilt libraries are not used, and kernels are compiled for this tree alone. "
            "Apply the overlay to this tree with its own tools."
        )
    return series


def _all_sources() -> Iterable[str]:
    for root in ("data/csrc", "data/include", "jit"):
        for folder, _, names in os.walk(_PACKAGE / root, followlinks=True):
            if os.path.basename(folder) != "__pycache__":
                yield from (os.path.join(folder, name) for name in names)


def _content(series: Optional[_Series]) -> Tuple[str, str]:
    """The series' name, and a hash of it and of the files that it touches, wherever the tree lies."""
    if series is None:
        label, paths = "unknown", sorted(_all_sources())
    else:
        label = series.digest
        paths = sorted({place for places in series.files.values() for place in places})
    key = hashlib.sha256(os.fsencode(f"{label}\0"))
    for path in paths:
        key.update(os.fsencode(f"{os.path.relpath(path, _TOP)}\0"))
        try:
            with open(path, "rb") as f:
                key.update(hashlib.sha256(f.read()).digest())
        except OSError:
            key.update(b"-")
    return label[:12], key.hexdigest()


def _named(content: Tuple[str, str]) -> str:
    label, digest = content
    key = hashlib.sha256(os.fsencode(f"{_PACKAGE}\0{digest}"))
    return f"sm120-overlay-{label}-{key.hexdigest()[:16]}"


@functools.cache
def _imported() -> Tuple[str, str]:
    return _content(_series())


def cache_name() -> str:
    """The JIT cache's folder for this tree: other patches, an edit of a patched file or another place give another.

    It stays what it was when flashinfer was imported.
    """
    return _named(_imported())


def tuning_name() -> str:
    """Names these sources, wherever they lie: what was measured on others says nothing about them."""
    label, digest = _imported()
    return f"sm120-overlay-{label}-{digest[:16]}"


def _check_unchanged() -> None:
    if _content(_read_series()) != _imported():
        raise RuntimeError(
            f"The FlashInfer in {_TOP} was changed since this process imported it: start again."
        )


@contextlib.contextmanager
def unchanged(build_dirs: Sequence[Path]) -> Iterator[None]:
    """Refuses to compile sources that are not those that the cache is named by, and keeps nothing made of them.

    It would be loaded once the change is taken back: ninja does not see files that come back with an old time.
    """
    _check_unchanged()
    try:
        yield
    finally:
        try:
            _check_unchanged()
        except RuntimeError:
            for folder in build_dirs:
                shutil.rmtree(folder, ignore_errors=True)
            raise


@functools.cache
def _includes(path: str) -> Optional[Tuple[Tuple[str, bool], ...]]:
    """The names that a file includes, whatever its conditions, and which of them are quoted. None: not to be told."""
    try:
        with open(path, "rb") as f:
            found = _INCLUDE.findall(f.read())
    except OSError:
        return None
    names = [_NAME.match(argument) for argument in found]
    if None in names:  # `#include MACRO`
        return None
    return tuple(
        (os.fsdecode(m[1] or m[2]), m[2] is not None) for m in names if m is not None
    )


@functools.cache
def _is_file(path: str) -> bool:
    return os.path.isfile(path)


@functools.cache
def _why_changed(
    sources: Tuple[str, ...],
    include_dirs: Tuple[str, ...],
    ours: Tuple[str, ...],
    others: Tuple[str, ...],
) -> Optional[str]:
    """Why the sources, or what they can include, count as changed by the series; None if they do not.

    Every include folder that has a name counts, not only the first: rather one too many.
    """
    series = _series()
    assert series is not None
    touched = {place: path for path, places in series.files.items() for place in places}
    # What a generator wrote: a copy of a source keeps its name, a template gives it another.
    templates = [path for path in series.files if path.endswith(".jinja")]
    by_name = {os.path.basename(path): path for path in series.files}

    todo: List[str] = list(sources)
    seen = set(todo)
    while todo:
        path = todo.pop()
        real = os.path.realpath(path)
        if real in touched:
            return _TOUCHED.format(touched[real])
        if not real.startswith(ours):
            if templates:
                return _TOUCHED.format(templates[0])
            if os.path.basename(real) in by_name:
                return _TOUCHED.format(by_name[os.path.basename(real)])
        if real.startswith(others):
            continue
        included = _includes(path)
        if included is None:
            return f"what {path} includes cannot be told"
        for name, is_quoted in included:
            folders = [os.path.dirname(path)] if is_quoted else []
            for folder in (*folders, *include_dirs):
                found = os.path.normpath(os.path.join(folder, name))
                if found not in seen and _is_file(found):
                    seen.add(found)
                    todo.append(found)
    return None


@functools.cache
def _say_once(name: str, why: str) -> None:
    logger.warning(
        f"The prebuilt library of {name} is not used, since {why}: the module is compiled."
    )


def _folders(places: Iterable[Path]) -> Tuple[str, ...]:
    return tuple(os.path.join(os.path.realpath(place), "") for place in places)


def changes(spec: "JitSpec") -> bool:
    """Whether the series touches what a module compiles, so that a prebuilt library is not made of this tree.

    CUTLASS, CCCL and spdlog, which the series cannot touch, are not searched.
    """
    if _series() is None:
        return True
    own = (jit_env.FLASHINFER_CSRC_DIR, jit_env.FLASHINFER_INCLUDE_DIR)
    # 0.6.3 has no CCCL.
    others = (
        *jit_env.CUTLASS_INCLUDE_DIRS,
        *getattr(jit_env, "CCCL_INCLUDE_DIRS", ()),
        jit_env.SPDLOG_INCLUDE_DIR,
    )
    # 0.7 has flags of single sources too.
    by_source = getattr(spec, "extra_cuda_cflags_by_source", None) or {}
    flags = (spec.extra_cflags or (), spec.extra_cuda_cflags or (), *by_source.values())
    more = (flag[2:] for some in flags for flag in some if flag.startswith("-I"))
    why = _why_changed(
        tuple(os.path.realpath(source) for source in spec.sources),
        tuple(
            os.path.realpath(folder)
            for folder in (*(spec.extra_include_dirs or ()), *more, *own)
        ),
        _folders((*own, _PACKAGE, *others)),
        _folders(others),
    )
    if why is not None:
        _say_once(spec.name, why)
    return why is not None
