"""A whole project in small: two upstreams, wheels of them, pins and series, made from nothing in a temporary folder.

`toy` has what the real ones have: a package below python/, an executable file, CRLF line ends, a file without a final
newline, a generated file that only the wheel has. `gear` has sources that the wheel keeps below data/.
"""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sm120_overlay.cli import main
from sm120_overlay.queue.checkout import Checkout, open_checkout
from sm120_overlay.queue.export import FORM
from sm120_overlay.queue.git import Repository
from sm120_overlay.queue.home import Home
from sm120_overlay.queue.pins import Line, Pin, load_lines
from sm120_overlay.queue.series import Series, load_series
from sm120_overlay.queue.sources import lay_out

NUMBERS = "".join(f"line {number}\n" for number in range(1, 61))
TOY = {
    "python/toy/__init__.py": "from .core import answer\n",
    "python/toy/core.py": "def answer():\n    return 41\n\n\n" + NUMBERS.replace("line", "# line"),
    "python/toy/run.py": "#!/usr/bin/env python3\nprint('run')\n",
    "python/toy/dos.py": "A = 1\r\nB = 2\r\nC = 3\r\n",
    "python/toy/bare.txt": "one\ntwo\nthree",
    "python/pyproject.toml": "[project]\nname = 'toy'\n",
    "README.md": "toy\n",
}
GEAR = {
    "gear/__init__.py": "WHEELS = 3\n",
    "csrc/kernel.cu": "// kernel\n" + NUMBERS,
    "include/gear/kernel.cuh": "#pragma once\n",
    "tests/test_gear.py": "def test_gear(): pass\n",
}
WHO = {"GIT_AUTHOR_NAME": "Ann", "GIT_AUTHOR_EMAIL": "ann@example.org", "GIT_COMMITTER_NAME": "Ann",
       "GIT_COMMITTER_EMAIL": "ann@example.org", "GIT_AUTHOR_DATE": "2026-03-01T12:00:00+0100",
       "GIT_COMMITTER_DATE": "2026-03-01T12:00:00+0100"}  # fmt: skip
PINS = """\
schema = 1
default = "v1"

[line.v1.joint]
torch = "2.0"

[line.v1.toy]
repository = "{toy}"
tag = "v1.0"
commit = "{toy_commit}"
distribution = "toy"
version = "1.0"
install = "pip install -e '{{path}}/python'"
paths = {{ "python/toy/" = "toy/" }}
excluded = ["toy/_version.py"]
executable = ["python/toy/run.py"]
wheels.py3-none-any = {{ sha256 = "{toy_sha}", root = "{toy_root}" }}

[line.v1.gear]
repository = "{gear}"
tag = "v1.0"
commit = "{gear_commit}"
distribution = "gear-python"
version = "1.0"
install = "pip install -e '{{path}}'"
paths = {{ "gear/" = "gear/", "csrc/" = "gear/data/csrc/", "include/" = "gear/data/include/" }}
excluded = ["gear/data/"]
prebuilt = {{ gear-jit-cache = ["csrc/", "include/"] }}
wheels.py3-none-any = {{ sha256 = "{gear_sha}", root = "{gear_root}" }}
"""


@dataclass(frozen=True)
class Toy:
    """The project: `home` with pins and patches, upstream repositories, wheels in a folder that pip can search."""

    root: Path
    home: Home
    wheels: Path

    @property
    def line(self) -> Line:
        """The one line."""
        return load_lines(self.home.pins).line("v1")

    def pin(self, upstream: str = "toy") -> Pin:
        """One of its pins."""
        return self.line.pin(upstream)

    def series(self, upstream: str = "toy") -> Series:
        """A series as the files say it."""
        return load_series(self.home, self.pin(upstream))

    def upstream(self, name: str = "toy") -> Path:
        """The upstream's own repository, HEAD on main at the pin."""
        return self.root / "upstream" / name

    def clone(self, name: str = "toy", into: str | None = None) -> Path:
        """A user's clone of it, on main at the pin."""
        folder = self.root / (into or f"clone-{name}")
        git(self.root, "clone", "-q", str(self.upstream(name)), str(folder))
        return folder

    def site(self, *names: str) -> Path:
        """A site-packages folder with the wheels of these upstreams installed as pip does it."""
        folder = self.root / "site"
        chosen = [str(next(self.wheels.glob(f"{name}*.whl"))) for name in names or ("toy", "gear")]
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(folder)]
        subprocess.run([*command, *chosen], check=True, capture_output=True)
        return folder


def git(folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """git's output in a folder, under a fixed author and date."""
    surroundings = (
        {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | WHO | dict(env or {})
    )
    command = ["git", "-c", "commit.gpgsign=false", *arguments]
    return subprocess.run(command, cwd=folder, env=surroundings, check=True, capture_output=True, text=True).stdout


def write(folder: Path, files: Mapping[str, str | bytes | None]) -> None:
    """Writes (or removes: None) files below a folder, byte for byte."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            path.unlink()
        else:
            path.write_bytes(text.encode() if isinstance(text, str) else text)


def message(slug: str, subject: str | None = None, **trailers: str) -> str:
    """A commit message that lint accepts; a keyword such as Needs="x" adds or replaces a trailer."""
    said = {
        "Slug": slug,
        "Scope": "any",
        "Upstream-Status": "Pending",
        "Test": f"tests/patches/test_{slug.replace('-', '_')}.py",
        "Drop-When": "The toy answers by itself.",
        "Evidence": "executed-cpu",
    } | {key.replace("_", "-"): value for key, value in trailers.items()}
    block = "".join(f"{key}: {value}\n" for key, value in said.items())
    return f"{subject or f'toy: do {slug}'}\n\nWhat breaks, and how it is known.\n\n{block}"


def commit(folder: Path, slug: str, files: Mapping[str, str | bytes | None], **trailers: str) -> None:
    """One patch as a commit on the checked out branch."""
    write(folder, files)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message(slug, **trailers))


def make_upstream(folder: Path, files: Mapping[str, str]) -> str:
    """A repository with these files on main; its commit."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    write(folder, files)
    for name in files:
        (folder / name).chmod(0o755 if name.endswith("run.py") else 0o644)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "release")
    return git(folder, "rev-parse", "HEAD").strip()


def make_wheel(folder: Path, name: str, version: str, files: Mapping[str, bytes]) -> Path:
    """A wheel of these files, with RECORD as pip wants it."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    meta = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: toy\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    path = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for entry, data in {**files, **meta}.items():
            archive.writestr(zipfile.ZipInfo(entry), data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{entry},sha256={digest},{len(data)}")
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "\n".join([*rows, f"{info}/RECORD,,"]) + "\n")
    return path


def toy_wheels(folder: Path) -> dict[str, Path]:
    """Upstream → its wheel."""
    toy = {name.removeprefix("python/"): text.encode() for name, text in TOY.items() if name.startswith("python/toy/")}
    gear = {
        (name if name.startswith("gear/") else f"gear/data/{name}"): text.encode()
        for name, text in GEAR.items()
        if not name.startswith("tests/")
    }
    return {
        "toy": make_wheel(folder, "toy", "1.0", {**toy, "toy/_version.py": b"version = '1.0'\n"}),
        "gear": make_wheel(folder, "gear-python", "1.0", {**gear, "gear/data/lib/cutlass.h": b"// a submodule\n"}),
    }


def make_toy(root: Path) -> Toy:
    """The project with two patches on toy (the second brings an overlay file) and one on gear."""
    commits = {name: make_upstream(root / "upstream" / name, files) for name, files in (("toy", TOY), ("gear", GEAR))}
    wheels = toy_wheels(root / "wheels")
    toy = Toy(root, Home(root / "home"), root / "wheels")
    toy.home.root.mkdir()
    shas = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in wheels.items()}
    _write_pins(toy, commits, shas, {"toy": "", "gear": ""})
    roots = {name: _root(toy, name, path) for name, path in wheels.items()}
    _write_pins(toy, commits, shas, roots)
    write(toy.home.root, {"NOTICE": "toy\n", "patches/v1/toy/series": "", "patches/v1/gear/series": ""})
    return toy


def _root(toy: Toy, name: str, wheel: Path) -> str:
    folder = toy.root / "roots" / name
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "--bare")
    return lay_out(Repository(folder), toy.pin(name), wheel)


def _write_pins(toy: Toy, commits: Mapping[str, str], shas: Mapping[str, str], roots: Mapping[str, str]) -> None:
    said = {name: str(toy.upstream(name)) for name in commits}
    said |= {f"{name}_commit": value for name, value in commits.items()}
    said |= {f"{name}_sha": value for name, value in shas.items()}
    said |= {f"{name}_root": value for name, value in roots.items()}
    toy.home.pins.write_text(PINS.format(**said))


FIRST = {"python/toy/core.py": TOY["python/toy/core.py"].replace("return 41", "return 42")}
SECOND = {
    "python/toy/core.py": FIRST["python/toy/core.py"].replace("# line 30\n", "# line thirty\n"),
    "python/toy/dos.py": "A = 1\r\nB = 22\r\nC = 3\r\n",
    "python/toy/extra/__init__.py": "",
    "python/toy/extra/hook.py": "HOOK = True\n",
}
GEARED = {"csrc/kernel.cu": "// kernel\n" + NUMBERS.replace("line 50\n", "line fifty\n")}
HOOK = "python/toy/extra/hook.py"
SHOWS_42 = "from toy.core import answer\n\n\ndef test_answer(tree):\n    assert answer() == 42\n"


def add_series(toy: Toy) -> None:
    """Makes the three patches with git, in clones, and exports them."""
    from sm120_overlay.queue.checkout import open_checkout
    from sm120_overlay.queue.export import changes, export_commits, write_export

    slugs = ("right-answer", "bring-hook", "more-gears")
    write(toy.home.root, {f"tests/patches/test_{slug.replace('-', '_')}.py": "" for slug in slugs})
    for name in ("toy", "gear"):
        clone = toy.clone(name, f"author-{name}")
        git(clone, "checkout", "-q", "-b", "sm120/v1")
        if name == "toy":
            commit(clone, "right-answer", FIRST)
            commit(clone, "bring-hook", SECOND, Needs="right-answer", Overlay=HOOK)
        else:
            commit(clone, "more-gears", GEARED)
        checkout = open_checkout(clone, load_lines(toy.home.pins))
        write_export(toy.home, changes(toy.home, checkout.pin, export_commits(checkout)))


def git_bytes(folder: Path, *arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> bytes:
    """git's output as bytes, under a fixed author, with no setting of the user's."""
    surroundings = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | WHO
    surroundings |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"} | dict(env or {})
    return subprocess.run(
        ["git", *arguments], cwd=folder, env=surroundings, input=stdin, check=True, capture_output=True
    ).stdout


def bare_repository(folder: Path) -> Path:
    """An empty bare repository."""
    folder.mkdir(parents=True)
    git_bytes(folder, "init", "-q", "--bare")
    return folder


def commit_pair(repo: Path, pairs: Mapping[str, tuple[bytes | None, bytes | None]]) -> tuple[str, str]:
    """Two commits, the second on the first: path → its bytes in the first and in the second (None: no file)."""
    stream = [b"feature done\n"]
    for number in (0, 1):
        stream.append(b"commit refs/heads/pair\nmark :%d\n" % (number + 1))
        stream.append(b"committer Ann <ann@example.org> 1772362800 +0100\ndata 24\nx: pair\n\nBody.\n\nSlug: x\n")
        for path, pair in pairs.items():
            stream.append(_change(path, *((None, pair[0]) if number == 0 else pair)))
        stream.append(b"\n")
    asked = b"get-mark :1\nget-mark :2\ndone\n"
    out = git_bytes(repo, "fast-import", "--quiet", "--force", stdin=b"".join(stream) + asked)
    base, tip = out.decode().split()
    return base, tip


def _change(path: str, before: bytes | None, after: bytes | None) -> bytes:
    name = b'"' + b"".join(b"\\%03o" % byte for byte in os.fsencode(path)) + b'"'
    if after is not None:
        return b"M 100644 inline %s\ndata %d\n%s\n" % (name, len(after), after)
    return b"D %s\n" % name if before is not None else b""


def mail_of(repo: Path, base: str, tip: str) -> bytes:
    """The commits base..tip as real git mails them with the exporter's flags."""
    return git_bytes(repo, "format-patch", "--stdout", *FORM, f"{base}..{tip}")


def apply_to(clone: Path, *flags: str) -> int:
    """The exit code of `apply CLONE`."""
    return main(["apply", str(clone), *flags])


def export_from(clone: Path, *flags: str) -> int:
    """The exit code of `export CLONE`."""
    return main(["export", str(clone), *flags])


def applied(toy: Toy, name: str = "toy", into: str | None = None) -> Path:
    """A clone with the series on it, on its branch."""
    clone = toy.clone(name, into)
    assert apply_to(clone) == 0
    return clone


def opened(toy: Toy, clone: Path) -> Checkout:
    """The clone as the verbs see it."""
    return open_checkout(clone, load_lines(toy.home.pins))


def snapshot(folder: Path) -> dict[str, bytes]:
    """Path → bytes of every file below a folder, less what locks leave behind."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and ".sm120-overlay" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def say(folder: Path, text: str | bytes, env: Mapping[str, str] | None = None) -> str:
    """A commit on a small change with exactly this message; its id."""
    path = folder / "python/toy/core.py"
    path.write_bytes(path.read_bytes() + b"# more\n")
    git(folder, "add", "-A")
    said = text.encode() if isinstance(text, str) else text
    git_bytes(folder, "commit", "-q", "--no-verify", "--cleanup=verbatim", "-F", "-", stdin=said, env=env)
    return git(folder, "rev-parse", "HEAD").strip()


def author_clone(toy: Toy, name: str = "toy", into: str | None = None) -> Path:
    """A clone on the series' branch, without any patch."""
    clone = toy.clone(name, into)
    git(clone, "checkout", "-q", "-b", "sm120/v1")
    return clone


def taken_by_am(toy: Toy, mails: Sequence[bytes], into: str = "am") -> Path:
    """A fresh clone at the pin onto which `git am` put these mails, as a stranger would."""
    clone = toy.clone("toy", into)
    names = []
    for number, mail in enumerate(mails):
        names.append(str(toy.root / f"{into}-{number:04}.patch"))
        Path(names[-1]).write_bytes(mail)
    git_bytes(clone, "am", "-q", "--keep-cr", *names)
    return clone


def history(folder: Path, base: str, tip: str = "HEAD") -> list[tuple[str, ...]]:
    """Author, mail, date, message and tree of every commit base..tip, oldest first."""
    out = git_bytes(
        folder, "log", "--reverse", "-z", "--date=raw", "--format=%an%x01%ae%x01%ad%x01%T%x01%B", f"{base}..{tip}"
    )
    return [tuple(row.split("\x01")) for row in out.decode("utf-8", "surrogateescape").split("\0") if row.strip("\n")]
