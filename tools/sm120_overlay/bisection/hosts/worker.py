"""The process of one run, started by file: it takes a job from standard input, and writes what came of it.

It loads the very package that it lies in. When its input ends (whoever started it is gone) it ends at once, and the
keeper of what it runs ends that.
"""

import os
import sys
from os.path import dirname, realpath

PACKAGE = dirname(dirname(dirname(realpath(__file__))))
sys.path[:] = [entry for entry in sys.path if realpath(entry or ".") != dirname(realpath(__file__))]

import pickle  # noqa: E402
import threading  # noqa: E402
from importlib.util import module_from_spec, spec_from_file_location  # noqa: E402


def load() -> None:
    """The package, by its place."""
    spec = spec_from_file_location("sm120_overlay", os.path.join(PACKAGE, "__init__.py"))
    assert spec is not None
    assert spec.loader is not None
    package = sys.modules["sm120_overlay"] = module_from_spec(spec)
    spec.loader.exec_module(package)


def main() -> None:
    """Measures once."""
    load()
    from sm120_overlay.bisection.measure import measure

    job = pickle.load(sys.stdin.buffer)
    out = os.dup(1)
    os.dup2(2, 1)  # what anything prints here is no answer

    def watch() -> None:
        if not sys.stdin.buffer.read(1):
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    said = pickle.dumps(measure(job))
    with os.fdopen(out, "wb") as file:
        file.write(said)
    os._exit(0)


if __name__ == "__main__":
    main()
