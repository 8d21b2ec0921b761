"""A server under measurement with SGLang's own client, `sglang.bench_serving` of a real wheel, on a CPU.

The server is a stub that streams tokens as SGLang's does, at a pace that stands in the tree. Only `datasets`, which the
client imports and does not use for random tokens, is not the real one.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from sm120_overlay.bisection.metric import BENCH_LABELS
from sm120_overlay.queue.home import find_home
from sm120_overlay.queue.pins import load_lines
from sm120_overlay.queue.wheels import fetch_wheel, unpack

from ..queue.scenes import ask
from ..queue.toy import Toy
from ..survey.upstream import Upstream

PACE, CULPRIT, LAST = "python/toy/pace.txt", 2, 2
SLOW, FAST = 40, 160  # tokens a second
SERVER = """
import json, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

pace = float(open(sys.argv[2]).read())


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        started = time.monotonic()
        for number in range(1, asked["sampling_params"]["max_new_tokens"] + 1):
            time.sleep(max(0, started + number / pace - time.monotonic()))
            said = {"text": " w1" * number, "meta_info": {"completion_tokens": number}}
            self.wfile.write(b"data: " + json.dumps(said).encode() + b"\\n\\n")
        self.wfile.write(b"data: [DONE]\\n\\n")


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


@pytest.fixture(autouse=True)
def own_cache() -> None:
    """Not a cache of its own: the wheel is that of the whole suite."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with SGLang 0.5.9 as its wheel installs it (later ones import triton)."""
    folder = tmp_path_factory.mktemp("client")
    unpack(fetch_wheel(load_lines(find_home().pins).line("v0.5.9").pin("sglang"), print), folder)
    (folder / "datasets.py").write_text("load_dataset = None\n")
    return folder


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A tokenizer of a thousand words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(1000)} | {"?": 1000}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    words.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "?"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture
def span(upstream: Upstream) -> str:
    """Commits, of which one makes the server faster."""
    ids = []
    for number in range(LAST + 1):
        pace = f"{SLOW if number < CULPRIT else FAST}\n"
        ids.append(upstream.commit({PACE: pace, "python/toy/part.py": f"PART = {number}\n"}, number))
    return f"{ids[0]}..{ids[-1]}"


@pytest.mark.slow
@pytest.mark.network
def test_the_commit_that_made_a_server_faster_is_found_with_sglangs_own_client(
    toy: Toy, upstream: Upstream, span: str, client: Path, tokenizer: Path, tmp_path: Path
) -> None:
    server = tmp_path / "server.py"
    server.write_text(SERVER)
    python, session = shlex.quote(sys.executable), tmp_path / "session"
    bench = (
        f"HF_HUB_OFFLINE=1 PYTHONPATH={shlex.quote(str(client))} {python} -m sglang.bench_serving --backend sglang "
        f"--host 127.0.0.1 --port {{port}} --model toy --tokenizer {shlex.quote(str(tokenizer))} --num-prompts 4 "
        "--dataset-name random-ids --random-input-len 8 --random-output-len 24 --random-range-ratio 1 "
        "--max-concurrency 4 --warmup-requests 0 --output-file {out}/bench.jsonl"
    )
    answer = ask(
        "bisect", "run", "toy", span, "--history", upstream.path, "--session", session,
        "--min-effect", "20%", "--ends", 2, "--verify", 2,
        "--server", f"{python} {shlex.quote(str(server))} {{port}} {{path}}/toy/pace.txt",
        "--health", "http://127.0.0.1:{port}/health", "--cmd", bench, "--metric", "bench:output_throughput",
    )  # fmt: skip
    assert (answer.code, answer.said["status"]) == (0, "found"), answer
    (culprit,) = answer.said["culprits"]
    assert [change["number"] for change in culprit["changes"]] == [CULPRIT]
    assert culprit["before"]["mean"] <= 4 * SLOW
    assert culprit["before"]["mean"] < culprit["after"]["mean"] <= 4 * FAST
    for run in answer.said["runs"]:
        (file,) = session.glob(f"work/runs/{run['number']}-*/out/bench.jsonl")
        written = json.loads(file.read_text())
        assert run["value"] == written["output_throughput"]
        lines = re.findall(r"^(\S.*?):\s+(\S+)\s*$", (file.parents[1] / "stdout").read_text(), re.MULTILINE)
        shown = [(label, value) for label, value in lines if label in BENCH_LABELS]
        assert len(shown) > 20
        for label, value in shown:
            assert float(value) == pytest.approx(written[BENCH_LABELS[label]], abs=0.0051), label
