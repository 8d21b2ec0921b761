"""git's own cherry-pick in a scratch clone, as the judge of every merged blob and every conflict."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..queue.toy import git, git_bytes


@dataclass(frozen=True)
class Picked:
    """What git made of it: path → blob in the index (None: deleted), the paths that are left unmerged, and HEAD's."""

    blobs: Mapping[str, str | None]
    unmerged: frozenset[str]
    before: frozenset[str]


def borrow(folder: Path, checkout: Path, others: Iterable[Path]) -> Path:
    """A clone of the checkout that also sees the objects of other repositories."""
    git(folder.parent, "clone", "-q", "--shared", str(checkout), str(folder))
    stores = [git(path, "rev-parse", "--path-format=absolute", "--git-path", "objects").strip() for path in others]
    with (folder / ".git/objects/info/alternates").open("a") as file:
        file.writelines(f"{store}\n" for store in stores)
    return folder


def commit_of(scratch: Path, diff: Path, base: str, without: Iterable[str] = ()) -> str:
    """The change as a commit on what it was made on, by `git apply`."""
    git(scratch, "read-tree", base)
    git(scratch, "apply", "--cached", "--whitespace=nowarn", *(f"--exclude={path}" for path in without), str(diff))
    tree = git(scratch, "write-tree").strip()
    git(scratch, "read-tree", "HEAD")
    return git(scratch, "commit-tree", "-p", base, "-m", "theirs", tree).strip()


def pick(scratch: Path, commit: str, paths: Iterable[str]) -> Picked:
    """`git cherry-pick COMMIT` on what is checked out; ends with it reset."""
    git(scratch, "reset", "-q", "--hard")
    before = frozenset(git(scratch, "ls-files").split("\n"))
    command = ["git", "cherry-pick", "-n", commit]
    done = subprocess.run(command, cwd=scratch, capture_output=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    rows = git_bytes(scratch, "ls-files", "-s", "-z").decode("utf-8", "surrogateescape").split("\0")
    found = [row.partition("\t")[::2] for row in rows if row]
    blobs = {path: head.split(" ")[1] for head, path in found if head.endswith(" 0")}
    unmerged = frozenset(path for head, path in found if not head.endswith(" 0"))
    git(scratch, "reset", "-q", "--hard")
    return Picked({path: blobs.get(path) for path in paths}, unmerged, before)


def disagreements(files: Iterable[Mapping[str, Any]], picked: Picked) -> list[tuple[str, str]]:
    """Files that adopt would do otherwise than git: path and how."""
    wrong = []
    for file in files:
        path, how = str(file["path"]), str(file["how"])
        if how == "gone":  # git may have followed a rename; adopt says that the file is not there
            fine = path not in picked.before
        elif how == "conflict":
            fine = path in picked.unmerged
        else:
            fine = path not in picked.unmerged and file["blob"] == picked.blobs[path]
        if not fine and how != "unknown":
            wrong.append((path, how))
    return wrong
