"""verify --on-gpu on the toy, with the real runner and a torch that claims a card: what it says, writes and refuses."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay.cli import main
from sm120_overlay.verbs import _on_gpu

from .toy import Toy, write

REAL = Path(__file__).resolve().parents[1] / "on_gpu"
CARDS = {"pro": ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 12, 0), "h200": ("NVIDIA H200", 9, 0)}
TORCH = """\
class version:
    cuda = "13.0"

class Props:
    name, major, minor = {name!r}, {major}, {minor}
    total_memory, multi_processor_count = 97887 << 20, 188

class cuda:
    is_available = staticmethod(lambda: {there})
    device_count = staticmethod(lambda: 1)
    get_device_properties = staticmethod(lambda number: Props)
    get_device_capability = staticmethod(lambda number: (Props.major, Props.minor))
    get_device_name = staticmethod(lambda number: Props.name)
"""
NAMES = "FAILED, NOT_APPLICABLE, NOT_SHOWN, SHOWN, Answer, Unshown, upstream"
CHECK = f"from .kit import {NAMES}\n\n\ndef check(card):\n    "
YES = CHECK + 'return Answer(SHOWN, "41 launches")\n'


@pytest.fixture
def card(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a torch that claims a card beside the installed toy, the checks into its home, and both on the path."""

    def put(kind: str = "pro", there: bool = True, **checks: str) -> None:
        name, major, minor = CARDS[kind]
        site = toy.site()
        write(site, {"torch.py": TORCH.format(name=name, major=major, minor=minor, there=there).encode()})
        _say_torch(site, "2.0+cu130")
        folder = toy.home.root / "tests" / "on_gpu"
        folder.mkdir(parents=True)
        for file in ("__init__.py", "kit.py", "run.py"):
            shutil.copy(REAL / file, folder / file)
        for slug, text in checks.items():
            (folder / f"check_{slug}.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(site))
        monkeypatch.chdir(tmp_path)
        assert main(["apply", "--installed"]) == 0

    return put


def _say_torch(site: Path, version: str) -> None:
    """Pip's word that this torch is installed, before that of any real one."""
    metadata = f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
    write(site, {"torch-2.dist-info/METADATA": metadata.encode()})


def all_three(text: str) -> dict[str, str]:
    return dict.fromkeys(("right_answer", "bring_hook", "more_gears"), text)


def asked(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["verify", "--on-gpu", *more, "--json"])
    said = json.loads(capsys.readouterr().out)
    assert "Traceback" not in json.dumps(said)
    return code, said


def outcomes(said: dict[str, Any]) -> dict[str, str]:
    return {one["slug"]: one["outcome"] for one in said["on_gpu"]["results"]}


def test_all_that_is_shown_on_an_sm120_card_is_a_yes_and_a_file(
    card: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    card(**all_three(YES))
    code, said = asked(capsys)
    assert (code, said["ok"]) == (0, True)
    assert set(outcomes(said).values()) == {"shown"}
    file = Path(said["evidence"])
    assert file.name.endswith("-nvidia-rtx-pro-6000-blackwell-server-edition.json")
    assert json.loads(file.read_bytes()) == said["on_gpu"]
    assert said["on_gpu"]["says"] == "NVIDIA RTX PRO 6000 Blackwell Server Edition (12,0): 3 shown"
    assert said["on_gpu"]["software"]["cuda"] == "13.0"


@pytest.mark.case("a card that is no SM120 card", target="installed", outcome="told")
def test_on_a_card_of_another_kind_nothing_is_shown_and_the_file_says_so_first(
    card: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    card("h200", **all_three(YES))
    code, said = asked(capsys)
    assert (code, said["ok"]) == (1, False)
    assert set(outcomes(said).values()) == {"ran"}
    assert said["on_gpu"]["says"] == "of another kind: NVIDIA H200 (9,0); says nothing about SM120"
    assert list(said["on_gpu"])[:3] == ["schema", "says", "sm12x"]
    assert "shown" not in Path(said["evidence"]).read_text().replace("all_shown", "")


@pytest.mark.parametrize(
    ("text", "outcome", "part"),
    [
        (CHECK + 'return Answer(FAILED, "NaN in row 3")\n', "failed", "NaN in row 3"),
        (CHECK + 'raise Unshown("no nvcc")\n', "not shown", "no nvcc"),
        (CHECK + 'upstream("no_such_upstream")\n', "not shown", "no_such_upstream cannot be imported here"),
        (CHECK + "return 1 / 0\n", "not shown", "ZeroDivisionError"),
        ("import no_such_module\n", "not shown", "no_such_module"),
        ("def check(card: (\n", "not shown", "SyntaxError"),
        (CHECK + "import os; os.kill(os.getpid(), 9)\n", "failed", "died of SIGKILL"),
        (CHECK + "import os; os._exit(3)\n", "not shown", "exit code 3"),
        (CHECK + "raise SystemExit('stopped in /srv/secret')\n", "not shown", "stopped in (path)"),
        (CHECK + 'return Answer("splendid", "")\n', "not shown", "answers in another form"),
        (CHECK + 'return Answer(NOT_APPLICABLE, "one card alone")\n', "not applicable", "one card alone"),
    ],
)
def test_whatever_a_check_does_it_is_an_answer_and_never_a_false_yes(
    card: Callable[..., None], capsys: pytest.CaptureFixture[str], text: str, outcome: str, part: str
) -> None:
    card(**{**all_three(YES), "right_answer": text})
    code, said = asked(capsys)
    (first,) = (one for one in said["on_gpu"]["results"] if one["slug"] == "right-answer")
    assert first["outcome"] == outcome
    assert part in first["said"]
    assert code == (0 if outcome == "not applicable" else 1)


def test_a_patch_that_is_not_on_the_target_is_never_shown(
    card: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    card(**all_three(YES))
    assert main(["apply", "--installed", "--without", "bring-hook"]) == 0
    code, said = asked(capsys)
    assert (code, outcomes(said)["bring-hook"], outcomes(said)["right-answer"]) == (1, "not shown", "shown")
    assert "the patch is pending here" in json.dumps(said)
    assert "toy is NOT the series" in said["on_gpu"]["says"]


def test_a_patch_without_a_check_is_not_applicable_and_names_its_test(
    card: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    card(right_answer=YES)
    code, said = asked(capsys)
    assert code == 0
    assert outcomes(said) == {"right-answer": "shown", "bring-hook": "not applicable", "more-gears": "not applicable"}
    assert "tests/patches/test_bring_hook.py runs on a CPU" in json.dumps(said)


def test_chosen_patches_alone_are_run(card: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    card(**all_three(YES))
    _, said = asked(capsys, "bring-hook")
    assert outcomes(said) == {"bring-hook": "shown"}


def test_versions_that_are_not_the_lines_are_no_yes_and_are_named(
    card: Callable[..., None], toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    card(**all_three(YES))
    _say_torch(toy.root / "site", "2.11.0+cu130")
    code, said = asked(capsys)
    assert (code, said["on_gpu"]["misfits"]) == (1, ["torch 2.11.0+cu130 (expected 2.0)"])
    assert "NOT the line's versions" in said["on_gpu"]["says"]


def test_people_get_a_table_and_the_place_of_the_file(
    card: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card(**all_three(YES))
    (tmp_path / "docs" / "evidence").mkdir(parents=True)
    capsys.readouterr()
    assert main(["verify", "--on-gpu", "--installed", sys.executable]) == 0
    out = capsys.readouterr().out
    assert "on the card" in out
    assert "41 launches" in out
    assert "written to docs/evidence/" in out
    assert main(["verify", "--on-gpu", "--evidence", "elsewhere/deep"]) == 0
    assert len(list((tmp_path / "elsewhere" / "deep").iterdir())) == 1


@pytest.mark.parametrize("there", [True, False])
def test_without_torch_or_a_card_it_is_exit_code_4(
    card: Callable[..., None], toy: Toy, capsys: pytest.CaptureFixture[str], there: bool
) -> None:
    card(there=False, **all_three(YES))
    if there:
        write(toy.root / "site", {"torch.py": b"raise ImportError('no driver')\n"})
    code = main(["verify", "--on-gpu"])
    said = capsys.readouterr().err
    assert code == 4
    assert ("torch cannot be imported" if there else "torch finds no CUDA device") in said


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--evidence", "x"], "--evidence is where --on-gpu writes"),
        (["--on-gpu", "--into", "x"], "together with checkouts"),
        (["--on-gpu", "--through", "right-answer"], "whole series"),
        (["--on-gpu", "--red-green"], "whole series"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    toy: Toy, arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *arguments]) == 2
    assert part in capsys.readouterr().err


def test_an_unknown_slug_and_a_copy_without_checks_are_refused(
    card: Callable[..., None], toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    card(**all_three(YES))
    assert main(["verify", "--on-gpu", "right-anser"]) == 2
    assert "no patch right-anser" in capsys.readouterr().err
    shutil.rmtree(toy.home.root / "tests" / "on_gpu")
    assert main(["verify", "--on-gpu"]) == 4
    assert "run.py: the checks for a card are not there" in capsys.readouterr().err


def test_an_interpreter_is_named_so_that_it_starts_from_any_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    found = [_on_gpu._python(name) for name in (None, "python3", "./bin/python")]
    assert found == [sys.executable, "python3", "/bin/python"]
