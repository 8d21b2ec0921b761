"""adopt: make patches of what people have (a diff, a mail, a commit, a range), as commits on the series' branch."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from .. import report
from ..cache import cache_dir
from ..errors import Refused, UsageError
from ..queue.adoption import Adopted, Wish, commit_all, hand_off, plan
from ..queue.bases import Known
from ..queue.checkout import Checkout
from ..queue.clean import check_clean, check_finished
from ..queue.foreign import Foreign, parse_foreign
from ..queue.git import Repository, diff_trees, is_repository, objects_alone, run, set_refs, tip_of
from ..queue.home import command
from ..queue.letter import Letter, letters_of, letters_of_commits
from ..queue.located import readings
from ..queue.move import write_changes
from ..queue.patch import SLUG
from ..queue.pins import Pin
from ..queue.refs import plan_refs
from ..queue.series import Series
from ..queue.sources import pinned_roots
from ._adopted import show_adopted
from ._options import Wanted, count, folder, given, parser, wanted
from ._targets import default_folders, writing

WHAT = "Make patches of what people have, as commits on the series' branch."
EXAMPLES = """\
  adopt.py fix.patch                          a diff or a mail, onto the checkout that apply.py made under build/
  adopt.py fix.patch ~/src/sglang --slug moe-fix
  git -C ~/src/sglang diff | adopt.py -
  adopt.py v0.5.9..my-fixes --from ~/src/sglang   a commit or a range: a patch for each commit
  adopt.py sglang.patch --history ~/src/sglang    made on another commit: find it there, and merge from it
  adopt.py sglang.patch --split                   a large one: a patch for each folder, at most two below the package
  adopt.py sglang.patch --leave-out 'test/*' --dry-run

What a diff was made on is found by the blobs that it names. A file goes on exactly, or by a 3-way merge from its true
base, or nothing is written. What only a person can say is left marked TO-FILL: amend the commit, then run export.py.

exit codes: 0 done, 1 a file fits nowhere (nothing was written), 2 usage, 3 conflicts are handed to git cherry-pick,
4 something is missing
"""


def main(argv: list[str] | None = None) -> int:
    """Runs the verb."""
    made = _parser()
    # Options may stand between the change and the checkout; argparse knows no `--` there.
    options = made.parse_args(argv) if "--" in (argv or ()) else made.parse_intermixed_args(argv)
    asked = wanted(options)
    if len(options.checkouts) > 1:
        # why: which of them the change is for is not said
        raise UsageError("Two checkouts were named.", "A change is adopted into one.")
    letters, path = _read(asked, options)
    with writing(asked, [path], None, options.dry_run) as targets:
        (checkout,) = (target for target in targets if isinstance(target, Checkout))
        line = asked.lines.line(checkout.pin.line)
        _check_branch(checkout, asked.series(checkout.pin))
        histories = _histories(checkout, options)
        letters = letters or letters_of_commits(checkout.repo, options.change)
        taken = tuple(slug for pin in line.pins for slug in asked.series(pin).slugs)
        if options.slug and not options.split and options.slug in (*taken, *(one.slug for one in checkout.commits)):
            # why: a name is one patch's over both upstreams, and another number behind it was not asked for
            raise UsageError(f"--slug {options.slug}: the line has a patch of that name.", "Give it another name.")
        wish = Wish(options.slug, options.depth if options.split else None, tuple(options.leave_out), taken)
        adopted = plan(checkout, letters, _known(asked, checkout, histories), histories, wish)
        if not all(one.mergeable for one in adopted):
            show_adopted(asked, options.dry_run, checkout, adopted, None)
            return 1
        if not all(one.placed for one in adopted):
            show_adopted(asked, options.dry_run, checkout, adopted, _handed_off(checkout, adopted, options.dry_run))
            return 3
        with objects_alone(checkout.where.common) if options.dry_run else nullcontext(checkout.repo) as repo:
            done = commit_all(repo, checkout, adopted)
            _put(checkout, done, repo, options.dry_run)
    done = tuple(replace(one, commit=None) for one in done) if options.dry_run else done
    show_adopted(asked, options.dry_run, checkout, done, None)
    return 0


def _parser() -> argparse.ArgumentParser:
    made = parser("adopt", WHAT, EXAMPLES, first=("change", "a diff or a mail (`-`: standard input), a commit or A..B"))
    made.add_argument(
        "--from", dest="origin", type=folder, metavar="CLONE", help="the repository of that commit or range"
    )
    made.add_argument(
        "--history", type=folder, action="append", default=[], metavar="CLONE",
        help="a repository to look through for the commit that a diff was made on (repeatable)",
    )  # fmt: skip
    made.add_argument("--slug", type=_slug, help="the patch's name (default: made of its subject)")
    made.add_argument("--split", action="store_true", help="a patch for each folder")
    made.add_argument("--depth", type=count, default=2, help="how far below the package --split goes (default: 2)")
    made.add_argument(
        "--leave-out", type=given, action="append", default=[], metavar="GLOB", help="files to leave out (repeatable)"
    )
    made.add_argument("--dry-run", action="store_true", help="say how each file would go on, and write nothing")
    return made


def _slug(text: str) -> str:
    if not re.fullmatch(SLUG, text):
        raise argparse.ArgumentTypeError(f"expected lower-case words joined by hyphens, found {text!r}")
    return text


def _read(asked: Wanted, options: argparse.Namespace) -> tuple[tuple[Letter, ...], Path]:
    """The letters (none yet, where they are commits of the checkout itself), and the checkout they are for."""
    data = _data(options)
    if data is not None:
        letters = letters_of(options.change, data)
        if not any(letter.diff.strip() for letter in letters):
            # why: a page that says `not found` must not pass for an empty change
            raise UsageError(
                f"{options.change}: expected a unified diff, found none in it.", "Name a diff or a mail with one."
            )
        letters = tuple(letter for letter in letters if not _passed_over(letter))
    elif options.origin is not None:
        letters = letters_of_commits(Repository(options.origin.resolve()), options.change)
    else:
        letters = ()
    named = [Path(path) for path in options.checkouts]
    return letters, named[0] if named else _default(asked, options, letters)


def _passed_over(letter: Letter) -> bool:
    """Whether it is a cover letter, which is said."""
    if letter.cover:
        report.say(f"{letter.name}: a cover letter, which has no diff; passed over")
    return letter.cover


def _data(options: argparse.Namespace) -> bytes | None:
    """The bytes of a diff or a mail; None where the change is a revision."""
    if options.change == "-":
        if sys.stdin is None:
            # why: an empty change would be adopted
            raise UsageError("-: standard input is closed.", "Pipe a diff into it, or name a file.")
        return sys.stdin.buffer.read()
    file = Path(options.change)
    if options.origin is not None or not file.exists():
        return None
    if file.is_dir():
        # why: a folder of diffs has no order
        raise UsageError(
            f"{file}: expected a diff, found a folder.", "Name the diff itself, or --from CLONE and a range."
        )
    return file.read_bytes()


def _default(asked: Wanted, options: argparse.Namespace, letters: Sequence[Letter]) -> Path:
    """The fresh checkout whose upstream has the files of the change."""
    pins = asked.pins(asked.lines.line(asked.line))
    folders = [
        (pin, path) for pin, path in zip(pins, default_folders(asked, options.into), strict=True) if path.exists()
    ]
    if not folders:
        # why: a change needs the pinned tree that it is placed on
        raise Refused(
            f"{default_folders(asked, options.into)[0].parent.resolve()}: no checkout is there to adopt into.",
            f"Make one with {command('apply')}, or name a checkout.",
        )
    counts = {path: sum(_is_for(pin, path, one) for one in _files(letters)) for pin, path in folders}
    best = max(counts.values())
    likely = [path for path, count in counts.items() if count == best]
    if letters and not best:
        # why: a change for an upstream that is not checked out here would be refused file by file
        raise UsageError(
            f"{options.change}: none of its files belongs to {' or '.join(map(str, counts))}.",
            f"Make the checkout that it is for ({command('apply')}), or name it.",
        )
    if len(likely) > 1:
        what = "may be for" if letters else "is no file here; as a commit it may be of"
        # why: the same path, or the same revision, may be in both upstreams
        raise UsageError(f"{options.change} {what} {' or '.join(map(str, likely))}.", "Name the checkout, or --from.")
    return likely[0]


def _files(letters: Sequence[Letter]) -> Iterator[Foreign]:
    for letter in letters:
        yield from parse_foreign(letter.spot, letter.diff)


def _is_for(pin: Pin, folder: Path, found: Foreign) -> bool:
    """Whether a file has a place in the pin's package; of `diff -u`, whose names say little, whether it is there."""
    paths = [path for path in readings(pin, found, found.name) if path]
    return any((folder / path).is_file() for path in paths) if found.plain else bool(paths)


def _check_branch(checkout: Checkout, series: Series) -> None:
    """HEAD is where adopted commits belong: on our branch, or on the bare pin of an upstream without patches."""
    check_finished(checkout)
    tip = tip_of(checkout.repo, checkout.ours)
    bare = checkout.head == checkout.base and not series.patches and tip is None
    ours = checkout.our_name
    if checkout.branch != checkout.ours and not bare:
        # why: a commit elsewhere would not be exported with the series
        raise Refused(
            f"{checkout.repo.path}: HEAD is {checkout.standing}; a change is adopted on top of the series, on branch "
            f"{ours}.",
            f"{checkout.git} checkout {ours}"
            if tip
            else f"Apply the series there first: {command('apply')} {checkout.repo.path}",
        )


def _histories(checkout: Checkout, options: argparse.Namespace) -> list[Repository]:
    """Every repository at hand of this upstream: those that were named, the checkout's own, the cache's."""
    paths = [*options.history, *([options.origin] if options.origin else [])]
    lost = next((path for path in paths if not is_repository(path)), None)
    if lost:
        # why: a history that is passed over makes the base of a diff unknown
        raise UsageError(f"{lost}: expected a git repository, found none.", "Name a clone or a mirror.")
    cached = cache_dir("git", f"{checkout.pin.upstream}.git")
    found = [checkout.repo.path, *paths, *([cached] if is_repository(cached) else [])]
    return [Repository(path) for path in dict.fromkeys(path.resolve() for path in found)]


def _known(asked: Wanted, checkout: Checkout, histories: Sequence[Repository]) -> list[Known]:
    """The likeliest bases: the checkout's pin, its branch, then the pins of other lines."""
    pin = checkout.pin
    own = [Known(checkout.repo, checkout.base, pin.tag)]
    own += [Known(checkout.repo, checkout.head, checkout.our_name)] if checkout.commits else []
    pins = [other for other in asked.lines.all_pins() if other.upstream == pin.upstream]
    return own + [Known(repo, root, other.tag) for other in pins for root in pinned_roots(other) for repo in histories]


def _put(checkout: Checkout, done: Sequence[Adopted], repo: Repository, dry_run: bool) -> None:
    """Branch, index and files at the last commit."""
    tip = next((one.commit for one in reversed(done) if one.commit), None)
    if tip is None:
        return
    changes = diff_trees(repo, checkout.head, tip)
    check_clean(checkout, Series(checkout.pin, ()), changes)
    if not dry_run:
        refs = plan_refs(checkout, tip, tip_of(checkout.repo, checkout.ours))
        write_changes(checkout, {}, changes, refs)


def _handed_off(checkout: Checkout, adopted: Sequence[Adopted], dry_run: bool) -> tuple[str, str]:
    """Gives the patches to git, on their own base: the commit before the first ("" in a dry run), and the branch."""
    branch = f"adopt/{adopted[0].slug}"
    if tip_of(checkout.repo, "refs/heads/adopt"):
        # why: git keeps no branch below another one
        raise Refused(
            f"{checkout.repo.path}: a branch adopt of yours is in the way of {branch}.",
            f"Rename it: {checkout.git} branch -m adopt NEW-NAME",
        )
    if tip_of(checkout.repo, f"refs/heads/{branch}"):
        first = run(checkout.repo, "rev-list", "--max-parents=0", f"refs/heads/{branch}").decode().split()[0]
        # why: an earlier try may hold conflicts that someone has resolved by hand
        raise Refused(
            f"{checkout.repo.path}: branch {branch} is there already, of an earlier try.",
            f"Go on with it ({checkout.git} cherry-pick {first[:12]}..{branch}), or remove it: {checkout.git} branch "
            f"-D {branch}",
        )
    if dry_run:
        return "", branch
    before, tip = hand_off(checkout.repo, checkout, adopted)
    set_refs(checkout.repo, {f"refs/heads/{branch}": (tip, None)}, "sm120-overlay: adopt")
    return before, branch
