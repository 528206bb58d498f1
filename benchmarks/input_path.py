"""Our input path is at least 5 times torchvision's, DALI's at least 3 times, and training waits for no data.

Claimed: (1) images/s of our loader alone, in one thread, are at least 5 times those of torchvision's ordinary
Dataset + DataLoader (ToTensor + Normalize, shuffled), at batch 32 and 256, against the better of 1 and 2 loader
processes; (2) one worker on one core trains on real CIFAR-10 at least 0.97 times as fast as on one synthetic batch
that is used again and again, at batch 32; (3) on one core DALI (`input: dali`) makes at least 3 times as many
augmented images a second as torchvision's transforms under torch's DataLoader (`input: torchvision`), at batch 256.
Both are as trials have them, with the same augmentation: nearly square rectangles of a quarter to all of an image,
mirrored with probability 0.3. Ours (`input: memory`) stands beside them.

Measured: in one process, in turn (paired.py). A loader's block lasts a fixed time and counts the images of whole
batches; the DataLoader has begun before and keeps its processes over the epochs (persistent_workers), which is more
than ordinary use gives it, and it fills its queue while ours is timed. In (3) all is pinned to one core, and
torchvision's is the better of one loader process and none. Turns of (1) and (3) are taken as independent, as their
figures are far from their bars, with ours a second time as the control. Of (2) each process gives one pair: a training
block is the same step on the same model, fed from the one source or the other, timed as in a study; the step is built
by data_parallel/single.py, and a second time as the control.

Not shown: data that does not fit in memory. Nothing is decoded: a study's own sweep over `input` shows what that
takes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks import jobs
from benchmarks.built import build
from benchmarks.options import Options, Unavailable
from benchmarks.paired import Bar, Control, Finding, Turns, alternate, compared, not_run, pairs_of, ratio
from scaling_study.machine import DALI, installed
from scaling_study.measure import surroundings
from scaling_study.ranks import Ranks
from scaling_study.settings import data_root
from scaling_study.trial import Trial
from scaling_study.workloads import cifar10, inputs
from scaling_study.workloads.feed import Batch, Feed, batches_of_indices
from scaling_study.workloads.images import image_data
from scaling_study.workloads.views import Reading, Samples, augmented

Batches = Iterator[Any]
Rate = Callable[[Batches, float], float]  # images/s over a block of so many seconds


def run(options: Options) -> list[Finding]:
    try:
        cifar10.images_and_labels()
    except cifar10.NoData as error:
        raise Unavailable(str(error)) from error
    findings = [alone(batch, options) for batch in ((32,) if options.quick else (32, 256))]
    with one_core():
        findings += augmenting(options)
    return findings + [
        training(model, options) for model in (("resnet8",) if options.quick else ("resnet8", "resnet18"))
    ]


def alone(batch: int, options: Options) -> Finding:
    """Our loader against the better of two DataLoaders."""
    torch.set_num_threads(1)
    seconds, pairs = 0.1 if options.quick else 1.0, options.pairs(20)
    chosen = batches_of_indices(cifar10.SAMPLES, 42, 0, 1, batch)
    ours = Feed(chosen, cifar10.fetching(*cifar10.images_and_labels(), torch.device("cpu")))
    taken: dict[int, Turns] = {}
    for workers in (1, 2):
        theirs = torchvision_batches(batch, workers)
        taken[workers] = in_turn(loader_rate, ours, theirs, seconds, pairs)
        theirs.close()  # ends its processes before others are timed
        print(f"  loader alone, batch {batch}, against {workers} loader processes: {pairs} pairs done", flush=True)
    claim = "our loader's images/s over torchvision's DataLoader ({} processes, the better), batch " + str(batch)
    return over_the_better(claim, taken, seconds, Bar(low=5.0))


def in_turn(rate: Rate, ours: Batches, theirs: Batches, seconds: float, pairs: int) -> Turns:
    """Images/s of blocks of so many seconds: ours, theirs, and ours again as the control."""
    for source in (ours, theirs):
        loader_rate(source, seconds)  # warm
    mine = partial(rate, ours, seconds)
    return alternate(mine, partial(rate, theirs, seconds), mine, turns=pairs)


def over_the_better(claim: str, taken: Mapping[int, Turns], seconds: float, bar: Bar | None) -> Finding:
    """Of turns against several numbers of loader processes, by that which is best for theirs; `claim` has it in {}."""
    better = min(taken, key=lambda processes: ratio(pairs_of(taken[processes])).mean)
    control = Control(ratio(pairs_of(taken[better], (0, 2))))
    evidence = {"images_per_second_by_loader_processes": taken, "seconds_a_block": seconds}
    return Finding(claim.format(better), ratio(pairs_of(taken[better])), bar, evidence=evidence, control=control)


AUGMENTATION, AUGMENTED_BATCH = "near_square_crop", 256
QUEUE, SETTLING_SECONDS = 2, 0.5  # batches that a library has ready at most, and more than it takes to make them


def augmenting(options: Options) -> list[Finding]:
    """Each input over torchvision's, with augmentation, on one core."""
    seconds, pairs = 0.2 if options.quick else 2.0, options.pairs(20)
    images, labels = cifar10.images_and_labels()
    samples = Samples.in_memory(images, labels)
    normalised = cifar10.normalising(torch.device("cpu"))

    def order() -> Iterator[torch.Tensor]:
        return batches_of_indices(cifar10.SAMPLES, 42, 0, 1, AUGMENTED_BATCH)

    def fetch(ids: torch.Tensor) -> Batch:
        return normalised(augmented(AUGMENTATION, images[ids], 42, 0, ids)), labels[ids]

    def by(library: str, cores: int) -> Feed:
        reading = Reading(cifar10.SIDE, 42, cores, torch.device("cpu"), AUGMENTATION)
        return inputs.feed(library, samples, order(), cifar10.SAMPLES // AUGMENTED_BATCH, reading)

    def against(name: str, ours: Batches, bar: Bar | None) -> Finding:
        taken: dict[int, Turns] = {}
        for processes in (0, 1):
            theirs = by(inputs.TORCHVISION, processes)
            taken[processes] = in_turn(rate_alone, ours, theirs, seconds, pairs)
            theirs.order.stop()  # ends its process before others are timed
            print(f"  {name} against {processes} loader process(es): {pairs} pairs done", flush=True)
        claim = f"{name}: augmented images/s on one core over torchvision's ({{}} process(es), the better), batch "
        return over_the_better(f"{claim}{AUGMENTED_BATCH}", taken, seconds, bar)

    findings = [against("our input", Feed(order(), fetch), None)]
    if not any(map(installed, DALI)):
        return [*findings, not_run("DALI: augmented images/s", f"{DALI[0]} is not installed")]
    return [*findings, against("DALI", by(inputs.DALI, 1), Bar(low=3.0))]


def rate_alone(batches: Batches, seconds: float) -> float:
    """As loader_rate, without what was made before, and before another is timed what is made ahead."""
    for _ in range(QUEUE):
        next(batches)
    rate = loader_rate(batches, seconds)
    time.sleep(SETTLING_SECONDS)
    return rate


@contextmanager
def one_core() -> Iterator[None]:
    """This thread, and whatever it starts meanwhile, on one core."""
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, {max(before)})
    torch.set_num_threads(1)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        torch.set_num_threads(threads)


def torchvision_batches(batch: int, workers: int) -> Any:
    """Endless batches as torchvision's documentation has them."""
    from torchvision import datasets, transforms

    normalised = transforms.Compose([transforms.ToTensor(), transforms.Normalize(cifar10.MEAN, cifar10.STD)])
    dataset = datasets.CIFAR10(str(data_root()), train=True, transform=normalised)
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=batch, shuffle=True, num_workers=workers, persistent_workers=True
    )
    while True:
        yield from loader


def loader_rate(batches: Batches, seconds: float) -> float:
    """Images a second over whole batches for at least `seconds`."""
    images, start = 0, time.perf_counter()
    while (gone := time.perf_counter() - start) < seconds:
        images += len(next(batches)[1])
    return images / gone


def training(model: str, options: Options) -> Finding:
    """One step, fed with real data and with synthetic data."""
    steps, turns = (2, 1) if options.quick else (40 if model == "resnet8" else 10, 4)
    launches = jobs.in_fresh_processes(options.pairs(12), training_turns, model, steps, turns)
    print(f"  training {model}: done", flush=True)
    claim = f"training {model} at batch 32 on real data over on synthetic, samples/s"
    return compared(claim, launches, {"samples_per_second": launches, "steps_a_block": steps}, Bar(low=0.97))


def training_turns(model: str, steps: int, turns: int) -> list[tuple[float, ...]]:
    """Samples per second on real data, on synthetic data, and on real data by a step built again; in a new process."""
    trial = Trial(framework="single", model=model, device="cpu", data="cifar10", cores_per_worker=1)
    joined = build(trial)  # pins this process, and is not timed (paired.py says why)
    real = build(trial, joined.ranks)
    batches = image_data(replace(trial, data="synthetic"), Ranks(), lambda batch: batch).feed
    synthetic = replace(
        real, training=replace(real.training, workload=replace(real.training.workload, batches=batches))
    )
    sources = (real, synthetic, build(trial, real.ranks))
    for source in sources:
        source.seconds(max(2, steps // 2))  # warm
    with surroundings.settled():
        return alternate(*(partial(source.rate, steps) for source in sources), turns=turns)
