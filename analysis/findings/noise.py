"""The machine itself: how much two runs of one thing differ, and whether it became slower or faster over the sweep.

floor    relative spread between repeats: of the sentinel, the one configuration that is repeated through the whole
         sweep (scaling_study/study/sentinel.py), or pooled over all where the study has none. Said to be too much only
         where its whole interval is above the study's target
drift    do later repeats of a configuration tend to be slower, or faster, than its earlier ones? Kendall's test,
         configuration by configuration and added up (Hirsch, Slack and Smith, Water Resour. Res. 18, 1982, whose
         seasons our configurations are). It asks for the order within each only, so nothing is assumed of how
         noisy they are. Its null distribution is worked out, not approximated: that of one configuration with n
         repeats is that of the inversions of n things, that of all is their convolution.
"""

from __future__ import annotations

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
from analysis.frames.results import Results

FALSE_ALARMS = 0.02  # of studies without drift; the test is exact, so at most so many
FEWEST = 3  # degrees of freedom; below, a spread says nothing
MOST_EXACT = 4_000  # pairs; beyond, the normal limit is exact enough
COLUMNS = ("configuration", "repeat", "at", "hours", "place", "relative", "sentinel")
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
    hours: float

    @property
    def found(self) -> bool:
        return self.p <= FALSE_ALARMS


def noise_and_drift(evidence: Evidence) -> Iterator[Finding]:
    target, runs = evidence.results.study.target_interval, table(evidence.results)
    least, moved = floor(runs), drift(runs)
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
    made = pd.DataFrame(
        {
            "configuration": ours.configuration.astype(object),
            "repeat": ours["repeat"],
            "at": at,
            "logs": np.log(ours.samples_per_second.to_numpy(float)),
        }
    )
    made = made[at.notna()].sort_values(["at", "repeat"], kind="stable", ignore_index=True)
    logs = made.groupby("configuration").logs
    made["relative"] = np.expm1(made.logs - logs.transform("mean"))
    made = made[logs.transform("size") > 1].reset_index(drop=True)
    made["hours"] = (made["at"] - made["at"].min()).dt.total_seconds() / 3600
    made["place"] = np.arange(len(made)) / max(1, len(made) - 1)
    made["sentinel"] = made.configuration == (results.study.sentinel or "")
    shown: pd.DataFrame = made[list(COLUMNS)]
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
    """Over all configurations of `runs` (COLUMNS); None where no order of their repeats could be surprising."""
    indices = runs.groupby("configuration", sort=False).indices.values()
    relative, place = runs.relative.to_numpy(float), runs.place.to_numpy(float)
    series = [relative[at] for at in indices]
    if 2 * _least_p([len(one) for one in series]) > FALSE_ALARMS:
        return None
    total = _slope([place[at] for at in indices], series)
    return Drift(total, trend(series), len(runs), len(series), float(runs.hours.max()))


def trend(series: Sequence[Values]) -> float:
    """The two-sided p-value of a common trend; each series in the order of time, any scale of its own."""
    lengths = [len(one) for one in series]
    pairs = sum(n * (n - 1) // 2 for n in lengths)
    falls = sum(int((one[:, None] > one[None, :])[np.triu_indices(len(one), 1)].sum()) for one in series)
    if pairs > MOST_EXACT:
        variance = sum(n * (n - 1) * (2 * n + 5) for n in lengths) / 18
        score = abs(2 * falls - pairs)
        return math.erfc(max(0.0, score - 1) / math.sqrt(2 * variance))
    chances = _chances(tuple(sorted(lengths)))
    tail = chances[: min(falls, pairs - falls) + 1].sum()
    return float(min(1.0, 2 * tail))


def _slope(places: Sequence[Values], series: Sequence[Values]) -> float:
    """The median slope over all pairs within a configuration (Theil and Sen), from the first trial to the last."""
    slopes = [
        (y[later] - y[earlier]) / (x[later] - x[earlier])
        for x, y in zip(places, map(np.log1p, series), strict=True)
        for earlier, later in [np.triu_indices(len(x), 1)]
    ]
    return float(np.expm1(np.median(np.concatenate(slopes))))


@cache
def _chances(lengths: tuple[int, ...]) -> Values:
    """How likely each number of falls is, over series of these lengths, where every order is as likely as another."""
    made: Values = np.ones(1)
    for n in lengths:
        for size in range(2, n + 1):  # the inversions of n things: one more thing adds 0 to size - 1, evenly
            made = np.convolve(made, np.full(size, 1 / size))
    return made


def _least_p(lengths: Sequence[int]) -> float:
    """How likely the most surprising order of all is."""
    return math.exp(-sum(math.lgamma(n + 1) for n in lengths))
