"""The launchers of the environment, with two real ranks: every trap that Horovod and MPI hold is met here once."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

BIN = Path(sys.executable).parent
MPIRUN = ["mpirun", "--allow-run-as-root", "-np", "2"]
Launch = Callable[..., str]


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    """Write a script that does something once it has joined the ranks."""

    def write(does: str, before: str = "") -> Path:
        imports = "import os, sys, time, psutil, torch\nimport horovod.torch as hvd\n"
        path = tmp_path / "script.py"
        path.write_text(f"{imports}{before}\nhvd.init()\ntorch.set_num_threads(1)\n{textwrap.dedent(does)}")
        return path

    return write


@pytest.fixture
def horovodrun(script: Callable[..., Path]) -> Launch:
    """Run a script on two ranks and return all that was printed."""

    def launch(*options: str, does: str, before: str = "", prefix: tuple[str, ...] = (), **environ: str | None) -> str:
        inherited = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **environ}
        argv = [*prefix, str(BIN / "horovodrun"), "-np", "2", *options, "python", str(script(does, before))]
        ended = subprocess.run(
            argv,
            env={name: value for name, value in inherited.items() if value is not None},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        assert ended.returncode == 0, ended.stdout
        return ended.stdout

    return launch


SUM = "print('MPI' if hvd.mpi_enabled() else 'Gloo', hvd.allreduce(torch.ones(3) * hvd.rank(), op=hvd.Sum).tolist())"


# --- which controller, and from where


@pytest.mark.slow
def test_the_build_has_both_controllers() -> None:
    shown = subprocess.run([BIN / "horovodrun", "--check-build"], capture_output=True, text=True).stdout
    assert {"[X] PyTorch", "[X] MPI", "[X] Gloo"} <= {line.strip() for line in shown.splitlines()}


@pytest.mark.slow
@pytest.mark.parametrize(("option", "controller"), [((), "MPI"), (("--mpi",), "MPI"), (("--gloo",), "Gloo")])
def test_two_ranks_sum(horovodrun: Launch, option: tuple[str, ...], controller: str) -> None:
    assert horovodrun(*option, does=SUM).count(f"{controller} [1.0, 1.0, 1.0]") == 2


@pytest.mark.slow
def test_horovodrun_works_by_its_path_with_nothing_activated(horovodrun: Launch) -> None:
    # ... and without HOME, which Open MPI 5 insists on
    printed = horovodrun(does="print('python', sys.prefix)", PATH=os.defpath, HOME=None, VIRTUAL_ENV=None)
    assert printed.count(f"python {sys.prefix}") == 2


@pytest.mark.slow
def test_plain_mpirun_joins_the_same_ranks(script: Callable[..., Path]) -> None:
    argv = [str(BIN / "mpirun"), *MPIRUN[1:]] if (BIN / "mpirun").exists() else MPIRUN
    ended = subprocess.run([*argv, sys.executable, str(script(SUM))], capture_output=True, text=True, timeout=120)
    assert ended.stdout.count("MPI [1.0, 1.0, 1.0]") == 2, ended.stderr


@pytest.mark.slow
def test_mpi4py_reduces_torch_tensors_in_fp32(horovodrun: Launch) -> None:
    does = """
        from mpi4py import MPI
        tensor = torch.full((1000,), 0.5 + MPI.COMM_WORLD.rank)
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, tensor)
        print("sum", set(tensor.tolist()))
    """
    assert horovodrun("--mpi", does=does).count("sum {2.0}") == 2


# --- waiting


@pytest.mark.slow
def test_a_waiting_rank_yields_its_core_under_mpi(horovodrun: Launch) -> None:
    # Two ranks on one core: a rank that spins keeps the other from what it is waiting for.
    core = str(min(os.sched_getaffinity(0)))
    does = """
        ones = torch.ones(10)
        hvd.allreduce(ones, name="warm-up")
        began = time.perf_counter()
        for _ in range(100):
            hvd.allreduce(ones, name="one")
        print("seconds", time.perf_counter() - began, "yield", os.environ["OMPI_MCA_mpi_yield_when_idle"])
    """

    def seconds(printed: str, setting: str) -> float:
        assert printed.count(f"yield {setting}") == 2
        return max(map(float, re.findall(r"seconds ([\d.]+)", printed)))

    pinned = ("taskset", "--cpu-list", core)
    bare = seconds(horovodrun(does=does, prefix=pinned), "1")
    spinning = seconds(horovodrun(does=does, prefix=pinned, OMPI_MCA_mpi_yield_when_idle="0"), "0")
    assert bare < 0.5 * spinning, f"{bare:.2f} s with yielding, {spinning:.2f} s without"


@pytest.mark.slow
@pytest.mark.parametrize("controller", ["--gloo", "--mpi"])
def test_a_rank_that_stays_away_is_named(horovodrun: Launch, controller: str) -> None:
    does = """
        time.sleep(4 * hvd.rank())
        hvd.allreduce(torch.ones(1), name="late")
    """
    printed = horovodrun(controller, does=does, HOROVOD_STALL_CHECK_TIME_SECONDS="1")
    assert re.search(r"Missing ranks:\s*(\[\S+ *)?1: \[allreduce.late\]", printed.replace("<stderr>:", " ")), printed


# --- which network


CONNECTED = """
    hvd.allreduce(torch.ones(1))
    mine = psutil.Process().net_connections("tcp4")
    print("over", {connection.laddr.ip for connection in mine if connection.status == "ESTABLISHED"})
    hvd.barrier()
"""


@pytest.mark.slow
def test_gloo_takes_the_network_interface_of_the_command_line(horovodrun: Launch) -> None:
    assert horovodrun("--gloo", "--network-interface", "lo", does=CONNECTED).count("over {'127.0.0.1'}") == 2


@pytest.mark.slow
def test_gloo_uses_its_interface_whatever_the_host_is_called(horovodrun: Launch) -> None:
    # On one host horovodrun itself allows nothing but loopback, so the ranks are told in its place.
    up = {name for name, state in psutil.net_if_stats().items() if state.isup and name != "lo"}
    found = [(name, a.address) for name in up for a in psutil.net_if_addrs()[name] if a.family == socket.AF_INET]
    if not found:
        pytest.skip("this machine has no network interface but loopback")
    name, address = found[0]
    before = f"os.environ['HOROVOD_GLOO_IFACE'] = {name!r}"
    assert horovodrun("--gloo", before=before, does=CONNECTED).count(f"over {{{address!r}}}") == 2


# --- what Horovod does not do


def in_one_process(script: Path) -> subprocess.CompletedProcess[str]:
    """Run a script that Horovod joins alone."""
    return subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_bf16_is_refused_in_words(script: Callable[..., Path]) -> None:
    ended = in_one_process(script("hvd.allreduce(torch.ones(1, dtype=torch.bfloat16))"))
    assert "Tensor type torch.BFloat16Tensor is not supported" in ended.stderr


@pytest.mark.slow
def test_one_process_registers_no_hooks(script: Callable[..., Path]) -> None:
    does = """
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        model(torch.ones(1, 2)).sum().backward()
        print("hooks", len(optimizer._grad_accs), "reductions", len(optimizer._handles))
    """
    assert in_one_process(script(does)).stdout == "hooks 0 reductions 0\n"


# --- being stopped


@pytest.mark.slow
@pytest.mark.parametrize("controller", ["--gloo", "--mpi"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_rank_survives_its_launcher(script: Callable[..., Path], controller: str, number: signal.Signals) -> None:
    path = script("print('joined', flush=True); time.sleep(120)")
    argv = [BIN / "horovodrun", "-np", "2", controller, "python", path]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as launcher:
        assert launcher.stdout
        joined = 0
        while joined < 2:
            joined += "joined" in launcher.stdout.readline()
        ranks = psutil.Process(launcher.pid).children(recursive=True)
        launcher.send_signal(number)
        began = time.monotonic()
        _, alive = psutil.wait_procs(ranks, timeout=30)
        for process in alive:
            process.kill()
    assert not alive, f"{len(alive)} processes live {time.monotonic() - began:.0f} s after {number.name}"
