"""What a Hivemind peer pays where its daemon shares its core: a batch with it there, on another core, without it.

    core 0     peer a: batches of ResNet-18 ...................    its daemon: here | on core 1 | here | on core 1 | ...
    core 1     peer b: contributes a sample now and then, computes nothing

One launch, in which a's own processes are moved from block to block (sched_setaffinity), so that both placements meet
the same hour, memory and peers. The first round of a block is left out: averagings of the block before reach into it.
`without`: as many batches between blocks, of which Hivemind hears nothing. Gradients travel in fp16, weights as they
are, which the map of decentralised training calls Hivemind fp16. Three launches; intervals are between them. The
control is a placement against itself: its first and last blocks over those between.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil

from benchmarks import leaving_peers
from benchmarks.options import Options, Unavailable
from benchmarks.paired import Control, Finding
from scaling_study.machine import installed
from scaling_study.records import store
from scaling_study.stats.intervals import between_repeats

HERE, THERE, WITHOUT = "on the peer's core", "on another core", "without Hivemind"
BATCH, TARGET, MATCHMAKING_SECONDS, IMAGE_SIZE = 64, 2048, 1.5, 16
BLOCKS, ROUNDS = 4, 4  # of each placement; of a block, its first one apart
QUICK = {"model": "resnet8", "target": 512, "blocks": 1, "rounds": 2}
USUAL = {"model": "resnet18", "target": TARGET, "blocks": BLOCKS, "rounds": ROUNDS}
CONTRIBUTES_SECONDS = 0.25  # between two samples of peer b
DEADLINE_SECONDS = 900.0


def run(options: Options) -> list[Finding]:
    if not installed("hivemind"):
        raise Unavailable("hivemind is not installed")
    if len(cores := sorted(os.sched_getaffinity(0))) < 2:
        raise Unavailable("a daemon on another core needs two cores")
    asked = QUICK if options.quick else USUAL
    launches = [one(cores, asked) for _ in range(options.pairs(3))]
    return list(findings(launches))


def findings(launches: Sequence[Sequence[dict[str, Any]]]) -> Iterator[Finding]:
    """Ratios of what a batch and a round take, one a launch."""
    for what, place, other in (
        ("forward", HERE, THERE), ("backward", HERE, THERE), ("round", HERE, THERE),
        ("forward", THERE, WITHOUT), ("forward", HERE, WITHOUT),
    ):  # fmt: skip
        means = [(seconds(rounds, what, place), seconds(rounds, what, other)) for rounds in launches]
        of = "a round" if what == "round" else f"the {what} of a batch"
        claim = f"seconds of {of}, its daemon {place}, over those {other}"
        evidence = {"seconds": {place: [each[0] for each in means], other: [each[1] for each in means]}}
        figure = between_repeats([ours / theirs for ours, theirs in means])
        yield Finding(claim, figure, evidence=evidence, control=control(launches, what, other))


def control(launches: Sequence[Sequence[dict[str, Any]]], what: str, place: str) -> Control | None:
    """A placement against itself: its first and last blocks over those between."""
    ratios = []
    for rounds in launches:
        last = max(each["block"] for each in rounds)
        outer = [each for each in rounds if each["block"] in (0, last)]
        inner = [each for each in rounds if each["block"] not in (0, last)]
        if not inner:
            return None
        ratios.append(seconds(outer, what, place) / seconds(inner, what, place))
    return Control(between_repeats(ratios))


def seconds(rounds: Sequence[dict[str, Any]], what: str, place: str) -> float:
    """Mean of a launch: of a round, or of a batch's `forward` or `backward`."""
    there = [each for each in rounds if each["place"] == place]
    if what == "round":
        return fmean(each["seconds"] for each in there)
    return sum(float(each[what]) for each in there) / sum(int(each["batches"]) for each in there)


def one(cores: Sequence[int], asked: dict[str, Any]) -> list[dict[str, Any]]:
    """The rounds of one launch. Raises Unavailable where a peer ends by itself."""
    with tempfile.TemporaryDirectory(prefix="daemon-") as made, contextlib.ExitStack() as until_over:
        folder = Path(made)
        store.write_json(folder / "asked", {**asked, "cores": list(cores)})
        peers = leaving_peers.Peers(folder, "daemon_core", until_over)
        for name in ("a", "b"):
            peers.start(name)
        peers.until("the last round", (folder / "over").exists, DEADLINE_SECONDS)
        rounds: list[dict[str, Any]] = json.loads((folder / "over").read_text())
        return rounds


def peer(folder: Path, name: str) -> None:
    """One of the two, in a process of its own."""
    import hivemind
    import torch
    from hivemind.compression import Float16Compression

    from benchmarks.leaving_peer import swarm
    from scaling_study import workloads
    from scaling_study.ranks import Ranks
    from scaling_study.trial import Trial

    asked = json.loads((folder / "asked").read_text())
    mine, other = (asked["cores"][0], asked["cores"][-1]) if name == "a" else (asked["cores"][1],) * 2
    os.sched_setaffinity(0, {mine})
    torch.set_num_threads(1)
    while name == "b" and not (folder / "addresses").exists():
        time.sleep(0.1)
    dht = swarm(folder)
    keys = {"model": asked["model"], "batch_per_worker": BATCH, "data": "synthetic", "device": "cpu"}
    trial = Trial(**keys, cores_per_worker=1, image_size=None if asked["model"] == "resnet8" else IMAGE_SIZE)
    workload = workloads.load(trial, Ranks(rank=int(name == "b"), world_size=2))
    optimizer = hivemind.Optimizer(
        dht=dht, run_id="daemon", target_batch_size=asked["target"], batch_size_per_step=BATCH,
        optimizer=workload.optimizer(workload.model.parameters()), matchmaking_time=MATCHMAKING_SECONDS,
        averager_opts={"request_timeout": MATCHMAKING_SECONDS / 2},
        grad_compression=Float16Compression(),
    )  # fmt: skip
    if name == "b":
        for parameter in workload.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        while True:
            time.sleep(CONTRIBUTES_SECONDS)
            optimizer.step(batch_size=1)
    while optimizer.tracker.global_progress.num_peers < 2:  # a warm-up too; a peer sees itself once it has contributed
        computed(workload, optimizer, HERE)
    rounds: list[dict[str, Any]] = []
    for number in range(asked["blocks"]):
        done = len(rounds)
        for place, core in ((HERE, mine), (THERE, other)):
            move(core)
            block = [computed(workload, optimizer, place) for _ in range(asked["rounds"])]
            rounds += block[1:]
        rounds.append(computed(workload, None, WITHOUT, batches=asked["target"] // BATCH))
        rounds[done:] = [{**each, "block": number} for each in rounds[done:]]
    store.write_json(folder / "over", rounds)
    time.sleep(3600)  # until both are ended


def move(core: int) -> None:
    """Have all that this process started run on one core."""
    for process in psutil.Process().children(recursive=True):
        for thread in os.listdir(f"/proc/{process.pid}/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), {core})


def computed(workload: Any, optimizer: Any, place: str, batches: int = 0) -> dict[str, Any]:
    """A round of peer a, or so many batches without one."""
    begin, count, forward, backward = time.perf_counter(), 0, 0.0, 0.0
    epoch = optimizer.local_epoch if optimizer else 0
    while optimizer.local_epoch == epoch if optimizer else count < batches:
        batch = next(workload.batches)
        start = time.perf_counter()
        loss = workload.loss(workload.model, batch)
        between = time.perf_counter()
        loss.backward()
        forward, backward, count = forward + between - start, backward + time.perf_counter() - between, count + 1
        if optimizer:
            optimizer.step()
        workload.model.zero_grad()
    took = time.perf_counter() - begin
    return {"place": place, "seconds": took, "batches": count, "forward": forward, "backward": backward}


if __name__ == "__main__":
    peer(Path(sys.argv[1]), sys.argv[2])
