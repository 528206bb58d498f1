"""Sound studies by the thousand: their records are written and read back, and then only their speeds are drawn anew.

sound(folder, rng)     a study in which nothing is wrong: weak scaling, on GPUs too; strong with epochs; pipelines
drawn(template, rng)   the same, as another day would have measured it
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from planted import MACHINE, PARAMETERS, Planted
from planted_flaws import CUDA, GPUS, TRAINED, Flawed, plant_flawed
from planted_pipelines import Pipeline

from analysis.frames.results import Results
from scaling_study.records.schema import Phases, RankReport

FRAMEWORKS = ("torch_ddp", "horovod", "torch_fsdp2")
RATE = 0.01  # of learning, with one worker
LOOSE = 0.5  # a target that no noise here comes near


@dataclass(frozen=True)
class Template:
    """A study, and of each of its configurations the true speed and the relative noise about it."""

    results: Results
    truth: Mapping[str, float]
    noise: Mapping[str, float]


def sound(folder: Path, rng: np.random.Generator, edge: bool = False) -> Template:
    """With `edge` it is the most that is still sound: every speed-up exactly the number of workers, no batch faster
    than another, a noise floor exactly at the study's target, everything that has a threshold just below it."""
    kind = KINDS[int(rng.integers(len(KINDS)))]
    repeats = int(rng.integers(3, 7))
    level = rng.uniform(0.003, 0.05)
    made = [replace(one, of=replace(one.of, repeats=repeats)) for one in kind(rng, edge)]
    ids = [one.planted.trial().configuration for one in made]
    watched = repeats > 3 and rng.random() < 0.5
    noise = dict(zip(ids, level * rng.uniform(0.7, 1.4, len(made)), strict=True))
    floor = noise[ids[0]] if watched else math.sqrt(float(np.mean([one**2 for one in noise.values()])))
    about = {
        "scaling": "strong" if kind is strong else "weak", "sentinel": ids[0] if watched else None,
        "target_interval": floor if edge else LOOSE, "machine": GPUS if kind is gpus else MACHINE | {"cores": 16},
    }  # fmt: skip
    done = plant_flawed(folder, made, **about)
    truth = {name: float(one.planted.speed or 0) for name, one in zip(ids, made, strict=True)}
    return Template(done, truth, noise)


def drawn(made: Template, rng: np.random.Generator) -> Results:
    """Speeds drawn anew; everything else stays."""
    done = made.results
    truth = done.trials.configuration.map(made.truth).astype(float)  # of a gate: nothing
    noise = done.trials.configuration.map(made.noise).astype(float)
    speeds = truth * np.exp(noise * rng.standard_normal(len(truth)))
    trends = np.expm1(noise * rng.standard_normal(len(truth)))
    trials = done.trials.assign(
        samples_per_second=speeds.fillna(done.trials.samples_per_second), step_trend=trends.fillna(0.0)
    )
    by_id = speeds.groupby(trials.configuration.astype(object), sort=False)
    means = by_id.mean()
    ours = done.configurations
    mean = ours.configuration.map(means).astype(float)
    texts = ours.configuration.map(by_id.agg(lambda values: ";".join(map(repr, map(float, values)))))
    shown = ours.assign(
        samples_per_second=mean,
        repeat_values=texts.astype("string"),
        speedup=mean / ours.baseline.map(means).astype(float),
    )
    return replace(done, trials=trials, configurations=shown)


# --- the kinds of studies ---


def weak(rng: np.random.Generator, edge: bool, keys: tuple[tuple[str, Any], ...] = ()) -> Iterator[Flawed]:
    """Data parallelism with one batch a worker, the learning rate scaled with the workers."""
    models = rng.choice(list(PARAMETERS), size=int(rng.integers(1, 3)), replace=False)
    batches = [2 ** int(k) for k in range(5, 5 + int(rng.integers(1, 4)))]
    kinds = _parallel(rng, edge)
    for model in map(str, models):
        half = 0.0 if edge else rng.uniform(1, 30)  # the batch at which half of the throughput is reached
        for batch in batches:
            base = 200.0 * batch / (batch + half)
            yield _quiet(Planted("single", model, batch, speed=base, keys=keys), rng, edge)
            for (name, n, precision), efficiency in kinds.items():
                one = Planted(name, model, batch, n, precision, speed=base * n * efficiency, keys=keys)
                yield _quiet(one, rng, edge, {"learning_rate": RATE * n})


def gpus(rng: np.random.Generator, edge: bool) -> Iterator[Flawed]:
    """The same on GPUs with NCCL, all of it computing in one precision."""
    yield from weak(rng, edge, (*CUDA, ("precision", str(rng.choice(["fp32", "bf16"])))))


def strong(rng: np.random.Generator, edge: bool) -> Iterator[Flawed]:
    """One global batch, whole epochs or a training to a result."""
    model, batch = str(rng.choice(list(PARAMETERS))), 2 ** int(rng.integers(7, 10))
    more = (_epoch, lambda rank: {"training": TRAINED}, lambda rank: {})[int(rng.integers(3))]
    keys = (("epochs", 1),) if more is _epoch else ()
    yield _quiet(Planted("single", model, batch, speed=200.0, keys=keys), rng, edge, more=more)
    for (name, n, precision), efficiency in _parallel(rng, edge).items():
        one = Planted(name, model, batch // n, n, precision, speed=200.0 * n * efficiency, keys=keys)
        yield _quiet(one, rng, edge, more=more)


def pipelines(rng: np.random.Generator, edge: bool) -> Iterator[Flawed]:
    """Cuts that are even to within 3 %, every weight in a stage."""

    def whole(rank: RankReport) -> Mapping[str, Any]:
        return {"stages": [replace(stage, parameters=rank.parameters // stage.of) for stage in rank.stages]}

    batch, m = 2 ** int(rng.integers(4, 6)), 4 * int(rng.integers(1, 3))
    yield _quiet(Planted("single", "transformer_lm", batch, speed=200.0, tokens=35), rng, edge)
    for schedule, p in itertools.product(("gpipe", "1f1b"), (2, 4)):
        shares = rng.uniform(0.97, 1.03, p) / p
        speed = 200.0 * p * (1.0 if edge else m / (m + p - 1) * rng.uniform(0.6, 0.99))
        one = Pipeline(schedule, p, m, shares=tuple(shares / shares.sum()), batch=batch, speed=speed, steps=1)
        yield _quiet(one, rng, edge, more=whole)


SOUND = ((0.0, 0.095), (0.9, 1.9), (0.0, 0.18))  # waiting for data, the first step over the others, cores of others
KINDS = (weak, gpus, strong, pipelines)


def _parallel(rng: np.random.Generator, edge: bool) -> dict[tuple[str, int, str], float]:
    """(framework, workers, precision of the wire) -> efficiency."""
    frameworks = map(str, rng.choice(FRAMEWORKS, size=int(rng.integers(1, 4)), replace=False))
    workers, precisions = [2, 4, 8][: int(rng.integers(1, 4))], ["fp32", "fp16"][: int(rng.integers(1, 3))]
    kinds = itertools.product(frameworks, workers, precisions)
    return {kind: 1.0 if edge else rng.uniform(0.5, 0.99) for kind in kinds}


def _quiet(
    one: Planted | Pipeline,
    rng: np.random.Generator,
    edge: bool,
    changes: Mapping[str, Any] | None = None,
    more: Callable[[RankReport], Mapping[str, Any]] = lambda rank: {},
) -> Flawed:
    """With what a sound run of it says of itself, each figure anywhere in what is sound, or at its very end."""
    data, first, busy = (most if edge else rng.uniform(least, most) for least, most in SOUND)
    framework, trial = one.framework, one.planted.trial() if isinstance(one, Pipeline) else one.trial()
    on_gpus = trial.device == "cuda"
    backend: dict[str, Any] = {} if framework == "single" else {"backend": "nccl" if on_gpus else "gloo"}
    backend |= {"units": int(rng.integers(2, 12))} if framework == "torch_fsdp2" else {}

    def change(rank: RankReport) -> Mapping[str, Any]:
        steps = [first * rank.step_seconds[1], *rank.step_seconds[1:]]
        mean, window = sum(steps) / len(steps), sum(steps)
        rest = (1 - data) * mean / 4
        return {
            "step_seconds": steps, "phases": Phases(4, mean, data * mean, rest, rest, None, rest, rest),
            "backend": backend, "versions": {"torch": "2.15.0", "numpy": "2.3"}, "learning_rate": RATE,
            "own_cpu_seconds": 0.0, "host_cpu_seconds": busy * window, **(changes or {}),
            **more(replace(rank, step_seconds=steps)),
        }  # fmt: skip

    small = one if isinstance(one, Pipeline) else replace(one, steps=12)
    return Flawed(small, change, {"commit": "abc"})


def _epoch(rank: RankReport) -> Mapping[str, Any]:
    """An epoch as long as its steps, give or take 3 %."""
    steps = rank.steps_per_epoch
    running = steps * sum(rank.step_seconds) / len(rank.step_seconds) * (0.97 + 0.06 * (rank.rank % 2))
    whole = {"warmup": False, "steps": steps, "samples": steps * rank.samples_per_step}
    return {"epochs": [{**whole, "data_seconds": 0.05 * running, "training_seconds": 0.9 * running,
                        "running_seconds": running}]}  # fmt: skip
