"""What a million samples cost: worker-hours, and money where a machine file gave the price of one.

    worker-hours = workers x 1e6 / samples a second / 3600        money = worker-hours x price of a worker-hour

Both have the throughput's own interval between repeats, upside down. Without a price all workers are taken to cost the
same: then the fewest worker-hours are the cheapest, in whatever currency.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from analysis.frames.baseline import known
from analysis.frames.cache import once
from analysis.frames.results import Results
from analysis.frames.row_types import ConfigurationRow
from analysis.frames.rows import as_rows

SAMPLES = 1e6
NO_PRICE = "no price given"
FREE = "its workers cost nothing"
SEVERAL_PRICES = "its repeats were run at different prices"


@dataclass(frozen=True)
class Cost:
    """Of one configuration. `seconds`: for a million samples; worker-hours likewise, bounds None with fewer than 3
    repeats. `price`: of a worker-hour; None with the reason in `why`."""

    row: ConfigurationRow
    seconds: float
    worker_hours: float
    low: float | None
    high: float | None
    price: float | None
    why: str = ""

    @property
    def money(self) -> float | None:
        """For a million samples."""
        return None if self.price is None else self.price * self.worker_hours

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Of what cost() says: money where there is a price, else worker-hours."""
        if self.low is None or self.high is None:
            return None
        return self.low * (self.price or 1.0), self.high * (self.price or 1.0)


def costs(results: Results, price: float | None = None) -> list[Cost]:
    """Of every configuration whose speed may be compared, in the order of results.configurations.

    `price` of a worker-hour: instead of what the records say.
    """
    return _recorded(results) if price is None else _all(results, price)


@once
def _recorded(results: Results) -> list[Cost]:
    return _all(results, None)


def prices(results: Results) -> dict[str, tuple[float | None, str]]:
    """Configuration -> the price of its worker-hour, as its machine file gave it; None with the reason."""
    given = results.details.ranks.groupby("configuration").price_per_worker_hour.agg(["min", "max"])
    return {str(name): _price(low, high) for name, low, high in given.itertuples(name=None)}


def _price(low: Any, high: Any) -> tuple[float | None, str]:
    if not known(high):
        return None, NO_PRICE
    if low != high:
        return None, SEVERAL_PRICES
    return (float(high), "") if high else (None, FREE)  # as of one's own machine: money then tells nothing apart


def _all(results: Results, price: float | None) -> list[Cost]:
    given = prices(results) if price is None else {}
    rows = results.configurations
    fit = rows[(rows.n > 0) & ~rows.oversubscribed.fillna(False) & (rows.not_comparable.fillna("") == "")]
    return [
        _cost(row, *(given.get(str(row["configuration"]), (None, NO_PRICE)) if price is None else _price(price, price)))
        for row in as_rows(fit, ConfigurationRow)
    ]


def _cost(row: ConfigurationRow, price: float | None, why: str) -> Cost:
    hours = int(row["workers"]) * SAMPLES / 3600
    speed, low, high = row["samples_per_second"], row["interval_low"], row["interval_high"]
    bounded = known(low) and low > 0
    return Cost(
        row, SAMPLES / speed, hours / speed, hours / high if bounded else None, hours / low if bounded else None, price,
        why,
    )  # fmt: skip


def cheapest(among: list[Cost]) -> Cost | None:
    """The one with the least money; where one has no price, the fewest worker-hours."""
    if any(cost.money is None for cost in among):
        return min(among, key=lambda cost: cost.worker_hours, default=None)
    return min(among, key=lambda cost: cost.money or 0.0, default=None)
