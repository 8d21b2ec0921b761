"""`python -m sm120_overlay VERB …` is the same as `python tools/VERB.py …`."""

import sys

from .cli import main

sys.exit(main())
