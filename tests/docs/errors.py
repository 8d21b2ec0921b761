"""Every refusal of the package, read from its source: what it says, why it is there, what to do, and its exit code.

A refusal is the construction of an OverlayError's subclass. Why it is there stands above it in the code, as a comment
`# why: …`; this makes docs/errors.md of them all.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from .source import Module, functions, modules
from .templates import Scope, is_text, template

BASE = "OverlayError"
# Carries a sentence to the one refusal that catches it: class → what that refusal says around it, and its advice.
CARRIERS = {"_Wrong": "UsageError"}
AREAS = {
    "The command line": ("cli", "report", "verbs"),
    "Pins, series and patch files": (
        "queue.pins", "queue.toml", "queue.series", "queue.mail", "queue.diff", "queue.place", "queue.patch",
        "queue.paths",
    ),
    "Sources": ("queue.sources", "queue.wheels", "queue.materialise", "cache"),
    "Checkouts": (
        "queue.checkout", "queue.clean", "queue.build", "queue.move", "queue.refs", "queue.indexlock", "queue.blobs",
        "queue.target", "queue.state",
    ),
    "Installed packages": ("queue.environment", "queue.installed", "queue.hidden"),
    "Interrupted runs, and files in the way": ("queue.transaction",),
    "Export": ("verbs.export", "queue.export"),
    "Adopt": (
        "verbs.adopt", "queue.fitting", "queue.adoption", "queue.foreign", "queue.letter", "queue.bases", "queue.merge",
        "queue.unfinished",
    ),
    "Moving a series": (
        "queue.carry", "queue.merging", "queue.moving", "queue.handoff", "queue.origin", "queue.rebasing",
        "queue.pinning", "queue.landing", "queue.causes", "verbs.rebase", "verbs._at",
    ),
    "Upstream": (
        "verbs.upstream", "verbs._destined", "verbs._submitted", "queue.statuses", "queue.formatters", "queue.outbox",
    ),
    "Survey": ("verbs.survey", "verbs._ranges", "queue.ranges", "queue.releases", "picture"),
    "Bisect": (
        "bisection", "serving.launch", "picture.bisection", "verbs.bisect", "verbs._bisect_options",
        "verbs._bisect_plan", "verbs._bisect_run", "verbs._bisect_show",
    ),
    "Proofs": ("queue.proof", "queue.trial", "serving.evidence", "serving.flashinfer", "serving.rig"),
    "The machine": ("queue.git", "queue.home", "serving.nvcc"),
}  # fmt: skip
LINT = "queue.lint"


@dataclass(frozen=True)
class Refusal:
    """One place in the code that refuses. `lines` are those of the expression; `why` is empty where none is given."""

    module: str
    function: str
    line: int
    end: int
    kind: str
    exit_code: int
    sentence: str
    todo: str
    why: str

    @property
    def where(self) -> str:
        """The place, as a person looks for it."""
        return f"{self.module.replace('.', '/')}.py:{self.line} ({self.function})"


@cache
def catalogue() -> tuple[Refusal, ...]:
    """Every refusal, in the order of the files and of the lines in them."""
    kinds = exit_codes()
    return tuple(refusal for module in modules().values() for refusal in _refusals(module, kinds))


@cache
def exit_codes() -> dict[str, int]:
    """Name of an error's class → its exit code: OverlayError's subclasses, wherever in the package they are made."""
    classes = [node for module in modules().values() for node in module.tree.body if isinstance(node, ast.ClassDef)]
    found = {BASE: 2}
    while more := [node for node in classes if node.name not in found and _parents(node) & found.keys()]:
        found |= {node.name: _exit_code(node, found) for node in more}
    return found


def _parents(node: ast.ClassDef) -> set[str]:
    return {base.id for base in node.bases if isinstance(base, ast.Name)}


def _exit_code(node: ast.ClassDef, known: dict[str, int]) -> int:
    for part in node.body:
        if isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "exit_code":
            return int(ast.literal_eval(part.value))
    return max(known[base] for base in _parents(node) & known.keys())


def _refusals(module: Module, kinds: dict[str, int]) -> Iterator[Refusal]:
    calls = sorted(_calls(module.tree), key=lambda call: (call.lineno, call.col_offset))
    for call in calls:
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name in kinds:
            yield _refusal(module, call, name, kinds[name])
        elif name in CARRIERS:
            yield _carried(module, call, name, kinds)


def _calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _refusal(module: Module, call: ast.Call, kind: str, exit_code: int) -> Refusal:
    function = _enclosing(module, call)
    scope = Scope(module, function)
    what, todo = (template(scope, argument) for argument in call.args)
    return Refusal(
        module.name, function.name if function else "", call.lineno, call.end_lineno or call.lineno, kind, exit_code,
        what, todo, _why(module, call, function),
    )  # fmt: skip


def _carried(module: Module, call: ast.Call, name: str, kinds: dict[str, int]) -> Refusal:
    """What a carrier says, as the refusal says it that catches it."""
    kind = CARRIERS[name]
    catcher = next(handler for handler in ast.walk(module.tree) if _catches(handler, name))
    refusal = next(made for made in _calls(catcher) if isinstance(made.func, ast.Name) and made.func.id == kind)
    around = _refusal(module, refusal, kind, kinds[kind])
    function = _enclosing(module, call)
    said = template(Scope(module, function), call.args[-1])
    return Refusal(
        module.name, function.name if function else "", call.lineno, call.end_lineno or call.lineno, kind, kinds[kind],
        around.sentence.replace("<reason>", said), around.todo, _why(module, call, function),
    )  # fmt: skip


def _catches(node: ast.AST, name: str) -> bool:
    named = node.type if isinstance(node, ast.ExceptHandler) else None
    return named is not None and name in {part.id for part in ast.walk(named) if isinstance(part, ast.Name)}


def _enclosing(module: Module, call: ast.Call) -> ast.FunctionDef | None:
    """The innermost function that the call stands in."""
    around = [
        function for function in functions(module) if function.lineno <= call.lineno <= (function.end_lineno or 0)
    ]
    return max(around, key=lambda function: function.lineno, default=None)


def _why(module: Module, call: ast.Call, function: ast.FunctionDef | None) -> str:
    """The comment `# why: …` directly above the statement that makes the refusal."""
    inside = ast.walk(function) if function else ast.walk(module.tree)
    simple = [node for node in inside if isinstance(node, ast.stmt) and not hasattr(node, "body")]
    first = next((node.lineno for node in simple if node.lineno <= call.lineno <= (node.end_lineno or 0)), call.lineno)
    said: list[str] = []
    for line in reversed(module.lines[: first - 1]):
        if not line.strip().startswith("#"):
            break
        said.insert(0, line.strip().removeprefix("#").strip())
        if said[0].startswith("why: "):
            return " ".join(said).removeprefix("why: ")
    return ""


def findings() -> tuple[str, ...]:
    """What lint says of a patch: it refuses many things at once, so they are no exceptions."""
    module = modules()[LINT]
    nodes = [node for node in ast.walk(module.tree) if isinstance(node, ast.Call | ast.Yield)]
    said = [_finding(node) for node in sorted(nodes, key=lambda node: node.lineno)]
    return tuple(template(Scope(module), text) for text in said if text is not None and is_text(text))


def _finding(node: ast.Call | ast.Yield) -> ast.expr | None:
    """What a check yields, or hands to a Finding."""
    if isinstance(node, ast.Yield):
        return node.value
    return node.args[1] if ast.unparse(node.func) == "Finding" else None


def area_of(module: str) -> str:
    """The heading under which a module's refusals stand.

    Raises:
        LookupError: AREAS names none for it.
    """
    parts = module.split(".")
    for prefix in (".".join(parts[:end]) for end in range(len(parts), 0, -1)):
        for area, modules_there in AREAS.items():
            if prefix in modules_there:
                return area
    raise LookupError(f"tests/docs/errors.py: AREAS has no place for {module}")


INTRODUCTION = """\
# What is refused, and why

Made from the code by `python -m tests.docs`: every refusal with what it says, why it is there, and what to do (→).
*Slanted* words are filled in, *(one | the other)* is one of them; where a sentence comes twice, two places find it.
Exit codes: 1 the answer is no and nothing was changed · 2 the call or a file of the series · 3 a person must go on · 4
something is missing.
"""


def page() -> str:
    """The text of docs/errors.md."""
    parts = [INTRODUCTION]
    for area in AREAS:
        here = list(dict.fromkeys(_entry(refusal) for refusal in catalogue() if area_of(refusal.module) == area))
        if here:
            parts.append(f"## {area}\n\n" + "\n".join(here) + "\n")
    lint = "".join(f"- {_slanted(text)}\n" for text in dict.fromkeys(findings()))
    parts.append(
        f"## Lint\n\nWhat `lint` and `export` find wrong with a patch (exit code 1; mend it, run again):\n\n{lint}"
    )
    return "\n".join(parts)


def _entry(refusal: Refusal) -> str:
    why = f"  Why: {refusal.why}\\\n" if refusal.why else ""
    return f"- {_slanted(refusal.sentence)} ({refusal.exit_code})\\\n{why}  → {_slanted(refusal.todo)}"


def _slanted(text: str) -> str:
    """The template in Markdown: <path> is *path*, but not in `code`, where nothing is slanted."""
    parts = text.split("`")
    parts[::2] = [part.replace("*", "\\*").replace("<", "*").replace(">", "*") for part in parts[::2]]
    return " ".join("`".join(parts).split())
