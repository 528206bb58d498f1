"""The studies that are faulted: small, of planted ranks unless said otherwise, each a text as a user writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
