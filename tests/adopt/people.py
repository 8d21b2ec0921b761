"""What several of these tests do: make diffs as people make them, adopt them, and say how each file went on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sm120_overlay.queue.fitting import File, Ground, Placed, place_foreign
from sm120_overlay.queue.foreign import Foreign, parse_foreign
from sm120_overlay.queue.located import locate
from sm120_overlay.queue.paths import Spot
from sm120_overlay.queue.pins import Pin, Wheel

from ..queue.scenes import Answer, ask
from ..queue.scenes import snapshot as files_of
from ..queue.toy import TOY, git, git_bytes, write

CORE, BARE, DOS, RUN = (f"python/toy/{name}" for name in ("core.py", "bare.txt", "dos.py", "run.py"))
VOLATILE = ("objects", "sm120-overlay", "index")  # what git may change without changing anything of the user's
PIN = Pin("v1", "toy", "", "v1.0", "0" * 40, "toy", "1.0", "", (("", ""),), (Wheel("any", "", ""),))


@dataclass(frozen=True)
class Stranger:
    """A clone of someone else's in which diffs are made."""

    path: Path

    def diff(self, files: Mapping[str, str | bytes | None], *options: str) -> bytes:
        """`git diff OPTIONS` of these files against HEAD; HEAD stays."""
        write(self.path, files)
        git(self.path, "add", "-A")
        return git_bytes(self.path, "diff", "--cached", *options)

    def commit(self, files: Mapping[str, str | bytes | None], said: str = "core: mend it\n\nIt was broken.") -> str:
        """A commit of these files; its id."""
        write(self.path, files)
        git(self.path, "add", "-A")
        git_bytes(self.path, "commit", "-q", "--allow-empty", "--cleanup=verbatim", "-F", "-", stdin=said.encode())
        return self.head

    @property
    def head(self) -> str:
        """HEAD's commit."""
        return git(self.path, "rev-parse", "HEAD").strip()

    def mails(self, since: str = "HEAD~1", *options: str) -> bytes:
        """`git format-patch` of the commits since one."""
        return git_bytes(self.path, "format-patch", "--stdout", *options, since)


def adopt(*arguments: object) -> Answer:
    """`adopt ARGUMENTS --json`."""
    return ask("adopt", *arguments)


def hows(answer: Answer) -> dict[str, str]:
    """Path → how, of every file of an answer."""
    patches = [patch for target in answer.said["targets"] for patch in target["patches"]]
    return {file["path"]: file["how"] for patch in patches for file in patch["files"]}


def whys(answer: Answer) -> str:
    """All that is said of files, in one text."""
    patches = [patch for target in answer.said["targets"] for patch in target["patches"]]
    return "\n".join(file["why"] or "" for patch in patches for file in patch["files"])


def at_head(folder: Path, path: str, revision: str = "HEAD") -> bytes:
    """A file as it is committed."""
    return git_bytes(folder, "show", f"{revision}:{path}")


def everything(folder: Path) -> dict[str, object]:
    """A checkout and its git directory, less what git may change without changing anything of the user's."""
    found = {f"tree/{path}": seen for path, seen in files_of(folder).items()}
    return found | {f"git/{path}": seen for path, seen in files_of(folder / ".git", skip=VOLATILE).items()
                    if path not in VOLATILE}  # fmt: skip


def edited(path: str, number: int, text: str = "edited", ours: str = "") -> str:
    """A numbered file of toy's with one of its lines changed."""
    before = ours or TOY[path]
    assert f"line {number}\n" in before
    return before.replace(f"line {number}\n", f"line {text}\n", 1)


def parse(data: bytes) -> tuple[Foreign, ...]:
    """The files of a diff."""
    return parse_foreign(Spot("their.patch", 1), data.decode("latin-1"))


def put(data: bytes, before: Mapping[str, bytes], others: Mapping[str, bytes] | None = None) -> tuple[Placed, ...]:
    """Every file of a diff, placed on a tree where everything is a part of the package; `others` are blobs at hand."""
    from sm120_overlay.queue.blobs import blob_id

    named = {blob_id(blob): blob for blob in (others or {}).values()}
    ground = Ground(
        PIN,
        lambda path: File("100644", before.get(path)),
        lambda path: File("100644", before.get(path)),
        lambda path: None,
        before.get,
        lambda prefix: (blob for name, blob in named.items() if name.startswith(prefix)),
    )
    located = locate(PIN, parse(data), lambda path: path in before)
    return tuple(one for found in located for one in place_foreign(found, ground))


def after(placed: tuple[Placed, ...], before: Mapping[str, bytes]) -> dict[str, bytes]:
    """The tree that is made of `before`."""
    made: dict[str, bytes | None] = {**before, **{one.path: one.after.data for one in placed}}
    return {path: data for path, data in made.items() if data is not None}
