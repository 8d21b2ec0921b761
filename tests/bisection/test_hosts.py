"""Where runs are made: real processes, a real Dask cluster, submitit's own; and hosts that go away."""

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
from sm120_overlay.bisection.hosts.clusters import Dask, open_dask
from sm120_overlay.bisection.job import Cell, How, Job, Metric, Outcome, Ran
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
    for process in list(here.running):  # type: ignore[attr-defined]
        process.kill()
    assert (told(first).outcome, told(first).why) == (Outcome.LOST, "its process ended with SIGKILL")
    assert told(here.submit(job(2, tmp_path))).value == 42.0
    until(lambda: not alive(tmp_path / "pid"))


def test_what_runs_ends_when_the_host_is_let_go(here: Hosts, tmp_path: Path) -> None:
    first = here.submit(job(1, tmp_path, f"echo $$ > {tmp_path}/pid; sleep 600"))
    second = here.submit(job(2, tmp_path))
    until((tmp_path / "pid").is_file)
    here.close()
    assert told(first).outcome is Outcome.LOST
    assert second.cancelled()
    assert here.width == 0
    until(lambda: not alive(tmp_path / "pid"))


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


@pytest.mark.parametrize("text", ["", "remote", "slurm:", "slurm:gpu,nodes=two", "slurm:gpu,time"])
def test_hosts_that_are_none_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--on"):
        open_hosts(text, tmp_path)


# Dask


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes], list[subprocess.Popen[bytes]]]]:
    """A scheduler and two nodes, each a process of its own."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "DASK_DISTRIBUTED__ADMIN__TICK__LIMIT": "1h"}
    file = tmp_path / "scheduler.json"
    quiet = {"cwd": tmp_path, "env": env, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    cli = [sys.executable, "-m", "distributed.cli"]
    scheduler = subprocess.Popen(
        [
            f"{cli[0]}",
            "-m",
            "distributed.cli.dask_scheduler",
            "--port",
            "0",
            "--no-dashboard",
            "--scheduler-file",
            file,
        ],
        **quiet,  # type: ignore[call-overload]
    )
    until(file.is_file)
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", file, "--no-nanny", "--nthreads",
             "1", "--resources", "node=1", "--no-dashboard", "--local-directory", tmp_path / f"node{number}"],
            **quiet,  # type: ignore[call-overload]
        )
        for number in (1, 2)
    ]  # fmt: skip
    import json

    yield json.loads(file.read_text())["address"], scheduler, nodes
    for process in (*nodes, scheduler):
        process.kill()
        process.wait()


def nodes_there(address: str, count: int) -> Dask:
    end = time.monotonic() + 60
    while True:
        try:
            hosts = open_dask(address)
        except Missing:
            assert time.monotonic() < end
            time.sleep(0.2)
            continue
        if hosts.width == count:
            return hosts
        hosts.close()
        assert time.monotonic() < end


def test_a_cluster_goes_on_without_a_node_that_is_killed_and_ends_with_its_scheduler(
    dask: tuple[str, subprocess.Popen[bytes], list[subprocess.Popen[bytes]]], tmp_path: Path
) -> None:
    address, scheduler, nodes = dask
    hosts = nodes_there(address, 2)
    try:
        both = [hosts.submit(job(number, tmp_path, "sleep 1; hostname; echo 42")) for number in (1, 2)]
        assert [told(ran).value for ran in both] == [42.0, 42.0]
        slow = [
            hosts.submit(job(number, tmp_path, f"echo $$ > {tmp_path}/{number}; sleep 4; echo 7")) for number in (3, 4)
        ]
        until(lambda: (tmp_path / "3").is_file() and (tmp_path / "4").is_file())
        nodes[0].kill()
        ended = [told(ran) for ran in slow]
        assert {ran.value for ran in ended if ran.outcome is Outcome.MEASURED} == {7.0}
        assert {ran.outcome for ran in ended} <= {Outcome.MEASURED, Outcome.LOST}  # Dask may run it on another node
        until(lambda: hosts.width == 1)
        last = hosts.submit(job(5, tmp_path, "sleep 600"))
        scheduler.kill()
        until(lambda: hosts.width == 0 or last.done())
    finally:
        hosts.close()


def test_a_scheduler_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sm120_overlay.bisection.hosts.clusters.PATIENCE", "1s")
    with pytest.raises(Missing, match="no scheduler answers"):
        open_hosts("tcp://127.0.0.1:1", tmp_path)


class Client:
    """A scheduler's client with other nodes than a bisection can use."""

    def __init__(self, resources: dict[str, float], version: str = "0") -> None:
        self.resources, self.version, self.closed = resources, version, False

    def scheduler_info(self, **_: int) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
        return {"workers": {"tcp://node:1": {"resources": self.resources}}}

    def run(self, _: Callable[[], str], workers: list[str]) -> dict[str, str]:
        if not self.version:
            raise ModuleNotFoundError("sm120_overlay")
        return dict.fromkeys(workers, self.version)

    def close(self, **_: float) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("client", "said"),
    [
        (Client({}), "no worker there declares the resource node"),
        (Client({"node": 1}, "0"), "tcp://node:1 has sm120-overlay 0, expected"),
        (Client({"node": 1}, ""), "tcp://node:1 has sm120-overlay ModuleNotFoundError"),
    ],
)
def test_nodes_that_cannot_measure_are_refused(client: Client, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributed.Client", lambda *arguments, **more: client)
    with pytest.raises(Missing, match=said):
        open_dask("tcp://scheduler:1")
    assert client.closed


@pytest.mark.parametrize("text", ["tcp://127.0.0.1:1", "slurm:local"])
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
    assert told(bad).outcome is Outcome.LOST
    hosts.close()
    assert hosts.width == 0


def test_a_machine_without_slurm_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Missing, match="slurm:gpu"):
        open_hosts("slurm:gpu", tmp_path)
