"""Red and green: what counts as a proof, what does not, and when a verdict may be taken from the cache."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sm120_overlay.errors import Missing, UsageError
from sm120_overlay.queue import proof
from sm120_overlay.queue.proof import Proof, prove

from .toy import Toy, write

CONFTEST = Path(__file__).resolve().parents[1] / "patches" / "conftest.py"
HEAD = """\
import sys, os, pytest


def answer(tree):
    sys.path.insert(0, str(tree))
    from toy.core import answer
    return answer()


"""
TEST = "def test_answer(tree):\n    "
SHOWS_42 = HEAD + "def test_answer(tree):\n    assert answer(tree) == 42\n"


def with_test(toy: Toy, text: str, slug: str = "right-answer") -> Toy:
    folder = toy.home.root / "tests" / "patches"
    shutil.copy(CONFTEST, folder / "conftest.py")
    write(folder, {f"test_{slug.replace('-', '_')}.py": text})
    return toy


def proved(toy: Toy, slug: str = "right-answer", facts: dict[str, str] | None = None) -> Proof:
    (found,) = prove(toy.home, toy.series(), [slug], facts or {}, 2, lambda text: None)
    return found


def test_a_test_that_fails_without_its_patch_and_passes_with_it_is_a_proof(toy: Toy) -> None:
    found = proved(with_test(toy, SHOWS_42))
    assert (found.red.ok, found.red.outcome) == (True, "failed")
    assert "assert 41 == 42" in found.red.detail
    assert (found.green.ok, found.green.outcome) == (True, "passed")


def test_a_test_that_passes_without_its_patch_proves_nothing(toy: Toy) -> None:
    found = proved(with_test(toy, HEAD + "def test_answer(tree):\n    assert answer(tree) > 40\n"))
    assert (found.red.ok, found.red.outcome) == (False, "passed")
    assert found.green.ok


@pytest.mark.parametrize(
    ("body", "outcome", "said"),
    [
        ("import toy.not_there\n", "error", "No module named"),
        ("def test_answer(tree):\n    import toy.not_there\n", "error", "ModuleNotFoundError"),
        ("def test_answer(tree):\n    raise ValueError('boom')\n", "error", "boom"),
        ("def test_answer(tree, no_such_fixture):\n    assert False\n", "error", "no_such_fixture"),
        ("def test_answer(tree):\n    os._exit(3)\n", "error", "died"),
        ("def test_answer(tree):\n    pytest.skip('no GPU')\n", "skipped", "no GPU"),
        ("ANSWER = 42\n", "error", "holds no test"),
        ("def test_answer(tree:\n", "error", "SyntaxError"),
        (TEST + "sys.path.insert(0, str(tree.parent))\n    import helper_that_asserts\n", "error", "helper"),
    ],
)  # fmt: skip
def test_a_failure_that_is_no_assertion_of_the_test_is_never_red(
    toy: Toy, own_cache: Path, body: str, outcome: str, said: str
) -> None:
    write(own_cache / "trees", {"helper_that_asserts.py": "assert False, 'helper'\n"})
    found = proved(with_test(toy, HEAD + body))
    assert (found.red.ok, found.red.outcome) == (False, outcome), found.red
    assert said in found.red.detail
    assert not found.green.ok


def test_pytest_raises_and_fail_are_assertions_too(toy: Toy) -> None:
    body = "def test_answer(tree):\n    with pytest.raises(ZeroDivisionError):\n        1 / (42 - answer(tree))\n"
    assert proved(with_test(toy, HEAD + body)).red.ok


def test_green_means_the_whole_series_too(toy: Toy) -> None:
    body = HEAD + TEST + "assert answer(tree) == 42\n    assert not (tree / 'toy/extra/hook.py').exists()\n"
    found = proved(with_test(toy, body))
    assert found.red.ok
    assert not found.green.ok, "the second patch brings that file, and the test must hold there too"


def test_a_verdict_is_run_once_and_again_when_anything_it_stands_on_changes(toy: Toy, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    counting = SHOWS_42 + f"\n\ndef test_count(tree):\n    open({str(runs)!r}, 'a').write('x')\n"
    with_test(toy, counting)
    first, second = proved(toy), proved(toy)
    assert first == second
    assert runs.read_text() == "xxx", "one without the patch, one up to it, one on the whole series"
    proved(toy, facts={"nvcc": "13.0"})
    assert len(runs.read_text()) == 6
    proved(with_test(toy, counting + "\n"), facts={"nvcc": "13.0"})
    assert len(runs.read_text()) == 9


def test_an_error_is_never_cached(toy: Toy, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    body = HEAD + TEST + f"if not os.path.exists({str(flag)!r}): raise OSError('once')\n    assert answer(tree) == 42\n"
    with_test(toy, body)
    assert proved(toy).red.outcome == "error"
    flag.touch()
    assert proved(toy).red.ok


def test_a_test_that_hangs_is_ended_and_counts_as_an_error(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "LIMIT_S", 2)
    found = proved(with_test(toy, "import time\n\n\ndef test_answer(tree):\n    time.sleep(60)\n"))
    assert "did not end within 2 s" in found.red.detail


def test_a_missing_test_and_an_unknown_slug_are_said(toy: Toy) -> None:
    with pytest.raises(UsageError, match="no patch wrong-answer"):
        proved(toy, "wrong-answer")
    (toy.home.root / "tests" / "patches" / "test_right_answer.py").unlink()
    with pytest.raises(Missing, match=r"test_right_answer\.py"):
        proved(toy)
    shutil.rmtree(toy.home.root / "tests")
    with pytest.raises(Missing, match="tests are not there"):
        proved(toy)
