"""A server under measurement: up while it is measured, gone afterwards, and told of when it is not."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sm120_overlay.bisection.command import Order
from sm120_overlay.bisection.placeholders import free_port
from sm120_overlay.bisection.serve import ServeError, serving

SERVER = """
import http.server, signal, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(sys.argv[2])); self.end_headers()
    def log_message(self, *words):
        pass
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


def free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.fixture
def order(tmp_path: Path) -> Callable[[str], Order]:
    log = tmp_path / "log"
    return lambda command: Order(command, tmp_path, os.environ, log, log, grace_s=0.3)


def server(port: int, *words: str) -> str:
    return shlex.join([sys.executable, "-c", SERVER, str(port), *words])


@pytest.mark.parametrize("way", ["obedient", "deaf"])
def test_a_server_is_up_while_it_is_measured_and_its_port_free_afterwards(
    order: Callable[[str], Order], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # a proxy must not be asked for what runs here
    port = free_port()
    with serving(order(server(port, "200", way)), f"http://127.0.0.1:{port}/health", 20) as up:
        assert up()
        assert not free(port)
    assert free(port)


def test_a_server_that_dies_early_is_told_of_with_its_last_words(order: Callable[[str], Order]) -> None:
    with (
        pytest.raises(ServeError, match=r"(?s)exit code 7.*no memory"),
        serving(order("echo no memory; exit 7"), f"http://127.0.0.1:{free_port()}/", 600),
    ):
        pass


def test_a_server_that_never_gets_ready_is_ended_at_its_limit(order: Callable[[str], Order]) -> None:
    port = free_port()
    with (
        pytest.raises(ServeError, match=r"(?s)not ready within 1\.5 s.*loading"),
        serving(order(f"echo loading; {server(port, '503')}"), f"http://127.0.0.1:{port}/", 1.5),
    ):
        pass
    assert free(port)


def test_a_server_that_dies_while_it_is_measured_is_seen(order: Callable[[str], Order], tmp_path: Path) -> None:
    port = free_port()
    command = f"{server(port, '200')} & while [ ! -e die ]; do sleep 0.05; done"
    with serving(order(command), f"http://127.0.0.1:{port}/", 120) as up:
        (tmp_path / "die").touch()
        until = time.monotonic() + 120
        while up() and time.monotonic() < until:
            time.sleep(0.05)
        assert not up()
