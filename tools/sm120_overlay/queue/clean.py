"""What must hold before a checkout is touched: the touched files, and their index entries, are exactly what HEAD says.

Each check refuses one thing by name, and says what to do about it. Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import Refused
from .blobs import blob_of
from .checkout import Checkout, unfinished
from .diff import unquote
from .git import Change, Entry, Repository, attempt, index_entries, tree_entries
from .hidden import check_compiled, check_imported_first
from .series import Series, chains
from .transaction import check_folders, read_file

COMMIT_OR_STASH = "Commit, stash or discard what is there, then run again; nothing was changed."


def check_finished(checkout: Checkout) -> None:
    """No operation of git's own waits for the user.

    Raises:
        Refused: one does.
    """
    busy = unfinished(checkout)
    if busy:
        name, command = busy
        # why: git would go on with its own rebase or am over our files (SportPaper#35, habitat#56)
        raise Refused(
            f"{checkout.repo.path}: a git {name} of yours is unfinished there.",
            f"Finish it or end it ({command}), then run again.",
        )


def check_head(checkout: Checkout) -> None:
    """HEAD is at the pin or on our branch, and no operation of git's own waits for the user.

    Raises:
        Refused: it is not so.
    """
    check_finished(checkout)
    at_pin = checkout.head == checkout.base
    if not at_pin and checkout.branch != checkout.ours and not all(commit.ours for commit in checkout.commits):
        ours, git = checkout.our_name, checkout.git
        # why: commits between the pin and the series would change what the series was proved on
        raise Refused(
            f"{checkout.repo.path}: HEAD is {checkout.head[:12]}, {checkout.standing}; expected the pin "
            f"{checkout.base[:12]} or our branch {ours}.",
            f"{git} checkout {checkout.base[:12]}, apply, then put your commits on top: {git} rebase {ours} "
            f"{(checkout.branch or checkout.head[:12]).removeprefix('refs/heads/')}",
        )


def check_clean(checkout: Checkout, series: Series, changes: Sequence[Change]) -> None:
    """The touched files, and their index entries, are exactly what HEAD says, and nothing hides them from Python.

    Raises:
        Refused: naming the first one that is not so.
    """
    known = chains(series)
    paths = sorted({change.path for change in changes} | known.keys())
    if not paths:
        return
    if checkout.head == checkout.base and known:  # then the chains know it without asking git
        first = {path: (chain.mode, chain.points[0]) for path, chain in known.items()}
        committed = {path: Entry(mode, blob) for path, (mode, blob) in first.items() if blob}
    else:
        committed = tree_entries(checkout.repo, checkout.head, paths)
    staged = index_entries(checkout.repo, paths)
    check_folders(checkout.repo.path, paths)
    for path in paths:
        _check_staged(checkout, path, committed.get(path), staged.get(path))
        _check_file(checkout.repo, path, committed.get(path))
        check_compiled(checkout.repo.path / path)
    check_imported_first({checkout.repo.path / path: chain.points[-1] for path, chain in known.items()})
    _check_cone(checkout, [path for path in paths if path not in committed])


def _check_cone(checkout: Checkout, new: Sequence[str]) -> None:
    """New files lie inside a sparse checkout's cone; git knows that only of files it has."""
    if not new or not (checkout.where.git_dir / "info" / "sparse-checkout").is_file():
        return
    code, out, _ = attempt(checkout.repo, "sparse-checkout", "list")
    cone = [unquote(line) for line in out.decode("latin-1").splitlines()] if code == 0 else None
    for path in new if cone is not None else ():
        folder = path.rpartition("/")[0]
        inside = any(f"{folder}/".startswith(f"{part}/") or f"{part}/".startswith(f"{folder}/") for part in cone or ())
        if folder and not inside:
            # why: git would take a file outside the cone off the disk again at its next checkout
            raise Refused(
                f"{checkout.repo.path / path} is a new file outside the sparse cone.",
                f"git sparse-checkout add {folder}, then run again.",
            )


def _check_staged(checkout: Checkout, path: str, head: Entry | None, index: Entry | None) -> None:
    file = checkout.repo.path / path
    if index is not None and index.mode == "unmerged":
        # why: what the file should be is not decided yet, and only its owner can
        raise Refused(f"{file} has a merge conflict.", f"Mend that for {path}, then run again.")
    if index is not None and index.mode == "sparse":
        # why: git looks away from such a file: what lies there may be the user's own
        raise Refused(
            f"{file} is outside the sparse cone, or marked skip-worktree.",
            "Take it in (git sparse-checkout add FOLDER, or git update-index --no-skip-worktree FILE), then run again.",
        )
    if index is not None and index.mode == "assumed":
        # why: git takes such a file for unchanged whatever it holds, and would leave the index behind it
        raise Refused(
            f"{file} is marked assume-unchanged in the index.",
            f"git update-index --no-assume-unchanged {path}, then run again.",
        )
    if index != head:
        # why: what is staged is the user's work, and setting the index would lose it (paperweight#75)
        raise Refused(f"{file}: the index holds {_named(index)}, expected {_named(head)}.", COMMIT_OR_STASH)


def _check_file(repo: Repository, path: str, head: Entry | None) -> None:
    file = repo.path / path
    found = read_file(file)
    blob = blob_of(found)
    if blob == (head.blob if head else None):
        _check_mode(repo, file, head)
        return
    if head is None:
        # why: git itself overwrites an ignored file there without a word (git reset --keep does)
        raise Refused(
            f"{file} exists, and the series brings a new file there.", "Move it away (also if git ignores it)."
        )
    code, out, _ = attempt(repo, "hash-object", "--path", path, "--", path)
    if code == 0 and out.decode().strip() == head.blob:
        # why: patches name bytes: line ends that git turned make every hash another one (electron#28360)
        raise Refused(
            f"{file}: a checkout filter (line ends, .gitattributes) changed its bytes; expected blob {head.blob}.",
            "Check it out again without the filter (git -c core.autocrlf=false checkout -- FILE).",
        )
    # why: an edit that is overwritten is lost, and one that is kept is not the series (virtme-ng#1)
    raise Refused(
        f"{file} was edited: expected blob {head.blob}, as checked out, found {blob or 'no file'}.", COMMIT_OR_STASH
    )


def _check_mode(repo: Repository, file: Path, head: Entry | None) -> None:
    """Nor was the file made executable (or no longer so), where git looks at that."""
    if head is None or bool(file.stat().st_mode & 0o100) == (head.mode == "100755"):
        return
    _, out, _ = attempt(repo, "config", "--type=bool", "core.fileMode")
    if out.strip() != b"false":
        # why: a mode is part of what git records, so it would go into a commit of ours (patch-package#118)
        raise Refused(f"{file} was edited: expected mode {head.mode}, as checked out.", COMMIT_OR_STASH)


def _named(entry: Entry | None) -> str:
    return f"blob {entry.blob} with mode {entry.mode}" if entry else "nothing"
