"""A real Slurm on this machine, for as long as a test needs it: one slurmctld and a slurmd for each node.

    the test ---- pipe ---- keeper: process 1 of a namespace of its own
                              |-- slurmctld
                              |-- slurmd -N node1 ---- slurmstepd ---- job
                              |-- slurmd -N node2

Nothing of it is the machine's: configuration, state, logs and ports are its own, there is no systemd, munge or
database. However the test ends, its end of the pipe is closed; the keeper then ends, and with process 1 the kernel
ends whatever is in the namespace: daemons, jobs, and what a job left behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from eventually import LATEST_SECONDS, until
from network import Network

NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
KEEPER = ["sh", "-c", "cat; true"]  # a shell that waits for `cat` also reaps what is orphaned
PATIENCE_SECONDS = 10.0
CONFIGURATION = """\
ClusterName=planted
SlurmctldHost={controller}
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherParams=OverMemoryKill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=6000
JobAcctGatherFrequency=1
JobCompType={completions}
JobCompLoc={folder}/log/jobcomp
AccountingStorageType=accounting_storage/none
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
ReturnToService=2
KillWait=2
MinJobAge={forget_seconds}
SlurmdTimeout=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n.spool
TmpFS={folder}/%n.tmp
SlurmctldPidFile={folder}/run/ctld.pid
SlurmdPidFile={folder}/run/%n.pid
SlurmctldLogFile={folder}/log/ctld
SlurmdLogFile={folder}/log/%n
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=9
"""


def why_not() -> str:
    """Why there can be no Slurm here; empty: there can."""
    if missing := [name for name in ("slurmctld", "slurmd", "sbatch", "unshare") if not shutil.which(name)]:
        return f"no {' or '.join(missing)} on this machine (Debian: apt-get install slurm-wlm)"
    if os.geteuid() != 0:
        return "only root may start slurmd here"
    tried = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"no process namespaces here: {tried.stderr.strip()}"


class Slurm:
    """A cluster of nodes node1, node2, ...; its daemons are up between `start` and `stop`."""

    controller = "localhost(127.0.0.1)"

    def __init__(
        self, folder: Path, nodes: int = 2, cpus: int = 1, forget_seconds: int = 3600, completions: bool = True
    ) -> None:
        self.folder, self.names, self._cpus = folder, [f"node{i + 1}" for i in range(nodes)], cpus
        self._forget_seconds, self._completions = forget_seconds, completions
        self.conf = folder / "slurm.conf"

    def login(self, folder: Path | str = "/") -> list[str]:
        """What stands before a user's command, which is to run in `folder`."""
        return []

    @property
    def environment(self) -> dict[str, str]:
        """What makes sbatch, scontrol and squeue speak to this Slurm."""
        return {**os.environ, "SLURM_CONF": str(self.conf)}

    def start(self) -> None:
        for name in ("state", "run", "log", *(f"{n}.{what}" for n in self.names for what in ("spool", "tmp"))):
            (self.folder / name).mkdir(parents=True)
        self.conf.write_text(self._configuration())
        (self.folder / "cgroup.conf").touch()
        self._enter()
        self.start_controller()
        for name in self.names:
            self._run([*self._into(name), "slurmd", "-f", str(self.conf), "-N", name])
        nodes = ("sinfo", "-h", "-N", "-p", "main", "-o", "%T")
        self._wait(lambda: self.ask(*nodes).split() == ["idle"] * len(self.names))

    def stop(self) -> None:
        if self._keeper.stdin:
            self._keeper.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(PATIENCE_SECONDS)
        self._keeper.kill()
        self._keeper.wait()

    def start_controller(self) -> None:
        self._run([*self._into(self.names[0]), "slurmctld", "-f", str(self.conf)])

    def kill(self, daemon: str, *words: str) -> None:
        """Kill a daemon and all that it has started, as if its power were cut."""
        for process in self._daemons(daemon, words):
            with contextlib.suppress(psutil.NoSuchProcess):
                for one in (process, *process.children(recursive=True)):
                    one.send_signal(signal.SIGKILL)
        self._wait(lambda: not self._daemons(daemon, words))

    def state(self, job: str) -> str:
        """RUNNING, PENDING, ...; empty once it is forgotten."""
        return self.ask("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()

    def until(self, job: str, *states: str, seconds: float = LATEST_SECONDS) -> None:
        """Wait until a job is in one of these states."""
        until(lambda: self.state(job) in states, seconds, lambda: f"{job} is {self.state(job)}, not {states}")

    def processes(self, job: str) -> list[psutil.Process]:
        """Those of a job that are alive."""
        found = []
        for process in self._namespace().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.environ().get("SLURM_JOB_ID") == job and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def kill_job(self, job: str) -> None:
        """End every process of a job, so that none can say anything."""
        for process in self.processes(job):
            with contextlib.suppress(psutil.Error):
                process.kill()

    def ask(self, *command: str) -> str:
        """What a command of Slurm prints; empty if it fails."""
        done = subprocess.run(
            [*self.login(), *command], env=self.environment, capture_output=True, text=True, check=False
        )
        return done.stdout if done.returncode == 0 else ""

    def do(self, *command: str) -> str:
        """A command of Slurm that must succeed."""
        return self._run([*self.login(), *command])

    def _run(self, command: Sequence[str]) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def _enter(self) -> None:
        """Make the namespace that all of it lives in."""
        self._keeper = subprocess.Popen([*NAMESPACE, *KEEPER], stdin=subprocess.PIPE, start_new_session=True)
        self._wait(lambda: (one := psutil.Process(self._keeper.pid).children()) and one[0].name() == "sh")

    def _into(self, name: str) -> list[str]:
        """What stands before a command that is to run where that node is."""
        return ["nsenter", f"--target={self._namespace().pid}", "--pid", "--mount"]

    def _configuration(self) -> str:
        controller, *ports = _free_ports(1 + len(self.names))
        nodes = "\n".join(
            f"NodeName={name} {self._where(name)} Port={port} CPUs={self._cpus} RealMemory={8000 * self._cpus}"
            for name, port in zip(self.names, ports, strict=True)
        )
        return CONFIGURATION.format(
            controller=self.controller, controller_port=controller, folder=self.folder, nodes=nodes,
            forget_seconds=self._forget_seconds,
            completions="jobcomp/filetxt" if self._completions else "jobcomp/none",
        )  # fmt: skip

    def _where(self, name: str) -> str:
        return f"NodeAddr=127.0.0.1 NodeHostname={socket.gethostname()}"

    def _namespace(self) -> psutil.Process:
        """Process 1 of the namespace, as it is called out here."""
        return psutil.Process(self._keeper.pid).children()[0]

    def _daemons(self, daemon: str, words: Sequence[str]) -> list[psutil.Process]:
        found = []
        for process in self._namespace().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                line = process.cmdline()
                if line and Path(line[0]).name == daemon and set(words) <= set(line):
                    found.append(process)
        return found

    def _wait(self, condition: Callable[[], object]) -> None:
        until(condition, otherwise=lambda: f"Slurm's logs are in {self.folder}/log")


class SlurmOnHosts(Slurm):
    """The same on hosts that are hosts (network.py): a node on each, the controller on the first, where users log in.

    It ends with them.
    """

    def __init__(self, folder: Path, network: Network, **how: Any) -> None:
        super().__init__(folder, **how)
        self.names, self._network = [host.name for host in network], network
        self._first = network[self.names[0]]
        self.controller = f"{self._first.name}({self._first.address})"

    def login(self, folder: Path | str = "/") -> list[str]:
        return self._first.into(folder)

    def stop(self) -> None:
        """Its hosts end it."""

    def _enter(self) -> None:
        """The hosts are there."""

    def _into(self, name: str) -> list[str]:
        return self._network[name].into()

    def _where(self, name: str) -> str:
        return f"NodeAddr={self._network[name].address} NodeHostname={name}"


@contextlib.contextmanager
def running(folder: Path, **how: Any) -> Iterator[Slurm]:
    slurm = Slurm(folder, **how)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
