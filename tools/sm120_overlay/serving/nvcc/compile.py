"""Compiles one source against a tree's headers, runs what came out, disassembles it: the verbs of a compile proof.

A proof's facts (which macros, which kernels, what must hold) belong in its test, not here.
"""

from __future__ import annotations

import enum
import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...cache import cache_dir
from .cache import Store, exclusive
from .toolchain import Toolchain, find_disassembler, find_toolchain

OWN_HEADERS = Path(__file__).parent / "include"

# CUTLASS 3 and later are C++17; the second flag is how FlashInfer's JIT builds (flashinfer/jit/cpp_ext.py).
COMMON_FLAGS = ("-std=c++17", "--expt-relaxed-constexpr")
# Lines of nvcc's output that an error message carries: template back-traces can have a thousand.
TAIL_LINES = 12
TAIL_COLUMNS = 300
FOREIGN_VARIABLES = frozenset(
    ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH")
)


class Output(enum.Enum):
    """What to make: the end of the file's name, and nvcc's flags for it."""

    PREPROCESSED = (".ii", "-E")
    PTX = (".ptx", "-ptx")
    CUBIN = (".cubin", "-cubin")
    OBJECT = (".o", "-c")
    # Without NVIDIA's run-time library: the source brings recording_cudart.h.
    EXECUTABLE = (".exe", "-cudart", "none")

    def __init__(self, suffix: str, *flags: str) -> None:
        self.suffix = suffix
        self.flags = flags


@dataclass(frozen=True, slots=True)
class Unit:
    """One source and how to compile it."""

    source: str
    """The text of a .cu file."""
    tree: Path
    """Where header names are relative to; read only."""
    includes: tuple[str, ...]
    """Folders that headers are searched in, relative to the tree; ours come first."""
    output: Output
    flags: tuple[str, ...] = ()
    arch: str = "120a"
    """The device pass's architecture, without `compute_`."""


class CompileError(Exception):
    """nvcc refused a unit. The message is one sentence with the end of nvcc's output; `output` is all of it."""

    def __init__(self, unit: Unit, output: str) -> None:
        errors = [line for line in output.splitlines() if "error" in line] or output.splitlines()
        tail = "\n".join(line[:TAIL_COLUMNS] for line in errors[-TAIL_LINES:])
        super().__init__(f"nvcc cannot compile the unit for compute_{unit.arch} against {unit.tree}:\n{tail}")
        self.output = output

    def lines(self) -> set[int]:
        """The lines of the unit's own source (the first is 1) that nvcc puts an error on."""
        return {int(line) for line in re.findall(r"\bunit\.cu\((\d+)\): error", self.output)}


def compile_unit(unit: Unit, toolchain: Toolchain | None = None) -> Path:
    """The compiled unit, from the cache where this content was compiled before; a read-only file.

    Raises:
        CompileError: nvcc refused the source.
        Missing: the machine has no compiler and cannot install one.
    """
    toolchain = toolchain or find_toolchain()
    store = Store(cache_dir("nvcc"), {"tree": unit.tree.resolve(), "own": OWN_HEADERS.resolve()})
    key = _key(unit, toolchain)
    found = store.find(key)
    if found is not None:
        return found
    with exclusive(store.folder / "entries" / key):
        return store.find(key) or _compile(unit, toolchain, store, key)


def run_program(program: Path, environment: Mapping[str, str]) -> str:
    """What a compiled program prints on stdout; it sees `environment` and nothing else.

    Raises:
        subprocess.CalledProcessError: the program failed; its `stderr` says how.
    """
    done = subprocess.run([program], env=dict(environment), capture_output=True, text=True, check=True)
    return done.stdout


def sass(cubin: Path) -> str:
    """A cubin's machine code, as nvdisasm prints it.

    Raises:
        subprocess.CalledProcessError: it is no cubin.
        Missing: the machine has no nvdisasm and cannot install it.
    """
    return subprocess.run([find_disassembler(), cubin], capture_output=True, text=True, check=True).stdout


def _key(unit: Unit, toolchain: Toolchain) -> str:
    """Everything that decides the output, except the headers' bytes."""
    facts = [unit.source, *_flags(unit, Path()), "", *unit.includes, "", toolchain.version, toolchain.host]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _flags(unit: Unit, own: Path) -> list[str]:
    code = f"sm_{unit.arch}" if unit.output is Output.CUBIN else f"compute_{unit.arch}"
    target = ["-gencode", f"arch=compute_{unit.arch},code={code}"]
    searched = [f"-I{folder}" for folder in (own, *unit.includes)]
    return [*unit.output.flags, *COMMON_FLAGS, *target, *unit.flags, *searched]


def _compile(unit: Unit, toolchain: Toolchain, store: Store, key: str) -> Path:
    with tempfile.TemporaryDirectory(prefix="sm120-nvcc-") as folder:
        work = Path(folder)
        source, made, listing = work / "unit.cu", work / f"unit{unit.output.suffix}", work / "unit.d"
        source.write_text(unit.source)
        # nvcc cannot list headers and preprocess in one go; the preprocessed text itself names them.
        listed = [] if unit.output is Output.PREPROCESSED else ["-MD", "-MF", str(listing)]
        _nvcc(unit, toolchain, [*_flags(unit, OWN_HEADERS), *listed, "-o", str(made), str(source)], work)
        named = _headers_of_make(listing.read_text()) if listed else _headers_of_markers(made.read_text())
        return store.keep(key, made, (Path(unit.tree, name).resolve() for name in named))


def _nvcc(unit: Unit, toolchain: Toolchain, arguments: list[str], work: Path) -> None:
    # The tree is the working folder and its headers are named relative to it, so that __FILE__ in an output does
    # not depend on where the tree lies. Variables that add flags or folders are not part of the key, so they go.
    environment = {name: value for name, value in os.environ.items() if name not in FOREIGN_VARIABLES}
    done = subprocess.run(
        [toolchain.nvcc, *arguments],
        cwd=unit.tree,
        env={**environment, "TMPDIR": str(work), "LC_ALL": "C"},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        raise CompileError(unit, done.stdout + done.stderr)


def _headers_of_make(rule: str) -> set[str]:
    """The prerequisites of a make rule, as `-MD` writes it (a blank in a name is written as `\\ `)."""
    prerequisites = rule.partition(" : ")[2].replace("\\\n", " ")
    return {name.replace("\\ ", " ") for name in re.split(r"(?<!\\)\s+", prerequisites) if name}


def _headers_of_markers(text: str) -> set[str]:
    """The files named in a preprocessed text's line markers, such as `# 1 "cute/tensor.hpp" 1`."""
    return set(re.findall(r'^# \d+ "([^"<]+)"', text, flags=re.MULTILINE))
