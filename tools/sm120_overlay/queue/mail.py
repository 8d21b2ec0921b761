"""Reads one patch file: the mail that `git format-patch` writes, its message, its trailers and its sections."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

from ..errors import UsageError
from .diff import parse_sections
from .patch import Patch

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
        raise UsageError(f"{path}: the series names this patch, and there is no such file.", TODO) from None
    return parse_patch(str(path), data)


def parse_patch(where: str, data: bytes) -> Patch:
    """One mail as bytes; `where` names it in errors."""
    text = data.decode("latin-1")
    head, found, diff = text.partition("\n\ndiff --git ")
    # A patch that brings overlay files alone has no diff at all.
    head, diff = (head, "diff --git " + diff) if found else (head.rstrip("\n"), "")
    headers, message = _head(where, _utf8(where, head))
    author = AUTHOR.fullmatch(headers["From"])
    if author is None:
        raise UsageError(f"{where}: expected `From: NAME <MAIL>`, found {headers['From']!r}.", TODO)
    if not _is_date(headers["Date"]):
        raise UsageError(f"{where}: expected a date as git writes it, found {headers['Date']!r}.", TODO)
    trailers = parse_trailers(message)
    edits = tuple(section.edit for section in parse_sections(where, diff))
    slug = next((value for key, value in trailers if key == "Slug"), "")
    name = _unquoted(author["name"])
    return Patch(slug, f"{name} <{author['email']}>", headers["Date"], message, trailers, edits)


def parse_trailers(message: str) -> tuple[tuple[str, str], ...]:
    """The `Key: value` lines of the last paragraph, where it is made of nothing else.

    A line that begins with white space continues the one above it, as git has it.
    """
    block = re.sub(r"\n[ \t]+", " ", message.rstrip("\n").rpartition("\n\n")[2])
    matches = [TRAILER.fullmatch(line) for line in block.split("\n")]
    if "\n\n" not in message.rstrip("\n") or None in matches:
        return ()
    return tuple((match[1], match[2]) for match in matches if match)


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


def _utf8(where: str, text: str) -> str:
    try:
        return text.encode("latin-1").decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: the message is not UTF-8 at byte {error.start}.", TODO) from error


def _head(where: str, head: str) -> tuple[dict[str, str], str]:
    """The headers, unfolded, and the commit message (subject, blank line, body)."""
    first, _, rest = head.partition("\n")
    if first != FIRST:
        raise UsageError(f"{where}: expected the first line {FIRST!r}, found {first!r}.", TODO)
    top, _, body = rest.partition("\n\n")
    pairs = [line.partition(": ")[::2] for line in top.rstrip("\n").replace("\n ", " ").split("\n")]
    headers = dict(pairs)
    wrong = [key for key in headers if key not in HEADERS and MIME.get(key) != headers[key]]
    wrong += sorted({key for key, _ in pairs if [name for name, _ in pairs].count(key) > 1})
    missing = [key for key in HEADERS if not headers.get(key)]
    if wrong or missing:
        raise UsageError(
            f"{where}: expected the mail headers {', '.join(HEADERS)}; "
            f"missing {', '.join(missing) or 'none'}, not understood {', '.join(wrong) or 'none'}.",
            TODO,
        )
    body = body.strip("\n")
    return headers, headers["Subject"] + "\n" + (f"\n{body}\n" if body else "")


def _unquoted(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name[1:-1]) if name.startswith('"') else name
