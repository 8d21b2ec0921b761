"""`python -m tests.docs` writes the documents that are made: errors.md, patches.md and reliability.md of docs/."""

from __future__ import annotations

import sys

from . import errors, patches, reliability
from .source import ROOT


def main() -> int:
    """Writes them; 1 and a sentence where the marks make no table."""
    (ROOT / "docs" / "errors.md").write_text(errors.page(), encoding="utf-8")
    (ROOT / "docs" / "patches.md").write_text(patches.page(), encoding="utf-8")
    try:
        table = reliability.page(reliability.collected())
    except reliability.Unsound as error:
        print(f"docs/reliability.md was not written: {error}", file=sys.stderr)
        return 1
    (ROOT / "docs" / "reliability.md").write_text(table, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
