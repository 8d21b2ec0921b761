"""Where runs are made: real processes, submitit's own queue; and hosts that go away."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from sm120_overlay.bisection.hosts import Hosts, open_hosts
from sm120_overlay.bisection.hosts.local import Local
from sm120_overlay.bisection.hosts.mark import Heard, begin_mark, measure_once
from sm120_overlay.bisection.hosts.version import version
from sm120_overlay.bisection.job import Cell, How, Job, Metric, Outcome, Ran
from sm120_overlay.bisection.keeper import below
from sm120_overlay.bisection.placeholders import host_name
from sm120_overlay.errors import Missing, UsageError

PACKAGE = Path(__file__).resolve().parents[2] / "tools"


def tree() -> bytes:
    """A tree with one file."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        member = tarfile.TarInfo("number.txt")
        member.size = 2
        archive.addfile(member, io.BytesIO(b"42"))
    return made.getvalue()


def job(number: int, folder: Path, command: str = "cat {tree}/number.txt") -> Job:
    cell = Cell(command, Metric(How.REGEX, r"(\d+)"), limit_s=600.0)
    return Job(number, 0, "c" * 40, "t" * 40, "k", "b", cell, str(folder / "work"), archive=tree())


def until(true: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.05)


def told(future: Future[Ran]) -> Ran:
    """As a driver takes it: what a host that went away leaves is lost."""
    try:
        return future.result(timeout=300)
    except Exception as error:
        return Ran(0, Outcome.LOST, why=str(error))


def worker_of_this_process() -> int:
    """The process of the run that is under way on this machine."""
    (found,) = [one for one in below(os.getpid()) if b"worker.py" in Path("/proc", str(one), "cmdline").read_bytes()]
    return found


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Hosts]:
    hosts = open_hosts("local", tmp_path)
    yield hosts
    hosts.close()


def test_this_machine_makes_one_run_at_a_time(here: Hosts, tmp_path: Path) -> None:
    busy = "mkdir {tree}/../busy && sleep 0.3 && rmdir {tree}/../busy && echo 42"
    rans = [here.submit(job(number, tmp_path, busy)) for number in (1, 2)]
    assert here.width == 1
    assert [told(ran).value for ran in rans] == [42.0, 42.0]


def test_a_worker_that_is_killed_costs_its_run_alone(here: Hosts, tmp_path: Path) -> None:
    first = here.submit(job(1, tmp_path, f"echo $$ > {tmp_path}/pid; sleep 600"))
    until((tmp_path / "pid").is_file)
    os.kill(worker_of_this_process(), signal.SIGKILL)
    assert (told(first).outcome, told(first).why) == (Outcome.LOST, "its process ended with SIGKILL")
    assert told(here.submit(job(2, tmp_path))).value == 42.0
    until(lambda: not alive(tmp_path / "pid"))


STUBBORN = "trap '' TERM; echo $$ > {0}/pid; while true; do sleep 0.1; done"
AFTER = "kill -0 $(cat {0}/pid) 2>&- && echo 0 || echo 42"  # 42: the other is gone


def test_no_run_begins_on_a_host_before_all_of_the_one_before_is_gone(here: Hosts, tmp_path: Path) -> None:
    first = here.submit(job(1, tmp_path, STUBBORN.format(tmp_path)))
    until((tmp_path / "pid").is_file)
    second = here.submit(job(2, tmp_path, AFTER.format(tmp_path)))
    os.kill(worker_of_this_process(), signal.SIGKILL)
    assert (told(first).outcome, told(second).value) == (Outcome.LOST, 42.0)


def test_a_run_waits_for_one_that_a_killed_driver_left(tmp_path: Path) -> None:
    for number, command in ((1, STUBBORN), (2, AFTER)):
        host = Local()
        ran = host.submit(job(number, tmp_path, command.format(tmp_path)))
        if number == 1:
            until((tmp_path / "pid").is_file)
            os.kill(
                worker_of_this_process(), signal.SIGKILL
            )  # its own driver waits for it, another knows nothing of it
        else:
            assert told(ran).value == 42.0


def test_what_runs_ends_when_the_host_is_let_go(here: Hosts, tmp_path: Path) -> None:
    first = here.submit(job(1, tmp_path, f"echo $$ > {tmp_path}/pid; sleep 600"))
    second = here.submit(job(2, tmp_path))
    until((tmp_path / "pid").is_file)
    here.close()
    assert not alive(tmp_path / "pid")
    assert told(first).outcome is Outcome.LOST
    assert second.cancelled()
    assert here.width == 0


def alive(file: Path) -> bool:
    text = file.read_text().strip()
    return not text or Path("/proc", text).exists()


def test_a_driver_that_is_killed_leaves_nothing_running(tmp_path: Path) -> None:
    script = f"""
import sys
sys.path[:0] = [{str(PACKAGE.parent)!r}]
from pathlib import Path
from tests.bisection.test_hosts import job
from sm120_overlay.bisection.hosts import open_hosts
folder = Path({str(tmp_path)!r})
open_hosts("local", folder).submit(job(1, folder, "echo $$ > " + str(folder / "pid") + "; sleep 600")).result()
"""
    loaded = f"import sys; sys.path[:] = {sys.path!r}\n"
    driver = subprocess.Popen([sys.executable, "-c", loaded + script])
    until((tmp_path / "pid").is_file)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    until(lambda: not alive(tmp_path / "pid"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "remote",
        "slurm:",
        "slurm:gpu,nodes=two",
        "slurm:gpu,time",
        "ssh:",
        "ssh:a,a",
        "ssh:a,port=1",
        "ssh:a,python=",
    ],
)
def test_hosts_that_are_none_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--on"):
        open_hosts(text, tmp_path)


@pytest.mark.parametrize("text", ["tcp://127.0.0.1:1", "ssh:one,two", "slurm:local"])
def test_a_library_that_is_not_installed_is_named(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(Missing, match="is not installed"):
        open_hosts(text, tmp_path)


# Slurm


def test_jobs_of_a_queue_measure_and_one_that_is_killed_is_lost(tmp_path: Path) -> None:
    hosts = open_hosts("slurm:local,nodes=2", tmp_path)
    assert hosts.width == 2
    good = hosts.submit(job(1, tmp_path))
    bad = hosts.submit(job(2, tmp_path, f"echo $PPID > {tmp_path}/pid; sleep 600"))
    until((tmp_path / "pid").is_file, 60)
    (sent,) = [sent for sent, future in hosts.jobs.items() if future is bad]  # type: ignore[attr-defined]
    os.kill(int(sent.job_id), signal.SIGKILL)
    assert told(good).value == 42.0
    assert (told(bad).outcome, told(bad).host) == (Outcome.LOST, host_name())
    until(lambda: not alive(tmp_path / "pid"))
    hosts.close()
    assert hosts.width == 0


def test_a_job_of_a_queue_ends_when_its_driver_lets_it_go(tmp_path: Path) -> None:
    hosts = open_hosts("slurm:local", tmp_path)
    run = hosts.submit(job(1, tmp_path, f"echo $$ > {tmp_path}/pid; sleep 600"))
    until((tmp_path / "pid").is_file)
    hosts.close()
    assert run.cancelled()
    until(lambda: not alive(tmp_path / "pid"))


def test_a_run_that_a_queue_begins_again_is_not_made_twice(tmp_path: Path) -> None:
    mark = begin_mark(tmp_path)
    arguments = (job(1, tmp_path, f"echo >> {tmp_path}/began; echo 42"), mark.folder, version(), 60.0)
    first, second = measure_once(*arguments), measure_once(*arguments)
    assert isinstance(first, Ran) and isinstance(second, Ran)
    assert (first.value, second.outcome, second.why) == (42.0, Outcome.LOST, "its queue began it a second time")
    assert (tmp_path / "began").read_text() == "\n"
    assert mark.host_of(arguments[0]) == (host_name(), "")
    later = begin_mark(tmp_path)
    third = measure_once(*arguments)
    assert isinstance(third, Ran) and third.why == "nobody waits for it any more"
    later.end()
    mark.end()


def test_a_node_of_a_queue_hears_a_driver_until_it_is_silent_or_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("sm120_overlay.bisection.hosts.mark.time.monotonic", lambda: now[0])
    beat = tmp_path / "beat"
    beat.write_text("1")
    heard = Heard(tmp_path, 7, 60.0)
    for seconds, said, there in ((100, "1", True), (150, "1", True), (159, "2", True), (210, "2", True),
                                 (220, "2", False), (221, "3", True)):  # fmt: skip
        now[0] = float(seconds)
        beat.write_text(said)
        assert heard() is there, seconds
    beat.unlink()
    now[0] = 223.0
    assert not heard()


def test_a_node_of_a_queue_with_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sm120_overlay.bisection.hosts.slurm.version", lambda: "9")
    hosts = open_hosts("slurm:local", tmp_path)
    try:
        with pytest.raises(Missing, match=rf"--on slurm:local: {host_name()} has sm120-overlay 0.*, expected"):
            hosts.submit(job(1, tmp_path)).result(120)
    finally:
        hosts.close()


def test_a_driver_that_is_killed_leaves_no_job_of_a_queue_running(tmp_path: Path) -> None:
    from .test_clusters import driver

    process = driver("slurm:local", tmp_path)
    until((tmp_path / "began1").is_file)
    process.kill()
    process.wait()
    until(lambda: not alive(tmp_path / "began1"))


def test_a_machine_without_slurm_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Missing, match="slurm:gpu"):
        open_hosts("slurm:gpu", tmp_path)
