"""Hosts of a real Dask scheduler, with real workers: what is killed costs its run once, and nothing is left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay.bisection.decision.nouns import Rules
from sm120_overlay.bisection.hosts import open_hosts
from sm120_overlay.bisection.hosts.clusters import Dask, open_dask, used
from sm120_overlay.bisection.hosts.version import version
from sm120_overlay.bisection.job import Job, Outcome, Ran, Scale
from sm120_overlay.bisection.session import fold
from sm120_overlay.errors import Missing

from .driven import CULPRIT, events_of, run_toy
from .test_hosts import alive, job, told, until

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass
class Cluster:
    """A scheduler and its workers, each a process of its own; a worker's host is what it is told to be."""

    folder: Path
    scheduler: Any = None
    workers: list[Any] = field(default_factory=list)

    def start(self) -> Cluster:
        self.folder.mkdir(exist_ok=True)
        self.scheduler = self._run("dask_scheduler", "", "--port", "0")
        until(self.file.is_file)
        return self

    def worker(self, host: str) -> Any:
        number = len(self.workers)
        local = self.folder / f"node{number}"
        self.workers.append(self._run(
            "dask_worker", host, "--no-nanny", "--nthreads", "1", "--resources", "node=1", "--local-directory", local,
        ))  # fmt: skip
        return self.workers[-1]

    def hosts(self) -> Dask:
        """As a bisection takes them, when all workers are there."""
        return open_dask(self.address, expected=len(self.workers))

    @property
    def file(self) -> Path:
        return self.folder / "scheduler.json"

    @property
    def address(self) -> str:
        return str(json.loads(self.file.read_text())["address"])

    def end(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()

    def _run(self, what: str, host: str, *arguments: Any) -> Any:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "SM120_BISECT_HOST": host}
        command: list[Any] = [
            sys.executable,
            "-m",
            f"distributed.cli.{what}",
            "--scheduler-file",
            self.file,
            "--no-dashboard",
        ]
        log = (self.folder / "dask.log").open("ab")
        return subprocess.Popen([*command, *arguments], cwd=self.folder, env=env, stdout=log, stderr=log)


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path).start()
    yield cluster
    cluster.end()


def begins(folder: Path, number: int) -> str:
    """A command that says its process, once for each time that it is begun, and stays."""
    return f"echo $$ >> {folder}/began{number}; sleep 600"


def began(folder: Path, number: int) -> list[str]:
    file = folder / f"began{number}"
    return file.read_text().split() if file.is_file() else []


def test_two_workers_of_one_host_do_not_measure_side_by_side(dask: Cluster, tmp_path: Path) -> None:
    for host in ("one", "one", "other"):
        dask.worker(host)
    hosts = dask.hosts()
    try:
        assert hosts.width == 2
        alone = "mkdir {host}-busy && sleep 0.5 && rmdir {host}-busy && echo 42"
        runs = [hosts.submit(job(number, tmp_path, f"cd {tmp_path}; {alone}")) for number in (1, 2, 3, 4)]
        rans = [told(run) for run in runs]
        assert [ran.value for ran in rans] == [42.0] * 4
        assert {ran.host for ran in rans} == {"one", "other"}
    finally:
        hosts.close()


def test_another_worker_of_a_host_takes_over_when_the_first_is_gone(dask: Cluster, tmp_path: Path) -> None:
    for _ in range(2):
        dask.worker("one")
    hosts = dask.hosts()
    try:
        first = hosts.there["one"]
        os.kill(hosts.client.run(os.getpid, workers=[first.address])[first.address], signal.SIGKILL)
        until(lambda: hosts.there.get("one") not in (None, first))
        assert told(hosts.submit(job(1, tmp_path))).value == 42.0
    finally:
        hosts.close()


def test_a_worker_that_is_killed_costs_its_run_and_is_not_repeated_elsewhere(dask: Cluster, tmp_path: Path) -> None:
    for host in ("one", "other"):
        dask.worker(host)
    hosts = dask.hosts()
    try:
        runs = [hosts.submit(job(number, tmp_path, begins(tmp_path, number))) for number in (1, 2)]
        until(lambda: bool(began(tmp_path, 1) and began(tmp_path, 2)))
        (number,) = [run.job.number for run in hosts.runs if run.node.host == "one"]
        dask.workers[0].kill()
        ran = told(runs[number - 1])
        assert (ran.outcome, ran.host) == (Outcome.LOST, "one")
        assert ran.why.startswith("one, or the scheduler, went away")
        until(lambda: hosts.width == 1)
        until(lambda: not alive(tmp_path / f"began{number}"))
        assert not runs[2 - number].done()
        third = hosts.submit(job(3, tmp_path))
        dask.worker("new")
        assert (told(third).value, told(third).host) == (42.0, "new")
        assert len(began(tmp_path, 1)) == len(began(tmp_path, 2)) == 1
    finally:
        hosts.close()


def test_closing_ends_what_runs_and_what_waits(dask: Cluster, tmp_path: Path) -> None:
    dask.worker("one")
    hosts = dask.hosts()
    first, second = hosts.submit(job(1, tmp_path, begins(tmp_path, 1))), hosts.submit(job(2, tmp_path))
    until(lambda: bool(began(tmp_path, 1)))
    hosts.close()
    assert not alive(tmp_path / "began1"), "closing waits for the end of it"
    assert (told(first).outcome, told(first).host, told(second).why) == (Outcome.LOST, "one", "it was not begun")
    assert hosts.width == 0
    hosts = dask.hosts()
    assert told(hosts.submit(job(3, tmp_path))).value == 42.0, "the worker is as good as new"
    hosts.close()


DRIVER = """
import sys
sys.path[:] = {path!r}
from pathlib import Path
from tests.bisection.test_hosts import job
from tests.bisection.test_clusters import begins
from sm120_overlay.bisection.decision.nouns import Rules
from sm120_overlay.bisection.hosts import open_hosts, slurm
folder = Path({folder!r})
slurm.SILENCE = 3.0
if __name__ == "__main__":
    open_hosts({on!r}, folder).submit(job(1, folder, begins(folder, 1))).result()
"""


def driver(on: str, folder: Path, env: dict[str, str] | None = None) -> Any:
    """A process that drives one run, which stays."""
    script = DRIVER.format(path=[str(REPOSITORY), *sys.path], folder=str(folder), on=on)
    return subprocess.Popen([sys.executable, "-c", script], env=env)


def test_a_driver_that_is_killed_leaves_nothing_running_on_a_cluster(dask: Cluster, tmp_path: Path) -> None:
    dask.worker("one")
    dask.hosts().close()
    process = driver(dask.address, tmp_path)
    until(lambda: bool(began(tmp_path, 1)))
    process.send_signal(signal.SIGKILL)
    process.wait()
    until(lambda: not alive(tmp_path / "began1"))
    hosts = dask.hosts()
    assert told(hosts.submit(job(2, tmp_path))).value == 42.0
    hosts.close()


def test_a_worker_in_the_place_of_another_makes_no_run_of_it(dask: Cluster, tmp_path: Path) -> None:
    dask.worker("one")
    hosts = dask.hosts()
    try:
        from sm120_overlay.bisection.hosts.nodes import measure_there

        ran = hosts.client.submit(measure_there, job(1, tmp_path, begins(tmp_path, 1)), "another").result(60)
        assert (ran.outcome, ran.why) == (Outcome.LOST, "its worker was started again")
        assert began(tmp_path, 1) == []
    finally:
        hosts.close()


def test_a_scheduler_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sm120_overlay.bisection.hosts.clusters.PATIENCE", 1.0)
    with pytest.raises(Missing, match="no scheduler answers"):
        open_hosts("tcp://127.0.0.1:1", tmp_path)


class Client:
    """A scheduler's client with other workers than a bisection can use."""

    status = "running"

    def __init__(self, resources: dict[str, float], version: str = "0") -> None:
        self.resources, self.version, self.closed = resources, version, False

    def scheduler_info(self, **_: int) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
        return {"workers": {"tcp://node:1": {"resources": self.resources}}}

    def run(self, _: Callable[[], object], workers: list[str]) -> dict[str, tuple[str, str, str]]:
        if not self.version:
            raise ModuleNotFoundError("sm120_overlay")
        return dict.fromkeys(workers, ("id", "gpu1", self.version))

    def close(self, **_: float) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("client", "said"),
    [
        (Client({}), "no worker there declares the resource node"),
        (Client({"node": 1}, "0"), r"gpu1 \(tcp://node:1\) has sm120-overlay 0, expected"),
        (Client({"node": 1}, ""), r"tcp://node:1 \(tcp://node:1\) has sm120-overlay ModuleNotFoundError"),
    ],
)
def test_nodes_that_cannot_measure_are_refused(client: Client, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributed.Client", lambda *arguments, **more: client)
    with pytest.raises(Missing, match=said):
        open_dask("tcp://scheduler:1")
    assert client.closed


def test_a_worker_of_another_version_that_comes_later_is_not_used() -> None:
    client = Client({"node": 1}, version())
    hosts = Dask(client)
    hosts.look()
    assert set(hosts.there) == {"gpu1"}
    late = Dask(Client({"node": 1}, "0"))
    late.look()
    assert (late.width, [node.version for node in late.known.values()]) == (0, ["0"])
    assert used([], hosts.there) == {}


class Real:
    """A cluster for a toy session: its runs are real ones, and tell their program's level."""

    def __init__(self, hosts: Dask, folder: Path, before: Callable[[Job], None] = lambda job: None) -> None:
        self.hosts, self.folder, self.before = hosts, folder, before

    @property
    def width(self) -> int:
        return self.hosts.width

    def submit(self, asked: Job) -> Future[Ran]:
        self.before(asked)
        level = 200 if asked.program >= CULPRIT else 100
        real = job(asked.number, self.folder, f"touch {self.folder}/began{asked.number}; sleep 0.3; echo {level}")
        return self.hosts.submit(replace(asked, cell=real.cell, work=real.work, archive=real.archive))

    def close(self) -> None:
        self.hosts.close()


def test_without_its_scheduler_a_bisection_says_so_and_goes_on_with_another(dask: Cluster, tmp_path: Path) -> None:
    dask.worker("one")
    dask.worker("other")

    def kills(asked: Job) -> None:
        if asked.number == 5:
            until((tmp_path / "began4").is_file)
            dask.scheduler.kill()

    few = Rules(scale=Scale.LINEAR, ends=2, verify=1)
    with pytest.raises(Missing) as missing:
        run_toy(tmp_path / "session", Real(dask.hosts(), tmp_path, kills), rules=few)
    assert (missing.value.what, missing.value.exit_code) == ("All hosts are gone.", 4)
    cut = fold(events_of(tmp_path / "session"))
    assert {made.ran.outcome for made in cut.runs} == {Outcome.MEASURED, Outcome.LOST}
    assert not cut.flying
    again = Cluster(tmp_path / "again").start()
    try:
        again.worker("one")
        assert run_toy(tmp_path / "session", Real(again.hosts(), tmp_path), rules=few).why == f"program {CULPRIT}"
    finally:
        again.end()
    whole = fold(events_of(tmp_path / "session"))
    assert whole.runs[: len(cut.runs)] == cut.runs
    assert 1 <= len([made for made in whole.runs if made.ran.outcome is Outcome.LOST]) <= 2
