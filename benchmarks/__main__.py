"""`python -m benchmarks [NAME ...] [--quick]`: measure what this project claims about itself, and print one table.

Each benchmark runs in a process of its own, since some pin themselves to cores. Whatever ends it, nothing that it
started lives on. A figure is worth something only on a machine that does nothing else meanwhile: the load before each
is kept with it.
"""

from __future__ import annotations

import sys

if sys.argv[1:2] == ["gpu"] and __name__ == "__main__":  # it sets up what the imports below need
    from benchmarks import gpu

    sys.exit(gpu.main(sys.argv[2:]))

import argparse
import contextlib
import importlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
from rich.console import Console

from benchmarks import gpu, publish
from benchmarks.options import Options, Unavailable
from benchmarks.paired import not_run
from scaling_study.processes import process
from scaling_study.settings import CHECKOUT

NAMES = (
    *("driver_overhead", "input_path", "horovod_synthetic", "gains", "plain_loops", "pipelines", "prediction"),
    *("large_report", "training_overhead", "links", "decentralized", "slow_links", "leaving_peers", "daemon_core"),
    *("study_cost", "trajectories", "surgical_frames", "warm", "warm_others", "default_study", "default_runs"),
    *("verdicts", "bench_verdicts", "observer_overhead", "public_scripts"),
)
INTERRUPTED = 130
ENDING_SECONDS = 60.0  # for a benchmark to end what it started, and to say how to go on


def main(argv: list[str] | None = None) -> int:
    """0: all ran, whatever the verdicts; 1: one could not run."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["gpu"]:  # steps rather than findings, with options of its own
        with nothing_left():
            return gpu.main(words[1:])
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="a tiny form of each: does it run? Claims nothing")
    parser.add_argument("--pairs", type=int, help="take this many pairs instead of each benchmark's own number")
    parser.add_argument("--fraction", type=float, default=0.1, help="share of an epoch timed (default: %(default)s)")
    parser.add_argument(
        "--models", default="resnet18", help="for horovod_synthetic: resnet18,resnet50 (default: resnet18)"
    )
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="begin anew, where a benchmark would go on (study_cost, decentralized, slow_links, warm, ...)",
    )
    parser.add_argument(
        "--held-out", type=Path, action="append", default=[], metavar="RESULTS",
        help="prediction: a study to hold it against, and another (default: those that links left)",
    )  # fmt: skip
    parser.add_argument(
        "--minutes", type=float, help="verdicts, bench_verdicts, decentralized, slow_links: for so long at most"
    )
    parser.add_argument("--folder", type=Path, help="public_scripts: the clones of the repositories")
    parser.add_argument("--results", type=Path, help="folder for the results (default: benchmarks/results)")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(words)
    if unknown := [name for name in asked.names if name not in NAMES]:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if not 0 < asked.fraction <= 1:
        parser.error(f"--fraction {asked.fraction} is not between 0 and 1")
    names = asked.names or list(NAMES)
    folder = asked.results or (publish.QUICK_RESULTS if asked.quick else publish.RESULTS)
    models, held_out = tuple(asked.models.split(",")), tuple(asked.held_out)
    bounds = (asked.minutes, asked.folder)
    options = Options(asked.quick, asked.pairs, asked.fraction, models, asked.fresh, held_out, *bounds)
    if asked.inside:
        try:
            return one(names[0], options, folder)
        except KeyboardInterrupt:
            return INTERRUPTED
    flags = [word for word in words if word not in asked.names]
    status = 0
    for name in names:
        print(f"== {name}", flush=True)
        child = [sys.executable, "-m", "benchmarks", name, *flags, "--inside"]
        path = os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])])
        code = run_to_its_end(child, {**os.environ, "PYTHONPATH": path})
        if code == INTERRUPTED:
            return INTERRUPTED
        status |= code
    publish.show(Console(highlight=False), [folder / f"{name}.json" for name in names])
    return int(status != 0)


def one(name: str, options: Options, folder: Path) -> int:
    """Run one benchmark here and leave its findings in `folder`."""
    where, start = publish.surroundings(), time.monotonic()
    status = 0
    module = importlib.import_module(f"benchmarks.{name}")
    try:
        findings = module.run(options)
    except Unavailable as reason:
        findings, status = [not_run((module.__doc__ or name).splitlines()[0], reason)], 1
    publish.write(folder, name, findings, time.monotonic() - start, options.quick, where)
    publish.write_readme(folder)
    return status


class Ended(KeyboardInterrupt):
    """TERM or HUP. Ctrl-C in a terminal comes to all of its processes, these to one."""


def as_ctrl_c() -> None:
    """Have TERM and HUP interrupt this process as Ctrl-C does, but for one that ignores them (nohup)."""

    def interrupt(number: int, _: object) -> None:
        raise Ended(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """On leaving, no process that was started meanwhile is alive, nor one that such a process started."""
    process.adopt_orphans()
    not_ours = {each.pid for each in psutil.Process().children(recursive=True)}
    try:
        yield
    finally:
        process.end_descendants(not_ours=not_ours)


def run_to_its_end(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """The exit code of a program; INTERRUPTED where this process is interrupted. Nothing of the program lives on."""
    with nothing_left():
        running = subprocess.Popen(argv, env=environment)
        try:
            return running.wait()
        except KeyboardInterrupt as why:
            if isinstance(why, Ended):
                running.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(ENDING_SECONDS)
            return INTERRUPTED


if __name__ == "__main__":
    as_ctrl_c()
    sys.exit(main())
