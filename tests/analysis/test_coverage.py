"""How often the intervals of configurations.csv hold the truth: throughput, speed-up, efficiency, from end to end.

Simulated studies with known truth through frames.configurations. How often, and what may be seen: simulations.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from planted import MACHINE, Planted, record
from simulations import Seen, times

from analysis.frames import configurations, trials
from analysis.frames.study import StudyInfo
from scaling_study.stats.intervals import ratio, repeats_for

PAIRS, AT_ONCE = times(400, 10_000), 40
TRUE, SPEEDUP, WORKERS = 400.0, 1.62, 2
STUDY = StudyInfo(schema=1, study="simulated", baseline={"framework": "single"}, machine=MACHINE)
LOW, HIGH = 0.93, 0.97


def simulated(noises: tuple[float, float], planned: int, most: int) -> pd.DataFrame:
    """configurations.COLUMNS of PAIRS pairs of one process and two workers.

    With `most` above `planned`, repeats are added by their spread as the sweep does it (repeats_for, ±2 %).
    """
    rng = np.random.default_rng(planned + most)
    sides = (Planted("single", speed=TRUE), Planted("horovod", workers=WORKERS, allreduce="fp32", speed=SPEEDUP * TRUE))
    rows = [trials.row(record(replace(one, steps=2), one.trial(), one.speed, "simulated", rng)) for one in sides]
    made = []
    for start in range(0, PAIRS, AT_ONCE):
        frame = trials.frame(
            row | {"model": f"model{pair}", "configuration": f"{side}-{pair}", "repeat": repeat, "parity": "passed",
                   "samples_per_second": speed, "planned_repeats": planned}
            for pair in range(start, start + AT_ONCE)
            for side, row, noise in zip("ab", rows, noises, strict=True)
            for repeat, speed in enumerate(repeats(rng, float(row["samples_per_second"]), noise, planned, most), 1)
        )  # fmt: skip
        made.append(configurations.summarise(frame, STUDY))
    return pd.concat(made)


def repeats(rng: np.random.Generator, true: float, noise: float, planned: int, most: int) -> NDArray[np.float64]:
    values = rng.normal(true, true * noise, most)
    return values[: min(repeats_for(values[:planned], 0.02), most)] if most > planned else values[:planned]


def covered(rows: pd.DataFrame, name: str, truth: float) -> Seen:
    held = (rows[f"{name}_low"] <= truth) & (truth <= rows[f"{name}_high"])
    return Seen(int(held.sum()), len(held))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noises", "planned", "most"),
    [
        pytest.param((0.01, 0.01), 3, 3, marks=pytest.mark.long),
        ((0.01, 0.03), 5, 5),
        ((0.005, 0.005), 3, 10),  # the default: 3 repeats planned, at most 10
        pytest.param((0.01, 0.01), 3, 10, marks=pytest.mark.long),
        pytest.param((0.02, 0.02), 3, 10, marks=pytest.mark.long),
        ((0.01, 0.02), 3, 10),
        ((0.05, 0.05), 5, 10),
    ],
)
def test_intervals_hold_the_truth_in_93_to_97_percent(noises: tuple[float, float], planned: int, most: int) -> None:
    rows = simulated(noises, planned, most)
    single, two = rows[rows.framework == "single"], rows[rows.framework == "horovod"]
    assert len(single) == len(two) == PAIRS
    true = float(SPEEDUP * TRUE)
    shares = {
        "throughput": (covered(single, "interval", TRUE), covered(two, "interval", true)),
        "speed-up": (covered(two, "speedup", SPEEDUP),),
        "efficiency": (covered(two, "efficiency", SPEEDUP / WORKERS),),
    }
    print(
        f"\nnoise {noises}, {planned} to {most} repeats:",
        {name: [str(one) for one in each] for name, each in shares.items()},
    )
    assert all(one.keeps(LOW, HIGH) for each in shares.values() for one in each)


def test_using_every_added_repeat_for_the_spread_would_cover_too_little() -> None:
    """Why a ratio, like a mean, rests on the spread of the repeats that were planned (Stein's two stages)."""
    rng = np.random.default_rng(2)
    held, pairs = {None: 0, 3: 0}, times(2000, 40_000)
    for _ in range(pairs):
        above, below = (repeats(rng, true, 0.02, 3, 10) for true in (SPEEDUP, 1.0))
        for first in held:
            gain = ratio(above, below, first=(first, first))
            assert gain.low is not None and gain.high is not None
            held[first] += gain.low <= SPEEDUP <= gain.high
    assert not Seen(held[None], pairs).keeps(LOW, HIGH)
    assert Seen(held[3], pairs).keeps(LOW, HIGH)
