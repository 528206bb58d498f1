"""Being observed costs a training at most 2 % of steps of 50 ms, 0.06 ms a step and 0.5 µs a call of a submodule.

Measured: (1) launches of one script with the observer, without it and without it again, in turn: ResNet-18 on CIFAR-10
in one process, whose batch makes a step of some 50 ms here. Each launch prints its own clock (scripts/pace.py); the
figure is the mean of its lines after the warm-up, and the interval is over turns. (2) In the observed launches, the
seconds that the observer spent in its hooks, by its own clock: the first steps, folding and writing among them. In
further launches that clock is the CPU time of the thread: where both agree, a hook computes all the time and waits for
nothing. (3) CPU time of a step of a tiny model, and of one with 100 submodules more, in processes with and without it:
the least of seven blocks of 1,000 steps, so that other work on the machine counts little. A block ends when its lines
are written. A submodule inside another passes by the hooks with one call more, which (2) does not see.

(3) is far less than (2), since a loop of tiny steps keeps the observer's code and data in the processor's caches, and a
step of 50 ms empties them. The bar of 0.06 ms is on (2), which a training feels.

Not shown: GPUs, where hooks run beside the device; ranks that a driver holds, whose waiting is no step's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from benchmarks.bench_verdicts import FOLDER, PACE
from benchmarks.options import Options, Unavailable
from benchmarks.paired import NOT_COMPARED, Bar, Control, Finding, alternate, difference, pairs_of, ratio
from scaling_study import datasets, observe
from scaling_study.settings import data_root
from scaling_study.stats.intervals import Interval, between_repeats

SCRIPT, BATCH = "loader_workers.py", 20
TURNS, TURNS_BY_CPU, STEPS, WARM = 20, 10, 120, 20
TURNS_OF_TINY, BLOCKS, SUBMODULES = 10, 7, 100
BY_CPU = (
    "import runpy, sys, time; time.perf_counter = time.thread_time; del sys.argv[0];"
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)
TINY = """
import sys, time, torch
submodules, blocks, steps = map(int, sys.argv[1:])
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Identity() for _ in range(submodules)], torch.nn.Linear(4, 4))
optimizer, x = torch.optim.SGD(model.parameters(), lr=0.01), torch.randn(4, 4)
observers = getattr(sys.modules.get("scaling_study.observe.hooks"), "FOUND", [])

def seconds(steps):
    began = time.process_time()
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    for observer in observers:
        observer.fold()
        observer.write()
    return (time.process_time() - began) / steps

seconds(300)
print(min(seconds(steps) for _ in range(blocks)))
"""


def run(options: Options) -> list[Finding]:
    if "cifar10" not in datasets.available():
        raise Unavailable("cifar10 is not in DATA_ROOT")
    with tempfile.TemporaryDirectory(prefix="observed-") as made:
        return [*of_launches(options, Path(made)), *of_tiny(options, Path(made))]


def of_launches(options: Options, folder: Path) -> list[Finding]:
    """Steps of some 50 ms in launches of their own, and the time inside the hooks."""
    steps, own = 25 if options.quick else STEPS, list[float]()
    plain = partial(step_ms, steps)
    turns = alternate(partial(observed_ms, steps, folder, own), plain, plain, turns=options.pairs(TURNS))
    by_cpu = list[float]()
    for _ in range(options.pairs(TURNS_BY_CPU)):
        observed_ms(steps, folder, by_cpu, ("-c", BY_CPU))
    evidence = {"ms": turns, "batch": BATCH, "steps": steps}
    control = Control(ratio(pairs_of(turns, (2, 1))))
    length = f"{fmean(turn[1] for turn in turns):.0f} ms"
    return [
        Finding(
            f"a step of {length} with the observer over one without", ratio(pairs_of(turns)), Bar(0.98, 1.02),
            evidence=evidence, control=control,
        ),
        Finding("in its hooks, a step of these", between_repeats(own), Bar(high=0.06), "ms", control=NOT_COMPARED),
        Finding("CPU time of these hooks, a step", between_repeats(by_cpu), unit="ms", control=NOT_COMPARED),
    ]  # fmt: skip


def step_ms(steps: int, environment: Mapping[str, str] | None = None, starts: Sequence[str] = ()) -> float:
    """Milliseconds of a step, by the script's own clock, of one launch. Raises Unavailable."""
    argv = [sys.executable, *starts, SCRIPT, "--data", str(data_root().resolve()), "--run-name", "a", "--workers", "0"]
    argv += ["--batch-size", str(BATCH), "--steps", str(steps)]
    done = subprocess.run(argv, cwd=FOLDER, env=environment, capture_output=True, text=True, check=False)
    lines = [float(took) for _, step, took, _ in PACE.findall(done.stdout) if int(step) > min(WARM, steps - 5)]
    if done.returncode or not lines:
        raise Unavailable(f"{SCRIPT} ended with {done.returncode}", done.stderr[-2000:])
    return fmean(lines)


def observed_ms(steps: int, folder: Path, own: list[float], starts: Sequence[str] = ()) -> float:
    """The same with the observer, whose own milliseconds a step are added to `own`."""
    with tempfile.TemporaryDirectory(dir=folder) as made:
        took = step_ms(steps, {**os.environ, **observe.environment(os.environ, Path(made))}, starts)
        (process,) = observe.read(Path(made))
    own.append(1e3 * process[-1]["own_seconds"] / process[-1]["steps"])
    return took


def of_tiny(options: Options, folder: Path) -> list[Finding]:
    """CPU time that is added to a step and to a call of a submodule."""
    sides = [
        partial(tiny_us, folder, submodules, observed, options.quick)
        for submodules in (0, SUBMODULES)
        for observed in (True, False, False)
    ]
    turns = alternate(*sides, turns=options.pairs(TURNS_OF_TINY))
    return [
        Finding(
            f"CPU time that it adds to {what}", added(turns, 0), Bar(high=most), "µs",
            evidence={"us": turns}, control=Control(added(turns, 2), equal=0.0),
        )
        for what, added, most in (("a step and its lines", of_step, 60.0), ("a call of a submodule", of_submodule, 0.5))
    ]  # fmt: skip


def tiny_us(folder: Path, submodules: int, observed: bool, quick: bool) -> float:
    """CPU microseconds of a step of a model of so many submodules and a layer of four by four."""
    with tempfile.TemporaryDirectory(dir=folder) as made:
        environment = {**os.environ, **observe.environment(os.environ, Path(made))} if observed else None
        blocks, steps = (2, 50) if quick else (BLOCKS, 1000)
        argv = [sys.executable, "-c", TINY, *map(str, (submodules, blocks, steps))]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    return 1e6 * float(done.stdout)


def of_step(turns: Sequence[Sequence[float]], side: int) -> Interval:
    """Side 0: with the observer, over without; side 2: without it again. Both of no submodules."""
    return difference(pairs_of(turns, (side, 1)))


def of_submodule(turns: Sequence[Sequence[float]], side: int) -> Interval:
    """The same of each of the submodules that the fourth to sixth side have more than the first three."""
    many, none = ([turn[first + side] - turn[first + 1] for turn in turns] for first in (3, 0))
    return between_repeats([(a - b) / SUBMODULES for a, b in zip(many, none, strict=True)])
