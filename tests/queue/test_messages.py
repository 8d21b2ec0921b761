"""What a user who went wrong is told: the thing that is wrong, and the very command that helps."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sm120_overlay.cli import main
from sm120_overlay.queue.git import Repository, git_version

from .toy import FIRST, Toy, commit, git, write

ROOT = Path(__file__).resolve().parents[2]


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(list(arguments))
    return code, capsys.readouterr().err


def test_a_folder_inside_a_checkout_is_told_the_top_one(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    clone = toy.clone()
    code, said = told(capsys, "status", str(clone / "python"))
    assert code == 1
    assert f"lies inside {clone}" in said


def test_a_folder_that_does_not_exist_is_never_looked_for_elsewhere(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(toy.clone())
    code, said = told(capsys, "apply", "no/such")
    assert code == 1
    assert "no/such does not exist" in said


def test_an_environment_that_is_named_as_a_checkout_is_told_the_option(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "env", {"pyvenv.cfg": ""})
    _, said = told(capsys, "apply", str(tmp_path / "env"))
    assert f"--installed {tmp_path}/env/bin/python" in said


def test_a_checkout_of_another_user_gets_gits_own_remedy(
    toy: Toy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    clone = toy.clone()
    if git_version(Repository(clone)) < (2, 35, 2):
        pytest.skip("this git does not look at who owns a checkout")
    for path in (clone, clone / ".git"):
        os.chown(path, 12345, 12345)
    monkeypatch.delenv("SUDO_UID", raising=False)
    code, said = told(capsys, "status", str(clone))
    assert code == 1
    assert "belongs to another user" in said
    assert f"safe.directory {clone}" in said


def test_commits_of_the_users_own_are_told_how_to_come_on_top(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    clone = toy.clone()
    commit(clone, "mine", {"README.md": "mine\n"})
    code, said = told(capsys, "apply", str(clone))
    assert code == 1
    assert " rebase sm120/v1 main" in said
    code, _ = told(capsys, "status", str(clone))
    main(["status", str(clone)])
    assert "1 commit after the pin v1.0, 1 of them not ours" in capsys.readouterr().out
    git(clone, "checkout", "-q", "--detach", toy.pin().commit)
    assert main(["apply", str(clone)]) == 0
    git(clone, "rebase", "-q", "sm120/v1", "main")
    assert (clone / "README.md").read_text() == "mine\n"
    assert main(["verify", str(clone)]) == 0


def test_only_the_commits_that_differ_are_named(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    clone = toy.clone()
    git(clone, "checkout", "-q", "-b", "sm120/v1")
    commit(clone, "right-answer", FIRST)
    commit(clone, "more-words", {"python/toy/bare.txt": "four"})
    _, said = told(capsys, "apply", str(clone))
    assert "its patch more-words differs" in said
    assert "right-answer" not in said


def test_the_version_is_told() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from sm120_overlay.cli import main; main(['--version'])"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert re.fullmatch(r"sm120-overlay \d+\.\d+\.\d+\n", done.stdout)


@pytest.mark.parametrize("closing", ['exec 1>&-; exec "$@"', '"$@" | :; exit ${PIPESTATUS[0]}'])
def test_a_reader_that_is_gone_is_neither_a_no_nor_a_traceback(toy: Toy, closing: str) -> None:
    clone = toy.clone()
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom sm120_overlay.queue.home import Home\n"
        "from sm120_overlay.verbs import _options\n_options.find_home = lambda: Home(Path(sys.argv[1]))\n"
        "from sm120_overlay.cli import main\ntime.sleep(0.3)\nsys.exit(main(sys.argv[2:]))\n"
    )
    command = [sys.executable, "-c", code, str(toy.home.root), "status", str(clone)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        ["bash", "-c", closing, "bash", *command], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode in (1, 141), "1 is status's own answer for a pending target"
    assert "Traceback" not in done.stderr


def test_what_the_documents_link_to_is_there() -> None:
    for document in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name} links to {link}"


def test_a_branch_of_the_users_that_head_leaves_is_named(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    clone = toy.clone()
    git(clone, "checkout", "-q", "-b", "mine")
    assert main(["apply", str(clone)]) == 0
    assert "HEAD is on sm120/v1 now; mine stays where it was" in capsys.readouterr().out
    assert main(["apply", str(clone)]) == 0
    assert "stays where it was" not in capsys.readouterr().out
