"""upstream: make one patch ready for its upstream, ask whether it is still needed there, note where it stands."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path
from shlex import join

from .. import report
from ..cache import publish_file
from ..errors import Missing, Refused, UsageError
from ..queue.alone import Alone, Branch, carry_alone, commit_alone
from ..queue.carry import STOPPED, State
from ..queue.causes import find_cause
from ..queue.export import check_whole
from ..queue.formatters import Ran, hooks_of, run_formatters
from ..queue.git import Repository, objects_alone, read_objects, run
from ..queue.handoff import HandOff, open_workshop
from ..queue.home import Home, command
from ..queue.landing import land
from ..queue.laying import upstream_tests
from ..queue.lint import VALUES
from ..queue.manners import PLAIN, TEMPLATE, Facts, means_nothing, pull_request
from ..queue.merging import check_git
from ..queue.needed import Fixed, first_passing, oldest_known
from ..queue.outbox import (
    Desk,
    check_gh,
    mails,
    open_desk,
    open_request,
    outbox_folder,
    put_on,
    request_commands,
    write_mails,
)
from ..queue.pins import Lines, load_lines
from ..queue.statuses import carriers, newness, status_writes
from ..queue.transaction import locked
from ..queue.wheels import fetch_wheel
from ._destined import Asked, destined
from ._options import Parser, folder, given, own_home
from ._sent import Checked, Sent, show_checked, show_rows, show_sent, show_status
from ._tried import Judge

WHAT = "Make one patch ready for its upstream: a branch of its own there, its test in their form, the text to send."
EXAMPLES = """\
  upstream.py arch-list-parsing --source ~/src/flashinfer --dry-run     does it go in there, and what would be said?
  upstream.py arch-list-parsing --source ~/src/flashinfer               a branch on its main, proved, and the text
  upstream.py arch-list-parsing --source ~/src/flashinfer --onto v0.7.3
  upstream.py moe-trtllm-refusal                                        on the newest line's release, from its wheel
  upstream.py arch-list-parsing --source ~/src/flashinfer --sign-off 'You <you@example.org>' --format-patch mails/
  upstream.py arch-list-parsing --source ~/src/flashinfer --sign-off 'You <you@example.org>' --gh you/flashinfer
  upstream.py arch-list-parsing --source ~/src/flashinfer --check       still needed there? if not: since which change?
  upstream.py arch-list-parsing --set-status 'Submitted [https://github.com/flashinfer-ai/flashinfer/pull/1]'
  status.py --upstream                                                  where every patch stands

The branch lies in a repository of our own below build/upstream/; your clone is only read. The patch's body loses our
trailers, and nothing is claimed that was not measured. Only --gh sends anything, and it prints what it runs first.

exit codes: 0 done (--check: still needed), 1 its test is not red without and green with it (--check: not needed any
more), 2 usage, 3 it does not go in by itself, 4 something is missing
"""


def main(argv: list[str] | None = None) -> int:
    """Runs the verb."""
    options = _parser().parse_args(argv)
    home = own_home()
    _check(options)
    if options.set_status:
        return _set_status(options, home)
    check_whole(home)
    _clone_here(home)
    check_git(Repository(home.root))
    lines = load_lines(home.pins)
    asked = destined(options, home, lines)
    if options.check:
        return _still_needed(asked)
    _check_is_for_upstream(asked)
    with objects_alone(*asked.commons) as repo:
        alone = carry_alone(repo, asked.move, asked.patch.slug)
        _check_goes_in(asked, alone)
        if options.dry_run:
            return show_sent(options, _planned(asked, repo, alone))
    place = outbox_folder(home, asked.pin.upstream)
    (place / "repo.git").mkdir(parents=True, exist_ok=True)
    with locked(place / "repo.git" / "lock"):
        return _send(asked, place)


def _parser() -> Parser:
    made = Parser(
        prog="sm120-overlay upstream", description=WHAT, epilog="examples:\n" + EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    made.add_argument("slug", type=given, metavar="SLUG", help="the patch")
    made.add_argument(
        "--source", type=given, action="append", default=[], metavar="SOURCE",
        help="a clone or mirror of upstream (else: auto, git or pypi, for the pins; repeatable)",
    )  # fmt: skip
    made.add_argument(
        "--onto",
        type=given,
        metavar="REV",
        help="the revision there (default: its main; without a clone: a line's release)",
    )
    made.add_argument("--line", type=given, help="the line whose patch it is (default: the newest that carries it)")
    made.add_argument("--sign-off", type=given, metavar="'NAME <MAIL>'", help="who sends it: author, and Signed-off-by")
    made.add_argument("--format-patch", type=folder, metavar="DIR", help="its mails too, for git am or git send-email")
    made.add_argument("--no-format", action="store_true", help="leave upstream's formatters out, and say so")
    made.add_argument("--unproved", action="store_true", help="do not run its test, and say so")
    made.add_argument(
        "--gh", type=given, metavar="FORK", help="push to this fork (OWNER/NAME) and open the request, by gh"
    )
    made.add_argument("--dry-run", action="store_true", help="say how it goes in and what would be said; write nothing")
    how = made.add_mutually_exclusive_group()
    how.add_argument("--check", action="store_true", help="still needed there? its test runs without it")
    how.add_argument("--set-status", type=given, metavar="STATUS", help="the patch's Upstream-Status, on every line")
    made.add_argument("--json", action="store_true", help="one JSON object on standard output (docs/json.md)")
    return made


def _check(options: argparse.Namespace) -> None:
    making = {
        "--sign-off": options.sign_off, "--format-patch": options.format_patch, "--no-format": options.no_format,
        "--unproved": options.unproved, "--gh": options.gh,
    }  # fmt: skip
    where = {"--source": options.source, "--onto": options.onto, "--line": options.line}
    other = "--check" if options.check else "--set-status" if options.set_status else ""
    odd = [name for name, value in {**making, **(where if options.set_status else {})}.items() if value]
    if other and odd:
        # why: it would be ignored
        raise UsageError(f"{other} was given together with {', '.join(odd)}.", "Leave them out.")
    if options.check and options.dry_run:
        # why: it would be ignored
        raise UsageError("--check writes nothing.", "Leave --dry-run out.")
    pattern, words = VALUES["Signed-off-by"]
    if options.sign_off and not re.fullmatch(pattern, options.sign_off):
        # why: upstream's checks refuse a sign-off without a mail address
        raise UsageError(f"--sign-off {options.sign_off!r}: expected {words}.", "Such as 'You <you@example.org>'.")
    if options.gh and not re.fullmatch(r"[\w.-]+/[\w.-]+", options.gh):
        # why: a branch that is pushed elsewhere is sent to somebody else
        raise UsageError(f"--gh {options.gh!r}: expected a fork, OWNER/NAME.", "Such as you/sglang.")
    if options.gh and not options.dry_run:
        check_gh()


def _clone_here(home: Home) -> None:
    if not (home.root / "tests" / "patches").is_dir():
        # why: in an installed wheel it would be written into site-packages, and lost with it
        raise Missing(f"{home.root}: this needs a clone of this project.", "Clone it, and run it there.")


def _set_status(options: argparse.Namespace, home: Home) -> int:
    _clone_here(home)
    check_whole(home)
    writes = status_writes(home, load_lines(home.pins), options.slug, options.set_status)
    if writes and not options.dry_run:
        land(home, writes)
    return show_status(options, [write.path for write in writes])


# A branch


def _check_is_for_upstream(asked: Asked) -> None:
    status = asked.patch.trailer("Upstream-Status") or ""
    if status.startswith(("Inappropriate", "Backport")):
        # why: upstream has it, or has no use for it: its author said so
        raise Refused(
            f"{asked.patch.slug} is not for upstream: Upstream-Status: {status}.",
            f"If that has changed: {command('upstream')} {asked.patch.slug} --set-status Pending.",
        )


def _check_goes_in(asked: Asked, alone: Alone) -> None:
    """The patch, and what it needs, goes in at the revision, and something is left of it."""
    onto = f"{asked.pin.upstream} {asked.target.commit.short}"
    stopped = [row for row in alone.rows if row.state in STOPPED]
    if stopped:
        show_rows(asked.pin.upstream, asked.target.commit, alone)
        others = [pin.line for pin in carriers(asked.home, asked.lines, asked.patch.slug) if pin != asked.pin]
        hint = f"As {', '.join(others)} carries it, it may go in (--line); or m" if others else "M"
        first = stopped[0]
        # why: a patch that goes in by half is not what was proved
        raise HandOff(
            f"{first.slug}: {first.state.value} on {onto}: {', '.join(first.stopped)}; nothing was written.",
            f"{hint}ove the series nearer to it first: {command('rebase')} {asked.pin.upstream} --onto VERSION.",
        )
    if alone.own.state is State.ABSORBED:
        found = find_cause(asked.target.repository, asked.move, asked.patch.slug, State.ABSORBED)
        reference = (
            f"absorbed: {found.reference}" if found and found.reference else "absorbed: PROJECT#NUMBER, vVERSION"
        )
        # why: an empty request wastes a maintainer's time
        raise Refused(
            f"{asked.patch.slug}: {onto} has all of it" + (f", since {found.commit.named}." if found else "."),
            f"The next line records it: {command('rebase')} {asked.pin.upstream} --slug {asked.patch.slug} "
            f"--skip '{reference}'.",
        )


def _tests(asked: Asked) -> dict[str, bytes]:
    return upstream_tests(asked.home, asked.pin.upstream, asked.patch.slug)


def _test_path(asked: Asked) -> str:
    return next((path for path in _tests(asked) if Path(path).name.startswith("test_")), "")


def _planned(asked: Asked, repo: Repository, alone: Alone) -> Sent:
    """What would be made, as far as it can be said without making it."""
    sent = Sent(asked.pin, asked.target.commit, asked.patch, alone, _test_path(asked), planned=True)
    return _with_page(asked, repo, replace(sent, notes=_notes(asked, sent)))


def _send(asked: Asked, place: Path) -> int:
    """Makes branch, page and mails; the exit code says whether the test is red without the patch and green with it."""
    shop = open_workshop(place, asked.commons)
    desk = open_desk(shop.repo, asked.patch.slug)
    alone = carry_alone(shop.repo, asked.move, asked.patch.slug)
    _check_tests(asked, shop.repo, alone)
    branch = commit_alone(shop.repo, alone, _tests(asked), asked.options.sign_off or "")
    branch, ran, diff = _formatted(asked, desk, alone, branch)
    sent = Sent(asked.pin, asked.target.commit, asked.patch, alone, _test_path(asked), branch, desk, ran, diff)
    sent = _proved(asked, shop.repo, replace(sent, rooted=asked.target.installable))
    sent = _with_page(asked, shop.repo, replace(sent, notes=_notes(asked, sent)))
    if asked.options.format_patch:
        wanted = mails(shop.repo, alone.base, branch.tip)
        sent = replace(sent, mails=tuple(write_mails(asked.options.format_patch, wanted)))
    publish_file(desk.page, sent.page.encode())
    return show_sent(asked.options, _requested(asked, desk, sent))


def _check_tests(asked: Asked, repo: Repository, alone: Alone) -> None:
    names = {f"{alone.base}:{path}": path for path in _tests(asked)}
    there = [names[name] for name, found in read_objects(repo, names).items() if found]
    if there:
        # why: upstream's own test would be replaced
        raise Refused(
            f"{', '.join(there)}: {asked.target.commit.short} has such a file itself.",
            f"Rename ours below upstream/{asked.pin.upstream}/{asked.patch.slug}/.",
        )


def _formatted(asked: Asked, desk: Desk, alone: Alone, branch: Branch) -> tuple[Branch, tuple[Ran, ...], str]:
    """The branch in its worktree, as upstream's formatters leave it, and what they changed.

    A file that they would change without the patch too is left to upstream.
    """
    hooks = () if asked.options.no_format else hooks_of(desk.repo, alone.base)
    own = [path for path, entry in alone.steps[-1].carried.files.items() if entry]
    put_on(desk, branch.before)
    present = [path for path in own if (desk.tree.path / path).is_file()]
    run_formatters([hook for hook in hooks if hook.changes], desk.tree.path, present)
    theirs = _changed(desk)
    put_on(desk, branch.tip)
    ran = run_formatters(hooks, desk.tree.path, [path for path in (*own, *_tests(asked)) if path not in theirs])
    changed = _changed(desk)
    if changed:
        diff = run(desk.tree, "diff", "--no-ext-diff", "--no-color").decode("utf-8", "replace")
        instead = {path: (desk.tree.path / path).read_bytes() for path in changed}
        branch = commit_alone(desk.repo, alone, _tests(asked), asked.options.sign_off or "", instead)
        put_on(desk, branch.tip)
        return branch, ran, diff
    return branch, ran, ""


def _changed(desk: Desk) -> list[str]:
    out = run(desk.tree, "diff", "--name-only", "--no-ext-diff", "-z").decode("utf-8", "surrogateescape")
    return [path for path in out.split("\0") if path]


def _proved(asked: Asked, repo: Repository, sent: Sent) -> Sent:
    """With what its test shows on the branch without the patch, and with it."""
    if asked.options.unproved or not sent.test or sent.branch is None:
        return sent
    judge = _judge(asked, repo)
    report.say(f"{asked.patch.slug}: running {sent.test} without the patch, then with it")
    return replace(sent, red=judge.on(sent.branch.before), green=judge.on(sent.branch.tip))


def _judge(asked: Asked, repo: Repository) -> Judge:
    return Judge(asked.home, repo, asked.target.pin, fetch_wheel(asked.target.pin, report.say), asked.patch)


def _notes(asked: Asked, sent: Sent) -> tuple[str, ...]:
    """What a reader of the page, here or there, must know of this run."""
    own = sent.alone.own
    notes = [f"Made on {asked.pin.distribution} {asked.pin.version} and carried by git's 3-way merge."]
    notes += [f"Look at it: {own.why}."] if own.why else []
    if not asked.target.installable:
        notes.append("Its base is a release laid out from its wheel, which is not upstream's history.")
    needs = [row.slug for row in sent.alone.rows[:-1] if row.files]
    notes += [f"It stands on {len(needs)} other commits of this branch."] if needs else []
    return tuple(notes)


def _with_page(asked: Asked, repo: Repository, sent: Sent) -> Sent:
    files = list(sent.alone.steps[-1].carried.files)
    repositories = _repositories(asked.lines)
    facts = Facts(files, sent.test, sent.proved, sent.formatted, sent.notes, repositories, sent.how_it_ran)
    return replace(
        sent, page=pull_request(_template(asked, repo), asked.patch, facts), doubtful=means_nothing(asked.patch)
    )


def _template(asked: Asked, repo: Repository) -> str:
    """Upstream's own where its tree has one, else the headings that this project keeps of it."""
    name = f"{asked.target.commit.id}:{TEMPLATE}"
    found = read_objects(repo, [name])[name]
    ours = asked.home.root / "upstream" / asked.pin.upstream / Path(TEMPLATE).name
    if found:
        return found.data.decode("utf-8", "replace")
    return ours.read_text(encoding="utf-8") if ours.is_file() else PLAIN


def _repositories(lines: Lines) -> dict[str, str]:
    """Upstream → `OWNER/NAME`."""
    return {pin.upstream: "/".join(pin.repository.removesuffix(".git").split("/")[-2:]) for pin in lines.all_pins()}


def _requested(asked: Asked, desk: Desk, sent: Sent) -> Sent:
    """With the pull request opened, where --gh asks for it."""
    if not asked.options.gh:
        return sent
    if not asked.target.installable or (sent.test and not sent.proved):
        why = "is laid out from a wheel" if not asked.target.installable else "is not proved"
        # why: what is sent is read by busy people
        raise Refused(
            f"{desk.name} {why}: nothing was sent.", "Name a clone of upstream (--source), and let its test run."
        )
    commands = request_commands(
        desk, _repositories(asked.lines)[asked.pin.upstream], asked.options.gh, asked.patch.subject
    )
    for words in commands:
        report.say(f"running: {join(words)}")
    return replace(sent, request=open_request(desk, commands))


# Still needed?


def _still_needed(asked: Asked) -> int:
    """Runs the test at the revision without the patch; where it passes, looks for the change that made it so."""
    with objects_alone(*asked.commons) as repo:
        judge = _judge(asked, repo)
        report.say(f"{asked.patch.slug}: running {judge.named} on {asked.target.commit.short} without the patch")
        tried = judge.on(asked.target.commit.id)
        fixed = _fixed(asked, judge) if tried.outcome == "passed" else None
    return show_checked(asked.options, Checked(asked.pin, asked.target.commit, asked.patch, judge.named, tried, fixed))


def _fixed(asked: Asked, judge: Judge) -> Fixed | None:
    """The change with which it began to pass: by its merge where upstream has the very lines, else by trying."""
    history = Repository(asked.target.repository)
    cause = find_cause(asked.target.repository, asked.move, asked.patch.slug, State.ABSORBED)
    if cause:
        return Fixed(cause.commit, cause.reference)
    pins = sorted((pin for pin in asked.lines.all_pins() if pin.upstream == asked.pin.upstream),
                  key=lambda pin: newness(pin.version), reverse=True)  # fmt: skip
    old = oldest_known(history, [pin for pin in pins if newness(pin.version) <= newness(asked.pin.version)])
    if not old:
        return None

    def outcome(commit: str) -> str:
        tried = judge.on(commit)
        report.say(f"  {commit[:12]}: {tried.outcome}")
        return tried.outcome

    return first_passing(history, asked.pin, old, asked.target.commit.id, outcome)
