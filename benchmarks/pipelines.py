"""The torch pipeline script beside a hand-written loop of its schedule, and beside one process.

Claimed: 1. the step of pipeline/torch_pipeline.py (1F1B, two stages) is no slower than the same schedule written by
hand with isend and recv: their throughputs' ratio is not below 0.97. 2. on two cores, one for each worker, it trains
the deep language model faster than one single-threaded process: the ratio is above 1, of at most 2 x (1 - bubble).

Measured: both sides live in one job, on the same cores, and blocks of steps alternate; a launch's ratio is that of its
geometric means, and the interval is over launches. While the one process computes, the other worker waits. The control
is the script's pipeline built a second time, in the same turns.

Not shown: more stages, GPUs, other schedules. The bound counts the bubble alone: micro-batches that compute slower than
the whole batch, and two cores that share a memory, are what a study's table calls computing.
"""

from __future__ import annotations

from benchmarks import jobs
from benchmarks.options import Options
from benchmarks.paired import Bar, Finding, compared

MICRO_BATCHES = (4, 10)
LAUNCHES, BLOCKS, STEPS = 12, 5, 3


def run(options: Options) -> list[Finding]:
    model = "transformer_lm" if options.quick else "transformer_lm_deep"
    findings = [
        measured(f"1F1B script over a hand-written loop, {model}, m = 4", "loop", model, 4, options, Bar(low=0.97))
    ]
    for parts in MICRO_BATCHES[:1] if options.quick else MICRO_BATCHES:
        bound = 2 * (1 - 1 / (parts + 1))
        claim = f"two pipelined workers over one process, {model}, m = {parts}; at most {bound:.2f}"
        findings.append(measured(claim, "single", model, parts, options, Bar(low=1.0)))
    return findings


def measured(claim: str, against: str, model: str, parts: int, options: Options, bar: Bar) -> Finding:
    blocks, steps = (1, 1) if options.quick else (BLOCKS, STEPS)
    flags = ["--against", against, "--model", model, "--micro-batches", str(parts)]
    results = jobs.results_of(options.pairs(LAUNCHES), "torch_pipeline", "pipeline_step", steps, blocks, *flags)
    evidence = {**jobs.in_blocks(results, steps), "micro_batches": parts}
    print(f"  {claim}: done", flush=True)
    return compared(claim, evidence["samples_per_second"], evidence, bar)
