"""The launchers of the environment, with two real ranks: every trap that Horovod and MPI hold is met here once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import forked
import psutil
import pytest

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
MPIRUN = BIN / "mpirun" if (BIN / "mpirun").exists() else Path("mpirun")
Launch = Callable[..., list[Any]]

# Joins, does something, and leaves what it has to say in a file of its rank: launchers mix up what ranks print.
SCRIPT = """
import json, os, pathlib, sys, time, psutil, torch
import horovod.torch as hvd
{before}
hvd.init()
torch.set_num_threads(1)
def say(said):
    pathlib.Path(__file__).with_name(f"rank{{hvd.rank()}}.json").write_text(json.dumps(said))
{does}
"""


def written(folder: Path, does: str, before: str = "") -> Path:
    """A script that does something once it has joined the ranks."""
    path = folder / "script.py"
    path.write_text(SCRIPT.format(before=before, does=textwrap.dedent(does)))
    return path


def launch(folder: Path, *launcher: object, does: str, before: str = "", **environ: str) -> list[Any]:
    """Run a script on two ranks and return what each said, in the order of their ranks, then all that was printed.

    The launcher is the real one, and its ranks are forked.
    """
    path = written(folder, does, before)
    done = forked.ended(forked.launch([*map(str, launcher), "python", str(path)], env=environ))
    said = [json.loads(file.read_text()) for file in sorted(path.parent.glob("rank*.json"))]
    return [*said, done.stdout + done.stderr]


@pytest.fixture
def launched(tmp_path: Path) -> Launch:
    return partial(launch, tmp_path)


HOROVODRUN = (BIN / "horovodrun", "-np", "2")
LAUNCHERS = {  # each once, with the controller it is to take
    "mpi": ((*HOROVODRUN, "--mpi"), "MPI"),
    "gloo": ((*HOROVODRUN, "--gloo", "--network-interface", "lo"), "Gloo"),
    "mpirun": ((MPIRUN, "--allow-run-as-root", "-np", "2"), "MPI"),
}
SUM = [1.0, 1.0]
HOOKS = """
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    model(torch.ones(1, 2)).sum().backward()
    hooks = [len(optimizer._grad_accs), len(optimizer._handles)]
    optimizer.synchronize()
"""
FACTS = f"""{HOOKS}
    facts = {{"prefix": sys.prefix, "controller": "MPI" if hvd.mpi_enabled() else "Gloo", "hooks": hooks}}
    facts["sum"] = hvd.allreduce(torch.ones(2) * hvd.rank(), op=hvd.Sum).tolist()
    mine = psutil.Process().net_connections("tcp4")
    facts["addresses"] = sorted({{c.laddr.ip for c in mine if c.status == "ESTABLISHED"}})
    hvd.barrier()
    if hvd.mpi_enabled():
        from mpi4py import MPI
        tensor = torch.full((1000,), 0.5 + MPI.COMM_WORLD.rank)
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, tensor)
        facts["mpi4py"] = sorted(set(tensor.tolist()))
        hvd.barrier()  # the first rank that ends ends MPI for all of them, in the middle of another's Allreduce
    say(facts)
"""


# --- which controller, and from where


@pytest.mark.parametrize("name", LAUNCHERS)
def test_two_ranks_sum_and_mpi4py_reduces_beside_horovod(launched: Launch, name: str) -> None:
    launcher, controller = LAUNCHERS[name]
    for facts in launched(*launcher, does=FACTS)[:2]:
        assert (facts["controller"], facts["sum"]) == (controller, SUM)
        assert facts["hooks"] == [2, 2], "one for each tensor"
        assert facts.get("mpi4py") == ([2.0] if controller == "MPI" else None), "in fp32"
        assert name != "gloo" or facts["addresses"] == ["127.0.0.1"], "the interface of the command line"


def test_horovodrun_works_by_its_path_with_nothing_activated(launched: Launch) -> None:
    # ... and without HOME, which Open MPI 5 insists on. Where no controller is asked for, it is MPI.
    bare = ("env", "-u", "HOME", "-u", "VIRTUAL_ENV", f"PATH={os.defpath}")
    ranks = launched(*bare, *HOROVODRUN, does=FACTS)[:2]
    ours = os.path.realpath(sys.prefix)  # which may be reached by a link
    found = [(os.path.realpath(facts["prefix"]), facts["controller"], facts["sum"]) for facts in ranks]
    assert found == [(ours, "MPI", SUM)] * 2


# --- waiting


@pytest.mark.long
def test_what_a_killed_mpirun_left_behind_does_not_stop_the_next(launched: Launch, tmp_path: Path) -> None:
    # Open MPI keeps a folder named by mpirun's process number, and refuses to start where it finds one. A killed mpirun
    # leaves its own, and process numbers come again: within an hour on a busy machine.
    with subprocess.Popen(["true"]) as newest:
        pass
    for number in range(newest.pid, newest.pid + 400):
        (tmp_path / f"ompi.{number}").mkdir()
        for name in ("", f".{number}"):
            (tmp_path / f"ompi.{number}" / f"pmix.{os.uname().nodename}.tool{name}").write_text("stale\n")
    ranks = launched(*HOROVODRUN, "--mpi", does=FACTS, TMPDIR=str(tmp_path))[:2]
    assert [(facts["controller"], facts["sum"]) for facts in ranks] == [("MPI", SUM)] * 2


@pytest.mark.parametrize("controller", ["--gloo", pytest.param("--mpi", marks=pytest.mark.long)])
def test_a_rank_that_stays_away_is_named(launched: Launch, controller: str) -> None:
    does = """
        time.sleep(4 * hvd.rank())
        hvd.allreduce(torch.ones(1), name="late")
    """
    (printed,) = launched(*HOROVODRUN, controller, does=does, HOROVOD_STALL_CHECK_TIME_SECONDS="1")
    assert "Missing ranks:" in printed and "1: [allreduce.late]" in printed


# --- which network


@pytest.mark.long
def test_gloo_uses_its_interface_whatever_the_host_is_called(launched: Launch) -> None:
    # On one host horovodrun itself allows nothing but loopback, so the ranks are told in its place.
    up = {name for name, state in psutil.net_if_stats().items() if state.isup and name != "lo"}
    found = [(name, a.address) for name in up for a in psutil.net_if_addrs()[name] if a.family == socket.AF_INET]
    if not found:
        pytest.skip("this machine has no network interface but loopback")
    name, address = found[0]
    before = f"os.environ['HOROVOD_GLOO_IFACE'] = {name!r}"
    ranks = launched(*HOROVODRUN, "--gloo", before=before, does=FACTS)[:2]
    assert [facts["addresses"] for facts in ranks] == [[address]] * 2


def test_a_build_that_ignores_the_interface_is_told_from_one_that_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from scaling_study.worker.with_horovod import require_asked_interface

    def asked_for(name: str, by_horovodrun_alone: bool = False) -> None:
        monkeypatch.setenv("HOROVOD_GLOO_IFACE", name)
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "" if by_horovodrun_alone else name)
        require_asked_interface()

    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        asked_for("lo")
        asked_for("ib7", by_horovodrun_alone=True)
        with pytest.raises(SystemExit, match=r"from 127\.0\.0\.1, not by the interface ib7 that was asked"):
            asked_for("ib7")


# --- what Horovod does not do


def test_one_process_registers_no_hooks_and_takes_no_bf16(launched: Launch) -> None:
    does = f"""{HOOKS}
    try:
        hvd.allreduce(torch.ones(1, dtype=torch.bfloat16))
    except Exception as refused:
        say([hooks, str(refused)])
    """
    hooks, refused = launched(BIN / "horovodrun", "-np", 1, "--gloo", does=does)[0]
    assert hooks == [0, 0] and "Tensor type torch.BFloat16Tensor is not supported" in refused


# --- being stopped


@pytest.mark.long  # what is killed among all launchers, once each: tests/faults/test_launcher_faults.py
@pytest.mark.parametrize("controller", ["--gloo", "--mpi"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_rank_survives_its_launcher(tmp_path: Path, controller: str, number: signal.Signals) -> None:
    path = written(tmp_path, "print('joined', flush=True); time.sleep(3600)")
    argv = [*HOROVODRUN, controller, sys.executable, path]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as launcher:
        assert launcher.stdout
        joined = 0
        while joined < 2 and (line := launcher.stdout.readline()):
            joined += line.count("joined")
        ranks = psutil.Process(launcher.pid).children(recursive=True)
        launcher.send_signal(number)
        _, alive = psutil.wait_procs(ranks, timeout=120)
        for process in alive:
            process.kill()
    assert joined == 2 and not alive, f"{len(alive)} processes live on 120 s after {number.name}"
