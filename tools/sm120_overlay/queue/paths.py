"""What a path in a patch may be: plain, relative, inside the tree. Everything that names a file asks here."""

from __future__ import annotations


def is_plain(path: str) -> bool:
    """Whether a repository path stays in its tree: no empty part, no `.` or `..`, nothing of git's own."""
    parts = path.split("/")
    return "\0" not in path and not any(part in ("", ".", "..") or part.lower() == ".git" for part in parts)
