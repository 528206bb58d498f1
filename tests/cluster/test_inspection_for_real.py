"""What can be wrong with a host before a trial starts, each done to a real one: one clear line, nothing started."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from network import Network
from over_hosts import OVER_HOSTS, Sweep

from scaling_study.settings import CHECKOUT

SHIM = CHECKOUT / "tests" / "faults" / "shim.cpp"
CLOCK = CHECKOUT / "scaling_study" / "measure" / "clock.py"
TORCH = importlib.metadata.version("torch")


@pytest.fixture
def refused(may_make_hosts: None, tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """refused(what is done to the network, options of run_sweep.py): the lines of its refusal."""

    def run(wrong: Callable[[Network], object] = lambda network: None, *options: str, sshd: tuple[str, ...] = (),
            workers: int = 2, cores: tuple[str, str] = ("0", "1"), **machine_file: object) -> list[str]:  # fmt: skip
        with Network(2, tmp_path, cores=cores, sshd=sshd) as network:
            wrong(network)
            sweep = Sweep(tmp_path / "sweep", [OVER_HOSTS["torchrun"].replace("workers: 2", f"workers: {workers}")])
            if machine_file:
                options = (*options, "--machine", sweep.machine_file(**machine_file))
            code, said = sweep.run(network["h1"], *options, seconds=60)
            assert code == 1, said
            assert not list(sweep.folder.glob("over/trials/*")), "nothing was started"
            assert [host.processes() for host in network] == [[], []]
            return said.strip().splitlines()

    yield run


def planted(network: Network, text: str, instead_of: Path) -> None:
    """Let h2 alone see another text in some place."""
    (file := network.shared / instead_of.name).write_text(text)
    network["h2"].plant(file, instead_of)


def another_key(network: Network) -> None:
    known = network.folder / "known_hosts"
    known.write_text(known.read_text().replace(network["h2"].key, network["h1"].key))


def forgets_the_user(network: Network) -> None:
    (network.folder / "id.pub").write_text(network["h2"].key)


def nothing_there(network: Network, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    network["h2"].run("mount", "-t", "tmpfs", "tmpfs", str(folder), check=True)


def other_version(network: Network) -> None:
    facts = Path(str(importlib.metadata.distribution("torch").locate_file(f"torch-{TORCH}.dist-info/METADATA")))
    planted(network, facts.read_text().replace(f"\nVersion: {TORCH}", "\nVersion: 1.13.1"), facts)


def own_name_is_loopback(network: Network) -> None:
    planted(network, f"127.0.1.1 h2\n{(network.folder / 'hosts').read_text()}", Path("/etc/hosts"))


WRONG: dict[str, tuple[Callable[[Network], object], tuple[str, ...]]] = {  # what is done -> what is said of h2
    "unreachable": (lambda network: network["h2"].unplug(), ("ssh: connect to host h2 port 22: ", "ping h2")),
    "another key": (another_key, ("ssh: Host key verification failed", "`ssh h2` once")),
    "does not know this user": (forgets_the_user, ("ssh: ", "Permission denied (publickey)", "ssh-copy-id h2")),
    "no environment": (lambda network: nothing_there(network, Path(sys.prefix)), (sys.executable, "same environment")),
    "other code": (
        lambda network: planted(network, f"{CLOCK.read_text()}\n# better\n", CLOCK),
        ("its code differs from h1's: scaling_study/measure/clock.py (", f"update {CHECKOUT}"),
    ),
    "another version": (other_version, (f"torch 1.13.1, h1 has {TORCH}: make setup",)),
    "its own name is its loopback": (own_name_is_loopback, ("its hostname resolves to 127.0.1.1 there",)),
    "does not share the results": (
        lambda network: nothing_there(network, network.shared / "sweep"),
        ("/sweep/over: --results must be a folder that all hosts share",),
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_a_host_is_one_line(refused: Callable[..., list[str]], what: str) -> None:
    done, words = WRONG[what]
    (line,) = refused(done)
    assert line.startswith("error: h2: ") and all(word in line for word in words), line


def test_a_host_without_the_interface(refused: Callable[..., list[str]]) -> None:
    assert refused(interface="ib0") == [
        f"error: {host}: no interface ib0 with an address, only eth0 (machine file: interface)" for host in ("h1", "h2")
    ]


def test_a_host_whose_clock_is_apart(refused: Callable[..., list[str]], tmp_path: Path) -> None:
    if not shutil.which("g++"):
        pytest.skip("no g++, to compile another clock with")
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "-o", str(tmp_path / "shim.so"), str(SHIM), "-ldl"], check=True)
    (tmp_path / "stepped").touch()
    (line,) = refused(sshd=("", f"SetEnv LD_PRELOAD={tmp_path}/shim.so CLOCK_FILE={tmp_path}/stepped"))
    assert line.startswith("error: h2: its clock is 3600.0 s behind this host's")


def test_a_host_with_too_few_cores(refused: Callable[..., list[str]]) -> None:
    assert refused(lambda network: None, "--hosts", "h1:2,h2:2", workers=4, cores=("0-1", "1")) == [
        "error: h2: has 1 cores, but its workers need 2: give it fewer slots"
    ]


def test_a_host_under_two_names(refused: Callable[..., list[str]]) -> None:
    def rename(network: Network) -> None:
        with (network.folder / "hosts").open("a") as file:
            file.write("10.77.0.2 alias\n")
        with (network.folder / "known_hosts").open("a") as file:
            file.write(f"alias {network['h2'].key}")

    (line,) = refused(rename, "--hosts", "h2:1,alias:1")
    assert line.startswith("error: alias: its hostname is h2, as is that of h2: ")


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ("alias:1,h2:1", "is this host under another name: list it as h1, its hostname, or by the address of one of "),
        ("h1:1,alias:1", "its hostname is h1, as is that of h1: list a host once, with all its slots; "),
    ],
)
def test_the_drivers_host_under_a_name_of_sshs_own(refused: Callable[..., list[str]], listed: str, said: str) -> None:
    def rename(network: Network) -> None:
        with (network.folder / "ssh_config").open("a") as file:
            file.write("Host alias\n  HostName 10.77.0.1\n  HostKeyAlias h1\n")

    (line,) = refused(rename, "--hosts", listed)
    assert line.startswith(f"error: alias: {said}")


def test_the_drivers_host_under_two_names_that_it_knows(refused: Callable[..., list[str]]) -> None:
    assert refused(lambda network: None, "--hosts", "localhost:1,h1:1") == [
        "error: h1: is this host, as is localhost: list a host once, with all its slots"
    ]


def test_everything_that_is_wrong_is_said_at_once(refused: Callable[..., list[str]]) -> None:
    assert len(refused(lambda network: planted(network, "", CLOCK), interface="ib0")) == 3
