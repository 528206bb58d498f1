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


@pytest.fixture
def refused(may_make_hosts: None, tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """refused(what is done to the network, options of run_sweep.py): the lines of its refusal."""

    def run(wrong: Callable[[Network], object], *options: str, sshd: tuple[str, ...] = (), workers: int = 2,
            cores: tuple[str, str] = ("0", "1"), **machine_file: object) -> list[str]:  # fmt: skip
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


def nothing(network: Network) -> None: ...


def test_a_host_that_is_unreachable(refused: Callable[..., list[str]]) -> None:
    (line,) = refused(lambda network: network["h2"].unplug())
    assert line.startswith("error: h2: ssh: connect to host h2 port 22: ")
    assert line.endswith(": check that it is up and that this is its address: ping h2")


def test_a_host_that_has_another_key(refused: Callable[..., list[str]]) -> None:
    def swap_keys(network: Network) -> None:
        known = network.folder / "known_hosts"
        known.write_text(known.read_text().replace(network["h2"].key, network["h1"].key))

    assert refused(swap_keys) == [
        "error: h2: ssh: Host key verification failed: known_hosts has no key for it, or another one: "
        "check it, then `ssh h2` once"
    ]


def test_a_host_that_does_not_know_this_user(refused: Callable[..., list[str]]) -> None:
    def forget(network: Network) -> None:
        (network.folder / "id.pub").write_text(network["h2"].key)

    (line,) = refused(forget)
    assert line.startswith("error: h2: ssh: ") and line.endswith(
        "Permission denied (publickey): it does not accept this user's key: ssh-copy-id h2"
    )


def test_a_host_without_the_environment(refused: Callable[..., list[str]]) -> None:
    def remove(network: Network) -> None:
        network["h2"].run("mount", "-t", "tmpfs", "tmpfs", str(Path(sys.prefix)), check=True)

    (line,) = refused(remove)
    assert line.startswith("error: h2: ") and sys.executable in line
    assert line.endswith(": every host needs the same environment in the same place")


def test_a_host_without_the_interface(refused: Callable[..., list[str]]) -> None:
    assert refused(nothing, interface="ib0") == [
        f"error: {host}: no interface ib0 with an address, only eth0 (machine file: interface)" for host in ("h1", "h2")
    ]


def test_a_host_with_other_code(refused: Callable[..., list[str]], tmp_path: Path) -> None:
    def change(network: Network) -> None:
        clock = CHECKOUT / "scaling_study" / "measure" / "clock.py"
        (changed := tmp_path / "clock.py").write_text(f"{clock.read_text()}\n# better\n")
        network["h2"].plant(changed, clock)

    (line,) = refused(change)
    assert line.startswith("error: h2: its code differs from h1's: scaling_study/measure/clock.py (")
    assert line.endswith(f"update {CHECKOUT} to the same state")


def test_a_host_with_another_version(refused: Callable[..., list[str]], tmp_path: Path) -> None:
    here = importlib.metadata.version("torch")

    def age(network: Network) -> None:
        facts = Path(str(importlib.metadata.distribution("torch").locate_file(f"torch-{here}.dist-info/METADATA")))
        (old := tmp_path / "METADATA").write_text(facts.read_text().replace(f"\nVersion: {here}", "\nVersion: 1.13.1"))
        network["h2"].plant(old, facts)

    assert refused(age) == [f"error: h2: torch 1.13.1, h1 has {here}: make setup"]


def test_a_host_whose_clock_is_apart(refused: Callable[..., list[str]], tmp_path: Path) -> None:
    if not shutil.which("g++"):
        pytest.skip("no g++, to compile another clock with")
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "-o", str(tmp_path / "shim.so"), str(SHIM), "-ldl"], check=True)
    (tmp_path / "stepped").touch()
    setting = f"SetEnv LD_PRELOAD={tmp_path}/shim.so CLOCK_FILE={tmp_path}/stepped"
    (line,) = refused(nothing, sshd=("", setting))
    assert line.startswith("error: h2: its clock is 3600.0 s behind this host's, so that errors cannot be ordered: ")
    assert line.endswith("start chrony or ntpd there")


def test_a_host_whose_own_name_is_its_loopback(refused: Callable[..., list[str]], tmp_path: Path) -> None:
    def misname(network: Network) -> None:
        hosts = (network.folder / "hosts").read_text()
        (changed := tmp_path / "hosts").write_text(f"127.0.1.1 h2\n{hosts}")
        network["h2"].plant(changed, Path("/etc/hosts"))

    (line,) = refused(misname)
    assert line.startswith("error: h2: its hostname resolves to 127.0.1.1 there, ")


def test_a_host_that_does_not_share_the_results(refused: Callable[..., list[str]], tmp_path: Path) -> None:
    def hide(network: Network) -> None:
        (tmp_path / "sweep").mkdir()
        network["h2"].run("mount", "-t", "tmpfs", "tmpfs", str(tmp_path / "sweep"), check=True)

    (line,) = refused(hide)
    assert line == f"error: h2: has no {tmp_path}/sweep/over: --results must be a folder that all hosts share"


def test_a_host_with_too_few_cores(refused: Callable[..., list[str]]) -> None:
    assert refused(nothing, "--hosts", "h1:2,h2:2", workers=4, cores=("0-1", "1")) == [
        "error: h2: has 1 cores, but its workers need 2: give it fewer slots"
    ]


def test_a_host_under_two_names(refused: Callable[..., list[str]]) -> None:
    def rename(network: Network) -> None:
        with (network.folder / "hosts").open("a") as file:
            file.write("10.77.0.2 alias\n")
        with (network.folder / "known_hosts").open("a") as file:
            file.write(f"alias {network['h2'].key}")

    assert refused(rename, "--hosts", "h2:1,alias:1") == [
        "error: alias: its hostname is h2, as is that of h2: list a host once, with all its slots; "
        "different hosts need different hostnames"
    ]


def test_everything_that_is_wrong_is_said_at_once(refused: Callable[..., list[str]], tmp_path: Path) -> None:
    def confuse(network: Network) -> None:
        clock = CHECKOUT / "scaling_study" / "measure" / "clock.py"
        (changed := tmp_path / "clock.py").write_text("")
        network["h2"].plant(changed, clock)

    assert len(refused(confuse, interface="ib0")) == 3
