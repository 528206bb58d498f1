"""Run a command once on each host, for launchers that start the workers of one host only.

    python -m scaling_study.hosts.on_each_host h1:2,h2:2 torchrun --nnodes 2 --node-rank {node} --nproc-per-node 2 ...

In the command, {node} becomes 0, 1, ... and {hostfile} a hostfile in DeepSpeed's form. `-x NAME`,
before the hosts, exports one more environment variable, in whose value {node} is filled in too. The first command to
fail ends the others; so does Ctrl-C, and where the connection to a host is lost, the processes there end. All print
here; the exit code is that of the first to fail.
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

from scaling_study import variables
from scaling_study.errors import StudyError
from scaling_study.hosts import connections, hosts
from scaling_study.processes import process
from scaling_study.settings import CHECKOUT

ENTRY = (
    "import sys; sys.path.insert(0, {checkout!r}); from scaling_study.hosts import on_each_host; on_each_host.remote()"
)
USAGE = "usage: python -m scaling_study.hosts.on_each_host [-x NAME]... HOST:SLOTS,HOST:SLOTS COMMAND..."


def main(argv: Sequence[str]) -> int:
    """Run the command on each host; the exit code."""
    extra_variables: list[str] = []
    words = list(argv)
    while words[:1] == ["-x"]:
        extra_variables, words = [*extra_variables, *words[1:2]], words[2:]
    if len(words) < 2:
        raise SystemExit(USAGE)
    try:
        targets, command = hosts.parse_option(words[0]), words[1:]
    except StudyError as error:
        raise SystemExit(str(error)) from None
    process.adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    elsewhere = connections.other_hosts(host.name for host in targets)
    environment = {name: os.environ[name] for name in variables.exported_names(os.environ, extra_variables)}
    named = {name: environment[name] for name in extra_variables if name in environment}
    hostfile = "".join(f"{host.name} slots={host.slots}\n" for host in targets)
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for node, host in enumerate(targets):
            request = {
                "argv": [word.replace("{node}", str(node)) for word in command],
                "hostfile": hostfile,
                "env": {**environment, **{name: value.replace("{node}", str(node)) for name, value in named.items()}},
                "folder": os.getcwd(),
            }
            running[host.name] = _start(host.name, request, host.name in elsewhere)
        return _first_to_fail(running)
    except KeyboardInterrupt:
        return 130
    finally:
        for remote in running.values():
            if remote.stdin:
                remote.stdin.close()  # at which the other end ends
        process.end_descendants()


def remote() -> None:
    """The part on each host: run one command for as long as the connection is open."""
    request: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    process.adopt_orphans()
    folder = request["folder"] if os.path.isdir(request["folder"]) else None
    environment = {**os.environ, **request["env"]}
    with tempfile.NamedTemporaryFile("w", prefix="hostfile-") as hostfile:
        hostfile.write(request["hostfile"])
        hostfile.flush()
        argv = [word.replace("{hostfile}", hostfile.name) for word in request["argv"]]
        try:
            child = subprocess.Popen(
                argv, env=environment, cwd=folder, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise SystemExit(f"{argv[0]}: {error.strerror}") from None
        select.select([os.pidfd_open(child.pid), 0], [], [])
        process.end_descendants(child)
    code = child.wait()
    sys.exit(code if code >= 0 else 128 - code)


def _start(host: str, request: Mapping[str, Any], elsewhere: bool) -> subprocess.Popen[bytes]:
    """Start a host's command, here or there. The environment goes through its stdin: no command line shows it."""
    words = [sys.executable, "-u", "-c", ENTRY.format(checkout=str(CHECKOUT))]
    remote = subprocess.Popen(hosts.command(host, words) if elsewhere else words, stdin=subprocess.PIPE)
    assert remote.stdin
    with contextlib.suppress(OSError):  # it has ended already: see its exit code
        remote.stdin.write(json.dumps(request).encode() + b"\n")
        remote.stdin.flush()
    return remote


def _first_to_fail(running: Mapping[str, subprocess.Popen[bytes]]) -> int:
    """Wait until one has failed, or all are done; its exit code."""
    handles = {os.pidfd_open(remote.pid): host for host, remote in running.items()}
    while handles:
        for handle in select.select(list(handles), [], [])[0]:
            host = handles.pop(handle)
            os.close(handle)
            if code := running[host].wait():
                print(f"{host}: ended with exit code {code}", file=sys.stderr, flush=True)
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
