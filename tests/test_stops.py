"""Being told to stop: where the exception is raised, and where it waits."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from git import Git

from sm120_overlay.queue.git import Repository, attempt, run
from sm120_overlay.stops import SIGNALS, Stopped, held_back, told_to_stop


@pytest.mark.parametrize("signum", SIGNALS)
def test_each_signal_is_an_exception_that_names_it(signum: int) -> None:
    before = signal.getsignal(signum)
    with pytest.raises(Stopped) as stopped, told_to_stop():
        os.kill(os.getpid(), signum)
    assert stopped.value.signum == signum
    assert signal.getsignal(signum) == before


def test_a_stop_that_is_held_back_comes_at_the_end() -> None:
    done = []
    with pytest.raises(Stopped) as stopped, told_to_stop():
        with held_back():
            with held_back():
                os.kill(os.getpid(), signal.SIGTERM)
                done.append("inside")
            done.append("still inside")
        done.append("never")
    assert stopped.value.signum == signal.SIGTERM
    assert done == ["inside", "still inside"]


def test_what_is_held_back_without_a_stop_goes_on() -> None:
    with told_to_stop(), held_back():
        pass


def test_a_signal_that_the_process_ignores_stays_ignored() -> None:
    """As nohup does it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with told_to_stop():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_git_that_was_just_started_when_the_stop_came_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of ours outlives a run: whoever undoes must not meet it."""
    repo = Repository(tmp_path)
    run(repo, "init", "--quiet", ".")
    real, started = Git.execute, []

    def execute(*arguments: Any, **named: Any) -> Any:
        started.append(real(*arguments, **named))
        os.kill(os.getpid(), signal.SIGTERM)
        return started[-1]

    monkeypatch.setattr(Git, "execute", execute)
    with pytest.raises(Stopped), told_to_stop():
        attempt(repo, "-c", "alias.wait=!sleep 60", "wait")
    (process,) = started
    assert process.proc.returncode is not None
