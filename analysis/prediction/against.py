"""Predictions beside what was measured: the error, and the noise below which no error could be seen.

Error: predicted / measured - 1 of the throughput. Noise: half of the 95 % interval of the measured speed-up over the
one-worker run that the prediction was made from (Welch, on the logarithm): both runs are in the error. A prediction
that uses measurements of several workers (contention.py) is made again for its check, without the one it is held
against.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from analysis.frames.baseline import same
from analysis.frames.configurations import over
from analysis.frames.row_types import ConfigurationRow
from analysis.frames.study import workers_text
from analysis.prediction.predict import Prediction
from analysis.prediction.probed import hosts_of
from analysis.prediction.targets import ALIKE, KNOBS

Row = ConfigurationRow
TOGETHER = ("framework", "controller", *KNOBS)


@dataclass(frozen=True)
class Checked:
    """One prediction that could be checked, on as many hosts as the run had. `noise` is None with fewer than 3 repeats
    on either side."""

    prediction: Prediction
    hosts: int
    configuration: str
    samples_per_second: float
    error: float
    noise: float | None

    @property
    def beyond_noise(self) -> float:
        """The error less the noise; all of it where the noise is unknown."""
        return max(0.0, abs(self.error) - (self.noise or 0.0))

    @property
    def as_shown(self) -> bool:
        """Whether the run's workers lay on hosts as those of the prediction do."""
        network = self.prediction.network
        return network.within is None or network.hosts(self.prediction.workers) == self.hosts


def check(
    predictions: Sequence[Prediction], rows: Sequence[Row], again: Callable[[Prediction, Row], Prediction]
) -> list[Checked]:
    """Each measurement among `rows` (configurations) of what was predicted for several workers, in their order.

    `again`: the same prediction, made without what this run says, and for its hosts.
    """
    by_name = {row["configuration"]: row for row in rows}
    checks = []
    for prediction in predictions:
        for measurement in measurements(prediction, rows):
            base, speed = by_name[prediction.target.alone.configuration], float(measurement["samples_per_second"])
            gain = over(measurement, base)
            noise = None if gain.high is None else gain.high / gain.mean - 1
            error = again(prediction, measurement).samples_per_second.mean / speed - 1
            checks.append(
                Checked(prediction, hosts_of(measurement), str(measurement["configuration"]), speed, error, noise)
            )
    return checks


def measurements(prediction: Prediction, rows: Sequence[Row]) -> list[Row]:
    """The configurations that were really run with these workers, one for each number of hosts."""
    way = prediction.target.row
    fits = [
        row
        for row in rows
        if prediction.workers > 1 and row["n"] and row["workers"] == prediction.workers
        if row["allreduce"] == prediction.allreduce
        if all(same(row.get(key), way.get(key)) for key in (*ALIKE, *TOGETHER))
    ]
    counts = [hosts_of(row) for row in fits]
    return [row for row, hosts in zip(fits, counts, strict=True) if counts.count(hosts) == 1]


def summary(checked: Sequence[Checked]) -> str:
    """`median error 3.1 % of 4 configurations, 0.4 % beyond the noise; 1 of 4 beyond it; worst: ...`; empty for none.

    A median near nothing says little of the configurations above it, so they are counted and the worst is named.
    """
    if not checked:
        return ""
    errors, beyond = median(abs(c.error) for c in checked), [c.beyond_noise for c in checked if c.noise is not None]
    count = len({c.configuration for c in checked})
    return (
        f"median error {100 * errors:.1f} % of {count} configuration{'s' * (count != 1)}"
        + (f", {100 * median(beyond):.1f} % beyond the noise" if beyond else "")
        + f"; {_counted(checked, count)}; worst: {_worst(checked)}"
    )


def _counted(checked: Sequence[Checked], count: int) -> str:
    """`3 of 8 beyond it`, of those whose noise is known; how many have none that is."""
    known = [c for c in checked if c.noise is not None]
    unknown = count - len({c.configuration for c in known})
    beyond = len({c.configuration for c in known if c.beyond_noise > 0})
    beyond_text = f"{beyond} of {count - unknown} beyond it" if known else ""
    without = f"the noise of {unknown} is unknown (fewer than 3 repeats)" if unknown else ""
    return ", ".join(filter(None, (beyond_text, without)))


def _worst(checked: Sequence[Checked]) -> str:
    """`horovod, batch 32, fp32, 2 workers, +41.0 % (28.4 points beyond the noise)`: of those with a noise, if any."""
    fit = [c for c in checked if c.noise is not None] or checked
    worst = max(fit, key=lambda c: (c.beyond_noise, abs(c.error)))
    forecast, models = worst.prediction, {c.prediction.target.row["model"] for c in checked}
    model = [str(forecast.target.row["model"])] if len(models) > 1 else []
    name = ", ".join([*model, forecast.target.label, forecast.allreduce, workers_text(forecast.workers)])
    points = 100 * worst.beyond_noise
    noise = (
        "noise unknown" if worst.noise is None else f"{points:.1f} points beyond the noise" if points else "within it"
    )
    return f"{name}, {100 * worst.error:+.1f} % ({noise})"
