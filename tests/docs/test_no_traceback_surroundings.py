"""Whatever a verb meets where its files should be, it answers in sentences and with an exit code it has promised."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sm120_overlay.cli import VERBS

from ..queue.scenes import add_distribution, copy_venv, make_venv
from ..queue.toy import HOOK, Toy, write
from .spoken import speak, wrong

UNTARGETED = ("lint", "resolve", "rebase", "survey", "upstream", "bisect")  # these have no target
READERS = {"apply": ["--dry-run"], "export": ["--check"], "adopt": ["--dry-run", "change.diff"]}
CHANGE = "--- a/python/toy/run.py\n+++ b/python/toy/run.py\n@@ -2 +2 @@\n-print('run')\n+print('walk')\n"
START = (
    "import sys\nfrom pathlib import Path\nfrom sm120_overlay.queue.home import Home\n"
    "from sm120_overlay.verbs import _options, lint\nfind = lambda: Home(Path(sys.argv[1]))\n"
    "_options.find_home = lint.find_home = find\nfrom sm120_overlay.cli import main\nsys.exit(main(sys.argv[2:]))\n"
)
Damage = Callable[[Toy], None]


def gone(name: str) -> Damage:
    """The file or folder is not there."""

    def damage(toy: Toy) -> None:
        path = toy.root / name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    return damage


def instead(name: str, make: Callable[[Path], object]) -> Damage:
    """Something else is there."""

    def damage(toy: Toy) -> None:
        if (toy.root / name).exists():
            gone(name)(toy)
        (toy.root / name).parent.mkdir(parents=True, exist_ok=True)
        make(toy.root / name)

    return damage


def holds(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def link(path: Path) -> None:
    path.symlink_to(path)  # to itself


KINDS: dict[str, Callable[[Path], object]] = {
    "a folder": Path.mkdir,
    "empty": holds(b""),
    "garbage": holds(bytes(range(256)) * 9),
    "a link to itself": link,
    "a socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o644),
}
SERIES = "home/patches/v1/toy"
PLACES = {
    "the pins": "home/pins.toml",
    "a series": f"{SERIES}/series",
    "a patch": f"{SERIES}/right-answer.patch",
    "an overlay file": f"home/overlay/toy/{HOOK}",
    "the folder of a series": SERIES,
    "all series": "home/patches",
    "all overlay files": "home/overlay",
    "the project": "home",
    "a touched file": "clone/python/toy/core.py",
    "a folder of touched files": "clone/python/toy",
    "the git directory": "clone/.git",
    "HEAD": "clone/.git/HEAD",
    "the index": "clone/.git/index",
    "the objects": "clone/.git/objects",
    "the refs": "clone/.git/refs",
    "git's settings": "clone/.git/config",
    "the checkout": "clone",
    "our workplace": "clone/.git/sm120-overlay",
    "a journal": "clone/.git/sm120-overlay/journal.json",
    "our manifest": "clone/.git/sm120-overlay/manifest.json",
    "the attributes": "clone/.gitattributes",
}
DAMAGES = {
    f"no {name}": gone(place) for name, place in PLACES.items() if "workplace" not in name and "jour" not in name
}
DAMAGES.pop("no the attributes")
DAMAGES |= {f"{name} is {kind}": instead(place, make) for name, place in PLACES.items() for kind, make in KINDS.items()}


@pytest.fixture(autouse=True)
def in_the_project(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(toy.root)
    write(toy.root, {"change.diff": CHANGE})


def check_all(targets: Sequence[str]) -> None:
    for verb in VERBS:
        said = speak(verb, *READERS.get(verb, []), *(targets if verb != "lint" else []), "--json")
        assert wrong(said, as_json=True) is None, (verb, said)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_project_or_checkout_is_an_answer(toy: Toy, damage: Damage) -> None:
    toy.clone(into="clone")
    assert speak("apply", "clone").code == 0
    damage(toy)
    check_all(["clone"])


PACKAGE = {
    f"{name} is {kind}": (place, make)
    for name, place in {
        "METADATA": "toy-1.0.dist-info/METADATA",
        "RECORD": "toy-1.0.dist-info/RECORD",
        "WHEEL": "toy-1.0.dist-info/WHEEL",
        "direct_url.json": "toy-1.0.dist-info/direct_url.json",
        "the metadata": "toy-1.0.dist-info",
        "our manifest": "toy-1.0.dist-info/sm120-overlay/manifest.json",
        "our workplace": "toy-1.0.dist-info/sm120-overlay",
        "a touched file": "toy/core.py",
        "a compiled file": "toy/__pycache__/core.cpython-311.pyc",
        "the package": "toy",
    }.items()
    for kind, make in KINDS.items()
}


@pytest.fixture(scope="session")
def venv_master(toy_master: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_venv(tmp_path_factory.mktemp("venv") / "master", toy_master.wheels)


@pytest.mark.parametrize(("place", "make"), PACKAGE.values(), ids=PACKAGE)
def test_a_damaged_package_is_an_answer(
    toy: Toy, venv_master: Path, place: str, make: Callable[[Path], object]
) -> None:
    venv = copy_venv(venv_master, toy.root / "venv")
    assert speak("apply", "--installed", venv.python).code == 0
    instead(str((venv.site / place).relative_to(toy.root)), make)(toy)
    for verb in ("status", "verify", "apply"):
        said = speak(verb, "--installed", venv.python, "--json")
        assert wrong(said, as_json=True) is None, (verb, said)


INTERPRETERS = {
    "a folder": lambda path: path.mkdir(),
    "text": lambda path: path.write_text("#!/bin/sh\necho not JSON\n"),
    "nothing at all": lambda path: path.write_text(""),
    "one that ends": lambda path: path.write_text("#!/bin/sh\nexit 3\n"),
    "one that is killed": lambda path: path.write_text("#!/bin/sh\nkill -9 $$\n"),
    "one without a path": lambda path: path.write_text("#!/bin/sh\necho '[]'\n"),
    "one that says something else": lambda path: path.write_text("#!/bin/sh\necho '{\"a\": 1}'\n"),
    "one that says a number": lambda path: path.write_text("#!/bin/sh\necho 3\n"),
    "one that says bytes": lambda path: path.write_bytes(b"#!/bin/sh\nprintf '\\377'\n"),
}


@pytest.mark.parametrize("make", INTERPRETERS.values(), ids=INTERPRETERS)
def test_something_else_than_an_interpreter_is_an_answer(toy: Toy, make: Callable[[Path], object]) -> None:
    path = toy.root / "python"
    make(path)
    path.chmod(0o755)
    for verb in ("apply", "status", "verify"):
        said = speak(verb, "--installed", path, "--json")
        assert wrong(said, as_json=True) is None, said
        assert said.code == 4, said


@pytest.mark.parametrize("place", ["here", "here/there", "/dev/null/x", "/proc/none"])
def test_a_place_where_no_checkout_can_be_made_is_an_answer(toy: Toy, place: str) -> None:
    (toy.root / "here").write_text("a file")
    for verb in VERBS:
        if verb not in UNTARGETED:
            said = speak(verb, *READERS.get(verb, [])[1:], "--into", place, "--json")
            assert wrong(said, as_json=True) is None, (verb, said)
            assert said.code in (1, 4)


@pytest.mark.parametrize("cache", ["a file", "/dev/null", "/proc/none/x", "relative"])
def test_a_cache_that_cannot_be_written_is_an_answer(toy: Toy, cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (toy.root / "a file").write_text("a file")
    monkeypatch.setenv("SM120_OVERLAY_CACHE", cache)
    said = speak("apply", "--into", "made", "--json")
    assert wrong(said, as_json=True) is None, said
    assert said.code == (0 if cache == "relative" else 4), said


def test_a_current_folder_that_is_gone_is_an_answer(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    (toy.root / "gone").mkdir()
    monkeypatch.chdir(toy.root / "gone")
    (toy.root / "gone").rmdir()
    check_all([])
    check_all(["."])


def started(toy: Toy, *arguments: str, start: str = START, shell: str = 'exec "$@"', **env: str) -> str:
    """What a verb says in a process of its own, started by a shell; standard error last."""
    command = [sys.executable, "-c", start, str(toy.home.root), *arguments]
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env}
    done = subprocess.run(
        ["/bin/sh", "-c", shell, "sh", *command], env=surroundings, capture_output=True, check=False, cwd=toy.root
    )
    said = done.stdout.decode("utf-8", "replace") + done.stderr.decode("utf-8", "replace")
    assert "Traceback" not in said
    return f"{done.returncode} {said}"


def test_without_git_the_machine_is_told(toy: Toy) -> None:
    clone = toy.clone()
    (toy.root / "bin").mkdir()
    said = started(toy, "status", str(clone), PATH=str(toy.root / "bin"))
    assert said.startswith("4 git is not on PATH.\n  → ")


def test_without_gitpython_the_machine_is_told(toy: Toy) -> None:
    without = "import sys\nsys.modules['git'] = None\n" + START
    said = started(toy, "status", str(toy.clone()), start=without)
    assert said.startswith("4 GitPython cannot be imported")
    assert "  → " in said


STREAMS = ["0<&-", "1>&-", "2>&-", "1>&- 2>&-", "0<&- 1>&- 2>&-", "2>/dev/full", ">/dev/full"]
ASKED = (["status", "clone"], ["status", "nothing"], ["lint", "--json"], ["--help"], ["x"])
ENDS = [(asked, stream) for asked in ASKED for stream in STREAMS]


@pytest.mark.parametrize(("asked", "stream"), ENDS)
def test_a_closed_or_full_stream_is_no_traceback(toy: Toy, asked: list[str], stream: str) -> None:
    toy.clone(into="clone")
    said = started(toy, *asked, shell=f'exec "$@" {stream}')
    assert int(said.split()[0]) in (0, 1, 2, 4, 141)
    assert "Exception ignored" not in said


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16", "utf-8"])
def test_a_terminal_of_another_encoding_is_no_traceback(toy: Toy, encoding: str) -> None:
    clone = toy.clone(into="clöne-→")
    for arguments in (["status", str(clone)], ["apply", str(clone)], ["apply", "ünknown"], ["lint"], ["verify", "-h"]):
        started(toy, *arguments, PYTHONIOENCODING=encoding)


def test_a_distribution_without_metadata_is_an_answer(toy: Toy, venv_master: Path) -> None:
    venv = copy_venv(venv_master, toy.root / "venv")
    add_distribution(venv.site, "torch", "2.0")
    write(venv.site, {"torch-2.0.dist-info/METADATA": None})
    said = speak("apply", "--installed", venv.python, "--json")
    assert wrong(said, as_json=True) is None, said
