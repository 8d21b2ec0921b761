"""The processes that answer: what is missing, what breaks, and what is kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay.cache import VARIABLE
from sm120_overlay.serving import asking
from sm120_overlay.serving.asking.host import SHARED
from sm120_overlay.serving.rig.errors import RigError

QUESTION = asking.Question("rtx-5090", (("config.json", "{}"),), ())
BARE = asking.Question("h200", QUESTION.files, ())


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which torch is not installed."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "torch.py").write_text("raise ModuleNotFoundError('No module named torch', name='torch')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))


METADATA = "Metadata-Version: 2.1\nName: sglang\nVersion: 0.0.9\n"


def layout(folder: Path, server_args: str = "", metadata: str = METADATA) -> Path:
    """An installed layout of a made-up SGLang."""
    files = {
        "sglang/__init__.py": "",
        "sglang/srt/__init__.py": "",
        "sglang/srt/server_args.py": server_args,
        "sglang-0.0.9.dist-info/METADATA": metadata,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.usefixtures("no_torch")
def test_a_package_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(asking.Absent) as missing, asking.start(layout(tmp_path / "tree")):
        pass
    assert missing.value.module == "torch"


def test_a_tree_without_code_is_no_ground(tmp_path: Path) -> None:
    with pytest.raises(RigError, match="is not an installed layout"), asking.start(tmp_path):
        pass


def test_a_host_that_cannot_even_start_gives_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking.warm, "BOOT", "raise SystemExit('no room')")
    with pytest.raises(RigError, match=r"ended without an answer.*no room"), asking.start(tmp_path):
        pass


@pytest.mark.slow
@pytest.mark.network
def test_a_tree_or_a_question_that_breaks_its_process_leaves_the_others_standing(
    host: asking.Host, trees: tuple[Path, Path], tmp_path: Path
) -> None:
    real = next(trees[0].glob("sglang-*.dist-info")) / "METADATA"
    for tree, why in (
        (layout(tmp_path / "broken", "raise ValueError('broken')", real.read_text()), "ValueError: broken"),
        (layout(tmp_path / "other"), "wants sgl-kernel None, and 0.3.21 is presented"),
        (tmp_path / "nowhere", "is not an installed layout"),
    ):
        with pytest.raises(RigError, match=why), host.stand(tree):
            pass
    with host.stand(trees[0]) as warm:
        assert f"sglang 0.5.9 from {trees[0]}" in warm.report
        with pytest.raises(RigError, match="ended with status"):
            warm.ask(asking.Question("no-such-card", QUESTION.files, ()))
        assert warm.ask(QUESTION)["fails"][0]["stage"] == "arguments"


def test_an_answer_is_kept_by_all_it_depends_on(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {asking.key(tmp_path / "digest-a", QUESTION)}
    names.add(asking.key(tmp_path / "digest-b", QUESTION))
    names.add(asking.key(tmp_path / "digest-a", BARE))
    monkeypatch.setenv("SGLANG_SOMETHING", "1")
    names.add(asking.key(tmp_path / "digest-a", QUESTION))
    assert len(names) == 4
    monkeypatch.setenv("UNRELATED", "1")
    assert asking.key(tmp_path / "elsewhere" / "digest-a", QUESTION) in names


class Standing:
    """Stands for a host: it counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, _host: Any, tree: Path, question: asking.Question) -> dict[str, Any]:
        self.asked.append(tree.name)
        return {"tree": tree.name, "flags": list(question.flags)}


def test_what_is_kept_is_not_asked_again_unless_it_shall_be(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing, host = Standing(), asking.Host(None, None)  # type: ignore[arg-type]
    monkeypatch.setattr(asking.warm, "_asked", standing.ask)
    two, three = [tmp_path / "a", tmp_path / "b"], [tmp_path / "c", tmp_path / "a", tmp_path / "b"]
    assert [one["tree"] for one in asking.answers(two, QUESTION, lambda: host)] == ["a", "b"]
    assert [one["tree"] for one in asking.answers(three, QUESTION, lambda: host)] == ["c", "a", "b"]
    assert sorted(standing.asked) == ["a", "b", "c"]
    asking.answers(two, QUESTION, lambda: host, cached=False)
    assert sorted(standing.asked) == ["a", "a", "b", "b", "c"]
    stored = [json.loads(file.read_bytes())["tree"] for file in (kept / "resolved").iterdir()]
    assert sorted(stored) == ["a", "b", "c"]


def test_being_told_to_stop_ends_the_host_and_is_passed_on(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any) -> Any:
        raise KeyboardInterrupt

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as process:
        monkeypatch.setattr(asking.warm, "_asked", stopped)
        host = asking.Host(None, process)  # type: ignore[arg-type]
        with pytest.raises(KeyboardInterrupt):
            asking.answers([tmp_path], QUESTION, lambda: host)
        assert process.wait(10) == -9
        host.stop()  # it is gone already


def test_asking_imports_nothing_heavy() -> None:
    code = "import sys, sm120_overlay.serving.asking.warm\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"packaging", "torch", *(name.partition(".")[0] for name in SHARED)} & set(loaded)
