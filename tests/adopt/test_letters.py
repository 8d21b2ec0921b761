"""Mails, boxes of mails, commits and ranges: what they say is kept, and each change becomes a patch of its own."""

from __future__ import annotations

import base64
import quopri
from collections.abc import Callable
from pathlib import Path

import pytest

from sm120_overlay.cli import main
from sm120_overlay.errors import OverlayError, Refused, UsageError
from sm120_overlay.queue.foreign import parse_foreign
from sm120_overlay.queue.git import Repository
from sm120_overlay.queue.letter import letters_of, letters_of_commits
from sm120_overlay.queue.paths import Spot

from ..queue.toy import Toy, apply_to, git, git_bytes
from .people import BARE, CORE, DOS, RUN, Stranger, adopt, at_head, edited, everything, hows

Save = Callable[[bytes], Path]
TEXT = "one\ntwo\nvier"


def transferred(mail: bytes, how: str, charset: str = "utf-8") -> bytes:
    """A mail of git's as a mailer sends it: its body encoded."""
    head, _, body = mail.partition(b"\n\n")
    coded = base64.encodebytes(body) if how == "base64" else quopri.encodestring(body)
    kind = f"MIME-Version: 1.0\nContent-Type: text/plain; charset={charset}\nContent-Transfer-Encoding: {how}"
    heads = [line for line in head.split(b"\n") if not line.startswith((b"MIME-", b"Content-"))]
    return b"\n".join([*heads, kind.encode()]) + b"\n\n" + coded


def with_attachment(mail: bytes, kind: str) -> bytes:
    """The same said in a mail to which someone attached the diff as a file."""
    head, _, body = mail.partition(b"\n\n")
    said, _, rest = body.partition(b"\n---\n")
    diff = rest[rest.index(b"diff --git") : rest.index(b"-- \n")]
    heads = [line for line in head.split(b"\n") if not line.startswith((b"MIME-", b"Content-"))]
    return b"\n".join([
        *heads, b"MIME-Version: 1.0", b'Content-Type: multipart/mixed; boundary="x"', b"", b"--x",
        b"Content-Type: text/plain; charset=UTF-8", b"Content-Transfer-Encoding: 8bit", b"", said, b"", b"--x",
        b"Content-Type: %s; name=x.patch" % kind.encode(), b"Content-Transfer-Encoding: base64",
        b"Content-Disposition: attachment; filename=x.patch", b"", base64.encodebytes(diff), b"--x--", b"",
    ])  # fmt: skip


@pytest.mark.parametrize(
    "how",
    [
        "plain",
        "base64",
        "quoted-printable",
        "attached",
        "inline",
        "crlf",
        "raw headers",
        "box",
        "application/octet-stream",
        "text/x-patch",
    ],
)
def test_a_mail_is_read_whatever_a_mailer_made_of_it(stranger: Stranger, ours: Path, saved: Save, how: str) -> None:
    said = "läuft: ein Umlaut = 1, und ein Betreff, der so lang ist, dass er gefaltet wird\n\nGrüße.\n\n= Ende"
    stranger.commit({BARE: TEXT}, said)
    mail = stranger.mails("HEAD~1", *{"attached": ("--attach",), "inline": ("--inline",)}.get(how, ()))
    if how in ("base64", "quoted-printable"):
        mail = transferred(mail, how)
    elif "/" in how:
        mail = with_attachment(mail, how)
    elif how == "crlf":
        mail = mail.replace(b"\n", b"\r\n")
    elif how == "raw headers":
        mail = b"Delivered-To: me@example.org\nReceived: by x\n\twith SMTP\n" + mail.partition(b"\n")[2]
    elif how == "box":
        mail = mail.partition(b"\n")[2] + b"\n"
    answer = adopt(saved(mail), ours)
    assert (answer.code, hows(answer)) == (0, {BARE: "exact"})
    assert at_head(ours, BARE) == TEXT.encode()
    shown = git(ours, "log", "-1", "--format=%an <%ae>%n%ad%n%s%n%b", "--date=iso")
    assert shown.startswith("Ann <ann@example.org>\n2026-03-01 12:00:00 +0100\n" + said.partition("\n")[0])
    assert "Grüße." in shown
    assert "= Ende" in shown


def test_a_latin_1_mail_says_in_utf_8_what_it_said(stranger: Stranger, ours: Path, saved: Save) -> None:
    stranger.commit({BARE: TEXT}, "core: x\n\nBody.")
    mail = stranger.mails().replace(b"Body.", "Größe.".encode("latin-1"))
    head, _, rest = mail.partition(b"\n\n")
    mail = head + b"\nContent-Type: text/plain; charset=ISO-8859-1\nContent-Transfer-Encoding: 8bit\n\n" + rest
    assert adopt(saved(mail), ours).code == 0
    assert "Größe." in git(ours, "log", "-1", "--format=%b")


def test_a_series_of_mails_becomes_a_patch_each_and_its_cover_letter_none(
    stranger: Stranger, ours: Path, saved: Save
) -> None:
    stranger.commit({BARE: TEXT}, "one: first\n\nA.")
    stranger.commit({BARE: TEXT + "!"}, "two: second\n\nB.")
    stranger.commit({RUN: "print('ran')\n"}, "three: third\n\nC.")
    mails = stranger.mails("HEAD~3", "--cover-letter")
    assert b"[PATCH 0/3]" in mails
    answer = adopt(saved(mails), ours)
    assert (answer.code, "mail 1: a cover letter" in answer.err) == (0, True)
    assert git(ours, "log", "-3", "--reverse", "--format=%s").split("\n")[:3] == [
        "one: first", "two: second", "three: third",
    ]  # fmt: skip
    assert [patch["slug"] for patch in answer.targets["toy"]["patches"]] == ["first", "second", "third"]
    assert at_head(ours, BARE, "HEAD~2") == TEXT.encode()
    assert at_head(ours, BARE) == (TEXT + "!").encode()


def test_a_mail_of_a_box_that_lost_its_diff_is_refused(stranger: Stranger, ours: Path, saved: Save) -> None:
    stranger.commit({BARE: TEXT}, "one: first\n\nA.")
    stranger.commit({RUN: "print('ran')\n"}, "two: second\n\nB.")
    mails = stranger.mails("HEAD~2")
    second = mails.index(b"\nFrom ", 1)
    lost = mails[:second] + mails[second:].partition(b"\ndiff --git")[0] + b"\n"
    before = everything(ours)
    answer = adopt(saved(lost), ours)
    assert answer.code == 2
    assert "mail 2: expected a unified diff" in answer.err
    assert everything(ours) == before


def test_a_from_line_in_the_body_names_the_author(stranger: Stranger, ours: Path, saved: Save) -> None:
    stranger.commit({BARE: TEXT}, "core: x\n\nBody.")
    mail = stranger.mails().replace(b"\n\nBody.", b"\n\nFrom: Bob B. <bob@example.org>\n\nBody.")
    assert adopt(saved(mail), ours).code == 0
    assert git(ours, "log", "-1", "--format=%an <%ae>") == "Bob B. <bob@example.org>\n"


@pytest.mark.case("CRLF line ends upstream", target="adopt", outcome="exact", source="electron/electron#28360")
@pytest.mark.case("no newline at the end of a file", target="adopt", outcome="exact")
@pytest.mark.parametrize("how", ["diff", "mail", "commit"])
def test_crlf_and_a_missing_last_newline_survive(stranger: Stranger, toy: Toy, saved: Save, how: str) -> None:
    ours = toy.clone("toy", "ours")
    assert apply_to(ours, "--through", "right-answer") == 0
    files = {DOS: "A = 1\r\nB = 2\r\nC = 33\r\n", BARE: "one\ntwo\nvier"}
    data = stranger.diff(files)
    commit = stranger.commit(files)
    named = (commit, ours, "--from", stranger.path) if how == "commit" else None
    answer = adopt(*(named or (saved(data if how == "diff" else stranger.mails()), ours)))
    assert (answer.code, hows(answer)) == (0, {DOS: "exact", BARE: "exact"})
    assert {path: at_head(ours, path) for path in files} == {path: text.encode() for path, text in files.items()}
    assert {path: (ours / path).read_bytes() for path in files} == {path: text.encode() for path, text in files.items()}


def test_a_range_of_a_clone_becomes_its_commits_in_order(stranger: Stranger, ours: Path) -> None:
    base = stranger.head
    stranger.commit({BARE: TEXT}, "one: first\n\nA.\n---\nand more behind three dashes.")
    stranger.commit({RUN: "print('ran')\n"}, "two: second\n\nB.\n\nSigned-off-by: Ann <ann@example.org>")
    answer = adopt(f"{base}..main", ours, "--from", stranger.path)
    assert answer.code == 0
    assert git(ours, "log", "-2", "--reverse", "--format=%s") == "one: first\ntwo: second\n"
    assert "and more behind three dashes." in git(ours, "log", "-1", "--format=%b", "HEAD~1")
    assert git(ours, "log", "-1", "--format=%(trailers:key=Signed-off-by,valueonly)").strip() == "Ann <ann@example.org>"
    assert (
        adopt("main", ours, "--from", stranger.path).said["targets"][0]["patches"][0]["files"][0]["how"] == "absorbed"
    )


def test_a_commit_of_the_checkout_itself_is_adopted_without_naming_a_clone(ours: Path) -> None:
    git(ours, "checkout", "-q", "-b", "mine", "main")
    commit = Stranger(ours).commit({BARE: TEXT})
    git(ours, "checkout", "-q", "sm120/v1")
    answer = adopt(commit[:10], ours)
    assert (answer.code, hows(answer)) == (0, {BARE: "exact"})


def odd_revisions(stranger: Stranger) -> dict[str, str]:
    """What no change can be made of → what is said of it."""
    base = stranger.head
    git(stranger.path, "checkout", "-q", "-b", "side")
    stranger.commit({BARE: TEXT})
    git(stranger.path, "checkout", "-q", "main")
    stranger.commit({RUN: "x\n"})
    git(stranger.path, "merge", "-q", "-m", "m", "side")
    git(stranger.path, "tag", "merge")
    git(stranger.path, "commit", "-q", "--allow-empty", "-m", "empty")
    return {
        "merge": "merge", base: "first commit", "HEAD..HEAD": "found none", "nowhere": "none of these",
        f"{base}...side": "none of these", "merge..HEAD": "changes no file", f"{base}..HEAD": "merge",
        "^main": "none of these", f"{base}:{BARE}": "none of these",
    }  # fmt: skip


def test_what_is_no_change_is_refused_by_name(stranger: Stranger) -> None:
    for revision, said in odd_revisions(stranger).items():
        with pytest.raises(OverlayError) as caught:
            letters_of_commits(Repository(stranger.path), revision)
        assert said in str(caught.value), revision
        assert isinstance(caught.value, (Refused, UsageError))


@pytest.mark.parametrize("option", ["--output=owned", "-o", "--all", "--help"])
def test_a_revision_that_looks_like_an_option_is_none(
    stranger: Stranger, ours: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything(ours), everything(stranger.path)
    assert main(["adopt", "--from", str(stranger.path), "--", option, str(ours)]) == 2
    assert "none of these" in capsys.readouterr().err
    assert (everything(ours), everything(stranger.path)) == before


def test_the_users_settings_do_not_change_what_a_commit_says(stranger: Stranger) -> None:
    stranger.commit({CORE: edited(CORE, 9)})
    plain = letters_of_commits(Repository(stranger.path), "HEAD")
    git(stranger.path, "config", "diff.noprefix", "true")
    git(stranger.path, "config", "diff.context", "9")
    git(stranger.path, "config", "format.pretty", "oneline")
    git(stranger.path, "config", "color.ui", "always")
    assert letters_of_commits(Repository(stranger.path), "HEAD") == plain
    (found,) = parse_foreign(Spot("x"), plain[0].diff)
    assert len(found.old) == 40


def test_a_raw_diff_with_a_byte_order_mark_and_crlf_throughout_is_read_as_it_was_made(stranger: Stranger) -> None:
    diff = stranger.diff({BARE: TEXT, "python/toy/new.py": ""})
    plain = letters_of("x", diff)[0].diff
    assert letters_of("x", b"\xef\xbb\xbf" + diff.replace(b"\n", b"\r\n"))[0].diff == plain
    assert git_bytes(stranger.path, "diff", "--cached").decode("latin-1") == plain


@pytest.mark.parametrize("date", ["Thu, 1 Jan 1960 00:00:00 +0000", "yesterday", "Fri, 31 Dec 9999 23:59:59 +0000"])
def test_a_date_that_git_cannot_hold_is_today(stranger: Stranger, ours: Path, saved: Save, date: str) -> None:
    stranger.commit({BARE: TEXT})
    lines = [b"Date: " + date.encode() if line.startswith(b"Date:") else line for line in stranger.mails().split(b"\n")]
    assert adopt(saved(b"\n".join(lines)), ours).code == 0
    assert int(git(ours, "log", "-1", "--format=%at")) > 1_500_000_000
