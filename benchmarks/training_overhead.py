"""Training to a result costs no more than its steps: what the loop adds to them, and what reading gradients adds.

Claimed: (1) reading two norms of gradients (docs/training.md, gradient noise scale) takes at most 1 % of the time, as
often as the training itself chose to; (2) the training loop's steps, with these readings, are at least 0.98 as fast as
the clock's of the same configuration.

Measured: resnet8, batch of 64 a worker, one process that accumulates two micro-batches and two workers with DDP. Both
sides live in the same processes (training_blocks.py) and take turns, about 15 steps a block. For (1) one training reads
in the one block and not in the other; for (2) a second model is stepped as the clock does. Seconds are those of the
steps, which is what a training's throughput and its seconds to a target are made of.

Not shown: what lies between blocks of five seconds (a look at the clock, a sign of life), evaluations and checkpoints,
which every record has apart; GPUs; models whose steps are so short that hardly any of them is read.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks import jobs
from benchmarks.options import Options
from benchmarks.paired import Bar, Finding, ratio
from scaling_study.records.store import load

CONFIGURATIONS = {"single": "one process, two micro-batches", "torch_ddp": "two workers with DDP"}


def run(options: Options) -> list[Finding]:
    findings = []
    for framework, title in list(CONFIGURATIONS.items())[: 1 if options.quick else None]:
        with tempfile.TemporaryDirectory(prefix="training-") as made:
            out = Path(made) / "out.json"
            flags = ["--framework", framework, "--steps", "2" if options.quick else "15", "--out", str(out)]
            pairs = ["--pairs", str(options.pairs(30))]
            jobs.launched(framework, ["-m", "benchmarks.training_blocks", *flags, *pairs])
            evidence = load(out)
        steps = {"steps_a_block": evidence["steps"], "every": evidence["every"]}
        findings += [
            Finding(
                f"seconds of a training's steps with reading gradients over without, {title}",
                ratio(evidence["reading"]), Bar(high=1.01), evidence={"seconds": evidence["reading"], **steps},
            ),
            Finding(
                f"a training's steps over the clock's, {title}",
                ratio(evidence["loop"]), Bar(low=0.98), evidence={"samples_per_second": evidence["loop"], **steps},
            ),
        ]  # fmt: skip
        print(f"  {title}: done", flush=True)
    return findings
