"""`python -m tests.docs` writes the documents that are made: docs/errors.md and docs/reliability.md."""

from __future__ import annotations

import sys

from . import errors, reliability
from .source import ROOT


def main() -> int:
    """Writes both; 1 and a sentence where the marks make no table."""
    (ROOT / "docs" / "errors.md").write_text(errors.page(), encoding="utf-8")
    try:
        table = reliability.page(reliability.collected())
    except reliability.Unsound as error:
        print(f"docs/reliability.md was not written: {error}", file=sys.stderr)
        return 1
    (ROOT / "docs" / "reliability.md").write_text(table, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
