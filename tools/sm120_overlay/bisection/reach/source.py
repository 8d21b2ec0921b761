"""What one Python file says about other modules: imports, and strings that name modules or files. Nothing is run."""

from __future__ import annotations

import ast
import re
import warnings
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

IMPORTERS = {"import_module", "__import__", "find_spec", "run_module"}
SWEEPERS = {"iter_modules", "walk_packages"}
DYNAMIC = re.compile(rb"\b(?:import_module|__import__|find_spec|run_module|iter_modules|walk_packages)\b")
QUOTED = re.compile(r"""(["'])(\.*[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:[.:]\w*)*\1""")
DOTTED = re.compile(r"\.*[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
RUN = re.compile(r"(?:^|\s)-m\s+([A-Za-z_]\w*(?:\.\w+)*)")
# A file's name counts wherever it stands in the text: comments name too many, which is the safe side. Names with other
# endings count where a string ends with them.
ENDING = re.compile(
    r"\.(?:json\w*|ya?ml|toml|txt|cuh?|h|hpp|cpp|cc|c|inl?|jinja\w*|proto|csv|bin|html|css|js|sh|so)\b"
    r"|\.\w{1,10}(?=[\"'])"
)
STEM = re.compile(r"[\w\-=,+.]+$")
LONGEST = 200  # characters of a file's name


@dataclass(frozen=True)
class Ask:
    """A file asks for modules. `names` are dotted; with a `level` they are relative (1: to the file's own package).

    Which of the names exist, only a tree knows: of `from a import b` both a and a.b count. `prefix`: all modules whose
    name begins with the (one) name. `text`: the name stands in a string.
    """

    names: tuple[str, ...]
    lazy: bool
    line: int
    form: str
    level: int = 0
    prefix: bool = False
    star: bool = False
    text: bool = False


@dataclass(frozen=True)
class Source:
    """One file's text as far as other files are concerned.

    `words` are strings that may be names of modules beside it (only of a file that imports by computed names or
    exports by name), `files` names of files, `listed` what is assigned to the attributes that were asked about.
    `sweeper`: it walks packages. `broken` says why it could not be parsed.
    """

    asks: tuple[Ask, ...] = ()
    words: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    listed: frozenset[tuple[str, str]] = frozenset()
    sweeper: bool = False
    broken: str = ""


def read(data: bytes, tops: Sequence[str], attributes: frozenset[str] = frozenset()) -> Source:
    """What a Python file says.

    Args:
        tops: packages a string must begin with to name a module.
        attributes: names whose top-level assignments are wanted.
    """
    text = data.decode("utf-8", "replace")
    files = frozenset(_files(text))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in upstream's strings are not ours to report
            tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError) as error:
        return _unparsed(text, files, f"line {getattr(error, 'lineno', None) or '?'}")
    dynamic, sweeper = DYNAMIC.search(data) is not None, False
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")  # as Python counts them
    asks = list(_statements(tree.body, [number for number, line in enumerate(lines, 1) if b"import" in line]))
    if dynamic or any(f"{before}{top}." in text for before in ("'", '"', "-m ") for top in tops):
        nodes = list(ast.walk(tree))
        asks += _strings(nodes, tuple(tops))
        sweeper = any(_called(node) in SWEEPERS for node in nodes if isinstance(node, ast.Call))
    quoted = {found[2] for found in QUOTED.finditer(text)} if dynamic or "__all__" in text else set()
    words = frozenset(word.lstrip(".") for word in quoted)
    if dynamic:  # a computed name can be any word of the file, beside it or in full
        asks.append(Ask(tuple(sorted(words)), True, 1, "may import it by a computed name", level=1, text=True))
    wanted = frozenset(name for name in attributes if name in text)
    return Source(tuple(asks), words, files, frozenset(_listed(tree.body, wanted)), sweeper)


def _files(text: str) -> Iterator[str]:
    for end in ENDING.finditer(text):
        stem = STEM.search(text, max(0, end.start() - LONGEST), end.start())
        if stem:
            yield stem[0] + end[0]


def _unparsed(text: str, files: frozenset[str], where: str) -> Source:
    """Everything that the text of a broken file could mean is asked for, at once."""
    asks = []
    for number, line in enumerate(text.splitlines(), 1):
        found = re.match(r"\s*(?:from\s+(\.*)([\w.]*)\s+)?import\s+(.*)", line)
        if found:
            parts = [part.split(" as ")[0].strip(" ()\\") for part in found[3].split("#")[0].split(",")]
            names = _names(found[2] or "", [part for part in parts if DOTTED.fullmatch(part)])
            form, level = "imports it, in a file that cannot be parsed", len(found[1] or "")
            asks.append(Ask(names, False, number, form, level))
            if found[2] and found[3].rstrip().endswith(("(", ",", "\\")):  # the names follow on other lines
                asks.append(Ask((f"{found[2]}.",), False, number, form, level, prefix=True))
    words = frozenset(re.findall(r"[A-Za-z_]\w*", text))
    dotted = tuple(sorted({*re.findall(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+", text)}))
    asks.append(Ask(dotted, False, 1, "may import it, in a file that cannot be parsed"))
    asks.append(Ask(tuple(sorted(words)), False, 1, "may import it, in a file that cannot be parsed", level=1))
    return Source(tuple(asks), words, files, broken=where)


def _names(module: str, names: Sequence[str]) -> tuple[str, ...]:
    """The module and what may be modules below it."""
    below = [f"{module}.{name}" if module else name for name in names]
    return tuple(dict.fromkeys([*([module] if module else []), *below]))


def _blocks(body: Sequence[ast.stmt], lines: Sequence[int] | None = None) -> Iterator[tuple[ast.stmt, bool]]:
    """Every statement that can run, with whether that is later than the import of the file.

    Args:
        lines: only statements that reach over one of these are looked into (None: all).
    """
    stack = [(node, False) for node in reversed(body)]
    while stack:
        node, lazy = stack.pop()
        if lines is not None:
            at = bisect_left(lines, node.lineno)
            if at == len(lines) or lines[at] > (node.end_lineno or node.lineno):
                continue
        yield node, lazy
        stack.extend(reversed(list(_inside(node, lazy))))


def _inside(node: ast.stmt, lazy: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """The statements within one, each with whether it runs later."""
    if isinstance(node, ast.If):
        kind = _condition(node.test)
        yield from ((inner, lazy or kind == "main") for inner in ([] if kind == "types" else node.body))
        yield from ((inner, lazy) for inner in ([] if kind == "not types" else node.orelse))
        return
    lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for branch in (node, *getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        for part in ("body", "orelse", "finalbody"):
            yield from ((inner, lazy) for inner in getattr(branch, part, ()))


def _condition(test: ast.expr) -> str:
    """Whether an `if` is for type checkers alone (or never for them), or for a file that is run as a script."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return "not types" if _condition(test.operand) == "types" else ""
    if "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", "")):
        return "types"
    if isinstance(test, ast.Compare) and getattr(test.left, "id", "") == "__name__":
        return "main"
    return ""


def _statements(body: Sequence[ast.stmt], lines: Sequence[int]) -> Iterator[Ask]:
    for node, lazy in _blocks(body, lines):
        form = "imports it inside a function" if lazy else "imports it"
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Ask((alias.name,), lazy, node.lineno, form)
        elif isinstance(node, ast.ImportFrom):
            star = any(alias.name == "*" for alias in node.names)
            names = _names(node.module or "", [alias.name for alias in node.names if alias.name != "*"])
            yield Ask(names, lazy, node.lineno, form, node.level, star=star)


def _listed(body: Sequence[ast.stmt], attributes: frozenset[str]) -> Iterator[tuple[str, str]]:
    """(attribute, name) of every name that may be assigned to one of the attributes."""
    if not attributes:
        return
    for node, _ in _blocks(body):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for attribute in {getattr(target, "id", "") for target in targets} & attributes:
                for part in ast.walk(node.value):
                    name = getattr(part, "id", "") or getattr(part, "attr", "") or getattr(part, "value", "")
                    if isinstance(name, str):
                        yield attribute, name


def _called(call: ast.Call) -> str:
    return str(getattr(call.func, "id", "") or getattr(call.func, "attr", ""))


def _strings(nodes: Sequence[ast.AST], tops: tuple[str, ...]) -> Iterator[Ask]:
    """Modules that strings name, in calls that import and elsewhere."""
    silent = _silent(nodes)
    for node in nodes:
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and id(node) not in silent:
                for name in _named(node.value, tops):
                    yield Ask((name,), True, node.lineno, f'names "{name}" in a string', text=True)
        elif isinstance(node, ast.Call) and _called(node) in IMPORTERS and node.args:
            yield from _imported(node)
        elif isinstance(node, ast.JoinedStr):
            level, prefix = _prefix(node)  # f"package.{name}" outside a call that imports is a name of much else
            within = prefix.rpartition(".")[0]
            if "." in within and within.partition(".")[0] in tops and DOTTED.fullmatch(prefix.rstrip(".")):
                yield Ask((prefix,), True, node.lineno, f'names "{prefix}…" in a string', level, prefix=True, text=True)


def _named(text: str, tops: tuple[str, ...]) -> Iterator[str]:
    """Modules that a string is the name of, alone, before an attribute, or in `-m MODULE`."""
    if text.startswith(tops):
        name = text.partition(":")[0]
        if DOTTED.fullmatch(name) and name.partition(".")[0] in tops:
            yield name
    elif "-m " in text:
        yield from (name for name in RUN.findall(text) if name.partition(".")[0] in tops)


def _silent(nodes: Sequence[ast.AST]) -> set[int]:
    """Strings that load nothing: docstrings, what is looked up in sys.modules, names of loggers."""
    found: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Expr):
            found.add(id(node.value))
        elif isinstance(node, ast.Compare) and getattr(node.comparators[0], "attr", "") == "modules":
            found.add(id(node.left))
        elif isinstance(node, ast.Call) and _called(node) == "getLogger":
            found.update(map(id, node.args))
    return found


def _imported(call: ast.Call) -> Iterator[Ask]:
    """What a call imports by a string that is known, or begins with one."""
    level, name = _prefix(call.args[0])
    whole = isinstance(call.args[0], ast.Constant)
    if name or level:
        form = f'calls {_called(call)}("{"." * level}{name}{"" if whole else "…"}")'
        yield Ask((name,), True, call.lineno, form, level, prefix=not whole, text=True)


def _prefix(node: ast.expr) -> tuple[int, str]:
    """How relative a name is, and how it begins, as far as it is written out."""
    if getattr(node, "id", "") in ("__name__", "__package__"):
        return 1, ""
    if isinstance(node, ast.BinOp):  # "a.b." + name, "a.b.%s" % name, __package__ + ".b"
        level, name = _prefix(node.left)
        end = getattr(node.right, "value", "") if level and not name else ""
        return level, (end if isinstance(end, str) else "").lstrip(".") or name.partition("%")[0]
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "format":
        level, name = _prefix(node.func.value)  # type: ignore[attr-defined]
        return level, name.partition("{")[0]
    if isinstance(node, ast.JoinedStr) and node.values:
        head, *rest = node.values
        level, name = _prefix(head.value if isinstance(head, ast.FormattedValue) else head)
        if level and not name and rest and isinstance(rest[0], ast.Constant):
            name = str(rest[0].value).lstrip(".")
        return level, name
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        name = node.value.lstrip(".")
        return len(node.value) - len(name), name
    return 0, ""
