"""What a record says of how its trial was run that no column of results.csv holds: one row a trial.

warm-up steps, the first timed step, cores, threads, the learning rate it had, the size of its epoch,
whose collectives it used, units of a sharded model, timed steps that were left out, the program's and the
libraries' versions, and what a run that was trained to a result says of that training (training.py)
"""

from __future__ import annotations

from statistics import median
from typing import Any

import pandas as pd

from analysis.frames.over_ranks import communicator
from analysis.frames.training import Training
from scaling_study.quoting import printable
from scaling_study.records.store import Record

COLUMNS = (
    *("configuration", "repeat", "warmup_steps", "first_step", "cores", "threads", "learning_rate"),
    *("samples_per_epoch", "communicator", "units", "skipped_steps", "commit", "versions", "training"),
)
Row = tuple[Any, ...]


def rows(record: Record) -> list[Row]:
    """One row, in the order of COLUMNS, of a trial that trained; none of any other. Raises as Training.of does.

    `first_step`: seconds of rank 0's first timed step over the median of its steps. `cores`, `threads`: (fewest, most)
    over the ranks; cores 0 where nothing is pinned. `training`: a tuple of each rank's, empty where there is none.
    """
    ranks = record.ranks
    if not ranks or sum(rank.samples_per_step for rank in ranks) == 0:
        return []
    steps = ranks[0].step_seconds
    usual = median(ranks[0].ordered_seconds) if steps else 0.0
    cores, threads = [len(rank.cores) for rank in ranks], [rank.threads for rank in ranks]
    rates = {rank.learning_rate for rank in ranks}
    about = ranks[0].backend
    units = about.get("units")
    trained = tuple(Training.of(rank.training) for rank in ranks if rank.training)
    return [
        (
            *(printable(record.configuration), int(record.trial["repeat"])),
            *(min(len(rank.warmup_seconds) for rank in ranks), steps[0] / usual if usual else None),
            *((min(cores), max(cores)), (min(threads), max(threads))),
            *(rates.pop() if len(rates) == 1 else None, _epoch(record)),
            *(communicator(ranks), units if isinstance(units, int) else None),
            max((rank.skipped_steps for rank in ranks if rank.skipped_steps is not None), default=None),
            *(printable(record.commit), _versions(ranks[0].versions), trained),
        )
    ]


def frame(rows: list[Row]) -> pd.DataFrame:
    """COLUMNS; what is unknown is None."""
    return pd.DataFrame(rows, columns=list(COLUMNS), dtype=object)


def _epoch(record: Record) -> int:
    """Samples of all ranks in an epoch."""
    return max(r.steps_per_epoch for r in record.ranks) * sum(rank.samples_per_step for rank in record.ranks)


def _versions(installed: dict[str, str]) -> str:
    return ", ".join(f"{printable(name)} {printable(version)}" for name, version in sorted(installed.items()))
