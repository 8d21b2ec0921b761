"""Where a pin's tree comes from: the wheel, upstream's repository, one at hand; whole or not at all, and offline."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sm120_overlay.errors import Missing, OverlayError, UsageError
from sm120_overlay.queue.materialise import materialise
from sm120_overlay.queue.pins import Wheel
from sm120_overlay.queue.sources import check_sources, choose_source, find_source
from sm120_overlay.queue.wheels import fetch_wheel

from .scenes import Answer, ask, snapshot
from .toy import TOY, Toy, git, make_wheel, write

MAPPED = {name: text.encode() for name, text in TOY.items() if name.startswith("python/toy/")}


def fresh(toy: Toy, source: object, *options: object, into: str = "out") -> Answer:
    return ask("apply", "--into", toy.root / into, "--source", source, "--only", "toy", *options)


def tree(folder: Path) -> dict[str, bytes]:
    names = git(folder, "ls-tree", "-r", "-z", "--name-only", "HEAD").split("\0")[:-1]
    return {name: (folder / name).read_bytes() for name in names}


def warm_wheel(toy: Toy, cache: Path) -> None:
    """The wheel in the cache as a run before left it: pip is slow, and most tests are not about it."""
    folder = cache / "wheels" / toy.pin().wheels[0].sha256
    folder.mkdir(parents=True)
    shutil.copy(next(toy.wheels.glob("toy-*.whl")), folder)


def wheel_of(cache: Path) -> Path:
    (found,) = (cache / "wheels").glob("*/toy-*.whl")
    return found


def go_offline(toy: Toy) -> None:
    """Neither index nor upstream can be reached any more."""
    shutil.rmtree(toy.wheels)
    shutil.rmtree(toy.root / "upstream")


# The wheel


def test_a_tree_from_the_wheel_has_the_repositorys_files_and_modes(toy: Toy, own_cache: Path) -> None:
    warm_wheel(toy, own_cache)
    assert fresh(toy, "pypi").code == 0
    folder = toy.root / "out" / "toy"
    assert ask("apply", folder, "--reverse").code == 0
    assert tree(folder) == MAPPED
    assert git(folder, "ls-files", "-s", "python/toy/run.py").startswith("100755")
    assert os.access(folder / "python/toy/run.py", os.X_OK)


def test_two_runs_from_the_wheel_give_the_same_ids_and_the_digest_of_the_repository(toy: Toy, own_cache: Path) -> None:
    warm_wheel(toy, own_cache)
    first, second = fresh(toy, "pypi"), fresh(toy, "pypi", into="again")
    own = fresh(toy, "git", into="git")
    heads = [answer.targets["toy"]["head"] for answer in (first, second, own)]
    assert heads[0] == heads[1] != heads[2]
    assert len({answer.targets["toy"]["digest"] for answer in (first, second, own)}) == 1
    assert [answer.targets["toy"]["source"] for answer in (first, own)] == ["pypi", "git"]


def test_a_cache_emptied_in_between_gives_the_same_ids(toy: Toy, own_cache: Path) -> None:
    first = fresh(toy, "pypi")
    shutil.rmtree(own_cache)
    assert fresh(toy, "pypi", into="again").targets["toy"]["head"] == first.targets["toy"]["head"]


def test_a_wheel_is_cached_by_its_hash_and_asked_for_once(toy: Toy, own_cache: Path) -> None:
    assert "downloading" in fresh(toy, "pypi").err
    file = wheel_of(own_cache)
    assert file.parent.name == hashlib.sha256(file.read_bytes()).hexdigest() == toy.pin().wheels[0].sha256
    assert "downloading" not in fresh(toy, "pypi", into="again").err


def test_a_warm_cache_works_offline(toy: Toy) -> None:
    for kind in ("pypi", "git"):
        assert fresh(toy, kind).code == 0
        shutil.rmtree(toy.root / "out")
    go_offline(toy)
    for kind in ("pypi", "git", "auto"):
        assert fresh(toy, kind, into=kind).code == 0


def test_the_laid_out_tree_works_without_its_wheel(toy: Toy, own_cache: Path) -> None:
    warm_wheel(toy, own_cache)
    fresh(toy, "pypi")
    shutil.rmtree(own_cache / "wheels")
    go_offline(toy)
    assert fresh(toy, "pypi", into="again").code == 0


def test_a_tampered_cached_wheel_is_refused_and_the_advice_helps(toy: Toy, own_cache: Path) -> None:
    file = fetch_wheel(toy.pin(), lambda text: None)
    file.write_bytes(file.read_bytes() + b"x")
    answer = fresh(toy, "pypi")
    assert answer.code == 4
    assert str(file) in answer.said["error"]["what"]
    assert not (toy.root / "out" / "toy").exists()
    shutil.rmtree(Path(answer.said["error"]["todo"].removeprefix("Delete ").partition(";")[0]))
    assert fresh(toy, "pypi").code == 0


@pytest.mark.parametrize("kind", ["emptied", "a second file"])
def test_a_cache_folder_that_does_not_hold_one_file_is_no_traceback(toy: Toy, own_cache: Path, kind: str) -> None:
    warm_wheel(toy, own_cache)
    file = fetch_wheel(toy.pin(), lambda text: None)
    file.unlink() if kind == "emptied" else write(file.parent, {".DS_Store": "x"})
    assert fresh(toy, "pypi").code in (0, 4)


@pytest.mark.case("an index that serves another file", target="source", outcome="refused")
def test_an_index_that_serves_another_file_is_refused_and_nothing_of_it_is_cached(toy: Toy, own_cache: Path) -> None:
    shutil.rmtree(toy.wheels)
    make_wheel(toy.wheels, "toy", "1.0", {"toy/core.py": b"evil\n"})
    answer = fresh(toy, "pypi")
    assert answer.code == 4
    assert "toy 1.0" in answer.said["error"]["what"]
    assert [path for path in own_cache.rglob("*") if path.suffix == ".whl"] == []
    assert not (own_cache / "wheels").exists() or list((own_cache / "wheels").iterdir()) == []


def test_a_wheel_of_another_python_and_platform_can_be_fetched(toy: Toy) -> None:
    tag = "cp313-cp313-manylinux_2_28_aarch64"
    made = make_wheel(toy.root / "native", "toy", "1.0", {"toy/core.py": b"native\n"})
    file = made.rename(toy.wheels / f"toy-1.0-{tag}.whl")
    wheel = Wheel(tag, hashlib.sha256(file.read_bytes()).hexdigest(), "")
    fetched = fetch_wheel(toy.pin(), lambda text: None, wheel)
    assert (fetched.name, fetched.read_bytes()) == (file.name, file.read_bytes())


def test_an_index_without_the_version_is_an_answer_of_its_own(toy: Toy) -> None:
    shutil.rmtree(toy.wheels)
    toy.wheels.mkdir()
    answer = fresh(toy, "pypi")
    assert answer.code == 4
    assert "toy 1.0 (py3-none-any) could not be downloaded" in answer.said["error"]["what"]


@pytest.mark.parametrize("root", ["", "0" * 40])
@pytest.mark.case("a wheel that lays out otherwise", target="source", outcome="refused")
def test_a_root_commit_that_is_not_the_pinned_one_is_refused_by_both_ids(toy: Toy, own_cache: Path, root: str) -> None:
    warm_wheel(toy, own_cache)
    pinned = toy.pin().wheels[0].root
    toy.home.pins.write_text(toy.home.pins.read_text().replace(pinned, root))
    answer = fresh(toy, "pypi")
    assert answer.code == 4
    assert pinned in answer.said["error"]["what"]
    assert (root or "none") in answer.said["error"]["what"]
    assert not (toy.root / "out" / "toy").exists()


def test_the_tree_from_a_wheel_says_that_it_cannot_be_installed(
    toy: Toy, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warm_wheel(toy, own_cache)
    from sm120_overlay.cli import main

    assert main(["apply", "--into", str(toy.root / "out"), "--source", "pypi", "--only", "toy"]) == 0
    said = capsys.readouterr().out
    assert "cannot be installed" in said
    assert "--installed" in said
    assert "pip install -e" not in said
    assert main(["apply", "--into", str(toy.root / "git"), "--source", "git", "--only", "toy"]) == 0
    assert f"pip install -e '{toy.root}/git/toy/python'" in capsys.readouterr().out


# Upstream's repository


def test_upstreams_own_commit_is_fetched_alone(toy: Toy, own_cache: Path) -> None:
    write(toy.upstream(), {"later.txt": "later\n"})
    git(toy.upstream(), "add", "-A")
    git(toy.upstream(), "commit", "-q", "-m", "later")
    answer = fresh(toy, "git")
    folder = toy.root / "out" / "toy"
    assert answer.targets["toy"]["base"] == toy.pin().commit
    assert "later.txt" not in tree(folder)
    assert git(folder, "remote", "get-url", "origin").strip() == str(toy.upstream())
    assert git(own_cache / "git" / "toy.git", "rev-list", "--all", "--count").strip() == "1"


def test_an_unreachable_upstream_falls_back_to_the_wheel_aloud(toy: Toy, own_cache: Path) -> None:
    warm_wheel(toy, own_cache)
    shutil.rmtree(toy.upstream())
    assert fresh(toy, "git").code == 4
    answer = fresh(toy, "auto")
    assert (answer.code, answer.targets["toy"]["source"]) == (0, "pypi")
    assert "taking the pinned wheel" in answer.err
    assert str(toy.upstream()) in answer.err


@pytest.mark.case("neither network nor cache", target="source", outcome="refused")
def test_without_network_and_cache_the_error_says_what_can_be_done(toy: Toy) -> None:
    go_offline(toy)
    answer = fresh(toy, "auto")
    assert answer.code == 4
    assert "--source" in answer.said["error"]["todo"]


@pytest.mark.parametrize("kind", ["git", "pypi"])
@pytest.mark.parametrize("lock", ["shallow.lock", "refs/pins/COMMIT.lock", "packed-refs.lock"])
def test_a_lock_that_a_killed_fetch_left_in_the_cache_does_not_block_for_good(
    toy: Toy, own_cache: Path, kind: str, lock: str
) -> None:
    warm_wheel(toy, own_cache)
    cache = own_cache / "git" / "toy.git"
    cache.parent.mkdir(parents=True)
    git(cache.parent, "init", "-q", "--bare", "toy.git")
    commit = toy.pin().commit if kind == "git" else toy.pin().wheels[0].root
    write(cache, {lock.replace("COMMIT", commit): ""})
    fresh(toy, kind)
    assert fresh(toy, kind, into="again").code == 0


@pytest.mark.parametrize("cut", ["config", "objects", "refs"])
def test_a_cached_repository_whose_making_was_cut_is_made_again(toy: Toy, own_cache: Path, cut: str) -> None:
    warm_wheel(toy, own_cache)
    git(toy.root, "init", "-q", "--bare", str(own_cache / "git" / "toy.git"))
    half = own_cache / "git" / "toy.git" / cut
    shutil.rmtree(half) if half.is_dir() else half.unlink()
    assert fresh(toy, "pypi").code == 0


# A repository at hand


@pytest.mark.parametrize("kind", ["plain", "bare", "shallow", "worktree", "other branch"])
def test_a_repository_at_hand_that_holds_the_pin_is_taken_and_left_alone(toy: Toy, kind: str) -> None:
    path = toy.root / "mirror"
    if kind == "worktree":
        git(toy.upstream(), "worktree", "add", "-q", "--detach", str(path))
    else:
        options = {"bare": ["--bare"], "shallow": ["--depth=1"]}.get(kind, [])
        git(toy.root, "clone", "-q", *options, f"file://{toy.upstream()}", str(path))
    if kind == "other branch":
        git(path, "checkout", "-q", "--orphan", "mine")
        git(path, "commit", "-q", "-m", "mine")
        git(path, "branch", "-q", "-D", "main")
        git(path, "remote", "remove", "origin")
    before = snapshot(path, skip=())
    answer = fresh(toy, path)
    assert (answer.code, answer.targets["toy"]["source"]) == (0, "path"), answer
    assert snapshot(path, skip=()) == before
    assert answer.targets["toy"]["digest"] == toy.series().digest


@pytest.mark.case("a repository without the pin", target="source", outcome="refused")
def test_a_repository_that_lacks_the_pin_is_refused_with_the_commit(toy: Toy) -> None:
    git(toy.root, "init", "-q", "empty")
    with pytest.raises(Missing, match=toy.pin().commit):
        find_source(toy.pin(), str(toy.root / "empty"), lambda text: None)
    assert fresh(toy, toy.root / "empty").code == 4


@pytest.mark.case("a folder that is no repository", target="source", outcome="refused", source="oven-sh/bun#35099")
def test_a_folder_that_is_no_repository_or_not_there_is_refused(toy: Toy) -> None:
    (toy.root / "plain").mkdir()
    write(toy.upstream(), {"sub/file": "x"})
    for path, code in ((toy.root / "plain", 4), (toy.upstream() / "sub", 4), (toy.root / "missing", 2)):
        answer = fresh(toy, path)
        assert answer.code == code, path
        assert str(path) in answer.said["error"]["what"]
    with pytest.raises(UsageError):
        find_source(toy.pin(), "pipy", lambda text: None)


def test_each_upstream_takes_the_first_source_that_holds_it(toy: Toy) -> None:
    answer = ask("apply", "--into", toy.root / "out", "--source", toy.upstream("gear"), "--source", toy.upstream("toy"))
    assert [target["source"] for target in answer.said["targets"]] == ["path", "path"]
    assert "does not hold" in answer.err


def test_an_upstream_that_no_named_repository_holds_comes_from_auto(toy: Toy, own_cache: Path) -> None:
    warm_wheel(toy, own_cache)
    answer = ask("apply", "--into", toy.root / "out", "--source", toy.upstream("gear"))
    assert {name: target["source"] for name, target in answer.targets.items()} == {"toy": "git", "gear": "path"}
    said: list[str] = []
    only = choose_source(toy.pin(), [str(toy.upstream("gear")), "pypi"], said.append)
    assert (only.kind, only.installable) == ("pypi", False)
    assert any("trying the next source" in text for text in said)
    assert check_sources(toy.line.pins, ["git", "pypi"]) == ["git", "pypi"]


# Fresh checkouts


def test_an_existing_folder_is_kept_and_brought_to_the_series(toy: Toy) -> None:
    fresh(toy, "git")
    write(toy.root / "out" / "toy", {"notes.txt": "mine\n"})
    answer = fresh(toy, "pypi")
    assert (answer.code, answer.targets["toy"]["changed"], answer.targets["toy"]["source"]) == (0, False, None)
    assert (toy.root / "out/toy/notes.txt").read_text() == "mine\n"


def test_an_empty_folder_is_a_place_for_a_fresh_checkout(toy: Toy) -> None:
    (toy.root / "out" / "toy").mkdir(parents=True)
    assert fresh(toy, "git").code == 0
    assert (toy.root / "out" / "toy" / "README.md").is_file()


@pytest.mark.parametrize("kind", ["file", "full folder", "dangling link"])
@pytest.mark.case("something lies at the place of a fresh checkout", target="source", outcome="refused")
def test_what_lies_at_the_place_of_a_fresh_checkout_is_refused_and_kept(toy: Toy, kind: str) -> None:
    place = toy.root / "out" / "toy"
    place.parent.mkdir()
    if kind == "file":
        place.write_text("mine\n")
    elif kind == "dangling link":
        place.symlink_to(toy.root / "nowhere")
    else:
        place.mkdir()
        write(place, {"mine.txt": "mine\n"})
    before = snapshot(toy.root / "out")
    answer = fresh(toy, "git")
    assert answer.code == 1, answer
    assert snapshot(toy.root / "out") == before


def test_what_appears_at_the_place_meanwhile_is_kept(toy: Toy) -> None:
    source = find_source(toy.pin(), "git", lambda text: None)
    write(toy.root / "out" / "toy", {"mine.txt": "mine\n"})
    with pytest.raises(OverlayError, match="toy"):
        materialise(toy.pin(), source, toy.root / "out" / "toy")
    assert snapshot(toy.root / "out").keys() == {"toy", "toy/mine.txt"}


def test_a_dry_run_makes_and_fetches_nothing(toy: Toy, own_cache: Path) -> None:
    answer = fresh(toy, "git", "--dry-run")
    assert answer.code == 0
    (target,) = answer.said["targets"]
    assert (target["would_change"], target["base"], target["path"]) == (True, None, str(toy.root / "out" / "toy"))
    assert {patch["state"] for patch in target["patches"]} == {"pending"}
    assert not (toy.root / "out").exists()
    assert not own_cache.exists()


def test_reversing_what_is_not_there_is_refused_and_makes_nothing(toy: Toy) -> None:
    assert fresh(toy, "git", "--reverse").code == 1
    assert not (toy.root / "out").exists()


def test_a_fresh_checkout_under_a_strict_umask_is_private_and_else_as_git_makes_it(toy: Toy) -> None:
    before = os.umask(0o027)
    try:
        fresh(toy, "git")
        git(toy.root, "clone", "-q", str(toy.upstream()), "reference")
    finally:
        os.umask(before)
    for name in ("", "python/toy/core.py", "python/toy/run.py", "python/toy/extra/hook.py"):
        reference = toy.root / "reference" / name
        mode = reference.stat().st_mode if reference.exists() else (toy.root / "reference/README.md").stat().st_mode
        assert (toy.root / "out/toy" / name).stat().st_mode == mode, name


# Several at once, and cut runs

RUN = (
    "import sys; from pathlib import Path\n"
    "from sm120_overlay.queue.home import Home\n"
    "from sm120_overlay.verbs import _options\n"
    "home = Home(Path(sys.argv[1])); _options.find_home = lambda: home\n"
    "from sm120_overlay.cli import main\n"
    "sys.exit(main(sys.argv[2:]))\n"
)


def started(toy: Toy, source: str, into: str, path: str | None = None) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PATH": path or os.environ["PATH"]}
    arguments = ["apply", "--into", str(toy.root / into), "--source", source, "--only", "toy"]
    command = [sys.executable, "-c", RUN, str(toy.home.root), *arguments]
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)


def slow_git(folder: Path, before: str, seconds: float) -> str:
    """A PATH on which git waits a while before one of its commands, so that two runs meet there."""
    real = shutil.which("git")
    write(folder, {"git": f'#!/bin/sh\ncase " $* " in *" {before} "*) sleep {seconds};; esac\nexec {real} "$@"\n'})
    (folder / "git").chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.parametrize(("source", "meet"), [("pypi", "update-ref"), ("git", "update-ref"), ("git", "fetch")])
def test_two_runs_that_fill_one_cold_cache_at_once_both_succeed(toy: Toy, source: str, meet: str) -> None:
    path = slow_git(toy.root / "slow", meet, 0.5)
    runs = [started(toy, source, f"out-{number}", path) for number in range(2)]
    said = [run.communicate()[1].decode() for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    assert tree(toy.root / "out-0/toy") == tree(toy.root / "out-1/toy")


def test_two_runs_into_one_place_leave_one_whole_checkout(toy: Toy) -> None:
    assert fresh(toy, "git", into="warm").code == 0
    runs = [started(toy, "git", "out", slow_git(toy.root / "slow", "checkout", 0.3)) for _ in range(2)]
    said = [run.communicate()[1].decode() for run in runs]
    assert 0 in [run.returncode for run in runs], said
    assert ask("status", toy.root / "out/toy").code == 0
    assert [path.name for path in (toy.root / "out").iterdir()] == ["toy"]


@pytest.mark.parametrize("at", ["init", "fetch", "checkout", "remote", "fast-import"])
def test_a_run_killed_while_it_makes_a_checkout_leaves_no_half_one(toy: Toy, at: str) -> None:
    run = started(toy, "git", "out", slow_git(toy.root / "slow", at, 5))
    until = time.monotonic() + 10
    while time.monotonic() < until and not in_git(run.pid, at):
        time.sleep(0.02)
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    place = toy.root / "out" / "toy"
    assert not place.exists() or tree(place).keys() == set(TOY)
    assert fresh(toy, "git").code == 0
    assert git(place, "status", "--porcelain") == ""


def test_what_a_killed_run_left_beside_the_place_is_cleared_by_the_next(toy: Toy) -> None:
    run = started(toy, "git", "out", slow_git(toy.root / "slow", "checkout", 5))
    until = time.monotonic() + 10
    while time.monotonic() < until and not in_git(run.pid, "checkout"):
        time.sleep(0.02)
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    assert fresh(toy, "git").code == 0
    assert [path.name for path in (toy.root / "out").iterdir()] == ["toy"]


def in_git(session: int, command: str) -> bool:
    """Whether a process of that session sleeps before git's command."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getsid(int(entry.name)) == session:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if command.encode() in words and b"sleep" not in words:
                    return True
        except OSError:
            continue
    return False
