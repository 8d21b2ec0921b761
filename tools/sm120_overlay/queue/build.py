"""Turns a series into commits, and a tree of files into one: git fast-import, the same ids on every run and machine.

Author and date come from the patch, the committer is fixed and its date is the author's, so an id depends on the base
and the patch files alone. Objects only: no branch, index or file of the repository moves here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import Refused
from .diff import quote
from .git import Repository, read_objects, run
from .patch import Patch
from .series import Series, chains, contents

COMMITTER = "SM120 Overlay <overlay@sm120-overlay.invalid>"
SCRATCH = "refs/sm120-overlay/build"  # exists while fast-import runs, so that it has a name to build on


@dataclass(frozen=True)
class Built:
    """A series as commits on a base: one id per patch, and the bytes of every blob that it makes."""

    base: str
    commits: tuple[str, ...]
    blobs: Mapping[str, bytes]

    @property
    def tip(self) -> str:
        """The last commit, or the base where the series is empty."""
        return self.commits[-1] if self.commits else self.base


def base_contents(repo: Repository, base: str, series: Series) -> dict[str, bytes | None]:
    """The bytes at `base` of every file the series touches, read from the repository.

    Raises:
        Refused: the repository lacks a file (a partial or damaged clone).
    """
    first = {f"{base}:{path}": (path, chain.points[0]) for path, chain in chains(series).items()}
    read = read_objects(repo, first)
    lost = [path for name, (path, blob) in first.items() if blob and read[name] is None]
    if lost:
        raise Refused(
            f"{repo.path}: {', '.join(lost)} at {base[:12]} cannot be read: no such file, or a partial clone.",
            "Fetch the commit whole (git fetch --refetch --no-filter), or clone it again without a filter.",
        )
    objects = {path: read[name] for name, (path, _) in first.items()}
    # A folder where the series brings a file is no file (yet): what it holds is deleted by the series itself.
    return {path: found.data if found and found.kind == "blob" else None for path, found in objects.items()}


def build(repo: Repository, base: str, series: Series, before: Mapping[str, bytes | None]) -> Built:
    """The commits of `series` on `base`, written as objects only; `before` are its `base_contents`.

    Raises:
        Refused: a file at `base` is not what the series was made on.
    """
    steps = contents(series, before)
    edits = ((edit, step[edit.path]) for patch, step in zip(series.patches, steps, strict=True) for edit in patch.edits)
    blobs = {str(edit.new): data for edit, data in edits if data is not None}
    marks = {blob: number for number, blob in enumerate(blobs, len(steps) + 1)}
    stream = [part for blob, data in blobs.items() for part in (b"blob\nmark :%d\n" % marks[blob], *_data(data))]
    for number, (patch, step) in enumerate(zip(series.patches, steps, strict=True), 1):
        parent = f":{number - 1}" if number > 1 else base
        stream += (*_commit(number, patch, parent), _changes(patch, step, marks))
    return Built(base, _import(repo, stream, len(steps)), blobs)


def build_root(repo: Repository, files: Mapping[str, tuple[str, bytes]], subject: str) -> str:
    """The id of one commit without parents that holds `files` (path → mode and bytes)."""
    stream = [b"commit %s\nmark :1\n" % SCRATCH.encode()]
    stream += [f"{role} {COMMITTER} Thu, 1 Jan 1970 00:00:00 +0000\n".encode() for role in ("author", "committer")]
    stream += _data(subject.encode() + b"\n")
    for path in sorted(files):
        mode, data = files[path]
        stream += (f"M {mode} inline {quote(path)}\n".encode("latin-1"), *_data(data))
    return _import(repo, stream, 1)[0]


def _import(repo: Repository, stream: list[bytes], commits: int) -> tuple[str, ...]:
    if not commits:
        return ()
    asked = "".join(f"get-mark :{number}\n" for number in range(1, commits + 1))
    forget = f"reset {SCRATCH}\nfrom {'0' * 40}\n\ndone\n"
    out = run(
        repo, "fast-import", "--quiet", "--done", "--force", "--date-format=rfc2822", "--depth=0",
        stdin=b"".join([*stream, asked.encode(), forget.encode()]),
    )  # fmt: skip
    return tuple(out.decode().split())


def _commit(mark: int, patch: Patch, parent: str) -> tuple[bytes, ...]:
    who = f"author {patch.author} {patch.date}\ncommitter {COMMITTER} {patch.date}\n"
    head = f"commit {SCRATCH}\nmark :{mark}\n{who}".encode()
    return head, *_data(patch.message.encode()), f"from {parent}\n".encode()


def _changes(patch: Patch, step: Mapping[str, bytes | None], marks: Mapping[str, int]) -> bytes:
    lines = []
    for edit in patch.edits:
        path = quote(edit.path)
        lines.append(f"D {path}\n" if step[edit.path] is None else f"M {edit.mode} :{marks[str(edit.new)]} {path}\n")
    return "".join(lines).encode("latin-1")


def _data(data: bytes) -> tuple[bytes, bytes, bytes]:
    return b"data %d\n" % len(data), data, b"\n"
