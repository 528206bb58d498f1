"""Run a command once on each host, for launchers that start the workers of one host only.

    python -m scaling_study.hosts.on_each_host h1:2,h2:2 torchrun --nnodes 2 --node-rank {node} --nproc-per-node 2 ...

In the command, {node} becomes 0, 1, ... and {hostfile} a file that names the hosts as DeepSpeed has it. `-x NAME`,
before the hosts, takes along one more variable of the environment. The first command to fail ends the others; so does
Ctrl-C, and where the line to a host is cut, what runs there ends by itself. All print here; the exit code is that of
the first to fail.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from scaling_study.errors import StudyError
from scaling_study.hosts import connection, exported, hosts, reach
from scaling_study.processes import process
from scaling_study.settings import CHECKOUT

ENTRY = (
    "import sys; sys.path.insert(0, {checkout!r}); from scaling_study.hosts import on_each_host; on_each_host.there()"
)
USAGE = "usage: python -m scaling_study.hosts.on_each_host [-x NAME]... HOST:SLOTS,HOST:SLOTS COMMAND..."


def main(argv: Sequence[str]) -> int:
    """Run it; the exit code."""
    also: list[str] = []
    words = list(argv)
    while words[:1] == ["-x"]:
        also, words = [*also, *words[1:2]], words[2:]
    if len(words) < 2:
        raise SystemExit(USAGE)
    try:
        given, command = hosts.option(words[0]), words[1:]
    except StudyError as wrong:
        raise SystemExit(str(wrong)) from None
    process.adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    elsewhere = connection.others(host.name for host in given)
    environment = {name: os.environ[name] for name in exported.names(os.environ, also)}
    hostfile = "".join(f"{host.name} slots={host.slots}\n" for host in given)
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for node, host in enumerate(given):
            request = {"argv": [word.replace("{node}", str(node)) for word in command], "hostfile": hostfile,
                       "env": environment, "folder": os.getcwd()}  # fmt: skip
            running[host.name] = _start(host.name, request, host.name in elsewhere)
        return _first_to_fail(running)
    except KeyboardInterrupt:
        return 130
    finally:
        for one in running.values():
            if one.stdin:
                one.stdin.close()  # at which the other end ends
        process.end_descendants()


def there() -> None:
    """The other end: run one command for as long as the line is open."""
    asked: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    process.adopt_orphans()
    folder = asked["folder"] if os.path.isdir(asked["folder"]) else None
    with _with_hostfile(asked) as argv:
        try:
            child = subprocess.Popen(
                argv, env={**os.environ, **asked["env"]}, cwd=folder, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise SystemExit(f"{argv[0]}: {error.strerror}") from None
        select.select([os.pidfd_open(child.pid), 0], [], [])
        process.end_descendants(child)
    code = child.wait()
    sys.exit(code if code >= 0 else 128 - code)


def _start(host: str, request: Mapping[str, Any], elsewhere: bool) -> subprocess.Popen[bytes]:
    """Start a host's command, here or there. The environment goes down the line: no command line shows it."""
    words = [sys.executable, "-u", "-c", ENTRY.format(checkout=str(CHECKOUT))]
    started = subprocess.Popen(reach.command(host, words) if elsewhere else words, stdin=subprocess.PIPE)
    assert started.stdin
    with contextlib.suppress(OSError):  # it has ended already: its code tells
        started.stdin.write(json.dumps(request).encode() + b"\n")
        started.stdin.flush()
    return started


def _first_to_fail(running: Mapping[str, subprocess.Popen[bytes]]) -> int:
    """Wait until one has failed, or all are done; its exit code."""
    handles = {os.pidfd_open(one.pid): host for host, one in running.items()}
    while handles:
        for handle in select.select(list(handles), [], [])[0]:
            host = handles.pop(handle)
            os.close(handle)
            if code := running[host].wait():
                print(f"{host}: ended with exit code {code}", file=sys.stderr, flush=True)
                return code
    return 0


@contextlib.contextmanager
def _with_hostfile(asked: Mapping[str, Any]) -> Any:
    """The command, with a file in place of {hostfile}."""
    with tempfile.NamedTemporaryFile("w", prefix="hostfile-") as file:
        file.write(asked["hostfile"])
        file.flush()
        yield [word.replace("{hostfile}", file.name) for word in asked["argv"]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
