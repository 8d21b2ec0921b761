"""rebase: move a series to another pin, patch by patch; what does not go in by itself is handed to a person."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from .. import report
from ..errors import Missing, Refused, UsageError
from ..queue.carry import State
from ..queue.causes import Cause, find_cause
from ..queue.checkout import find_checkout, our_branch, read_commits
from ..queue.export import check_whole, export_range, exported_series, exporting, workplace
from ..queue.git import Repository, commit_exists, git_path, is_repository, objects_alone, run
from ..queue.handoff import (
    HandOff,
    Workshop,
    check_out,
    check_untouched,
    close_workshop,
    given_up,
    hand_off,
    open_workshop,
    resolution,
    standing_on,
    taken,
)
from ..queue.home import Home, command
from ..queue.landing import land, landing, with_absent
from ..queue.lint import Finding, lint_series
from ..queue.merging import check_git
from ..queue.moving import Decided, Move, Moved, advance, finished, resolved_by
from ..queue.origin import read_origin
from ..queue.pinning import joint_versions, new_pin, version_in
from ..queue.pins import ABSENT, NAME, Lines, Pin, load_lines
from ..queue.proof import prove
from ..queue.rebasing import Begun, forget, read_begun, state_file, workshop_folder, write_begun
from ..queue.series import Series, load_series
from ..queue.sources import KINDS, check_sources, choose_source
from ..queue.transaction import locked
from ..queue.wheels import fetch_release
from ..serving.nvcc.toolchain import describe_toolchain
from ._moved import Answer, show_answer
from ._options import Parser, count, folder, given, own_home

WHAT = "Move a series to another pin: exactly where nothing changed, by git's 3-way merge elsewhere, or by you."
EXAMPLES = """\
  rebase.py sglang --onto 0.5.24 --dry-run       what would the next release cost?
  rebase.py sglang --onto 0.5.24                 a new line, v0.5.24, from the default one
  rebase.py flashinfer --onto 0.7.4 --line v0.5.24
  rebase.py sglang --onto v0.5.16 --from v0.5.9  make a move again that is recorded: the same series comes out
  rebase.py sglang --onto 0.5.24 --source ~/src/sglang     with a history, the change that conflicts is named
  rebase.py sglang --continue                    after you resolved what it handed to you
  rebase.py sglang --skip 'absorbed: sglang#26496, v0.5.13'
  rebase.py sglang --status
  rebase.py sglang --onto 0.5.24 --take ~/src/sglang       you moved it yourself with git: prove it, and record it

Per patch: clean, moved (clean, but in a function whose header changed: look at it), absorbed (upstream has it),
conflict or gone (handed to you in a worktree, with git's own cherry-pick; resolutions are remembered). At the end every
patch is proved red and green; then series and pins are written together. Nothing else of yours is touched.

exit codes: 0 done, 1 a patch is not proved or not as lint wants it (nothing was written), 2 usage, 3 handed to you,
4 something is missing
"""


def main(argv: list[str] | None = None) -> int:
    """Runs the verb."""
    options = _parser().parse_args(argv)
    home = own_home()
    _undo_cut(home, options.dry_run)
    lines = load_lines(home.pins)
    _check(options, home, lines)
    folder = workshop_folder(home, options.upstream)
    if options.dry_run:
        return _plan(options, home, lines)
    (folder / "repo.git").mkdir(parents=True, exist_ok=True)
    with locked(folder / "repo.git" / "lock"):
        return _run(options, home, lines)


def _undo_cut(home: Home, looks: bool) -> None:
    """Takes back what a landing that was cut had written, before anything is read.

    Raises:
        Refused: one was cut, and this run only looks.
    """
    if looks or not workplace(home).journal.is_file():
        check_whole(home)
        return
    with exporting(home):
        report.say("a landing was cut here; what it had written was taken back first")


def _parser() -> Parser:
    made = Parser(
        prog="sm120-overlay rebase", description=WHAT, epilog="examples:\n" + EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    made.add_argument("upstream", type=given, metavar="UPSTREAM", help="sglang or flashinfer")
    made.add_argument("--onto", type=given, metavar="VERSION", help="the release to move to: its version, tag or line")
    made.add_argument(
        "--from", dest="old", type=given, metavar="LINE", help="the line that moves (default: the default)"
    )
    made.add_argument("--line", type=given, metavar="NEW", help="the line that it becomes (default: vVERSION)")
    made.add_argument(
        "--source", type=given, action="append", default=[], metavar="SOURCE",
        help="where upstream comes from: auto, git, pypi, or a repository that holds the pins (repeatable)",
    )  # fmt: skip
    made.add_argument(
        "--history", type=folder, metavar="PATH",
        help="a clone of upstream with its history: the change that conflicts, or has it already, is named",
    )  # fmt: skip
    made.add_argument(
        "--take", type=folder, metavar="CHECKOUT",
        help="its HEAD is the series moved by hand (git rebase): each commit there decides its patch, by its slug",
    )  # fmt: skip
    made.add_argument("--default", action="store_true", help="the new line becomes the default one")
    made.add_argument("--unproved", action="store_true", help="write it without running the tests, and say so")
    made.add_argument("--jobs", type=count, default=os.cpu_count() or 1, metavar="N", help="tests at a time")
    how = made.add_mutually_exclusive_group()
    how.add_argument("--continue", dest="go_on", action="store_true", help="go on with what you resolved")
    how.add_argument(
        "--skip", type=given, metavar="REASON",
        help="the new line does without the patch: 'absorbed: PROJECT#NUMBER, vVERSION' or 'n/a: REASON'",
    )  # fmt: skip
    how.add_argument("--abort", action="store_true", help="give the move up; nothing was written yet")
    how.add_argument("--status", action="store_true", help="how far it is, and what it waits for")
    how.add_argument("--dry-run", action="store_true", help="say how every patch would go, and write nothing")
    made.add_argument("--slug", type=given, help="the patch that --skip means (default: the one that waits)")
    made.add_argument("--json", action="store_true", help="one JSON object on standard output (docs/json.md)")
    return made


def _check(options: argparse.Namespace, home: Home, lines: Lines) -> None:
    lines.line(options.old).pin(options.upstream)
    under_way = options.go_on or options.skip or options.abort or options.status
    if not under_way and not options.onto:
        # why: a release that is guessed is another pin
        raise UsageError("Expected --onto VERSION.", "Name the release to move to, such as --onto 0.5.24.")
    if under_way and (options.onto or options.old or options.line or options.source or options.default or options.take):
        # why: the move that is under way was begun with others
        raise UsageError("--onto, --from, --line, --source and --default begin a move.", "Leave them out to go on.")
    if options.slug and not options.skip:
        # why: it would be ignored
        raise UsageError("--slug says which patch --skip means.", "Leave it out, or give --skip REASON.")
    if options.skip and not ABSENT.fullmatch(options.skip):
        # why: a patch that is left out without a reason looks forgotten
        raise UsageError(
            f"--skip {options.skip!r}: expected `absorbed: PROJECT#NUMBER, vVERSION` or `n/a: REASON` of 20 letters.",
            "Say which change of upstream's is the same, or why the line does without the patch.",
        )
    if options.line and not NAME.fullmatch(options.line):
        # why: a line is a folder below patches/ and a branch's name
        raise UsageError(f"--line {options.line!r}: expected a name such as v0.5.24.", "Give another one.")
    if not (home.root / "tests" / "patches").is_dir():
        # why: in an installed wheel the series would be written into site-packages, and lost with it
        raise Missing(f"{home.root}: a series is moved in a clone of this project.", "Clone it, and run it there.")


def _run(options: argparse.Namespace, home: Home, lines: Lines) -> int:
    begun = read_begun(home, options.upstream)
    if options.onto:
        if begun:
            # why: its decisions would be lost
            raise Refused(
                f"{state_file(home, options.upstream)}: a move from {begun.line} to {begun.pin.line} is under way.",
                f"Go on with --continue, or give it up: {command('rebase')} {options.upstream} --abort.",
            )
        begun = _begin(options, lines)
    if begun is None:
        # why: there is nothing that could go on
        raise Refused(f"No move of {options.upstream} is under way.", "Begin one with --onto VERSION.")
    if options.abort:
        return _abort(options, home, Workshop(workshop_folder(home, options.upstream).resolve()), begun)
    pins = [pin for line in lines.lines for pin in line.pins]
    same = (begun.pin.line, begun.pin.upstream, begun.pin.version)
    known = next((pin for pin in pins if (pin.line, pin.upstream, pin.version) == same), begun.pin)
    begun = replace(begun, pin=known)  # as pins.toml has it now: it may have been edited since
    move, shop = _opened(home, lines, begun)
    if options.status:
        return _status(options, shop, move, begun)
    if options.skip:
        begun = _skipped(options, home, shop, move, begun)
    elif options.go_on:
        begun = _taken(home, shop, move, begun)
    else:
        write_begun(home, begun)
    return _go(options, home, shop, move, begun)


def _begin(options: argparse.Namespace, lines: Lines) -> Begun:
    """What was asked, checked; nothing is written."""
    repository = options.history or _clone_in(options.source)
    line = lines.line(options.old)
    old = line.pin(options.upstream)
    known = _known(options, lines)
    if known is not None and known.line == line.name:
        # why: a line that moves onto itself goes nowhere
        raise UsageError(f"{options.onto} is the pin of {line.name} itself.", "Name another release, or --from LINE.")
    taken = str(options.take.resolve()) if options.take else ""
    if known is not None:
        return Begun(line.name, known, tuple(options.source), {}, options.default, taken=taken)
    version = version_in(options.onto)
    name = options.line or f"v{version}"
    there = next(
        (pin for other in lines.lines for pin in other.pins if (pin.line, pin.upstream) == (name, old.upstream)), None
    )
    if there:
        # why: its patches would be replaced by those of another release
        raise UsageError(f"--line {name}: it is {old.upstream} {there.version}, not {version}.", "Name another line.")
    pin = new_pin(old, name, version, repository, report.say)
    fresh = all(other.name != name for other in lines.lines)
    joint = joint_versions(line, fetch_release(old.distribution, version, report.say)) if fresh else {}
    return Begun(line.name, pin, tuple(options.source), joint, options.default, taken=taken)


def _known(options: argparse.Namespace, lines: Lines) -> Pin | None:
    """The pin of a line that has that release, where there is one."""
    names = {options.onto, f"v{options.onto}"}
    for line in lines.lines:
        for pin in line.pins:
            named = names & {pin.tag, pin.line} or options.onto == pin.commit
            if pin.upstream == options.upstream and named and options.line in (None, line.name):
                return pin
    return None


def _opened(home: Home, lines: Lines, begun: Begun) -> tuple[Move, Workshop]:
    """The move, and the workshop that sees the objects of both pins."""
    move, commons = _prepared(home, lines, begun)
    return move, open_workshop(workshop_folder(home, begun.pin.upstream), commons)


def _prepared(home: Home, lines: Lines, begun: Begun) -> tuple[Move, tuple[Path, ...]]:
    """The move, and the git directories that hold the objects of both pins."""
    check_git(Repository(home.root))
    old = lines.line(begun.line).pin(begun.pin.upstream)
    move, commons = _move(home, old, begun.pin, begun.sources)
    if begun.taken:
        move, common = _by_hand(move, Path(begun.taken))
        commons = (*commons, common)
    return move, commons


def _by_hand(move: Move, checkout: Path) -> tuple[Move, Path]:
    """The move as a branch has it, and the git directory of that branch's objects."""
    where = find_checkout(checkout)
    repo = Repository(checkout.resolve())
    if not commit_exists(repo, move.after) or not read_commits(repo, where.head, (move.after,)):
        # why: a series on another commit is a series for another tree
        raise Refused(
            f"{checkout}: expected commits on {move.after[:12]} ({move.new.tag}), and HEAD {where.head[:12]} has none.",
            "Rebase the branch onto that commit; --source says where it comes from.",
        )
    return resolved_by(move, export_range(repo, where.common, move.after, where.head)), where.common


def _move(home: Home, old: Pin, new: Pin, sources: Sequence[str]) -> tuple[Move, tuple[Path, ...]]:
    """The move, and the git directories that hold the objects of both pins."""
    wanted = check_sources((old, new), sources or ["auto"])
    before, after = (choose_source(pin, wanted, report.say) for pin in (old, new))
    folder = home.patches(new.line, new.upstream)
    landed = load_series(home, new) if (folder / "series").is_file() else Series(new, ())
    origin = read_origin(folder)
    if origin and origin.line != old.line:
        # why: patches that only it carries would go without a word
        raise Refused(
            f"{new.line}/{new.upstream} came from {origin.line}, and the move is from {old.line}.",
            f"--from {origin.line} makes it again; remove {folder / 'origin.toml'} to have it replaced.",
        )
    move = Move(load_series(home, old), new, before.commit, after.commit, landed, origin)
    commons = dict.fromkeys(git_path(Repository(one.repository), "objects").parent for one in (before, after))
    return move, tuple(commons)


def _plan(options: argparse.Namespace, home: Home, lines: Lines) -> int:
    begun = _begin(options, lines)
    move, commons = _prepared(home, lines, begun)
    with objects_alone(*commons) as repo:
        moved = advance(repo, move, {})
    return show_answer(options, Answer(begun.line, begun.pin, moved, planned=True))


def _abort(options: argparse.Namespace, home: Home, shop: Workshop, begun: Begun) -> int:
    check_untouched(shop)
    close_workshop(shop)
    forget(home, options.upstream)
    said = f"the move of {options.upstream} from {begun.line} to {begun.pin.line} was given up; nothing was written"
    return show_answer(options, Answer(begun.line, begun.pin, said=said))


def _status(options: argparse.Namespace, shop: Workshop, move: Move, begun: Begun) -> int:
    moved = advance(shop.repo, move, begun.decided)
    answer = Answer(begun.line, begun.pin, moved)
    if moved.stopped is not None:
        return show_answer(options, replace(answer, waits=_what_to_do(shop, moved, begun)))
    where = f"the series lies in {shop.tree.path}" if begun.offered else "every patch is decided"
    return show_answer(options, replace(answer, said=f"{where}: {command('rebase')} {options.upstream} --continue"))


def _skipped(options: argparse.Namespace, home: Home, shop: Workshop, move: Move, begun: Begun) -> Begun:
    moved = advance(shop.repo, move, begun.decided)
    slug = options.slug or (moved.stopped.slug if moved.stopped else "")
    row = next((row for row in moved.rows if row.slug == slug), None)
    if row is None:
        # why: a patch that is guessed would be the wrong one to lose
        raise UsageError(
            f"--skip: expected a patch of the move, found {slug or 'none that waits'}.",
            f"Name one with --slug: {', '.join(row.slug for row in moved.rows)}.",
        )
    # By name, not by merge: what is decided of the patches before it would change the latter, and bring it back.
    decided = {**begun.decided, slug: Decided("", absent=options.skip)}
    offered = _still_offered(shop, move, moved, begun, slug, decided)
    begun = replace(begun, decided=decided, offered=offered)
    write_begun(home, begun)
    given_up(shop)
    return begun


def _still_offered(
    shop: Workshop, move: Move, moved: Moved, begun: Begun, slug: str, decided: Mapping[str, Decided]
) -> str:
    """What the series is offered as once a patch is left out: "" where nobody changed what was offered before."""
    tip = _offered_tip(shop, moved, begun)
    if tip == moved.tip:
        return ""
    if slug in {commit.slug for commit in read_commits(shop.tree, tip, (moved.base,))}:
        # why: the series is computed anew without the patch, and what was amended in the others would be lost
        raise HandOff(
            f"{shop.tree.path}: commits that you amended, and {slug} among them.",
            f"Drop that commit there too ({shop.git} rebase -i {moved.base[:12]}), then the same --skip again.",
        )
    return advance(shop.repo, move, decided).tip


def _taken(home: Home, shop: Workshop, move: Move, begun: Begun) -> Begun:
    """With the resolution that lies in the worktree, where it is the one that the move waits for."""
    moved = advance(shop.repo, move, begun.decided)
    if moved.stopped and standing_on(shop, moved, _branch(begun)):
        decided = resolution(shop, moved)
        begun = replace(begun, decided={**begun.decided, moved.stopped.slug: decided})
        write_begun(home, begun)
        taken(shop, decided.commit)
    return begun


def _branch(begun: Begun) -> str:
    return our_branch(begun.pin).removeprefix("refs/heads/")


def _go(options: argparse.Namespace, home: Home, shop: Workshop, move: Move, begun: Begun) -> int:
    """On until the end, or until a person is needed."""
    moved = advance(shop.repo, move, begun.decided)
    while moved.stopped is not None:
        slug = moved.stopped.slug
        cause = find_cause(options.history or _clone_in(begun.sources), move, slug, moved.stopped.state)
        if moved.stopped.state is State.ABSORBED and cause and cause.reference:
            report.say(f"{slug}: {begun.pin.tag} has it: {cause.commit.named}")
            decided = Decided(moved.stopped.merge, absent=f"absorbed: {cause.reference}")
        elif moved.stopped.stopped and hand_off(shop, moved, _branch(begun)):
            report.say(f"{slug}: resolved as git remembers it (rerere): look at it")
            decided = resolution(shop, moved)
            taken(shop, decided.commit)
        else:
            waits = _what_to_do(shop, moved, begun, cause)
            return show_answer(options, Answer(begun.line, begun.pin, moved, waits=waits))
        begun = replace(begun, decided={**begun.decided, slug: decided})
        write_begun(home, begun)
        moved = advance(shop.repo, move, begun.decided)
    return _finish(options, home, shop, move, moved, begun)


def _clone_in(sources: Sequence[str]) -> Path | None:
    """The first of the sources that is a repository: it may hold upstream's history."""
    return next((Path(source) for source in sources if source not in KINDS and is_repository(Path(source))), None)


def _what_to_do(shop: Workshop, moved: Moved, begun: Begun, cause: Cause | None = None) -> HandOff:
    """What the move waits for, and how to go on."""
    stopped = moved.stopped
    assert stopped is not None
    rebase = f"{command('rebase')} {begun.pin.upstream}"
    if not stopped.stopped:
        # why: a patch that is dropped without a word may have fixed more than upstream did
        return HandOff(
            f"{stopped.slug}: {begun.pin.tag} has it already, and which change brought it is not known.",
            f"{rebase} --skip 'absorbed: PROJECT#NUMBER, vVERSION' ({command('survey')} names the change).",
        )
    # why: only a person can say which of two changes of the same lines is meant
    return HandOff(
        f"{stopped.slug} does not go onto {begun.pin.tag} by itself: {', '.join(stopped.stopped)}"
        + (f", since {cause.commit.named}." if cause else "."),
        f"Resolve it in {shop.tree.path} (git add or git rm what you resolved), then {rebase} --continue; or leave the "
        f"patch out: {rebase} --skip 'n/a: REASON'; or {rebase} --abort.",
    )


def _finish(options: argparse.Namespace, home: Home, shop: Workshop, move: Move, moved: Moved, begun: Begun) -> int:
    """Proves the series and writes it; where it cannot be written it is offered to a person to mend."""
    tip = _offered_tip(shop, moved, begun)
    pin = with_absent(begun.pin, moved.absent)
    exported, origin = finished(shop.repo, git_path(shop.repo, "objects").parent, replace(move, new=pin), moved, tip)
    series = exported_series(pin, exported)
    lost = [step.patch.slug for step in moved.steps if step.patch.slug not in series.slugs]
    if lost:
        # why: a rebase -i that stopped half way, or a commit that was dropped, would lose patches without a word
        raise HandOff(
            f"{shop.tree.path}: HEAD {tip[:12]} has no commit of {', '.join(lost)}.",
            f"End the git rebase that is under way there, or bring them back; a patch that the line does without: "
            f"{command('rebase')} {options.upstream} --slug SLUG --skip REASON.",
        )
    check_untouched(shop)
    writes = landing(home, pin, exported, origin, begun.joint, begun.default)
    wrong = _wrong(options, home, series) if writes else []
    answer = Answer(begun.line, pin, moved, _range_diff(shop, move, moved, tip), wrong=wrong, changed=bool(writes))
    if wrong:
        check_out(shop, _branch(begun), tip)
        write_begun(home, replace(begun, offered=moved.tip))
        return show_answer(options, replace(answer, said=_mend(shop, begun)))
    land(home, writes)
    close_workshop(shop)
    forget(home, options.upstream)
    return show_answer(options, answer)


def _offered_tip(shop: Workshop, moved: Moved, begun: Begun) -> str:
    """The last commit of the series: as computed, or as a person left it who was asked to mend it."""
    if begun.offered != moved.tip or not (shop.tree.path / ".git").is_file():
        return moved.tip
    check_untouched(shop)
    dirty = run(shop.tree, "status", "--porcelain", "--untracked-files=no").decode("utf-8", "replace").splitlines()
    if dirty:
        # why: what is not committed would be left out of the series, and lost
        raise HandOff(
            f"{shop.tree.path}: changed and not committed: {', '.join(line[3:] for line in dirty[:5])}.",
            "Amend the commit of its patch, or restore the files; then --continue.",
        )
    return run(shop.tree, "rev-parse", "HEAD").decode().strip()


def _wrong(options: argparse.Namespace, home: Home, series: Series) -> list[Finding]:
    """What lint says, and the patches that are not red without and green with."""
    findings = list(lint_series(home, series))
    if findings or options.unproved:
        return findings
    proofs = prove(home, series, series.slugs, {"nvcc": describe_toolchain()}, options.jobs, report.say)
    verdicts = (
        (proof.slug, colour, verdict)
        for proof in proofs
        for colour, verdict in (("red", proof.red), ("green", proof.green))
    )
    return [
        Finding(slug, f"its test is not {colour}: {verdict.outcome}, {verdict.detail}")
        for slug, colour, verdict in verdicts
        if not verdict.ok
    ]


def _mend(shop: Workshop, begun: Begun) -> str:
    rebase = f"{command('rebase')} {begun.pin.upstream}"
    return (
        f"nothing was written. The series lies in {shop.tree.path}, a commit a patch: mend it there (amend, git rebase "
        f"-i), or the tests here, then {rebase} --continue; a patch that is not needed any more: {rebase} --slug SLUG "
        f"--skip REASON; to write it as it is: {rebase} --continue --unproved"
    )


def _range_diff(shop: Workshop, move: Move, moved: Moved, tip: str) -> str:
    """git's own view of both series beside each other."""
    old = [moved.made_on[slug] for slug in move.old.slugs]
    if not old or tip == moved.base:
        return ""
    how = ("--no-color", "--no-patch", "--creation-factor=90")
    ranges = (f"{move.before}..{old[-1]}", f"{moved.base}..{tip}")
    return run(shop.repo, "range-diff", *how, *ranges).decode("utf-8", "replace")
