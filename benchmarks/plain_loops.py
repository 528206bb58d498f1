"""Each script's step is at least as fast as the plain loop that its framework's own examples show.

Claimed: the throughput of each script's step under our clock over that of the loop a user would write with the same
framework (plain_step.py), at the same model, batch of 32 and two workers, is not below 0.97.

Measured: both are built in one job of the framework's own launcher, on the same cores, and blocks of 10 steps
alternate; a launch's ratio is that of its geometric means, and the interval is over launches. resnet8 at 32x32: its
step is short, and whatever the script adds is large beside it.

Not shown: that the loops are the best that can be written; GPUs, larger worlds, other models.
"""

from __future__ import annotations

import sys

from benchmarks import jobs
from benchmarks.options import Options, Unavailable
from benchmarks.paired import Bar, Finding, of_launches, ratio
from benchmarks.plain_names import FRAMEWORKS_WITH_A_LOOP
from scaling_study.stats.intervals import Interval

LAUNCHES, BLOCKS, STEPS = 16, 12, 10


def run(options: Options) -> list[Finding]:
    findings = []
    blocks, steps = (2, 2) if options.quick else (BLOCKS, STEPS)
    for framework in FRAMEWORKS_WITH_A_LOOP[-1:] if options.quick else FRAMEWORKS_WITH_A_LOOP:
        claim = f"{framework}: our script's step over a plain loop's, resnet8, batch 32"
        program = ["-m", "benchmarks.plain_step", "--framework", framework]
        program += ["--steps", str(steps), "--pairs", str(blocks)]
        try:
            results = jobs.results_of(options.pairs(LAUNCHES), framework, program)
        except Unavailable as reason:
            print(f"{framework}: {reason}\n{reason.detail}", file=sys.stderr)
            nothing = Interval(float("nan"), None, None, 0)
            findings.append(Finding(claim, nothing, verdict=f"not run: {reason}"))
            continue
        taken = [launch["samples_per_second"] for launch in results]
        evidence = {**results[0], "samples_per_second": taken, "steps_a_block": steps}
        findings.append(Finding(claim, ratio(of_launches(taken)), Bar(low=0.97), evidence=evidence))
        print(f"  {framework}: done", flush=True)
    return findings
