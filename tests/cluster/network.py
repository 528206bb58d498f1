"""Hosts on one machine: each with a network, processes, a name, /tmp and an sshd of its own, all on one switch.

    test ---- pipe ---- unshare ---- sh (process 1 of h1) ---- sshd ---- ...        eth0 10.77.0.1
      |                                                                               |
      |                                                                         p1  switch  p2
      |                                                                                    |
      +------ pipe ---- unshare ---- sh (process 1 of h2) ---- sshd ---- ...        eth0 10.77.0.2

Nothing has a name outside: the rest of the machine sees no interface, no mount and no port of it. Process 1 of a host
reads from a pipe that the test holds. When the test ends, however it does, the pipe is closed, process 1 ends, and
the kernel ends everything else of the host with it. Disks are shared, as by NFS; /tmp, /run and /dev/shm are not.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from scaling_study.settings import CHECKOUT

DATA = Path(os.environ["DATA_ROOT"]).resolve() if os.environ.get("DATA_ROOT") else None
TOOLS = ("ip", "tc", "sshd", "ssh", "ssh-keygen", "unshare", "nsenter", "taskset")
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
SUBNET = "10.77.0"
PRIVATE = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc", "--kill-child"]
HOST = """
set -e
hostname "$NAME"
mount -t tmpfs tmpfs /run; mkdir -m 755 /run/sshd
mount -t tmpfs tmpfs /dev/shm
mkdir "$HERE/tmp"; mount -t tmpfs -o mode=1777 tmpfs "$HERE/tmp"
echo "$SHARED" | while read -r folder; do
  case "$folder" in /tmp/*) mkdir -p "$HERE$folder"; mount --bind "$folder" "$HERE$folder";; esac
done
mount --rbind "$HERE/tmp" /tmp
mount --bind "$NET/hosts" /etc/hosts
mount --bind "$NET/ssh_config" /etc/ssh/ssh_config
echo ready; read plugged_in
ip link set lo up; ip address add "$ADDRESS/24" dev eth0; ip link set eth0 up
sshd=$(command -v sshd); "$sshd" -f "$HERE/sshd_config" -E "$HERE/sshd.log"
echo up; cat
"""  # sh waits for cat, and collects whatever else is orphaned meanwhile
SSHD = """
ListenAddress {address}
HostKey {here}/host_key
PidFile none
AuthorizedKeysFile {net}/id.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
MaxStartups 100
{more}
"""
SSH = """
Host *
  IdentityFile {net}/id
  IdentitiesOnly yes
  UserKnownHostsFile {net}/known_hosts
  GlobalKnownHostsFile none
  LogLevel ERROR
"""


def why_not() -> str:
    """Why there can be no hosts here; empty: there can."""
    if os.geteuid() != 0:
        return "only root may make hosts out of namespaces"
    if missing := [tool for tool in TOOLS if not shutil.which(tool, path=PATH)]:
        packages = {"sshd": "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client", "ip": "iproute2"}
        needed = ", ".join(dict.fromkeys(packages.get(tool, tool) for tool in missing))
        return f"{', '.join(missing)} missing (install {needed})"
    tried = subprocess.run(
        [*PRIVATE, "ip", "link", "add", "br0", "type", "bridge"], capture_output=True, text=True, check=False
    )
    return "" if tried.returncode == 0 else f"no namespaces: {tried.stderr.strip() or tried.returncode}"


class Host:
    """One host: commands run in it, faults happen to it."""

    def __init__(self, network: Network, number: int, cores: str, sshd: str) -> None:
        self.name, self.address, self.network = f"h{number}", f"{SUBNET}.{number}", network
        self.cores, self._port, self.here = cores, f"p{number}", network.folder / f"h{number}"
        self.here.mkdir()
        self.key = _new_key(self.here / "host_key")
        said = SSHD.format(address=self.address, here=self.here, net=network.folder, more=sshd)
        (self.here / "sshd_config").write_text(said, encoding="utf-8")
        settings = {
            "NAME": self.name, "ADDRESS": self.address, "HERE": str(self.here), "NET": str(network.folder),
            "SHARED": "\n".join(map(str, network.seen)), "PATH": PATH,
        }  # fmt: skip
        with (self.here / "init.log").open("w") as log:
            self._holder = subprocess.Popen(
                ["taskset", "-c", cores, *PRIVATE, "sh", "-c", HOST], env=settings, stderr=log,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Of a process that lives in all of the host's namespaces but that of its processes."""
        return self._holder.pid

    def said(self, word: str) -> None:
        """Wait until process 1 has said this."""
        assert self._holder.stdout
        if self._holder.stdout.readline().strip() != word:
            raise RuntimeError(f"{self.name} is not {word}: {(self.here / 'init.log').read_text()}")

    def plug_in(self) -> None:
        assert self._holder.stdin
        self._holder.stdin.write("\n")
        self._holder.stdin.flush()

    def into(self, folder: Path | str = "/") -> list[str]:
        """What stands before a command that is to run on this host, in `folder`."""
        inside = ["--net", "--mount", "--uts", "--ipc", f"--pid=/proc/{self.pid}/ns/pid_for_children"]
        return ["nsenter", f"--target={self.pid}", *inside, f"--wdns={folder}", "taskset", "-c", self.cores]

    def run(self, *command: str, **how: Any) -> subprocess.CompletedProcess[str]:
        """Run a command here to its end; `folder`, and what subprocess.run takes."""
        folder, env = how.pop("folder", "/"), how.pop("env", {**os.environ, "PATH": PATH})
        return subprocess.run(
            [*self.into(folder), *command], env=env, capture_output=True, text=True, **{"check": False, **how}
        )

    def start(self, *command: str, **how: Any) -> subprocess.Popen[str]:
        """Start a command here. What is returned is `nsenter`; the command is its child."""
        folder, env = how.pop("folder", "/"), how.pop("env", {**os.environ, "PATH": PATH})
        return subprocess.Popen([*self.into(folder), *command], env=env, text=True, start_new_session=True, **how)

    def processes(self) -> list[psutil.Process]:
        """What runs here, beside process 1 with its cat and its sshd."""
        try:
            ours = os.readlink(f"/proc/{self.pid}/ns/pid_for_children")
            (first,) = psutil.Process(self.pid).children()
        except (OSError, psutil.Error, ValueError):  # it died, and everything with it
            return []
        return [p for p in psutil.process_iter() if _in(p, ours) and not _belongs_to(first, p)]

    def bytes_sent(self) -> int:
        """What has left through eth0 so far."""
        said = json.loads(self.run("ip", "-json", "-statistics", "link", "show", "eth0").stdout)
        return int(said[0]["stats64"]["tx"]["bytes"])

    def shape(self, rate: str | None) -> None:
        """Let what leaves have at most this rate (`100mbit`); None: as fast as it will. The burst is 2 ms of it."""
        if rate is None:
            self.run("tc", "qdisc", "del", "dev", "eth0", "root")
            return
        burst = max(32_000, int(bits(rate) / 8 * 0.002))
        self.run("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", str(burst),
                 "latency", "50ms", check=True)  # fmt: skip

    def plant(self, file: Path, instead_of: Path) -> None:
        """Let this host alone see another file, or folder, in some place."""
        self.run("mount", "--bind", str(file), str(instead_of), check=True)

    def unplug(self) -> None:
        """Pull the cable: what runs here goes on."""
        self.network.switch("link", "set", self._port, "down")

    def die(self) -> None:
        """Lose power: no process says goodbye, no connection is closed."""
        self.unplug()
        self._holder.send_signal(signal.SIGKILL)
        self._holder.wait()

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()


class Network:
    """Hosts h1, h2, ... while it is open. `shared` is a folder that all of them see under its own path."""

    def __init__(self, hosts: int, shared: Path, cores: Sequence[str] = (), sshd: Sequence[str] = ()) -> None:
        self.shared, self.folder = shared.resolve(), shared.resolve() / "network"
        self.seen = {self.shared, CHECKOUT, Path(sys.prefix), *filter(None, [DATA])}  # on every host, also in /tmp
        self._count, self._cores, self._sshd = hosts, cores, sshd
        self.hosts: list[Host] = []

    def __enter__(self) -> Network:
        self.folder.mkdir()
        self._switch = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "ip link add br0 type bridge; ip link set br0 up; echo up; exec cat"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"PATH": PATH}, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            host.close()
        self._switch.kill()
        self._switch.communicate()

    def __getitem__(self, name: str) -> Host:
        return next(host for host in self.hosts if host.name == name)

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts)

    def _make(self) -> None:
        everywhere = f"0-{(os.cpu_count() or 1) - 1}"
        _new_key(self.folder / "id")
        (self.folder / "ssh_config").write_text(SSH.format(net=self.folder), encoding="utf-8")
        names = [f"{SUBNET}.{number} h{number}" for number in range(1, self._count + 1)]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names, ""]), encoding="utf-8")
        for number in range(1, self._count + 1):
            cores, sshd = (said[number - 1] if said else "" for said in (self._cores, self._sshd))
            self.hosts.append(Host(self, number, cores or everywhere, sshd))
        (self.folder / "known_hosts").write_text("".join(f"{h.name},{h.address} {h.key}" for h in self.hosts))
        assert self._switch.stdout
        self._switch.stdout.readline()
        for number, host in enumerate(self.hosts, 1):
            host.said("ready")
            self.switch("link", "add", f"p{number}", "type", "veth", "peer", "name", "eth0", "netns", str(host.pid))
            self.switch("link", "set", f"p{number}", "master", "br0", "up")
            host.plug_in()
        for host in self.hosts:
            host.said("up")

    def switch(self, *arguments: str) -> None:
        """`ip` in the switch."""
        subprocess.run(
            ["nsenter", f"--target={self._switch.pid}", "--net", "ip", *arguments],
            env={"PATH": PATH}, check=True, capture_output=True,
        )  # fmt: skip


def _new_key(path: Path) -> str:
    """Make a key pair; its public line."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)
    return path.with_name(f"{path.name}.pub").read_text(encoding="utf-8")


def _in(process: psutil.Process, namespace: str) -> bool:
    with contextlib.suppress(OSError, psutil.Error):
        return os.readlink(f"/proc/{process.pid}/ns/pid") == namespace and process.status() != psutil.STATUS_ZOMBIE
    return False


def _belongs_to(first: psutil.Process, process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process == first or (process.ppid() == first.pid and process.name() in ("cat", "sshd"))
    return True


def bits(rate: str) -> float:
    """`100mbit` -> 1e8 a second."""
    number, unit = rate[:-4], rate[-4:]
    return float(number) * {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}[unit]
