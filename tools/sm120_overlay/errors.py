"""Every refusal a user can meet: one sentence that says what is wrong, a second that says what to do.

The class decides the exit code (docs/json.md lists them), so that a script can tell a "no" from a typing error
from a machine that lacks something.
"""

from __future__ import annotations


class OverlayError(Exception):
    """A refusal with its exit code; `what` names the file, the expected and the found, `todo` what to do."""

    exit_code = 2

    def __init__(self, what: str, todo: str) -> None:
        super().__init__(what)
        self.what = what
        self.todo = todo


class Refused(OverlayError):
    """The answer is no: the target is in a state that we will not touch or cannot call equal."""

    exit_code = 1


class UsageError(OverlayError):
    """The call, or a file of the series that the caller keeps, is not of the form it must have."""

    exit_code = 2


class Missing(OverlayError):
    """The machine, the network or a source lacks what the call needs."""

    exit_code = 4
