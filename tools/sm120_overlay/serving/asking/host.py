"""What runs on the other side of `warm`: one process that loads what all trees share, and forks one for each tree.

Start-up is most of an answer's time, and most of start-up is torch and what SGLang imports besides itself. So the host
loads that once; a process for a tree is forked off it and loads SGLang; and each question to it is answered by a fork
of its own, so that no answer sees what another left in upstream's globals.

It speaks JSON, one object a line, over sockets: the host's own is its standard input.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from sm120_overlay.serving.asking.question import from_json

# What SGLang imports besides itself, heaviest first; one that a release does not want is not loaded.
SHARED = (
    "transformers", "transformers.processing_utils", "transformers.image_processing_utils",
    "transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto",
    "openai.types.responses", "openai.types.chat", "torch.export", "networkx", "aiohttp", "IPython.display",
    "compressed_tensors.quantization", "jinja2", "zmq", "pydantic", "starlette.routing", "PIL.Image", "requests",
    "gguf", "loguru", "sentencepiece", "orjson", "partial_json_parser", "psutil", "msgspec", "dill", "einops",
    "safetensors.torch", "yaml",
)  # fmt: skip


def lines(link: socket.socket) -> Iterator[Any]:
    """Each object that comes, until the other side closes."""
    with link.makefile("rb") as stream:
        for line in stream:
            yield json.loads(line)


def say(link: socket.socket, told: Any) -> None:
    """One object, as a line."""
    link.sendall(json.dumps(told).encode() + b"\n")


def main() -> int:
    """The host: `{"ground": TREE}` first, then `{"tree": TREE}` with a socket for each tree."""
    link = socket.socket(fileno=os.dup(0))
    asked, fds, _, _ = socket.recv_fds(link, 1 << 16, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a tree's process is nobody's to wait for
    try:
        ground = _ground(Path(json.loads(asked)["ground"]))
    except ModuleNotFoundError as error:
        say(link, {"absent": error.name})
        return 0
    except Exception as error:
        say(link, {"error": str(error)})
        return 0
    say(link, {"ready": os.getpid()})
    while True:
        asked, fds, _, _ = socket.recv_fds(link, 1 << 16, 1)
        if not asked:
            _leave(0)  # torch takes seconds to end, and has nothing to save
        _forked(lambda: _tree(ground, Path(json.loads(asked)["tree"]), socket.socket(fileno=fds[0])), link)  # noqa: B023
        os.close(fds[0])


def _ground(tree: Path) -> Any:
    from sm120_overlay.serving.rig.tree import lay_ground

    ground = lay_ground(tree)
    for name in SHARED:
        if find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    return ground


def _forked(work: Callable[[], None], *close: socket.socket) -> int:
    """The work in a child, which ends with it; what the child has no use for is closed there."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        for link in close:
            link.close()
        work()
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        _leave(code)
    return 0


def _leave(code: int) -> NoReturn:
    sys.stderr.flush()
    os._exit(code)


def _tree(ground: Any, tree: Path, link: socket.socket) -> None:
    """A tree's process: stand, say so, and answer each question in a fork."""
    import torch

    from sm120_overlay.serving.asking import releases
    from sm120_overlay.serving.asking.answer import MODULES, answer
    from sm120_overlay.serving.rig.tree import stand

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    torch.set_num_threads(1)
    try:
        standing = stand(ground, tree)
        for name in filter(releases.there, MODULES):
            standing.module(name)
    except Exception as error:
        say(link, {"error": f"{type(error).__name__}: {error}"})
        return
    say(link, {"ready": standing.version, "report": standing.report()})
    for asked in lines(link):
        child = _forked(lambda: say(link, answer(standing, from_json(asked))))  # noqa: B023
        _, status = os.waitpid(child, 0)
        if status:
            say(link, {"error": f"the process that answered ended with status {status}"})


if __name__ == "__main__":
    sys.exit(main())
