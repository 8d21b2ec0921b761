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
from .paths import Spot, is_plain, shown

INDEX = re.compile(r"index ([0-9a-f]{40})\.\.([0-9a-f]{40})(?: (100644|100755))?")
FILE_MODE = re.compile(r"(new|deleted) file mode (100644|100755)")
ESCAPE = re.compile(r'\\([0-3][0-7]{2}|[abtnvfr"\\])')
ESCAPED = {"a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}
NO_BLOB = "0" * 40
ODD_MARKER = re.compile(r"^\\(?! No newline at end of file$).*$", re.MULTILINE)
SPANS = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
# How git is asked for a diff in the one form that is read here: nothing that a user's settings decide.
DIFF_FORM = (
    "--no-renames", "--full-index", "--unified=3", "--diff-algorithm=myers", "--src-prefix=a/", "--dst-prefix=b/",
    "--no-ext-diff", "--no-textconv", "--text", "--no-indent-heuristic", "--inter-hunk-context=0", "--no-color",
)  # fmt: skip
TODO = "Write patch files with tools/export.py; it gives git's exact form (--full-index --no-renames)."
CARRIED = "Renames, mode changes, symlinks, submodules and binary patches cannot be carried. "


@dataclass(frozen=True)
class Section:
    """The part of a patch file that is about one file, as text (latin-1), and the edit it says."""

    text: str
    edit: Edit


def parse_sections(where: str, text: str, line: int | None = None) -> tuple[Section, ...]:
    """All file sections of `text` (latin-1), which begins at the first `diff --git` line.

    Args:
        line: the line of the file `where` at which `text` begins; None where it is no file (a commit).

    Raises:
        UsageError: naming `where` and the line, when a section is not exactly as git writes it.
    """
    spot = Spot(where, line)
    return tuple(Section(part, _parse(spot.down(above), part)) for above, part in _split(text))


def _split(text: str) -> Iterator[tuple[int, str]]:
    """Every section of `text`, with how many lines stand above it."""
    # A line of a hunk begins with ' ', '+', '-' or '\\', so this prefix is always a header.
    starts = [match.start() for match in re.finditer(r"^diff --git ", text, re.MULTILINE)]
    above = 0
    for start, end in zip(starts, [*starts[1:], len(text)][: len(starts)], strict=True):
        yield above, text[start:end]
        above += text.count("\n", start, end)


def _parse(spot: Spot, text: str) -> Edit:
    head, at, rest = text.partition("\n@@ ")
    hunk_text = at[1:] + rest
    lines = head.split("\n") if at else head.rstrip("\n").split("\n")
    mode, old, new, names = _blobs(spot, lines)
    path = _path(spot, lines[0])
    if not is_plain(path):
        # why: a patch must not reach outside its tree, nor into .git
        raise UsageError(f"{spot}: {path!r} is not a plain path inside the tree.", TODO)
    hunks = parse_hunks(spot.down(len(lines)), path, hunk_text)
    _check_form(spot.down(len(lines)), path, hunk_text)
    expected = [_heading(path), *_file_names(path, old, new, bool(hunks))]
    if expected != [lines[0], *names]:
        odd = _first_difference(expected, [lines[0], *names])
        wrong = spot.down(len(lines) - len(names) + odd - 1 if odd else 0)
        # why: readers of a diff do not agree on which of its names counts
        raise UsageError(f"{wrong}: the section of {shown(path)} names its file in more than one way.", TODO)
    return Edit(path, mode, old, new, hunks)


def _first_difference(expected: list[str], found: list[str]) -> int:
    pairs = enumerate(zip(expected, found, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(expected), len(found)))


def _blobs(spot: Spot, lines: list[str]) -> tuple[str, str | None, str | None, list[str]]:
    """Mode, old blob, new blob and the remaining lines (`---` and `+++`) of a section's header."""
    rest = lines[1:]
    made = FILE_MODE.fullmatch(rest[0]) if rest else None
    rest = rest[1:] if made else rest
    index = INDEX.fullmatch(rest[0]) if rest else None
    # The line that should be the index line; the heading, where nothing follows it.
    line = spot.down(len(lines) - len(rest) if rest else 0)
    if index is None or (made is None) == (index[3] is None):
        found = rest[0] if rest else "nothing"
        # why: without both whole blob ids nothing is exact; a binary has no lines to place (cruft#131)
        raise UsageError(
            f"{line}: expected a full `index` line with the mode of an unchanged kind after {lines[0]!r}, "
            f"found {found!r}.",
            CARRIED + TODO,
        )
    old, new = (None if blob == NO_BLOB else blob for blob in index.groups()[:2])
    if (old is None) != (made is not None and made[1] == "new"):
        # why: a new file has no blob before, a deleted one none after; else one of both lines is wrong
        raise UsageError(f"{line}: the blobs after {lines[0]!r} do not fit its file mode line.", TODO)
    odd = next((at for at, name in enumerate(rest) if at and not name.startswith(("--- ", "+++ "))), None)
    if odd is not None:
        what = f"expected the `---` and `+++` lines of {lines[0]!r}, found {rest[odd]!r}"
        # why: a section whose names do not say the same has been edited by hand
        raise UsageError(f"{line.down(odd)}: {what}.", CARRIED + TODO)
    return (made or index)[2 if made else 3], old, new, rest[1:]


def _path(spot: Spot, heading: str) -> str:
    """The path of a section, from the two equal halves of its heading."""
    both = heading.removeprefix("diff --git ")
    path = unquote(both[: (len(both) - 1) // 2])[2:]
    if _heading(path) != heading:
        # why: a heading parts its two names by a space, and names may hold spaces (python-unidiff#119)
        raise UsageError(f"{spot}: cannot read one path from {heading!r}.", TODO)
    return path


def _heading(path: str) -> str:
    return f"diff --git {quote('a/' + path)} {quote('b/' + path)}"


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


def parse_hunks(spot: Spot, path: str, text: str) -> tuple[Hunk, ...]:
    """The hunks of one file, from text that begins at the first `@@` and is as git writes it.

    Raises:
        UsageError: at the line of the first hunk that is none.
    """
    try:
        return _read(text)
    except (UnidiffParseError, ValueError) as error:
        why = shown(str(error).strip())
        # why: a hunk that is half read is half applied
        raise UsageError(f"{_broken(spot, text)}: the hunks of {shown(path)} do not parse: {why}.", TODO) from error


def _check_form(spot: Spot, path: str, text: str) -> None:
    """That git wrote them so: its marker, and the new side of every hunk where the hunks before it move it."""
    marker = ODD_MARKER.search(text)
    if marker:
        wrong = spot.down(text.count("\n", 0, marker.start()))
        # why: it is the last byte of the file that this line decides on
        raise UsageError(f"{wrong}: expected `\\ No newline at end of file`, found {marker[0]!r}.", TODO)
    moved = 0
    for match in SPANS.finditer(text):
        old, old_length, new, new_length = (1 if number is None else int(number) for number in match.groups())
        # An empty side names the line before it.
        expected = old + (old_length == 0) + moved - (new_length == 0)
        if new != expected:  # git apply goes by this number, the applier by the other one
            wrong = spot.down(text.count("\n", 0, match.start()))
            # why: a hunk moved or damaged by hand lands elsewhere (toybox#533, rules_py#508)
            raise UsageError(f"{wrong}: expected a hunk of {shown(path)} at +{expected}, found +{new}.", TODO)
        moved += new_length - old_length


def _read(text: str) -> tuple[Hunk, ...]:
    if not text:
        return ()
    lines = [line + "\n" for line in text.split("\n")[:-1]]
    (parsed,) = PatchSet(["--- a\n", "+++ b\n", *lines])
    if "".join(map(_rendered, parsed)) != text:
        raise ValueError("they hold something that is not part of a hunk")
    return tuple(map(_hunk, parsed))


def _broken(spot: Spot, text: str) -> Spot:
    """Where the first hunk begins that is none by itself."""
    starts = [match.start() for match in re.finditer(r"^@@ ", text, re.MULTILINE)]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        try:
            _read(text[start:end])
        except (UnidiffParseError, ValueError):
            return spot.down(text.count("\n", 0, start))
    return spot


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
            if not touched:
                raise ValueError("a marker for a missing line end follows no line")
            for side in touched:
                sides[side][-1] = sides[side][-1].removesuffix(b"\n")
            touched = ""
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
