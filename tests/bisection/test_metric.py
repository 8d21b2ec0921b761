"""The one number of a run: how it is named, where it is found, and when there is none."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from sm120_overlay.bisection.job import How, Metric, Scale
from sm120_overlay.bisection.metric import BENCH_NAMES, MetricError, bench_metric, parse_metric, read_metric, score
from sm120_overlay.errors import UsageError

TABLE = """
============ Serving Benchmark Result ============
Successful requests:                     64
Output token throughput (tok/s):         718.30
Peak output token throughput (tok/s):    900.00
Mean ITL (ms):                           4.05
==================================================
"""


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        ("exit", Metric(How.EXIT, scale=Scale.PASS_FAIL)),
        ("json:results.0.tps", Metric(How.JSON, "results.0.tps")),
        ("jsonl:tps@{out}/runs.jsonl", Metric(How.JSONL, "tps", "{out}/runs.jsonl")),
        (r"regex:a\@b ([0-9.]+)@log.txt", Metric(How.REGEX, "a@b ([0-9.]+)", "log.txt")),
        ("bench:output_throughput", Metric(How.JSONL, "output_throughput", "*.jsonl")),
        ("median_ttft_ms", Metric(How.JSONL, "median_ttft_ms", "*.jsonl")),
    ],
)
def test_a_metric_is_named_on_the_command_line(text: str, metric: Metric) -> None:
    assert parse_metric(text) == metric


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("yaml:a", "no known form"),
        ("speed", "no result of sglang.bench_serving"),
        ("bench:speed", "no result of sglang.bench_serving"),
        ("regex:([0-9", "no regular expression"),
        ("regex:[0-9]+", "has no group"),
        ("json:", "cannot be read"),
        ("json:a..b", "cannot be read"),
    ],
)
def test_a_metric_that_cannot_be_read_is_refused_before_any_run(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_metric(text)


@pytest.mark.parametrize(
    ("metric", "printed", "value"),
    [
        ("json:results.0.tps", '{"results": [{"tps": 353.0}]}', 353.0),
        ("json:a.b[1].c", '{"a": {"b": [0, {"c": 7}]}}', 7.0),
        ("jsonl:tps", 'starting\n{"tps": 1}\n{"tps": 2}\n\n', 2.0),
        ("regex:^tps ([0-9.e+]+)$", "tps 1\ntps 7.5e+2\n", 750.0),
        ("bench:output_throughput", TABLE, 718.3),
        ("bench:mean_itl_ms", TABLE, 4.05),
    ],
)
def test_the_number_is_found_in_what_the_command_printed(
    metric: str, printed: str, value: float, tmp_path: Path
) -> None:
    assert read_metric(parse_metric(metric), printed, tmp_path) == value


def test_the_line_that_bench_serving_wrote_goes_before_its_table(tmp_path: Path) -> None:
    (tmp_path / "sglang_1201_64.jsonl").write_text(json.dumps({"output_throughput": 718.2961}) + "\n")
    assert read_metric(bench_metric("output_throughput"), TABLE, tmp_path) == 718.2961


def test_a_file_is_named_from_the_folder_of_the_run_or_in_full(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"tps": 3}')
    for file in ("a.json", "*.json", str(tmp_path / "a.json")):
        assert read_metric(Metric(How.JSON, "tps", file), "", tmp_path) == 3


@pytest.mark.parametrize(
    ("metric", "printed", "says"),
    [
        ("json:tps", "", "standard output is empty"),
        ("json:tps", "tps: 3", "standard output is no JSON"),
        ("json:tps", '{"tps": 1}\n{"tps": 2}', "more than one JSON document"),
        ("jsonl:tps", '{"tps": 1}\ndone', "the last line of standard output is no JSON"),
        ("json:a.tps", '{"a": {"ttft": 1}}', "has no tps in a; there are ttft"),
        ("json:a.3", '{"a": [1]}', "has no 3 in a"),
        ("json:tps", '{"tps": null}', "'None', which is no number"),
        ("json:tps", '{"tps": "718"}', "'718', which is no number"),
        ("json:tps", '{"tps": true}', "'True', which is no number"),
        ("json:tps", '{"tps": NaN}', "tps is nan, which cannot be compared"),
        ("json:tps", '{"tps": -Infinity}', "tps is -inf"),
        ("json:tps", '{"tps": 1' + "0" * 400 + "}", "tps is inf"),
        ("json:tps", '{"tps": 0}', "tps is 0, and only numbers over 0"),
        ("json:tps", '{"tps": -1}', "tps is -1, and only numbers over 0"),
        ("regex:tps ([0-9.]+)", "nothing", "matches nothing in standard output"),
        ("regex:tps (\\S+)", "tps 1,024", "found '1,024' in standard output, which is no number"),
        ("regex:tps(x)?", "tps", "found None"),
        ("regex:tps (\\S+)", "tps nan", "is nan"),
        ("bench:accept_length", TABLE, "line 'Accept length' matches nothing"),
        ("json:tps", "[" * 100_000, "standard output is no JSON"),
        ("json:tps@a**b", "", "a**b is no pattern of files"),
        ("json:tps@a.json", "", "left no file a.json"),
    ],
)
def test_a_run_without_a_usable_number_says_why(metric: str, printed: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(MetricError) as caught:
        read_metric(parse_metric(metric), printed, tmp_path)
    assert says in str(caught.value)


def test_two_files_that_match_are_not_chosen_between(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text('{"output_throughput": 1}')
    with pytest.raises(MetricError, match="2 files match"):
        read_metric(bench_metric("output_throughput"), TABLE, tmp_path)


def test_pass_and_fail_are_1_and_0_or_true_and_false(tmp_path: Path) -> None:
    metric = replace(parse_metric("json:ok"), scale=Scale.PASS_FAIL)
    assert [read_metric(metric, f'{{"ok": {ok}}}', tmp_path) for ok in ("true", "false", "1", "0")] == [1, 0, 1, 0]
    with pytest.raises(MetricError, match=r"ok is 0\.5, and 1 passes"):
        read_metric(metric, '{"ok": 0.5}', tmp_path)


def test_only_ratios_are_compared_by_logarithm() -> None:
    assert score(parse_metric("json:a"), math.e) == 1.0
    assert score(replace(parse_metric("json:a"), scale=Scale.LINEAR), -3.0) == -3.0


def test_the_names_of_bench_serving_are_those_of_its_source() -> None:
    assert {"output_throughput", "p99_e2e_latency_ms", "std_itl_ms", "max_output_tokens_per_s"} <= set(BENCH_NAMES)


def test_a_line_of_json_ends_where_lines_end_and_not_at_a_separator_inside_its_text(tmp_path: Path) -> None:
    said = "50 %\r" + json.dumps({"speed": 3, "text": "a\u2028b\x85c"}, ensure_ascii=False) + "\n"
    assert read_metric(parse_metric("jsonl:speed"), said, tmp_path) == 3
