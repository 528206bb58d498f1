"""One small study over two hosts, by every launcher that there is: real ranks, and real traffic between the hosts."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest
from network import Network
from over_hosts import BIN, OVER_HOSTS, Sweep

from scaling_study.records import results
from scaling_study.settings import CHECKOUT

HERE, PROGRAMS = (shlex.quote(str(folder)) for folder in (CHECKOUT, BIN))  # as a shell is told
GRADIENT_BYTES = 78_042 * 4  # of resnet8 in fp32, in one step
STEPS = 4  # warmed up and timed, in which gradients are exchanged


@pytest.mark.parametrize("launcher", OVER_HOSTS)
def test_a_study_over_two_hosts(network: Network, launcher: str) -> None:
    sweep = Sweep(network.shared / launcher, [OVER_HOSTS[launcher]], A_PASSWORD="s3cret")
    machine_file = sweep.machine_file(interface="eth0", environment={"MY_SETTING": "of the machine"})
    before = [host.bytes_sent() for host in network]
    code, said = sweep.run(network["h1"], "--machine", machine_file)
    (record,) = sweep.records()
    assert (code, record.status) == (0, "ok"), f"{said}\n{sweep.logs()}"
    assert [rank.host for rank in record.ranks] == ["h1", "h2"]
    assert record.hosts == ["h1:1", "h2:1"]
    for host, sent in zip(network, before, strict=True):
        assert host.bytes_sent() - sent > STEPS * GRADIENT_BYTES, "half of each gradient, there and back"
        assert host.processes() == []
    assert "s3cret" not in sweep.logs()
    assert record.environment["MY_SETTING"] == "of the machine"
    assert record.machine_file["interface"] == "eth0"


@pytest.fixture(scope="module")
def four(may_make_hosts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with Network(4, tmp_path_factory.mktemp("four"), cores=("0", "1", "0", "1")) as made:
        yield made


@pytest.mark.parametrize("launcher", ["horovodrun --gloo", "horovodrun --mpi", "torchrun"])
def test_a_study_over_four_hosts(four: Network, launcher: str) -> None:
    """A ring of four: every host sends to one and hears from another."""
    keys = OVER_HOSTS[launcher].replace("workers: 2, hosts: 2", "workers: 4, hosts: 4")
    sweep = Sweep(four.shared / launcher, [keys])
    before = [host.bytes_sent() for host in four]
    code, said = sweep.run(four["h1"], "--hosts", "h1:1,h2:1,h3:1,h4:1", seconds=600)
    (record,) = sweep.records()
    assert (code, record.status) == (0, "ok"), f"{said}\n{sweep.logs()}"
    assert [rank.host for rank in record.ranks] == ["h1", "h2", "h3", "h4"]
    for host, sent in zip(four, before, strict=True):
        assert host.bytes_sent() - sent > STEPS * GRADIENT_BYTES, "3/2 of each gradient"
        assert host.processes() == []


def test_without_a_machine_file_names_decide(network: Network) -> None:
    sweep = Sweep(network.shared / "names", list(OVER_HOSTS.values()))
    code, said = sweep.run(network["h1"])
    records = sweep.records()
    assert (code, {record.status for record in records}) == (0, {"ok"}), f"{said}\n{sweep.logs()}"
    assert len(records) == len(OVER_HOSTS)
    assert {tuple(rank.host for rank in record.ranks) for record in records} == {("h1", "h2")}


def test_hosts_and_hostfile_win_over_the_study(network: Network) -> None:
    sweep = Sweep(network.shared / "option", [OVER_HOSTS["torchrun"]])
    (hostfile := sweep.folder / "hostfile").write_text("h2 slots=4 # the other way round\nh1 slots=1\n")
    for options in (["--hostfile", str(hostfile)], ["--hosts", "h2:4,h1:1"]):
        said = network["h1"].run(
            str(BIN / "python"), str(CHECKOUT / "run_sweep.py"), str(sweep.file), "--dry-run", *options
        )
        assert " h2:1,h1:1 " in said.stdout, said.stdout + said.stderr


def test_the_command_of_a_trial_works_by_hand(network: Network) -> None:
    sweep = Sweep(network.shared / "by hand", [OVER_HOSTS["torchrun"]])
    assert sweep.run(network["h1"])[0] == 0, sweep.said()
    line = results.command_of(sweep.folder / "over", "")
    assert "{node}" in shlex.split(line)
    again = network["h1"].run("sh", "-c", line, folder=CHECKOUT)
    assert again.returncode == 0 and "Total images/sec on 2 worker(s)" in again.stdout, again.stdout + again.stderr


def test_ranks_started_by_hand_on_each_node_find_each_other(network: Network) -> None:
    """As docs/clusters.md has it: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and nothing else of ours."""
    script = "data_parallel/torch_ddp.py --model resnet8 --data synthetic --device cpu --min-seconds 0 --max-steps 3"
    rank = f"MASTER_ADDR=h1 MASTER_PORT=29500 WORLD_SIZE=2 RANK=%d {PROGRAMS}/python {script}"
    remote = shlex.quote(f"cd {HERE} && PYTHONPATH={HERE} {rank % 1}")
    line = f"ssh h2 {remote} & PYTHONPATH={HERE} {rank % 0}; wait"
    before = network["h2"].bytes_sent()
    done = network["h1"].run("sh", "-c", line, folder=CHECKOUT)
    assert "Total images/sec on 2 worker(s)" in done.stdout, done.stdout + done.stderr
    assert network["h2"].bytes_sent() - before > GRADIENT_BYTES


def test_agents_started_by_hand_on_each_node_find_each_other(network: Network) -> None:
    """NODE_RANK instead: one torchrun on each node, two workers in all."""
    script = "data_parallel/torch_ddp.py --model resnet8 --data synthetic --device cpu --min-seconds 0 --max-steps 3"
    agent = f"{PROGRAMS}/torchrun --nnodes 2 --node-rank $NODE_RANK --nproc-per-node 1 " \
            "--master-addr $MASTER_ADDR --master-port $MASTER_PORT "  # fmt: skip
    told = f"export PYTHONPATH={HERE} MASTER_ADDR=h1 MASTER_PORT=29501 NODE_RANK=%d; {agent} {script}"
    line = f"ssh h2 {shlex.quote(f'cd {HERE}; {told % 1}')} & {told % 0}; wait"
    done = network["h1"].run("sh", "-c", line, folder=CHECKOUT)
    assert "Total images/sec on 2 worker(s)" in done.stdout, done.stdout + done.stderr
