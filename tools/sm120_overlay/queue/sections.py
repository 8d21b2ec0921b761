"""The functions that the hunks of a diff stand in, as git finds them: whether they still stand where they did."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby


def moved_into(said: Iterable[str], now: Iterable[str]) -> str | None:
    """The function, "" for none, that a hunk has moved into; None where all stand where the diff said, in that order.

    Args:
        said, now: the text behind the second @@ of every hunk, in order (latin-1, as diffs are read).
    """
    before, after = _runs(said), _runs(now)
    if not any(before) or _in_order(after, before):
        return None
    other = next((name for name in after if name not in before), after[0] if after else "")
    return other.encode("latin-1").decode("utf-8", "replace")


def _runs(sections: Iterable[str]) -> list[str]:
    """Functions in the order of the hunks, each once for hunks that follow each other."""
    return [name for name, _ in groupby(section.strip() for section in sections)]


def _in_order(some: Sequence[str], every: Sequence[str]) -> bool:
    """Whether all of `some` come in `every`, in that order (a hunk may be there already, and so be left out)."""
    left = iter(every)
    return all(name in left for name in some)
