"""What people send as a change: a raw diff, a mail or a box of them, a commit or a range. All become letters.

git itself takes mails apart (mailsplit, mailinfo: encodings, folded headers, attachments).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import Refused, UsageError
from .diff import DIFF_FORM
from .foreign import MAIL
from .git import Repository, attempt, is_repository, last_words, run
from .mail import overlay_paths, slug_in
from .paths import Spot

BOX = re.compile(MAIL.pattern.encode())
HEADER = re.compile(rb"[A-Za-z][\w-]*:|[ \t]|>?From ")
TELLING = re.compile(rb"^(From|Subject|Date|Message-ID):", re.IGNORECASE | re.MULTILINE)
COVER = re.compile(rb"^Subject:[^\n]*\b0+/\d+\]", re.MULTILINE)
MAGIC = {
    b"\x1f\x8b": ("a compressed file", "Unpack it first (gunzip)."),
    b"\xff\xfe": ("UTF-16 text", "Write it with git itself: git diff --output=FILE"),
    b"\xfe\xff": ("UTF-16 text", "Write it with git itself: git diff --output=FILE"),
}
RANGE = re.compile(r"(.*[^.])?\.\.([^.].*)?")


@dataclass(frozen=True)
class Letter:
    """One change as people send it.

    `name` is what the user called it, `subject` and `body` what it says ("" where it says nothing), `author` as
    `NAME <MAIL>` and `date` as RFC 2822, where they are known; `diff` is latin-1 text. `parent` is the commit it was
    made on, where that is known (a commit of a repository at hand); `raw` says that `diff` is the whole file, `cover`
    that it is the cover letter of a series, which has no diff, `ends_changed` that every line came with a CR, which was
    taken off.
    """

    name: str
    subject: str
    body: str
    author: str
    date: str
    diff: str
    parent: str = ""
    raw: bool = False
    cover: bool = False
    ends_changed: bool = False

    @property
    def spot(self) -> Spot:
        """Where its diff begins; in a mail or a commit no line means anything."""
        return Spot(self.name, 1 if self.raw else None)

    @property
    def overlays(self) -> tuple[str, ...]:
        """The overlay files that it names, where it was a patch of a series already."""
        return overlay_paths(f"\n\n{self.body}")

    @property
    def slug(self) -> str:
        """The slug in its trailers, where it was a patch of a series already."""
        return slug_in(f"\n\n{self.body}") or ""

    @property
    def title(self) -> str:
        """Its name in a message: no folder of this machine."""
        return Path(self.name).name

    @property
    def stem(self) -> str:
        """Its name without folders and ending, for want of a subject."""
        return Path(self.name).stem


def letters_of(name: str, data: bytes) -> tuple[Letter, ...]:
    """The letters in a file: one for a raw diff, one for each mail.

    Raises:
        UsageError: git cannot take the mail apart, or there is none.
    """
    _check_text(name, data)
    data, changed = _as_written(data)
    if not _is_mail(data):
        return (Letter(name, "", "", "", "", data.decode("latin-1"), raw=True, ends_changed=changed),)
    with TemporaryDirectory(prefix="sm120-overlay-") as folder:
        place = Path(folder).resolve()
        (place / "box").write_bytes(data)
        run(Repository(place), "mailsplit", f"-o{place}", "-b", "--keep-cr", "--", str(place / "box"))
        mails = sorted(file for file in place.iterdir() if file.name.isdigit())
        called = (name if len(mails) == 1 else f"{name}, mail {int(mail.name)}" for mail in mails)
        return tuple(
            replace(_letter(said, mail), ends_changed=changed) for said, mail in zip(called, mails, strict=True)
        )


def _check_text(name: str, data: bytes) -> None:
    """The bytes are as git writes them."""
    packed = next((said for magic, said in MAGIC.items() if data.startswith(magic)), None)
    if packed:
        # why: it may well be a diff, and `no diff in it` would send its owner the wrong way
        raise UsageError(f"{name}: expected a diff as git writes it, found {packed[0]}.", packed[1])


def _as_written(data: bytes) -> tuple[bytes, bool]:
    """The file less what an editor adds to all of it: a byte order mark, and CRs where every line has one (or not)."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    ends = 0 < data.count(b"\n") == data.count(b"\r\n")
    return (data.replace(b"\r\n", b"\n") if ends else data), ends


def _is_mail(data: bytes) -> bool:
    head = data.lstrip(b"\n").partition(b"\n\n")[0]
    lines = head.split(b"\n")
    return bool(BOX.match(head) or (all(map(HEADER.match, lines)) and TELLING.search(head)))


def _letter(name: str, mail: Path) -> Letter:
    place = mail.parent
    said, diff = place / "said", place / "diff"
    command = ("mailinfo", "-b", "--no-scissors", str(said), str(diff))
    code, out, err = attempt(Repository(place), *command, stdin=mail.read_bytes())
    if code:
        # why: git am would read it the same way, and it cannot
        raise UsageError(f"{name}: git cannot read the mail: {last_words(err, code)}.", "Save it as git wrote it.")
    heads = dict(line.split(": ", 1) for line in out.decode("utf-8", "replace").splitlines() if ": " in line)
    named = heads.get("Author") or heads.get("Email")
    author = f"{heads.get('Author', '')} <{heads.get('Email', '')}>" if named else ""
    body = said.read_bytes().decode("utf-8", "replace").strip("\n")
    text = diff.read_bytes().decode("latin-1")
    cover = not text.strip() and COVER.search(mail.read_bytes().partition(b"\n\n")[0]) is not None
    return Letter(name, heads.get("Subject", ""), body, author, heads.get("Date", ""), text, cover=cover)


def letters_of_commits(repo: Repository, revision: str) -> tuple[Letter, ...]:
    """The letters of a commit (`COMMIT`) or of several (`A..B`), oldest first.

    Raises:
        UsageError: the repository knows no such revision, or the range is empty.
        Refused: one of them is no single change on another.
    """
    if not is_repository(repo.path):
        # why: git's own words would be about the folder that it ran in
        raise UsageError(
            f"{repo.path}: expected a git repository, found none.", "Name the clone that holds the commit."
        )
    one = () if RANGE.fullmatch(revision) else ("--max-count=1",)
    code, out = 1, b""
    if "..." not in revision:
        code, out, _ = attempt(repo, "rev-list", "--reverse", "--parents", *one, "--end-of-options", revision, "--")
    rows = [row.split() for row in out.decode().splitlines()]
    if code or (one and not rows):
        # why: a typing error in a file's name would be taken for a revision
        raise UsageError(
            f"{revision}: expected a file, `-`, or a commit or range (A..B) of {repo.path}; found none of these.",
            "Name the repository that holds it (--from CLONE), and the commit by its id: a tree laid out from a wheel "
            "has no tags.",
        )
    if not rows:
        # why: an empty range is mostly one that was written the wrong way round
        raise UsageError(f"{revision}: expected commits in that range of {repo.path}, found none.", "Try it as B..A.")
    odd = next((row[0] for row in rows if len(row) != 2), None)
    if odd:
        # why: a merge has two sides; which of them is the change is not said
        raise Refused(
            f"{odd[:12]} of {repo.path} is a merge or a first commit: it is no single change on another.",
            "Name a range without merges, or take it as one patch: git diff A B | adopt.py -",
        )
    return tuple(letter_of_commit(repo, commit, parent) for commit, parent in rows)


def letter_of_commit(repo: Repository, commit: str, parent: str) -> Letter:
    """One commit, read itself: a mail of it would lose what stands in its message behind a `---`."""
    said = run(repo, "show", "--no-patch", "--format=%an <%ae>%x00%aD%x00%s%x00%b", commit)
    author, date, subject, body = said.decode("utf-8", "replace").split("\0", 3)
    diff = run(repo, "diff-tree", "-p", *DIFF_FORM, parent, commit).decode("latin-1")
    if not diff:
        # why: a patch without a change is always applied
        raise Refused(f"{commit[:12]} of {repo.path} changes no file.", "Name the other commits, without this one.")
    return Letter(f"commit {commit[:12]}", subject, body.strip("\n"), author, date, diff, parent)
