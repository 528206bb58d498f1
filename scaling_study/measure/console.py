"""Lines that a script prints on rank 0, in the manner of Horovod's own benchmark."""

from __future__ import annotations

from scaling_study.ranks import Ranks
from scaling_study.records.store import RankReport, samples_per_second
from scaling_study.trial import Trial
from scaling_study.workloads import Workload

NO_TREND = 0.05  # relative: below, the trend of one run is not worth a line


class Console:
    """Prints on rank 0 only, and never inside a timed block."""

    def __init__(self, trial: Trial, ranks: Ranks, workload: Workload) -> None:
        self.trial, self.ranks, self.workload = trial, ranks, workload
        self.unit = f"{workload.sample}s/sec"
        self.share = "pipeline" if trial.stages else "worker"  # what batch_per_worker is the batch of
        backend = ", ".join(f"{key} {value}" for key, value in ranks.backend.items())
        cores = f", {len(ranks.cores)} core(s) each" if ranks.cores else ""
        self._print(f"Model: {trial.model}, {workload.parameters:,} parameters, {trial.precision}")
        self._print(f"Batch size: {trial.batch_per_worker} per {self.share}, {trial.global_batch} in all")
        self._print(f"Data: {workload.data_source}")
        self._print(f"Number of workers: {ranks.world_size} on {ranks.device.type}{cores}; allreduce {trial.allreduce}")
        if backend:
            self._print(f"{trial.framework}: {backend}")

    def warming_up(self) -> None:
        self._print("Running warm-up...")

    def warmed_up(self, seconds: list[float]) -> None:
        if seconds:
            self._print(f"Warm-up: {len(seconds)} steps in {sum(seconds):.1f} s, the fastest {min(seconds):.3g} s")

    def block(self, step_seconds: list[float], block: int) -> None:
        rate = block * self.trial.batch_per_worker / sum(step_seconds[-block:])
        first = len(step_seconds) - block + 1
        self._print(f"Steps {first}-{len(step_seconds)}: {rate:.1f} {self.unit} per {self.share}")

    def result(self, report: RankReport) -> None:
        """The lines with throughput, as the record has it, and the interval that this one run supports.

        Every rank calls this: the slowest rank's window counts.
        """
        rank, size = self.ranks.rank, self.ranks.world_size
        own = [0.0] * (2 * size)
        own[rank], own[size + rank] = report.samples_seen, report.window_seconds
        both = self.ranks.total(own)
        samples, windows = both[:size], both[size:]
        slowest = windows.index(max(windows))
        step_seconds = self.ranks.total(report.step_seconds if rank == slowest else [0.0] * len(report.step_seconds))
        if rank != 0:
            return
        # Imports scipy: not before the clock has stopped.
        from scaling_study.stats.intervals import step_trend, throughput, within_run

        speed = samples_per_second(samples, windows)
        interval = throughput(within_run(step_seconds), sum(samples) / len(step_seconds))
        n, shares = self.trial.workers, self.trial.data_parallel
        for title, share in ((f"{self.unit} per {self.share}", shares), (f"Total {self.unit} on {n} worker(s)", 1)):
            spread = f" +-{interval.half_width / share:.1f}" if interval.half_width is not None else ""
            self._print(f"{title[0].upper()}{title[1:]}: {speed / share:.1f}{spread}")
        short = f" ({interval.verdict} to rely on)" if interval.verdict else ""
        self._print(f"95 % interval within this run of {len(report.step_seconds)} steps{short}")
        if abs(trend := step_trend(step_seconds) or 0.0) > NO_TREND:
            faster = "slower" if trend > 0 else "faster: they may still have been warming up"
            self._print(
                f"From the first third of these steps to the last they became {100 * abs(trend):.0f} % {faster}"
            )

    def _print(self, line: str) -> None:
        if self.ranks.rank == 0:
            print(line, flush=True)
