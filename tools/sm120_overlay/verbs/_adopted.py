"""What `adopt` says: how each file got onto the branch, what a person must do now, and the same in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import Any

from .. import report
from ..queue.adoption import Adopted
from ..queue.bases import Base
from ..queue.blobs import blob_of
from ..queue.checkout import Checkout
from ..queue.fitting import PLACED, How, Placed
from ..queue.home import command
from ..queue.paths import shown
from ..queue.sources import pinned_roots
from ..queue.unfinished import marks
from ._options import Wanted
from ._show import short

TODO = {
    How.UNKNOWN: "unknown: name a clone that holds what it was made on (--history CLONE; where no blob is named, make "
    "the diff with git), or leave it out (--leave-out)",
    How.DAMAGED: "damaged: make the diff again where the change was made, or adopt the commit itself (--from CLONE)",
    How.REFUSED: "refused: leave it out (--leave-out GLOB)",
}


def show_adopted(
    asked: Wanted, dry_run: bool, checkout: Checkout, adopted: Sequence[Adopted], handed: tuple[str, str] | None
) -> None:
    """The answer of `adopt`: in JSON, or for people.

    Args:
        handed: where conflicts were given to git, the commit before the first patch ("" in a dry run) and the branch.
    """
    if asked.json:
        said = _as_json(checkout, adopted, handed)
        ok = all(one.placed for one in adopted)
        dry = {"dry_run": True} if dry_run else {}
        report.show_json("adopt", {"line": checkout.pin.line, "ok": ok, **dry, "targets": [said]})
        return
    for one in adopted:
        _show_one(checkout, one)
    for line in _end(checkout, adopted, handed, dry_run):
        report.show(line)


def _show_one(checkout: Checkout, adopted: Adopted) -> None:
    """What became of one patch: a line for each file that did not just fit."""
    counts = {how: sum(one.how is how for one in adopted.files) for how in How}
    said = ", ".join(f"{count} {how.value}" for how, count in counts.items() if count)
    telling = (one for one in adopted.files if one.how is not How.EXACT or one.why)
    rows = [(shown(one.path), one.how.value, shown(short(one.why))) for one in telling]
    number = len({one.path for one in adopted.files})
    title = (
        f"{adopted.slug}: {_made_on(checkout, adopted)}; {number} file{'' if number == 1 else 's'}: {said or 'none'}"
    )
    if rows:
        report.show_table(title, ("file", "how", "why"), rows)
    else:
        report.show(title)
    if adopted.left_out:
        report.show(f"  left out, as asked: {', '.join(map(shown, adopted.left_out))}")


def _made_on(checkout: Checkout, adopted: Adopted) -> str:
    base = adopted.base
    if base is None:
        return _made_nowhere(adopted)
    if not base.whole:
        return f"made on no one commit at hand; {base.name} fits best, {len(base.fitting)} of {base.asked} files"
    if _pinned(checkout, adopted):
        return f"made on the pin {base.name}"
    other = f", not on the pin {checkout.pin.tag}" if base.known.commit != checkout.head else ""
    return f"made on {base.described}{other}"


def _made_nowhere(adopted: Adopted) -> str:
    if not adopted.files:
        return "nothing of it is left"
    if any(one.how in (How.UNKNOWN, How.DAMAGED) for one in adopted.files):
        return "made on nothing that is at hand"
    changed = any(one.base.data is not None for one in adopted.files)
    return "made on the branch, or on no one commit that was found" if changed else "made of new files"


def _pinned(checkout: Checkout, adopted: Adopted) -> bool:
    return adopted.base is not None and adopted.base.known.commit in pinned_roots(checkout.pin)


def _end(checkout: Checkout, adopted: Sequence[Adopted], handed: tuple[str, str] | None, dry_run: bool) -> list[str]:
    """What was done, and what a person does now."""
    path, branch = quote(str(checkout.repo.path)), checkout.our_name
    if handed:
        first, name = handed
        if dry_run:
            return [f"Would be given to git on branch {name}, since there are conflicts; nothing was written."]
        return [
            f"Nothing was put on {branch}: there are conflicts. The patches lie on branch {name}, on their own base.",
            f"  → {checkout.git} cherry-pick {first[:12]}..{name}",
            f"    (solve, git add, git cherry-pick --continue), then {checkout.git} branch -D {name};",
            f"    fill in what is marked TO-FILL ({_amending(checkout, len(adopted))}),",
            f"    write the test that each names, then {command('export')} {path}",
        ]
    if not all(one.placed for one in adopted):
        wrong = {one.how for patch in adopted for one in patch.files}
        return ["Nothing was written.", *(f"  → {text}" for how, text in TODO.items() if how in wrong)]
    if dry_run:
        return ["Nothing was written: a dry run."]
    if not any(one.commit for one in adopted):
        return [f"Nothing to do: {branch} has it already."]
    return [*_committed(checkout, adopted)]


def _committed(checkout: Checkout, adopted: Sequence[Adopted]) -> list[str]:
    path, branch = quote(str(checkout.repo.path)), checkout.our_name
    lines = [f"{one.slug}: commit {one.commit[:12]} on {branch}" for one in adopted if one.commit]
    waiting = sum(bool(one.commit and marks(one.message)) for one in adopted)
    fill = f"fill in what is marked TO-FILL ({_amending(checkout, len(lines))}), " if waiting else ""
    return [*lines, f"next: {fill}write the test that each names, then {command('export')} {path}"]


def _amending(checkout: Checkout, patches: int) -> str:
    """How the messages of that many last commits are amended."""
    return f"{checkout.git} " + ("commit --amend" if patches == 1 else f"rebase -i {checkout.head[:12]}, with reword")


def _as_json(checkout: Checkout, adopted: Sequence[Adopted], handed: tuple[str, str] | None) -> dict[str, Any]:
    return {
        "upstream": checkout.pin.upstream,
        "path": str(checkout.repo.path),
        "kind": "checkout",
        "base": checkout.base,
        "head": next((one.commit for one in reversed(adopted) if one.commit), checkout.head),
        "patches": [_patch_json(checkout, one) for one in adopted],
        "handed_off": {"after": handed[0] or None, "branch": handed[1]} if handed else None,
    }


def _patch_json(checkout: Checkout, adopted: Adopted) -> dict[str, Any]:
    return {
        "slug": adopted.slug,
        "from": adopted.letter.name,
        "commit": adopted.commit,
        "made_on": _base_json(checkout, adopted.base),
        "files": [_file_json(one) for one in adopted.files],
        "left_out": list(adopted.left_out),
        "to_fill": list(marks(adopted.message)),
    }


def _base_json(checkout: Checkout, base: Base | None) -> dict[str, Any] | None:
    if base is None:
        return None
    pinned = base.known.commit in pinned_roots(checkout.pin)
    counts = {"fitting": len(base.fitting), "asked": base.asked}
    return {"name": base.name, "commit": base.known.commit, "pinned": pinned, **counts}


def _file_json(placed: Placed) -> dict[str, Any]:
    return {
        "path": placed.path,
        "how": placed.how.value,
        "why": placed.why or None,
        "made_on": blob_of(placed.base.data),
        "blob": blob_of(placed.after.data) if placed.how in PLACED else None,
    }
