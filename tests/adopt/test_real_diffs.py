"""Large raw diffs on real SGLang: made here on the pinned wheel and a neighbour, and the sets that people carry.

The latter are other people's and lie in no repository of ours: name their folder with $SM120_OVERLAY_PATCH_SETS (one
.patch each) and upstream's history with --sglang-repo.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm120_overlay.cli import main
from sm120_overlay.queue.home import find_home
from sm120_overlay.queue.pins import load_lines
from sm120_overlay.queue.series import chains, load_series

from ..queue.toy import git
from .oracle import borrow, commit_of, disagreements, pick
from .people import Stranger, adopt, hows

pytestmark = [pytest.mark.slow, pytest.mark.network]
SETS = "SM120_OVERLAY_PATCH_SETS"
FILES, EDITS = 40, 9
HOME = find_home()
SERVER_ARGS = "python/sglang/srt/server_args.py"
OURS = set(chains(load_series(HOME, load_lines(HOME.pins).line(None).pin("sglang"))))  # what our series changes


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """SGLang from its pinned wheel with the real series on. The cache is the user's: the wheel is there."""
    into = tmp_path_factory.mktemp("real")
    assert main(["apply", "--only", "sglang", "--source", "pypi", "--into", str(into)]) == 0
    yield into / "sglang"


@pytest.fixture
def own_cache() -> None:
    """Not here: wheels come from the user's cache."""


@pytest.fixture
def checkout(master: Path, tmp_path: Path) -> Path:
    """A copy of one's own."""
    return Path(shutil.copytree(master, tmp_path / "sglang", symlinks=True))


def edit(text: str, chance: random.Random, word: str) -> str:
    """The text with some lines changed, some gone and some more."""
    lines = text.split("\n")
    for number in range(EDITS):
        at = chance.randrange(len(lines) - 1)
        lines[at : at + chance.choice((0, 1, 1))] = [f"    # {word} {number} {chance.random()}"] * chance.choice(
            (1, 2, 4)
        )
    return "\n".join(lines)


def change(stranger: Stranger, seed: int) -> dict[str, str | bytes | None]:
    """Files of SGLang with many edits; one that is new, one that goes."""
    chance = random.Random(seed)
    listed = git(stranger.path, "ls-files", "python/sglang/srt/*.py").split("\n")
    long = [path for path in listed if path and (stranger.path / path).stat().st_size > 4000 and path != SERVER_ARGS]
    chosen = [SERVER_ARGS, *chance.sample(long, FILES - 3)]
    edited = {path: edit((stranger.path / path).read_text(), chance, "theirs") for path in chosen}
    gone = next(path for path in chance.sample(long, 9) if path not in chosen)
    return {**edited, "python/sglang/srt/layers/theirs.py": "THEIRS = 1\n", gone: None}


def at_pin(checkout: Path, folder: Path) -> Stranger:
    """A clone at the bare pin."""
    git(folder.parent, "clone", "-q", str(checkout), str(folder))
    root = git(checkout, "rev-list", "--max-parents=0", "HEAD").strip()
    git(folder, "checkout", "-q", "-b", "theirs", root)
    return Stranger(folder)


@pytest.mark.case("a diff of dozens of files and a hundred kilobytes", target="adopt", outcome="exact")
def test_a_large_diff_made_on_the_pin_is_exact_but_where_our_series_merges_as_git_does(
    checkout: Path, tmp_path: Path
) -> None:
    stranger = at_pin(checkout, tmp_path / "theirs")
    diff = tmp_path / "theirs.patch"
    files = change(stranger, 59)
    diff.write_bytes(stranger.diff(files))
    theirs = stranger.commit({})
    assert (diff.read_bytes().count(b"diff --git"), diff.stat().st_size > 80_000) == (FILES, True)
    scratch = borrow(tmp_path / "scratch", checkout, [stranger.path])
    answer = adopt(diff, checkout)
    (patch,) = answer.said["targets"][0]["patches"]
    assert patch["made_on"]["pinned"] is True
    assert {path for path, how in hows(answer).items() if how != "exact"} <= OURS
    assert not disagreements(patch["files"], pick(scratch, theirs, files))
    assert answer.code == (3 if "conflict" in hows(answer).values() else 0)
    if answer.code == 0:
        assert git(checkout, "status", "--porcelain") == ""
        assert main(["verify", str(checkout)]) == 1  # told: a commit that no series has


@pytest.mark.case("a diff made on another release than it says", target="adopt", outcome="exact")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_large_diff_made_on_a_neighbour_goes_on_exactly_as_git_cherry_pick_takes_it(
    checkout: Path, tmp_path: Path, seed: int
) -> None:
    stranger = at_pin(checkout, tmp_path / "theirs")
    chance = random.Random(seed)
    touched = [path for path, text in change(stranger, seed).items() if (stranger.path / path).is_file()]
    base = stranger.commit(
        {path: edit((stranger.path / path).read_text(), chance, "neighbour") for path in touched[: FILES * 3 // 4]}
    )
    git(stranger.path, "tag", "v0.5.8.neighbour")
    files = change(stranger, seed)
    diff = tmp_path / "theirs.patch"
    diff.write_bytes(stranger.diff(files))
    theirs = stranger.commit({})
    scratch = borrow(tmp_path / "scratch", checkout, [stranger.path])
    answer = adopt(diff, checkout, "--history", stranger.path, "--dry-run")
    (patch,) = answer.said["targets"][0]["patches"]
    assert (patch["made_on"]["name"], patch["made_on"]["commit"]) == ("v0.5.8.neighbour", base)
    assert (patch["made_on"]["fitting"], patch["made_on"]["asked"]) == (FILES, FILES)
    picked = pick(scratch, theirs, files)
    assert not disagreements(patch["files"], picked)
    assert {"clean", "conflict"} <= set(hows(answer).values())
    assert answer.code == 3


def sets() -> list[Path]:
    """The patch sets that were named."""
    folder = os.environ.get(SETS)
    return sorted(Path(folder).glob("*.patch")) if folder else []


@pytest.mark.parametrize("diff", [pytest.param(path, id=path.stem) for path in sets()] or [None])
def test_the_sets_that_people_carry_go_on_exactly_as_git_cherry_pick_takes_them(
    diff: Path | None, master: Path, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    named = request.config.getoption("--sglang-repo")
    if diff is None or not named:
        pytest.skip(f"no patch sets at hand: name their folder with ${SETS}, and upstream's history with --sglang-repo")
    started = time.monotonic()
    answer = adopt(diff, master, "--history", named, "--dry-run")
    seconds = time.monotonic() - started
    (patch,) = answer.said["targets"][0]["patches"]
    unknown = [path for path, how in hows(answer).items() if how == "unknown"]
    counts = {how: list(hows(answer).values()).count(how) for how in sorted(set(hows(answer).values()))}
    with capsys.disabled():
        print(f"\n{diff.name}: made on {patch['made_on']['name']}; {counts}; exit {answer.code}, {seconds:.1f} s")
    assert answer.code == (1 if unknown else 3 if counts.keys() & {"conflict", "gone"} else 0)
    assert not counts.keys() & {"damaged", "refused"}
    scratch = borrow(tmp_path / "scratch", master, [Path(named)])
    theirs = commit_of(scratch, diff, patch["made_on"]["commit"], unknown)
    assert not disagreements(patch["files"], pick(scratch, theirs, hows(answer)))
    assert patch["made_on"]["fitting"] + len(unknown) >= patch["made_on"]["asked"]
