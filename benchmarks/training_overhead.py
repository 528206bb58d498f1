"""Training to a result costs no more than its steps: what the loop adds to them, and what reading gradients adds.

Claimed: (1) reading two norms of gradients (gradient noise scale, docs/guide/train-to-a-target.md) takes at most 1 % of
the time, as often as the training chose to; (2) the training loop's steps, with these readings, are at least 0.98
as fast as the clock's of the same configuration.

Measured: resnet8, batch of 64 a worker, one process that accumulates two micro-batches and two workers with DDP. Both
sides live in the same processes (training_blocks.py) and take turns, about 15 steps a block; a launch's ratio is that
of its geometric means, and the interval is over launches. For (1) one training reads in the one block and not in the
other; for (2) a second model is stepped as the clock does. Controls, in the same turns: reading a second time, and the
clock's step built a second time. Seconds are those of the steps, of which a training's throughput and its seconds to a
target are made.

Not shown: what lies between blocks of five seconds (a look at the clock, a sign of life), evaluations and checkpoints,
which every record has apart; GPUs; models whose steps are so short that hardly any of them is read.
"""

from __future__ import annotations

from benchmarks import jobs
from benchmarks.options import Options
from benchmarks.paired import Bar, Finding, compared

CONFIGURATIONS = {"single": "one process, two micro-batches", "torch_ddp": "two workers with DDP"}
LAUNCHES, BLOCKS, STEPS = 16, 10, 15


def run(options: Options) -> list[Finding]:
    findings = []
    blocks, steps = (2, 2) if options.quick else (BLOCKS, STEPS)
    for framework, title in list(CONFIGURATIONS.items())[: 1 if options.quick else None]:
        flags = ("--framework", framework)
        results = jobs.results_of(options.pairs(LAUNCHES), framework, "training_blocks", steps, blocks, *flags)
        facts = {"steps_a_block": results[0]["steps"], "every": [launch["every"] for launch in results]}
        reading, loop = ([launch[side] for launch in results] for side in ("reading", "loop"))
        findings += [
            compared(
                f"seconds of a training's steps with reading gradients over without, {title}", reading,
                {"seconds": reading, **facts}, Bar(high=1.01),
            ),
            compared(
                f"a training's steps over the clock's, {title}", loop, {"samples_per_second": loop, **facts},
                Bar(low=0.98), control=(1, 2),
            ),
        ]  # fmt: skip
        print(f"  {title}: done", flush=True)
    return findings
