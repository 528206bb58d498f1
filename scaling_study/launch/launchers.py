"""Trial -> command line and environment, one small pure function per launcher.

    on this machine       horovodrun -np 2 --gloo python script.py --model resnet18
    over hosts            horovodrun -np 2 -H h1:1,h2:1 --network-interface eth0 --gloo python script.py ...
    by agents             python -m scaling_study.hosts.on_each_host h1:1,h2:1 torchrun --node-rank {node} ... script.py

Nothing is started here (process.py does), and each function looks up nothing but what its arguments say, so the tests
compare literals. A new launcher is one function and one entry in LAUNCHERS.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from scaling_study import observe
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.hosts.hosts import Host
from scaling_study.settings import CHECKOUT
from scaling_study.study import command as command_of_user
from scaling_study.study.command import FROM_HERE
from scaling_study.study.support import ALONE, Cluster
from scaling_study.trial import Trial
from scaling_study.variables import may_be_secret

PORTS = range(20_000, 30_000)  # below the ephemeral ones, of which any connection may take any
LOOPBACK = "127.0.0.1"
PORT = "{port}"  # in a user's command: one that is free
IN_FOLDER = ("env", "-C")  # before a folder and a command that is to start there
ENV_LIST = "OMPI_MCA_mca_base_env_list"  # names of variables that Open MPI gives its ranks on other hosts
OBSERVED = ("PYTHONPATH", observe.FOLDER, observe.STEPS, observe.DRIVER)
UNBOUND = "--binding-args=--bind-to none --map-by slot"  # for the mpirun that horovodrun starts
USUAL_PORT = 29_500  # torch's and DeepSpeed's own default


@dataclass(frozen=True)
class Command:
    """A command line, and the environment variables to set for it."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    def shell(self, folder: Path | None = None) -> str:
        """One line that works when pasted into a shell, with paths under `folder` shortened to it."""

        def shown(word: str) -> str:
            return os.path.relpath(word, folder) if folder and word.startswith(f"{folder}{os.sep}") else word

        assignments = [assignment(name, value) for name, value in self.env.items()]
        return " ".join([*assignments, *(shlex.quote(shown(word)) for word in self.argv)])


def assignment(name: str, value: str) -> str:
    """NAME=value for a shell. The line is recorded: a secret is taken from the shell that it is pasted into."""
    if may_be_secret(name) and not FROM_HERE.fullmatch(value):
        return f'{name}="${name}"'
    if FROM_HERE.search(value):
        quoted = re.sub(r'["\\`]|\$(?!\{)', r"\\\g<0>", value)
        return f'{name}="{quoted}"'
    return f"{name}={shlex.quote(value)}"


def _command(name: str, words: Sequence[object], program: Sequence[str], cluster: Cluster, **env: str) -> Command:
    """`words`, then the flags that the machine file has for this launcher, then the program."""
    return Command((*map(str, words), *cluster.flags(name), *program), env)


def python(trial: Trial, program: Sequence[str], bin: Path, port: int = 0, cluster: Cluster = ALONE) -> Command:
    """One process, started as itself; or a user's command, with what only a start of it knows.

    Over hosts, a command with {node} is started on each of them. mpirun is told the names of variables that go with its
    ranks: on the command line where the command has some there, else by a variable, which other MPIs pass over.
    """
    if not trial.command:
        return Command(tuple(program))
    over = cluster.hosts_of(trial)
    values = {"port": port, **command_of_user.placed(trial.workers, over)}
    words = [command_of_user.substituted(word, values) for word in program]
    own = command_of_user.variables(trial).items()
    env = {name: command_of_user.substituted(value, values) for name, value in own}
    if any(command_of_user.NODE in text for text in (*words, *env.values())):
        return Command((*_on_each_host(trial, cluster), *words), env)
    if over and command_of_user.starter(trial) in ("mpirun", "mpiexec"):
        names = sorted({*cluster.exported(trial), *OBSERVED, "PATH"})
        if "-x" not in words:
            return Command(tuple(words), {**env, ENV_LIST: ";".join(names)})
        at = len(IN_FOLDER) + 2 if trial.workdir else 1
        words[at:at] = [word for name in names for word in ("-x", name)]
    return Command(tuple(words), env)


def horovodrun(trial: Trial, program: Sequence[str], bin: Path, port: int = 0, cluster: Cluster = ALONE) -> Command:
    """Horovod's launcher, which takes MPI unless told --gloo; we always say which.

    Ranks pin themselves, as with mpirun. Horovod as published says that in words which Open MPI 5 refuses.
    """
    words = [bin / "horovodrun", "-np", trial.workers, *_host_option("-H", cluster.hosts_of(trial))]
    if interface := cluster.interface(trial):
        words += ["--network-interface", interface]
    words += [f"--{trial.controller}", *([UNBOUND] if trial.controller == "mpi" else [])]
    return _command("horovodrun", words, program, cluster)


def mpirun(trial: Trial, program: Sequence[str], bin: Path, port: int = 0, cluster: Cluster = ALONE) -> Command:
    """Plain Open MPI. Ranks pin themselves (ranks.py); a waiting rank yields its core instead of spinning on it."""
    own = bin / "mpirun"  # the environment's, where the machine has none
    over: list[str] = _host_option("--host", cluster.hosts_of(trial))
    if interface := cluster.interface(trial):
        over += ["--mca", "btl_tcp_if_include", interface, "--mca", "oob_tcp_if_include", interface]
    if over:  # ranks elsewhere get no variable that is not named
        over += [word for name in cluster.exported(trial) for word in ("-x", name)]
    fixed = ["--allow-run-as-root", "--bind-to", "none", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    words = [own if own.exists() else "mpirun", "-np", trial.workers, *over, *fixed]
    return _command("mpirun", words, program, cluster)


def torchrun(trial: Trial, program: Sequence[str], bin: Path, port: int = 0, cluster: Cluster = ALONE) -> Command:
    """torch's launcher, on a free port of its own choice on the loopback. It starts its own interpreter, which is ours.

    Over hosts it is started on each of them; the first listens on the port.
    """
    if over := cluster.hosts_of(trial):
        nodes = ["--nnodes", str(len(over)), "--node-rank", "{node}", "--rdzv-endpoint", f"{over[0].name}:{port}"]
    else:
        nodes = ["--standalone", "--local-addr", LOOPBACK]  # or ranks resolve this host's name, which may mislead
    each = over[0].slots if over else trial.workers
    words = [*_on_each_host(trial, cluster), bin / "torchrun", *nodes, "--nproc-per-node", each]
    return _command("torchrun", words, program[1:], cluster)


def accelerate(trial: Trial, program: Sequence[str], bin: Path, port: int = 0, cluster: Cluster = ALONE) -> Command:
    """Hugging Face's launcher, which starts torchrun's processes itself, on a free port of its own choice.

    Only --multi_gpu starts several, without GPUs too: `--cpu --num_processes 2` is one process, and so is
    `--num_processes 2` alone where no GPU is seen. What a user's own settings of it would say is said here.
    """
    several = ["--multi_gpu", "--main_process_port", "0"] if trial.workers > 1 else []
    settings = ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    words = [bin / "accelerate", "launch", *several, "--num_processes", trial.workers, *settings]
    return _command("accelerate", words, program[1:], cluster)


def deepspeed(trial: Trial, program: Sequence[str], bin: Path, port: int = 0, cluster: Cluster = ALONE) -> Command:
    """DeepSpeed's launcher; its default port is the same for everybody, so it is told one.

    Over hosts it is started on each of them (--no_ssh): by itself it asks for pdsh, and gives what it starts to nobody.
    """
    if over := cluster.hosts_of(trial):
        nodes = ["--hostfile", "{hostfile}", "--no_ssh", "--node_rank", "{node}", "--master_addr", over[0].name]
    else:
        # It reads a hostfile in a place of its own, unless one is named; and it passes over CUDA_VISIBLE_DEVICES.
        visible = [word.strip() for word in cluster.visible_gpus.split(",")]
        mine = ["--num_gpus", str(trial.workers)]
        if trial.device == "cuda" and all(word.isdecimal() for word in visible):
            mine = ["--include", f"localhost:{','.join(visible[: trial.workers])}"]
        nodes = ["--hostfile", os.devnull, *mine]
    words = [*_on_each_host(trial, cluster), bin / "deepspeed", *nodes, "--master_port", port]
    return _command("deepspeed", words, program[1:], cluster)


def srun(trial: Trial, program: Sequence[str], bin: Path, port: int = 0, cluster: Cluster = ALONE) -> Command:
    """Slurm's own, inside a job. MPI's ranks find each other by PMIx; torch's at the port of the first host.

    Ranks choose their cores themselves (ranks.py), which Slurm would else do first; the agents' steps share them.
    """
    over = cluster.hosts_of(trial)
    nodes = len(over) or 1
    mpi = not {"horovod", "mpi4py"}.isdisjoint(FRAMEWORKS[trial.framework].needs)
    words = ["srun", "--ntasks", trial.workers, "--nodes", nodes, "--ntasks-per-node", trial.workers // nodes]
    if over:
        words += ["--nodelist", ",".join(host.name for host in over)]
    words += ["--overlap", "--cpu-bind=none", "--mem=0", "--kill-on-bad-exit=1"]
    words += [*(["--overcommit"] if trial.oversubscribe else []), f"--mpi={'pmix' if mpi else 'none'}"]
    if mpi:
        return _command("srun", words, program, cluster, OMPI_MCA_mpi_yield_when_idle="1")
    first = over[0].name if over else LOOPBACK
    return _command("srun", words, program, cluster, MASTER_ADDR=first, MASTER_PORT=str(port))


def _host_option(option: str, hosts: Sequence[Host]) -> list[str]:
    return [option, ",".join(map(str, hosts))] if hosts else []


def _on_each_host(trial: Trial, cluster: Cluster) -> list[str]:
    """The prefix of a command that runs once on each host of the trial (on_each_host.py)."""
    if not (over := cluster.hosts_of(trial)):
        return []
    names = [*cluster.environment(trial), *(["PATH"] if trial.command else [])]  # its programs are the user's
    also = [word for name in sorted(names) for word in ("-x", name)]
    return [sys.executable, "-m", "scaling_study.hosts.on_each_host", *also, ",".join(map(str, over))]


LAUNCHERS: Mapping[str, Callable[[Trial, Sequence[str], Path, int, Cluster], Command]] = {
    launcher.__name__: launcher for launcher in (python, horovodrun, mpirun, torchrun, accelerate, deepspeed, srun)
}
# Where a library is installed, but its command does not lie beside our interpreter: in a virtual environment above a
# container's or a cluster's own packages. The command that lies elsewhere would start the interpreter there.
MODULES = {
    "horovodrun": "horovod.runner.launch",
    "torchrun": "torch.distributed.run",
    "accelerate": "accelerate.commands.accelerate_cli",
    "deepspeed": "deepspeed.launcher.runner",
}
NEED_PORT = ("deepspeed", "srun")  # of the others, horovodrun, torchrun and accelerate choose one, the rest needs none
NEED_PORT_OVER_HOSTS = ("deepspeed", "srun", "torchrun")


def preferred_port(trial: Trial, attempt: int = 1) -> int:
    """The first choice of port for a configuration: the same each time, and seldom that of another.

    Each attempt has its own: whether a port of another host is in use shows only when it is tried.
    """
    return PORTS[(int(trial.configuration[-4:], 16) + attempt - 1) % len(PORTS)]


def command(trial: Trial, record: Path | None = None, port: int | None = None, cluster: Cluster = ALONE) -> Command:
    """The command line that runs this trial from anywhere, leaving the ranks' reports in `record`.

    `port`: one that is free now, for a launcher that needs one; without it, the preferred one.
    """
    return launch(trial, program(trial, record), port, cluster)


def program(trial: Trial, record: Path | None = None) -> list[str]:
    """The interpreter and the script of the trial's framework, with the trial's flags; or the user's own command."""
    if trial.command:
        own = str(record / "run") if record else "{run_dir}"
        moved = [*IN_FOLDER, trial.workdir] if trial.workdir else []
        return [*moved, *command_of_user.words(trial, PORT, own)]
    script = CHECKOUT / FRAMEWORKS[trial.framework].script
    return [sys.executable, str(script), *trial.to_argv(), *(["--record", str(record)] if record else [])]


def launch(trial: Trial, program: Sequence[str], port: int | None = None, cluster: Cluster = ALONE) -> Command:
    """The command line that starts `program`, an interpreter and its script, as the ranks of this trial."""
    bin, port = Path(sys.executable).parent, port or preferred_port(trial)
    launched = LAUNCHERS[trial.launcher](trial, program, bin, port, cluster)
    own = bin / trial.launcher
    if trial.launcher in MODULES and not own.exists():
        at = launched.argv.index(str(own))
        as_module = (sys.executable, "-m", MODULES[trial.launcher])
        launched = replace(launched, argv=(*launched.argv[:at], *as_module, *launched.argv[at + 1 :]))
    return replace(launched, env={**cluster.environment(trial), **launched.env})


def joins_once(trial: Trial) -> bool:
    """True for MPI, which serves one process of each rank: for a second one that begins where the first has left,
    MPI_Init hung or found its socket closed in 3 of 5 launches by mpirun and 2 of 20 by horovodrun (Open MPI 5)."""
    return trial.launcher == "mpirun" or trial.controller == "mpi"


def alike(trial: Trial) -> object:
    """Equal for trials that one launch could run by a process each, on this host: its command without the program."""
    if joins_once(trial):
        return trial
    command = launch(trial, [], port=1)
    return command.argv, tuple(command.env.items()), trial.device, trial.processes
