"""The machine itself: how much two runs of one thing differ, and whether it became slower or faster over the sweep.

floor    relative spread between repeats: of the sentinel, the one configuration that is repeated through the whole
         sweep (scaling_study/study/sentinel.py), or pooled over all where the study has none. Said to be too much only
         where its whole interval is above the study's target
drift    do later repeats of a configuration tend to be slower, or faster, than its earlier ones? Kendall's S,
         configuration by configuration and added up (Hirsch, Slack and Smith, Water Resour. Res. 18, 1982, whose
         seasons our configurations are). Only the order within each counts, so nothing is assumed of how noisy they
         are. Runs close in time are alike, so the sweep is cut into blocks of time, which are taken to be
         exchangeable where nothing drifts: the null distribution is that of all orders of the blocks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.findings.evidence import Evidence
from analysis.findings.finding import DOUBT, NOTE, Finding
from analysis.frames import launches
from analysis.frames.results import Results
from scaling_study.stats.launches import together

FALSE_ALARMS = 0.02  # of studies without drift; the test is exact, so at most so many
FEWEST = 3  # degrees of freedom; below, a spread says nothing
BLOCK = 4  # runs of a block, at least: neighbours in time correlate, blocks of so many hardly
FEWEST_BLOCKS, MOST_BLOCKS = 5, 10  # below, no order of them is rarer than FALSE_ALARMS: 2 / 4! = 0.08
MOST_EXACT = 7  # blocks, of which all orders are counted; beyond, DRAWS of them are drawn, from a fixed seed
DRAWS = 20_000
COLUMNS = ("configuration", "repeat", "launch", "at", "hours", "place", "relative", "sentinel")
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Floor:
    """The relative standard deviation between repeats, with its 95 % interval (chi-squared)."""

    spread: float
    low: float
    high: float
    repeats: int
    configurations: int
    sentinel: bool  # of the sentinel alone, else pooled

    def smallest(self, repeats: int) -> float:
        """The least relative difference that two configurations of so many repeats each show at 95 %."""
        from scipy.special import stdtrit

        return float(stdtrit(2 * (repeats - 1), 0.975)) * self.spread * math.sqrt(2 / repeats)


@dataclass(frozen=True)
class Drift:
    """From the first to the last trial (`total`: -0.03 is 3 % slower), and how often chance alone shows as much."""

    total: float
    p: float
    trials: int
    configurations: int
    blocks: int
    hours: float

    @property
    def found(self) -> bool:
        return self.p <= FALSE_ALARMS


def noise_and_drift(evidence: Evidence) -> Iterator[Finding]:
    target, runs = evidence.results.study.target_interval, table(evidence.results)
    # Repeats that shared launches differ by what came over all at once, which cancels in their ratios.
    shared = [row["configuration"] for row in evidence.rows if launches.names(row)]
    least, moved = floor(runs[~runs.configuration.isin(shared)]), drift(runs)
    if moved is not None and moved.found:
        small = abs(moved.total) <= target
        text = (
            f"Later repeats of a configuration tend to be {'slower' if moved.total < 0 else 'faster'}: "
            f"{100 * moved.total:+.1f} % from the first to the last of {moved.trials} trials (p = {moved.p:.2g}). "
            "Repeats are interleaved, so it favours none but widens every interval: let the machine settle, and run "
            "again."
        )
        yield Finding("drift", "The machine drifts", text, NOTE if small else DOUBT)
    if least is not None and least.low > target:
        repeats = int(median(int(row["n"]) for row in evidence.rows if row["n"] > 1))
        text = (
            f"Two runs of one configuration differ by {100 * least.spread:.1f} % (one standard deviation, "
            f"{100 * least.low:.1f} to {100 * least.high:.1f}), more than the target of ±{100 * target:.2g} %. With "
            f"{repeats} repeats a side take differences below {100 * least.smallest(repeats):.0f} % for noise, or "
            "repeat more often."
        )
        yield Finding("noise", "A noisy machine", text, NOTE)


def table(results: Results) -> pd.DataFrame:
    """COLUMNS, a row for each trial that is ok of a configuration with two or more, in the order in which they ran.

    `hours` since the first, `place` in the order (0 to 1), `relative`: samples per second over the geometric mean of
    its configuration, less 1.
    """
    runs = Evidence(results).runs
    known = runs.configuration.isin(results.configurations.configuration)
    ours = runs[(runs.status == "ok") & runs.samples_per_second.notna() & known]
    at = pd.to_datetime(ours.started_at, utc=True, errors="coerce", format="ISO8601")
    runs_in_order = pd.DataFrame(
        {
            "configuration": ours.configuration.astype(object),
            "repeat": ours["repeat"],
            "launch": [together(str(launch or "")) for launch in ours.launch.fillna("")],
            "at": at,
            "logs": np.log(ours.samples_per_second.to_numpy(float)),
        }
    )
    runs_in_order = runs_in_order[at.notna()].sort_values(["at", "repeat"], kind="stable", ignore_index=True)
    logs = runs_in_order.groupby("configuration").logs
    runs_in_order["relative"] = np.expm1(runs_in_order.logs - logs.transform("mean"))
    runs_in_order = runs_in_order[logs.transform("size") > 1].reset_index(drop=True)
    runs_in_order["hours"] = (runs_in_order["at"] - runs_in_order["at"].min()).dt.total_seconds() / 3600
    runs_in_order["place"] = np.arange(len(runs_in_order)) / max(1, len(runs_in_order) - 1)
    runs_in_order["sentinel"] = runs_in_order.configuration == (results.study.sentinel or "")
    shown: pd.DataFrame = runs_in_order[list(COLUMNS)]
    return shown


def floor(runs: pd.DataFrame) -> Floor | None:
    """Of the sentinel where it has enough repeats, else pooled; None where there are too few for either.

    `runs`: COLUMNS.
    """
    from scipy.special import chdtri

    alone = runs[runs.sentinel]
    single = len(alone) > FEWEST
    ours = alone if single else runs
    configurations = ours.configuration.nunique()
    freedom = len(ours) - configurations
    if freedom < FEWEST:
        return None
    squares = float((np.log1p(ours.relative.to_numpy(float)) ** 2).sum())
    low, high = (math.sqrt(squares / float(chdtri(freedom, tail))) for tail in (0.025, 0.975))
    return Floor(math.sqrt(squares / freedom), low, high, len(ours), configurations, single)


def drift(runs: pd.DataFrame) -> Drift | None:
    """Over all configurations of `runs` (COLUMNS, in the order of time); None for fewer than FEWEST_BLOCKS blocks."""
    block = blocks(list(runs.launch))
    if not len(block) or block[-1] + 1 < FEWEST_BLOCKS:
        return None
    indices = runs.groupby("configuration", sort=False).indices.values()
    relative, place = runs.relative.to_numpy(float), runs.place.to_numpy(float)
    series = [relative[at] for at in indices]
    total = _slope([place[at] for at in indices], series)
    p = trend(series, [block[at] for at in indices])
    return Drift(total, p, len(runs), len(series), int(block[-1]) + 1, float(runs.hours.max()))


def blocks(shared: Sequence[str]) -> NDArray[np.intp]:
    """(n,) of each run, in the order of time, the number of its block, from 0: as many as there may be. Those that
    `shared` a launch, by its name, are of one block: what came over it is in all of them."""
    count, firsts = len(shared), dict[str, int]()
    number = np.arange(count) * min(MOST_BLOCKS, count // BLOCK) // max(1, count)
    whole = [number[firsts.setdefault(name, at) if name else at] for at, name in enumerate(shared)]
    return np.unique(np.array(whole, dtype=np.intp), return_inverse=True)[1].astype(np.intp)


def trend(series: Sequence[Values], blocks: Sequence[NDArray[np.intp]]) -> float:
    """The two-sided p-value of a common trend over blocks of time.

    Each series in the order of time and of any scale of its own, with the block (0, 1, ...) of each of its values.
    """
    count = 1 + max(int(own.max()) for own in blocks)
    rises = np.zeros((count, count))  # [a, b]: of values in block b over those in block a
    for values, own in zip(series, blocks, strict=True):
        np.add.at(rises, (own[:, None], own[None, :]), np.sign(values[None, :] - values[:, None]))
    orders = _orders(count)
    earlier, later = np.triu_indices(count, 1)
    scores = rises[orders[:, earlier], orders[:, later]].sum(axis=1)
    return float(np.mean(np.abs(scores) >= abs(scores[0])))  # the first is the order that was


@cache
def _orders(count: int) -> NDArray[np.intp]:
    """(k, count) orders of so many blocks: all of them, or DRAWS and the one that was, which is the first."""
    if count <= MOST_EXACT:
        return np.array(list(itertools.permutations(range(count))))
    rng = np.random.default_rng(count)
    return np.array([np.arange(count), *(rng.permutation(count) for _ in range(DRAWS))])


def _slope(places: Sequence[Values], series: Sequence[Values]) -> float:
    """The median slope over all pairs within a configuration (Theil and Sen), from the first trial to the last."""
    slopes = [
        (y[later] - y[earlier]) / (x[later] - x[earlier])
        for x, y in zip(places, map(np.log1p, series), strict=True)
        for earlier, later in [np.triu_indices(len(x), 1)]
    ]
    return float(np.expm1(np.median(np.concatenate(slopes))))
