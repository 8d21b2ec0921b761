"""What a command of the user's may name in braces, and the same as variables of its environment.

`{word}` of small letters is a placeholder, `{{word}}` stands for `{word}`; all other braces, and `${word}`, are the
shell's and stay as they are. A value is quoted for the shell where it needs it, so a placeholder stands outside quotes.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from ..errors import UsageError

NAMES = {
    "tree": "the folder of the revision's files, with the series on them",
    "path": "where in it Python packages begin; also the first entry of PYTHONPATH",
    "env": "the folder that the build fills, one for all revisions that are built from the same",
    "python": "env/bin/python where the build made it, else the interpreter that runs this tool",
    "commit": "the revision's full commit id",
    "port": "a free TCP port of this host, another for each run",
    "out": "a fresh folder for this run's files; the command starts in it",
    "log": "the folder of this run's logs",
    "host": "the name of this host",
}
PREFIX = "SM120_BISECT_"
HOST = PREFIX + "HOST"
_WORD = re.compile(r"(?<!\$)(?:\{\{([a-z_]+)\}\}|\{([a-z_]+)\})")


def check_placeholders(text: str) -> None:
    """Refuse a text that names a placeholder which does not exist.

    Raises:
        UsageError: it does; the names that exist are told.
    """
    for match in _WORD.finditer(text):
        word = match[2]
        if word and word not in NAMES:
            known = " ".join(sorted(NAMES))
            # why: a misspelt placeholder would reach the shell as it stands and measure something else
            raise UsageError(
                f"there is no placeholder {{{word}}}: known are {known}",
                f"Write one of these, or {{{{{word}}}}} for the braces themselves.",
            )


def fill(text: str, values: Mapping[str, str], quote: bool = True) -> str:
    """The text with every placeholder replaced; quoted for a shell unless that is not what reads it."""

    def value(match: re.Match[str]) -> str:
        if match[1]:
            return "{" + match[1] + "}"
        found = values[match[2]]
        return shlex.quote(found) if quote else found

    return _WORD.sub(value, text)


def environment(values: Mapping[str, str], own: Mapping[str, str], packages: bool = True) -> dict[str, str]:
    """This process's variables, the user's (`own`, filled), and ours; the tree's packages come first, if at all."""
    env = {**os.environ, **{name: fill(text, values, quote=False) for name, text in own.items()}}
    if packages:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (values["path"], env.get("PYTHONPATH"))))
    return {**env, **{PREFIX + name.upper(): text for name, text in values.items()}}


def python_of(env: Path) -> str:
    """The interpreter of a build's folder, else this one."""
    own = env / "bin/python"
    return str(own) if own.exists() else sys.executable


def host_name() -> str:
    """What this host is called: `$SM120_BISECT_HOST`, else its own name."""
    return os.environ.get(HOST) or socket.gethostname()


def free_port() -> int:
    """A TCP port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
