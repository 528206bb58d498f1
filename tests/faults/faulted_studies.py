"""The studies that are faulted: small, of planted ranks unless said otherwise, each a text as a user writes it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

SINGLE = "{framework: single, model: resnet8, data: synthetic%s}"
# One for each launcher; ranks join MPI where the launcher is MPI's.
LAUNCHED = {
    "horovodrun --gloo": "{framework: horovod, launcher: horovodrun, controller: gloo, %s}",
    "horovodrun --mpi": "{framework: horovod, launcher: horovodrun, controller: mpi, %s}",
    "mpirun": "{framework: mpi_allreduce, launcher: mpirun, %s}",
    "torchrun": "{framework: torch_ddp, launcher: torchrun, %s}",
    "deepspeed": "{framework: deepspeed_zero, launcher: deepspeed, %s}",
}
TWO = "model: resnet8, data: synthetic, workers: 2, allreduce: fp32"


def quick(configurations: int, repeats: int, under_mpi: int = 0) -> str:
    """Trials of one process that take as long as PLANTED_SECONDS, and of two under mpirun, with shared memory."""
    batches, of_mpi = ([4 * n for n in range(1, count + 1)] for count in (configurations, under_mpi))
    sweeps = [SINGLE % f", matrix: {{batch_per_worker: {batches}}}"] if batches else []
    sweeps += [LAUNCHED["mpirun"] % f"{TWO}, matrix: {{batch_per_worker: {of_mpi}}}"] if of_mpi else []
    return _study("faulted", _measure(repeats, 60), sweeps)


def batches(sizes: Sequence[int]) -> str:
    """One process that trains, with each of these batches once."""
    measure = "{warmup_steps: 1, min_steps: 2, max_steps: 2, min_seconds: 0, repeats: 1, max_repeats: 1}"
    return _study("batches", measure, [SINGLE % f", matrix: {{batch_per_worker: {list(sizes)}}}"])


def launched(repeats: Mapping[str, int], window: str = "") -> str:
    """Two ranks under each of these launchers, so often."""
    sweeps = [LAUNCHED[name] % f"{TWO}, repeats: {n}, max_repeats: {n}" for name, n in repeats.items()]
    return _study("launched", f"{{{window}timeout_seconds: 120}}", sweeps)


def in_rounds(rounds: int, repeats: int, timeout: float = 120, launcher: str = "torchrun") -> str:
    """Ranks that train: one process and two by a launcher, three configurations. `timeout`: of a build, a block."""
    measure = f"warm: true, rounds: {rounds}, block_seconds: 0.2, min_steps: 1, min_seconds: 0"
    measure = f"{{{measure}, repeats: {repeats}, max_repeats: {repeats}, timeout_seconds: {timeout}}}"
    two = LAUNCHED[launcher] % f"{TWO}, matrix: {{batch_per_worker: [4, 8]}}"
    return _study("rounds", measure, [SINGLE % ", batch_per_worker: 4", two])


# Commands of a user's own, started in a folder in which `put_training` has been. {act} is one of planted_training.py's.
ALONE = "python train.py {act} {run_dir}"
BY_MPIRUN = "mpirun --allow-run-as-root --oversubscribe --bind-to none -np {workers} python train.py {act} {run_dir}"
QUOTED = """python "it's here/train.py" {act} {run_dir} 'two words' '"quoted"' '$HOME' 'a|b' "it's" """


def commands(acts: Mapping[str, Sequence[str]], rounds: int, repeats: int, timeout: float, min_steps: int = 1) -> str:
    """Command -> its acts, each a configuration; all take turns. `timeout`: of a start, a block."""
    measure = f"warm: true, rounds: {rounds}, block_seconds: 0.2, min_steps: {min_steps}, min_seconds: 0, retries: 0"
    measure = f"{{{measure}, repeats: {repeats}, max_repeats: {repeats}, timeout_seconds: {timeout}}}"
    sweeps = [
        json.dumps({
            "framework": "command", "command": command, "batch_per_worker": 4, "matrix": {"act": list(names)},
            "workers": 2 if "{workers}" in command else 1,
        })
        for command, names in acts.items()
    ]  # fmt: skip
    return _study("commands", measure, sweeps)


def put_training(folder: Path) -> None:
    """Leave the planted script in a folder, and in one below it, with a sitecustomize that is its user's."""
    here, theirs = Path(__file__).parent, folder / "theirs"
    for own in (folder, folder / "it's here"):
        own.mkdir(exist_ok=True)
        shutil.copy(here / "planted_training.py", own / "train.py")
        shutil.copy(here / "stand_in_torch.py", own / "torch.py")
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import os\nos.environ['THEIRS'] = '1'\n")
    (theirs / "only_theirs.py").touch()


def told(groups: Sequence[tuple[str, Sequence[int], float]], repeats: int) -> str:
    """Seeds under `python` or mpirun, with their time-out: what a seed stands for is in the book."""
    sweeps = []
    for launcher, seeds, timeout in groups:
        keys = f"timeout_seconds: {timeout}, matrix: {{seed: {list(seeds)}}}"
        sweeps.append(SINGLE % f", {keys}" if launcher == "python" else LAUNCHED[launcher] % f"{TWO}, {keys}")
    return _study("told", _measure(repeats, 60), sweeps)


def _measure(repeats: int, timeout: float) -> str:
    return f"{{repeats: {repeats}, max_repeats: {repeats}, timeout_seconds: {timeout}}}"


def _study(name: str, measure: str, sweeps: Sequence[str]) -> str:
    lines = [f"study: {name}", "parity: false", f"measure: {measure}", "sweeps:", *(f"  - {one}" for one in sweeps)]
    return "\n".join(lines) + "\n"
