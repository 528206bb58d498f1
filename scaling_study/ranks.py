"""A process's place among all: rank, world size, device and cores, however it was launched.             [torch]

A script calls `claim_cores` before its framework starts any thread, joins by the framework's own call, and
describes the result as `Ranks`. From there on all frameworks look alike.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import psutil
import torch
import torch.distributed as dist

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.machine import quota_cores, usable_cores
from scaling_study.study import rules
from scaling_study.trial import RESOLVED, Trial
from scaling_study.variables import BINDING

# Every launcher tells its processes their place on this host under a name of its own.
LOCAL_RANK = (
    "LOCAL_RANK",
    "HOROVOD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "PALS_LOCAL_RANKID",
    "FLUX_TASK_LOCAL_ID",
    "JSM_NAMESPACE_LOCAL_RANK",
    "SLURM_LOCALID",
)
LOCAL_SIZE = (
    "LOCAL_WORLD_SIZE",
    "HOROVOD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "PALS_LOCAL_SIZE",
    "JSM_NAMESPACE_LOCAL_SIZE",
    "LOCAL_SIZE",
)
WORLD_SIZE = (
    "WORLD_SIZE",
    "HOROVOD_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "FLUX_JOB_SIZE",
    "JSM_NAMESPACE_SIZE",
    "SLURM_STEP_NUM_TASKS",
)

RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")  # by which torch.distributed joins

FROM_SRUN = {"SLURM_PROCID": "RANK", "SLURM_NTASKS": "WORLD_SIZE", "SLURM_LOCALID": "LOCAL_RANK"}


@dataclass(frozen=True)
class Ranks:
    """One process's place among all, and what the clock asks of the whole group."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    cores: tuple[int, ...] = ()  # that this process is pinned to; empty: not pinned
    agree: Callable[[float], float] = lambda value: value  # rank 0's number, on every rank
    backend: Mapping[str, Any] = field(default_factory=dict)  # what the framework itself reports
    leave: Callable[[], object] = lambda: None  # its own end, after all is measured; not called after an error
    total: Callable[[Sequence[float]], list[float]] = list  # every rank's numbers, added up place by place
    further: tuple[torch.device, ...] = ()  # that this process drives too: a stage or a replica on each
    abandon: Callable[[], object] = lambda: None  # its end after an error, where the interpreter's own would hang

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """All that this process computes on."""
        return (self.device, *self.further)


def started_by(environment: Mapping[str, str] = os.environ) -> str:
    """`horovodrun`, `mpirun` or `torchrun`, from what launchers leave in the environment of what they start.

    `horovodrun --mpi` only calls mpirun: it is known by the two options that Horovod always gives it. Whoever gives
    them to mpirun by hand, as Horovod's documentation does, is taken for it. RANK by hand, or nothing: `torchrun`.
    """
    theirs = environment.get("OMPI_MCA_pml") == "ob1" and "openib" in environment.get("OMPI_MCA_btl", "")
    if "HOROVOD_GLOO_RENDEZVOUS_ADDR" in environment or (theirs and "OMPI_COMM_WORLD_RANK" in environment):
        return "horovodrun"
    mpi = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
    return "mpirun" if any(name in environment for name in mpi) and "RANK" not in environment else "torchrun"


def claim_cores(trial: Trial) -> tuple[int, ...]:
    """Pin this process to its own share of the host's cores, with as many torch threads. Returns the cores.

    Called before the framework starts its threads, so that they inherit the share: a worker that computes
    on one core and communicates on another would make two workers look better than they are. On a GPU
    nothing is pinned: there the cores feed the device and the launcher's own binding knows the topology.

    Raises SystemExit where this process has fewer cores than the trial asks for, or than whatever started it.
    """
    local_rank, local_size = _place(LOCAL_RANK, 0), _local_size()
    if wants_gpu(trial) or not hasattr(os, "sched_setaffinity"):
        torch.set_num_threads(trial.cores_per_worker or max(1, usable_cores() // local_size))
        return ()
    allowed = _allowed_cores()
    if bound := _bound_by(len(allowed)):
        raise SystemExit(
            f"{bound} left this process {len(allowed)} of the cores that its launcher has, when torch was imported: "
            f"unset {bound.partition('=')[0]}"
        )
    share = trial.cores_per_worker or max(1, min(len(allowed), quota_cores() or len(allowed)) // local_size)
    first = (local_rank * share) % len(allowed)  # wraps only where a study oversubscribes on purpose
    mine = tuple(allowed[(first + i) % len(allowed)] for i in range(min(share, len(allowed))))
    if len(mine) < share and not trial.oversubscribe:
        raise SystemExit(f"{share} cores a worker were asked for, and this process may use {len(allowed)}")
    pin(mine)
    return mine


def pin(cores: Sequence[int]) -> None:
    """Hold this process to these cores, with as many torch threads."""
    for thread in os.listdir("/proc/self/task"):  # importing numpy and torch has started some already
        os.sched_setaffinity(int(thread), cores)
    torch.set_num_threads(len(cores))


def claim_device(trial: Trial, local_rank: int | None = None) -> torch.device:
    """This worker's device, made the current one. Raises SystemExit where `cuda` was asked for and there is none."""
    if not wants_gpu(trial):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch sees no GPU here (nvidia-smi lists them; --device cpu needs none)")
    index, count = _place(LOCAL_RANK, 0) if local_rank is None else local_rank, torch.cuda.device_count()
    if 1 < count <= index and not trial.oversubscribe:  # one alone may be this rank's own, as Slurm gives it
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
        raise SystemExit(
            f"local rank {index} has no GPU: torch sees {count} here (CUDA_VISIBLE_DEVICES {visible}; nvidia-smi lists "
            f"all): start {count} workers a host, or give the missing one back"
        )
    mine = torch.device("cuda", index % count)
    torch.cuda.set_device(mine)  # collectives and new tensors go to the current device, which is GPU 0 otherwise
    return mine


def wants_gpu(trial: Trial) -> bool:
    return trial.device == "cuda" or (trial.device == "auto" and torch.cuda.is_available())


def join_torch(trial: Trial) -> Ranks:
    """Join by torch.distributed, as whatever started us says (RANK, WORLD_SIZE, MASTER_ADDR); alone if nothing did.

    NCCL carries what lies on GPUs, Gloo the rest. The cores are claimed first, so that the threads of the process
    group inherit them.
    """
    told = told_to_meet("torch.distributed")
    cores, device = claim_cores(trial), claim_device(trial)
    backend = "nccl" if device.type == "cuda" else "gloo"
    if told:
        dist.init_process_group(backend)
        if _place(LOCAL_RANK, -1) < 0:
            store = dist.distributed_c10d._get_default_store()
            require_one_a_host(store, dist.get_rank(), dist.get_world_size(), socket.gethostname())
    else:  # by hand, without a launcher
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)

    def agree(value: float) -> float:
        agreed = torch.tensor([value], dtype=torch.float64, device=device)
        dist.broadcast(agreed, 0)
        return float(agreed.item())

    def total(values: Sequence[float]) -> list[float]:
        totals = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(totals)
        summed: list[float] = totals.tolist()
        return summed

    return Ranks(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        local_rank=_place(LOCAL_RANK, 0),
        device=device,
        cores=cores,
        agree=agree,
        backend={"backend": dist.get_backend(), "version": torch.__version__},
        total=total,
    )


def told_to_meet(who: str) -> bool:
    """True where whatever started this process told it where the ranks meet, and which of them it is.

    Raises SystemExit where it said one and not the other, so that `who` would train alone.
    """
    _take_from_srun()
    for name in ("RANK", "WORLD_SIZE"):
        if name in os.environ:
            require_rendezvous(os.environ, f"{name}={os.environ[name]} is set, so {who}")
    return "RANK" in os.environ


def local_rank() -> int:
    """This process's place on its host, by its launcher; 0 where that says nothing."""
    return _place(LOCAL_RANK, 0)


def require_rendezvous(variables: Mapping[str, str], who: str) -> None:
    """Raises SystemExit where `who` could not join by these variables, or would train alone."""
    if missing := [name for name in RENDEZVOUS if not variables.get(name)]:
        raise SystemExit(f"{who} needs {', '.join(RENDEZVOUS)}: {' and '.join(missing)} missing")
    rank, size = variables["RANK"], variables["WORLD_SIZE"]
    if not (rank.isdigit() and size.isdigit() and int(rank) < int(size)):
        raise SystemExit(f"{who} has rank {rank} of world size {size}: ranks are 0 to the world size less 1")


def require_one_a_host(store: dist.Store, rank: int, world_size: int, host: str) -> None:
    """Called by all ranks where none was told its place on its host, so that each took the first cores and GPU.

    Raises SystemExit where two of them are on one host.
    """
    store.set(f"host of rank {rank}", host)
    hosts = [store.get(f"host of rank {other}").decode() for other in range(world_size)]
    for name in dict.fromkeys(hosts):
        there = [other for other, at in enumerate(hosts) if at == name]
        if len(there) > 1:
            places = ", ".join(f"{place} and {len(there)}" for place in range(len(there)))
            raise SystemExit(
                f"ranks {' and '.join(map(str, there))} are both on {name}, and their launcher says neither's place "
                f"there: set LOCAL_RANK and LOCAL_WORLD_SIZE ({places})"
            )


def as_claimed(local_rank: int) -> int:
    """The local rank that a library found out, where cores were claimed for it. Raises SystemExit where they were not:
    a launcher that says no rank its place lets all of them claim the first share."""
    if local_rank and _place(LOCAL_RANK, -1) < 0:
        raise SystemExit(
            f"this is local rank {local_rank}, but its launcher did not say so before it started: "
            "set LOCAL_RANK and LOCAL_WORLD_SIZE for each process"
        )
    return local_rank


def _local_size() -> int:
    """The number of processes that share this host's cores.

    All that there are, where a launcher says which of them this is and not how many are here; one, where it says
    neither (require_one_a_host).
    """
    told = _place(LOCAL_RANK, -1) >= 0
    return _place(LOCAL_SIZE, _place(WORLD_SIZE, 1) if told else 1)


def _take_from_srun() -> None:
    """Call a rank that srun started by the names that torch knows. In a batch script, or by hand, there is none."""
    if "RANK" not in os.environ and {"SLURM_STEP_ID", "MASTER_ADDR"} <= os.environ.keys():
        for theirs, ours in FROM_SRUN.items():
            os.environ[ours] = os.environ[theirs]


def leave_torch() -> None:
    """Leave the process group, if there is one, and let its threads end.

    In torch 2.14 and 2.15 a Gloo thread may drop its last tensor while the interpreter ends, and the process dies
    with SIGABRT after its work is done (pytorch#117762, #190489): 3 to 12 of 15 runs without this, 0 of 24 with it.
    """
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
        time.sleep(0.3)


def as_launched(trial: Trial, ranks: Ranks) -> Trial:
    """The trial as it really runs: a person at a prompt gives the worker count to the launcher, not to us."""
    framework = FRAMEWORKS[trial.framework]
    left_open = [key for key in RESOLVED.keys() & framework.axes.keys() if getattr(trial, key) is None]
    launched = replace(
        trial,
        workers=trial.workers if framework.one_process else ranks.world_size,
        device=ranks.device.type,
        cores_per_worker=trial.cores_per_worker or max(1, len(ranks.cores)),
        **{key: RESOLVED[key] for key in left_open},
    )
    asked = {key: value for key, value in asdict(trial).items() if value is not None}
    faults = rules.peer_problems(trial.framework, launched.workers, trial.batch_per_worker, asked)
    for key, message in (*faults, *rules.shard_problems(trial.framework, launched.workers, asked)):
        raise SystemExit(f"--{key.replace('_', '-')}: {message}")
    return in_full(launched) if framework.shares_batches else _reducing(launched)


def in_full(trial: Trial) -> Trial:
    """The trial with all keys of its pipeline or mesh, as a plan has it. Raises SystemExit for an impossible one."""
    asked = {key: value for key, value in asdict(trial).items() if value is not None}
    faults = list(rules.mesh_problems(trial.framework, trial.workers, asked))
    if FRAMEWORKS[trial.framework].cuts_model:
        faults += rules.pipeline_problems(trial.framework, trial.workers, trial.batch_per_worker, asked)
    if faults:
        raise SystemExit("\n".join(f"--{key.replace('_', '-')}: {message}" for key, message in faults))
    return _reducing(replace(trial, **rules.resolved(trial.framework, trial.workers, asked)))


def _reducing(trial: Trial) -> Trial:
    """The trial with the allreduce that really happens: none where no other rank has the same weights."""
    alone = trial.data_parallel * (trial.context_parallel or 1) == 1
    return replace(trial, allreduce="none" if alone else ("fp32" if trial.allreduce == "none" else trial.allreduce))


def _place(names: Sequence[str], default: int) -> int:
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), default)


def _bound_by(allowed: int) -> str:
    """The variable that has an OpenMP runtime bind this process to `allowed` cores, fewer than its ancestors have.

    Importing torch loads the runtime. A launcher that imports torch is bound too, but not what started it.
    """
    named = [f"{name}={os.environ[name]}" for name in BINDING.names if os.environ.get(name)]
    if not named:
        return ""
    with contextlib.suppress(psutil.Error, OSError):
        cores = {core for process in psutil.Process().parents() for core in process.cpu_affinity()}
        return named[0] if len(cores) > allowed else ""
    return ""


def _allowed_cores() -> list[int]:
    """The host's cores that this session may use.

    mpirun by hand binds each rank to one core before we start; its own affinity (it is our parent) is what
    the person, or their container, really allowed.
    """
    allowed = os.sched_getaffinity(0)
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        allowed |= os.sched_getaffinity(os.getppid())
    return sorted(allowed)
