"""Two answers side by side, for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import report
from ..serving.asking.choices import ROWS, SHOWN

if TYPE_CHECKING:
    from .resolve import Asked

PINNED, OURS = "as pinned", "with the series"
NONE = "-"


@dataclass(frozen=True)
class Sides:
    """Both answers, each with its plan; `behind` has the patches behind each difference, None where nobody asked."""

    pinned: Mapping[str, Any]
    ours: Mapping[str, Any]
    behind: Mapping[str, list[str]] | None

    @property
    def named(self) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        """Each with its name."""
        return ((PINNED, self.pinned), (OURS, self.ours))

    def patches(self, name: str) -> list[str]:
        """Those behind the difference in a choice, or behind a sentence that one side alone says."""
        return (self.behind or {}).get(name, [])


def starts(side: Mapping[str, Any]) -> bool:
    """Whether nothing is known that keeps the server from starting."""
    return not side["fails"] and not side["plan"]["crashes"]


def _rows(sides: Sides) -> list[dict[str, Any]]:
    """Every choice that either side made, in the order of `choices.ROWS`; one that a side did not come to is None."""
    rows = []
    for choice in ROWS:
        pinned, ours = (side["choices"].get(choice) for _, side in sides.named)
        if (pinned, ours) != (None, None):
            changed = pinned != ours and None not in (pinned, ours)
            row = {"choice": choice, "pinned": pinned, "series": ours, "changed": changed}
            rows.append(row if sides.behind is None else {**row, "patches": sides.patches(choice)})
    return rows


def as_json(asked: Asked, sides: Sides) -> dict[str, Any]:
    """The answer's own part of the JSON contract."""
    question = {"model": asked.model, "gpu": asked.question.card, "flags": list(asked.question.flags)}
    whole = {"digest": asked.series.digest, "patches": list(asked.series.slugs), **_side(sides.ours)}
    told = {"question": question, "pinned": _side(sides.pinned), "series": whole, "rows": _rows(sides)}
    return told if sides.behind is None else {**told, "explained": dict(sides.behind)}


def _side(told: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("version", "choices", "arguments", "fails", "doubts", "unknown", "said", "facts", "plan")
    return {"starts": starts(told), **{name: told[name] for name in kept}}


def show(asked: Asked, sides: Sides) -> None:
    """All of it for a person."""
    card, flags = asked.question.presented, " ".join(asked.question.flags)
    title = (
        f"SGLang {sides.ours['version']} (line {asked.line}), {asked.model} on {_gpus(sides.ours)}{card.name}  {flags}"
    )
    _show_choices(title.rstrip(), sides)
    _show_others(sides)
    _show_fails(sides)
    _show_said(sides)
    _show_splits(sides.ours)
    _show_memory(sides)
    for name, side in sides.named:
        report.show(f"{name}: {_verdict(side)}")


def _gpus(side: Mapping[str, Any]) -> str:
    """How many cards all ranks take, where that is more than TP says."""
    facts = side["facts"]
    if "tp" not in facts:
        return ""
    cards = facts["tp"] * facts["pp"] * (1 if facts["dp_attention"] else facts["dp"])
    return f"{cards} GPUs, " if cards > facts["tp"] else ""


def _show_choices(title: str, sides: Sides) -> None:
    cells = [
        (ROWS[row["choice"]], _cell(row["pinned"]), _cell(row["series"]), "changed" * row["changed"],
         ", ".join(row.get("patches", ())))
        for row in _rows(sides)
    ]  # fmt: skip
    report.show_table(title, ("choice", PINNED, OURS, "", "patch"), cells)


def _show_others(sides: Sides) -> None:
    """Arguments besides the choices that the series resolves otherwise, its own among them."""
    before, after = sides.pinned["arguments"], sides.ours["arguments"]
    names = [name for name in after if name not in SHOWN and (name not in before or before[name] != after[name])]
    rows = [
        (
            name,
            _cell(before[name]) if name in before else "not there",
            _cell(after[name]),
            ", ".join(sides.patches(f"arguments.{name}")),
        )
        for name in (names if before else ())
    ]
    if rows:
        report.show_table("\nother arguments that differ", ("argument", PINNED, OURS, "patch"), rows)


def _cell(value: Any) -> str:
    return NONE if value is None else str(value)


def _show_fails(sides: Sides) -> None:
    rows = []
    for name, side in sides.named:
        said = [(fail["stage"], fail["where"] or NONE, fail["sentence"]) for fail in side["fails"]]
        said += [("memory", NONE, sentence) for sentence in side["plan"]["crashes"]]
        said += [("doubt", NONE, sentence) for sentence in side["doubts"]]
        said += [(one["stage"], NONE, f"not asked: {one['why']}") for one in side["unknown"]]
        rows += [(name, *line, ", ".join(sides.patches(line[-1]))) for line in said]
    if rows:
        report.show_table("\nagainst it", ("side", "step", "where", "what it says", "patch"), rows)


def _show_said(sides: Sides) -> None:
    """Warnings that both sides log, and whatever only one of them says."""
    both = [line for line in sides.pinned["said"] if line in sides.ours["said"]]
    rows = [("both", line["text"], "") for line in both if line["level"] == "warning"]
    for name, side in sides.named:
        texts = [line["text"] for line in side["said"] if line not in both]
        rows += [(name, text, ", ".join(sides.patches(text))) for text in texts]
    if rows:
        report.show_table("\nwhat it logs", ("side", "message", "patch"), rows)


def _show_splits(ours: Mapping[str, Any]) -> None:
    splits = ours["plan"]["splits"]
    if splits:
        rows = [
            (str(one["ep"]), f"{one['experts']:g}", f"{one['intermediate']:g}", "; ".join(one["fails"]) or "yes",
             "<- asked" * (one["ep"] == ours["facts"]["ep"]))
            for one in splits
        ]  # fmt: skip
        title = f"\nexpert parallelism at TP {ours['facts']['tp']}, {OURS}"
        report.show_table(title, ("EP", "experts a rank", "rows a rank", "its experts run", ""), rows)


# Key of `plan.Memory` → words; the formula of each is in docs/resolve.md.
MEMORY = {
    "total": "card", "loading": "weights while they load", "weights": "weights", "experts": "  of them experts",
    "static": "memory fraction", "kv": "  left for KV cache", "tokens": "  tokens", "pool": "  which take",
    "requests": "requests", "table": "  their table", "reserve": "activations, graphs (upstream's estimate)",
    "left": "left", "fraction_fits": "largest fraction that fits", "graph_fits": "largest CUDA graph that fits",
}  # fmt: skip
COUNTS = ("tokens", "requests", "graph_fits")
OF_FRACTION = ("left", "graph_fits")  # no amounts where the fraction is none, such as 2 or -1


def _show_memory(sides: Sides) -> None:
    plans = [side["plan"]["memory"] for _, side in sides.named]
    if any(plans):
        rows = [(words, *(_amount(key, one) for one in plans)) for key, words in MEMORY.items()]
        report.show_table("\nmemory of one GPU (arithmetic, docs/resolve.md)", ("", PINNED, OURS), rows)
        report.show()


def _amount(key: str, memory: Mapping[str, Any] | None) -> str:
    if memory is None or memory[key] is None or (key in OF_FRACTION and not 0 < memory["static"] <= memory["total"]):
        return NONE
    if key in COUNTS:
        return f"{memory[key]:,}"
    return f"{memory[key]:.3f}" if key == "fraction_fits" else f"{memory[key]:.2f} GiB"


def _verdict(side: Mapping[str, Any]) -> str:
    why = [fail["sentence"] for fail in side["fails"]] + side["plan"]["crashes"]
    if why:
        return f"would NOT start: {why[0]}"
    doubts = "".join(f"; but {doubt}" for doubt in side["doubts"])
    unasked = ", ".join(dict.fromkeys(one["stage"] for one in side["unknown"]))
    seen = f"was asked: {unasked} not asked" if unasked else "can be told without a GPU"
    return f"would start, as far as {seen}{doubts}{_lacking(side['plan']['memory'])}"


def _lacking(memory: Mapping[str, Any] | None) -> str:
    """What may be missing at full load, which no step of a start shows."""
    if memory is None or memory["left"] >= 0:
        return ""
    fits = memory["fraction_fits"]
    remedy = "" if fits is None else f": --mem-fraction-static {fits:.3f} fits"
    return f"; at full load it may lack {-memory['left']:.1f} GiB{remedy}"
