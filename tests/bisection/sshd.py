"""An SSH server on this machine, and a home folder whose `.ssh/config` reaches it under several names.

Run as `python sshd.py FOLDER NAME...`. Each name is a user's, and `$SM120_BISECT_HOST` of what it runs, so that one
machine is as many hosts. As OpenSSH does, it ends no command of a connection that is lost: it closes its pipes.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncssh

MARK = "SM120_TEST_SSHD"  # all that is started here has it: the folder


async def copied(source: Any, sink: Any) -> None:
    """All that one end says, to the other, until either is gone."""
    with suppress(OSError, asyncssh.Error):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()


async def fed(process: asyncssh.SSHServerProcess[bytes], child: asyncio.subprocess.Process) -> None:
    """The command's input is what the client sends, and ends with that, or with the connection."""
    assert child.stdin
    await copied(process.stdin, child.stdin)
    child.stdin.close()


async def runs(process: asyncssh.SSHServerProcess[bytes]) -> None:
    """A command of a client's, in a shell."""
    user = process.get_extra_info("username")
    child = await asyncio.create_subprocess_shell(
        process.command or "true", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, start_new_session=True,
        env={**os.environ, "SM120_BISECT_HOST": user, MARK: sys.argv[1]},
    )  # fmt: skip
    feeding = asyncio.create_task(fed(process, child))
    await asyncio.gather(copied(child.stdout, process.stdout), copied(child.stderr, process.stderr))
    code = await child.wait()
    feeding.cancel()
    with suppress(OSError, asyncssh.Error):
        process.exit(code)


async def serve(folder: Path, names: list[str]) -> None:
    """Serves until it is killed; `FOLDER/home` is there when it can be reached."""
    key, own = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    made = folder / "made" / ".ssh"
    made.mkdir(parents=True)
    own.write_private_key(str(made / "id"))
    own.write_public_key(str(folder / "authorized"))
    server = await asyncssh.listen(
        "127.0.0.1", 0, server_host_keys=[key], authorized_client_keys=str(folder / "authorized"),
        process_factory=runs, encoding=None,
    )  # fmt: skip
    port = server.sockets[0].getsockname()[1]
    home = folder / "home"
    blocks = [
        f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n  User {name}\n  IdentityFile {home}/.ssh/id\n"
        f"  UserKnownHostsFile {home}/.ssh/known_hosts\n"
        for name in names
    ]
    (made / "config").write_text("\n".join(blocks))
    (made / "known_hosts").write_text(f"[127.0.0.1]:{port} {key.export_public_key().decode()}")
    (folder / "made").rename(home)
    await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2:]))
