"""The ways in which the rig refuses to answer.

Only the rig's own refusals live here. What upstream raises is an outcome, and stays as upstream raised it.
"""

from __future__ import annotations


class RigError(Exception):
    """The rig cannot stand where it was asked to stand; the message says why, and what to do."""


# Every StubDecided so far. Upstream has `except Exception: pass`; whoever reports an outcome looks here first.
raised: list[StubDecided] = []


class StubDecided(RigError):
    """Upstream asked a fabricated package for something that only the real one knows.

    Deliberately no ImportError, AttributeError or TypeError: upstream catches those and takes another branch,
    and the rig would then report a guess as upstream's behaviour.
    """

    def __init__(self, path: str, operation: str) -> None:
        """Name the stub by its dotted path, and what was asked of it."""
        super().__init__(
            f"{path} is a stub, and {operation} of it would decide what upstream does. "
            f"Install the real package, or replace {path} in the test by an object that knows the answer."
        )
        self.path = path
        self.operation = operation
        raised.append(self)


class UnknownFact(RigError):
    """Upstream asked the presented card for a fact that the rig does not hold."""

    def __init__(self, card: str, fact: str) -> None:
        """Name the card, and the fact in words that finish "does not know … of CARD"."""
        super().__init__(
            f"The rig does not know {fact} of {card}. Add it to the card in serving/rig/cards.py, with its source."
        )
        self.card = card
        self.fact = fact


class NeedsGpu(RigError):
    """Upstream began to use the presented card. torch's own words for it are an AssertionError: a refusal's colours."""

    def __init__(self, card: str) -> None:
        """Name the card that is only presented."""
        super().__init__(
            f"Upstream tried to compute on {card}, which is only presented. "
            f"Replace that step in the test, or keep its tensors on the CPU."
        )
