#!/usr/bin/env python3
"""Find the upstream change behind a measurement: `bisect.py --help`. The work is in sm120_overlay/verbs/bisect.py."""

import os
import sys
from os.path import dirname, join, realpath

HERE, OWN = dirname(realpath(__file__)), dirname(realpath(os.__file__))  # our folder; that of Python's own modules
# A tool's name may be one of the standard library's: a bisect.py here would shadow what random imports.
sys.path[:] = [entry for entry in sys.path if realpath(entry or ".") != HERE]
sys.path.sort(key=lambda entry: realpath(entry) not in (OWN, join(OWN, "lib-dynload")))  # the same for PYTHONPATH

from importlib.util import module_from_spec, spec_from_file_location  # noqa: E402

spec = spec_from_file_location("sm120_overlay", join(HERE, "sm120_overlay", "__init__.py"))
package = sys.modules["sm120_overlay"] = module_from_spec(spec)  # this very copy, never an installed one
spec.loader.exec_module(package)

from sm120_overlay.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(["bisect", *sys.argv[1:]]))
