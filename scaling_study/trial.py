"""One trial: one configuration, run once. Frozen, hashable into an id, and the same thing as a command line.

    study file --> Trial --to_argv()--> `horovodrun -np 2 python script.py --model resnet18 ...`
                     ^                                                       |
                     +--------------------- from_argv() ---------------------+

The driver and a person at a prompt start the same script with the same flags. Nothing here imports more
than the standard library: every script pays for this import.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.models import MODEL_NAMES
from scaling_study.targets import KEPT, LOOPS, Target, logs, repeat_name, trains

# Keys of study files, older name -> name. Either is read for ever (study/names.py), and scripts take the flags of both.
# Trials, records, tables and --where have the older names.
RENAMED = {
    "allreduce": "gradients",
    "buffers": "batchnorm_buffers",
    "tuned_for": "library_settings",
    "wrap": "wrapping_policy",
    "warm": "interleave",
    "rounds": "blocks",
    "repeats": "launches",
    "max_repeats": "max_launches",
    "sentinel": "drift_check",
}


def flag(name: str) -> str:
    """`batch_per_worker` -> `--batch-per-worker`."""
    return "--" + name.replace("_", "-")


def key(default: Any, help: str, **limits: Any) -> Any:
    """A field: its default, what --help says of it, and its limits (`choices`, `minimum`, `above`, `below`)."""
    return field(default=default, metadata={"help": help, **limits})


def add_flag(group: Any, f: Any, choices: Any = ()) -> None:
    """Add the flag of one field, with its help, default and limits, to a group of an argparse parser."""
    help = f.metadata["help"]
    kind = next(k for name, k in (("int", int), ("float", float), ("bool", bool), ("str", str)) if name in str(f.type))
    if kind is bool:
        group.add_argument(flag(f.name), action="store_true", help=help)
    else:
        choices = choices or f.metadata.get("choices")
        default = argparse.SUPPRESS if f.default is None or f.name == "launcher" else f.default
        if f.name == "model" and default not in choices:
            default = choices[0]
        group.add_argument(
            *map(flag, (f.name, *([RENAMED[f.name]] if f.name in RENAMED else []))),
            type=bounded(kind, f.metadata),
            default=default,
            choices=choices or None,
            metavar=None if choices else kind.__name__.upper(),
            help=help,
        )


def add_rendezvous(parser: argparse.ArgumentParser) -> None:
    """Add the flags that tell ranks started by hand, one by one, where they meet (worker/script.py)."""
    group = parser.add_argument_group("joining the other ranks, where no launcher starts them")
    group.add_argument(
        "--dist-url",
        metavar="URL",
        default=argparse.SUPPRESS,
        help="where rank 0 listens: tcp://HOST:PORT, or env://, which reads MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK",
    )
    for name, what in (("world_size", "how many ranks there are"), ("rank", "which of them this is, from 0")):
        group.add_argument(flag(name), type=int, metavar="INT", default=argparse.SUPPRESS, help=what)


# Limit of a field -> when it holds, and what is said where it does not.
LIMITS = {
    "minimum": (operator.ge, "less than"),
    "below": (operator.lt, "not below"),
    "above": (operator.gt, "not above"),
}


def bounded(kind: type, limits: Any) -> Any:
    """An argparse type that also checks a field's limits."""

    def convert(text: str) -> Any:
        value = kind(text)
        if kind is float and not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"{text} is not a finite number")
        for name, (holds, words) in LIMITS.items():
            if name in limits and not holds(value, limits[name]):
                raise argparse.ArgumentTypeError(f"{text} is {words} {limits[name]}")
        return value

    convert.__name__ = kind.__name__
    return convert


STRICT = {"strict": True, "allow_inf_nan": False}  # how pydantic reads records: no text is a number


class Written:
    """A dataclass that pydantic reads from JSON of any version.

    Keys that it lacks are as they were before there were any; whole numbers stay whole, since ids depend on it.
    """

    __pydantic_config__ = STRICT

    @classmethod
    def __get_pydantic_core_schema__(cls, kind: Any, schema: Any) -> Any:
        from pydantic_core import core_schema

        def as_written(keys: Any, made: Callable[[Any], Any]) -> Any:
            if not isinstance(keys, dict):
                return made(keys)
            part = made({**LATER, **keys})
            whole = {f.name: keys[f.name] for f in fields(part) if "float" in f.type and type(keys.get(f.name)) is int}
            return replace(part, **whole) if whole else part

        return core_schema.no_info_wrap_validator_function(as_written, schema(kind))


OF_ROUNDS = ("rounds", "block_seconds")
SLACK = 1e-9  # of a step, that dividing seconds leaves over
LONG_STEP = 2.0  # seconds: more steps that are not timed would cost more than they bring


@dataclass(frozen=True)
class Window(Written):
    """When the timed window of a run ends: after min_steps and min_seconds, but never past max_*."""

    warmup_steps: int = key(5, "untimed steps before the clock starts; at least 4 (of long steps 2), or 0", minimum=0)
    min_steps: int = key(10, "time at least this many steps", minimum=1)
    min_seconds: float = key(2.0, "time at least this many seconds", minimum=0)
    max_seconds: float | None = key(30.0, "stop timing after this many seconds, even below --min-steps", above=0)
    max_steps: int | None = key(None, "stop timing after this many steps", minimum=1)
    rounds: int | None = None  # blocks of an interleaved launch, in place of the maxima; None: it is not interleaved
    block_seconds: float | None = None  # length of such a block

    def warmup(self, fastest: float) -> int:
        """The number of steps that warm up if the fastest so far takes `fastest` seconds.

        As many as asked for, at least three after the first (DDP makes its buckets anew in the second), or one where
        steps are long; in rounds none then, as those that are looked at come before the first block. None at all where
        none was asked for.
        """
        after_first = 3 if not self.is_long(fastest) else 0 if self.rounds else 1
        return max(self.warmup_steps, 1 + after_first) if self.warmup_steps else 0

    def is_long(self, step_seconds: float) -> bool:
        """True where a step takes longer than LONG_STEP seconds, in rounds longer than a block: then few steps are
        spent on anything but timing. False for unknown seconds (inf)."""
        return math.isfinite(step_seconds) and step_seconds > min(LONG_STEP, self.block_seconds or math.inf)

    def steps_in_block(self, step_seconds: float) -> int:
        """The number of such steps that comes nearest to a block's length; at least its share of the minima."""
        rounds, seconds = self.rounds or 1, self.block_seconds or 0.0
        fewest = max(self.min_seconds / step_seconds, self.min_steps) / rounds
        return max(1, round(seconds / step_seconds), math.ceil(fewest - SLACK))


def offered(axis: str) -> tuple[Any, ...]:
    """The values of an axis that some framework has."""
    return tuple(dict.fromkeys(value for table in FRAMEWORKS.values() for value in table.axes.get(axis, ())))


LAUNCHERS = tuple(dict.fromkeys(name for table in FRAMEWORKS.values() for name in table.launchers))


@dataclass(frozen=True)
class Trial(Written):
    """The keys of a trial. `None` means that the key does not apply, or is left to the workload."""

    framework: str = key("single", "framework that trains")
    model: str = key("resnet18", "model that is trained", choices=MODEL_NAMES)
    batch_per_worker: int = key(
        32, "samples of one worker in one step; of one replica of a pipeline or mesh", minimum=1
    )
    allreduce: str = key(
        "fp32",
        "precision of gradients on the wire, or PowerSGD of rank 1, 2 or 4; none for one worker",
        choices=("none", "fp32", "fp16", "bf16", "int8", "powersgd1", "powersgd2", "powersgd4"),
    )
    precision: str = key(
        "fp32",
        "precision of compute: bf16 and fp16 by autocast, fp64 for everything",
        choices=("fp32", "bf16", "fp16", "fp64"),
    )
    workers: int = key(1, "processes, each with one GPU or its own share of the cores", minimum=1)
    hosts: int | None = key(None, "hosts that the workers are spread over evenly (default: this machine)", minimum=1)
    launcher: str = key(
        "python", "program that starts the processes (default: the framework's first)", choices=LAUNCHERS
    )
    controller: str | None = key(None, "transport of Horovod's own messages (default: mpi)", choices=("mpi", "gloo"))
    device: str = key("auto", "device that computes; auto: the GPU if there is one", choices=("auto", "cpu", "cuda"))
    cores_per_worker: int | None = key(
        None, "CPU cores that a worker is pinned to (default: an equal share of the machine)", minimum=1
    )
    allocator: str = key(
        "fixed", "CPU memory: freed memory stays in the process (fixed), or glibc decides", choices=("fixed", "system")
    )
    oversubscribe: bool = key(False, "allow more workers than cores or GPUs; such rows have no speed-up")
    data: str = key("auto", "data set; auto: the model's own if available, else synthetic", choices=offered("data"))
    input: str | None = key(
        None, "library that makes batches of images (default: memory, this project's)", choices=offered("input")
    )
    damaged_images: str | None = key(
        None,
        "at an image that cannot be decoded: stop (default), or replace it by a black one",
        choices=offered("damaged_images"),
    )
    image_size: int | None = key(
        None, "side of images in pixels, or height of frames (default: the model's own)", minimum=8
    )
    image_width: int | None = key(None, "width of frames in pixels (default: 7/4 of their height)", minimum=8)
    memory_format: str = key("contiguous", "layout of image tensors", choices=("contiguous", "channels_last"))
    classes: int | None = key(None, "classes of synthetic images (default: 10, as CIFAR-10 has)", minimum=2)
    resident_batches: int | None = key(
        None, "synthetic batches that stay on the device and are read in turn (default: 1)", minimum=1
    )
    sequence_length: int | None = key(
        None, "tokens of a sequence, or at most of a sentence (default: the model's own)", minimum=4
    )
    padding: str | None = key(
        None, "pad sentences to the full length, or to the longest of their batch", choices=("fixed", "dynamic")
    )
    weights: str | None = key(
        None, "weights to begin with: imagenet, or a file in DATA_ROOT/weights or by its full path (default: random)"
    )
    freeze: str | None = key(None, "part of the model that is not trained (default: none)", choices=offered("freeze"))
    learning_rate: float | None = key(None, "learning rate (default: the workload's own x workers)", above=0)
    part_learning_rates: str | None = key(
        None, "learning rates of parts of a model, like backbone=0.0001,heads=0.001 (default: learning_rate for all)"
    )
    dropout: float | None = key(None, "share of activations dropped (default: the model's)", minimum=0, below=1)
    gelu: str | None = key(
        None, "GELU of GPT-2: new in several kernels (default), or the same by tanh in one", choices=offered("gelu")
    )
    vocabulary: int | None = key(
        None, "rows of GPT-2's embedding, padding included, like 50304 (default: 50257)", minimum=1
    )
    cross_entropy: str | None = key(
        None,
        "loss over all scores at once (whole, default), or over chunks of tokens",
        choices=offered("cross_entropy"),
    )
    accumulation: int = key(1, "micro-batches whose gradients add up before they are reduced, in one step", minimum=1)
    compile: bool = key(False, "compile the model with torch.compile")
    compile_scope: str | None = key(
        None, "compile as one graph the model (default), or the model and its loss", choices=offered("compile_scope")
    )
    optimizer_kernels: str | None = key(
        None,
        "kernels of the update: torch's default, or one fused for all weights",
        choices=offered("optimizer_kernels"),
    )
    zero_stage: int | None = key(
        None, "what is sharded: 1 optimiser state, 2 gradients too, 3 parameters too", choices=(0, 1, 2, 3)
    )
    schedule: str | None = key(None, "order in which a pipeline computes (default: 1f1b)", choices=offered("schedule"))
    stages: int | None = key(None, "workers along the pipeline (default: workers / replicas)", minimum=1)
    virtual_stages: int | None = key(None, "stages of each worker (default: the fewest the schedule allows)", minimum=1)
    micro_batches: int | None = key(None, "parts that a pipeline cuts a batch into (default: 2 x stages)", minimum=1)
    replicas: int | None = key(None, "copies of a pipeline or mesh, each with its share of the data", minimum=1)
    buffers: str | None = key(
        None,
        "BatchNorm's buffers: local to each worker (default), or synced from rank 0 before every forward pass",
        choices=("local", "synced"),
    )
    tuned_for: str | None = key(
        None,
        "settings of the library: for speed, as it advises (default), or for least memory",
        choices=offered("tuned_for"),
    )
    wrap: str | None = key(
        None, "units that a sharded model is gathered in: blocks (default), or none: one whole", choices=offered("wrap")
    )
    tensor_parallel: int | None = key(
        None, "workers that share every matrix (default: workers / replicas; in a pipeline 1)", minimum=1
    )
    sequence_parallel: bool = key(False, "between two matrices, keep only a worker's share of each sequence")
    loss_parallel: bool = key(False, "keep only the scores of a worker's share of the vocabulary")
    context_parallel: int | None = key(
        None, "workers that share every sequence (default: workers / replicas)", minimum=1
    )
    attention: str | None = key(
        None,
        "over shares of a sequence: exchange heads (all_to_all, default), or gather keys and values (all_gather)",
        choices=("all_to_all", "all_gather"),
    )
    shard_group: int | None = key(
        None, "workers that hold one copy in shards (default: all); of a pipeline, replicas (default: none)", minimum=1
    )
    reduce_scatter: str | None = key(
        None,
        "reduce-scatter of gradients: the library's own (default), or all_to_all and a sum",
        choices=("library", "all_to_all"),
    )
    sync_every: int | None = key(None, "steps from one averaging of weights to the next (default: 8)", minimum=1)
    outer: str | None = key(
        None,
        "at each averaging: take the mean of all weights, or a Nesterov step towards it (default)",
        choices=("average", "nesterov"),
    )
    checkpoint: str | None = key(
        None,
        "activations computed again in the backward pass: none (default), of each block, or selective",
        choices=("none", "block", "selective"),
    )
    stage_cut: str | None = key(
        None, "where the model is cut: even (by layers, default), time (measured), or layers a stage, like 9,5"
    )
    bucket_bytes: int | None = key(None, "gradients that DDP reduces in one call (default: torch's own)", minimum=1)
    fusion_bytes: int | None = key(None, "gradients fused into one allreduce (default: the library's)", minimum=1)
    cycle_seconds: float | None = key(
        None, "interval at which Horovod reduces gradients that are ready (default: its own)", above=0
    )
    target_batch_size: int | None = key(
        None, "samples of all peers in an averaging round (default: batch_per_worker x workers)", minimum=1
    )
    matchmaking_seconds: float | None = key(None, "time in which peers look for each other (default: 3)", above=0)
    averaging_timeout_seconds: float | None = key(None, "time after which a round is given up (default: 60)", above=0)
    average_state_every: int | None = key(
        None, "rounds from one averaging of weights to the next (default: 1)", minimum=1
    )
    state_allreduce: str | None = key(
        None, "precision on the wire of weights that peers average (default: fp32)", choices=offered("state_allreduce")
    )
    daemon_cores: int | None = key(
        None, "cores of a peer that only Hivemind's own processes use (default: none)", minimum=1
    )
    updates: str | None = key(
        None,
        "updates of peers: synchronous (default), delayed by a round, or local: each batch, with weights averaged",
        choices=offered("updates"),
    )
    collective: str | None = key(None, "collective to measure (default: all four)", choices=offered("collective"))
    min_bytes: int | None = key(None, "smallest size that is measured (default: 1 KiB)", minimum=4)
    max_bytes: int | None = key(None, "largest size that is measured (default: 256 MiB)", minimum=4)
    size_factor: int | None = key(None, "ratio of successive sizes (default: 4)", minimum=2)
    command: str | None = key(None, "command of your own, with {workers} and other keys in braces", longest=4000)
    arguments: str | None = key(None, "values of the command's free axes, like amp=--amp level=2", longest=1000)
    env: str | None = key(None, "environment variables of the command, like OMP_NUM_THREADS=2", longest=4000)
    workdir: str | None = key(None, "folder in which the command starts (default: that of the sweep)", longest=1000)
    seed: int = key(42, "seed of weights and of the order of the data", minimum=0)
    epochs: int | None = key(None, "time this many whole epochs instead of a window", minimum=1)
    warmup_epochs: int | None = key(None, "untimed epochs before them, after the warm-up steps", minimum=0)
    train_epochs: int | None = key(None, "train for so many epochs", minimum=1)
    train_steps: int | None = key(None, "train for so many steps", minimum=1)
    train_max_seconds: float | None = key(None, "train for at most so many seconds", above=0)
    train_target: str | None = key(None, "train until a metric on validation data is reached, like accuracy=0.6")
    train_evaluate_every: float | None = key(None, "epochs between evaluations (default: 1)", above=0)
    train_validation: float | None = key(None, "share of training data held out (default: 0.1)", minimum=0, below=1)
    train_patience: int | None = key(None, "stop after so many evaluations without improvement", minimum=1)
    train_optimizer: str | None = key(
        None, "optimiser (default: the workload's)", choices=("sgd", "nesterov", "adam", "adamw", "muon")
    )
    train_momentum: float | None = key(None, "momentum of sgd and nesterov (default: 0.9)", minimum=0, below=1)
    train_weight_decay: float | None = key(None, "weight decay of the optimiser chosen (default: 0)", minimum=0)
    train_clip_norm: float | None = key(None, "clip the norm of all gradients to this", above=0)
    train_label_smoothing: float | None = key(None, "label smoothing of the loss (default: 0)", minimum=0, below=1)
    train_schedule: str | None = key(
        None,
        "schedule of the learning rate (default: constant)",
        choices=("constant", "step", "cosine", "one_cycle", "triangular"),
    )
    train_start_learning_rate: float | None = key(
        None, "learning rate that a cycle begins with (default: a 25th of learning_rate)", above=0
    )
    train_cycle_steps: int | None = key(None, "steps of schedule triangular, up and down (default: all)", minimum=2)
    train_warmup_steps: int | None = key(None, "steps over which the learning rate grows linearly from 0", minimum=0)
    train_scale_learning_rate: str | None = key(
        None,
        "multiply the learning rate by (global batch / reference batch), or its root",
        choices=("none", "linear", "sqrt"),
    )
    train_reference_batch: int | None = key(None, "global batch for which the learning rate is meant", minimum=1)
    train_augmentation: str | None = key(
        None,
        "augmentation of training images (default: none)",
        choices=("none", "crop_flip", "resized_crop", "near_square_crop"),
    )
    train_loop: str | None = key(None, "training loop: ours, or the library's native one", choices=LOOPS)
    train_log: str | None = key(None, "logs beside training.csv: tensorboard, wandb, or both with a comma")
    train_keep: str | None = key(None, "keep the weights of the best model on validation data", choices=KEPT)
    find: str | None = key(
        None,
        "determine this instead of throughput: parity, or max_batch, the largest batch that fits",
        choices=("parity", "max_batch"),
    )
    warm: bool | None = key(None, "measured in interleaved blocks, by processes that several configurations share")
    machine: str = key("", "fingerprint of the machine it is planned for")
    repeat: int = key(1, "number of this repeat of its configuration, from 1", minimum=1)
    window: Window = field(default_factory=Window)

    @property
    def trained(self) -> bool:
        """True where the trial is trained to a result, and not only timed."""
        return trains(vars(self))

    @property
    def global_batch(self) -> int:
        """Samples of all workers in one step: batch_per_worker x data-parallel workers, or what a round waits for."""
        return self.target_batch_size or self.batch_per_worker * self.data_parallel

    @property
    def data_parallel(self) -> int:
        """The number of workers, or of groups that share a pipeline, matrices or sequences, with data of their own."""
        return self.workers // ((self.stages or 1) * (self.tensor_parallel or 1) * (self.context_parallel or 1))

    @property
    def processes(self) -> int:
        """The number of processes that are started, each of which leaves a report."""
        return 1 if FRAMEWORKS[self.framework].one_process else self.workers

    def steps_in_block(self, step_seconds: float) -> int:
        """Steps of one block of a launch in rounds: whole periods, where workers meet every so many steps."""
        period = self.sync_every or 1
        return math.ceil(self.window.steps_in_block(step_seconds) / period) * period

    @cached_property  # asked for at every redraw of a sweep's progress
    def configuration(self) -> str:
        """Readable id of this trial without its repeat number; the digits are a hash of every key that is given.

        Keys that are None, and LATER ones as they were before, take no part: a key that a later version adds leaves
        the ids of older results alone, and a new default has ids of its own.
        """

        def kept(part: Trial | Window) -> dict[str, Any]:
            items = ((name, getattr(part, name)) for name in NAMES[type(part)])
            return {name: v for name, v in items if v is not None and LATER.get(name, MISSING) != v}

        seed = {"seed": None} if self.trained else {}  # each repeat has one of its own
        asked = {**kept(self), **seed, "repeat": 1, "window": kept(self.window)}
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]
        model = re.sub(r"[^\w.-]", "-", self.model, flags=re.ASCII)[:60]  # users name theirs; the id names a folder
        words = [self.framework, model, f"b{self.batch_per_worker}", self.allreduce, f"w{self.workers}"]
        if not FRAMEWORKS[self.framework].trains:
            words = [self.framework, self.launcher, f"w{self.workers}"]
        return "-".join([*words, digest])

    @property
    def id(self) -> str:
        """Id of this trial: a hash of what it asks for, so a second run of a study finds it again."""
        return f"{self.configuration}.{repeat_name(vars(self))}"

    def to_dict(self) -> dict[str, Any]:
        """The trial keys with their values (`window` apart), `global_batch` included."""
        keys = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "window"}
        return {**keys, "global_batch": self.global_batch}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Trial:
        """A trial from its trial.json: `to_dict` with its window. Raises TypeError for keys that no trial has."""
        keys = {key: given for key, given in value.items() if key not in ("global_batch", "window")}
        return cls(**keys, window=Window(**value["window"]))

    def to_argv(self) -> list[str]:
        """The flags that make a script run this trial: `from_argv(framework, to_argv())` gives it back.

        Keys at their default are left out, so the line stays short enough to read; `repeat`, `machine` and
        what the launcher decides (framework, workers, launcher, controller) are not the script's business.
        """
        argv: list[str] = []
        timing = [f.name for f in WINDOW_FLAGS]
        if self.window.max_seconds is None:  # only --steps makes such a window
            argv, timing = ["--steps", str(self.window.min_steps)], ["warmup_steps"]
        for part, names in ((self, script_keys(self.framework)), (self.window, timing)):
            defaults = {f.name: f.default for f in fields(part)}
            for name in names:
                value = getattr(part, name)
                if name in ALWAYS_SHOWN or value != defaults[name]:
                    argv += [flag(name)] if value is True else [flag(name), str(value)]
        return argv

    @classmethod
    def from_argv(cls, framework: str, argv: Sequence[str] | None = None) -> tuple[Trial, str | None]:
        """(trial, folder to leave the rank's report in or None) from a script's command line.

        Raises SystemExit(2) with one clear line for a flag or value that is not right.
        """
        command_line = parser(framework)
        asked = vars(command_line.parse_args(argv))
        try:
            if text := asked.get("train_target"):
                Target.parse(text)
            logs(asked)
        except ValueError as error:
            command_line.error(str(error))
        record = asked.pop("record", None)
        asked.pop("local_rank", None)
        if steps := asked.pop("steps", None):
            asked.update(min_steps=steps, max_steps=steps, min_seconds=0.0, max_seconds=None)
        window = Window(**{f.name: asked.pop(f.name, f.default) for f in WINDOW_FLAGS})
        return cls(framework=framework, window=window, **asked), record


WINDOW_FLAGS = tuple(f for f in fields(Window) if f.name not in OF_ROUNDS)  # of a script's own launch
TRAIN_KEYS = tuple(f.name for f in fields(Trial) if f.name.startswith("train_"))
NAMES = {part: tuple(f.name for f in fields(part)) for part in (Trial, Window)}
# Keys younger than the first results: as it was.
LATER = {
    **{"accumulation": 1, "compile": False, "allocator": "system"},
    **{"sequence_parallel": False, "loss_parallel": False},
}
# Keys that a plan resolves for every framework that has them: part of the id. Null in a record: it is older, ran with
# the settings of before, and is not found again.
RESOLVED: dict[str, Any] = {"buffers": "local", "tuned_for": "speed", "sync_every": 8, "outer": "nesterov"}
ALWAYS_SHOWN = ("model", "batch_per_worker", "allreduce", "data")  # a command line without these says too little
LAUNCHERS_BUSINESS = ("framework", "hosts", "launcher", "controller", "oversubscribe", "machine", "repeat")


def script_keys(framework: str) -> list[str]:
    """The trial keys that are flags of this framework's script."""
    axes = FRAMEWORKS[framework].axes
    return [
        f.name
        for f in fields(Trial)
        if f.name in axes
        and (f.name not in LAUNCHERS_BUSINESS or f.name == "launcher")  # an axis only where a script must be told
        and axes[f.name] != ("none",)
        and (f.name != "workers" or FRAMEWORKS[framework].one_process)  # else the launcher's business
    ]


def parser(framework: str) -> argparse.ArgumentParser:
    """The command line of a framework's script, with help a person can use."""
    table, asked = FRAMEWORKS[framework], script_keys(framework)
    result = argparse.ArgumentParser(
        description=f"{'Train and measure with' if table.trains else 'Measure'} {table.title}.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    trial = result.add_argument_group("the trial")
    trained = result.add_argument_group("training to a result, instead of timing") if table.trains else trial
    for f in fields(Trial):
        if f.name in asked:
            add_flag(trained if f.name in TRAIN_KEYS else trial, f, table.axes[f.name])
    timed = result.add_argument_group("the timed window")
    steps = bounded(int, {"minimum": 1})
    timed.add_argument(
        "--steps", type=steps, metavar="INT", default=argparse.SUPPRESS, help="time exactly this many steps"
    )
    for f in WINDOW_FLAGS:
        add_flag(timed, f)
    result.add_argument(
        "--record", metavar="FOLDER", default=argparse.SUPPRESS, help="write each rank's measurement here as JSON"
    )
    if "deepspeed" in table.launchers:  # it passes what LOCAL_RANK says too
        result.add_argument("--local_rank", "--local-rank", type=int, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    if "torchrun" in table.launchers:
        add_rendezvous(result)
    return result
