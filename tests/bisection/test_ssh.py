"""Hosts that are reached over SSH, through a real server on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay.bisection.hosts import open_hosts
from sm120_overlay.bisection.hosts.ssh import parsed
from sm120_overlay.bisection.job import Outcome
from sm120_overlay.errors import Missing

from ..survey.upstream import Upstream
from .sshd import MARK
from .test_clusters import began, begins, driver
from .test_hosts import alive, job, told, until
from .test_verb import clone, run, said

__all__ = ["clone"]

SERVER = Path(__file__).with_name("sshd.py")


@pytest.fixture
def reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The home folder from which the hosts one and two are reached. In the end nothing of them is left running."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (tmp_path / "sshd.log").open("wb") as log:
        server = subprocess.Popen([sys.executable, SERVER, tmp_path, "one", "two"], env=env, stdout=log, stderr=log)
    home = tmp_path / "home"
    until(home.is_dir)
    monkeypatch.setenv("HOME", str(home))
    yield home
    server.kill()
    server.wait()
    until(lambda: not daemons(tmp_path))


def daemons(folder: Path) -> list[str]:
    """All processes that were started through this server and have not ended."""
    mark, found = f"{MARK}={folder}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended, or is another user's
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append(process.name)
    return found


def test_a_bisection_starts_its_hosts_over_ssh_and_ends_them(reached: Path, tmp_path: Path) -> None:
    hosts = open_hosts("ssh:one,two", tmp_path)
    try:
        assert hosts.width == 2
        runs = [hosts.submit(job(number, tmp_path, "sleep 0.5; cat {tree}/number.txt")) for number in (1, 2, 3)]
        assert [told(run).value for run in runs] == [42.0] * 3
        assert {told(run).host for run in runs} == {"one", "two"}
        last = hosts.submit(job(4, tmp_path, begins(tmp_path, 4)))
        until(lambda: bool(began(tmp_path, 4)))
    finally:
        hosts.close()
    assert told(last).outcome is Outcome.LOST
    assert not alive(tmp_path / "began4")
    until(lambda: not daemons(tmp_path))


def test_a_driver_that_is_killed_leaves_nothing_running_on_its_hosts(reached: Path, tmp_path: Path) -> None:
    process = driver("ssh:one,two", tmp_path)
    until(lambda: bool(began(tmp_path, 1)))
    assert len(daemons(tmp_path)) > 4
    process.send_signal(signal.SIGKILL)
    process.wait()
    until(lambda: not daemons(tmp_path))
    assert not alive(tmp_path / "began1")


def test_a_worker_that_is_killed_is_started_again_by_its_nanny(reached: Path, tmp_path: Path) -> None:
    hosts: Any = open_hosts("ssh:one", tmp_path)
    try:
        run = hosts.submit(job(1, tmp_path, begins(tmp_path, 1)))
        until(lambda: bool(began(tmp_path, 1)))
        node = hosts.there["one"]
        os.kill(hosts.client.run(os.getpid, workers=[node.address])[node.address], signal.SIGKILL)
        assert (told(run).outcome, told(run).host) == (Outcome.LOST, "one")
        assert told(hosts.submit(job(2, tmp_path))).value == 42.0
        assert len(began(tmp_path, 1)) == 1
        until(lambda: not alive(tmp_path / "began1"))
    finally:
        hosts.close()


def test_a_host_that_cannot_be_reached_is_named(reached: Path, tmp_path: Path) -> None:
    (reached / ".ssh" / "known_hosts").write_text("")
    with pytest.raises(Missing, match="--on ssh:one: one: HostKeyNotVerifiable: ") as refused:
        open_hosts("ssh:one", tmp_path)
    assert refused.value.todo == "See what `ssh one` says."


def test_a_host_with_another_version_is_named(reached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sm120_overlay.bisection.hosts.version.version", lambda: "9")
    monkeypatch.setattr("sm120_overlay.bisection.hosts.ssh.version", lambda: "9")
    with pytest.raises(Missing, match=r"--on ssh:two,one: two has sm120-overlay 0.*, expected 9\."):
        open_hosts("ssh:two,one", tmp_path)


@pytest.mark.parametrize("python", ["/nowhere/python", "python-of-nobody"])
def test_a_python_that_is_not_there_is_said(reached: Path, tmp_path: Path, python: str) -> None:
    with pytest.raises(Missing, match=rf"one has sm120-overlay \(.*{python}.*not found\), expected"):
        open_hosts(f"ssh:one,python={python}", tmp_path)


@pytest.mark.parametrize(
    ("typed", "run"), [("/opt/py", "/opt/py"), ("~/my env/py", "~/'my env/py'"), ("$HOME/py", "'$HOME/py'")]
)
def test_the_python_of_a_host_may_be_named_from_its_home(typed: str, run: str) -> None:
    assert parsed(f"one,two,python={typed}").python == run
    assert parsed(f"one,two,python={typed}").hosts == ("one", "two")


def test_a_cluster_that_does_not_start_is_said(reached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sm120_overlay.bisection.hosts.ssh.TIED", "no_such_module")
    with pytest.raises(Missing, match="--on ssh:one: the cluster did not start"):
        open_hosts("ssh:one", tmp_path)


def test_a_bisection_over_ssh_finds_its_commit_and_leaves_nothing(
    reached: Path, clone: Upstream, tmp_path: Path
) -> None:
    answer = run(clone, "--scale", "exact", "--on", "ssh:one,two", command="echo speed: $(cat {path}/toy/speed.txt)")
    assert (answer.code, answer.said["status"]) == (0, "found"), answer
    assert {one["host"] for one in answer.said["runs"]} == {"one", "two"}
    assert "distributed" not in answer.err
    until(lambda: not daemons(tmp_path))


def test_an_interrupt_ends_a_bisection_over_ssh(reached: Path, clone: Upstream, tmp_path: Path) -> None:
    def interrupt() -> None:
        until(lambda: bool(began(tmp_path, 1)))
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    answer = run(clone, "--on", "ssh:one", command=begins(tmp_path, 1))
    assert answer.code == 130
    assert not alive(tmp_path / "began1")
    until(lambda: not daemons(tmp_path))
    assert [(one["outcome"], one["why"]) for one in said("log").said["runs"]] == [("lost", "the bisection was stopped")]
