"""An upstream that goes on: commits with pull request numbers, release branches, tags; and the verb that looks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..queue.scenes import Answer, ask
from ..queue.toy import TOY, git, write

CORE, DOS = "python/toy/core.py", "python/toy/dos.py"
QUIET = {"README.md": "toy, again\n"}
CLASH = {CORE: TOY[CORE].replace("return 41", "return 40")}  # ends right-answer
TAKEN = {CORE: TOY[CORE].replace("return 41", "return 42")}  # upstream's own right answer
NEAR = {CORE: TOY[CORE].replace("# line 50\n", "# line fifty\n")}  # far from every patch
RENAMED = {CORE: None, "python/toy/heart.py": TOY[CORE]}


@dataclass(frozen=True)
class Upstream:
    """A repository; every method gives it back, or the id of what it made."""

    path: Path

    def commit(
        self, files: Mapping[str, str | bytes | None], number: int | None = None, subject: str = "Change"
    ) -> str:
        """A commit on what is checked out; its id."""
        write(self.path, files)
        git(self.path, "add", "-A")
        named = f"{subject} (#{number})" if number else subject
        git(self.path, "commit", "-q", "--allow-empty", "-m", named)
        return self.head

    @property
    def head(self) -> str:
        """The id of what is checked out."""
        return git(self.path, "rev-parse", "HEAD").strip()

    def tag(self, name: str) -> Upstream:
        """A release of what is checked out."""
        git(self.path, "tag", name)
        return self

    def on(self, branch: str, new: bool = False) -> Upstream:
        """Another branch checked out."""
        git(self.path, "checkout", "-q", *(["-b"] if new else []), branch)
        return self


def survey(upstream: Upstream, wanted: str = "..", *options: object) -> Answer:
    """The verb's answer about commits."""
    return ask("survey", "toy", wanted, "--history", upstream.path, *options)


def patch_of(answer: Answer, slug: str) -> dict[str, Any]:
    """What it says of one patch."""
    (found,) = [patch for patch in answer.said["patches"] if patch["slug"] == slug]
    return dict(found)


def states(answer: Answer) -> dict[str, str]:
    """Slug → state at the new end."""
    return {patch["slug"]: patch["state"] for patch in answer.said["patches"]}
