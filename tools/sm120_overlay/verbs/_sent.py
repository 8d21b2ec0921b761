"""What `upstream` answers: how the patch goes in, what its test shows, where the branch lies, what to send."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import report
from ..queue.alone import Alone, Branch
from ..queue.formatters import Ran
from ..queue.home import command
from ..queue.needed import Fixed
from ..queue.outbox import Desk
from ..queue.patch import Patch
from ..queue.pins import Pin
from ..queue.ranges import Commit
from ._show import short
from ._tried import Tried


@dataclass(frozen=True)
class Sent:
    """A patch made ready for a revision of its upstream, as far as this run came.

    `test` is the path of its test in upstream's form ("": none is written), `diff` what the formatters changed, `page`
    the text of the pull request, `doubtful` lines of the message that mean nothing to upstream.
    """

    pin: Pin
    onto: Commit
    patch: Patch
    alone: Alone
    test: str
    branch: Branch | None = None
    desk: Desk | None = None
    ran: tuple[Ran, ...] = ()
    diff: str = ""
    red: Tried | None = None
    green: Tried | None = None
    notes: tuple[str, ...] = ()
    page: str = ""
    doubtful: tuple[str, ...] = ()
    mails: tuple[Path, ...] = ()
    request: str = ""
    planned: bool = False
    rooted: bool = True

    @property
    def proved(self) -> bool:
        """Its test failed by its own assertion without the patch, and passed with it."""
        return bool(self.red and self.green and self.red.outcome == "failed" and self.green.outcome == "passed")

    @property
    def how_it_ran(self) -> str:
        """How the test was run, and what stood in for what this machine lacks; "" where it was not."""
        return f"run as `{self.green.runner}`: {self.green.ground or 'it broke'}" if self.green else ""

    @property
    def formatted(self) -> bool:
        """Every formatter of upstream's ran on the files, and none complains."""
        return bool(self.ran) and all(one.ran and not one.said for one in self.ran)


@dataclass(frozen=True)
class Checked:
    """Whether a patch is still needed at a revision: what its test shows there without it, and who made it pass."""

    pin: Pin
    onto: Commit
    patch: Patch
    test: str
    tried: Tried
    fixed: Fixed | None

    @property
    def code(self) -> int:
        """The exit code: still needed, not needed any more, or it could not be told."""
        return {"failed": 0, "passed": 1}.get(self.tried.outcome, 4)


def show_rows(upstream: str, onto: Commit, alone: Alone) -> None:
    """How the patch and what it needs go in."""
    rows = [
        (row.slug, row.state.value, short("; ".join(filter(None, [", ".join(row.stopped), row.why]))))
        for row in alone.rows
    ]
    report.show_table(f"{upstream} onto {onto.named}", ("patch", "state", "what to know"), rows)


def show_sent(options: argparse.Namespace, sent: Sent) -> int:
    """Prints it; the exit code."""
    unproved = sent.red is not None and not sent.proved
    code = 1 if unproved else 0
    if options.json:
        report.show_json("upstream", {"line": sent.pin.line, "ok": code == 0, "targets": [], **_as_json(sent)})
        return code
    show_rows(sent.pin.upstream, sent.onto, sent.alone)
    notes = [f"note: {note}" for note in sent.notes]
    for line in (*notes, *_test_lines(options, sent), *_format_lines(options, sent), *_doubtful_lines(sent)):
        report.show(line)
    report.show("\npull request: " + (str(sent.desk.page) if sent.desk else "(as it would be)"))
    report.show(f"\n  {sent.patch.subject}\n")
    report.show("\n".join(f"  {line}".rstrip() for line in sent.page.rstrip("\n").split("\n")))
    for line in _where_lines(sent):
        report.show(line)
    return code


def _test_lines(options: argparse.Namespace, sent: Sent) -> list[str]:
    if not sent.test:
        return [f"test: NONE in upstream's form (upstream/{sent.pin.upstream}/{sent.patch.slug}/); ours stays here"]
    if sent.red is None or sent.green is None:
        return [f"test: {sent.test}, NOT run ({'--dry-run' if options.dry_run else '--unproved'})"]
    lines = [f"test: {sent.test}, run as `{sent.green.runner}`"]
    for colour, tried, wanted in (("red", sent.red, "failed"), ("green", sent.green, "passed")):
        verdict = "as it should be" if tried.outcome == wanted else "WRONG"
        where = "without the patch" if colour == "red" else "with it"
        lines.append(f"  {colour:5} {where:17}  {verdict}: {tried.outcome}, {short(tried.detail)[:160]}")
    lines += [f"  ground: {sent.green.ground}"] if sent.green.ground else []
    return [*lines, f"  upstream's CI collects it as: {sent.green.ci}"] if sent.green.ci else lines


def _format_lines(options: argparse.Namespace, sent: Sent) -> list[str]:
    if not sent.ran:
        why = (
            "--no-format"
            if options.no_format
            else "dry run"
            if sent.planned
            else "none is configured there for such files"
        )
        return [f"upstream's formatters: not run ({why})"]
    lines = [f"upstream's formatters, as pinned there: {'changed what follows' if sent.diff else 'nothing to change'}"]
    lines += [f"  {one.hook} {one.version}: {_of_hook(one)}" for one in sent.ran]
    return [*lines, *(f"  {line}" for line in sent.diff.splitlines())]


def _of_hook(one: Ran) -> str:
    if not one.ran:
        return f"NOT run: {one.said}"
    return f"complains: {one.said}" if one.said else "ran"


def _doubtful_lines(sent: Sent) -> list[str]:
    said = ["look at these lines of the message, which mean nothing to upstream (git commit --amend there):"]
    return [*said, *(f"  {line}" for line in sent.doubtful)] if sent.doubtful else []


def _where_lines(sent: Sent) -> list[str]:
    if sent.desk is None or sent.branch is None:
        return ["nothing was written"]
    name, tree = sent.desk.name, sent.desk.tree.path
    lines = [f"\nbranch: {name} ({sent.branch.tip[:12]}), checked out in {tree}"]
    if sent.rooted:
        lines += [f"  into your clone:  git fetch {sent.desk.repo.path} {name}:{name}"]
        lines += [f"  to your fork:     git -C {tree} push git@github.com:YOU/{sent.pin.upstream}.git {name}"]
    else:
        lines += ["  into your clone:  as a mail (--format-patch, git am --3way), or name the clone: --source"]
    lines += [f"mail: {path}" for path in sent.mails]
    lines += [f"sent: {sent.request}"] if sent.request else []
    todo = f"{command('upstream')} {sent.patch.slug} --set-status 'Submitted [URL]'"
    return [*lines, f"when it is sent: {todo}"]


def _as_json(sent: Sent) -> dict[str, Any]:
    rows = [
        {"slug": row.slug, "state": row.state.value, "reason": row.why or None, "stopped": list(row.stopped)}
        for row in sent.alone.rows
    ]
    test = {
        "path": sent.test,
        "red": asdict(sent.red) if sent.red else None,
        "green": asdict(sent.green) if sent.green else None,
    }
    return {
        "upstream": sent.pin.upstream,
        "slug": sent.patch.slug,
        "onto": _commit_json(sent.onto),
        "patches": rows,
        "proved": sent.proved if sent.red else None,
        "test": test if sent.test else None,
        "formatters": [asdict(one) for one in sent.ran],
        "reformatted": sent.diff or None,
        "branch": sent.desk.name if sent.desk else None,
        "commit": sent.branch.tip if sent.branch else None,
        "before": sent.branch.before if sent.branch else None,
        "repository": str(sent.desk.repo.path) if sent.desk else None,
        "worktree": str(sent.desk.tree.path) if sent.desk else None,
        "pull_request": {
            "title": sent.patch.subject,
            "body": sent.page,
            "file": str(sent.desk.page) if sent.desk else None,
            "url": sent.request or None,
        },
        "doubtful": list(sent.doubtful),
        "notes": list(sent.notes),
        "mails": [str(path) for path in sent.mails],
    }


def _commit_json(commit: Commit) -> dict[str, Any]:
    return {"commit": commit.id, "date": commit.date, "number": commit.number, "subject": commit.subject}


def show_checked(options: argparse.Namespace, checked: Checked) -> int:
    """Prints it; the exit code."""
    fixed = checked.fixed
    if options.json:
        said = {
            "upstream": checked.pin.upstream,
            "slug": checked.patch.slug,
            "onto": _commit_json(checked.onto),
            "test": {"path": checked.test, **asdict(checked.tried)},
            "needed": {0: True, 1: False}.get(checked.code),
            "fixed": {**_commit_json(fixed.commit), "apart": fixed.apart} if fixed else None,
            "absent": f"absorbed: {fixed.reference}" if fixed and fixed.reference else None,
        }
        report.show_json("upstream", {"line": checked.pin.line, "ok": checked.code == 0, "targets": [], **said})
        return checked.code
    for line in _checked_lines(checked):
        report.show(line)
    return checked.code


def _checked_lines(checked: Checked) -> list[str]:
    where = f"{checked.pin.upstream} {checked.onto.named}"
    lines = [
        f"{checked.test} without the patch, on {where}:",
        f"  {checked.tried.outcome}: {checked.tried.detail[:200]}",
    ]
    lines += [f"  ground: {checked.tried.ground}"] if checked.tried.ground else []
    if checked.code == 0:
        return [*lines, f"{checked.patch.slug} is still needed there"]
    if checked.code != 1:
        return [*lines, "it could not be told: the test neither failed by its own assertion nor passed"]
    fixed = checked.fixed
    if fixed is None:
        more = "which change made it so is not known: a clone with the history from the line's pin on says (--source)"
        return [*lines, f"{checked.patch.slug} is NOT needed there any more; {more}"]
    lines += [f"{checked.patch.slug} is NOT needed there any more, since {fixed.commit.named}"]
    lines += [f"  ({fixed.apart} changes before it could not be tried: it may be one of them)"] if fixed.apart else []
    if not fixed.reference:
        return [*lines, "  no release has it yet, or it has no number"]
    skip = f"--slug {checked.patch.slug} --skip 'absorbed: {fixed.reference}'"
    return [*lines, "  the next line can record it:", f"    {command('rebase')} {checked.pin.upstream} {skip}"]


def show_status(options: argparse.Namespace, paths: Sequence[str]) -> int:
    """What --set-status changed, or would."""
    changed = [] if options.dry_run else list(paths)
    if options.json:
        said = {"slug": options.slug, "status": options.set_status, "changed": changed, "would_change": list(paths)}
        report.show_json("upstream", {"line": None, "ok": True, "targets": [], **said})
        return 0
    verb = "would change" if options.dry_run else "changed"
    for path in paths:
        report.show(f"{verb} {path}")
    report.show(f"{options.slug}: Upstream-Status: {options.set_status}" + ("" if paths else " (it says so already)"))
    return 0
