"""A new pin: what pins.toml must say of a release that no line has yet, and pins.toml with it.

What can be read is read from the wheel (its hash, its layout, the commit where a generated file names it) or from a
repository that has the tag; the rest is as on the line before.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .git import Repository, commit_named, run
from .home import Home
from .pins import Absent, Line, Pin, Wheel, pin_of
from .sources import laid_out_root
from .wheels import Say, fetch_release, tag_of

VERSION = re.compile(r"v?(\d+(?:\.\d+)*(?:\.?(?:post|rc|a|b|dev)\d+)*)")


def new_pin(old: Pin, line: str, version: str, repository: Path | None, say: Say) -> Pin:
    """The pin of a release that pins.toml does not have, on a line that has none of this upstream.

    Args:
        repository: a clone that may hold the release's tag.

    Raises:
        Missing: the package index has no wheel of it.
    """
    file = fetch_release(old.distribution, version, say)
    tag = f"v{version}"
    wheel = Wheel(tag_of(file.name), hashlib.sha256(file.read_bytes()).hexdigest(), "")
    known = replace(old, line=line, tag=tag, version=version, wheels=(wheel,), absent=_still(old))
    commit = commit_named(Repository(repository.resolve()), f"refs/tags/{tag}") if repository else ""
    modes = _modes(repository, commit) if repository and commit else {}
    excluded = (*old.excluded, *_unmapped(known, file))
    present = {known.repository_path(name) for name in zipfile.ZipFile(file).namelist()}
    executable = {path for path, mode in modes.items() if mode == "100755"} if modes else old.executable
    known = replace(
        known,
        commit=commit or _named_commit(known, file),
        excluded=excluded,
        executable=frozenset(executable & present),
    )
    return replace(known, wheels=(replace(wheel, root=laid_out_root(known, file)),))


def version_in(text: str) -> str:
    """The version in a release's name, such as `0.5.24` or `v0.5.24`.

    Raises:
        UsageError: it is none.
    """
    match = VERSION.fullmatch(text)
    if match is None:
        # why: a pin has a wheel, which is what the proofs stand on; a branch has none
        raise UsageError(
            f"--onto {text}: expected a release, such as 0.5.24, or a line of pins.toml.",
            "A series lies on any commit by apply --at; a line is made of releases.",
        )
    return match[1]


def _still(old: Pin) -> tuple[Absent, ...]:
    """What upstream has by now it has in later releases too; what did not matter there may matter here."""
    return tuple(one for one in old.absent if one.state == "absorbed")


def _modes(repository: Path, commit: str) -> dict[str, str]:
    out = run(Repository(repository.resolve()), "ls-tree", "-r", "-z", "--full-tree", commit).decode(
        "utf-8", "surrogateescape"
    )
    return {path: head.split(" ")[0] for head, _, path in (row.partition("\t") for row in out.split("\0") if row)}


def _named_commit(pin: Pin, file: Path) -> str:
    """The commit that one of the wheel's generated files names; "" where none does."""
    with zipfile.ZipFile(file) as archive:
        generated = (name for name in archive.namelist() if name in pin.excluded and name.endswith(".py"))
        found = {commit for name in generated for commit in re.findall(rb"\b[0-9a-f]{40}\b", archive.read(name))}
    return found.pop().decode() if len(found) == 1 else ""


def _unmapped(pin: Pin, file: Path) -> list[str]:
    """Compiled libraries, which differ from platform to platform, by their prefix without the platform."""
    with zipfile.ZipFile(file) as archive:
        names = [name for name in archive.namelist() if name.endswith(".so") and pin.repository_path(name)]
    return sorted({name[: name.rindex("/") + 1] + name.rpartition("/")[2].partition(".")[0] + "." for name in names})


def joint_versions(old: Line, file: Path) -> dict[str, str]:
    """Of the distributions that the line before pins jointly, the versions that this wheel asks for by `==`."""
    with zipfile.ZipFile(file) as archive:
        (metadata,) = [name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
        wanted = PathDistribution(zipfile.Path(archive, metadata.rpartition("/")[0] + "/")).requires or []
    exact = (re.match(r"([\w.-]+)(?:\[[^]]*\])?==([^\s;,]+)", line) for line in wanted)
    named = {re.sub(r"[-_.]+", "-", match[1]).lower(): match[2] for match in exact if match}
    return {name: named[name] for name, _ in old.joint if name in named}


def as_table(pin: Pin) -> dict[str, Any]:
    """A pin as pins.toml has it."""
    said: dict[str, Any] = {
        name: value
        for name, value in asdict(pin).items()
        if value and name not in ("line", "upstream", "paths", "wheels", "executable", "prebuilt", "absent")
    }
    said = {name: list(value) if isinstance(value, tuple) else value for name, value in said.items()}
    said["commit"] = pin.commit
    said["paths"] = dict(pin.paths)
    said["executable"] = sorted(pin.executable)
    if pin.prebuilt:
        said["prebuilt"] = {name: list(prefixes) for name, prefixes in pin.prebuilt}
    said["wheels"] = {wheel.tag: {"sha256": wheel.sha256, "root": wheel.root} for wheel in pin.wheels}
    if pin.absent:
        said["absent"] = {one.slug: f"{one.state}: {one.why}" for one in sorted(pin.absent, key=lambda one: one.slug)}
    return said


def from_table(line: str, upstream: str, table: Mapping[str, Any]) -> Pin:
    """The inverse of `as_table`."""
    return pin_of(line, upstream, dict(table))


def pins_with(home: Home, pin: Pin, joint: Mapping[str, str], default: bool) -> bytes:
    """pins.toml with this pin: the rest of the file stays as it is, byte for byte.

    Args:
        joint: the versions that belong to its line, where the line is new; default: whether it becomes the default.
    """
    import tomlkit

    document = tomlkit.parse(home.pins.read_text(encoding="utf-8"))
    if default:
        document["default"] = pin.line
    lines: Any = document["line"]
    if pin.line not in lines:
        lines[pin.line] = tomlkit.table(is_super_table=True)
        if joint:
            lines[pin.line]["joint"] = dict(joint)
    line: Any = lines[pin.line]
    if pin.upstream in line:
        _update(line[pin.upstream], as_table(pin))
    else:
        line[pin.upstream] = _laid_out(as_table(pin))
    return tomlkit.dumps(document).encode()


def _laid_out(said: Mapping[str, Any]) -> Any:
    """A pin's table as a person would write it: long lists a line each, wheels and absent patches as tables."""
    import tomlkit

    table = tomlkit.table()
    for name, value in said.items():
        if name in ("wheels", "absent"):
            continue
        table[name] = _value(value)
    table["wheels"] = {tag: _value(wheel) for tag, wheel in said["wheels"].items()}
    if said.get("absent"):
        table["absent"] = {**said["absent"]}
    return table


def _value(value: Any) -> Any:
    import tomlkit

    if isinstance(value, list):
        items = tomlkit.array()
        items.extend(value)
        return items.multiline(len(value) > 3)
    if isinstance(value, dict):
        inline = tomlkit.inline_table()
        inline.update(value)
        return inline
    return value


def _update(table: Any, said: Mapping[str, Any]) -> None:
    """Changes what differs in a pin's table, and nothing else."""
    for name, value in said.items():
        if name not in ("absent", "wheels") and (name not in table or table[name] != value):
            table[name] = _value(value)
    for tag, wheel in said["wheels"].items():
        if tag not in table["wheels"] or table["wheels"][tag] != wheel:
            table["wheels"][tag] = _value(wheel)
    recorded = dict(table.get("absent", {}))
    wanted = dict(said.get("absent", {}))
    if recorded != wanted:
        table["absent"] = {**wanted}
