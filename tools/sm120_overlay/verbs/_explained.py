"""Which patch is behind each difference: answers of prefixes of the series, found by halving.

Where two prefixes answer the same, the patches between are taken to change nothing: a pair of them that undo each other
would be passed over, and both would be without effect on the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..queue.series import Series
from ..serving.asking.choices import SHOWN

Ask = Callable[[Sequence[int]], list[dict[str, Any]]]


def lines_of(told: dict[str, Any]) -> dict[str, Any]:
    """What can differ between two answers: choices and other arguments, sentences of refusals, doubts and messages."""
    sentences = [fail["sentence"] for fail in told["fails"]] + [line["text"] for line in told["said"]] + told["doubts"]
    arguments = {f"arguments.{name}": value for name, value in told["arguments"].items() if name not in SHOWN}
    return {**told["choices"], **arguments, **dict.fromkeys(sentences, True)}


def explained(series: Series, ends: Sequence[dict[str, Any]], ask: Ask) -> dict[str, list[str]]:
    """Choice, refusal or message → the slugs that changed it, in the series' order.

    Args:
        ends: the answers of the bare pin and of the whole series.
        ask: answers of the series cut to some lengths.
    """
    length = len(series.patches)
    known = {0: lines_of(ends[0]), length: lines_of(ends[-1])}
    open_ends = [(0, length)] if length else []
    found: dict[str, list[int]] = {}
    while open_ends:
        changed = [(low, high) for low, high in open_ends if known[low] != known[high]]
        for low, high in changed:
            if high - low == 1:
                for name in _differing(known[low], known[high]):
                    found.setdefault(name, []).append(low)
        halves = {(low, high): (low + high) // 2 for low, high in changed if high - low > 1}
        wanted = sorted(set(halves.values()) - known.keys())
        known |= dict(zip(wanted, map(lines_of, ask(wanted)) if wanted else (), strict=True))
        open_ends = [half for (low, high), middle in halves.items() for half in ((low, middle), (middle, high))]
    return {name: [series.slugs[at] for at in sorted(places)] for name, places in found.items()}


def _differing(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]
