"""Command lines, as literals: nothing is started to compare them."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.hosts import hosts
from scaling_study.launch import attempts, launchers
from scaling_study.launch.launchers import LAUNCHERS, Command, command
from scaling_study.processes import leftovers
from scaling_study.processes.process import Ending
from scaling_study.settings import CHECKOUT
from scaling_study.study.support import ALONE, Cluster
from scaling_study.trial import Trial

BIN = Path("/venv/bin")
UNBOUND = "--binding-args=--bind-to none --map-by slot"
PROGRAM = ("/venv/bin/python", "/repo/x.py", "--model", "resnet8")
HERE = str(Path(sys.executable).parent)


def trial(**keys: Any) -> Trial:
    return Trial(**{"framework": "horovod", "workers": 2, "launcher": "horovodrun", "controller": "mpi", **keys})


@pytest.mark.parametrize(
    ("launcher", "keys", "argv"),
    [
        ("python", {"framework": "single", "workers": 1}, [*PROGRAM]),
        ("horovodrun", {"controller": "mpi"}, ["/venv/bin/horovodrun", "-np", "2", "--mpi", UNBOUND, *PROGRAM]),
        ("horovodrun", {"controller": "gloo"}, ["/venv/bin/horovodrun", "-np", "2", "--gloo", *PROGRAM]),
        ("horovodrun", {"workers": 1}, ["/venv/bin/horovodrun", "-np", "1", "--mpi", UNBOUND, *PROGRAM]),
        (
            "mpirun",
            {"workers": 4},
            ["mpirun", "-np", "4", "--allow-run-as-root", "--bind-to", "none", "--oversubscribe",
             "--mca", "mpi_yield_when_idle", "1", *PROGRAM],
        ),
        (
            "torchrun",
            {"framework": "torch_ddp"},
            ["/venv/bin/torchrun", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2", *PROGRAM[1:]],
        ),
        (
            "accelerate",
            {"framework": "torch_ddp"},
            ["/venv/bin/accelerate", "launch", "--multi_gpu", "--main_process_port", "0", "--num_processes", "2",
             "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", *PROGRAM[1:]],
        ),
        (
            "accelerate",
            {"framework": "torch_ddp", "workers": 1},  # it refuses --multi_gpu for one
            ["/venv/bin/accelerate", "launch", "--num_processes", "1",
             "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", *PROGRAM[1:]],
        ),
        (
            "deepspeed",
            {"framework": "deepspeed_zero"},
            ["/venv/bin/deepspeed", "--hostfile", "/dev/null", "--num_gpus", "2",
             "--master_port", "23456", *PROGRAM[1:]],
        ),
    ],
)  # fmt: skip
def test_each_launchers_command_line(launcher: str, keys: dict[str, Any], argv: list[str]) -> None:
    assert LAUNCHERS[launcher](trial(**keys), PROGRAM, BIN, 23456) == Command(tuple(argv), {})


@pytest.mark.parametrize(
    ("device", "visible", "words"),
    [
        ("cuda", "2,3,5", ["--include", "localhost:2,3"]),
        ("cuda", " 7 , 1", ["--include", "localhost:7,1"]),
        ("cuda", "", ["--num_gpus", "2"]),
        (
            "cuda",
            "GPU-1e2f,GPU-2e2f",
            ["--num_gpus", "2"],
        ),  # it knows no names: the ranks' reports are held against them
        ("cpu", "2,3", ["--num_gpus", "2"]),
    ],
)
def test_deepspeed_takes_the_gpus_that_all_others_take(device: str, visible: str, words: list[str]) -> None:
    asked = trial(framework="deepspeed_zero", launcher="deepspeed", device=device)
    made = launchers.deepspeed(asked, PROGRAM, BIN, 23456, Cluster(visible_gpus=visible))
    assert list(made.argv[3:5]) == words and made.argv[1:3] == ("--hostfile", "/dev/null")


STEP = ["--overlap", "--cpu-bind=none", "--mem=0", "--kill-on-bad-exit=1"]


@pytest.mark.parametrize(
    ("keys", "over", "argv", "env"),
    [
        (
            {"framework": "torch_ddp"}, "",
            ["--nodes", "1", "--ntasks-per-node", "2", *STEP, "--mpi=none"],
            {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "23456"},
        ),
        (
            {"framework": "torch_ddp", "hosts": 2}, "node1:4,node2:4",
            ["--nodes", "2", "--ntasks-per-node", "1", "--nodelist", "node1,node2", *STEP, "--mpi=none"],
            {"MASTER_ADDR": "node1", "MASTER_PORT": "23456"},
        ),
        (
            {"oversubscribe": True}, "",
            ["--nodes", "1", "--ntasks-per-node", "2", *STEP, "--overcommit", "--mpi=pmix"],
            {"OMPI_MCA_mpi_yield_when_idle": "1"},
        ),
    ],
)  # fmt: skip
def test_srun_says_where_ranks_are_and_how_they_meet(
    keys: dict[str, Any], over: str, argv: list[str], env: dict[str, str]
) -> None:
    cluster = Cluster(hosts.parse_option(over) if over else ())
    made = launchers.srun(trial(launcher="srun", **keys), PROGRAM, BIN, 23456, cluster)
    assert made == Command(("srun", "--ntasks", "2", *argv, *PROGRAM), env)


@pytest.mark.parametrize(
    ("framework", "launcher", "module"),
    [
        ("horovod", "horovodrun", "horovod.runner.launch"),
        ("torch_ddp", "torchrun", "torch.distributed.run"),
        ("torch_ddp", "accelerate", "accelerate.commands.accelerate_cli"),
        ("deepspeed_zero", "deepspeed", "deepspeed.launcher.runner"),
    ],
)
def test_a_launcher_that_lies_elsewhere_is_started_by_our_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: str, launcher: str, module: str
) -> None:
    """A virtual environment above a container's own packages has their modules and none of their commands."""
    interpreter = str(tmp_path / "bin" / "python")
    monkeypatch.setattr(sys, "executable", interpreter)
    asked = trial(framework=framework, launcher=launcher, controller="mpi" if framework == "horovod" else None)
    assert command(asked).argv[:3] == (interpreter, "-m", module)


def test_the_environments_own_mpirun_comes_first(tmp_path: Path) -> None:
    (tmp_path / "mpirun").touch()
    assert launchers.mpirun(trial(), PROGRAM, tmp_path, 0).argv[0] == str(tmp_path / "mpirun")


@pytest.mark.skipif(not (Path(HERE) / "horovodrun").exists(), reason="horovodrun does not lie beside this interpreter")
def test_the_whole_command_of_a_horovod_trial_with_its_record() -> None:
    asked = trial(model="resnet50", batch_per_worker=1024, allreduce="fp16", device="cuda", controller="gloo", repeat=3)
    assert command(asked, record=Path("/results/a b")) == Command(
        (
            f"{HERE}/horovodrun", "-np", "2", "--gloo",
            sys.executable, str(CHECKOUT / "horovod_runs" / "resnet_cifar10.py"), "--model", "resnet50",
            "--batch-per-worker", "1024", "--allreduce", "fp16", "--device", "cuda", "--data", "auto",
            "--record", "/results/a b",
        ),
        {},
    )  # fmt: skip


def test_a_launcher_that_must_be_told_gets_the_port_that_is_free_now_or_the_configurations_own() -> None:
    asked = trial(framework="deepspeed_zero", launcher="deepspeed")
    own = launchers.preferred_port(asked)
    assert own in launchers.PORTS
    assert own == launchers.preferred_port(replace(asked, repeat=2))
    assert f"--master_port {own} " in command(asked).shell()
    assert "--master_port 21000 " in command(asked, port=21_000).shell()


def test_a_port_that_is_taken_is_replaced_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "WAIT_SECONDS", 0.5)
    asked, stop = trial(framework="deepspeed_zero", launcher="deepspeed"), Ending()
    own = launchers.preferred_port(asked)
    with socket.create_server(("", own)):
        argv, _, note = attempts.launch_line(asked, PROGRAM, stop, ALONE)  # type: ignore[arg-type]
    assert int(argv[argv.index("--master_port") + 1]) in {*launchers.PORTS} - {own}
    assert note.startswith(f"port {own} is in use by process {os.getpid()} (")
    stop.close()


@pytest.mark.parametrize("framework", sorted(FRAMEWORKS))
def test_every_launcher_starts_the_frameworks_own_script_with_flags_that_it_understands(framework: str) -> None:
    table = FRAMEWORKS[framework]
    for launcher in table.launchers:
        models = table.axes.get("model", (Trial.model,))
        model = Trial.model if Trial.model in models else models[0]
        asked = Trial(framework=framework, model=model, launcher=launcher, controller="mpi", cores_per_worker=64)
        argv = list(command(asked).argv)
        at = argv.index(str(CHECKOUT / table.script))
        # torch's and DeepSpeed's launchers bring the interpreter that they were started with
        assert argv[at - 1] == sys.executable or argv[0].startswith(str(Path(sys.executable).parent))
        assert Trial.from_argv(framework, argv[at + 1 :])[0].cores_per_worker == 64


def test_a_command_as_a_shell_line_has_paths_under_a_folder_shortened_to_it() -> None:
    made = Command(("/repo/.venv/bin/python", "/repo/x/y.py", "/repository/z", "/repo", "--out=/repo/a"), {"A": "a b"})
    assert made.shell(Path("/repo")) == "A='a b' .venv/bin/python x/y.py /repository/z /repo --out=/repo/a"


words = st.text(min_size=1).filter(lambda word: "\0" not in word)


@given(st.lists(words, min_size=1))
def test_a_shell_reads_back_what_was_meant(argv: list[str]) -> None:
    assert shlex.split(Command(tuple(argv)).shell()) == argv


def test_a_possible_secret_stands_on_no_command_line():
    made = Command(("python", "x.py"), {"OMP_NUM_THREADS": "2", "WANDB_API_KEY": "s3cret"})
    assert made.shell() == 'OMP_NUM_THREADS=2 WANDB_API_KEY="$WANDB_API_KEY" python x.py'
