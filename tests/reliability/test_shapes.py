"""What a patch can do to files, on each kind of target: deletions, bytes, line ends, modes, odd names, and twins."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from sm120_overlay.cli import main
from sm120_overlay.queue.checkout import open_checkout
from sm120_overlay.queue.export import changes, export_commits, write_export
from sm120_overlay.queue.pins import load_lines

from ..queue.scenes import ask
from ..queue.toy import FIRST, TOY, commit, git, write
from .world import Case, World, applied, check, marked

KINDS = ("checkout", "installed")
Files = Mapping[str, str | bytes | None]
CORE = TOY["python/toy/core.py"]
BLOCK = "def answer():\n    return 41\n"
LATIN = b"# caf\xe9 \xff\nA = 1\n"

# Row → the commits of the series that stands for it.
SHAPES: dict[tuple[str, str], Sequence[Files]] = {
    ("a file with CRLF line ends", "electron/electron#28360"): [{"python/toy/dos.py": "A = 1\r\nB = 2\r\nC = 4\r\n"}],
    ("line ends of both kinds in one file", "electron/trop#254"): [{"python/toy/dos.py": "A = 1\nB = 2\r\nC\rD\r\n"}],
    ("no line end at the end of a file", ""): [{"python/toy/bare.txt": "one\ntwo\nthree\nfour"}],
    ("a line end added at the end of a file", ""): [{"python/toy/bare.txt": "one\ntwo\nthree\n"}],
    ("bytes that are not UTF-8", ""):
        [{"python/toy/latin.py": LATIN}, {"python/toy/latin.py": LATIN + b"B = '\xa4'\n"}],
    ("a file deleted", ""): [{"python/toy/dos.py": None, "python/toy/core.py": FIRST["python/toy/core.py"]}],
    ("an executable file changed", "ds300/patch-package#135"):
        [{"python/toy/run.py": "#!/usr/bin/env python3\nA = 1\n"}],
    ("an executable file deleted", "ds300/patch-package#135"): [{"python/toy/run.py": None}],
    ("a file emptied, and an empty one brought", "libgit2/libgit2#5460"):
        [{"python/toy/bare.txt": "", "python/toy/void.py": ""}],
    ("a file renamed", "libgit2/libgit2#5460"):
        [{"python/toy/core.py": None, "python/toy/heart.py": CORE,
          "python/toy/__init__.py": "from .heart import answer\n"}],
    ("a file renamed in case alone", ""): [{"python/toy/dos.py": None, "python/toy/DOS.py": TOY["python/toy/dos.py"]}],
    ("a module becomes a package", ""):
        [{"python/toy/dos.py": None, "python/toy/dos/__init__.py": "A = 1\n"}, {"python/toy/dos/b.py": "B = 1\n"}],
    ("spaces, quotes and unicode in a file's path", "python-unidiff#93"):
        [{"python/toy/a b/ü'\"日.py": "A = 1\n", "python/toy/x b/y -> z.py": "B = 1\n"}],
    ("a path like an option or a pattern", ""): [{"python/toy/-rf": "x\n", "python/toy/[a]*.py": "A = 1\n"}],
    ("trailing blanks and tabs", "git-pile/git-pile#67"): [{"python/toy/core.py": CORE.replace("41", "42 \t ")}],
    ("the patched block is there twice in the pin", "aspect-build/rules_py#508"):
        [{"python/toy/core.py": CORE + BLOCK}, {"python/toy/core.py": CORE + BLOCK.replace("41", "43")}],
}  # fmt: skip


def series(world: World, shape: Sequence[Files]) -> None:
    """Makes the project's series of toy one patch for each of these commits."""
    folder = world.root / "elsewhere-author"
    git(world.root, "clone", "-q", str(world.toy.upstream()), str(folder))
    git(folder, "checkout", "-q", "-b", "sm120/v1")
    for number, files in enumerate(shape, 1):
        gone = [path for path, data in files.items() if data is None]
        for path in gone:
            (folder / path).unlink()
        write(world.toy.home.root, {f"tests/patches/test_shape_{number}.py": ""})
        commit(folder, f"shape-{number}", {path: data for path, data in files.items() if path not in gone})
    checkout = open_checkout(folder, load_lines(world.toy.home.pins))
    write_export(world.toy.home, changes(world.toy.home, checkout.pin, export_commits(checkout)))


def target(world: World, kind: str) -> Sequence[object]:
    """The arguments that name a plain target."""
    return [world.toy.clone()] if kind == "checkout" else ["--installed", world.venv().python, "--only", "toy"]


def top(arguments: Sequence[object]) -> Path:
    """The folder that holds the package of a target."""
    named = Path(str(arguments[-1 if len(arguments) == 1 else 1]))
    return named / "python" if len(arguments) == 1 else next((named.parents[1] / "lib").glob("*/site-packages"))


def shaped() -> list[object]:
    return [
        pytest.param(kind, shape, id=f"{kind}: {what}", marks=pytest.mark.case(what, target=kind, outcome="exact", **(
            {"source": source} if source else {})))
        for (what, source), shape in SHAPES.items()
        for kind in KINDS
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "shape"), shaped())
def test_a_patch_of_any_shape_is_exact_on_and_off(world: World, kind: str, shape: Sequence[Files]) -> None:
    series(world, shape)
    arguments = target(world, kind)
    seen, said = applied(world, arguments)
    assert seen == "exact", said


@pytest.mark.case("an executable file changed", target="installed", outcome="exact", source="ds300/patch-package#135")
@pytest.mark.parametrize("mode", [0o644, 0o755])
def test_the_mode_that_the_wheel_left_stays_and_the_digest_is_the_checkouts(world: World, mode: int) -> None:
    series(world, [{"python/toy/run.py": "#!/usr/bin/env python3\nA = 1\n"}])
    arguments = target(world, "installed")
    (top(arguments) / "toy/run.py").chmod(mode)
    answer = ask("apply", *arguments)
    assert stat.S_IMODE((top(arguments) / "toy/run.py").stat().st_mode) == mode
    assert answer.targets["toy"]["digest"] == ask("apply", world.toy.clone()).targets["toy"]["digest"]


GONE: Sequence[Files] = [{"python/toy/dos.py": None}]
NEW: Sequence[Files] = [{"python/toy/extra/new.py": "NEW = 1\n"}]
ROWS: dict[str, tuple[Sequence[Files], Files, tuple[str, ...]]] = {
    "a patch deletes a file that differs": (GONE, {"toy/dos.py": "mine\n"}, ("toy/dos.py", "blob")),
    "a patch deletes a file that is gone": (GONE, {"toy/dos.py": None}, ("toy/dos.py", "no file")),
    "a patch creates a file that is there": (NEW, {"toy/extra/new.py": "mine\n"}, ("toy/extra/new.py",)),
    "a patch creates a file that is there, empty": (NEW, {"toy/extra/new.py": ""}, ("toy/extra/new.py",)),
    "a patch creates a file where a folder is": (NEW, {"toy/extra/new.py/x": "mine\n"}, ("toy/extra/new.py",)),
    "a patch creates a folder where a file is": (NEW, {"toy/extra": "mine\n"}, ("toy/extra",)),
    "a file's last line end is lost": (
        [{"python/toy/bare.txt": "one\ntwo\nfour"}], {"toy/bare.txt": "one\ntwo\nthree\n"}, ("toy/bare.txt", "blob")),
    "a file's line ends were converted": (
        [{"python/toy/dos.py": "A = 2\r\n"}], {"toy/dos.py": "A = 1\nB = 2\nC = 3\n"}, ("toy/dos.py", "blob")),
}  # fmt: skip


def of_two_kinds(kind: str) -> Case:
    """A file that becomes a folder could not be told from one in the way of it, nor be put back after a cut."""

    def arrange(world: World) -> Sequence[object]:
        series(world, [{"python/toy/dos.py": None, "python/toy/dos.py/a.py": "A = 1\n"}])
        return target(world, kind)

    return Case("a patch turns a file into a folder", kind, "refused", arrange, ("python/toy/dos.py",))


def in_the_way(kind: str, what: str) -> Case:
    shape, files, names = ROWS[what]

    def arrange(world: World) -> Sequence[object]:
        series(world, shape)
        arguments = target(world, kind)
        write(top(arguments), files)
        return arguments

    return Case(what, kind, "refused", arrange, names)


CASES = [in_the_way(kind, what) for what in ROWS for kind in KINDS] + [of_two_kinds(kind) for kind in KINDS]


@pytest.mark.parametrize("case", marked(CASES))
def test_what_differs_from_the_pin_is_refused_by_name(world: World, case: Case) -> None:
    check(world, case)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("verb", ["apply", "status", "verify"])
def test_what_is_said_for_people_names_any_path(world: World, verb: str, encoding: str) -> None:
    clone = world.toy.clone(into=os.fsdecode(b"caf\xe9 \xc3\xa9"))
    out = io.BytesIO()
    world.monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding=encoding, write_through=True))
    assert main([verb, str(clone)]) in (0, 1)
    assert b"caf" in out.getvalue()
