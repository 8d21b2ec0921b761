r"""The one number of a run: how a user names it, where it is read, and its value on the scale of a decision.

How it is named on the command line:

    exit                  passes (1) with exit code 0, does not (0) with 1 to 127 except 125
    json:PATH[@FILE]      a number in a file that is one JSON document
    jsonl:PATH[@FILE]     a number in the last line of a file of JSON lines
    regex:PATTERN[@FILE]  the first group of the pattern's last match; lines: `^` and `$` match at each
    bench:NAME            a result of `sglang.bench_serving`, by its name in that tool's JSON: output_throughput
    NAME                  the same, if it is one of those names

PATH is keys and places, `results.0.output_throughput` or `results[0].output_throughput`. FILE is relative to the run's
own folder (`{out}`, where the command starts), may use placeholders and `*` (one file must match); without it, standard
output is read. An `@` of PATH or PATTERN itself is written `\@`. `bench:` reads the one `*.jsonl` of the run's folder,
which bench_serving writes unless it is told another place, and without one the table that it prints.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .job import How, Metric, Scale

BENCH_FILE = "*.jsonl"
_AVERAGED = {
    f"{which} {label} (ms)": f"{which.lower()}_{name}_ms"
    for label, name in (("E2E Latency", "e2e_latency"), ("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"))
    for which in ("Mean", "Median", "P90", "P95", "P99", "Std")
}
# What sglang.bench_serving prints, and the same number's name in the line that it writes (SGLang 0.5.9 to 0.5.23);
# a standard deviation is only written.
BENCH_LABELS = {
    "Successful requests": "completed",
    "Benchmark duration (s)": "duration",
    "Total input tokens": "total_input_tokens",
    "Total input text tokens": "total_input_text_tokens",
    "Total input vision tokens": "total_input_vision_tokens",
    "Total generated tokens": "total_output_tokens",
    "Total generated tokens (retokenized)": "total_output_tokens_retokenized",
    "Request throughput (req/s)": "request_throughput",
    "Input token throughput (tok/s)": "input_throughput",
    "Output token throughput (tok/s)": "output_throughput",
    "Peak output token throughput (tok/s)": "max_output_tokens_per_s",
    "Peak concurrent requests": "max_concurrent_requests",
    "Total token throughput (tok/s)": "total_throughput",
    "Concurrency": "concurrency",
    "Accept length": "accept_length",
    **_AVERAGED,
}
BENCH_NAMES = {name: label for label, name in BENCH_LABELS.items()}
_FORMS = "exit, json:PATH[@FILE], jsonl:PATH[@FILE], regex:PATTERN[@FILE], bench:NAME"


class MetricError(Exception):
    """A run that gave no number, or none that can be used: one sentence."""


def bench_metric(name: str) -> Metric:
    """A result of `sglang.bench_serving`, by its name in the line of JSON that it writes.

    Raises:
        UsageError: it has no such result.
    """
    if name not in BENCH_NAMES:
        # why: a name that no run will print would cost a run to find out
        raise UsageError(
            f"the metric {name} is no result of sglang.bench_serving, such as output_throughput or median_ttft_ms.",
            f"Write one of the forms {_FORMS}.",
        )
    return Metric(How.JSONL, name, BENCH_FILE)


def parse_metric(text: str) -> Metric:
    """The metric that a user named on the command line; its scale is `LOG`, or `PASS_FAIL` for `exit`.

    Raises:
        UsageError: it is of none of the forms, or its pattern or path cannot be read.
    """
    if text == "exit":
        return Metric(How.EXIT, scale=Scale.PASS_FAIL)
    form, colon, rest = text.partition(":")
    if not colon or form == "bench":
        return bench_metric(rest if colon else text)
    if form not in ("json", "jsonl", "regex"):
        # why: what a number is read with is never guessed
        raise UsageError(f"the metric {text} is of no known form.", f"Write one of {_FORMS}.")
    name, _, file = (rest, "", "") if not (at := _last_at(rest)) else (rest[:at], "@", rest[at + 1 :])
    name = name.replace(r"\@", "@")
    if form == "regex":
        _check_pattern(name)
    elif not _steps(name):
        # why: a path that leads nowhere would cost a run to find out
        raise UsageError(
            f"the path {name!r} of the metric {text} cannot be read.", "Write keys and places: results.0.throughput."
        )
    return Metric(How(form), name, file)


def read_metric(metric: Metric, stdout: str | Path, out: Path) -> float:
    """The number of a run, as the command gave it.

    Args:
        metric: any but one of the exit code; its `file` with no placeholder left.
        stdout: the standard output, or the file that holds it.
        out: the run's own folder.

    Raises:
        MetricError: there is none, or it cannot be used on the metric's scale.
        OSError: its file cannot be read.
    """
    printed = stdout if isinstance(stdout, str) else stdout.read_text(encoding="utf-8", errors="replace")
    if metric.file == BENCH_FILE and metric.name in BENCH_NAMES and not any(out.glob(BENCH_FILE)):
        label = re.escape(BENCH_NAMES[metric.name])
        value = _matched(rf"^{label}:\s+(\S+)\s*$", printed, f"bench_serving's line {BENCH_NAMES[metric.name]!r}")
    else:
        where, text = _source(metric.file, printed, out)
        if metric.how is How.REGEX:
            value = _matched(metric.name, text, f"the pattern {metric.name!r}", where)
        else:
            value = _looked_up(metric, text, where)
    return _usable(value, metric)


def score(metric: Metric, value: float) -> float:
    """A value on the scale of the decision: its natural logarithm where ratios count."""
    return math.log(value) if metric.scale is Scale.LOG else value


def _last_at(text: str) -> int:
    places = [match.start() for match in re.finditer(r"(?<!\\)@", text)]
    return places[-1] if places else 0


def _check_pattern(pattern: str) -> None:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        # why: a pattern that does not compile can match nothing
        raise UsageError(
            f"the pattern {pattern!r} of the metric is no regular expression: {error}.", "Correct it; `\\@` is an @."
        ) from None
    if not groups:
        # why: without a group it is not said which part of the match is the number
        raise UsageError(
            f"the pattern {pattern!r} of the metric has no group.", "Put parentheses round the number: ([0-9.]+)."
        )


def _source(file: str, printed: str, out: Path) -> tuple[str, str]:
    """What a metric is read in: how it is called in a sentence, and its text."""
    if not file:
        return "standard output", printed
    path = Path(file)
    pattern = str(path.relative_to(out)) if path.is_relative_to(out) else file
    try:
        found = [path] if path.is_absolute() and pattern == file else sorted(out.glob(pattern))
    except (ValueError, NotImplementedError):
        raise MetricError(f"{file} is no pattern of files") from None
    if len(found) > 1:
        names = ", ".join(one.name for one in found[:3])
        raise MetricError(f"{len(found)} files match {file}, and only one may: {names}")
    if not found or not found[0].is_file():
        raise MetricError(f"the command left no file {file}")
    return found[0].name, found[0].read_text(encoding="utf-8", errors="replace")


def _matched(pattern: str, text: str, called: str, where: str = "standard output") -> Any:
    matches = list(re.finditer(pattern, text, re.MULTILINE))
    if not matches:
        raise MetricError(f"{called} matches nothing in {where}")
    group = matches[-1][1]
    try:
        return float(group)
    except (TypeError, ValueError):
        raise MetricError(f"{called} found {group!r} in {where}, which is no number") from None


def _looked_up(metric: Metric, text: str, where: str) -> Any:
    if not text.strip():
        raise MetricError(f"{where} is empty")
    lines = metric.how is How.JSONL
    try:
        found: Any = json.loads(re.split(r"[\r\n]", text.strip())[-1] if lines else text)
    except (ValueError, RecursionError) as error:
        if str(error).startswith("Extra data"):
            raise MetricError(f"{where} holds more than one JSON document; `jsonl:` reads the last line") from None
        raise MetricError(f"{'the last line of ' if lines else ''}{where} is no JSON: {error}") from None
    came = ""
    for step in _steps(metric.name):
        try:
            found = found[int(step)] if isinstance(found, list) else found[step]
        except (LookupError, TypeError, ValueError):
            known = f"; there are {', '.join(list(found)[:8])}" if isinstance(found, dict) else ""
            raise MetricError(f"{where} has no {step} {f'in {came}' if came else 'at its top'}{known}") from None
        came = f"{came}.{step}".lstrip(".")
    return found


def _steps(path: str) -> list[str]:
    """Keys and places of a path; none if it is not one."""
    if not re.fullmatch(r"[^.\[\]]+(\.[^.\[\]]+|\[-?\d+\])*", path):
        return []
    return re.findall(r"[^.\[\]]+", path)


def _usable(value: Any, metric: Metric) -> float:
    called = metric.name
    if isinstance(value, bool) and metric.scale in (Scale.PASS_FAIL, Scale.EXACT):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise MetricError(f"{called} is {str(value)[:80]!r}, which is no number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise MetricError(f"{called} is {number}, which cannot be compared")
    if metric.scale is Scale.LOG and number <= 0:
        raise MetricError(f"{called} is {number:g}, and only numbers over 0 can be compared by their ratio")
    if metric.scale is Scale.PASS_FAIL and number not in (0.0, 1.0):
        raise MetricError(f"{called} is {number:g}, and 1 passes, 0 does not")
    return number
