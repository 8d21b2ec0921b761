"""Real trees of one line, and processes that stand on them: started once for all tests that ask them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay import report
from sm120_overlay.queue.home import find_home
from sm120_overlay.queue.pins import load_lines
from sm120_overlay.queue.proof import proof_tree
from sm120_overlay.queue.series import load_series
from sm120_overlay.queue.wheels import fetch_wheel
from sm120_overlay.serving import asking
from sm120_overlay.serving.asking.question import checkpoint_files

Ask = Callable[..., dict[str, Any]]
LINE = "v0.5.9"  # whose answers the tests know; test_asking_lines.py asks the others


@pytest.fixture(scope="session")
def trees() -> tuple[Path, Path]:
    """SGLang of the line: as pinned, and with the whole series."""
    home = find_home()
    series = load_series(home, load_lines(home.pins).line(LINE).pin("sglang"))
    wheel = fetch_wheel(series.pin, report.say)
    return proof_tree(replace(series, patches=()), wheel), proof_tree(series, wheel)


@pytest.fixture(scope="session")
def host(trees: tuple[Path, Path]) -> Iterator[asking.Host]:
    """The process that has loaded what both trees share."""
    with asking.start(trees[0]) as started:
        yield started


def _asker(host: asking.Host, tree: Path) -> Iterator[Ask]:
    known: dict[str, dict[str, Any]] = {}
    with host.stand(tree) as warm:

        def ask(model: str, *flags: str, card: str = "rtx-pro-6000", again: bool = False) -> dict[str, Any]:
            question = asking.Question(card, checkpoint_files(model), flags)
            if again or question.digest not in known:
                known[question.digest] = warm.ask(question)
            return known[question.digest]

        yield ask


@pytest.fixture(scope="session")
def pinned(host: asking.Host, trees: tuple[Path, Path]) -> Iterator[Ask]:
    """Asks the bare pin: `pinned(MODEL, FLAG, …, card=CARD)`."""
    yield from _asker(host, trees[0])


@pytest.fixture(scope="session")
def ours(host: asking.Host, trees: tuple[Path, Path]) -> Iterator[Ask]:
    """Asks the whole series in the same way."""
    yield from _asker(host, trees[1])
