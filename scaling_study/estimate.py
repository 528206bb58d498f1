"""The time that a trial will take, from finished trials where there are any, else from what starting a process costs.

Shown as an estimate; no scheduling depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from statistics import median

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.machine import Machine
from scaling_study.models import MODELS
from scaling_study.records.results import Summary
from scaling_study.study import groups, on_gpus
from scaling_study.study.plan import Planned
from scaling_study.study.rules import MATCHMAKING_SECONDS
from scaling_study.trial import Trial, Window

# Seconds from starting to the first step, as seen on two cores: importing torch, launching, joining.
LAUNCH_SECONDS: Mapping[str, float] = {
    "python": 3.0,
    "mpirun": 4.5,
    "horovodrun": 5.0,
    "torchrun": 6.0,
    "accelerate": 9.0,  # torchrun, and 3 s: it took 8.5 to 9.0 s of CPU time where torchrun took 5.8 to 6.1 (two ranks)
    "deepspeed": 9.0,
    "srun": 4.5,
}
STEP_SECONDS_PER_SAMPLE: Mapping[str, float] = {
    "resnet8": 0.0015,
    "resnet8_groupnorm": 0.0015,
    "resnet18": 0.0025,
    "resnet50": 0.007,
    "mlp_wide": 0.03,
    "albert_tiny": 0.002,
    "albert_base_v2": 0.7,
    "transformer_lm": 0.03,
    "transformer_lm_unmasked": 0.03,
    "transformer_lm_deep": 0.1,
    "gpt2": 15.0,
    "gpt2_tiny": 0.02,
    "llama_tiny": 0.002,
    "smollm2_135m": 40.0,
    "llama_3_2_1b": 300.0,
    "llama_3_1_8b": 9000.0,
    "iformer_tiny": 0.02,
    "iformer_small": 0.7,
    "vit_small_dataset": 0.04,
    "vit_small_dataset_tiny": 0.0007,
    "timm_vit_tiny": 0.0005,
}
EPOCH_SAMPLES = {
    "cifar10": 50_000,
    "cola": 8_551,
    "wikitext2": 58_560,
    "wikitext2_bpe": 34_759,
    "images": 50_000,
    "cholect45": 2_280,  # of the surgical scenes that take its place
}
TREE_SIDE, DECODE_SECONDS = 224, 0.003  # of an image of a tree: pixels, unless the trial says other; one core's
FRAME_HEIGHT, FRAME_SECONDS = 256, 0.3  # of a Tripnet with ResNet-18; by the number of pixels
GATE_SECONDS = 5.0  # ten steps in fp64, and the reference
SEARCH_STARTS = 8  # of find: max_batch, each with four steps or so
# Of a configuration in a launch that several share: starting, joining, building it; later launches start side by side.
SHARE_SECONDS, LATER_SHARE_SECONDS = 1.5, 0.7
INSTRUMENTED = 1.25  # the instrumented window adds up to a quarter of the timed one
# Assumed, on GPUs: the context, and choosing kernels; meeting by NCCL; compiling, the first time and from its cache.
GPU_SECONDS, NCCL_SECONDS, COMPILE_SECONDS, LATER_COMPILE_SECONDS = 10.0, 8.0, 60.0, 20.0
NO_GPU = Machine(1, "", 0)


class Estimate:
    """Seconds of one trial: what its configuration took so far, else a guess from its launcher and model."""

    def __init__(
        self,
        finished: Iterable[Summary] = (),
        tree_images: Callable[[], int | None] = lambda: None,
        machine: Machine = NO_GPU,
    ) -> None:
        """`tree_images`: how many the tree of images holds, asked only where a trial reads one. `machine`: whose GPUs
        trials run on."""
        self._seconds: dict[str, list[float]] = {}
        self._tree_images, self._machine = tree_images, machine
        for record in finished:
            self.learn(record)

    def learn(self, record: Summary) -> None:
        if record.total_seconds is not None and record.status != "unsupported":
            self._seconds.setdefault(record.configuration, []).append(record.total_seconds)

    @cached_property
    def _of_tree(self) -> int:
        return self._tree_images() or EPOCH_SAMPLES["images"]

    def __call__(self, planned: Planned) -> float:
        trial = planned.trial
        if planned.unsupported:
            return 0.0
        if known := self._seconds.get(trial.configuration):
            return median(known)
        launch, window = LAUNCH_SECONDS[trial.launcher] + start_on_gpus(trial), planned.measure
        if trial.find == "parity":
            return launch + GATE_SECONDS + trial.window.min_steps * round_seconds(trial, 0.0)
        if not FRAMEWORKS[trial.framework].trains:  # large sizes take all the time that there is
            return min(launch + window.max_seconds, window.timeout_seconds)
        if trial.device == "cuda":
            step = on_gpus.step_seconds(trial, self._machine) or 0.0
        else:
            step = seconds_per_sample(trial) * trial.batch_per_worker
        step = round_seconds(trial, step)
        if trial.find == "max_batch":
            return SEARCH_STARTS * (launch + 4 * step)
        samples = self._of_tree if trial.data == "images" else EPOCH_SAMPLES.get(MODELS[trial.model].data or "", 50_000)
        if trial.trained:
            return launch + training_seconds(trial, step, samples)
        timed = min(max(window.min_steps * step, window.min_seconds), window.max_seconds)
        if window.max_steps and step:
            timed = min(timed, window.max_steps * step)
        if trial.epochs:
            steps = min(samples / trial.global_batch, window.max_steps or math.inf)
            timed = (trial.epochs + (trial.warmup_epochs or 0)) * steps * step
        share = SHARE_SECONDS if trial.repeat == 1 else LATER_SHARE_SECONDS
        share += start_on_gpus(trial) if groups.on_several_gpus(trial) else 0.0
        if trial.warm and not step:  # of a GPU's it is not known how long they take
            return share + max(timed, window.rounds * window.block_seconds) * INSTRUMENTED
        if trial.warm:
            long, steps = trial.window.is_long(step), window.rounds * trial.steps_in_block(step)
            if trial.repeat == 1:  # of phases; of bytes, overlap, gradients
                steps += max(1, min(10, steps // 4)) + (1 if long else 3)
            steps += trial.window.warmup(step) + (0 if long else window.rounds)  # before each block one untimed step
            return share + steps * step
        warmup = Window(window.warmup_steps).warmup(step) * step
        return min(launch + warmup + timed * INSTRUMENTED, window.timeout_seconds)


def start_on_gpus(trial: Trial) -> float:
    """Seconds that starting a trial takes longer on GPUs than on CPUs; 0 on these."""
    if trial.device != "cuda":
        return 0.0
    compiling = COMPILE_SECONDS if trial.repeat == 1 else LATER_COMPILE_SECONDS
    return GPU_SECONDS + NCCL_SECONDS * groups.on_several_gpus(trial) + compiling * trial.compile


def seconds_per_sample(trial: Trial) -> float:
    """Seconds a sample of a step on one core. The cost of a ResNet grows with the pixels of an image, of any side."""
    seconds = STEP_SECONDS_PER_SAMPLE.get(trial.model, 0.01)
    if "image_width" in MODELS[trial.model].keys:
        whole = FRAME_SECONDS * ((trial.image_size or FRAME_HEIGHT) / FRAME_HEIGHT) ** 2
        return whole / 4 if trial.freeze else whole  # about: backward takes twice as long as forward
    if trial.data != "images" or not trial.model.startswith("resnet"):
        return seconds
    return seconds * ((trial.image_size or TREE_SIDE) / 32) ** 2 + DECODE_SECONDS


def round_seconds(trial: Trial, batch: float) -> float:
    """Seconds of a step, from those of a batch. Peers look for each other, and take batches until the target."""
    if not FRAMEWORKS[trial.framework].has_rounds:
        return batch
    batches = trial.global_batch / (trial.batch_per_worker * trial.workers)
    return max(batches * batch, trial.matchmaking_seconds or MATCHMAKING_SECONDS)


def training_seconds(trial: Trial, step: float, samples: int) -> float:
    """At most, of a training to a result whose steps take `step` seconds, on a data set of so many samples."""
    steps = trial.train_steps or (trial.train_epochs or math.inf) * samples / trial.global_batch
    return min(steps * step if step else math.inf, trial.train_max_seconds or math.inf, 3600.0)
