"""The package's source as syntax trees: its modules, and what a name in one of them stands for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tools" / "sm120_overlay"


@dataclass(frozen=True, eq=False)
class Module:
    """One file of the package: its dotted name below the package, its tree and its lines."""

    name: str
    file: Path
    tree: ast.Module
    lines: tuple[str, ...]


@cache
def modules() -> dict[str, Module]:
    """Dotted name → module, of the whole package."""
    return {module.name: module for module in map(_read, sorted(PACKAGE.rglob("*.py")))}


def _read(file: Path) -> Module:
    text = file.read_text(encoding="utf-8")
    name = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
    return Module(name, file, ast.parse(text), tuple(text.splitlines()))


def looked_up(module: Module, name: str) -> tuple[Module, ast.AST] | None:
    """What a module-level name stands for, followed through imports: a function, or the value that is assigned."""
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets):
            return module, node.value
        if isinstance(node, ast.ImportFrom) and node.level:
            found = next((alias for alias in node.names if name == (alias.asname or alias.name)), None)
            other = modules().get(_target(module, node)) if found else None
            if found and other:
                return looked_up(other, found.name)
    return None


def _target(module: Module, node: ast.ImportFrom) -> str:
    """The dotted name below the package that a relative import names."""
    above = module.name.split(".")[: -node.level]
    return ".".join([*above, *filter(None, [node.module])])


def functions(module: Module) -> Iterator[ast.FunctionDef]:
    """Every function and method, outermost first."""
    return (node for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef))
