"""Reads one patch file: the mail that `git format-patch` writes, its message, its trailers and its sections."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

from ..errors import UsageError
from .diff import parse_sections
from .patch import Edit, Patch
from .paths import Spot, shown

FIRST = "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001"
HEADERS = ("From", "Date", "Subject")
MIME = {
    "MIME-Version": "1.0",
    "Content-Type": "text/plain; charset=UTF-8",
    "Content-Transfer-Encoding": "8bit",
}
AUTHOR = re.compile(r'(?P<name>"(?:[^"\\]|\\.)*"|[^"<>]+) <(?P<email>[^<>\s]*)>')
DATE = re.compile(r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), (\d{1,2}) ([A-Z][a-z]{2}) (\d{4}) (\d\d):(\d\d):(\d\d) [+-]\d{4}")
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
TRAILER = re.compile(r"([A-Za-z][A-Za-z-]*): (\S.*)")
TODO = "Write patch files with tools/export.py, which gives the one form that is read here."


def read_patch(path: Path) -> Patch:
    """The patch in a file, without the contents of its overlay files (`load_series` adds them).

    Raises:
        UsageError: the file is missing or not exactly of the form that `export` writes.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        # why: a patch that is skipped leaves a server half patched (InferenceX#2704)
        raise UsageError(f"{path}: the series names this patch, and there is no such file.", TODO) from None
    patch = parse_patch(str(path), data, 1)
    # A diff whose first line or blank line above it was lost would count as words.
    for line, text in enumerate(_cut(data)[0].split("\n"), 1):
        if text.startswith("diff -"):
            # why: git am takes it for the patch itself (getpatchwork/patchwork#462)
            raise UsageError(f"{path}:{line}: expected no diff in the message, found {text!r}.", TODO)
    return patch


def parse_patch(where: str, data: bytes, line: int | None = None) -> Patch:
    """One mail as bytes; `where` names it in errors.

    Args:
        line: the line of the file `where` at which the mail begins; None where it is no file (a commit).

    Raises:
        UsageError: naming `where` and the line, when the mail is not exactly of the form that `export` writes.
    """
    spot = Spot(where, line)
    head, diff = _cut(data)
    below = spot.down(head.count("\n") + 2)
    headers, message = _head(spot, _utf8(spot, head))
    author = AUTHOR.fullmatch(headers["From"])
    if author is None:
        wrong = _header_at(spot, head, "From")
        # why: the author goes into the commit, and with it into its id
        raise UsageError(f"{wrong}: expected `From: NAME <MAIL>`, found {headers['From']!r}.", TODO)
    if not _is_date(headers["Date"]):
        wrong = _header_at(spot, head, "Date")
        # why: git would put today's date instead, and the commit ids would differ on every run
        raise UsageError(f"{wrong}: expected a date as git writes it, found {headers['Date']!r}.", TODO)
    trailers = parse_trailers(message)
    edits = tuple(section.edit for section in parse_sections(where, diff, below.line))
    _check_once(below, diff, edits)
    slug = next((value for key, value in trailers if key == "Slug"), "")
    name = _unquoted(author["name"])
    return Patch(slug, f"{name} <{author['email']}>", headers["Date"], message, trailers, edits)


def _cut(data: bytes) -> tuple[str, str]:
    """Headers and message, and the diff (latin-1); a patch that brings overlay files alone has none at all."""
    head, found, diff = data.decode("latin-1").partition("\n\ndiff --git ")
    return (head, "diff --git " + diff) if found else (head.rstrip("\n"), "")


def _check_once(spot: Spot, diff: str, edits: tuple[Edit, ...]) -> None:
    paths = [edit.path for edit in edits]
    for at, path in enumerate(paths):
        if path in paths[:at]:
            starts = [match.start() for match in re.finditer(r"^diff --git ", diff, re.MULTILINE)]
            wrong = spot.down(diff.count("\n", 0, starts[at]))
            # why: git apply takes the second one from the result of the first, others do not
            raise UsageError(f"{wrong}: expected one section for each file, found a second one of {shown(path)}.", TODO)


def trailer_at(path: Path, trailer: str) -> Spot:
    """The line of a patch file that begins with this text, in its trailers; else the last line of its message."""
    lines = _cut(path.read_bytes())[0].rstrip("\n").split("\n")
    return Spot(
        str(path), max((at for at, line in enumerate(lines, 1) if line.startswith(trailer)), default=len(lines))
    )


def parse_trailers(message: str) -> tuple[tuple[str, str], ...]:
    """The `Key: value` lines of the last paragraph, where it is made of nothing else.

    A line that begins with white space continues the one above it, as git has it.
    """
    block = re.sub(r"\n[ \t]+", " ", message.rstrip("\n").rpartition("\n\n")[2])
    matches = [TRAILER.fullmatch(line) for line in block.split("\n")]
    if "\n\n" not in message.rstrip("\n") or None in matches:
        return ()
    return tuple((match[1], match[2]) for match in matches if match)


def slug_in(message: str) -> str | None:
    """The slug in a message's trailers, None where there is none."""
    return next((value for key, value in parse_trailers(message) if key == "Slug"), None)


def overlay_paths(message: str) -> tuple[str, ...]:
    """The paths that a message's `Overlay: PATH BLOB` trailers name; an author leaves the blob to export."""
    named = (value for key, value in parse_trailers(message) if key == "Overlay")
    return tuple(re.sub(r" [0-9a-f]{40}$", "", value) for value in named)


def _is_date(text: str) -> bool:
    """Whether it is a date as git writes it, and one that exists."""
    match = DATE.fullmatch(text)
    if match is None or match[2] not in MONTHS:
        return False
    day, year, hour, minute, second = (int(match[number]) for number in (1, 3, 4, 5, 6))
    try:
        datetime(year, MONTHS.index(match[2]) + 1, day, hour, minute, second)
    except ValueError:
        return False
    return True


def _utf8(spot: Spot, text: str) -> str:
    try:
        return text.encode("latin-1").decode("utf-8")
    except UnicodeDecodeError as error:
        wrong = spot.down(text.count("\n", 0, error.start))
        # why: a name in another encoding is another author, and so another commit id
        raise UsageError(f"{wrong}: the message is not UTF-8 at byte {error.start}.", TODO) from error


def _head(spot: Spot, head: str) -> tuple[dict[str, str], str]:
    """The headers, unfolded, and the commit message (subject, blank line, body)."""
    first, _, rest = head.partition("\n")
    if first != FIRST:
        # why: a mail that something converted has lost its line ends (electron#14789)
        raise UsageError(f"{spot}: expected the first line {FIRST!r}, found {first!r}.", TODO)
    top, _, body = rest.partition("\n\n")
    pairs = [line.partition(": ")[::2] for line in top.rstrip("\n").replace("\n ", " ").split("\n")]
    headers = dict(pairs)
    wrong = [key for key in headers if key not in HEADERS and MIME.get(key) != headers[key]]
    wrong += sorted({key for key, _ in pairs if [name for name, _ in pairs].count(key) > 1})
    missing = [key for key in HEADERS if not headers.get(key)]
    if wrong or missing:
        # why: a header that is not understood would be left out of the commit in silence
        raise UsageError(
            f"{_header_at(spot, head, [*wrong, *missing][0])}: expected the mail headers {', '.join(HEADERS)}; "
            f"missing {', '.join(missing) or 'none'}, not understood {', '.join(map(shown, wrong)) or 'none'}.",
            TODO,
        )
    body = body.strip("\n")
    return headers, headers["Subject"] + "\n" + (f"\n{body}\n" if body else "")


def _header_at(spot: Spot, head: str, key: str) -> Spot:
    """The line of a header, the last one where it comes twice; the first of all headers where it is missing."""
    lines = head.partition("\n\n")[0].split("\n")
    return spot.down(
        max((at for at, line in enumerate(lines) if at and line.startswith(key)), default=min(1, len(lines) - 1))
    )


def _unquoted(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name[1:-1]) if name.startswith('"') else name
