"""Support of trials by a machine, its hosts and libraries, with reasons; and the parity gates behind a trial. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from packaging.version import Version

from scaling_study import variables
from scaling_study.frameworks import (
    CLIPPING_NEEDS_ALL_GRADIENTS,
    FLATTENS_WEIGHTS,
    FRAMEWORKS,
    FUSED_SGD_OF_SHARDS,
    LOCAL,
    MESH,
    NOT_OF_DTENSORS,
    POWERSGD,
    POWERSGD_HAS_NO_SCALER,
)
from scaling_study.hosts import hosts
from scaling_study.hosts.hosts import Host
from scaling_study.machine import DALI, Machine
from scaling_study.models import FOLDERS, IMAGENET, MODELS, model_named
from scaling_study.study import command, on_gpus, rules
from scaling_study.study.machine_file import MachineFile
from scaling_study.targets import logs
from scaling_study.trial import RESOLVED, TRAIN_KEYS, Trial, Window

# Values that an installed library is too old for make a trial `unsupported`, never an AttributeError.

V_SCHEDULES = ("zbv_zero_bubble", "dualpipev")  # before, a worker sends to itself what its next stage is to take
OLDEST = {  # key, value -> oldest torch that was tried
    **{("schedule", name): "2.10" for name in V_SCHEDULES},
    ("checkpoint", "selective"): "2.15",  # before, hooks do not see what it keeps, and memory is not known
    ("framework", "torch_tp"): "2.15",
    ("train_optimizer", "muon"): "2.9",
}
OF_STAGES = {"tensor_parallel": "2.15", "shard_group": "2.15"}  # the same of any value, in a pipeline


def too_old(trial: Trial, libraries: Mapping[str, str]) -> str:
    """The torch (library -> version) that is too old for what the trial asks, in words; empty if it is not.

    A container's build of a version before its release (2.10.0a0+nv25.11) counts as that version.
    """
    asked = {f"{key}={value}": oldest for (key, value), oldest in OLDEST.items() if getattr(trial, key) == value}
    if FRAMEWORKS[trial.framework].cuts_model:
        keys = {key: oldest for key, oldest in OF_STAGES.items() if getattr(trial, key)}
        asked |= {f"{key}={getattr(trial, key)} in a pipeline": oldest for key, oldest in keys.items()}
    for what, oldest in asked.items():
        if Version(libraries["torch"]).release < Version(oldest).release:
            return f"{what} needs torch {oldest} or newer: {libraries['torch']} is installed"
    return ""


# Variables that name the network interface to torch's and NVIDIA's libraries; Horovod and Open MPI have options.
INTERFACE_OF = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


@dataclass(frozen=True)
class Cluster:
    """The hosts there are, and their machine file. Without either: this machine alone, as it is."""

    hosts: tuple[Host, ...] = ()
    file: MachineFile = field(default_factory=MachineFile)
    exports: tuple[str, ...] = ()  # variables of this environment that ranks on other hosts are to have (hosts.py)
    visible_gpus: str = ""  # CUDA_VISIBLE_DEVICES of this process
    in_job: bool = False  # of Slurm: here, or where a job is to run what is planned
    defined: frozenset[str] | None = None  # the variables of this environment, by name; None: not known
    models: tuple[str, ...] = ()  # folders of the files that define models; none: the study has no such model

    def hosts_of(self, trial: Trial) -> tuple[Host, ...]:
        """The hosts of a trial, each with the number of its workers there; none: it runs on this machine alone."""
        if not trial.hosts:
            return ()
        return tuple(Host(host.name, trial.workers // trial.hosts) for host in self.hosts[: trial.hosts])

    def interface(self, trial: Trial) -> str:
        """The network interface that the trial's traffic is to take; empty: whichever its libraries choose."""
        return (self.file.interface or "") if self.hosts_of(trial) else ""

    @property
    def of_models(self) -> dict[str, str]:
        """The variable by which a process finds files that define models; none where the study has no such model."""
        return {FOLDERS: os.pathsep.join(self.models)} if self.models else {}

    def environment(self, trial: Trial) -> dict[str, str]:
        """The variables that each of the trial's processes is to have; a command's own as far as they are known yet."""
        interface = self.interface(trial)
        named = dict.fromkeys(INTERFACE_OF, interface) if interface else {}
        return {**self.of_models, **named, **self.file.environment, **command.variables(trial)}

    def exported(self, trial: Trial) -> list[str]:
        """The names of all variables that go with the trial to other hosts."""
        return sorted({*self.exports, *self.environment(trial)})

    def flags(self, launcher: str) -> list[str]:
        """The options that the machine file adds to a launcher."""
        flags: Mapping[str, list[str]] = self.file.flags
        return list(flags.get(launcher, ()))

    def fingerprint(self, hardware: str) -> str:
        """The fingerprint of the machine that trials are planned for: of its hardware and its machine file."""
        return f"{hardware}-{self.file.fingerprint}" if self.file.fingerprint else hardware

    def to_dict(self) -> dict[str, Any]:
        """For records: what was given, and nothing else."""
        given: dict[str, Any] = self.file.model_dump(exclude_defaults=True, mode="json")
        if "environment" in given:
            given["environment"] = variables.without_secrets(given["environment"])
        return given


ALONE = Cluster()


# The parity gate's trials: what must be shown about a framework before its speed means anything. Pure.
#
#     every framework and model of the study        --> fp64, ten steps, within 1e-9 or rounding of the reference
#     every 16-bit path (allreduce or precision)    --> one step, within that format's bound of fp32
#     fp32, where fp64 goes another path            --> one step, within fp32's
#     PowerSGD, local SGD and DiLoCo                --> fp64, ten steps, held against the same algorithm in one process

STEPS = 10
BATCH = 8
SEQUENCE_LENGTH = 32
MICRO_BATCHES = 4  # where there are more: one is the first, some are between, and one is reduced
SYNC_EVERY = 3  # of a gate: weights are averaged three times, and one step is left over
SIXTEEN_BIT = ("fp16", "bf16")
ROUNDING = (*SIXTEEN_BIT, "int8")  # of gradients on the wire
ONE_STEP, TEN_STEPS = Window(0, 1, 0.0, None, 1), Window(0, STEPS, 0.0, None, STEPS)
SAME: Mapping[str, Any] = {  # for every gate, whatever its configuration is
    "find": "parity",
    "cores_per_worker": 1,
    "allocator": "system",
    "repeat": 1,
    "window": TEN_STEPS,
    **dict.fromkeys(("epochs", "warmup_epochs", "warm", *TRAIN_KEYS)),
    **dict.fromkeys(("image_size", "image_width", "classes", "resident_batches", "input", "damaged_images", "padding")),
    **dict.fromkeys(("weights", "freeze", "learning_rate", "part_learning_rates")),
    "optimizer_kernels": None,  # a gate steps by plain SGD
    **dict.fromkeys(("bucket_bytes", "fusion_bytes", "cycle_seconds")),
    **dict.fromkeys(("target_batch_size", "matchmaking_seconds", "averaging_timeout_seconds")),
    **dict.fromkeys(("average_state_every", "state_allreduce", "daemon_cores", "updates")),
}
LOOKED_AT = [f.name for f in fields(Trial) if f.name not in (*SAME, "batch_per_worker", "sequence_length")]


def needed(configurations: Iterable[Trial]) -> list[Trial]:
    """The gates of these configurations, each once."""
    timed = (trial for trial in configurations if trial.find is None)
    unlike = {tuple(getattr(trial, name) for name in LOOKED_AT): trial for trial in timed}
    gates = {gate.id: gate for trial in unlike.values() for gate in gates_of(trial)}
    return list(gates.values())


def gates_of(trial: Trial) -> Iterator[Trial]:
    """The gates that one configuration stands behind: the same for every batch size and number of workers."""
    table = FRAMEWORKS[trial.framework]
    if not table.trains or table.foreign:
        return
    parallel = table.axes["workers"] != (1,)
    one_gpu = trial.device == "cuda" and trial.workers == 1  # no second one to be parallel with: the CPU has to do
    workers = 2 if parallel and not (one_gpu and table.needs_gpu) else 1
    shape = pipeline(trial) if table.cuts_model else mesh(trial)
    workers = shape.pop("workers", workers)
    hosts = 2 if (trial.hosts or 1) > 1 and workers % 2 == 0 else None  # what passes on one need not over several
    sharing = (shape.get("stages") or 1) * (shape.get("tensor_parallel") or 1)
    wire = "none" if workers // sharing == 1 else "fp32"
    accumulation = min(trial.accumulation, MICRO_BATCHES)
    parts = shape.get("micro_batches") or accumulation
    # BatchNorm over a single value has no variance; over two of them ResNet-18 loses itself to rounding in three steps.
    micro_batch = max(4 if accumulation > 1 else 2, -(-BATCH // parts))
    gate = replace(
        trial,
        workers=workers,
        hosts=hosts,
        device="cpu" if one_gpu and workers == 2 else trial.device,
        batch_per_worker=micro_batch * parts,
        accumulation=accumulation,
        allreduce=wire,
        precision=table.parity_precision,
        sequence_length=SEQUENCE_LENGTH if "sequence_length" in MODELS[trial.model].keys else None,
        sync_every=SYNC_EVERY if "sync_every" in table.axes else None,
        outer=(trial.outer or RESOLVED["outer"]) if "outer" in table.axes else None,
        **SAME,
    )
    if trial.trained:  # its seed is that of one of its repeats
        gate = replace(gate, seed=Trial.seed)
    gate = replace(gate, **shape, **MODELS[trial.model].gate)
    yield gate if table.parity_precision == "fp64" else smooth(gate)
    precision = "fp32" if trial.precision == "fp64" else trial.precision
    wire = trial.allreduce if wire != "none" and trial.allreduce != "none" else wire
    if wire in POWERSGD:  # no rounding of what one process trains, but an algorithm
        yield replace(gate, allreduce=wire)
        wire = "fp32"
    if wire in ROUNDING or precision in SIXTEEN_BIT or (table.fp64_by_another_path and trial.precision == "fp32"):
        yield replace(smooth(gate), precision=precision, allreduce=wire)


def pipeline(trial: Trial) -> dict[str, Any]:
    """The keys of a pipeline's gate: its schedule on two workers, twice where there are replicas, and twice again where
    these are several groups that hold it in shards.

    Where it is cut decides nothing about what is trained: the gate cuts by layers, and measures nothing first.
    """
    stages, replicas, width = 2, min(2, trial.replicas or 1), min(2, trial.tensor_parallel or 1)
    group = trial.shard_group or 1
    if 1 < group < (trial.replicas or 1):
        replicas = 4
    workers = stages * replicas * width
    parts = trial.micro_batches and (1 if trial.micro_batches == 1 else MICRO_BATCHES)
    return {
        "workers": workers,
        "stages": stages,
        "replicas": trial.replicas and replicas,
        "tensor_parallel": width if width > 1 else None,
        "shard_group": 2 if group > 1 else None,
        "micro_batches": parts,
        "stage_cut": "even",
        "oversubscribe": workers > 2,
        "virtual_stages": trial.virtual_stages and min(2, trial.virtual_stages),  # the test sizes have few layers
    }


def mesh(trial: Trial) -> dict[str, Any]:
    """The keys of a mesh's gate: matrices or sequences over two workers, twice where there are replicas."""
    shared = next((key for key in MESH if key in FRAMEWORKS[trial.framework].axes), None)
    if shared is None:
        return shard_groups(trial)
    replicas = min(2, trial.replicas or 1)
    return {"workers": 2 * replicas, shared: 2, "replicas": replicas, "oversubscribe": replicas > 1}


def shard_groups(trial: Trial) -> dict[str, Any]:
    """The keys of a gate of several shard groups: two groups of two workers, or of one where they have one."""
    if not trial.shard_group:
        return {}
    group = min(2, trial.shard_group)
    return {"workers": 2 * group, "shard_group": group, "oversubscribe": group > 1}


def smooth(gate: Trial) -> Trial:
    """One step of a model of the same kind in which a rounding stays one."""
    ours, smooth = MODELS[gate.model], MODELS[gate.model].smooth
    if not smooth:
        return replace(gate, window=ONE_STEP)
    data = gate.data if MODELS[smooth].data == ours.data else "auto"
    return replace(gate, model=smooth, data=data, image_size=None, image_width=None, window=ONE_STEP)


ONE_PROCESS = "one process"


def reference_of(gate: Mapping[str, Any]) -> str:
    """The training that a gate with these keys is held against, in words (parity/reference.py computes it)."""
    if rank := POWERSGD.get(str(gate["allreduce"])):
        return f"{ONE_PROCESS}: PowerSGD of rank {rank}"
    if gate["sync_every"]:
        return f"{ONE_PROCESS}: {LOCAL[gate['outer']]} every {gate['sync_every']} steps"
    return ONE_PROCESS


def gate_ids(trial: Trial) -> list[str]:
    """The ids of the gates whose verdicts a configuration's numbers stand or fall with."""
    return [gate.id for gate in gates_of(trial)]


def verdict(trial: Trial, known: Mapping[str, str]) -> str:
    """`passed`, the first failure among its gates, or `not checked`; `known` maps a gate's id to its verdict."""
    if FRAMEWORKS[trial.framework].foreign:
        return "not checked"
    verdicts = [known.get(id, "not checked") for id in gate_ids(trial)]
    failures = [verdict for verdict in verdicts if verdict not in ("passed", "not checked")]
    return (failures or [verdict for verdict in verdicts if verdict != "passed"] or ["passed"])[0]


EXTRAS = ("accelerate", "deepspeed", "fairscale", "hivemind", "lightning")  # of setup.cfg, named like what it installs


def unsupported(trial: Trial, machine: Machine, cluster: Cluster = ALONE) -> str:
    """Why this machine, these hosts or the framework cannot run the trial; empty if they can."""
    table = FRAMEWORKS[trial.framework]
    for key, reasons in table.refusals.items():
        if reason := reasons.get(str(getattr(trial, key))):
            return reason
    if trial.trained:
        if trial.framework in rules.ONLY_TIMED:
            return rules.ONLY_TIMED[trial.framework]
        if trial.data == "synthetic":
            return "training to a target needs real data, not synthetic"
        own = trial.train_loop == "native" and trial.framework == "deepspeed_zero"
        whole = own or trial.zero_stage == 0  # it clips by a norm over all shards; has none
        if trial.train_clip_norm and not whole and table.refusals.get("model") is CLIPPING_NEEDS_ALL_GRADIENTS:
            return "clip_norm clips the norm of all gradients, and each rank of this framework has only shards of them"
    if table.reduces_as_it_computes and trial.allreduce in SIXTEEN_BIT and trial.allreduce != trial.precision:
        return table.reduces_as_it_computes
    if trial.allreduce in POWERSGD and trial.precision == "fp16":
        return POWERSGD_HAS_NO_SCALER
    if trial.launcher == "srun" and not cluster.in_job:
        return "launcher=srun needs a Slurm job: --slurm submits one"
    over_hosts = bool(cluster.hosts_of(trial))
    if trial.launcher == "accelerate" and (over_hosts or (trial.hosts or 1) > 1):
        return "launcher=accelerate starts the workers of one host only: use launcher=torchrun for several"
    if trial.command and (why := command.no_start(trial, over_hosts, cluster.in_job, cluster.defined)):
        return why
    model = model_named(trial.model)
    if table.cuts_model and model.uncut:
        return model.uncut
    by_part = trial.freeze or trial.part_learning_rates or (trial.trained and "freeze" in model.keys)
    if table.flattens_weights and by_part:
        return FLATTENS_WEIGHTS
    by_sgd = trial.train_optimizer in ("sgd", "nesterov") if trial.train_optimizer else model.sgd
    fused = trial.optimizer_kernels == "fused"
    if fused and by_sgd and (trial.framework == "torch_fsdp2" or trial.shard_group):
        return FUSED_SGD_OF_SHARDS
    if fused and table.cuts_model and trial.tensor_parallel:
        return f"optimizer_kernels=fused: {NOT_OF_DTENSORS['optimizer_kernels']}"
    libraries = (*table.needs, *table.launcher_needs.get(trial.launcher, ()), *model.needs)
    extra_of = {library: library if library in (model.extra, *EXTRAS) else "" for library in libraries}
    if trial.input == "dali" and not set(DALI) & set(machine.libraries):
        extra_of[DALI[0]] = "dali"
    if trial.weights == IMAGENET:
        extra_of.setdefault(model.imagenet, model.imagenet_extra)
    if trial.trained:
        extra_of |= {"torchmetrics": "training", **dict.fromkeys(logs(vars(trial)), "training")}
        extra_of |= {"wandb": "export"} if "wandb" in extra_of else {}
    for library, extra in extra_of.items():
        if library not in machine.libraries:
            how = f" (pip install 'scaling-study[{extra}]')" if extra else ""
            return f"{library} is not installed{how}"
    if why := too_old(trial, machine.libraries):
        return why
    if trial.device == "cpu" and table.needs_gpu:
        return table.needs_gpu
    if trial.find == "max_batch" and trial.device == "cpu":
        return "find: max_batch needs a GPU: a CPU swaps instead of running out of memory"
    if why := _no_kernels(trial, machine):
        return why
    if trial.device == "cuda" and not machine.gpus:
        return "device cuda: no GPU on this machine (plan for GPUs: --dry-run --machine FILE)"
    if trial.device == "cpu" and trial.precision == "fp16":
        return "fp16 compute on a CPU is about 20 times slower than bf16, so it says nothing about GPUs: use bf16"
    pinned_to = 0 if trial.device == "cuda" else trial.cores_per_worker or 1
    if why := rules.no_core_left(trial.daemon_cores or 0, pinned_to):
        return why
    over = trial.hosts or 1
    spread = over > 1 or (trial.hosts and cluster.hosts)
    if spread and (why := hosts.capacity_problem(cluster.hosts, over, trial.workers)):
        return why
    workers, who = trial.workers // over, "each host" if over > 1 else "this machine"
    have, what = (len(machine.gpus), "GPUs") if trial.device == "cuda" else (machine.cores, "cores")
    need = workers * (1 if trial.device == "cuda" else trial.cores_per_worker or 1)
    if need > have and not trial.oversubscribe:
        each = "" if need == workers else f" of {trial.cores_per_worker} cores each"
        limit = f" ({machine.limited_by})" if machine.limited_by and what == "cores" and over == 1 else ""
        return f"{workers} workers{each} need {need} {what}, {who} has {have}{limit}"
    if trial.device == "cuda":
        return _passes_over_names(trial, cluster) or on_gpus.why_too_large(trial, machine)
    return _too_large(trial, workers, machine)


GIB = 2**30


def _too_large(trial: Trial, workers: int, machine: Machine) -> str:
    """Why so many workers have no room for a Llama in the machine's memory; empty where they may, or none knows.

    Each builds the model whole in fp32; its gradients are there once at least, whatever is sharded.
    """
    decoder = model_named(trial.model).decoder
    if not decoder or not machine.memory_bytes:
        return ""
    need = 4 * decoder.parameters * max(workers, 2)
    if need <= machine.memory_bytes:
        return ""
    return (
        f"{trial.model} needs {need / GIB:,.0f} GiB at least, for {decoder.parameters:,} weights and their gradients, "
        f"and this machine has {machine.memory_bytes / GIB:,.0f}: it can be planned here, for a machine file with GPUs"
    )


# The least compute capability of GPUs that compute in bf16 (on older ones torch emulates it), and of those that Triton
# makes kernels for (torch/_dynamo/device_interface.py).
BF16_CAPABILITY, TRITON_CAPABILITY = 8.0, 7.0


def _no_kernels(trial: Trial, machine: Machine) -> str:
    """Why the device has no kernels in this precision, or no compiler makes any; empty where it has, or none knows."""
    if FRAMEWORKS[trial.framework].foreign:  # precision and compile are labels of what a command does
        return ""
    has, on_gpu = machine.capability, trial.device == "cuda"
    old = f"{', '.join(dict.fromkeys(machine.gpus))} has compute capability {has:.1f}"
    if on_gpu and trial.precision == "bf16" and 0 < has < BF16_CAPABILITY:
        return f"precision=bf16 needs a GPU of compute capability {BF16_CAPABILITY:.1f}: {old}; fp32 works"
    if trial.compile and on_gpu and 0 < has < TRITON_CAPABILITY:
        return f"compile=true needs a GPU of compute capability {TRITON_CAPABILITY:.1f}: {old}; compile: false"
    if trial.compile and (lacks := machine.cannot_compile.get(trial.device)):
        return f"compile=true: {lacks}; or compile: false"
    return ""


def _passes_over_names(trial: Trial, cluster: Cluster) -> str:
    """Why a launcher would take other GPUs than CUDA_VISIBLE_DEVICES names; empty where it takes these."""
    words = [word.strip() for word in cluster.visible_gpus.split(",")]
    if trial.launcher != "deepspeed" or cluster.hosts_of(trial) or all(not word or word.isdecimal() for word in words):
        return ""
    named = f"CUDA_VISIBLE_DEVICES={cluster.visible_gpus}"
    return f"launcher=deepspeed takes indices of GPUs, not names as in {named}: use launcher=torchrun"
