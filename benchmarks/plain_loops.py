"""Each script's step is at least as fast as the plain loop that its framework's own examples show.

Claimed: (1) the throughput of each script's step under our clock over that of the loop a user would write with the same
framework (plain_step.py), at the same model, batch of 32 and two workers, is not below 0.97. (2) Each framework's
speed-up over one process is what it is by plain loops, within 3 %: a reader of tables looks at ratios. (3) So it is by
plain loops with our settings, where ours differ from the examples': these have DDP and OSS send BatchNorm's buffers
before each forward, and DDP copy gradients into buckets (docs/reference/settings.md says why ours do neither).

Measured: both are built in one job of the framework's own launcher, on the same cores, and blocks of 10 steps
alternate; a launch's ratio is that of its geometric means, and the interval is over launches. The control is the
script's step built a second time, after the plain loop, in the same turns; in half of the launches the first one built
is the control, so that what is built first in a process falls on ours and on the loop alike. Intervals of (2), and of
(3), hold all at once (Bonferroni). resnet8 at 32x32: its step is short, and whatever the script adds is large beside
it.

Not shown: that the loops are the best that can be written; GPUs, larger worlds, other models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks import jobs
from benchmarks.options import Options, Unavailable
from benchmarks.paired import Bar, Control, Finding, Turns, compared, not_run, of_launches
from scaling_study.stats import intervals

FRAMEWORKS_WITH_A_LOOP = ("torch_ddp", "torch_fsdp2", "fairscale_oss", "deepspeed_zero", "lightning_ddp", "single")
LAUNCHES, BLOCKS, STEPS = 16, 12, 10
BASELINE, RATIO_BAR = "single", Bar(0.97, 1.03)
ALIKE = 3  # the side of a turn that is the plain loop with our settings


def run(options: Options) -> list[Finding]:
    findings, launches = [], dict[str, Sequence[Turns]]()
    blocks, steps = (2, 2) if options.quick else (BLOCKS, STEPS)
    for framework in FRAMEWORKS_WITH_A_LOOP[-1:] if options.quick else FRAMEWORKS_WITH_A_LOOP:
        claim = f"{framework}: our script's step over a plain loop's, resnet8, batch 32"
        program = (framework, "plain_step", steps, blocks, "--framework", framework)
        try:
            count = options.pairs(LAUNCHES)
            results = jobs.results_of(count - count // 2, *program)
            results += jobs.results_of(count // 2, *program, "--swapped")
        except Unavailable as reason:
            findings.append(not_run(claim, reason))
            continue
        evidence = jobs.in_blocks(results, steps)
        launches[framework] = evidence["samples_per_second"]
        findings.append(compared(claim, launches[framework], evidence, Bar(low=0.97)))
        print(f"  {framework}: done", flush=True)
    alike = {name: taken for name, taken in launches.items() if name == BASELINE or len(taken[0][0]) > ALIKE}
    return [*findings, *speedups(launches), *speedups(alike, ALIKE)]


def speedups(launches: Mapping[str, Sequence[Turns]], loop: int = 1) -> Iterator[Finding]:
    """Each framework's speed-up over one process by our scripts, over that by plain loops; they are held at once.

    `loop`: the side of a framework's turns that is its plain loop, as its examples have it (1) or with our settings
    (ALIKE). One process has only the first.
    """
    if BASELINE not in launches:
        return
    compared = [framework for framework in launches if framework != BASELINE]
    for framework in compared:
        figure, equal = (
            intervals.ratio(
                *([a / b for a, b in of_launches(launches[name], (0, s))] for name, s in sides.items()),
                confidence=1 - 0.05 / len(compared),
            )
            for sides in ({framework: loop, BASELINE: 1}, {framework: 2, BASELINE: 2})
        )
        whose = "plain loops with our settings" if loop == ALIKE else "plain loops"
        claim = f"{framework}: our scripts' speed-up over one process over that of {whose}, resnet8, batch 32"
        yield Finding(claim, figure, RATIO_BAR, control=Control(equal))
