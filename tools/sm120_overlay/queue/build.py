"""Turns a series into commits, and a tree of files into one: git fast-import, the same ids on every run and machine.

Author and date come from the patch, the committer is fixed and its date is the author's, so an id depends on the base
and the patch files alone. Objects only: no branch, index or file of the repository moves here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import Refused
from .diff import quote
from .git import Entry, GitError, Repository, git_path, object_ids, read_objects, run
from .patch import Patch
from .series import Series, chains, contents

COMMITTER = "SM120 Overlay <overlay@sm120-overlay.invalid>"
# fast-import needs a name to build on. Not one in a folder of its own: git would leave that behind, empty.
SCRATCH = "refs/sm120-overlay-build"
EPOCH = "Thu, 1 Jan 1970 00:00:00 +0000"


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


@dataclass(frozen=True)
class Said:
    """What a commit says: author and committer as `NAME <MAIL>`, its date (of both) as RFC 2822 has it, its message."""

    author: str
    committer: str
    date: str
    message: str


def base_contents(repo: Repository, base: str, series: Series) -> dict[str, bytes | None]:
    """The bytes at `base` of every file the series touches, read from the repository.

    Raises:
        Refused: the repository lacks a file (a partial or damaged clone).
    """
    first = {f"{base}:{path}": (path, chain.points[0]) for path, chain in chains(series).items()}
    read = read_objects(repo, first)
    lost = [path for name, (path, blob) in first.items() if blob and read[name] is None]
    if lost:
        # why: blobless clones fetch while they are read, silently (electron#42977, media-autobuild_suite#3168)
        raise Refused(
            f"{repo.path}: {', '.join(lost)} at {base[:12]} cannot be read: no such file, or a partial clone.",
            "Clone it again without a filter, or check those files out (git checkout FILE), which fetches them.",
        )
    objects = {path: read[name] for name, (path, _) in first.items()}
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
    return Built(base, import_commits(repo, stream, len(steps)), blobs)


def build_root(repo: Repository, files: Mapping[str, tuple[str, bytes]], subject: str) -> str:
    """The id of one commit without parents that holds `files` (path → mode and bytes)."""
    stream = [b"commit %s\nmark :1\n" % SCRATCH.encode()]
    stream += [f"{role} {COMMITTER} {EPOCH}\n".encode() for role in ("author", "committer")]
    stream += _data(subject.encode() + b"\n")
    for path in sorted(files):
        mode, data = files[path]
        stream += (f"M {mode} inline {quote(path)}\n".encode("latin-1"), *_data(data))
    return import_commits(repo, stream, 1)[0]


def build_steps(
    repo: Repository, base: str, steps: Sequence[tuple[Said, Mapping[str, Entry | None]]]
) -> tuple[str, ...]:
    """The ids of commits on `base`, one on the other: what each says, and its files (path → entry; None: deleted)."""
    stream = []
    for mark, (said, files) in enumerate(steps, 1):
        who = f"author {said.author} {said.date}\ncommitter {said.committer} {said.date}\n"
        parent = f":{mark - 1}" if mark > 1 else base
        stream += [f"commit {SCRATCH}\nmark :{mark}\n{who}".encode(), *_data(said.message.encode())]
        stream += (f"from {parent}\n".encode(), _rows(files))
    return import_commits(repo, stream, len(steps))


def build_trees(repo: Repository, revisions: Sequence[tuple[str, Mapping[str, Entry | None]]]) -> tuple[str, ...]:
    """The ids of trees: each revision's (a commit), with these files in it (path → entry; None: deleted)."""
    who = f"author {COMMITTER} {EPOCH}\ncommitter {COMMITTER} {EPOCH}\n"
    stream = []
    for mark, (revision, files) in enumerate(revisions, 1):
        stream.append(f"commit {SCRATCH}\nmark :{mark}\n{who}data 0\nfrom {revision}\n".encode())
        stream.append(_rows(files))
    commits = import_commits(repo, stream, len(revisions))
    ids = object_ids(repo, [f"{commit}^{{tree}}" for commit in commits])
    return tuple(str(ids[f"{commit}^{{tree}}"]) for commit in commits)


def _rows(files: Mapping[str, Entry | None]) -> bytes:
    rows = [f"D {quote(path)}\n" for path, entry in files.items() if entry is None]
    rows += [f"M {entry.mode} {entry.blob} {quote(path)}\n" for path, entry in sorted(files.items()) if entry]
    return "".join(rows).encode("latin-1")


def build_on(
    repo: Repository, parent: str, said: Said, files: Mapping[str, tuple[str, bytes | None]], apart: bool = False
) -> str:
    """The id of a commit on `parent` that changes `files` (path → mode and bytes; None: deleted).

    Args:
        apart: it has `parent`'s files, but no parent: nothing can be merged with it by mistake.
    """
    who = f"author {said.author} {said.date}\ncommitter {said.committer} {said.date}\n"
    stream = [f"commit {SCRATCH}\nmark :1\n{who}".encode(), *_data(said.message.encode())]
    if apart:
        tree = run(repo, "rev-parse", f"{parent}^{{tree}}").decode().strip()
        stream.append(f'M 040000 {tree} ""\n'.encode())
    else:
        stream.append(f"from {parent}\n".encode())
    stream += [f"D {quote(path)}\n".encode("latin-1") for path, (_, data) in files.items() if data is None]
    for path, (mode, data) in sorted(files.items()):
        if data is not None:
            stream += (f"M {mode} inline {quote(path)}\n".encode("latin-1"), *_data(data))
    return import_commits(repo, stream, 1)[0]


def import_commits(repo: Repository, stream: list[bytes], commits: int) -> tuple[str, ...]:
    """The ids of the commits with marks 1 to `commits` in a fast-import stream that builds on SCRATCH."""
    if not commits:
        return ()
    asked = "".join(f"get-mark :{number}\n" for number in range(1, commits + 1))
    forget = f"reset {SCRATCH}\nfrom {'0' * 40}\n\ndone\n"
    command = ("fast-import", "--quiet", "--done", "--force", "--date-format=rfc2822", "--depth=0")
    said = b"".join([*stream, asked.encode(), forget.encode()])
    try:
        out = run(repo, *command, stdin=said)
    except GitError:
        if not _drop_keeps(repo):
            raise
        out = run(repo, *command, stdin=said)
    return tuple(out.decode().split())


def _drop_keeps(repo: Repository) -> bool:
    """Removes the .keep files of a fast-import that was killed or met a full disk; whether there were any.

    With one there the same pack cannot be made again. git writes into it who keeps the pack, so others' stay.
    """
    packs = git_path(repo, "objects/pack")
    left = [keep for keep in packs.glob("pack-*.keep") if keep.read_bytes().strip() in (b"", b"fast-import")]
    for keep in left:
        keep.unlink(missing_ok=True)
    return bool(left)


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
