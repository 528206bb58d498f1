"""The agent of another host, started there by ssh or srun: it ends what trials leave there, whatever happens here.

    supervisor --- ssh --- agent         the trial's ranks on that host, started by any launcher
                  |         |  begin    ends what an earlier sweep left, makes the trial's temporary folder;
                  |         |           refused on the supervisor's own host, where it would end the supervisor
                  |         |  signal   stops ranks, or lets them go on (launch/warm_group.py)
                  |         |  end      ends every process that carries the sweep's mark, removes what they left
                  X  EOF,   |
                  or silence|  ends them too, and itself

So ranks die with their driver on every host: if driver and supervisor are killed the connection is closed, and if the
network fails nothing more arrives on it. Launchers cannot do that: a stopped rank, or one whose launcher was killed,
stays.

One request a line, as JSON, and one answer; an empty line is a heartbeat.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import select
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling_study.machine import boot_id
from scaling_study.processes import leftovers, process

SILENCE_SECONDS = 8.0  # without a heartbeat, until the connection counts as lost
ENTRY = (  # what ranks would import is looked up before our own place on the path hides it
    "import importlib.util as u; spec = u.find_spec('scaling_study'); import sys; sys.path.insert(0, {checkout!r}); "
    "from scaling_study.hosts import agent; agent.main(spec.origin if spec else '')"
)
CODE = ("scaling_study", "data_parallel", "horovod_runs", "fsdp", "tensor", "pipeline", "decentralized")


@dataclass
class Agent:
    """This host, as far as one sweep is concerned."""

    package: str  # the file that `import scaling_study` finds, as a rank would
    mark: str = ""  # of the sweep whose trial is running
    temporary: str = ""
    since: float = field(default_factory=leftovers.clock)

    def answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to one request: of the method that `ask` names, to the arguments beside it."""
        method: Callable[..., Mapping[str, Any]] = getattr(self, request["ask"])
        return method(**{key: value for key, value in request.items() if key != "ask"})

    def clock(self) -> Mapping[str, Any]:
        return {"clock": time.time()}

    def begin(self, mark: str, temporary: str, asker: Mapping[str, Any]) -> Mapping[str, Any]:
        """A trial of the sweep with this mark is about to start. `asker`: this_process() of who asks, a part of that
        sweep: where it runs on this host nothing is ended, and nothing begins."""
        if sees(asker):
            return {"is_this": True}
        ended = leftovers.end_marked(mark)
        self.mark, self.temporary, self.since = mark, temporary, leftovers.clock()
        for old in Path(temporary).parent.glob(f"{Path(temporary).name.rpartition('-')[0]}-*"):
            shutil.rmtree(old, ignore_errors=True)
        Path(temporary).mkdir(parents=True, exist_ok=True)
        return {"is_this": False, "ended": ended}

    def end(self) -> Mapping[str, Any]:
        """The trial is over: nothing of it may live on."""
        ended = leftovers.end_marked(self.mark) if self.mark else []
        if self.temporary:
            shutil.rmtree(self.temporary, ignore_errors=True)
        leftovers.remove_segments(self.since)
        self.mark = self.temporary = ""
        return {"ended": ended}

    def signal(self, pids: Mapping[str, Sequence[int]], number: int, more_likely: int) -> Mapping[str, Any]:
        """Signal those of the processes, by host name, that run here (process.signal_trees)."""
        process.signal_trees(pids.get(socket.gethostname(), ()), number, more_likely)
        return {}

    def describe(self, checkout: str, paths: Sequence[str], asker: Mapping[str, Any]) -> Mapping[str, Any]:
        """Facts about this host, to be compared with the others (inspection.py), the paths that it does not see, and
        whether it is the host of who asks."""
        from scaling_study.machine import this_machine
        from scaling_study.settings import commit

        name = socket.gethostname()
        return {
            "name": name,
            "package": self.package,
            "python": platform.python_version(),
            "commit": commit(),
            "machine": this_machine().to_dict(),
            "code": digests(Path(checkout)),
            "interfaces": interfaces(),
            "missing_paths": [path for path in paths if not Path(path).exists()],
            "own_address": address_of(name),
            "is_this": sees(asker),
        }


def main(package: str) -> None:
    """Serve one connection until it is closed; then end whatever still runs."""
    agent = Agent(package)
    try:
        with contextlib.suppress(OSError, ValueError):
            _serve(agent)
    finally:
        agent.end()


def _serve(agent: Agent) -> None:
    received = b""
    while select.select([0], [], [], SILENCE_SECONDS)[0]:
        if not (data := os.read(0, 65536)):
            return
        *requests, received = (received + data).split(b"\n")
        for request in filter(None, requests):
            os.write(1, json.dumps(agent.answer(json.loads(request))).encode() + b"\n")


def digests(checkout: Path) -> dict[str, str]:
    """File -> digest of all that a trial runs of this project."""
    files = [path for folder in CODE for path in sorted((checkout / folder).rglob("*.py"))]
    return {str(path.relative_to(checkout)): hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in files}


def interfaces() -> dict[str, str]:
    """Network interface -> its IPv4 address, of those that are up."""
    import psutil

    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    return {
        name: address.address
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if name in up and address.family == socket.AF_INET
    }


def address_of(name: str) -> str:
    """The IPv4 address that a name resolves to on this host; empty if it does not."""
    with contextlib.suppress(OSError):
        return socket.gethostbyname(name)
    return ""


def this_process() -> dict[str, Any]:
    """What tells this process from all others, for `sees`."""
    return {"boot_id": boot_id(), "pid": os.getpid(), "started": _started(os.getpid())}


def sees(process: Mapping[str, Any]) -> bool:
    """True where that process, as its this_process() says, is one of those that could be ended from here.

    Hosts that are containers of one machine share its boot, but do not see each other's processes. A machine sees those
    of its containers, whose own numbers for them are the last of NSpid.
    """
    if process["boot_id"] != boot_id():
        return False
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # one that ends meanwhile
            if _started(int(folder.name)) == process["started"]:
                status = (folder / "status").read_text(encoding="utf-8", errors="replace")
                numbers = [line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")]
                if (int(numbers[0][-1]) if numbers else int(folder.name)) == process["pid"]:
                    return True
    return False


def _started(pid: int) -> int:
    """When a process was started, in ticks since the boot (proc_pid_stat(5)); clocks that are set do not change it."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return int(text.rpartition(")")[2].split()[19])
