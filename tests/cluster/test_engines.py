"""One small study over two hosts, by every launcher that there is: real ranks, and real traffic between the hosts."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventually import until
from network import Network
from over_hosts import BIN, OVER_HOSTS, Sweep

from scaling_study.records import results
from scaling_study.settings import CHECKOUT

HERE, PROGRAMS = (shlex.quote(str(folder)) for folder in (CHECKOUT, BIN))  # as a shell is told
GRADIENT_BYTES = 78_042 * 4  # of resnet8 in fp32, in one step
STEPS = 4  # warmed up and timed, in which gradients are exchanged


@pytest.fixture(scope="module")
def four(may_make_hosts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with Network(4, tmp_path_factory.mktemp("four"), cores=("0", "1", "0", "1")) as made:
        yield made


@pytest.mark.parametrize(
    ("hosts", "launcher"),
    [
        *(("network", launcher) for launcher in OVER_HOSTS),
        *(("four", launcher) for launcher in ("horovodrun --gloo", "horovodrun --mpi", "torchrun")),
    ],
)
def test_a_study_over_hosts(hosts: str, launcher: str, request: pytest.FixtureRequest) -> None:
    """Of two, or a ring of four: every host sends to one and hears from another."""
    over: Network = request.getfixturevalue(hosts)
    names, slots = [host.name for host in over], [f"{host.name}:1" for host in over]
    keys = OVER_HOSTS[launcher].replace("workers: 2, hosts: 2", f"workers: {len(names)}, hosts: {len(names)}")
    sweep = Sweep(over.shared / launcher, [keys], A_PASSWORD="s3cret")
    machine_file = sweep.machine_file(interface="eth0", environment={"MY_SETTING": "of the machine"})
    before = [host.bytes_sent() for host in over]
    options = ("--machine", machine_file, "--hosts", ",".join(slots))
    code, said = sweep.run(over["h1"], *options, seconds=600)
    (record,) = sweep.records()
    assert (code, record.status) == (0, "ok"), f"{said}\n{sweep.logs()}"
    assert [rank.host for rank in record.ranks] == names and record.hosts == slots
    for host, sent in zip(over, before, strict=True):
        assert host.bytes_sent() - sent > STEPS * GRADIENT_BYTES, "at least half of each gradient, there and back"
        until(lambda host=host: not host.processes(), otherwise=host.processes)
    assert "s3cret" not in sweep.logs()
    assert record.environment["MY_SETTING"] == "of the machine"
    assert record.machine_file["interface"] == "eth0"


def test_without_a_machine_file_names_decide_also_for_a_model_of_a_file(network: Network) -> None:
    """The file lies beside the study, and no process starts there."""
    own = [keys.replace("model: resnet8, data: synthetic", "model: 'own.py:load'") for keys in OVER_HOSTS.values()]
    sweep = Sweep(network.shared / "names", own)
    (sweep.folder / "beside").mkdir()
    sweep.file = sweep.file.rename(sweep.folder / "beside" / "study.yaml")
    shutil.copy(CHECKOUT / "examples" / "workload_package" / "sine_mlp.py", sweep.folder / "beside" / "own.py")
    code, said = sweep.run(network["h1"])
    records = sweep.records()
    assert (code, {record.status for record in records}) == (0, {"ok"}), f"{said}\n{sweep.logs()}"
    assert len(records) == len(OVER_HOSTS)
    assert {tuple(rank.host for rank in record.ranks) for record in records} == {("h1", "h2")}
    assert {rank.data_source for record in records for rank in record.ranks} == {"sine"}


@pytest.mark.parametrize("launcher", OVER_HOSTS)
def test_the_drivers_own_name_may_be_its_loopback(hosts: Network, launcher: str) -> None:
    """As Debian has it, where a machine file names the interface. Its sshd listens on eth0 alone."""
    known = (hosts.folder / "hosts").read_text()
    (own := hosts.shared / "own").write_text(known.replace("10.77.0.1 h1", "127.0.1.1 h1"))
    hosts["h1"].plant(own, Path("/etc/hosts"))
    sweep = Sweep(hosts.shared / launcher, [OVER_HOSTS[launcher]])
    code, said = sweep.run(hosts["h1"], "--machine", sweep.machine_file(interface="eth0"))
    (record,) = sweep.records()
    assert (code, record.status) == (0, "ok"), f"{said}\n{sweep.logs()}"
    assert [rank.host for rank in record.ranks] == ["h1", "h2"] and record.hosts == ["h1:1", "h2:1"]


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


SCRIPT = "data_parallel/torch_ddp.py --model resnet8 --data synthetic --device cpu --min-seconds 0 --max-steps 3"
AGENT = "--nnodes 2 --node-rank $NODE_RANK --nproc-per-node 1 --master-addr $MASTER_ADDR --master-port $MASTER_PORT"
BY_HAND = {  # as docs/guide/hosts-and-slurm.md has it, and nothing else of ours
    "ranks": f"MASTER_ADDR=h1 MASTER_PORT=29500 WORLD_SIZE=2 RANK=%d; {PROGRAMS}/python {SCRIPT}",
    "agents": f"MASTER_ADDR=h1 MASTER_PORT=29501 NODE_RANK=%d; {PROGRAMS}/torchrun {AGENT} {SCRIPT}",
}


@pytest.mark.parametrize("what", BY_HAND)
def test_what_is_started_by_hand_on_each_node_finds_the_other(network: Network, what: str) -> None:
    told = f"export PYTHONPATH={HERE} {BY_HAND[what]}"
    before = network["h2"].bytes_sent()
    line = f"ssh h2 {shlex.quote(f'cd {HERE}; {told % 1}')} & {told % 0}; wait"
    done = network["h1"].run("sh", "-c", line, folder=CHECKOUT)
    assert "Total images/sec on 2 worker(s)" in done.stdout, done.stdout + done.stderr
    assert network["h2"].bytes_sent() - before > GRADIENT_BYTES
