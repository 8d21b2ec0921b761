"""A culprit taken back on the new end: the check that it was the culprit, where it goes by git's merge."""

from __future__ import annotations

from ..queue.build import COMMITTER
from ..queue.git import Repository, attempt, run
from .history import History


def undone_on_new(repo: Repository, history: History, program: int) -> str | None:
    """The tree of the new end without the change into a program, None where it does not come off cleanly.

    It is the merge of the new end with what the culprit changed, the other way round; the series is on all three.
    """
    at = history.programs[program].first
    before, after, new = (history.revisions[number].tree for number in (at - 1, at, -1))
    name, _, mail = COMMITTER.rstrip(">").partition(" <")
    who = {f"GIT_{role}_{part}": value for role in ("AUTHOR", "COMMITTER") for part, value in
           (("NAME", name), ("EMAIL", mail), ("DATE", "1970-01-01T00:00:00Z"))}  # fmt: skip

    def commit(tree: str, *parents: str) -> str:
        above = [word for parent in parents for word in ("-p", parent)]
        return run(repo, "commit-tree", *above, "-m", "bisect", tree, env=who).decode().strip()

    base = commit(after)
    code, out, _ = attempt(repo, "merge-tree", "--write-tree", commit(new, base), commit(before, base))
    return out.decode().split()[0] if code == 0 else None
