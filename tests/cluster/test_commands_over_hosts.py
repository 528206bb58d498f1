"""Commands of a user's own over two hosts, by each launcher as people write it: observed on both, and in turns."""

from __future__ import annotations

from collections import Counter

import pytest
from eventually import until
from network import Network
from over_hosts import COMMANDS, QUICK, Sweep, sweeps_of_commands

from scaling_study.records.schema import Record

IN_TURNS = "{warm: true, rounds: 2, block_seconds: 0.05, min_steps: 4, min_seconds: 0, repeats: 1, max_repeats: 1}"
BY_SSH = [name for name in COMMANDS if name != "srun"]


def ran(network: Network, name: str, launchers: list[str], measure: str = QUICK) -> list[Record]:
    folder = network.shared / name
    sweep = Sweep(folder, sweeps_of_commands(folder, launchers), measure, A_PASSWORD="s3cret")
    code, said = sweep.run(network["h1"])
    records = sweep.records()
    assert (code, Counter(record.status for record in records)) == (0, {"ok": len(launchers)}), (
        f"{said}\n{[record.reason for record in records]}\n{sweep.logs()}"
    )
    assert {tuple(rank.host for rank in record.ranks) for record in records} == {("h1", "h2")}
    until(lambda: not any(host.processes() for host in network))
    return records


def test_commands_over_hosts_by_every_launcher(network: Network) -> None:
    records = ran(network, "commands", BY_SSH)
    timed = {len(rank.step_seconds) for record in records for rank in record.ranks}
    assert timed == {3}, "of the steps 2 to 5 the third is looked into, and timed on no rank"


@pytest.mark.long
def test_commands_over_hosts_take_turns(network: Network) -> None:
    records = ran(network, "in-turns", ["torchrun", "horovodrun"], IN_TURNS)
    assert {record.launch.partition("/")[0] for record in records} == {"1"}
    at = sorted((block.at, block.round) for record in records for block in record.ranks[0].blocks)
    assert [round for _, round in at] == [0, 0, 1, 1]
