"""A series that is moved: what goes by itself, what is written, and that nothing is written otherwise."""

from __future__ import annotations

import json
import shutil

import pytest

from sm120_overlay.cache import cache_dir
from sm120_overlay.queue.lint import lint_line
from sm120_overlay.queue.pins import load_lines
from sm120_overlay.queue.series import load_series

from ..queue.toy import HOOK, Toy
from .releases import CORE, core, project, rebase, release


def moved(toy: Toy) -> dict[str, bytes]:
    """What a line v2.0 has, by file name."""
    return {name: data for name, data in project(toy).items() if name.startswith("patches/v2.0/")}


def test_a_release_that_touches_nothing_of_ours_gives_the_same_patches(toy: Toy) -> None:
    release(toy, "2.0", {"python/toy/other.py": "X = 1\n"})
    assert rebase("--onto", "2.0", "--source", "pypi", "--unproved") == 0
    old, new = toy.home.patches("v1", "toy"), toy.home.patches("v2.0", "toy")
    for name in ("series", "right-answer.patch", "bring-hook.patch"):
        assert (new / name).read_bytes() == (old / name).read_bytes()


def test_both_kinds_of_source_give_the_same_series(toy: Toy) -> None:
    release(toy, "2.0", core(("# line 10\n", "# line ten\n")))
    assert rebase("--onto", "2.0", "--source", "pypi", "--unproved") == 0
    from_wheels = moved(toy)
    before = {name for name in project(toy) if name.startswith("patches/v2.0")}
    for name in before:
        (toy.home.root / name).unlink()
    assert rebase("--onto", "2.0", "--source", str(toy.upstream()), "--unproved", "--from", "v1") == 0
    assert moved(toy) == from_wheels


def test_the_new_line_is_whole_and_lints(toy: Toy) -> None:
    release(toy, "2.0", core(("# line 10\n", "# line ten\n")))
    assert rebase("--onto", "2.0", "--source", str(toy.upstream()), "--unproved", "--default") == 0
    lines = load_lines(toy.home.pins)
    pin = lines.line(None).pin("toy")
    assert (lines.default, pin.version, pin.tag) == ("v2.0", "2.0", "v2.0")
    assert pin.executable == toy.pin().executable
    assert lint_line(toy.home, lines.line("v2.0")) == ()
    assert load_series(toy.home, pin).slugs == ("right-answer", "bring-hook")
    # The new line is one that apply takes, from the wheel as from the history.
    assert pin.commit and pin.wheels[0].root


def test_pins_of_other_lines_keep_every_byte(toy: Toy) -> None:
    release(toy, "2.0", {"python/toy/other.py": "X = 1\n"})
    before = toy.home.pins.read_text()
    assert rebase("--onto", "2.0", "--source", "pypi", "--unproved") == 0
    assert toy.home.pins.read_text().startswith(before.rstrip("\n"))


def test_an_overlay_file_is_carried_whole(toy: Toy) -> None:
    release(toy, "2.0", core(("# line 10\n", "# line ten\n")))
    assert rebase("--onto", "2.0", "--source", "pypi", "--unproved") == 0
    patch = load_series(toy.home, load_lines(toy.home.pins).line("v2.0").pin("toy")).patches[1]
    assert [edit.path for edit in patch.edits if edit.whole is not None] == [HOOK]


def test_a_hunk_in_another_function_is_moved_not_clean(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    """The hunk still fits, and what it changes may mean something else by now."""
    release(toy, "2.0", core(("# line 10\n", "def other():\n")))
    assert rebase("--onto", "2.0", "--source", "pypi", "--json", "--unproved") == 0
    said = json.loads(capsys.readouterr().out)
    assert [row["state"] for row in said["patches"]] == ["clean", "moved"]
    assert said["patches"][1]["reason"] == f"in {CORE} it stands in 'def other():' now"


def test_a_fix_that_upstream_took_with_edits_beside_it_is_absorbed(
    toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    release(toy, "2.0", core(("return 41\n\n\n# line 1\n", "return 42\n\n\n# line one\n")))
    assert rebase("--onto", "2.0", "--source", "pypi", "--json") == 3
    said = json.loads(capsys.readouterr().out)
    assert [(row["slug"], row["state"]) for row in said["patches"][:1]] == [("right-answer", "absorbed")]
    assert said["waits_for"] == "right-answer"
    assert rebase("--skip", "absorbed: toy#201, v2.0", "--unproved") == 0
    pin = load_lines(toy.home.pins).line("v2.0").pin("toy")
    assert [(one.slug, one.state, one.why) for one in pin.absent] == [("right-answer", "absorbed", "toy#201, v2.0")]
    assert load_series(toy.home, pin).slugs == ("bring-hook",)


def test_a_fix_taken_in_part_leaves_a_smaller_patch_and_says_so(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    release(toy, "2.0", {"python/toy/dos.py": "A = 1\r\nB = 22\r\nC = 3\r\n"})
    assert rebase("--onto", "2.0", "--source", "pypi", "--unproved") == 0
    assert "upstream has its change of python/toy/dos.py" in capsys.readouterr().out
    patch = load_series(toy.home, load_lines(toy.home.pins).line("v2.0").pin("toy")).patches[1]
    assert "python/toy/dos.py" not in [edit.path for edit in patch.edits]


def test_a_file_that_upstream_renamed_is_followed(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    text = core(("# line 50\n", "# line fifty\n"))[CORE]
    release(toy, "2.0", {CORE: None, "python/toy/deep/core.py": text})
    assert rebase("--onto", "2.0", "--source", "pypi", "--unproved") == 0
    assert f"upstream calls {CORE} python/toy/deep/core.py now" in " ".join(capsys.readouterr().out.split())
    patch = load_series(toy.home, load_lines(toy.home.pins).line("v2.0").pin("toy")).patches[0]
    assert [edit.path for edit in patch.edits] == ["python/toy/deep/core.py"]


def test_a_dry_run_writes_nothing_and_says_what_would_stop(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    release(toy, "2.0", core(("return 41", "return 40")))
    before = project(toy)
    assert rebase("--onto", "2.0", "--source", "pypi", "--dry-run") == 1
    assert "conflict" in capsys.readouterr().out
    assert project(toy) == before
    assert not (toy.home.root / "build").exists()


def test_json_is_one_object(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    release(toy, "2.0", core(("# line 10\n", "# line ten\n")))
    assert rebase("--onto", "2.0", "--source", "pypi", "--unproved", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["schema"], said["verb"], said["line"], said["from"], said["ok"]) == (1, "rebase", "v2.0", "v1", True)
    assert [row["state"] for row in said["patches"]] == ["clean", "clean"]
    assert said["changed"] is True


def test_the_same_move_again_changes_nothing(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    release(toy, "2.0", core(("# line 10\n", "# line ten\n")))
    assert rebase("--onto", "2.0", "--source", "pypi", "--unproved") == 0
    before = project(toy)
    capsys.readouterr()
    assert rebase("--onto", "v2.0", "--from", "v1", "--source", "pypi") == 0
    assert "nothing changed" in capsys.readouterr().out
    assert project(toy) == before


def test_a_release_is_fetched_through_pip(toy: Toy) -> None:
    """As the user has set it up: index, proxies and credentials are pip's."""
    release(toy, "2.0", core(("# line 10\n", "# line ten\n")))
    shutil.rmtree(cache_dir("releases"))
    shutil.rmtree(cache_dir("wheels"))
    assert rebase("--onto", "2.0", "--source", "pypi", "--unproved") == 0


def test_a_release_that_the_index_lacks_is_said_to_be_missing(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    assert rebase("--onto", "9.0", "--source", "pypi") == 4
    assert "toy 9.0 could not be downloaded" in capsys.readouterr().err
