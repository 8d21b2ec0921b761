"""From letters to commits on a series' branch: every file of a letter is placed, or it is refused or handed off.

The commits carry the user's own name as committer, so that `apply` never takes them for its own and throws them away.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from fnmatch import fnmatch

from ..errors import Refused, UsageError
from .adopt import HANDED_OFF, PLACED, File, Ground, How, Placed, changed_files, groups, place_foreign, wanted_blobs
from .bases import Base, Known, blobs_named, find_base
from .blobs import blob_id
from .build import COMMITTER, Said, build_on
from .checkout import Checkout
from .foreign import Foreign, candidates, located, parse_foreign
from .git import Repository, attempt, diff_trees, read_objects, tree_entries
from .letter import Letter, letter_of_commit
from .mail import parse_trailers
from .marked import slug_of, unfinished_message
from .paths import Spot, shown

ADOPTER = "SM120 Overlay adopt <adopt@sm120-overlay.invalid>"  # where git knows no name of the user's


@dataclass(frozen=True)
class Wish:
    """How the user wants it: the name of the patch, the depth to split at (None: one patch), what to leave out."""

    slug: str | None = None
    split: int | None = None
    leave_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Adopted:
    """A letter (or a group of its files) as a patch to be: what it was made on, its files, the commit it became."""

    slug: str
    letter: Letter
    base: Base | None
    files: tuple[Placed, ...]
    message: str
    left_out: tuple[str, ...] = ()
    commit: str | None = None

    @property
    def placed(self) -> bool:
        """Whether every file is."""
        return all(one.how in PLACED for one in self.files)

    @property
    def mergeable(self) -> bool:
        """Whether git can go on with it by hand: every file's base is there."""
        return all(one.how in (*PLACED, *HANDED_OFF) for one in self.files)


@dataclass(frozen=True)
class _Branch:
    """The branch while letters go onto it: its files as they are by then, and every blob that was made on the way."""

    checkout: Checkout
    overlays: frozenset[str]
    files: dict[str, File] = field(default_factory=dict)
    made: dict[str, bytes] = field(default_factory=dict)


def plan(
    checkout: Checkout, letters: Sequence[Letter], known: Sequence[Known], histories: Sequence[Repository], wish: Wish
) -> tuple[Adopted, ...]:
    """Every letter with its files placed on the branch, one after the other; nothing is written.

    Args:
        known: commits that a diff may have been made on, the likeliest first; histories: where to look for others.

    Raises:
        UsageError: a diff is damaged, or nothing is left of it.
    """
    branch = _Branch(checkout, _overlays(checkout))
    read = [(letter, parse_foreign(_spot(letter), letter.diff)) for letter in letters]
    _check_left(wish, [one for _, files in read for one in files])
    found: list[Adopted] = []
    for letter, foreign in read:
        kept = [one for one in foreign if not _left_out(one, wish.leave_out)]
        parents = [Known(repo, letter.parent) for repo in histories if letter.parent]
        _load(branch, kept)
        base = _base(branch, kept, [*known, *parents], histories)
        known = [*known, base.known] if base else known
        ground = _ground(branch, base, histories)
        files = tuple(placed for one in kept for placed in _taken(branch, place_foreign(one, ground)))
        out = tuple(one.name for one in foreign if one not in kept)
        found += _adopted(checkout, letter, base, files, out, wish, [one.slug for one in found])
    return tuple(found)


def _spot(letter: Letter) -> Spot:
    return Spot(letter.name, 1 if letter.raw else None)


def _overlays(checkout: Checkout) -> frozenset[str]:
    """The overlay files of the series on the branch."""
    values = (value for commit in checkout.commits for key, value in parse_trailers(commit.message) if key == "Overlay")
    return frozenset(re.sub(r" [0-9a-f]{40}$", "", value) for value in values)


def _left_out(foreign: Foreign, globs: Sequence[str]) -> bool:
    return any(fnmatch(name, glob) for glob in globs for name in candidates(foreign, foreign.name))


def _check_left(wish: Wish, foreign: Sequence[Foreign]) -> None:
    """Every pattern leaves something out, and something is left."""
    idle = next((glob for glob in wish.leave_out if not any(_left_out(one, [glob]) for one in foreign)), None)
    if idle:
        # why: a misspelt pattern would leave the file in, in silence
        raise UsageError(f"--leave-out {idle!r} fits no file of the change.", "Name its files as the diff does.")
    if all(_left_out(one, wish.leave_out) for one in foreign):
        # why: an adopted change of nothing is no patch
        raise UsageError("Every file of the change was left out.", "Leave out less.")


def _base(
    branch: _Branch, foreign: Sequence[Foreign], known: Sequence[Known], histories: Sequence[Repository]
) -> Base | None:
    """The commit a letter was made on, as far as it was not made on what a letter before it made."""
    wanted = wanted_blobs(branch.checkout.pin, foreign)
    asked = {
        path: old for path, old in wanted.items() if not (old and any(blob.startswith(old) for blob in branch.made))
    }
    return find_base(asked, known, histories) if any(asked.values()) else None


def _load(branch: _Branch, foreign: Sequence[Foreign]) -> None:
    """The files of the branch that a letter touches."""
    repo, head, pin = branch.checkout.repo, branch.checkout.head, branch.checkout.pin
    paths = {located(pin, one, name) for one in foreign for name in (one.source, one.path) if name}
    new = sorted(path for path in paths if path and path not in branch.files)
    entries = tree_entries(repo, head, new) if new else {}
    read = read_objects(repo, [entry.blob for entry in entries.values()])
    lost = next((path for path, entry in entries.items() if read[entry.blob] is None), None)
    if lost:
        # why: a 3-way merge without its true base would be a guess
        raise Refused(f"{repo.path}: {lost} cannot be read: a partial clone.", "Clone it again without a filter.")
    for path in new:
        found = read[entries[path].blob] if path in entries else None
        branch.files[path] = File(entries[path].mode, found.data) if found else File()


def _ground(branch: _Branch, base: Base | None, histories: Sequence[Repository]) -> Ground:
    fitting = base.fitting & base.blobs.keys() if base else ()
    based = _contents(base.known.repo, {path: base.blobs[path] for path in fitting}) if base else {}
    repo, pin = branch.checkout.repo, branch.checkout.base

    def at_pin(path: str) -> bytes | None:
        return _contents(repo, {path: f"{pin}:{path}"})[path]

    def named(prefix: str) -> Iterator[bytes]:
        yield from (data for blob, data in list(branch.made.items()) if blob.startswith(prefix))
        yield from blobs_named(histories, prefix)

    def now(path: str) -> File:
        return branch.files.get(path, File())

    return Ground(branch.checkout.pin, now, based.get, at_pin, named, branch.overlays)


def _contents(repo: Repository, names: Mapping[str, str]) -> dict[str, bytes | None]:
    """Path → the bytes of the object of that name, None where there is no such blob."""
    read = read_objects(repo, names.values())
    found = {path: read[name] for path, name in names.items()}
    return {path: one.data if one and one.kind == "blob" else None for path, one in found.items()}


def _taken(branch: _Branch, placed: Sequence[Placed]) -> Sequence[Placed]:
    """The same files; the branch goes on with them."""
    for one in placed:
        if one.how in PLACED:
            branch.files[one.path] = one.after
        for data in (one.theirs.data, one.after.data):
            if data is not None:
                branch.made[blob_id(data)] = data
    return placed


def _adopted(
    checkout: Checkout, letter: Letter, base: Base | None, files: tuple[Placed, ...], out: tuple[str, ...], wish: Wish,
    taken: Sequence[str],
) -> Iterator[Adopted]:  # fmt: skip
    """The patches that a letter becomes: one, or one for each group of its files."""
    parts = {"": files} if wish.split is None else groups(files, checkout.pin, wish.split)
    own = [*taken, *(commit.slug or "" for commit in checkout.commits)]
    for name, part in parts.items():
        slug = slug_of(wish.slug or letter.slug or letter.subject or letter.stem, own, name)
        own.append(slug)
        subject = f"{letter.subject} ({name})" if letter.subject and name else letter.subject
        message = unfinished_message(subject, letter.body, slug, _origin(letter, base, part, name))
        yield Adopted(slug, letter, base, part, message, out)
        out = ()


def _origin(letter: Letter, base: Base | None, files: Sequence[Placed], group: str) -> str:
    made = f"made on {base.name} ({base.known.commit[:12]})" if base else "which names no commit that it was made on"
    part = f"The part in {group} of {shown(letter.title)}" if group else f"Adopted from {shown(letter.title)}"
    merged = [shown(one.path.rpartition("/")[2]) for one in files if one.how in (How.CLEAN, How.MOVED)]
    return f"{part},\n{made}." + (f"\nMerged, to be reviewed: {', '.join(merged)}." if merged else "")


def commit_all(repo: Repository, checkout: Checkout, adopted: Sequence[Adopted]) -> tuple[Adopted, ...]:
    """The patches as commits on the branch's tip, as objects of `repo`; merged files are looked at once more."""
    tip, found = checkout.head, []
    for one in adopted:
        changed = changed_files(one.files)
        if changed:
            before, tip = tip, build_on(repo, tip, _said(checkout.repo, one), changed)
            _check_nothing_else(repo, before, tip, changed)
            found.append(replace(one, commit=tip, files=tuple(_reviewed(repo, before, tip, one))))
        else:
            found.append(one)
    return tuple(found)


def _check_nothing_else(repo: Repository, before: str, tip: str, changed: Mapping[str, object]) -> None:
    """A file takes no other's place: a folder's, or that of a file which would become a folder."""
    lost = next((change.path for change in diff_trees(repo, before, tip) if change.path not in changed), None)
    if lost:
        # why: git cannot hold a file and a folder of one name, and neither can a disk
        raise Refused(
            f"{shown(lost)}: expected it to stay, and a new file of the change would take its place: one is a folder "
            "of the other's name.",
            "Leave the new file out (--leave-out), or give it another name.",
        )


def _said(repo: Repository, adopted: Adopted) -> Said:
    user = _user(repo)
    return Said(adopted.letter.author or user, user, _date(adopted.letter.date), adopted.message)


def _user(repo: Repository) -> str:
    """The user as git's configuration names them; never the name that marks our own commits."""
    said = (attempt(repo, "config", key)[1].decode("utf-8", "replace").strip() for key in ("user.name", "user.email"))
    name, email = said
    user = f"{name} <{email}>"
    return user if name and email and user != COMMITTER and not re.search(r"[<>\n]", name + email) else ADOPTER


def _date(said: str) -> str:
    """A date as git writes it: the letter's own, else now."""
    when = datetime.now(timezone.utc)
    with suppress(ValueError, TypeError):
        read = parsedate_to_datetime(said)
        when = read if 1970 < read.year < 2100 else when  # git dates nothing else
    when = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
    return f"{when:%a}, {when.day} {when:%b %Y %H:%M:%S %z}"


def _reviewed(repo: Repository, before: str, commit: str, adopted: Adopted) -> Iterator[Placed]:
    """The files, as moved those whose hunks now stand in another function than the diff said."""
    there: dict[str, frozenset[str]] = {}
    if any(one.how is How.CLEAN for one in adopted.files):
        foreign = parse_foreign(Spot(commit), letter_of_commit(repo, commit, before).diff)
        there = {one.name: frozenset(hunk.section for hunk in one.hunks) for one in foreign}
    for one in adopted.files:
        other = there.get(one.path, frozenset()) - one.sections - {""} if one.sections else frozenset()
        moved = one.how is How.CLEAN and other
        yield replace(one, how=How.MOVED, why=f"merged, now in {_readable(min(other))!r}") if moved else one


def _readable(section: str) -> str:
    return section.strip().encode("latin-1").decode("utf-8", "replace")


def hand_off(repo: Repository, checkout: Checkout, adopted: Sequence[Adopted]) -> tuple[str, str]:
    """The patches as commits on their own bases, for git to cherry-pick: the commit before the first, and the last.

    The one before holds the branch's tip, but the touched files as the patches were made on them.
    """
    bases: dict[str, tuple[str, bytes | None]] = {}
    for one in (file for patch in adopted for file in patch.files):
        bases.setdefault(one.path, (one.base.mode, one.base.data))
    names = " and ".join(sorted({patch.base.name for patch in adopted if patch.base}))
    said = Said(ADOPTER, ADOPTER, _date(""), f"What {adopted[0].letter.title} touches, as it is in {names}\n")
    before = tip = build_on(repo, checkout.head, said, bases)
    for patch in adopted:
        files = {one.path: (one.theirs.mode, one.theirs.data) for one in patch.files}
        tip = build_on(repo, tip, _said(checkout.repo, patch), files)
    return before, tip
