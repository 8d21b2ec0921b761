"""The branch of one patch on its upstream: what is on it, what it says, whose it is, and what is proved of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..queue.toy import FIRST, Toy, git, write
from ..rebase.releases import CORE, core, project, release, tree_of
from .conftest import BY_PYTEST, TEST, give_test, go_on
from .said import answer, desk, refused, upstream

ANN = "Ann Author <ann@example.org>"


def test_the_patch_alone_lies_on_upstreams_main_with_its_test(
    clone: Path, toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    before, ours = tree_of(clone), project(toy)
    said = answer(capsys, "--source", clone)
    tree = desk(toy)
    assert said["worktree"] == str(tree)
    assert git(tree, "rev-parse", "HEAD~1").strip() == git(clone, "rev-parse", "HEAD").strip()
    assert git(tree, "show", "--name-only", "--format=", "HEAD").split() == [CORE, TEST]
    assert "return 42" in (tree / CORE).read_text()
    assert "# line ten" in (tree / CORE).read_text()
    assert (tree / TEST).read_text() == BY_PYTEST
    assert said["proved"] is True
    assert [said["test"][colour]["outcome"] for colour in ("red", "green")] == ["failed", "passed"]
    assert tree_of(clone) == before
    assert project(toy) == ours


def test_what_the_patch_needs_comes_before_it_in_commits_of_its_own(
    clone: Path, toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    assert upstream("--source", clone, "--unproved", slug="bring-hook") == 0
    said = capsys.readouterr().out
    assert "It stands on 1 other commits" in said
    assert "test: NONE in upstream's form" in said
    subjects = git(desk(toy, "bring-hook"), "log", "--format=%s", "-3").splitlines()
    assert subjects == ["toy: do bring-hook", "toy: do right-answer", "Change 1 of 2.0 (#201)"]


def test_the_message_keeps_the_body_and_loses_our_trailers(clone: Path, toy: Toy) -> None:
    assert upstream("--source", clone, "--unproved", "--sign-off", ANN) == 0
    message = git(desk(toy), "log", "-1", "--format=%an <%ae>%n%B")
    assert message.startswith(f"{ANN}\ntoy: do right-answer\n\nWhat breaks, and how it is known.\n\n")
    assert message.strip().endswith(f"Signed-off-by: {ANN}")
    assert not re.search("Slug|Scope|Upstream-Status|Drop-When|Evidence|Test:", message)


def test_the_same_call_gives_the_same_commit(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (answer(capsys, "--source", clone, "--unproved")["commit"] for _ in range(2))
    assert first == second


def test_a_revision_is_named_by_tag_by_version_and_by_commit(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tip = git(clone, "rev-parse", "HEAD").strip()
    for name in ("v2.0", "2.0", tip, tip[:10]):
        assert answer(capsys, "--source", clone, "--onto", name, "--dry-run")["onto"]["commit"] == tip
    at_pin = answer(capsys, "--source", clone, "--onto", "v1", "--dry-run")["onto"]["commit"]
    assert at_pin == git(clone, "rev-parse", "v2.0~1").strip()


def test_without_a_clone_it_goes_onto_the_newest_lines_release(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    give_test(toy)
    said = answer(capsys, "--source", "pypi")
    assert said["onto"]["subject"] == "toy 1.0, laid out from its wheel"
    assert said["proved"] is True
    assert answer(capsys, "--source", "pypi", "--onto", "1.0", "--dry-run")["onto"] == said["onto"]


def test_a_dry_run_says_how_it_goes_in_and_writes_nothing(
    clone: Path, toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    assert upstream("--source", clone, "--dry-run") == 0
    said = capsys.readouterr().out
    assert "right-answer  clean" in said
    assert "nothing was written" in said
    assert not desk(toy).parent.exists()


def test_where_it_does_not_go_in_the_state_is_said_and_nothing_is_written(
    clone: Path, toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    release(toy, "3.0", core(("return 41", "return 40")))
    git(clone, "pull", "-q")
    capsys.readouterr()
    assert upstream("--source", clone) == 3
    said = capsys.readouterr()
    assert "right-answer  conflict" in said.out
    assert f"right-answer: conflict on toy {git(clone, 'rev-parse', 'HEAD')[:12]}: {CORE}" in said.err
    assert not desk(toy).parent.exists()


def test_what_upstream_has_already_is_not_sent_and_the_change_is_named(
    clone: Path, toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    release(toy, "3.0", core(("return 41", "return 42"), ("# line 10\n", "# line ten\n")))
    git(clone, "pull", "-q", "--tags")
    said = refused(capsys, 1, "--source", clone)
    assert "has all of it, since" in said
    assert "Change 1 of 3.0 (#301)" in said
    assert "--skip 'absorbed: toy#301, v3.0'" in said


def test_a_test_that_passes_without_the_patch_proves_nothing(
    clone: Path, toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    give_test(toy, "def test_answer():\n    pass\n")
    assert upstream("--source", clone) == 1
    said = capsys.readouterr().out
    assert "red   without the patch  WRONG: passed" in said
    assert "does not prove the change yet" in said
    give_test(toy, "import missing\n\n\ndef test_answer():\n    pass\n")
    assert answer(capsys, "--source", clone, code=1)["test"]["red"]["outcome"] == "error"


UNITTEST = """\
import unittest

from toy.core import answer


class TestAnswer(unittest.TestCase):
    def test_answer(self):
        for number in (1, 2):
            with self.subTest(number=number):
                self.assertEqual(answer(), 42)

    def test_nothing(self):
        pass


if __name__ == "__main__":
    unittest.main()
"""


def test_a_file_that_runs_itself_is_run_as_a_script(clone: Path, toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    give_test(toy, UNITTEST)
    said = answer(capsys, "--source", clone)["test"]
    assert said["green"]["runner"] == "python test_answer.py (unittest)"
    assert (said["red"]["outcome"], said["green"]["outcome"]) == ("failed", "passed")
    give_test(toy, UNITTEST.replace("self.assertEqual(answer(), 42)", "answer(1)"))
    assert "TypeError" in answer(capsys, "--source", clone, code=1)["test"]["red"]["detail"]
    give_test(toy, UNITTEST.replace("        pass", "        self.skipTest('no card')"))
    assert answer(capsys, "--source", clone, code=1)["test"]["green"]["outcome"] == "skipped"
    give_test(toy, UNITTEST.replace("unittest.main()", "raise SystemExit('no')"))
    assert answer(capsys, "--source", clone, code=1)["test"]["green"]["detail"] == "test_answer.py holds no test"


def test_a_test_stands_on_upstreams_own_conftest(clone: Path, toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    conftest = (
        "import pytest\n\n\n@pytest.fixture\ndef asked():\n    from toy.core import answer\n\n    return answer()\n"
    )
    go_on(toy, clone, {"tests/conftest.py": conftest, "tests/__init__.py": ""}, "A fixture")
    give_test(toy, "def test_answer(asked):\n    assert asked == 42\n")
    assert answer(capsys, "--source", clone)["proved"] is True


def test_requirements_of_the_revision_are_its_own(clone: Path, toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    cogs = "[project]\nname = 'toy'\ndependencies = ['cogs==3.1']\n"
    go_on(toy, clone, {"python/pyproject.toml": cogs}, "Cogs")
    give_test(
        toy,
        BY_PYTEST + "\n\ndef test_cogs():\n    from importlib.metadata import requires\n\n"
        "    assert requires('toy') == ['cogs==3.1']\n",
    )
    assert answer(capsys, "--source", clone)["proved"] is True
    go_on(toy, clone, {"python/pyproject.toml": "not = [toml"}, "Broken")
    assert answer(capsys, "--source", clone, code=1)["test"]["green"]["outcome"] == "failed"


def test_a_file_of_that_name_upstream_is_never_replaced(
    clone: Path, toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    give_test(toy, path="README.md")
    assert "has such a file itself" in refused(capsys, 1, "--source", clone)
    assert not desk(toy).exists()


def test_commits_of_somebody_on_the_branch_are_never_lost(
    clone: Path, toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    assert upstream("--source", clone, "--unproved") == 0
    git(desk(toy), "commit", "-q", "--amend", "-m", "Better words")
    assert "these tools left it at" in refused(capsys, 1, "--source", clone)
    git(desk(toy), "branch", "-m", "mine")
    assert upstream("--source", clone, "--unproved") == 0
    assert git(desk(toy), "log", "-1", "--format=%s", "mine").strip() == "Better words"


def test_edits_in_the_worktree_are_never_lost(clone: Path, toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    assert upstream("--source", clone, "--unproved") == 0
    write(desk(toy), {CORE: "mine\n", "new.txt": "mine\n"})
    assert "changes that no commit has" in refused(capsys, 1, "--source", clone)
    assert (desk(toy) / CORE).read_text() == "mine\n"


def test_a_folder_of_somebodys_is_left_alone(clone: Path, toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    write(desk(toy), {"mine.txt": "mine\n"})
    assert "expected our worktree or nothing" in refused(capsys, 1, "--source", clone)
    assert (desk(toy) / "mine.txt").read_text() == "mine\n"


def test_a_patch_that_is_not_for_upstream_stays_here(clone: Path, toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    assert upstream("--set-status", "Inappropriate [it is about the toy alone]") == 0
    assert "is not for upstream" in refused(capsys, 1, "--source", clone)
    assert FIRST[CORE] != (toy.upstream() / CORE).read_text()


@pytest.mark.parametrize(
    ("slug", "arguments", "code", "said"),
    [
        ("no-such", [], 2, "No line carries no-such."),
        ("right-answer", ["--line", "v9"], 2, "There is no line 'v9'"),
        ("right-answer", ["--source", "/no/such"], 2, "expected auto, git, pypi or a repository"),
        ("right-answer", ["--source", "pypi", "--onto", "7.7"], 4, "--onto 7.7: no clone was named"),
        ("right-answer", ["--check", "--unproved"], 2, "--check was given together with --unproved"),
        ("right-answer", ["--set-status", "Pending", "--onto", "x"], 2, "--set-status was given together with --onto"),
        ("right-answer", ["--check", "--dry-run"], 2, "--check writes nothing"),
        ("right-answer", ["--sign-off", "Ann"], 2, "--sign-off 'Ann': expected a name and a mail address"),
        ("right-answer", ["--gh", "ann"], 2, "--gh 'ann': expected a fork"),
        ("right-answer", ["--set-status", "Sent"], 2, "--set-status 'Sent': expected Pending, Submitted"),
        ("no-such", ["--set-status", "Pending"], 2, "No line carries a patch no-such."),
        ("right-answer", ["--onto"], 2, "expected one argument"),
    ],
)
def test_calls_that_mean_nothing_are_refused(
    toy: Toy, capsys: pytest.CaptureFixture[str], slug: str, arguments: list[str], code: int, said: str
) -> None:
    before = project(toy)
    assert said in refused(capsys, code, *arguments, slug=slug)
    assert project(toy) == before


def test_a_patch_that_a_line_does_without_is_named_with_its_reason(
    toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    pins = toy.home.pins.read_text()
    toy.home.pins.write_text(pins + '\n[line.v1.toy.absent]\nold-one = "absorbed: toy#7, v0.9"\n')
    assert "absorbed: toy#7, v0.9" in refused(capsys, 2, slug="old-one")


def test_an_installed_copy_of_the_tools_says_that_it_needs_a_clone(
    toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    (toy.home.root / "tests").rename(toy.root / "gone")
    assert "needs a clone of this project" in refused(capsys, 4)
    assert "needs a clone of this project" in refused(capsys, 4, "--set-status", "Pending")
