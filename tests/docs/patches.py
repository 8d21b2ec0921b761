"""docs/patches.md: every patch of every line, from the headers of the patch files and the records in pins.toml."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sm120_overlay.queue.home import Home, find_home
from sm120_overlay.queue.patch import Patch
from sm120_overlay.queue.pins import Line, load_lines
from sm120_overlay.queue.series import load_series

EVIDENCE = {
    "reasoned": "reasoned from the source",
    "compiled": "compiled for sm_120a",
    "executed-cpu": "executed on a CPU",
    "executed-h200": "executed on an H200",
    "executed-sm120": "executed on an SM120 card",
}
SCOPES = {"sm12x": "SM12x alone; every other card behaves as upstream", "any": "every card"}
# Whose issues a trailer's short name means.
PROJECTS = {
    "sglang": "sgl-project/sglang",
    "flashinfer": "flashinfer-ai/flashinfer",
    "cutlass": "NVIDIA/cutlass",
    "vllm": "vllm-project/vllm",
}


@dataclass(frozen=True)
class Entry:
    """One slug of one upstream over all lines: the patch by line, and where a line does without, why."""

    slug: str
    upstream: str
    carried: dict[str, Patch]
    absent: dict[str, str]

    @property
    def newest(self) -> Patch:
        """As the last line that carries it has it."""
        return list(self.carried.values())[-1]


def entries(home: Home, lines: Sequence[Line]) -> list[Entry]:
    """Every slug that a line carries or records as absent, in the order of the lines and series."""
    found: dict[tuple[str, str], Entry] = {}

    def entry(upstream: str, slug: str) -> Entry:
        return found.setdefault((upstream, slug), Entry(slug, upstream, {}, {}))

    for line in lines:
        for pin in line.pins:
            for patch in load_series(home, pin).patches:
                entry(pin.upstream, patch.slug).carried[line.name] = patch
            for record in pin.absent:
                entry(pin.upstream, record.slug).absent[line.name] = f"{record.state}: {record.why}"
    return list(found.values())


INTRODUCTION = """\
# The patches

Made from the headers of the patch files and from pins.toml by `python -m tests.docs`. {count} patches on {lines}.
Here stands what breaks without each; its file, behind *carried*, says what it does about it, how that was
established and what was not measured. Nobody here has an SM120 card.
[evidence/](evidence/README.md) says how to send what yours shows; [findings.md](findings.md) what became of the claims
that this project began with.
"""


def page(home: Home | None = None) -> str:
    """The text of docs/patches.md."""
    home = home or find_home()
    lines = load_lines(home.pins).lines
    every = entries(home, lines)
    carried = [entry for entry in every if entry.carried]
    upstreams = list(dict.fromkeys(entry.upstream for entry in every))
    parts = [INTRODUCTION.format(count=len(carried), lines=_and([line.name for line in lines])), _table(carried, lines)]
    for upstream in upstreams:
        here = [entry for entry in carried if entry.upstream == upstream]
        parts += [f"## {upstream}\n", *(_section(entry, lines) for entry in here)]
    parts.append(_absent([entry for entry in every if entry.absent], lines))
    return "\n".join(parts)


def _table(carried: Sequence[Entry], lines: Sequence[Line]) -> str:
    heads = ["patch", "of", *(line.name for line in lines), "scope", "evidence", "what it does"]
    rows = [heads, ["---"] * len(heads), *(_row(entry, lines) for entry in carried)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(entry: Entry, lines: Sequence[Line]) -> list[str]:
    patch = entry.newest
    states = [_state(entry, line).partition(":")[0] for line in lines]
    scope, evidence = patch.trailer("Scope") or "", (patch.trailer("Evidence") or "").split(" ")[0]
    return [
        f"[`{entry.slug}`](#{entry.slug})",
        entry.upstream,
        *states,
        scope,
        evidence,
        plain(patch.subject, cell=True),
    ]


def _state(entry: Entry, line: Line) -> str:
    return "carried" if line.name in entry.carried else entry.absent.get(line.name, "not decided")


def _section(entry: Entry, lines: Sequence[Line]) -> str:
    patch = entry.newest
    said = "".join(f"* {point}\n" for point in _points(entry, lines))
    return f"### {entry.slug}\n\n**{plain(patch.subject)}**\n\n{why(patch)}\n\n{said}"


def _points(entry: Entry, lines: Sequence[Line]) -> Iterator[str]:
    patch = entry.newest
    states = (f"{line.name} {_file(entry, line)}" for line in lines)
    yield f"Lines: {'; '.join(states)}"
    yield f"Scope: {SCOPES.get(patch.trailer('Scope') or '', patch.trailer('Scope'))}"
    yield f"Evidence: {_evidence(patch.trailer('Evidence') or '')}"
    yield f"Upstream: {plain(_upstream(patch.trailer('Upstream-Status') or ''))}"
    if patch.all("Issue"):
        yield f"Issues: {', '.join(map(_issue, patch.all('Issue')))}"
    if patch.all("Needs"):
        yield f"Needs: {', '.join(f'[`{slug}`](#{slug})' for slug in patch.all('Needs'))}"
    if patch.overlays:
        yield f"Brings: {', '.join(f'`{path}`' for path, _ in patch.overlays)}"
    yield f"Goes when: {plain(patch.trailer('Drop-When') or '')}"
    test = patch.trailer("Test") or ""
    yield f"Test: [{test}](../{test})"


def _file(entry: Entry, line: Line) -> str:
    if line.name in entry.carried:
        return f"[carried](../patches/{line.name}/{entry.upstream}/{entry.slug}.patch)"
    return plain(_state(entry, line))


def _evidence(said: str) -> str:
    kind, _, file = said.partition(" ")
    return EVIDENCE.get(kind, kind) + (f" ([{file}]({file.removeprefix('docs/')}))" if file else "")


def _upstream(said: str) -> str:
    return {"Pending": "not sent yet"}.get(said, said)


def _issue(said: str) -> str:
    project, _, number = said.partition("#")
    repository = PROJECTS.get(project)
    return f"[{said}](https://github.com/{repository}/issues/{number})" if repository else said


def why(patch: Patch) -> str:
    """The first paragraph of the body: what breaks, for whom. With a list that it leads to, the list too."""
    paragraphs = patch.message.split("\n\n")[1:]
    first = paragraphs[0] if paragraphs else ""
    if len(paragraphs) > 2 and (first.rstrip().endswith(":") or paragraphs[1].startswith("- ")):
        first += "\n\n" + paragraphs[1]
    return "\n\n".join(_lines(part) for part in first.split("\n\n"))


def _lines(paragraph: str) -> str:
    """A paragraph as one line, a list as one line a point."""
    points = re.split(r"\n(?=[-*] )", paragraph.strip())
    return "\n".join(_point(" ".join(point.split())) for point in points)


def _point(text: str) -> str:
    return "- " + plain(text[2:]) if text[:2] in ("- ", "* ") else plain(text)


def plain(text: str, cell: bool = False) -> str:
    """Text that Markdown shows as it is; what stands in `code` is left alone."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*<\[\]]|(?<!\w)_+|_+(?!\w))", r"\\\1", part) for part in parts[::2]]
    shown = "`".join(parts)
    return shown.replace("|", "\\|") if cell else shown


def _absent(without: Sequence[Entry], lines: Sequence[Line]) -> str:
    """What lines do without."""
    said = ["## What a line does without\n"]
    for line in lines:
        here = [entry for entry in without if line.name in entry.absent]
        said += [f"### On {line.name}\n"] if here else []
        said += [f"- `{entry.slug}` ({entry.upstream}), {plain(entry.absent[line.name])}" for entry in here]
    return "\n".join(said if len(said) > 1 else [*said, "Nothing."]) + "\n"


def _and(names: Sequence[str]) -> str:
    what = "line" if len(names) == 1 else "lines"
    return f"{what} {', '.join(names)}"
