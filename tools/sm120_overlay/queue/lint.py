"""What every patch of a series must be, so that a stranger can judge it and a tool can carry it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import OverlayError
from .export import Exported, exported_series, named_overlays
from .home import Home
from .origin import NAME
from .patch import SLUG, Edit, Patch
from .pins import Line, Lines, Pin
from .series import Series, chains, load_series, series_names
from .unfinished import marks

REQUIRED = ("Slug", "Scope", "Upstream-Status", "Test", "Drop-When", "Evidence")
REPEATABLE = ("Issue", "Needs", "Overlay", "Signed-off-by")
KNOWN = {*REQUIRED, *REPEATABLE, "Why-Not-Plugin"}
# How the value of a trailer must be: the pattern, and in words.
VALUES = {
    "Slug": (SLUG, "lower-case words joined by hyphens"),
    "Scope": (r"sm12x|any", "sm12x or any"),
    "Upstream-Status": (
        r"Pending|Submitted \[https?://\S+\]|Backport \[[^\]]+\]|Inappropriate \[[^\]]+\]",
        "Pending, Submitted [url], Backport [what, from where] or Inappropriate [why]",
    ),
    "Issue": (r"[\w.-]+#\d+", "project#number"),
    "Overlay": (r".+ [0-9a-f]{40}", "a path and its blob"),
    "Drop-When": (r"\S.{9,}", "a sentence of at least ten characters"),
    "Evidence": (
        r"reasoned|compiled|executed-cpu|(executed-h200|executed-sm120) docs/evidence/\S+",
        "reasoned, compiled, executed-cpu, or executed-h200 or executed-sm120 with a file below docs/evidence/",
    ),
    "Signed-off-by": (r"[^<>]+ <[^<>\s]+@[^<>\s]+>", "a name and a mail address"),
}
# Lines of a body that git am would take for something else: the next mail, the diff, or a header.
HAZARDS = re.compile(r"From |>From |diff -|Index: |---|-- >8|\S* ?8< |(?i:from|date|subject): |\[PATCH")
TWO_REASONS = re.compile(r"\b(and also|and then)\b|;| & ", re.IGNORECASE)
WIDTH = 72


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, and where."""

    where: str
    what: str


def lint_line(home: Home, line: Line) -> tuple[Finding, ...]:
    """Everything wrong with the series of a line; empty when nothing is."""
    findings: list[Finding] = []
    owners: dict[str, str] = {}
    for pin in line.pins:
        try:
            series = load_series(home, pin)
        except OverlayError as error:
            findings.append(Finding(f"{line.name}/{pin.upstream}", error.what))
            continue
        for slug in series.slugs:
            if slug in owners:
                findings.append(Finding(slug, f"the slug is taken by {owners[slug]}; expected unique over the line"))
            owners[slug] = pin.upstream
        findings += [*lint_series(home, series), *_strays(home, series)]
    return (*findings, *_absent(line, owners))


def lint_answers(home: Home, lines: Lines, line: Line) -> tuple[Finding, ...]:
    """The patches of other lines that this one says nothing of: neither carried nor recorded, so perhaps forgotten."""
    said, upstreams = _said_of(home, line), {pin.upstream for pin in line.pins}
    found: dict[str, str] = {}
    for other in lines.lines:
        for slug, upstream in _said_of(home, other).items():
            if slug not in said and upstream in upstreams:
                found.setdefault(slug, other.name)
    return tuple(
        Finding(slug, f"line {other} has an answer for it and {line.name} has none: carry it, or record it as absent")
        for slug, other in found.items()
    )


def _said_of(home: Home, line: Line) -> dict[str, str]:
    """Slug → upstream, of the patches that a line carries or records as absent."""
    found = {one.slug: pin.upstream for pin in line.pins for one in pin.absent}
    for pin in line.pins:
        with suppress(OverlayError):  # a list that cannot be read is a finding of its own line
            found |= dict.fromkeys(series_names(home.patches(line.name, pin.upstream) / "series"), pin.upstream)
    return found


def _absent(line: Line, owners: dict[str, str]) -> Iterator[Finding]:
    """Slugs that the line records as absent and has all the same, be it in the other upstream's series."""
    recorded: dict[str, str] = {}
    for pin in line.pins:
        for entry in pin.absent:
            if entry.slug in owners:
                yield Finding(entry.slug, f"pins.toml records it as {entry.state}, and {owners[entry.slug]} carries it")
            if entry.slug in recorded:
                yield Finding(entry.slug, f"pins.toml records it twice, for {recorded[entry.slug]} and {pin.upstream}")
            recorded[entry.slug] = pin.upstream


def _strays(home: Home, series: Series) -> Iterator[Finding]:
    """Files that no series names: lost in a merge, or left behind."""
    folder = home.patches(series.pin.line, series.pin.upstream)
    for file in sorted(folder.glob("*")):
        if file.name not in ("series", NAME) and file.name.removesuffix(".patch") not in series.slugs:
            yield Finding(series.pin.upstream, f"{file.relative_to(home.root)} is not in its series")
    overlay = home.overlay(series.pin.upstream)
    folders = (line / series.pin.upstream for line in (home.root / "patches").glob("*"))
    named = {path for other in folders for path in named_overlays(other)}
    for file in sorted(path for path in overlay.rglob("*") if path.is_file()):
        if str(file.relative_to(overlay)) not in named:
            yield Finding(series.pin.upstream, f"{file.relative_to(home.root)} is named by no patch")


def lint_series(home: Home, series: Series) -> tuple[Finding, ...]:
    """Everything wrong with one series."""
    findings = [
        Finding(patch.slug or patch.subject, what) for patch in series.patches for what in _patch(home, series, patch)
    ]
    try:
        chains(series)
    except OverlayError as error:
        findings.append(Finding(series.pin.upstream, error.what))
    return tuple(findings)


def _patch(home: Home, series: Series, patch: Patch) -> Iterator[str]:
    yield from (f"`{line}` waits for a person to fill it in" for line in marks(patch.message))
    for check in (_trailers, _message):
        yield from check(patch)
    yield from _test(home, patch)
    yield from _evidence(home, patch)
    yield from _needs(series, patch)
    if series.pin.plugins and patch.trailer("Why-Not-Plugin") is None:
        yield f"the trailer `Why-Not-Plugin:` is missing: {series.pin.upstream} has plugins; say why no hook can do it"
    if not patch.edits:
        yield "it changes nothing"
    overlays = {path for other in series.patches for path, _ in other.overlays}
    for edit in patch.edits:
        yield from _edit(series.pin, edit, overlays)


def _trailers(patch: Patch) -> Iterator[str]:
    keys = [key for key, _ in patch.trailers]
    for key in REQUIRED:
        if key not in keys:
            yield f"the trailer `{key}:` is missing"
    for key in sorted(set(keys)):
        if key not in KNOWN:
            yield f"the trailer `{key}:` is not one of {', '.join(sorted(KNOWN))}"
        elif keys.count(key) > 1 and key not in REPEATABLE:
            yield f"the trailer `{key}:` comes {keys.count(key)} times; expected once"
    for key, value in patch.trailers:
        pattern, words = VALUES.get(key, (r".*", ""))
        if not re.fullmatch(pattern, value) and not marks(value):
            yield f"`{key}: {value}` should be {words}"


def _message(patch: Patch) -> Iterator[str]:
    subject, _, body = patch.message.partition("\n")
    plain = re.fullmatch(r"(?!re: )[\w./*-]+: \S.*[^.\s]", subject, re.IGNORECASE) and "=?" not in subject
    if not plain or len(subject) > WIDTH or "  " in subject:
        yield f"the subject {subject!r} should read `area: what it does`, at most {WIDTH} characters, without a period"
    if TWO_REASONS.search(subject):
        yield f"the subject {subject!r} gives two reasons; a patch has one"
    if len(body.strip().split("\n\n")) < 2:
        yield "the body is missing: what breaks, on which hardware, how it was established, what was not measured"
    lines = body.strip("\n").split("\n")
    for line in lines:
        if HAZARDS.match(line):
            yield f"git am would misread the line {line!r} of the body"
    if "\n\n\n" in body or any(line != line.rstrip() for line in lines):
        yield "git am would take out double blank lines and white space at line ends from the body"


def _test(home: Home, patch: Patch) -> Iterator[str]:
    named = patch.trailer("Test")
    expected = f"tests/patches/test_{patch.slug.replace('-', '_')}.py"
    if named is not None and named != expected:
        yield f"`Test: {named}` should name {expected}"
    elif named is not None and not (home.root / named).is_file():
        yield f"its test {named} does not exist"


def _evidence(home: Home, patch: Patch) -> Iterator[str]:
    said = patch.trailer("Evidence") or ""
    file = said.partition(" ")[2]
    if file and not marks(said) and not (home.root / file).is_file():
        yield f"its evidence {file} does not exist"
    elif file.endswith(".json") and not marks(said):
        yield from _recorded(home.root / file, patch.slug, said.partition(" ")[0])
    if (patch.trailer("Upstream-Status") or "").startswith("Backport"):
        notice = home.root / "NOTICE"
        if not notice.is_file() or patch.slug not in notice.read_text(encoding="utf-8"):
            yield "a backport takes upstream's own change: NOTICE must name its slug"


def _recorded(file: Path, slug: str, kind: str) -> Iterator[str]:
    """What `verify --on-gpu` wrote must say of this patch what its trailer says: on that card, not another."""
    try:
        recorded = json.loads(file.read_bytes())
        found = {result["slug"]: result["outcome"] for result in recorded["results"]}.get(slug, "not there")
        card, is_sm12x = recorded["card"]["name"], recorded["sm12x"]
    except (ValueError, KeyError, TypeError, AttributeError):
        yield f"its evidence {file.name} is not what verify --on-gpu writes"
        return
    expected = "shown" if kind == "executed-sm120" else "ran"
    right_card = is_sm12x if kind == "executed-sm120" else "H200" in card
    if found != expected or not right_card:
        yield f"its evidence {file.name} says {found} on {card}; expected {expected} for {kind}"


def _needs(series: Series, patch: Patch) -> Iterator[str]:
    before = series.slugs[: series.slugs.index(patch.slug)] if patch.slug in series.slugs else ()
    upstreams = {one.slug for one in series.pin.absent if one.state == "absorbed"}
    for need in patch.all("Needs"):
        if need not in before and need not in upstreams:
            yield f"it needs {need}, which does not come before it in the series"


def _edit(pin: Pin, edit: Edit, overlays: set[str]) -> Iterator[str]:
    if pin.installed_path(edit.path) is None:
        yield f"{edit.path} has no place in the installed package (generated, a submodule, or outside the path map)"
    if edit.whole is None and edit.path in overlays:
        yield f"{edit.path} is an overlay file: edit the file itself, never by a diff"
    expected = pin.mode(edit.path) if edit.old else "100644"
    if edit.mode != expected:
        yield f"{edit.path} declares mode {edit.mode}, expected {expected}: a patch never changes a mode"
    if any(line.startswith((b"<<<<<<< ", b">>>>>>> ")) for line in _added(edit)):
        yield f"{edit.path} gets conflict markers: solve the conflict, amend the commit"
    if _binary(edit):
        yield f"{edit.path} is not text"
    if any(_line_ends(hunk.old) - {""} and not _line_ends(hunk.new) <= _line_ends(hunk.old) for hunk in edit.hunks):
        yield f"{edit.path} gets other line ends than upstream's"


def _line_ends(lines: tuple[bytes, ...]) -> set[str]:
    """The kinds of line ends in a hunk: CRLF, LF, or "" for a last line without any."""
    return {"CRLF" if line.endswith(b"\r\n") else "LF" if line.endswith(b"\n") else "" for line in lines}


def _added(edit: Edit) -> Iterator[bytes]:
    """Lines that the file gets."""
    yield from (edit.whole or b"").split(b"\n")
    for hunk in edit.hunks:
        yield from (line for line in hunk.new if line not in hunk.old)


def _binary(edit: Edit) -> bool:
    lines = [line for hunk in edit.hunks for line in (*hunk.old, *hunk.new)]
    return b"\0" in (edit.whole or b"") or any(b"\0" in line for line in lines)


def lint_export(home: Home, pin: Pin, exported: Exported) -> tuple[Finding, ...]:
    """Everything wrong with a series that is about to be written."""
    return lint_series(home, exported_series(pin, exported))
