"""The overlay for people who serve large models on SM120 GPUs."""

import sys

__version__ = "0.1.0"

if sys.version_info < (3, 10):  # noqa: UP036 - a shim may be started by any Python
    found = ".".join(map(str, sys.version_info[:2]))
    sys.stderr.write(f"Python {found} ({sys.executable}) is too old: these tools need 3.10 or newer.\n")
    sys.stderr.write("  → Run them with another interpreter.\n")
    raise SystemExit(4)
