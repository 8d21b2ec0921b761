"""The nouns of a series: hunk, edit, patch. They hold what a patch file says and can do nothing by themselves."""

from __future__ import annotations

from dataclasses import dataclass

SLUG = r"[a-z0-9]+(-[a-z0-9]+)*"


@dataclass(frozen=True)
class Hunk:
    """One run of lines to replace, at one place.

    `old` and `new` are whole lines as bytes with their line ends (the last one of a file may lack it), context
    included; `start` is the 1-based line of the first old line, and where there is none the line to insert after.
    `section` is what git found as the enclosing function (the text behind the second @@).
    """

    start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]
    section: str = ""


@dataclass(frozen=True)
class Edit:
    """One file of a patch: exactly from blob `old` to blob `new` (None: the file is not there).

    `mode` is what the patch declares (`100644` or `100755`). `whole` holds the bytes of an overlay file, which
    has no hunks.
    """

    path: str
    mode: str
    old: str | None
    new: str | None
    hunks: tuple[Hunk, ...] = ()
    whole: bytes | None = None


@dataclass(frozen=True)
class Patch:
    """One `git am`-able change with one reason, known across lines by its slug.

    `message` is the commit message, trailers included; `date` is the author date as RFC 2822 has it.
    """

    slug: str
    author: str
    date: str
    message: str
    trailers: tuple[tuple[str, str], ...]
    edits: tuple[Edit, ...]

    @property
    def subject(self) -> str:
        """The first line of the message."""
        return self.message.partition("\n")[0]

    @property
    def overlays(self) -> tuple[tuple[str, str], ...]:
        """Path and blob of every overlay file, as its `Overlay: PATH BLOB` trailers name them."""
        return tuple((path, blob) for path, _, blob in (value.rpartition(" ") for value in self.all("Overlay")))

    def trailer(self, key: str) -> str | None:
        """The value of the first trailer of that name."""
        return next((value for name, value in self.trailers if name == key), None)

    def all(self, key: str) -> tuple[str, ...]:
        """The values of all trailers of that name, in order."""
        return tuple(value for name, value in self.trailers if name == key)
