"""What a network probe prints on rank 0: tables that users of nccl-tests and the OSU benchmarks read.  [torch]"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from scaling_study.ranks import Ranks
from scaling_study.stats.alpha_beta import Point, summary
from scaling_study.stats.collectives import bus_bandwidth, table_header, table_row
from scaling_study.stats.intervals import within_run


class Table:
    """One table for each collective: a row for each size as it is measured, then what they add up to."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks, self.name = ranks, ""
        self.rows: list[tuple[int, Sequence[float], int]] = []
        about = ", ".join(f"{key} {value}" for key, value in ranks.backend.items() if value)
        cores = f", {len(ranks.cores)} core(s) each" if ranks.cores else ""
        self._print(f"# {ranks.world_size} ranks on {ranks.device.type}{cores}; {about}")
        if ranks.rank == 0:
            within_run([1.0, 2.0])  # loads scipy now, not between two rows

    def begin(self, name: str, busy: bool) -> None:
        self.name, self.rows = name, []
        state = "busy: they multiply matrices meanwhile" if busy else "idle"
        self._print(f"#\n# {name}{f', cores {state}' if self.ranks.device.type == 'cpu' else ''}")
        for line in table_header():
            self._print(line)

    def row(self, bytes: int, seconds: Sequence[float], wrong: int) -> None:
        """`seconds`: of each call, on its slowest rank."""
        self.rows.append((bytes, seconds, wrong))
        if self.ranks.rank == 0:
            half = within_run(seconds).relative_half_width
            self._print(table_row(self.name, self.ranks.world_size, bytes, seconds, wrong, half))

    def end(self) -> None:
        """Two lines as nccl-tests ends with, and the fit."""
        if self.ranks.rank != 0:
            return
        ranks, wrong = self.ranks.world_size, sum(wrong for _, _, wrong in self.rows)
        bandwidth = mean(bus_bandwidth(self.name, bytes, mean(seconds), ranks) for bytes, seconds, _ in self.rows)
        self._print(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
        self._print(f"# Avg bus bandwidth    : {bandwidth / 1e9:.4g}")
        self._print(f"# {summary([Point.of(bytes, seconds) for bytes, seconds, _ in self.rows])}")

    def _print(self, line: str) -> None:
        if self.ranks.rank == 0:
            print(line, flush=True)
