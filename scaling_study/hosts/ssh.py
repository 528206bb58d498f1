"""How another host is spoken to: the command line of ssh, and what its failures mean, each with its remedy. Pure.

Nothing is ever asked of a person (BatchMode), and a host's key is checked: who is not known is not trusted. Whatever
else a connection needs (user, port, key, jump host) stands in ~/.ssh/config, where every launcher finds it too.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

CONNECT_SECONDS = 5
ALIVE_SECONDS, ALIVE_TIMES = 2, 4  # the connection counts as lost after so long without an answer, so many times
OWN_CODE = 255  # ssh's own failures; any other code is that of the command
OPTIONS = (
    "-x", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}",
    "-o", f"ServerAliveInterval={ALIVE_SECONDS}", "-o", f"ServerAliveCountMax={ALIVE_TIMES}", "-o", "LogLevel=ERROR",
)  # fmt: skip
REMEDIES = (  # words of OpenSSH 9.2, and what helps
    ("Host key verification failed", "known_hosts has another key for it, or none; check it, then `ssh {host}` once"),
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "if it was set up anew: ssh-keygen -R {host}, then `ssh {host}` once"),
    ("Permission denied", "it does not take this user's key: ssh-copy-id {host}"),
    ("Could not resolve hostname", "its name is not known here: /etc/hosts or DNS"),
    ("Connection refused", "no sshd listens there: start it"),
    ("Connection timed out", "is it up, and is this its address? ping {host}"),
    ("No route to host", "is it up, and is this its address? ping {host}"),
    ("not responding", "the network between, or the host, has failed"),
)  # fmt: skip


def command(host: str, argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` there; the shell there ends with it."""
    return ["ssh", *OPTIONS, host, f"exec {shlex.join(argv)}"]


def why(host: str, code: int | None, said: str) -> str:
    """`ssh: Connection refused: no sshd listens there: start it`: in one clause, from ssh's exit code and stderr."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if code in (126, 127):
        said = lines[-1] if lines else "a command is not there"
        return f"{said}: every host needs the same environment in the same place"
    for words, remedy in REMEDIES:
        if words in said:
            line = next(line for line in lines if words in line)
            return f"ssh: {line.removeprefix('ssh: ').rstrip('.')}: {remedy.format(host=host)}"
    if code == OWN_CODE or code is None:
        return f"ssh: {lines[-1] if lines else 'the connection was lost'}: try `ssh {host} true` by hand"
    return lines[-1] if lines else f"ended with exit code {code}"
