"""What Python would run in place of a source file that a patch touches, so that the patch would have no effect."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..errors import Refused

UNCHECKED = 0b01  # a .pyc that Python never compares with its source (PEP 552)


def check_compiled(source: Path) -> None:
    """No compiled file of the source is used without a look at it.

    Raises:
        Refused: one is.
    """
    for compiled in (source.parent / "__pycache__").glob(f"{source.stem}.*.pyc") if source.suffix == ".py" else ():
        with compiled.open("rb") as file:
            flags = int.from_bytes(file.read(8)[4:8], "little")
        if flags & 0b11 == UNCHECKED:
            # why: a stale .pyc hid a patch (whitelok)
            raise Refused(
                f"{compiled}: Python uses it without looking at {source.name} (an unchecked hash), "
                f"which would hide the patch.",
                "Delete it, or compile with --invalidation-mode=timestamp.",
            )


def check_imported_first(files: Mapping[Path, str | None]) -> None:
    """No package or compiled library of a source's name lies beside it: Python looks for those first.

    Args:
        files: what the series touches → the blob it makes of it (None: no file).

    Raises:
        Refused: one does, and the series does not take it away.
    """
    for source in (path for path, blob in files.items() if blob and path.suffix == ".py"):
        stem = source.with_suffix("")
        beside = [stem / "__init__.py", stem.with_suffix(".so"), *source.parent.glob(f"{source.stem}.*.so")]
        first = next((path for path in beside if files.get(path, path) is not None and path.is_file()), None)
        if first:
            # why: a compiled module, or a package of the same name, comes before the source
            raise Refused(
                f"{first}: Python imports it instead of {source.name}, which would hide the patch.",
                "Remove it, or leave the patches of that file out with --without.",
            )
