"""Reads the file sections of a patch. Strict: what git would not write itself is refused, not guessed at.

Hunks are unidiff's work, over latin-1 text cut at \\n only (so that every byte survives); paths and blobs are read
here, since unidiff keeps quoted paths quoted and refuses some legal ones. Every section is rendered back and
compared with what was read, so nothing in a patch file can be passed over in silence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk as UnidiffHunk
from unidiff.patch import PatchSet

from ..errors import UsageError
from .patch import Edit, Hunk
from .paths import is_plain

INDEX = re.compile(r"index ([0-9a-f]{40})\.\.([0-9a-f]{40})(?: (100644|100755))?")
FILE_MODE = re.compile(r"(new|deleted) file mode (100644|100755)")
ESCAPE = re.compile(r'\\([0-7]{3}|[abtnvfr"\\])')
ESCAPED = {"a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}
NO_BLOB = "0" * 40
TODO = "Write patch files with tools/export.py; it gives git's exact form (--full-index --no-renames)."


@dataclass(frozen=True)
class Section:
    """The part of a patch file that is about one file, as text (latin-1), and the edit it says."""

    text: str
    edit: Edit


def parse_sections(where: str, text: str) -> tuple[Section, ...]:
    """All file sections of `text` (latin-1), which begins at the first `diff --git` line.

    Raises:
        UsageError: naming `where`, when a section is not exactly as git writes it.
    """
    return tuple(Section(part, _parse(where, part)) for part in _split(text))


def _split(text: str) -> Iterator[str]:
    # A line of a hunk begins with ' ', '+', '-' or '\\', so this prefix is always a header.
    starts = [match.start() for match in re.finditer(r"^diff --git ", text, re.MULTILINE)]
    for start, end in zip(starts, [*starts[1:], len(text)][: len(starts)], strict=True):
        yield text[start:end]


def _parse(where: str, text: str) -> Edit:
    head, at, rest = text.partition("\n@@ ")
    hunk_text = at[1:] + rest
    lines = head.split("\n") if at else head.rstrip("\n").split("\n")
    mode, old, new, names = _blobs(where, lines)
    path = _path(where, lines[0], names)
    if not is_plain(path):
        raise UsageError(f"{where}: {path!r} is not a plain path inside the tree.", TODO)
    hunks = _hunks(where, path, hunk_text)
    if _heading(lines[0], path) is None or _file_names(path, old, new, bool(hunks)) != names:
        raise UsageError(f"{where}: the section of {path} names its file in more than one way.", TODO)
    return Edit(path, mode, old, new, hunks)


def _blobs(where: str, lines: list[str]) -> tuple[str, str | None, str | None, list[str]]:
    """Mode, old blob, new blob and the remaining lines (`---` and `+++`) of a section's header."""
    rest = lines[1:]
    made = FILE_MODE.fullmatch(rest[0]) if rest else None
    rest = rest[1:] if made else rest
    index = INDEX.fullmatch(rest[0]) if rest else None
    if index is None or (made is None) == (index[3] is None):
        found = rest[0] if rest else "nothing"
        raise UsageError(
            f"{where}: expected a full `index` line with the mode of an unchanged kind after {lines[0]!r}, "
            f"found {found!r}.",
            "Renames, mode changes, symlinks, submodules and binary patches cannot be carried. " + TODO,
        )
    old, new = (None if blob == NO_BLOB else blob for blob in index.groups()[:2])
    if (old is None) != (made is not None and made[1] == "new"):
        raise UsageError(f"{where}: the blobs after {lines[0]!r} do not fit its file mode line.", TODO)
    return (made or index)[2 if made else 3], old, new, rest[1:]


def _path(where: str, heading: str, names: list[str]) -> str:
    """The path of a section, from its `+++` or `---` line, else from the two equal halves of its heading."""
    for name in reversed(names):
        text = name[4:].removesuffix("\t")
        if text != "/dev/null":
            return unquote(text)[2:]
    both = heading.removeprefix("diff --git ")
    half = both[: (len(both) - 1) // 2]
    path = unquote(half)[2:]
    if _heading(heading, path) is None:
        raise UsageError(f"{where}: cannot read one path from {heading!r}.", TODO)
    return path


def _heading(heading: str, path: str) -> str | None:
    expected = f"diff --git {quote('a/' + path)} {quote('b/' + path)}"
    return expected if heading == expected else None


def _file_names(path: str, old: str | None, new: str | None, hunks: bool) -> list[str]:
    if not hunks:
        return []
    old_name, new_name = (
        f"{mark} " + (_tabbed(side + path) if blob else "/dev/null")
        for mark, side, blob in (("---", "a/", old), ("+++", "b/", new))
    )
    return [old_name, new_name]


def _tabbed(name: str) -> str:
    """git ends a name that holds a space with a tab, for the sake of GNU patch."""
    return quote(name) + ("\t" if " " in name else "")


def _hunks(where: str, path: str, text: str) -> tuple[Hunk, ...]:
    if not text:
        return ()
    lines = [line + "\n" for line in text.split("\n")[:-1]]
    try:
        (parsed,) = PatchSet(["--- a\n", "+++ b\n", *lines])
    except (UnidiffParseError, ValueError) as error:
        raise UsageError(f"{where}: the hunks of {path} do not parse: {str(error).strip()}.", TODO) from error
    if "".join(map(_rendered, parsed)) != text:
        raise UsageError(f"{where}: the hunks of {path} hold something that is not part of a hunk.", TODO)
    return tuple(map(_hunk, parsed))


def _rendered(hunk: UnidiffHunk) -> str:
    """The hunk as git writes it; unidiff's own str() writes `-1,1` where git writes `-1`."""
    spans = [
        f"{sign}{start}" + ("" if length == 1 else f",{length}")
        for sign, start, length in (
            ("-", hunk.source_start, hunk.source_length),
            ("+", hunk.target_start, hunk.target_length),
        )
    ]
    section = f" {hunk.section_header}" if hunk.section_header else ""
    return f"@@ {spans[0]} {spans[1]} @@{section}\n" + "".join(line.line_type + line.value for line in hunk)


def _hunk(hunk: UnidiffHunk) -> Hunk:
    sides: dict[str, list[bytes]] = {"-": [], "+": []}
    touched = ""
    for line in hunk:
        if line.line_type == "\\":
            for side in touched:
                sides[side][-1] = sides[side][-1].removesuffix(b"\n")
            continue
        touched = "-+" if line.line_type == " " else line.line_type
        for side in touched:
            sides[side].append(line.value.encode("latin-1"))
    return Hunk(hunk.source_start, tuple(sides["-"]), tuple(sides["+"]), hunk.section_header)


def unquote(name: str) -> str:
    """A path as git writes it in a diff (latin-1 text, perhaps C-quoted) as a file system path."""
    if name.startswith('"') and name.endswith('"') and len(name) > 1:
        name = ESCAPE.sub(lambda m: ESCAPED.get(m[1]) or chr(int(m[1], 8)), name[1:-1])
    return os.fsdecode(name.encode("latin-1"))


def quote(path: str) -> str:
    """A path as git writes it in a diff under its default core.quotePath (the inverse of `unquote`)."""
    unescape = {char: f"\\{code}" for code, char in ESCAPED.items()}
    raw = os.fsencode(path).decode("latin-1")
    quoted = "".join(unescape.get(char) or (char if " " <= char <= "~" else f"\\{ord(char):03o}") for char in raw)
    return raw if quoted == raw else f'"{quoted}"'
