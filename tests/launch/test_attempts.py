"""Trials that are started again, and those that are not: real processes, real ports."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from eventually import until

from scaling_study.frameworks import FRAMEWORKS, Framework
from scaling_study.hosts import connections
from scaling_study.hosts.hosts import Host
from scaling_study.launch import attempts, decisions
from scaling_study.launch.attempts import Attempt, Attempts
from scaling_study.launch.supervisor import SupervisorClient
from scaling_study.processes.process import Exit, Interruption
from scaling_study.records import outcome
from scaling_study.records.outcome import Outcome
from scaling_study.records.schema import RankReport, Record
from scaling_study.study.study import Measure
from scaling_study.study.support import ALONE, Cluster
from scaling_study.trial import Trial

HERE = Path(__file__).parents[1]
MEASURE = Measure(timeout_seconds=600.0)


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked_starts: None) -> Iterator[Callable[..., Attempt]]:
    """running("crash", retries=1): what came of a planted script; its folder is tmp_path / "trial"."""
    monkeypatch.setenv("SLEEP_SECONDS", "0")
    folder = tmp_path / "trial"
    folder.mkdir()

    def run(script: str, **measure: int) -> Attempt:
        path = str(HERE / "scripts_that" / f"{script}.py")
        table = Framework(script, path, ("python",), (), FRAMEWORKS["single"].axes)
        monkeypatch.setitem(FRAMEWORKS, script, table)  # type: ignore[arg-type]
        trial = Trial(framework=script, device="cpu", allreduce="none")
        with Interruption() as interruption, SupervisorClient(tmp_path, interruption) as supervisor:
            return Attempts(supervisor).run_with_retries(trial, folder, MEASURE.model_copy(update=measure))

    yield run


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A port that is taken, which the script `listen` wants."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("PORT", str(server.getsockname()[1]))
        yield server


@pytest.mark.slow
def test_a_port_that_is_given_back_meanwhile(
    running: Callable[..., Attempt], held: socket.socket, tmp_path: Path
) -> None:
    def soon() -> None:
        until((tmp_path / "trial" / "attempts" / "1").exists)  # the first attempt is over
        held.close()

    threading.Thread(target=soon, daemon=True).start()
    attempt = running("listen")
    assert (attempt.outcome.status, attempt.number) == ("ok", 2)
    assert list(attempt.notes) == ["tried again after: port: rank 0: [Errno 98] Address already in use"]
    latest = attempt.exit.seconds + 0.9  # what asks for it and what starts it are two processes
    assert attempt.launch_seconds is not None and 0 <= attempt.launch_seconds < latest, "of the last attempt, 1 s later"
    first = tmp_path / "trial" / "attempts" / "1"
    assert (first / "ranks" / "error-0.json").exists() and "Errno 98" in (first / "log.txt").read_text()


@pytest.mark.slow
def test_a_port_that_stays_taken_fails_with_its_kind_after_the_retries(
    running: Callable[..., Attempt], held: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "BACK_OFF_SECONDS", (0.1, 0.2))
    attempt = running("listen", retries=1)
    assert (attempt.outcome.status, attempt.number) == ("failed", 2)
    assert attempt.outcome.reason == "port: rank 0: [Errno 98] Address already in use"
    assert list(attempt.notes) == [f"tried again after: {attempt.outcome.reason}"]
    assert running("listen", retries=0).outcome.reason == attempt.outcome.reason


@pytest.mark.slow
def test_who_asks_the_sweep_to_end_is_not_kept_waiting(
    running: Callable[..., Attempt], held: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "BACK_OFF_SECONDS", (600.0,))

    def soon() -> None:
        until((tmp_path / "trial" / "ranks" / "error-0.json").exists)
        time.sleep(1.0)  # it waits until it may try again, or on a loaded machine is about to
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=soon, daemon=True).start()
    start = time.monotonic()
    attempt = running("listen")
    assert attempt.outcome.status == "cancelled" and time.monotonic() - start < 300


def test_a_clock_that_is_stepped_makes_the_launch_unknown_and_says_so(rank_report: Callable[..., RankReport]) -> None:
    trial, report = Trial(), rank_report(first_step_at=1000.0)
    begun = Record("a", trial.id, trial.configuration, trial, "cancelled")
    attempt = Attempt(Exit(0, 10.0), Outcome("ok", ranks=(report,)), started_at=995.5)
    for started_at in (995.5, 1000.1, 5000.0, 985.0):  # right; back by 0.1 s and more, on by 5 s
        record = replace(attempt, started_at=started_at).completed(begun)
        assert record.launch_seconds == (4.5 if started_at == 995.5 else None)
        assert ["clock was stepped" in note for note in record.notes] == [True] * (started_at != 995.5)
    nothing = Attempt(Exit(1, 10.0), Outcome("failed", "a bug"), started_at=995.5).completed(begun)
    assert (nothing.launch_seconds, nothing.notes) == (None, [])


# --- what launchers say before any rank could speak ---


def launched(tmp_path: Path, *argv: str, **env: str) -> tuple[str, str]:
    """(what is made of it, what it said) of a command that dies at once, as an attempt makes it."""
    with Interruption() as interruption, SupervisorClient(tmp_path, interruption) as supervisor:
        ended = supervisor.run(argv, env, tmp_path / "log.txt", 600.0)
        said = (tmp_path / "log.txt").read_text()
        assert ended.code not in (0, None), f"{ended}: {said}"
        attempt = Attempt(ended, outcome.judge(Trial(device="cpu"), tmp_path, ended), 0.0)
        return attempts.transient_kind(attempt, tmp_path), said


BIN = Path(sys.executable).parent


@pytest.mark.slow
@pytest.mark.skipif(not (BIN / "mpirun").exists(), reason="no mpirun of Open MPI 5 here")
def test_what_mpirun_says_where_another_has_left_its_folder(tmp_path: Path) -> None:
    stale = tmp_path / "stale"
    with subprocess.Popen(["true"]) as newest:
        pass
    for number in range(newest.pid, newest.pid + 400):
        (stale / f"ompi.{number}").mkdir(parents=True)
        for name in ("", f".{number}"):
            (stale / f"ompi.{number}" / f"pmix.{os.uname().nodename}.tool{name}").write_text("stale\n")
    command = f'TMPDIR="{stale}" exec "{BIN}/mpirun" --allow-run-as-root -np 1 true'
    kind, said = launched(tmp_path, "sh", "-c", command)
    assert kind == "rendezvous", said


@pytest.mark.slow
def test_what_torchrun_says_where_its_port_is_taken(tmp_path: Path, held: socket.socket) -> None:
    port = os.environ["PORT"]
    argv = (str(BIN / "torchrun"), "--nproc-per-node", "1", "--master-port", port, str(HERE / "scripts_that/crash.py"))
    kind, said = launched(tmp_path, *argv)
    assert kind == "port", said


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("horovod"), reason="no Horovod here")
def test_what_horovod_says_where_its_launcher_does_not_answer(tmp_path: Path) -> None:
    places = {"RANK": 1, "SIZE": 2, "LOCAL_RANK": 1, "LOCAL_SIZE": 2, "CROSS_RANK": 0, "CROSS_SIZE": 1}
    env = {f"HOROVOD_{name}": str(value) for name, value in places.items()}
    env |= {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_GLOO_IFACE": "lo"}
    env |= {"HOROVOD_HOSTNAME": "localhost", "HOROVOD_GLOO_TIMEOUT_SECONDS": "2"}
    env |= {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "1"}
    program = "import horovod.torch as hvd; hvd.init()"
    kind, said = launched(tmp_path, sys.executable, "-c", program, **env)
    assert kind == "rendezvous", said


def test_what_the_launch_itself_sets_is_not_removed_as_stale(monkeypatch):
    """srun's ranks of torch meet at MASTER_ADDR, which a shell may still hold too."""
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.9")
    monkeypatch.setenv("RANK", "0")
    trial = Trial(framework="torch_ddp", workers=2, launcher="srun", device="cpu")
    monkeypatch.setattr(attempts.leftovers, "choose_port", lambda port, *_: (port, ""))
    argv, environment, _ = attempts.launch_line(trial, ["python", "x.py"], SimpleNamespace(), ALONE)
    assert argv[:4] == ["env", "-u", "RANK", "srun"] and environment["MASTER_ADDR"] == "127.0.0.1"


def test_a_search_tries_only_batches_that_the_accumulation_divides(tmp_path: Path) -> None:
    tried = []

    class Fits(Attempts):
        def run_with_retries(self, trial: Trial, folder: Path, measure: Measure) -> Attempt:
            tried.append(trial.batch_per_worker)
            status = "ok" if trial.batch_per_worker <= 50 else "oom"
            return Attempt(Exit(0, 1.0), Outcome(status), started_at=0.0)

    trial = Trial(batch_per_worker=8, accumulation=4, find="max_batch")
    found = Fits(SimpleNamespace()).find_largest_batch(trial, tmp_path, MEASURE).search_result  # type: ignore[arg-type]
    assert found["max_batch"] == 48 and not [batch for batch in tried if batch % 4]


@pytest.mark.parametrize(
    ("trial", "named"),
    [
        (Trial(framework="horovod", controller="gloo", launcher="horovodrun", workers=2, hosts=2), "10.0.0.1:1,h2:1"),
        (Trial(framework="horovod", controller="mpi", launcher="horovodrun", workers=2, hosts=2), "10.0.0.1:1,h2:1"),
        (Trial(framework="mpi_allreduce", launcher="mpirun", workers=2, hosts=2), "h1:1,h2:1"),
        (Trial(framework="torch_ddp", launcher="torchrun", workers=2, hosts=2), "h1:1,h2:1"),
    ],
)
def test_horovodrun_is_given_an_address_of_this_host_where_its_name_is_its_loopback(
    monkeypatch: pytest.MonkeyPatch, trial: Trial, named: str
) -> None:
    """It would start what belongs here by ssh."""
    monkeypatch.setattr(connections, "other_hosts", lambda names: [name for name in names if name != "h1"])
    monkeypatch.setattr(connections.agent, "address_of", lambda name: "127.0.1.1")
    monkeypatch.setattr(connections, "address_for", lambda name: "10.0.0.1")
    cluster = Cluster((Host("h1"), Host("h2")))
    with Interruption() as interruption:
        line, *_ = attempts.launch_line(trial, ["python", "a.py"], SupervisorClient(Path("/"), interruption), cluster)
        assert named in line
        monkeypatch.setattr(connections.agent, "address_of", lambda name: "127.0.0.1")  # of an interface
        line, *_ = attempts.launch_line(trial, ["python", "a.py"], SupervisorClient(Path("/"), interruption), cluster)
        assert "h1:1,h2:1" in line
