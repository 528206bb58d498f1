"""The one table: what each framework is, how it is launched, what it supports and what it needs.

Static data. The plan reads it together with a description of the machine; `doctor` tests it against
reality. A new framework is one script and one entry here (docs/internals/add-a-framework.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scaling_study.models import BACKBONE, DECODERS, MODEL_NAMES, NONE
from scaling_study.stats.network import COLLECTIVES
from scaling_study.targets import TRAIN

# The axes that many frameworks share: trial keys, and the values that each may take. Static data.
#
# a process < what trains < on one host < over several hosts        a pipeline: nearly that, and where it is cut

Axes = Mapping[str, tuple[object, ...]]  # (): any value of the right type

PROCESS_AXES: Axes = {"device": (), "cores_per_worker": (), "allocator": ("fixed", "system")}
TRAINING_AXES: Axes = {
    "model": MODEL_NAMES,
    "precision": ("fp32", "bf16", "fp16", "fp64"),
    **PROCESS_AXES,
    "data": (
        *("auto", "cifar10", "cola", "wikitext2", "wikitext2_bpe"),
        *("images", "cholect45", "surgical_scenes", "synthetic"),
    ),
    "input": ("memory", "torchvision", "dali"),
    "damaged_images": ("stop", "replace"),
    "memory_format": ("contiguous", "channels_last"),
    "padding": ("fixed", "dynamic"),
    "freeze": (NONE, BACKBONE),
    "compile": (True, False),
    "compile_scope": ("model", "model_and_loss"),
    "gelu": ("new", "tanh"),
    "cross_entropy": ("whole", "chunked"),
    "checkpoint": (NONE, "block", "selective"),
    "optimizer_kernels": ("default", "fused"),
    **dict.fromkeys(("batch_per_worker", "image_size", "image_width", "classes", "resident_batches"), ()),
    **dict.fromkeys(("sequence_length", "weights", "learning_rate", "part_learning_rates", "accumulation"), ()),
    **dict.fromkeys(("vocabulary", "seed", "epochs", "warmup_epochs", "find", "dropout"), ()),
    **dict.fromkeys((f"train_{name}" for name in TRAIN), ()),
}
ONE_HOST_AXES: Axes = {**TRAINING_AXES, "workers": (), "oversubscribe": (True, False)}
PARALLEL_AXES: Axes = {**ONE_HOST_AXES, "hosts": ()}
BUFFERS = ("local", "synced")  # synced: rank 0's are broadcast before every forward, which communicates then
DDP_AXES: Axes = {"bucket_bytes": (), "buffers": BUFFERS, "tuned_for": ("speed",)}  # what is fastest keeps least too
FUSION_AXES: Axes = {"fusion_bytes": (), "cycle_seconds": ()}  # of Horovod
TUNED = ("speed", "memory")
WRAPS = ("blocks", "none")  # none: one unit, gathered whole (F24)
WIRES = ("none", "fp32", "fp16", "bf16")
POWERSGD: Mapping[str, int] = {"powersgd1": 1, "powersgd2": 2, "powersgd4": 4}  # allreduce -> rank of its matrices
LOCAL: Mapping[str, str] = {"average": "local SGD", "nesterov": "DiLoCo"}  # `outer` -> its name
NO_FP64 = ("fp32", "bf16", "fp16")
UPDATES = ("synchronous", "delayed", "local")  # of peers; only the first steps as DDP does
# Peers report batch after batch until all of them together have the target: that is accumulation.
NOT_OF_PEERS = (
    *("accumulation", "compile", "compile_scope", "optimizer_kernels", "checkpoint"),
    *("epochs", "warmup_epochs"),
)
PEER_AXES: Axes = {
    **{key: values for key, values in PARALLEL_AXES.items() if key not in NOT_OF_PEERS},
    "precision": ("fp32", "bf16", "fp64"),
    "find": ("parity",),
    "updates": UPDATES,
    **dict.fromkeys(
        ("target_batch_size", "matchmaking_seconds", "averaging_timeout_seconds", "average_state_every"), ()
    ),
    "state_allreduce": ("fp32", "fp16"),
    "daemon_cores": (),
}
# Keys that a framework lacks, each with the reason. In a pipeline shapes never change on their way from stage to stage.
COMPILED = ("compile", "compile_scope")
NOT_OF_PIPELINES = {
    **dict.fromkeys(COMPILED, "stages are not compiled"),
    "accumulation": "a pipeline divides its batch by micro_batches",
    "cross_entropy": "the loss of the last stage needs all scores at once",
    "checkpoint": "stages do not compute activations again",
}
PIPELINE_AXES: Axes = {
    **{key: values for key, values in PARALLEL_AXES.items() if key not in NOT_OF_PIPELINES},
    "precision": ("fp32", "bf16", "fp64"),
    "padding": ("fixed",),
    "find": ("parity",),
    "stages": (),
    "stage_cut": (),
}
SCHEDULE_AXES: Axes = {"micro_batches": (), "virtual_stages": (), "replicas": ()}
# Workers that share every matrix, of decoders. Beside cut matrices norms may be plain tensors: no scaler of fp16 losses
# takes both.
NOT_OF_DTENSORS = {
    **dict.fromkeys(COMPILED, "torch 2.15 compiles only the forward pass of split matrices (DTensor)"),
    "optimizer_kernels": "no fused update takes split matrices (DTensor) and whole norms together",
}
TENSOR_AXES: Axes = {
    **{key: values for key, values in PARALLEL_AXES.items() if key not in NOT_OF_DTENSORS},
    "model": DECODERS,
    "precision": ("fp32", "bf16", "fp64"),
    "allreduce": WIRES,
    "find": ("parity",),
    **{"tensor_parallel": (), "sequence_parallel": (True, False), "loss_parallel": (True, False), "replicas": ()},
}
# Workers that share every sequence, of decoders.
NOT_OF_PARTS = dict.fromkeys(COMPILED, "torch.compile around the collectives of attention is untested on GPUs")
CONTEXT_AXES: Axes = {
    **{key: values for key, values in PARALLEL_AXES.items() if key not in NOT_OF_PARTS},
    "model": DECODERS,
    "precision": ("fp32", "bf16", "fp64"),
    "allreduce": ("none", "fp32"),
    "find": ("parity",),
    **{"context_parallel": (), "attention": ("all_to_all", "all_gather"), "replicas": (), "bucket_bytes": ()},
}
MESH = ("tensor_parallel", "context_parallel")  # axes of frameworks whose workers share matrices, or sequences


@dataclass(frozen=True)
class Framework:
    """Abilities of one framework on the best machine there is: how it is launched, what it supports, what it needs.

    A new framework is one script and one entry in FRAMEWORKS (docs/internals/add-a-framework.md).

    `axes` maps a trial key to the values it may take; `()` means any value of the right type. A trial key
    that is not an axis cannot be set for this framework, and its script has no flag for it.
    `refusals` maps a key to values that users request and the framework itself refuses, with its reason:
    such a trial is planned and recorded as `unsupported`, so that the hole in the table explains itself.
    `lacks` maps keys that are no axes to the reason, which is said where a study asks for them.
    One with no axis `model` trains nothing: its trials have model `none`, no parity gate and no samples.
    """

    title: str
    script: str  # from the repository's root
    launchers: tuple[str, ...]  # the first is the default
    needs: tuple[str, ...]  # distributions that must be installed
    axes: Axes = field(default_factory=dict)
    refusals: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    lacks: Mapping[str, str] = field(default_factory=dict)
    needs_gpu: str = ""  # why it cannot run without one; empty: it can
    reduces_as_it_computes: str = ""  # why a 16-bit allreduce needs the same precision of compute; empty: it does not
    one_process: bool = False  # one process drives all its workers' GPUs
    parity_precision: str = "fp64"  # of the parity gate: fp32 for one that refuses fp64
    fp64_by_another_path: bool = False  # than fp32: what is timed has a gate in fp32 too
    shards: int = 0  # its ZeRO stage where none is asked for: 3 is everything, 0 nothing
    flattens_weights: bool = False  # into parameters of its own, each of which may hold several parts of a model
    cuts_model: bool = False  # its workers hold stages of one model, and share one batch
    not_comparable_on_cpu: str = ""  # why its speed there is not to be set beside others'; its parity and memory are
    communicates_in: tuple[str, ...] = ()  # phases, beside `communication`, in which its collectives are under way
    cold: str = ""  # why it has launches to itself; empty: it may be measured in rounds
    launcher_needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # what only trials by a launcher need
    launcher_axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # axis -> the launchers that have it
    foreign: bool = False  # it runs scripts that are not ours: no gate, no pinned cores, observed from outside

    @property
    def trains(self) -> bool:
        return "model" in self.axes

    @property
    def shares_batches(self) -> bool:
        """True where several workers read the same samples: those of a pipeline, of each matrix or of each sequence."""
        return self.cuts_model or any(key in self.axes for key in MESH)

    @property
    def has_rounds(self) -> bool:  # a step is one, of no fixed number of samples
        return "target_batch_size" in self.axes

    def syncs(self, buffers: object) -> bool:
        """True where forward broadcasts buffers, by the trial key: null in records from before it, where all did."""
        return "buffers" in self.axes and buffers != "local"

    def has(self, axis: str, launcher: str) -> bool:
        """True where its trials by this launcher have the axis."""
        return axis in self.axes and launcher in self.launcher_axes.get(axis, (launcher,))


# Schedule -> how many stages a worker holds: exactly one, exactly two (in a V), or as many as asked for.
SCHEDULES: Mapping[str, str] = {
    "gpipe": "one",
    "1f1b": "one",
    "interleaved_1f1b": "several",
    "looped_bfs": "several",
    "interleaved_zero_bubble": "several",
    "zbv_zero_bubble": "two",
    "dualpipev": "two",
}

DATA_PARALLEL_CANNOT_COMPILE = "each replica of DataParallel would run what was compiled for the first GPU's weights"
DATA_PARALLEL_GATHERS = "DataParallel gathers all scores, and a chunked loss has only a part: use cross_entropy=whole"
HOROVOD_HAS_NO_BF16 = "Horovod 0.28.1 cannot reduce bf16 (Tensor type torch.BFloat16Tensor is not supported)"
FAIRSCALE_HAS_NO_WIRE = "FairScale reduces gradients in the precision of compute: gradients=fp16 needs precision=fp16"
LIGHTNING_FSDP_HAS_NO_FP64 = "Lightning's FSDP has no fp64 (`precision='64-true'` is not supported in FSDP)"
DEEPSPEED_HAS_NO_FP64 = (
    "DeepSpeed 0.19.8 has no fp64: stage 0 refuses it (attempting to reduce an unsupported grad type: torch.float64), "
    "the others silently round it to fp32"
)
SENT_BETWEEN_STAGES = {
    "channels_last": "stages send images to each other, and only contiguous tensors are sent: memory_format=contiguous"
}
FAIRSCALE_PIPE_HAS_NO_EXTRAS = "fairscale.nn.Pipe passes on one tensor, and ALBERT's layers need a mask too"
# Its gate could not tell: gates step with plain SGD.
CLIPPING_NEEDS_ALL_GRADIENTS = {
    name: "this model clips the norm of all gradients, and each rank of this framework has only shards of them"
    for name in ("transformer_lm", "transformer_lm_deep", "transformer_lm_unmasked")
}
FLATTENS_WEIGHTS = (
    "FairScale's FSDP makes one flat parameter of a block's weights: no part of a model can be frozen or have its own "
    "learning rate"
)
FUSED_SGD_OF_SHARDS = (
    "torch has no fused SGD of sharded tensors (DTensor): optimizer_kernels=default, or train.optimizer adam or adamw"
)
POWERSGD_HAS_NO_SCALER = (
    "PowerSGD carries the error of a step into the next, and fp16 has steps with infinite gradients: use "
    "precision=bf16 or fp32, or other gradients"
)
NO_MUON = ("sgd", "nesterov", "adam", "adamw")
MUON_NEEDS_MATRICES = {
    "muon": "Muon needs whole matrices, and this library gives its optimiser flat shards or replaces it: use "
    "train.optimizer adamw, or framework torch_fsdp2"
}
# Of libraries that cut weights or gradients into flat shards.
FLAT_SHARDS: Axes = {**PARALLEL_AXES, "train_optimizer": NO_MUON}
FLAT_SHARDS_REFUSE = {"model": CLIPPING_NEEDS_ALL_GRADIENTS, "train_optimizer": MUON_NEEDS_MATRICES}
ONE_RANK_HAS_NO_NETWORK = "a network probe needs two or more workers"

OURS: Mapping[str, Framework] = {
    "single": Framework(
        title="one process, plain PyTorch",
        script="data_parallel/single.py",
        launchers=("python",),
        needs=("torch",),
        axes={**TRAINING_AXES, "allreduce": ("none",), "workers": (1,)},
    ),
    "torch_dp": Framework(
        title="torch DataParallel",
        script="data_parallel/torch_dp.py",
        launchers=("python",),
        needs=("torch",),
        axes={**ONE_HOST_AXES, "allreduce": ("none", "fp32")},
        refusals={
            "compile": {"True": DATA_PARALLEL_CANNOT_COMPILE},
            "cross_entropy": {"chunked": DATA_PARALLEL_GATHERS},
        },
        needs_gpu="torch's DataParallel splits a batch over GPUs; without a GPU it does nothing",
        one_process=True,
        communicates_in=("forward", "backward"),
    ),
    "torch_ddp": Framework(
        title="torch DistributedDataParallel",
        script="data_parallel/torch_ddp.py",
        launchers=("torchrun", "srun", "accelerate"),
        needs=("torch",),
        axes={**PARALLEL_AXES, "allreduce": (*WIRES, *POWERSGD), **DDP_AXES},
        launcher_needs={"accelerate": ("accelerate",)},
        communicates_in=("backward",),
    ),
    "diloco": Framework(
        title="local SGD and DiLoCo: workers train alone, and average their weights every so many steps",
        script="data_parallel/diloco.py",
        launchers=("torchrun", "srun"),
        needs=("torch",),
        axes={**PARALLEL_AXES, "allreduce": ("none", "fp32"), "sync_every": (), "outer": tuple(LOCAL)},
    ),
    "horovod": Framework(
        title="Horovod allreduce",
        script="horovod_runs/resnet_cifar10.py",
        launchers=("horovodrun", "mpirun", "srun"),
        needs=("horovod", "torch"),
        axes={**PARALLEL_AXES, "allreduce": ("none", "fp32", "fp16"), "controller": ("mpi", "gloo"), **FUSION_AXES},
        refusals={"allreduce": {"bf16": HOROVOD_HAS_NO_BF16}},
        communicates_in=("backward",),
    ),
    "mpi_allreduce": Framework(
        title="mpi4py allreduce in fused buffers",
        script="horovod_runs/mpi_allreduce.py",
        launchers=("mpirun", "srun"),
        needs=("mpi4py", "torch"),
        axes={**PARALLEL_AXES, "allreduce": WIRES, "fusion_bytes": ()},
    ),
    "fairscale_oss": Framework(
        title="FairScale OSS + ShardedDataParallel",
        script="fsdp/fairscale_oss.py",
        launchers=("torchrun", "srun"),
        needs=("fairscale", "torch"),
        axes={**FLAT_SHARDS, "allreduce": ("none", "fp32", "fp16"), "buffers": BUFFERS},
        refusals=FLAT_SHARDS_REFUSE,
        shards=2,
        communicates_in=("backward", "optimizer"),
    ),
    "fairscale_fsdp": Framework(
        title="FairScale FullyShardedDataParallel",
        script="fsdp/fairscale_fsdp.py",
        launchers=("torchrun", "srun"),
        needs=("fairscale", "torch"),
        axes={**FLAT_SHARDS, "allreduce": ("none", "fp32", "fp16"), "zero_stage": (2, 3), "wrap": WRAPS},
        refusals=FLAT_SHARDS_REFUSE,
        reduces_as_it_computes=FAIRSCALE_HAS_NO_WIRE,
        flattens_weights=True,
        shards=3,
        communicates_in=("forward", "backward"),
    ),
    "torch_fsdp2": Framework(
        title="torch FSDP2 (fully_shard)",
        script="fsdp/torch_fsdp2.py",
        launchers=("torchrun", "srun", "accelerate"),
        needs=("torch",),
        launcher_needs={"accelerate": ("accelerate",)},
        axes={
            **PARALLEL_AXES,
            "allreduce": WIRES,
            "zero_stage": (2, 3),
            "wrap": WRAPS,
            "tuned_for": TUNED,
            "shard_group": (),
            "reduce_scatter": ("library", "all_to_all"),
        },
        fp64_by_another_path=True,  # of reduce-scatter: torch 2.8's gave twice the gradients, in fp32 alone
        shards=3,
        communicates_in=("forward", "backward"),
    ),
    "deepspeed_zero": Framework(
        title="DeepSpeed ZeRO",
        script="fsdp/deepspeed_zero.py",
        launchers=("deepspeed", "torchrun", "srun"),
        needs=("deepspeed", "torch"),
        axes={**FLAT_SHARDS, "allreduce": WIRES, "precision": NO_FP64, "zero_stage": (0, 1, 2, 3), "tuned_for": TUNED},
        refusals={"precision": {"fp64": DEEPSPEED_HAS_NO_FP64}, **FLAT_SHARDS_REFUSE},
        parity_precision="fp32",
        shards=2,
        communicates_in=("backward", "optimizer"),  # and in forward at stage 3
        cold="DeepSpeed 0.19.8 has one setting of autocast for all engines of a process, its last one's",
    ),
    "lightning_ddp": Framework(
        title="Lightning DDP",
        script="fsdp/lightning_ddp.py",
        launchers=("torchrun",),
        needs=("lightning", "torch"),
        axes={**PARALLEL_AXES, "allreduce": WIRES, **DDP_AXES},
        communicates_in=("backward",),
    ),
    "lightning_fsdp": Framework(
        title="Lightning FSDP",
        script="fsdp/lightning_fsdp.py",
        launchers=("torchrun",),
        needs=("lightning", "torch"),
        axes={**FLAT_SHARDS, "allreduce": WIRES, "precision": NO_FP64, "zero_stage": (2, 3), "wrap": WRAPS},
        refusals={"precision": {"fp64": LIGHTNING_FSDP_HAS_NO_FP64}, **FLAT_SHARDS_REFUSE},
        needs_gpu="Lightning refuses this strategy on a CPU (FSDP is only available on GPU)",
        parity_precision="fp32",
        shards=3,
        communicates_in=("forward", "backward"),
    ),
    "torch_tp": Framework(
        title="torch DTensor: tensor parallelism",
        script="tensor/torch_tp.py",
        launchers=("torchrun", "srun"),
        needs=("torch",),
        axes=TENSOR_AXES,
        lacks=NOT_OF_DTENSORS,
        communicates_in=("forward", "backward"),
    ),
    "torch_pipeline": Framework(
        title="torch.distributed.pipelining",
        script="pipeline/torch_pipeline.py",
        launchers=("torchrun", "srun"),
        needs=("torch",),
        axes={
            **PIPELINE_AXES,
            "allreduce": WIRES,
            "schedule": tuple(SCHEDULES),
            **SCHEDULE_AXES,
            **{"tensor_parallel": (), "shard_group": ()},
        },
        refusals={"memory_format": SENT_BETWEEN_STAGES},
        lacks=NOT_OF_PIPELINES,
        cuts_model=True,
        communicates_in=("optimizer",),  # the norm of all gradients, where a model is clipped
    ),
    "fairscale_pipe": Framework(
        title="FairScale Pipe",
        script="pipeline/fairscale_pipe.py",
        launchers=("python",),
        needs=("fairscale", "torch"),
        axes={**{k: v for k, v in PIPELINE_AXES.items() if k != "hosts"}, "allreduce": ("none",), "micro_batches": ()},
        refusals={
            "model": {"albert_base_v2": FAIRSCALE_PIPE_HAS_NO_EXTRAS, "albert_tiny": FAIRSCALE_PIPE_HAS_NO_EXTRAS}
        },
        one_process=True,
        lacks=NOT_OF_PIPELINES,
        not_comparable_on_cpu="on a CPU all of FairScale's stages share one thread: nothing runs side by side",
        cuts_model=True,
    ),
    "naive_model_parallel": Framework(
        title="layers split over workers, no micro-batches",
        script="pipeline/naive_model_parallel.py",
        launchers=("torchrun", "srun"),
        needs=("torch",),
        axes={**PIPELINE_AXES, "allreduce": ("none",)},
        refusals={"memory_format": SENT_BETWEEN_STAGES},
        lacks=NOT_OF_PIPELINES,
        cuts_model=True,
        communicates_in=("optimizer",),
    ),
    "torch_context": Framework(
        title="context parallelism by hand: parts of each sequence",
        script="tensor/torch_context.py",
        launchers=("torchrun", "srun"),
        needs=("torch",),
        axes=CONTEXT_AXES,
        lacks=NOT_OF_PARTS,
        communicates_in=("forward", "backward"),
    ),
    "hivemind": Framework(
        title="Hivemind: peers that find each other, and average gradients once a target batch is reached",
        script="decentralized/hivemind_peers.py",
        launchers=("torchrun", "srun"),
        needs=("hivemind", "torch"),
        axes={**PEER_AXES, "allreduce": ("none", "fp32", "fp16", "int8"), "train_optimizer": NO_MUON},
        refusals={
            "allreduce": {"bf16": "Hivemind 1.1.12 compresses gradients to fp16 or to 8 bits, not to bf16"},
            "train_optimizer": MUON_NEEDS_MATRICES,
        },
        fp64_by_another_path=True,  # its own is fp32 whatever the weights': a gate in fp64 has it take theirs
        communicates_in=("matchmaking", "averaging"),
        cold="its peers go on averaging between blocks",
    ),
    "network_probe": Framework(
        title="the network: collectives of torch.distributed, Horovod or mpi4py, size by size",
        script="horovod_runs/allreduce_bandwidth.py",
        launchers=("torchrun", "horovodrun", "mpirun"),  # which says whose collectives are measured
        needs=("torch",),
        launcher_needs={"horovodrun": ("horovod",), "mpirun": ("mpi4py",)},
        axes={
            **{"workers": (), "hosts": (), "oversubscribe": (True, False)},
            "launcher": ("torchrun", "horovodrun", "mpirun"),  # its script must be told
            "controller": ("mpi", "gloo"),
            "cycle_seconds": (),
            **PROCESS_AXES,
            "collective": COLLECTIVES,
            **dict.fromkeys(("min_bytes", "max_bytes", "size_factor"), ()),
        },
        launcher_axes={"controller": ("horovodrun",), "cycle_seconds": ("horovodrun",)},
        cold="its calls are timed one after the other, without steps",
        refusals={"workers": {"1": ONE_RANK_HAS_NO_NETWORK}},
    ),
}

COMMAND = "command"  # a command of the user's own (study/command.py)
_COMMAND = Framework(
    title="a command of your own, observed without edits",
    script="",
    launchers=("python",),  # the command has its own
    needs=(),
    axes={
        **dict.fromkeys(("command", "arguments", "env", "workdir", "workers", "hosts", "batch_per_worker"), ()),
        **dict.fromkeys(("oversubscribe", "model", "device", "learning_rate", "seed", "sequence_length"), ()),
        **{key: TRAINING_AXES[key] for key in ("precision", "compile", "accumulation")},
        "allreduce": ("none", "fp32", "fp16", "bf16", "int8"),
    },
    foreign=True,
    communicates_in=("forward", "backward", "optimizer"),  # any of them, for all that is known
)


class Frameworks(dict[str, Framework]):
    """Frameworks by name. A user's command is one too; it is not listed, as it has no script here."""

    def __missing__(self, name: str) -> Framework:
        if name == COMMAND:
            return _COMMAND
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return name == COMMAND or super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name, _COMMAND if name == COMMAND else default)


FRAMEWORKS: Mapping[str, Framework] = Frameworks(OURS)
