"""Network probes whose latency and bandwidth are known, as records in a results folder.

plant_probe(plant(tmp_path, []), launcher="horovodrun", repeats=3)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from planted import MACHINE, rank_report

from scaling_study.models import NO_MODEL
from scaling_study.records.schema import Record
from scaling_study.records.store import write_record
from scaling_study.stats.network import COLLECTIVES, sizes
from scaling_study.trial import Trial

ALPHA, BETA = 50e-6, 0.5e-9  # 50 us, 2 GB/s
BUSY = 4.0  # times as slow while the cores compute
SIZES = list(sizes(max_bytes=16 << 20))


def probe(repeat: int = 1, **keys: Any) -> Trial:
    base = Trial(
        framework="network_probe", model=NO_MODEL, workers=2, launcher="torchrun", device="cpu", cores_per_worker=1,
        machine="abcd1234", repeat=repeat,
    )  # fmt: skip
    return replace(base, **keys)


def rows(
    rng: np.random.Generator, ranks: int, noise: float, drift: float, offset: float, sizes: Sequence[int]
) -> list[list[dict[str, Any]]]:
    """Of each rank. Ranks take turns at being the slower one by a tenth, so no rank alone has the call's seconds."""
    made: list[list[dict[str, Any]]] = [[] for _ in range(ranks)]
    for busy in (False, True):
        for collective in COLLECTIVES:
            for size in sizes:
                mean = drift * (BUSY if busy else 1.0) * (ALPHA + BETA * size) + offset * (size > 1 << 16)
                calls = mean * rng.gamma(1 / noise**2, noise**2, 60)
                for rank in range(ranks):
                    slowest = np.arange(60) % ranks == rank
                    seconds = np.where(slowest, calls, 0.9 * calls).tolist()
                    row = {"collective": collective, "bytes": size, "busy": busy, "seconds": seconds, "correct": True}
                    made[rank].append(row)
    return made


def plant_probe(
    folder: Path, repeats: int = 1, noise: float = 0.05, between: float = 0.0, offset: float = 0.0,
    status: str = "ok", reason: str = "", sizes: Sequence[int] = SIZES, others_cores: float = 0.1,
    broken: dict[str, Any] | None = None, **keys: Any,
) -> str:  # fmt: skip
    """Write the records of one probe into planted results; returns its configuration.

    `between`: relative spread of whole repeats; `offset`: seconds more above 64 KiB, a kink; `broken`: over the keys
    of the first row of every rank.
    """
    rng = np.random.default_rng(7)
    for repeat in range(1, repeats + 1):
        trial = probe(repeat, **keys)
        measured = rows(rng, trial.workers, noise, 1 + between * rng.normal(), offset, sizes)
        for ours in measured:
            ours[0] |= broken or {}
        ranks = [
            replace(rank_report(trial, rank, [1.0] * 3), samples_per_step=0, samples_seen=0, network=measured[rank],
                    own_cpu_seconds=3.0, host_cpu_seconds=3.0 * trial.workers + 3.0 * others_cores, phases=None)
            for rank in range(trial.workers)
        ]  # fmt: skip
        record = Record(
            study="planted", id=trial.id, configuration=trial.configuration, trial=trial,
            status=status, reason=reason, started_at="2026-01-31T10:00:00+00:00", machine=dict(MACHINE),
            ranks=ranks if status == "ok" else [],
        )  # fmt: skip
        write_record(folder / "trials" / trial.id, record)
    return probe(**keys).configuration
