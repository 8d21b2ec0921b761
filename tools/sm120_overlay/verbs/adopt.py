"""adopt: make patches of what people have (a diff, a mail, a commit, a range), as commits on the series' branch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from .. import report
from ..cache import cache_dir
from ..errors import Refused, UsageError
from ..queue.adoption import Adopted, Wish, commit_all, hand_off, plan
from ..queue.bases import Known
from ..queue.checkout import Checkout
from ..queue.clean import check_clean, check_finished
from ..queue.foreign import located, parse_foreign
from ..queue.git import Repository, diff_trees, objects_alone, set_refs, tip_of
from ..queue.home import command
from ..queue.letter import Letter, letters_of, letters_of_commits
from ..queue.move import write_changes
from ..queue.paths import Spot
from ..queue.pins import Pin
from ..queue.refs import plan_refs
from ..queue.series import Series
from ..queue.sources import pinned_roots
from ._adopted import show_adopted
from ._options import Wanted, folder, given, parser, wanted
from ._targets import default_folders, writing

WHAT = "Make patches of what people have, as commits on the series' branch."
EXAMPLES = """\
  adopt.py fix.patch                          a diff or a mail, onto the checkout that apply.py made under build/
  adopt.py fix.patch ~/src/sglang --slug moe-fix
  git -C ~/src/sglang diff | adopt.py -
  adopt.py v0.5.9..my-fixes --from ~/src/sglang   a commit or a range: a patch for each commit
  adopt.py sglang.patch --history ~/src/sglang    made on another commit: find it there, and merge from it
  adopt.py sglang.patch --split                   a large one: a patch for each folder, two below the package
  adopt.py sglang.patch --leave-out 'test/*' --dry-run

What a diff was made on is found by the blobs that it names. A file goes on exactly, or by a 3-way merge from its true
base, or nothing is written. What only a person can say is left marked TO-FILL: amend the commit, then run export.py.

exit codes: 0 done, 1 a file fits nowhere (nothing was written), 2 usage, 3 conflicts are handed to git cherry-pick,
4 something is missing
"""


def main(argv: list[str] | None = None) -> int:
    """Runs the verb."""
    options = _parser().parse_args(argv)
    asked = wanted(options)
    if len(options.checkouts) > 1:
        # why: which of them the change is for is not said
        raise UsageError("Two checkouts were named.", "A change is adopted into one.")
    letters, path = _read(asked, options)
    with writing(asked, [path], None, options.dry_run) as targets:
        (checkout,) = (target for target in targets if isinstance(target, Checkout))
        _check_branch(checkout, asked.series(checkout.pin))
        histories = _histories(checkout, options)
        letters = letters or letters_of_commits(checkout.repo, options.change)
        wish = Wish(options.slug, options.split, tuple(options.leave_out))
        adopted = plan(checkout, letters, _known(asked, checkout, histories), histories, wish)
        if not all(one.placed for one in adopted):
            return _refused(asked, options, checkout, adopted)
        with objects_alone(checkout.where.common) if options.dry_run else nullcontext(checkout.repo) as repo:
            done = commit_all(repo, checkout, adopted)
            _put(checkout, done, repo, options.dry_run)
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
    made.add_argument("--slug", type=_words, help="the patch's name (default: made of its subject)")
    made.add_argument(
        "--split", nargs="?", const=2, type=_count, metavar="DEPTH",
        help="a patch for each folder, at most DEPTH (default: 2) below the package",
    )  # fmt: skip
    made.add_argument(
        "--leave-out", type=given, action="append", default=[], metavar="GLOB", help="files to leave out (repeatable)"
    )
    made.add_argument("--dry-run", action="store_true", help="say how each file would go on, and write nothing")
    return made


def _words(text: str) -> str:
    if not any(char.isalnum() for char in text):
        raise argparse.ArgumentTypeError(f"expected words, found {text!r}")
    return text


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, found {text!r}")
    return int(text)


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
    counts = {path: sum(_mapped(pin, letter) for letter in letters) for pin, path in folders}
    best = max(counts.values())
    likely = [path for path, count in counts.items() if count == best]
    if len(likely) > 1:
        # why: the same path may be in both upstreams
        raise UsageError(f"{options.change} may be for {' or '.join(map(str, likely))}.", "Name the checkout.")
    return likely[0]


def _mapped(pin: Pin, letter: Letter) -> int:
    """How many files of a letter have a place in the pin's package."""
    foreign = parse_foreign(Spot(letter.name, 1 if letter.raw else None), letter.diff)
    return sum(located(pin, one, one.name) is not None for one in foreign)


def _check_branch(checkout: Checkout, series: Series) -> None:
    """HEAD is where adopted commits belong: on our branch, or on the bare pin of an upstream without patches."""
    check_finished(checkout)
    bare = checkout.head == checkout.base and not series.patches and tip_of(checkout.repo, checkout.ours) is None
    if checkout.branch != checkout.ours and not bare:
        where = (checkout.branch or "a detached HEAD").removeprefix("refs/heads/")
        # why: a commit elsewhere would not be exported with the series
        raise Refused(
            f"{checkout.repo.path}: HEAD is on {where}; a change is adopted on top of the series, on branch "
            f"{checkout.ours.removeprefix('refs/heads/')}.",
            f"Apply the series there first: {command('apply')} {checkout.repo.path}",
        )


def _histories(checkout: Checkout, options: argparse.Namespace) -> list[Repository]:
    """Every repository at hand of this upstream: those that were named, the checkout's own, the cache's."""
    paths = [*options.history, *([options.origin] if options.origin else [])]
    lost = next((path for path in paths if not path.is_dir()), None)
    if lost:
        # why: a history that is passed over makes the base of a diff unknown
        raise UsageError(f"{lost}: expected a git repository, found no folder.", "Name a clone or a mirror.")
    cached = cache_dir("git", f"{checkout.pin.upstream}.git")
    found = [path.resolve() for path in (checkout.repo.path, *paths, *([cached] if cached.is_dir() else []))]
    return [Repository(path) for path in dict.fromkeys(found)]


def _known(asked: Wanted, checkout: Checkout, histories: Sequence[Repository]) -> list[Known]:
    """The likeliest bases: the checkout's pin, its branch, then the pins of other lines."""
    pin = checkout.pin
    own = [Known(checkout.repo, checkout.base, pin.tag)]
    own += [Known(checkout.repo, checkout.head, checkout.ours.removeprefix("refs/heads/"))] if checkout.commits else []
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


def _refused(asked: Wanted, options: argparse.Namespace, checkout: Checkout, adopted: Sequence[Adopted]) -> int:
    """Nothing goes onto the branch; where git can go on, the patches are given to it on their own base."""
    if not all(one.mergeable for one in adopted):
        show_adopted(asked, options.dry_run, checkout, adopted, None)
        return 1
    branch = f"adopt/{adopted[0].slug}"
    if tip_of(checkout.repo, f"refs/heads/{branch}"):
        # why: an earlier try may hold conflicts that someone has resolved by hand
        raise Refused(
            f"{checkout.repo.path}: branch {branch} is there already, of an earlier try.",
            f"Go on with it (git cherry-pick), or remove it: git -C {checkout.repo.path} branch -D {branch}",
        )
    before = ""
    if not options.dry_run:
        before, tip = hand_off(checkout.repo, checkout, adopted)
        set_refs(checkout.repo, {f"refs/heads/{branch}": (tip, None)}, "sm120-overlay: adopt")
    show_adopted(asked, options.dry_run, checkout, adopted, (before, branch))
    return 3
