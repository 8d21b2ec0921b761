"""Reads diffs that others made: abbreviated blobs or none, renames, other prefixes, mails' signatures around them.

`diff` reads our own patch files and is strict about every byte; here the form is free, and only what a diff *says* must
be plain. Prose may stand before and behind the files of a diff, but nothing in it that could be a part of one, and a
hunk whose lines and counts disagree is refused, so nothing of a damaged diff is passed over. The hunks themselves are
`diff`'s work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..errors import UsageError
from .blobs import blob_id
from .diff import parse_hunks, unquote
from .patch import Hunk
from .paths import Spot, shown

HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
INDEX = re.compile(r"index ([0-9a-f]{4,40})\.\.([0-9a-f]{4,40})(?: (\d{6}))?")
MODE = re.compile(r"(new file|deleted file|old|new) mode (100644|100755|120000|160000)")
MOVE = re.compile(r"(rename|copy) (from|to) (.+)")
ALIKE = re.compile(r"(dis)?similarity index (\d+%)")
BINARY = re.compile(r"(Binary )?[Ff]iles .+ differ|GIT binary patch")
# Lines of a diff's own between its hunks and the next file, and those that end a mail.
BETWEEN = re.compile(
    r"(diff (?!--(git|cc|combined) )|Index: |={20,}|\s*$|(base-commit|prerequisite-patch-id): [0-9a-f]+$)"
)
SIGNATURE = re.compile(r"-- ?$")
# What no prose has: a part of a diff whose beginning is lost, or a file that the diff only names.
ORPHAN = re.compile(
    rf"{HUNK.pattern}|{INDEX.pattern}$|{MODE.pattern}$|(rename|copy) (from|to) \S+$|{ALIKE.pattern}$|{BINARY.pattern}$"
    r"|\+\+\+ \S+|Only in [^:]+: \S|Submodule \S+ [0-9a-f]{7,}|diff --(cc|combined) "
)
NO_FILE = re.compile(r"(1970-01-01|1969-12-31)[ T]")  # how diff -N dates a file that is not there
MAIL = re.compile(r"From \S+ +\w{3} \w{3} ")  # how a mail begins in a file of mails
PREFIX = re.compile(r"[abciow]/")  # git's, also with diff.mnemonicPrefix
EMPTY = blob_id(b"")
KINDS = {"120000": "is a symbolic link", "160000": "is a submodule"}
CARRY = ", which no patch can carry"
NULL = "/dev/null"
TODO = "Make the diff again where the change was made (git diff, or git format-patch), or leave the file out."


@dataclass(frozen=True)
class Foreign:
    """One file of a diff that others made, at `line` of it.

    `source` is the name of the file before and `path` after (None: no such file), both as the diff has them, less
    git's own prefixes; `kept` says that the source stays (a copy). `old` and `new` are blobs, as far as the diff
    says them. `problem` is what no patch of a series can carry, in words.
    """

    line: int
    source: str | None
    path: str | None
    old: str = ""
    new: str = ""
    mode: str = ""
    hunks: tuple[Hunk, ...] = ()
    kept: bool = False
    plain: bool = False
    problem: str = ""

    @property
    def name(self) -> str:
        """What a person calls it."""
        return self.path or self.source or ""


@dataclass
class _Open:
    """A section that is being read."""

    line: int
    heading: str = ""
    names: list[str] = field(default_factory=list)
    index: tuple[str, str] = ("", "")
    modes: dict[str, str] = field(default_factory=dict)
    moves: dict[str, str] = field(default_factory=dict)
    copied: bool = False
    alike: str = ""
    binary: bool = False
    hunks: list[str] = field(default_factory=list)
    hunk_line: int = 0


def parse_foreign(spot: Spot, text: str) -> tuple[Foreign, ...]:
    """The files of a diff (latin-1 text), in its order; a file that it changes twice comes twice.

    Raises:
        UsageError: at its line, when a hunk is damaged or a part of the diff is missing.
    """
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    sections: list[_Open] = []
    at = _after_prose(spot, lines, 0)
    while at < len(lines):
        at = _read(spot, lines, at, sections)
    if not sections:
        colour = "\x1b[" in text
        todo = (
            "Make it without colours: git diff --no-color." if colour else "Make it with git diff, or git format-patch."
        )
        # why: a page that says `not found`, saved as a diff, must not pass for an empty change
        raise UsageError(
            f"{spot}: expected a unified diff, found {'colour codes' if colour else 'no file'} in it.", todo
        )
    return tuple(_closed(spot, section) for section in sections)


def _begins(lines: list[str], at: int) -> bool:
    """Whether a file begins at line `at`."""
    pair = lines[at].startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ ")
    return pair or lines[at].startswith("diff --git ")


def _after_prose(spot: Spot, lines: list[str], at: int) -> int:
    """The next file, behind lines that are no part of a diff."""
    while at < len(lines) and not _begins(lines, at):
        if MAIL.match(lines[at]):
            # why: two mails are two patches; as one their authors and their order are lost
            raise UsageError(f"{spot.down(at)}: found a mail inside a diff.", "Take out what stands before the mails.")
        if ORPHAN.match(lines[at]):
            _refuse_stray(spot, at, lines[at])
        at += 1
    return at


def _read(spot: Spot, lines: list[str], at: int, sections: list[_Open]) -> int:
    """Takes what begins at line `at`; the line to go on with. The first line of all begins a file."""
    line = lines[at]
    if line.startswith("diff --git "):
        sections.append(_Open(at + 1, heading=line))
    elif _begins(lines, at):
        if not sections or sections[-1].names or not sections[-1].heading:
            sections.append(_Open(at + 1))
        sections[-1].names = [line[4:], lines[at + 1][4:]]
        return at + 2
    elif HUNK.match(line) and sections[-1].names:
        return _read_hunk(spot, lines, at, sections[-1])
    elif SIGNATURE.match(line):
        return _after_prose(spot, lines, at + 1)
    elif not (_header(sections[-1], line) or BETWEEN.match(line) or _in_binary(sections[-1], line)):
        _refuse_stray(spot, at, line)
    return at + 1


def _in_binary(section: _Open, line: str) -> bool:
    """Whether it is a line of a binary patch: the file is refused, or left out, by name."""
    return section.binary and not ORPHAN.match(line)


def _refuse_stray(spot: Spot, at: int, line: str) -> None:
    here, found = spot.down(at), shown(line[:60])
    if line.startswith("Only in ") or BINARY.fullmatch(line):
        # why: diff -r only mentions new and binary files, so that the change would come without them
        raise UsageError(
            f"{here}: {found!r}: the diff does not hold that file.",
            "Make it with diff -N for new files, and -x '__pycache__' (or another pattern) to leave files out.",
        )
    if line.startswith(("@@@", "diff --c")):
        # why: it shows a merge against two sides at once, and goes on none of them
        raise UsageError(
            f"{here}: found {found!r}, of a merge's combined diff.", "Make it against one parent: git diff A B."
        )
    if line.startswith("commit "):
        # why: two commits are two patches; as one diff their order is lost
        raise UsageError(f"{here}: found a second commit in one diff.", "Adopt the range itself: A..B --from CLONE.")
    # why: GNU patch skips such lines as garbage, and the hunk below them with them
    raise UsageError(f"{here}: expected a hunk or the next file, found {found!r}: the diff is damaged there.", TODO)


def _header(section: _Open, line: str) -> bool:
    """Whether it is a header line of the section, and the first of its kind; the section then has it."""
    if section.hunks or section.names:
        return False
    if (match := INDEX.fullmatch(line)) and section.index == ("", ""):
        section.index = (match[1], match[2])
        section.modes.setdefault("same", match[3] or "")
    elif (match := MODE.fullmatch(line)) and match[1] not in section.modes:
        section.modes[match[1]] = match[2]
    elif (match := MOVE.fullmatch(line)) and match[2] not in section.moves:
        section.moves[match[2]] = unquote(match[3])
        section.copied = match[1] == "copy"
    elif (match := ALIKE.fullmatch(line)) and not section.alike:
        section.alike = match[2]
    elif BINARY.fullmatch(line):
        section.binary = True
    else:
        return False
    return True


def _read_hunk(spot: Spot, lines: list[str], at: int, section: _Open) -> int:
    """Takes one hunk: exactly the lines that its head counts."""
    match = HUNK.match(lines[at])
    assert match is not None
    left = {"-": int(match[2] or 1), "+": int(match[4] or 1)}
    section.hunk_line = section.hunk_line or at + 1
    end = at + 1
    while (left["-"] > 0 or left["+"] > 0) or (end < len(lines) and lines[end].startswith("\\")):
        if end == len(lines):
            # why: a diff cut short by a download or a mail would go on in part
            raise UsageError(f"{spot.down(at)}: the hunk ends before the lines that its head counts.", TODO)
        sign = lines[end][:1] or " "  # some mailers take the space off an empty line
        if sign == "\\":
            end += 1
            continue
        if sign not in " -+" or any(left[side] <= 0 for side in ("-+" if sign == " " else sign)):
            # why: a line that an editor or a mailer took out shifts all that follow
            raise UsageError(
                f"{spot.down(end)}: expected {left['-']} old and {left['+']} new lines more in the hunk of line "
                f"{at + 1}, found {lines[end][:60]!r}.",
                TODO,
            )
        for side in "-+" if sign == " " else sign:
            left[side] -= 1
        end += 1
    section.hunks += [_normal_head(match, lines[at]), *(line or " " for line in lines[at + 1 : end])]
    return end


def _normal_head(match: re.Match[str], line: str) -> str:
    """The head as git writes it: a length of one is left out."""
    spans = (match.group(1, 2), match.group(3, 4))
    old, new = (start + ("" if length in (None, "1") else f",{length}") for start, length in spans)
    return f"@@ -{old} +{new} @@{line[match.end() :].rstrip()}"


def _closed(spot: Spot, section: _Open) -> Foreign:
    here = spot.down(section.line - 1)
    source, path = _names(here, section)
    if not _complete(section):
        # why: a diff cut short by a download or a mail would go on in part
        raise UsageError(
            f"{here}: {shown(path or source or '')} is named, and its lines are missing: a cut diff.", TODO
        )
    text = "".join(line + "\n" for line in section.hunks)
    hunks = parse_hunks(spot.down(section.hunk_line - 1), path or source or "", text)
    old, new = ("" if set(blob) == {"0"} else blob for blob in section.index)
    mode = section.modes.get("new file", "")
    return Foreign(
        section.line, source, path, old, new, mode, hunks, section.copied, plain=not section.heading,
        problem=_problem(section),
    )  # fmt: skip


def _complete(section: _Open) -> bool:
    """Whether it says all of its change: without hunks an empty file that comes or goes, or a plain rename."""
    if section.hunks or section.binary or section.modes.keys() >= {"old", "new"}:
        return True
    if section.names or section.moves:
        return section.alike == "100%"
    blob = section.index[0 if _gone(section.modes) else 1]
    return len(blob) > 0 and EMPTY.startswith(blob) and not section.modes.keys() <= {"same"}


def _gone(modes: dict[str, str]) -> bool:
    return "deleted file" in modes


def _problem(section: _Open) -> str:
    modes = section.modes
    if section.binary:
        return f"is binary{CARRY}"
    if "old" in modes and "new" in modes:
        return f"changes its mode from {modes['old']} to {modes['new']}{CARRY}"
    return next((KINDS[mode] + CARRY for mode in modes.values() if mode in KINDS), "")


def _names(here: Spot, section: _Open) -> tuple[str | None, str | None]:
    """The file before and after (None: no such file)."""
    found = _both_names(section)
    if found is None or "" in found or found == (NULL, NULL) or not _agreed(section, *found):
        line = section.heading or f"--- {section.names[0]}"
        # why: a name that is guessed may be another file
        raise UsageError(f"{here}: cannot read the names of a file from {shown(line)!r}.", TODO)
    source, path = (None if name == NULL else name for name in found)
    return None if "new file" in section.modes else source, None if _gone(section.modes) else path


def _both_names(section: _Open) -> tuple[str, str] | None:
    """Two names: of the rename, of the ---/+++ lines, or the heading's two halves."""
    if section.moves.keys() == {"from", "to"}:
        return section.moves["from"], section.moves["to"]
    if not section.heading:
        return _plain_names(*section.names)
    named = (_name(section.names[0]), _name(section.names[1])) if section.names else None
    found = named or _halves(section.heading.removeprefix("diff --git "))
    if found and all(name == NULL or PREFIX.match(name) for name in found):
        return _unprefixed(found[0]), _unprefixed(found[1])
    return found


def _agreed(section: _Open, old: str, new: str) -> bool:
    """Whether the heading names the same two files, which are one where nothing says that it was renamed."""
    if not section.heading:
        return True
    old, new = new if old == NULL else old, old if new == NULL else new
    both = section.heading.removeprefix("diff --git ")
    halves = ((both[: match.start()], both[match.end() :]) for match in re.finditer(" ", both))
    named = any(old in _meanings(left) and new in _meanings(right) for left, right in halves)
    return named and (old == new or bool(section.moves))


def _meanings(half: str) -> tuple[str, str]:
    """A name in a heading, with and without a prefix of git's."""
    name = unquote(half)
    return name, PREFIX.sub("", name, count=1)


def _unprefixed(name: str) -> str:
    return name if name == NULL else PREFIX.sub("", name, count=1)


def _plain_names(old: str, new: str) -> tuple[str, str]:
    """The names of diff -u, which knows no rename: a copy that was kept aside (`x.py.orig`) is still x.py."""
    source, path = (NULL if NO_FILE.match(text.partition("\t")[2]) else _name(text) for text in (old, new))
    return (source if NULL in (source, path) else path), path


def _name(text: str) -> str:
    """The name behind --- or +++, without the tab of git's and what diff -u writes behind one."""
    return unquote(text.removesuffix("\t") if text.startswith('"') else text.partition("\t")[0])


def _halves(both: str) -> tuple[str, str] | None:
    """Two names in one line, which are the same but for their prefixes."""
    for middle in (match.start() for match in re.finditer(" ", both)):
        old, new = unquote(both[:middle]), unquote(both[middle + 1 :])
        if old == new or (PREFIX.match(old) and PREFIX.match(new) and old[2:] == new[2:]):
            return old, new
    return None
