"""Ranks on several hosts, and whatever may happen to them, their driver and their hosts: nothing lives on anywhere."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import psutil
import pytest
from eventually import until
from network import Host, Network
from over_hosts import LONG, OVER_HOSTS, Sweep, words

DRIVER = "run_sweep.py"
DEAD_SECONDS = 10.0  # within which processes are gone after their driver's death, on every host


def one(hosts: Network, host: str, word: str) -> psutil.Process:
    """The only process of a host whose command line has this word."""
    (process,) = (p for p in hosts[host].processes() if word in " ".join(words(p)))
    return process


class Running:
    """A study over two hosts, in the middle of its only trial."""

    def __init__(self, hosts: Network, launcher: str) -> None:
        self.hosts, self.sweep = hosts, Sweep(hosts.shared / "sweep", [OVER_HOSTS[launcher]], LONG)
        self._nsenter = self.sweep.start(hosts["h1"])
        until(lambda: "Running warm-up" in self.sweep.logs(), 150, self.sweep.said)
        until(lambda: self.ranks("h2"), otherwise=self.sweep.logs)

    def one(self, host: str, word: str) -> psutil.Process:
        return one(self.hosts, host, word)

    def driver(self) -> psutil.Process:
        return self.one("h1", DRIVER)

    def ranks(self, host: str) -> list[psutil.Process]:
        return [p for p in self.hosts[host].processes() if "--record" in words(p) and "--model" in words(p)]

    def gone(self, *names: str, seconds: float = DEAD_SECONDS) -> float:
        return until(lambda: not any(self.left(name) for name in names), seconds, lambda: [*map(self.left, names)])

    def left(self, name: str) -> list[str]:
        """What runs on a host, but for connections that its sshd does not know to be cut."""
        said = [" ".join(words(p))[:120] for p in self.hosts[name].processes()]
        return [one for one in said if one and not one.startswith("sshd: ")]

    def fails(self, node: bool) -> None:
        """Wait for its end: the trial has failed, by its node or by itself."""
        assert self.ends() == 1
        (record,) = self.sweep.records()
        assert record.status == "failed" and record.reason.startswith("node_failed: h2: ") == node, record.reason

    def ends(self, seconds: float = 60.0) -> int:
        return self._nsenter.wait(seconds)


def temporary(host: Host) -> list[str]:
    return [name for name in host.run("ls", "/tmp").stdout.split() if name.startswith("scaling-study-")]


@pytest.fixture
def running(hosts: Network) -> Callable[[str], Running]:
    return lambda launcher: Running(hosts, launcher)


@pytest.mark.parametrize("launcher", OVER_HOSTS)
def test_everything_ends_when_the_driver_is_killed(running: Callable[[str], Running], launcher: str) -> None:
    made = running(launcher)
    made.driver().kill()
    made.gone("h1", "h2")
    assert temporary(made.hosts["h1"]) == temporary(made.hosts["h2"]) == []


@pytest.mark.parametrize("launcher", ["horovodrun --mpi", "torchrun"])
def test_a_stopped_rank_on_another_host_ends_with_its_driver(running: Callable[[str], Running], launcher: str) -> None:
    made = running(launcher)
    for rank in made.ranks("h2"):
        rank.suspend()
    made.driver().kill()
    made.gone("h1", "h2")


@pytest.mark.parametrize("launcher", ["horovodrun --gloo", "mpirun"])
def test_ranks_elsewhere_end_even_if_driver_and_supervisor_are_killed(
    running: Callable[[str], Running], launcher: str
) -> None:
    made = running(launcher)
    supervisor, driver = made.one("h1", "supervisor.main"), made.driver()
    supervisor.suspend()  # it must not see the driver die
    driver.kill()
    supervisor.kill()
    made.gone("h2")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_driver_ends_everything(running: Callable[[str], Running], number: signal.Signals) -> None:
    made = running("horovodrun --mpi")
    os.kill(made.driver().pid, number)
    until(lambda: not made.left("h2") and not made.ranks("h1"), DEAD_SECONDS, lambda: made.left("h2"))
    assert made.ends() == 130 and made.sweep.records() == []
    made.gone("h1")


HITS: dict[str, tuple[Callable[[Running], object], tuple[str, ...], bool]] = {  # ..., launchers, is it its host's fault
    "a host dies": (lambda made: made.hosts["h2"].die(), ("horovodrun --gloo", "horovodrun --mpi", "torchrun"), True),
    "its cable is pulled": (lambda made: made.hosts["h2"].unplug(), ("torchrun",), True),
    "an agent is killed": (lambda made: made.one("h2", "agent.main").kill(), ("torchrun",), True),
    "a rank is killed": (
        lambda made: made.ranks("h2")[-1].kill(),
        ("horovodrun --gloo", "horovodrun --mpi", "mpirun", "torchrun"),
        False,
    ),
}


@pytest.mark.parametrize(
    ("what", "launcher"), [(what, launcher) for what, (_, launchers, _) in HITS.items() for launcher in launchers]
)
def test_what_ends_elsewhere_fails_its_trial_and_leaves_nothing(
    running: Callable[[str], Running], what: str, launcher: str
) -> None:
    made, (hit, _, node) = running(launcher), HITS[what]
    hit(made)
    made.fails(node)
    made.gone("h1", "h2")


def test_a_port_that_is_taken_is_left_to_its_holder(hosts: Network) -> None:
    """Where workers are to meet: on this host the next free port is taken; on another one, at the second attempt."""
    sweep = Sweep(hosts.shared / "sweep", [OVER_HOSTS["torchrun"]])
    shown = sweep.run(hosts["h1"], "--dry-run")[1]
    port = int(shown.partition("--rdzv-endpoint h1:")[2].split()[0])
    listen = f"import socket, time; s = socket.create_server(('', {port})); time.sleep(600)"
    holders = [host.start("python3", "-c", listen) for host in hosts]
    assert sweep.run(hosts["h1"])[0] == 0, sweep.said() + sweep.logs()
    (record,) = sweep.records()
    assert any(note.startswith(f"port {port} is in use by process ") for note in record.notes), record.notes
    there = Sweep(hosts.shared / "there", [OVER_HOSTS["torchrun"]])
    assert there.run(hosts["h1"], "--hosts", "h2:1,h1:1")[0] == 0, there.said() + there.logs()
    (record,) = there.records()
    assert record.attempts == 2 and any("tried again after: port: " in note for note in record.notes), record.notes
    for holder in holders:
        holder.kill()


# --- in rounds: measured in turn, stopped by agents, ended with their driver


FEW = "warm: true, block_seconds: 0.05, warmup_steps: 1, min_steps: 3, min_seconds: 0, repeats: 1, max_repeats: 1"
SINGLE = "{framework: single, model: resnet8, data: synthetic, cores_per_worker: 1}"


def ranks(hosts: Network, host: str) -> list[psutil.Process]:
    """Of all launches, there."""
    return [p for p in hosts[host].processes() if any("in_blocks.py" in word for word in words(p)[1:3])]


def states(hosts: Network, host: str) -> list[str]:
    found = []
    for rank in ranks(hosts, host):
        try:
            found.append(rank.status())
        except psutil.Error:
            found.append("gone")
    return found


def study(hosts: Network, rounds: int, *launchers: str) -> Sweep:
    sweeps = [SINGLE, *(OVER_HOSTS[name] for name in launchers)]
    return Sweep(hosts.shared / "sweep", sweeps, f"{{{FEW}, rounds: {rounds}}}")


def test_ranks_of_two_hosts_take_turns_with_all_others(hosts: Network) -> None:
    sweep = study(hosts, 3, "horovodrun --gloo", "horovodrun --mpi", "mpirun", "torchrun")
    code, said = sweep.run(hosts["h1"])
    records = sweep.records()
    assert (code, len(records)) == (0, 5), said
    for record in records:
        assert (record.status, record.trial.warm, record.launch[:4]) == ("ok", True, "1/0-"), record.reason
        assert len({rank.host for rank in record.ranks}) == (record.trial.hosts or 1)
        assert all([block.round for block in rank.blocks] == [0, 1, 2] for rank in record.ranks)
    until(lambda: not ranks(hosts, "h1") + ranks(hosts, "h2"), 60.0)


def test_whoever_is_not_measured_is_stopped_on_every_host_and_dies_with_the_driver(hosts: Network) -> None:
    sweep = study(hosts, 1000, "horovodrun --mpi", "torchrun")
    sweep.start(hosts["h1"])
    until(lambda: "block 4 of 1000" in sweep.said(), 150, sweep.said)
    seen = [(states(hosts, "h2"), states(hosts, "h2")) for _ in range(40)]
    assert all(len(first) == 2 for first, _ in seen)
    assert any(first.count(psutil.STATUS_STOPPED) == 1 for first, _ in seen), "the other one is measured"
    assert not [first for first, then in seen if first == then and psutil.STATUS_STOPPED not in first]
    one(hosts, "h1", DRIVER).kill()
    until(lambda: not ranks(hosts, "h1") + ranks(hosts, "h2"), 60.0)


def test_a_host_that_dies_ends_what_has_ranks_there(hosts: Network) -> None:
    sweep = study(hosts, 100, "torchrun")
    nsenter = sweep.start(hosts["h1"])
    until(lambda: "block 4 of 100" in sweep.said(), 150, sweep.said)
    hosts["h2"].die()
    assert nsenter.wait(150) == 1, sweep.said()
    records = {record.trial.framework: record for record in sweep.records()}
    assert records["torch_ddp"].status == "failed"
    assert records["torch_ddp"].reason.startswith("node_failed: h2: "), records["torch_ddp"].reason
    assert records["single"].status == "ok" and len(records["single"].ranks[0].blocks) == 100, "it went on"
    assert not ranks(hosts, "h1")
