"""A configuration that waits among others, warm, is as fast as one that has a launch to itself, cold.

Claimed, for every framework that one launch can keep several configurations of: images/s of a warm launch over those of
a cold one lie within 0.95 to 1.05, on resnet8 and on resnet18.

Measured: a cold launch of every configuration, by the launcher that a study uses, then a warm one of all of them, then
in the other order, and so on. The warm one keeps the processes of all frameworks alive; half a second of one
configuration's steps is timed while the others are stopped, in rounds of a drawn order (launch/rounds.py).
Both warm up and time equally long. The ratio is paired by launch (paired.py).

Not shown: GPUs, several hosts, larger models. Interrupted, it goes on where it was (`--fresh`: begin anew).
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from benchmarks.options import Options, Unavailable
from benchmarks.paired import Bar, Finding, ratio
from scaling_study.launch import rounds
from scaling_study.launch.attempts import Attempts
from scaling_study.launch.supervisor import SupervisorClient
from scaling_study.launch.warm_group import GroupFailed, WarmGroup
from scaling_study.machine import this_machine
from scaling_study.processes.process import Interruption
from scaling_study.records import store
from scaling_study.records.throughput import samples_per_second
from scaling_study.settings import CACHE
from scaling_study.study import plan, study
from scaling_study.trial import Trial

KEPT = CACHE / "benchmarks" / "warm"
BAR = Bar(0.95, 1.05)
ROUNDS, BLOCK_SECONDS = 6, 0.5
WINDOW = {"warmup_steps": 5, "min_steps": 6, "min_seconds": ROUNDS * BLOCK_SECONDS, "max_seconds": 60}
TIMEOUT_SECONDS = 300.0
MODELS = ("resnet8", "resnet18")
SWEEPS = (
    {"framework": "single"},
    {"framework": "torch_ddp", "workers": 2},
    {"framework": "torch_fsdp2", "workers": 2},
    {"framework": "mpi_allreduce", "workers": 2},
    {"framework": "horovod", "workers": 2, "controller": "mpi"},
    {"framework": "horovod", "workers": 2, "controller": "gloo"},
)
Groups = dict[str, list[Trial]]  # name -> what one launch keeps


def run(options: Options) -> list[Finding]:
    groups = planned(SWEEPS[:1], MODELS[:1]) if options.quick else planned(SWEEPS, MODELS)
    pairs = options.pairs(20)
    with tempfile.TemporaryDirectory(prefix="warm-") as made:
        work = Path(made) if options.quick else KEPT
        if options.fresh and not options.quick:
            shutil.rmtree(work, ignore_errors=True)
        for number in range(pairs):
            for side in (cold, warm) if number % 2 else (warm, cold):
                side(groups, work / str(number), number)
            print(f"  pair {number + 1}: done", flush=True)
        return [
            finding(f"{name}, {trial.model}", trial, work, pairs) for name, trials in groups.items() for trial in trials
        ]


def planned(sweeps: Sequence[dict[str, object]], models: Sequence[str]) -> Groups:
    """The trials of a study of these, by framework and controller: those that can run here."""
    each = [{**sweep, "data": "synthetic", "matrix": {"model": list(models)}} for sweep in sweeps]
    document = {"study": "warm", "parity": False, "measure": WINDOW, "sweeps": each}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(document, file)
        configurations = plan.make(study.load(Path(file.name)), this_machine()).configurations
    groups: Groups = {}
    for trial in (each.trial for each in configurations if not each.unsupported):
        groups.setdefault(", ".join(filter(None, [trial.framework, trial.controller])), []).append(trial)
    return groups


def cold(groups: Groups, folder: Path, number: int) -> None:
    """A launch of its own for every configuration, in a drawn order."""
    trials = [trial for trials in groups.values() for trial in trials]
    random.Random(f"cold {number}").shuffle(trials)
    with Interruption() as interruption, SupervisorClient(folder / "cold", interruption) as supervisor:
        attempts = Attempts(supervisor)
        for trial in trials:
            if not finished(trial, place := folder / "cold" / trial.id):
                with emptied(place):
                    outcome = attempts.run_once(trial, place, TIMEOUT_SECONDS).outcome
                if interruption.signal is not None:
                    raise KeyboardInterrupt
                if outcome.status != "ok":
                    raise Unavailable(f"{trial.id}: {outcome.status}: {outcome.reason}", outcome.error)


def warm(groups: Groups, folder: Path, number: int) -> None:
    """One launch of each group, all alive together."""
    trials = [trial for trials in groups.values() for trial in trials]
    if all(finished(trial, folder / "warm" / trial.id) for trial in trials):
        return
    with emptied(folder / "warm"), contextlib.ExitStack() as alive:
        started = []
        try:
            for name, together in groups.items():
                places = [folder / "warm" / trial.id for trial in together]
                for place in places:
                    place.mkdir()
                launch = folder / "warm" / f"launch of {name}"
                started.append(alive.enter_context(WarmGroup(together, launch, places, TIMEOUT_SECONDS)))
            rounds.run(started, ROUNDS, BLOCK_SECONDS, f"warm {number}")
        except GroupFailed as failed:
            raise Unavailable(f"a warm launch failed: {failed}") from failed


@contextlib.contextmanager
def emptied(place: Path) -> Iterator[None]:
    """Without what an interrupted try left."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    yield


def finished(trial: Trial, place: Path) -> bool:
    with contextlib.suppress(store.UnreadableRecord):
        return bool(store.read_ranks(place, trial.processes))
    return False


def finding(what: str, trial: Trial, work: Path, pairs: int) -> Finding:
    """Of one configuration: warm over cold, a pair for each launch."""

    def rate(side: str, number: int) -> float:
        ranks = store.read_ranks(work / str(number) / side / trial.id, trial.processes)
        return samples_per_second((rank.samples_seen for rank in ranks), (rank.window_seconds for rank in ranks))

    taken = [(rate("warm", number), rate("cold", number)) for number in range(pairs)]
    evidence = {"configuration": trial.configuration, "images_per_second": taken}
    return Finding(f"{what}: images/s, warm over cold", ratio(taken), BAR, evidence=evidence)
