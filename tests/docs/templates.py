"""An expression that makes a sentence, as a template that a person can read: what is filled in stands in <…>."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from .source import Module, looked_up

# A last part that says nothing by itself is named after what it belongs to: <repo path>, <package name>.
VAGUE = {"path", "name", "id", "version", "start", "tag", "commit", "root", "folder", "default", "args"}
# Calls that leave what they are given recognisable.
THROUGH = {"shown", "str", "sorted", "Path", "set", "list", "_named", "min", "max", "repr"}
# A place in a file (`paths.Spot`) is shown as it shows itself.
SPOT = "file:line"
# What is better called otherwise than the code calls it.
ALIASES = {
    "sys.executable": "python",
    "error.strerror": "reason",
    "checkout.git": "git -C PATH",
    "checkout.our_name": "our branch",
    "checkout.standing": "on BRANCH, or detached",
    "blob_of": "blob",
    "blob_id": "blob",
    "error": "reason",
    "spot": SPOT,
}
SHORTENS = {"down", "strip", "removeprefix", "removesuffix", "resolve", "decode", "rstrip", "expanduser", "splitlines"}


@dataclass(frozen=True)
class Scope:
    """Where names are looked up: the arguments a helper was called with, the function's locals, the module."""

    module: Module
    function: ast.FunctionDef | None = None
    bound: Mapping[str, str] = field(default_factory=dict)


def template(scope: Scope, node: ast.AST) -> str:
    """The text that the expression makes."""
    match node:
        case ast.Constant(value=value):
            text = str(value)
        case ast.JoinedStr(values=parts):
            text = "".join(template(scope, part) for part in parts)
        case ast.FormattedValue(value=inner, conversion=conversion):
            text = f"'{template(scope, inner)}'" if conversion == ord("r") else template(scope, inner)
        case ast.BinOp(left=left, right=ast.Constant(value=int())):  # `line + 1` is a line
            text = template(scope, left)
        case ast.BinOp(left=left, op=op, right=right):
            text = template(scope, left) + ("/" if isinstance(op, ast.Div) else "") + template(scope, right)
        case ast.IfExp(body=body, orelse=orelse):
            text = _either(template(scope, body), template(scope, orelse))
        case ast.BoolOp(values=values):
            text = _either(*(template(scope, value) for value in values))
        case _:
            text = _named(scope, node)
    return text


def _either(*texts: str) -> str:
    different = list(dict.fromkeys(text for text in texts if text))
    return different[0] if len(different) == 1 else f"({' | '.join(different)})"


def _named(scope: Scope, node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return _name(scope, node.id)
    if isinstance(node, ast.Call):
        return _call(scope, node)
    return f"<{words(node)}>"


def _name(scope: Scope, name: str) -> str:
    if name in scope.bound:
        return scope.bound[name]
    found = _local(scope, name)
    handed = _handed(scope, name)
    if handed:
        return _either(*handed)
    if found is None and (known := looked_up(scope.module, name)) and is_text(known[1]):
        return template(Scope(known[0]), known[1])
    return template(scope, found) if found is not None else f"<{ALIASES.get(name, _spaced(name))}>"


def _local(scope: Scope, name: str) -> ast.AST | None:
    """The text that the function assigns to the name, where it does so once."""
    values = [
        node.value
        for node in (ast.walk(scope.function) if scope.function else ())
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets)
    ]
    value = values[0] if len(values) == 1 else None
    return value if value is not None and (is_text(value) or _is_spot(scope, value)) else None


def _handed(scope: Scope, name: str) -> list[str]:
    """The texts that the module's own calls hand to an argument, where all of them are written as text."""
    function = scope.function
    if function is None or name not in (names := [argument.arg for argument in function.args.args]):
        return []
    calls = [node for node in ast.walk(scope.module.tree) if isinstance(node, ast.Call)]
    calls = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == function.name]
    given = [call.args[names.index(name)] for call in calls if len(call.args) > names.index(name)]
    return [template(Scope(scope.module), text) for text in given] if all(map(is_text, given)) else []


def _is_spot(scope: Scope, node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _call(scope, node) == f"<{SPOT}>"


def is_text(node: ast.AST) -> bool:
    """Whether the expression is written as text, so that showing it says more than its name."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | int)
    if isinstance(node, ast.IfExp):
        return is_text(node.body) or is_text(node.orelse)
    if isinstance(node, ast.BinOp):
        return is_text(node.left) or is_text(node.right)
    return isinstance(node, ast.JoinedStr)


def _call(scope: Scope, node: ast.Call) -> str:
    """A join shows what is joined, a helper of ours the text it makes, `x.strip()` and `str(x)` show x."""
    if isinstance(node.func, ast.Attribute):
        return _method(scope, node, node.func)
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in THROUGH and node.args:
        return template(scope, node.args[0])
    made = looked_up(scope.module, name)
    if made and isinstance(made[1], ast.FunctionDef):
        return _made(made[0], made[1], [template(scope, argument) for argument in node.args]) or f"<{words(node)}>"
    return f"<{words(node)}>"


def _method(scope: Scope, node: ast.Call, method: ast.Attribute) -> str:
    if method.attr == "join" and isinstance(node.args[0], ast.Name):
        return template(scope, node.args[0])
    if method.attr == "get" and (texts := _texts(scope, node)):
        return _either(*texts)
    return template(scope, method.value) if method.attr in SHORTENS else f"<{words(node)}>"


def _texts(scope: Scope, node: ast.Call) -> list[str]:
    """What `TEXTS.get(key, OTHER)` may give, where TEXTS is a table of the module."""
    table = node.func.value if isinstance(node.func, ast.Attribute) else node
    found = looked_up(scope.module, table.id) if isinstance(table, ast.Name) else None
    values = found[1].values if found and isinstance(found[1], ast.Dict) else []
    return [template(scope, value) for value in (*values, *node.args[1:])] if values else []


def _made(module: Module, function: ast.FunctionDef, given: list[str]) -> str | None:
    """The text of a helper that does nothing but return one, or the place in a file that it finds."""
    if function.returns is not None and ast.unparse(function.returns) == "Spot":
        return f"<{SPOT}>"
    last = function.body[-1]
    if not isinstance(last, ast.Return) or last.value is None or not is_text(last.value):
        return None
    bound = dict(zip([argument.arg for argument in function.args.args], given, strict=False))
    return template(Scope(module, function, bound), last.value)


def words(node: ast.AST) -> str:
    """A few words for what an expression gives."""
    known = ALIASES.get(ast.unparse(node))
    return known if known else _words(node)


def _words(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name):
            said = _spaced(name)
        case ast.Attribute(value=owner, attr=name):
            said = _attribute(words(owner).split(" ")[-1], name)
        case ast.Subscript(value=value, slice=index):
            said = _key(index) or words(value)
        case ast.GeneratorExp(elt=inner) | ast.ListComp(elt=inner) | ast.SetComp(elt=inner):
            said = words(inner)
        case ast.BoolOp(values=[first, *_]):
            said = words(first)
        case ast.JoinedStr() | ast.IfExp() | ast.BinOp():
            said = _filled(node)
        case ast.Call():
            said = _called(node)
        case _:
            said = ast.unparse(node)
    return said


def _attribute(owner: str, name: str) -> str:
    own = _spaced(name)
    return f"{owner} {own}" if name in VAGUE and owner not in ("self", "reason", "edit") else own


def _key(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _filled(node: ast.AST) -> str:
    """The words for what a text is made of."""
    names = [words(part.value) for part in ast.walk(node) if isinstance(part, ast.FormattedValue)]
    return " ".join(names) or ast.unparse(node)


def _called(node: ast.Call) -> str:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else words(node.func)
    if name == "len":
        return f"number of {words(node.args[0])}"
    if name in THROUGH and node.args:
        return words(node.args[0])
    if isinstance(node.func, ast.Attribute) and name in {*SHORTENS, "get"}:
        return (_key(node.args[0]) if node.args else "") or words(node.func.value)
    if name in ("join", "map"):
        return words(node.args[-1])
    return ALIASES.get(name, _spaced(name))


def _spaced(name: str) -> str:
    return name.strip("_").replace("_", " ")
