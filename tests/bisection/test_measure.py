"""One run from its job to what is told of it."""

from __future__ import annotations

import errno
import json
import os
import pickle
import resource
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay.bisection import measure as measuring
from sm120_overlay.bisection.job import Cell, How, Job, Metric, Outcome, Scale, Server
from sm120_overlay.bisection.measure import measure
from sm120_overlay.bisection.metric import parse_metric
from sm120_overlay.bisection.placeholders import NAMES, check_placeholders, fill
from sm120_overlay.errors import UsageError

from .test_command import lives, within
from .test_place import packed
from .test_serve import SERVER

TPS = parse_metric("jsonl:tps")
EXIT = Metric(How.EXIT, scale=Scale.PASS_FAIL)


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    archive = packed(**{"python/pack/__init__.py": "tps = 353\n", "setup.sh": "echo built\n"})

    def make(command: str, metric: Metric = TPS, **cell: Any) -> Job:
        return Job(
            7, 1, "c" * 40, "t" * 40, "k", "b", Cell(command, metric, **cell), str(tmp_path / "a b"), "python",
            archive=archive,
        )  # fmt: skip

    return make


def test_the_number_of_a_run_is_told_with_where_and_how_long(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SM120_BISECT_HOST", "gpu-1")
    ran = measure(pickle.loads(pickle.dumps(job("""{python} -c 'import pack; print({"a": 1}, pack.tps)'""",
                                                parse_metric(r"regex:.* (\d+)$")))))  # fmt: skip
    assert (ran.number, ran.outcome, ran.value, ran.exit, ran.host) == (7, Outcome.MEASURED, 353.0, 0, "gpu-1")
    assert ran.why == ""
    assert ran.started > 0
    assert ran.seconds > 0
    assert ran.build_seconds == 0
    assert (Path(ran.log) / "stdout").read_text() == "{'a': 1} 353\n"


def test_a_command_is_told_where_things_are_by_placeholder_and_by_variable(job: Callable[..., Job]) -> None:
    words = " ".join(f"{{{name}}}" for name in NAMES)
    variables = " ".join(f'"$SM120_BISECT_{name.upper()}"' for name in NAMES)
    script = "import json, sys; json.dump({'same': sys.argv[1:10] == sys.argv[10:], 'tps': 1}, open('r.json', 'w'))"
    command = f'{{python}} -c "{script}" {words} {variables} && grep -q true r.json && test "$MINE" = "$PWD"'
    ran = measure(job(command, parse_metric("json:tps@{out}/r.json"), env={"MINE": "{out}"}))
    assert (ran.why, ran.value) == ("", 1.0)


@pytest.mark.parametrize(
    ("command", "metric", "outcome", "value"),
    [
        ("exit 125", TPS, Outcome.SKIPPED, None),
        ("exit 129", EXIT, Outcome.SKIP_RANGE, None),
        ("exit 130", EXIT, Outcome.ABORTED, None),
        ("exit 137", TPS, Outcome.ABORTED, None),
        ("kill -9 $$", TPS, Outcome.ABORTED, None),
        ("exit 1", TPS, Outcome.FAILED, None),
        ("exit 128", EXIT, Outcome.FAILED, None),
        ("exit 0", EXIT, Outcome.MEASURED, 1.0),
        ("exit 1", EXIT, Outcome.MEASURED, 0.0),
        ("exit 127", EXIT, Outcome.MEASURED, 0.0),
        ("true", TPS, Outcome.FAILED, None),
        ("""echo '{"tps": NaN}'""", TPS, Outcome.FAILED, None),
        ("""echo '{"tps": -3}'""", TPS, Outcome.FAILED, None),
    ],
)
def test_how_a_command_ends_decides_what_its_run_is(
    job: Callable[..., Job], command: str, metric: Metric, outcome: Outcome, value: float | None
) -> None:
    ran = measure(job(command, metric))
    assert (ran.outcome, ran.value) == (outcome, value)
    assert bool(ran.why) == (value is None)


def test_a_signal_and_an_exit_code_are_both_told(job: Callable[..., Job]) -> None:
    died, said = measure(job("kill -9 $$")), measure(job("echo killed >&2; exit 137"))
    assert (died.exit, died.signal) == (None, 9)
    assert (said.exit, said.signal) == (137, 0)
    assert said.why == "the command ended with exit code 137: killed"


def test_a_command_that_hangs_fails_at_its_limit(job: Callable[..., Job]) -> None:
    ran = measure(job("echo step 3; sleep 600", EXIT, limit_s=3.0))
    assert (ran.outcome, ran.why) == (Outcome.FAILED, "the command ran past its limit of 3 s: step 3")


def test_a_build_comes_first_once_and_gives_the_interpreter(job: Callable[..., Job]) -> None:
    build = 'test -z "$PYTHONPATH" && sh {tree}/setup.sh && mkdir bin && ln -s {python} bin/python'
    one = job("""echo '{"tps": 1}'; echo {python} | grep -q /envs/b/bin/python""", build=build, env={"PYTHONPATH": ""})
    first, second = measure(one), measure(one)
    assert (first.why, second.why) == ("", "")
    assert first.build_seconds > 0
    assert second.build_seconds == 0


def test_a_build_that_fails_is_told_with_its_log(job: Callable[..., Job]) -> None:
    ran = measure(job("true", EXIT, build="echo no nvcc; exit 2"))
    assert (ran.outcome, ran.exit, ran.why) == (Outcome.UNBUILT, 2, "the build ended with exit code 2: no nvcc")
    assert Path(ran.log).read_text() == "no nvcc\n"


def serves(*words: str) -> str:
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(SERVER)} {{port}} 200 {' '.join(words)}"


def test_a_server_is_up_for_the_command(job: Callable[..., Job]) -> None:
    asks = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).status)"
    command = f'{{python}} -c "{asks}" http://127.0.0.1:{{port}}/'
    ran = measure(job(command, parse_metric(r"regex:(\d+)"), server=Server(serves(), "http://127.0.0.1:{port}/", 20)))
    assert (ran.why, ran.value) == ("", 200.0)


def test_a_server_that_does_not_come_up_fails_the_run(job: Callable[..., Job]) -> None:
    ran = measure(job("true", EXIT, server=Server("echo no GPU; exit 1", "http://127.0.0.1:{port}/", 20)))
    assert ran.outcome is Outcome.FAILED
    assert ran.why == "the server ended before it was ready (exit code 1): no GPU"


def test_a_server_that_dies_meanwhile_fails_the_run_at_once(job: Callable[..., Job]) -> None:
    dies = f"echo loading; {serves()} & while [ ! -e die ]; do sleep 0.05; done; echo out of memory"
    ran = measure(job("touch die; sleep 600", EXIT, server=Server(dies, "http://127.0.0.1:{port}/", 120, 0.2)))
    assert ran.outcome is Outcome.FAILED
    assert "the server ended while the command ran: loading\nout of memory" in ran.why


def test_a_worker_that_is_killed_leaves_neither_server_nor_command(job: Callable[..., Job], tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    (tmp_path / "server.py").write_text(SERVER)
    server = f"{shlex.quote(sys.executable)} {tmp_path}/server.py {{port}} 200 deaf"
    starts = f"setsid sh -c 'echo $$ > {pids}/server; exec {server}' & wait"
    hangs = f"echo $$ > {pids}/command; sleep 600"
    one = job(hangs, EXIT, server=Server(starts, "http://127.0.0.1:{port}/", 120, 0.2))
    (tmp_path / "job").write_bytes(pickle.dumps(one))
    script = (
        "import pickle, sys; from sm120_overlay.bisection.measure import measure\n"
        "measure(pickle.load(open(sys.argv[1], 'rb')))"
    )
    worker = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "job")])
    assert within(120, lambda: lives(pids / "command"))
    assert lives(pids / "server")
    worker.kill()
    worker.wait()
    assert within(120, lambda: not lives(pids / "command") and not lives(pids / "server"))


def test_a_full_disk_loses_the_run_and_judges_no_program(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def full(_: Job) -> Iterator[Any]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "trees/x")
        yield

    monkeypatch.setattr(measuring, "placed", full)
    ran = measure(job("true", EXIT))
    assert (ran.number, ran.outcome) == (7, Outcome.LOST)
    assert ran.why == "this host could not do it: [Errno 28] No space left on device: 'trees/x'"


def test_a_file_that_cannot_be_written_whole_leaves_no_half_tree(job: Callable[..., Job]) -> None:
    one = replace(job("cat {tree}/big | wc -c", parse_metric(r"regex:(\d+)")), archive=packed(big="x" * 2_000_000))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        cut = measure(one)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (cut.outcome, cut.why.partition(":")[0]) == (Outcome.LOST, "this host could not do it")
    assert measure(one).value == 2_000_000


def test_a_tree_that_is_no_tar_loses_the_run(job: Callable[..., Job]) -> None:
    assert measure(replace(job("true", EXIT), archive=b"x")).outcome is Outcome.LOST


def test_runs_of_one_number_do_not_share_a_folder(job: Callable[..., Job]) -> None:
    command = f"test ! -e r.json && echo {shlex.quote(json.dumps({'tps': 1}))} > r.json"
    one = job(command, parse_metric("json:tps@r.json"))
    assert [measure(one).value, measure(one).value] == [1.0, 1.0]


def test_a_placeholder_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match=r"there is no placeholder \{treee\}: known are commit env "):
        check_placeholders("cat {treee}/a")
    check_placeholders("""awk '{print $1}' {tree} ${home} {{word}} '{"a": {"b": 1}}'""")


def test_values_are_quoted_and_other_braces_stay() -> None:
    text = """cat {tree}/x {{tree}} ${tree} '{"a": {"b": 1}}'"""
    assert fill(text, {"tree": "a b"}) == """cat 'a b'/x {tree} ${tree} '{"a": {"b": 1}}'"""
    assert fill(text, {"tree": "a b"}, quote=False).startswith("cat a b/x ")
