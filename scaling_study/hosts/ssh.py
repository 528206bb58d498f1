"""The command line of ssh to another host, and what its failures mean, each with a remedy. Pure.

ssh never prompts (BatchMode), and a host's key is checked: an unknown host is not trusted. Whatever else a connection
needs (user, port, key, jump host) belongs into ~/.ssh/config, where every launcher finds it too.
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
REMEDIES = (  # messages of OpenSSH 9.2, and the remedy
    ("Host key verification failed", "known_hosts has no key for it, or another one: check it, then `ssh {host}` once"),
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "if it was reinstalled: ssh-keygen -R {host}, then `ssh {host}` once"),
    ("Permission denied", "it does not accept this user's key: ssh-copy-id {host}"),
    ("Could not resolve hostname", "its name does not resolve here: check /etc/hosts or DNS"),
    ("Connection refused", "no sshd is listening there: start it"),
    ("Connection timed out", "check that it is up and that this is its address: ping {host}"),
    ("No route to host", "check that it is up and that this is its address: ping {host}"),
    ("not responding", "the host, or the network to it, has failed"),
)  # fmt: skip


def command(host: str, argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` there; the shell there ends with it."""
    return ["ssh", *OPTIONS, host, f"exec {shlex.join(argv)}"]


def failure(host: str, code: int | None, stderr: str) -> str:
    """What went wrong, in one clause with its remedy, from ssh's exit code and stderr."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if code in (126, 127):
        message = lines[-1] if lines else "a command was not found"
        return f"{message}: every host needs the same environment in the same place"
    for words, remedy in REMEDIES:
        if words in stderr:
            line = next(line for line in lines if words in line)
            return f"ssh: {line.removeprefix('ssh: ').rstrip('.')}: {remedy.format(host=host)}"
    if code == OWN_CODE or code is None:
        return f"ssh: {lines[-1] if lines else 'the connection was lost'}: try `ssh {host} true` by hand"
    return lines[-1] if lines else f"ended with exit code {code}"
