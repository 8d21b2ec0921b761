"""What a path in a patch may be, and how a refusal names a place in a file. Everything that names a file asks here."""

from __future__ import annotations

from dataclasses import dataclass


def is_plain(path: str) -> bool:
    """Whether a repository path stays in its tree: no empty part, no `.` or `..`, nothing of git's own."""
    parts = path.split("/")
    return "\0" not in path and not any(part in ("", ".", "..") or part.lower() == ".git" for part in parts)


def shown(text: str) -> str:
    """Text from a file for use in a sentence: on one line, and nothing in it that a terminal would obey."""
    return text if text.isprintable() else repr(text)[1:-1]


@dataclass(frozen=True)
class Spot:
    """Where a refusal points: a file and a 1-based line of it, or a commit, in which no line means anything (None)."""

    where: str
    line: int | None = None

    def down(self, lines: int) -> Spot:
        """The place that many lines further down."""
        return Spot(self.where, None if self.line is None else self.line + lines)

    def __str__(self) -> str:
        """As a sentence begins: `FILE:LINE`."""
        return self.where if self.line is None else f"{self.where}:{self.line}"
