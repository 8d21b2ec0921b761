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
from .bases import Base, Known, blobs_named, find_base
from .blobs import blob_id
from .build import COMMITTER, Said, build_on
from .checkout import Checkout
from .fitting import HANDED_OFF, PLACED, File, Ground, How, Placed, changed_files, groups, place_foreign, wanted_blobs
from .foreign import Foreign, parse_foreign
from .git import Change, Repository, attempt, diff_trees, git_path, objects_alone, read_objects, tree_entries
from .letter import Letter, letter_of_commit
from .located import locate, names, readings, suffixes
from .mail import overlay_paths
from .paths import Spot, shown
from .sections import moved_into
from .unfinished import slug_of, unfinished_message

ADOPTER = "SM120 Overlay adopt <adopt@sm120-overlay.invalid>"  # where git knows no name of the user's


@dataclass(frozen=True)
class Wish:
    """How the user wants it: the name of the patch, the depth to split at (None: one patch), what to leave out.

    `taken` are the slugs of the line.
    """

    slug: str | None = None
    split: int | None = None
    leave_out: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()


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
    read = [(letter, parse_foreign(letter.spot, letter.diff)) for letter in letters]
    _check_left(wish, [one for _, files in read for one in files])
    found: list[Adopted] = []
    for letter, foreign in read:
        kept = [one for one in foreign if not _left_out(one, wish.leave_out)]
        _load(branch, kept)
        kept = _carried(letter, locate(checkout.pin, kept, lambda path: branch.files[path].data is not None))
        parents = [Known(repo, letter.parent) for repo in histories if letter.parent]
        base = _base(branch, kept, [*known, *parents], histories)
        known = [*known, base.known] if base else known
        files = _placed_all(branch, kept, _ground(branch, base, histories))
        out = tuple(one.name for one in foreign if _left_out(one, wish.leave_out))
        _check_overlays(branch, letter, files, wish)
        found += _adopted(branch, letter, base, files, out, wish, [one.slug for one in found])
    return tuple(found)


def _placed_all(branch: _Branch, foreign: Sequence[Foreign], ground: Ground) -> tuple[Placed, ...]:
    """Every file, one after the other: a second part about one file goes onto what the first made of it."""
    found: list[Placed] = []
    for one in foreign:
        placed = place_foreign(one, ground)
        for file in placed:
            if file.how in PLACED:
                branch.files[file.path] = file.after
            for data in (file.theirs.data, file.after.data):
                if data is not None:
                    branch.made[blob_id(data)] = data
        found += placed
    return tuple(found)


def _carried(letter: Letter, foreign: Sequence[Foreign]) -> list[Foreign]:
    """The files, with what is wrong with some of them in this very letter."""
    moved = {one.source for one in foreign if one.source and one.path and one.source != one.path and not one.kept}
    found = []
    for one in foreign:
        if one.path in moved or (one.source in moved and one.source == one.path):
            one = replace(one, problem="is moved away and comes anew in one diff: make it with git diff --no-renames")  # noqa: PLW2901
        elif one.source is None and not one.new and letter.ends_changed and not one.problem:
            said = "names no blob, and every line of the diff ends in CR LF: which line ends it has is not certain"
            one = replace(one, problem=said)  # noqa: PLW2901
        found.append(one)
    return found


def _check_overlays(branch: _Branch, letter: Letter, files: Sequence[Placed], wish: Wish) -> None:
    """An overlay file that a patch of ours names comes with it, or is there."""
    created = {one.path for one in files}
    for path in letter.overlays:
        out = any(fnmatch(path, glob) for glob in wish.leave_out)
        if path not in created and not out and not tree_entries(branch.checkout.repo, branch.checkout.head, [path]):
            # why: a patch file has no overlay files in it, and the patch without them is another one
            raise Refused(
                f"{letter.name}: it brings the overlay file {shown(path)}, which a patch file does not hold.",
                "Adopt the commit itself (COMMIT --from CLONE), or leave that file out (--leave-out).",
            )


def _overlays(checkout: Checkout) -> frozenset[str]:
    """The overlay files of the series on the branch."""
    return frozenset(path for commit in checkout.commits for path in overlay_paths(commit.message))


def _left_out(foreign: Foreign, globs: Sequence[str]) -> bool:
    return any(fnmatch(name, glob) for glob in globs for name in suffixes(foreign, foreign.name))


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
    wanted = wanted_blobs(foreign)
    asked = {
        path: old for path, old in wanted.items() if not (old and any(blob.startswith(old) for blob in branch.made))
    }
    return find_base(asked, known, histories) if any(asked.values()) else None


def _load(branch: _Branch, foreign: Sequence[Foreign]) -> None:
    """The files of the branch that a letter may touch."""
    repo, head, pin = branch.checkout.repo, branch.checkout.head, branch.checkout.pin
    paths = {path for one in foreign for name in names(one) for path in readings(pin, one, name) if path}
    new = sorted(paths - branch.files.keys())
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

    before = dict(branch.files)
    return Ground(
        branch.checkout.pin, now, lambda path: before.get(path, File()), based.get, at_pin, named, branch.overlays
    )


def _contents(repo: Repository, names: Mapping[str, str]) -> dict[str, bytes | None]:
    """Path → the bytes of the object of that name, None where there is no such blob."""
    read = read_objects(repo, names.values())
    found = {path: read[name] for path, name in names.items()}
    return {path: one.data if one and one.kind == "blob" else None for path, one in found.items()}


def _adopted(
    branch: _Branch, letter: Letter, base: Base | None, files: tuple[Placed, ...], out: tuple[str, ...], wish: Wish,
    taken: Sequence[str],
) -> Iterator[Adopted]:  # fmt: skip
    """The patches that a letter becomes: one, or one for each group of its files."""
    parts = {"": files} if wish.split is None or not files else groups(files, branch.checkout.pin, wish.split)
    own = [*taken, *wish.taken, *(commit.slug or "" for commit in branch.checkout.commits)]
    for name, part in parts.items():
        slug = slug_of(wish.slug or letter.slug or letter.subject or letter.stem, own, name)
        own.append(slug)
        subject = f"{letter.subject} ({name})" if letter.subject and name else letter.subject
        brought = [path for path in letter.overlays if any(one.path == path and one.after.data for one in part)]
        message = unfinished_message(subject, letter.body, slug, _origin(letter, base, part, name), brought)
        yield Adopted(slug, letter, base, part, message, out)
        out = ()


def _origin(letter: Letter, base: Base | None, files: Sequence[Placed], group: str) -> str:
    made = "which names no commit that it was made on"
    if base:
        made = f"{'made on' if base.whole else 'made on no one commit; most of it on'} {base.described}"
    part = f"The part in {group} of {shown(letter.title)}" if group else f"Adopted from {shown(letter.title)}"
    merged = [shown(one.path.rpartition("/")[2]) for one in files if one.how in (How.CLEAN, How.MOVED)]
    said = [f"{part},\n{made}."]
    said += [f"Merged, to be reviewed: {', '.join(merged)}."] if merged else []
    said += ["Its date could not be read."] if letter.date and _read_date(letter.date) is None else []
    return "\n".join(said)


def commit_all(repo: Repository, checkout: Checkout, adopted: Sequence[Adopted]) -> tuple[Adopted, ...]:
    """The patches as commits on the branch's tip, as objects of `repo`; merged files are looked at once more.

    Raises:
        Refused: a new file would take another one's place, or be imported in its place.
    """
    tip, found = checkout.head, []
    for one in adopted:
        made = _committed(repo, tip, _said(checkout.repo, one), changed_files(one.files))
        if made is None:
            files = (replace(file, how=How.ABSORBED, why=file.why or "changes nothing") for file in one.files)
            found.append(replace(one, files=tuple(files)))
        else:
            found.append(replace(one, commit=made, files=tuple(_reviewed(repo, tip, made, one))))
            tip = made
    return tuple(found)


def _committed(repo: Repository, parent: str, said: Said, files: Mapping[str, tuple[str, bytes | None]]) -> str | None:
    """A commit of these files, None where they change nothing."""
    made = build_on(repo, parent, said, files) if files else parent
    changes = diff_trees(repo, parent, made) if files else ()
    _check_nothing_else(changes, files)
    _check_imported(repo, made, [change.path for change in changes if change.old is None])
    return made if changes else None


def _check_imported(repo: Repository, tip: str, created: Sequence[str]) -> None:
    """No new file is a package beside a module of its name: Python would import the package, and never the module."""
    twins = {_twin(path): path for path in created if path.endswith(".py")}
    for twin in tree_entries(repo, tip, twins) if twins else ():
        # why: the patched module would have no effect, and every check of its bytes would say yes
        raise Refused(
            f"{shown(twins[twin])} is new, and {shown(twin)} is there: Python imports the package of the two.",
            "Leave it out (--leave-out), or give it another name.",
        )


def _twin(path: str) -> str:
    """The module of a package's name, or the package of a module's."""
    package = path.removesuffix("/__init__.py")
    return f"{package}.py" if package != path else path.removesuffix(".py") + "/__init__.py"


def _check_nothing_else(changes: Sequence[Change], asked: Mapping[str, object]) -> None:
    """A file takes no other's place: a folder's, or that of a file which would become a folder."""
    lost = next((change.path for change in changes if change.path not in asked), None)
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
    when = _read_date(said) or datetime.now(timezone.utc)
    when = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
    return f"{when:%a}, {when.day} {when:%b %Y %H:%M:%S %z}"


def _read_date(said: str) -> datetime | None:
    """A mail's date, where it is one that git can hold."""
    with suppress(ValueError, TypeError, OverflowError):
        when = parsedate_to_datetime(said)
        return when if 1970 < when.year < 2100 else None
    return None


def _reviewed(repo: Repository, before: str, commit: str, adopted: Adopted) -> Iterator[Placed]:
    """The files, as moved those whose hunks now stand in other functions than the diff said, or in another order."""
    there: dict[str, list[str]] = {}
    if any(one.how is How.CLEAN for one in adopted.files):
        # A clone's attributes have no say in what a function is.
        with objects_alone(git_path(repo, "objects").parent) as bare:
            foreign = parse_foreign(Spot(commit), letter_of_commit(bare, commit, before).diff)
        there = {one.name: [hunk.section for hunk in one.hunks] for one in foreign}
    for one in adopted.files:
        other = moved_into(one.sections, there.get(one.path, [])) if one.how is How.CLEAN else None
        yield one if other is None else replace(one, how=How.MOVED, why=f"merged, now in {other!r}")


def hand_off(repo: Repository, checkout: Checkout, adopted: Sequence[Adopted]) -> tuple[str, str]:
    """The patches as commits on their own bases, for git to cherry-pick: the commit before the first, and the last.

    The one before holds the branch's files, but the touched ones as the patches were made on them; it has no parent, so
    that a `git merge` of it is refused and cannot take the series back.
    """
    bases: dict[str, tuple[str, bytes | None]] = {}
    for one in (file for patch in adopted for file in patch.files):
        bases.setdefault(one.path, (one.base.mode, one.base.data))
    names_of = " and ".join(sorted({patch.base.name for patch in adopted if patch.base and patch.base.whole}))
    where = f", as it is in {names_of}" if names_of else ", as it was made on"
    said = Said(ADOPTER, ADOPTER, _date(""), f"What {adopted[0].letter.title} touches{where}\n")
    before = tip = build_on(repo, checkout.head, said, bases, apart=True)
    _check_nothing_else(diff_trees(repo, checkout.head, before), bases)
    for patch in adopted:
        files = {one.path: (one.theirs.mode, one.theirs.data) for one in patch.files}
        tip = _committed(repo, tip, _said(checkout.repo, patch), files) or tip
    return before, tip
