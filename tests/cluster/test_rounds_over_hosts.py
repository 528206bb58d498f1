"""Launches in rounds whose ranks are on several hosts: measured in turn, stopped by agents, ended with their driver."""

from __future__ import annotations

import psutil
from network import Network
from over_hosts import OVER_HOSTS, Sweep, until, words

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


def driver(hosts: Network) -> psutil.Process:
    (process,) = (p for p in hosts["h1"].processes() if "run_sweep.py" in " ".join(words(p)))
    return process


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
    until(lambda: "round 4 of 1000" in sweep.said(), 150, sweep.said)
    seen = [(states(hosts, "h2"), states(hosts, "h2")) for _ in range(40)]
    assert all(len(first) == 2 for first, _ in seen)
    assert any(first.count(psutil.STATUS_STOPPED) == 1 for first, _ in seen), "the other one is measured"
    assert not [first for first, then in seen if first == then and psutil.STATUS_STOPPED not in first]
    driver(hosts).kill()
    until(lambda: not ranks(hosts, "h1") + ranks(hosts, "h2"), 60.0)


def test_a_host_that_dies_ends_what_has_ranks_there(hosts: Network) -> None:
    sweep = study(hosts, 100, "torchrun")
    nsenter = sweep.start(hosts["h1"])
    until(lambda: "round 4 of 100" in sweep.said(), 150, sweep.said)
    hosts["h2"].die()
    assert nsenter.wait(150) == 1, sweep.said()
    records = {record.trial.framework: record for record in sweep.records()}
    assert records["torch_ddp"].status == "failed"
    assert records["torch_ddp"].reason.startswith("node_failed: h2: "), records["torch_ddp"].reason
    assert records["single"].status == "ok" and len(records["single"].ranks[0].blocks) == 100, "it went on"
    assert not ranks(hosts, "h1")
