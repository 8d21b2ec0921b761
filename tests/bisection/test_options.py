"""What bisect's command line means, and what it refuses before anything is measured."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from sm120_overlay.bisection.job import Scale
from sm120_overlay.errors import UsageError
from sm120_overlay.queue.home import Home
from sm120_overlay.verbs._bisect_options import (
    check_effect,
    check_files,
    check_run,
    effect,
    fixed,
    parser,
    seconds,
    session_of,
    session_of_run,
)

RUN = ("run", "toy", "v1..v2", "--cmd", "true", "--metric", "exit")


def test_a_time_is_told_with_its_unit() -> None:
    assert [seconds(text) for text in ("90", "90s", "20m", "1.5h", "2d")] == [90, 90, 1200, 5400, 172800]


def test_a_difference_is_a_share_on_the_log_scale_and_a_number_on_others() -> None:
    assert effect("5%").on(Scale.LOG) == pytest.approx(math.log(1.05))
    assert effect("0.2").on(Scale.LINEAR) == 0.2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--limit", "soon"), "expected a time such as 90s, 20m or 6h, found 'soon'"),
        (("--limit", "0"), "expected a time"),
        (("--confidence", "1"), "expected a probability over 0.5 and under 1"),
        (("--confidence", "0.2"), "expected a probability over 0.5 and under 1"),
        (("--min-effect", "-5%"), "--min-effect"),
        (("--min-effect", "much"), "expected a difference such as 5% or 0.05, found 'much'"),
        (("--ends", "0"), "expected a number of at least 1"),
        (("--scale", "loud"), "invalid choice"),
        (("--on-conflict", "guess"), "invalid choice"),
    ],
)
def test_a_value_that_means_nothing_is_refused(options: tuple[str, ...], expected: str) -> None:
    with pytest.raises(UsageError) as refused:
        parser().parse_args([*RUN, *options])
    assert expected in refused.value.what
    assert "--help" in refused.value.todo


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--releases", "--history", "x"), "--history was given together with --releases."),
        (("--no-series", "--without", "hook"), "--without was given together with --no-series."),
        (("--model", "A", "--no-cull"), "--model was given together with --no-cull."),
        (("--loads", "toy.a", "--no-cull"), "--loads was given together with --no-cull."),
        (("--dry-run", "--png", "x.png"), "--dry-run was given together with --png or --html."),
        (("--dry-run", "--html", "x.html"), "--dry-run was given together with --png or --html."),
        (("--run-minutes", "5"), "--run-minutes is about --dry-run."),
        (("--server", "serve"), "--server and --health go together."),
        (("--health", "http://x"), "--server and --health go together."),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: tuple[str, ...], expected: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_run(parser().parse_args([*RUN, *options]))
    assert expected in refused.value.what


@pytest.mark.parametrize(("text", "scale"), [("3", Scale.LOG), ("5%", Scale.LINEAR), ("5%", Scale.PASS_FAIL)])
def test_a_difference_that_the_scale_does_not_have_is_refused(text: str, scale: Scale) -> None:
    with pytest.raises(UsageError) as refused:
        check_effect(effect(text), scale)
    assert f"the scale is {scale.value}." in refused.value.what


def test_a_run_without_a_command_is_refused_and_a_dry_one_is_not() -> None:
    with pytest.raises(UsageError) as refused:
        check_run(parser().parse_args(["run", "toy", "v1..v2", "--cmd", "true"]))
    assert refused.value.what == "run needs --cmd and --metric."
    check_run(parser().parse_args(["run", "toy", "v1..v2", "--dry-run", "--run-minutes", "5"]))


def test_a_picture_that_would_replace_a_folder_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        check_files(parser().parse_args(["report", "--png", str(tmp_path)]))
    assert "expected a file to write, found a folder" in refused.value.what


def test_what_makes_a_session_what_it_is_says_nothing_of_how_long_and_where() -> None:
    one = fixed(parser().parse_args([*RUN, "--budget", "1h", "--on", "local", "--json"]))
    assert one == fixed(parser().parse_args(RUN))
    assert one != fixed(parser().parse_args([*RUN, "--paired"]))


def test_a_session_is_named_after_its_range(tmp_path: Path) -> None:
    folder = session_of_run(Home(tmp_path), parser().parse_args(["run", "toy", "v1..feature/x"]))
    assert folder == tmp_path / "build" / "bisect" / "toy-v1-feature_x"


def test_the_only_session_is_meant_and_of_two_one_must_be_named(tmp_path: Path) -> None:
    home, asked = Home(tmp_path), parser().parse_args(["status"])
    with pytest.raises(UsageError) as refused:
        session_of(home, asked)
    assert "found none" in refused.value.what
    for name in ("one", "two"):
        folder = tmp_path / "build" / "bisect" / name
        folder.mkdir(parents=True)
        (folder / "journal.jsonl").touch()
        if name == "one":
            assert session_of(home, asked) == folder
    with pytest.raises(UsageError) as refused:
        session_of(home, asked)
    assert "found one, two" in refused.value.what
    assert session_of(home, parser().parse_args(["status", "--session", "elsewhere"])) == Path("elsewhere")


@pytest.mark.parametrize("part", ["run", "status", "log", "replay", "skip", "void", "report"])
def test_every_part_teaches_by_example(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args([part, "--help"])
    assert ended.value.code == 0
    assert "bisect.py run sglang" in capsys.readouterr().out
