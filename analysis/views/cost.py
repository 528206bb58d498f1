"""The cost of a million samples, and the configurations that no other beats in both cost and time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.frames.configurations import known, over
from analysis.frames.results import Results, once
from analysis.frames.rows import ConfigurationRow
from analysis.show import notes, style
from analysis.show.layout import Listing
from analysis.show.style import EndLabel
from analysis.statistics import ranking
from analysis.text import number, with_interval
from analysis.views.view import Drawing, Gap, StudyTable, View

#     worker-hours = workers x 1e6 / samples a second / 3600        money = worker-hours x price of a worker-hour
#
# Both have the throughput's own interval between repeats, upside down. Without a price all workers are taken to cost
# the same: then the fewest worker-hours are the cheapest, in whatever currency.

SAMPLES = 1e6
NO_PRICE = "no price given"
FREE = "its workers cost nothing"
SEVERAL_PRICES = "its repeats were run at different prices"


@dataclass(frozen=True)
class Cost:
    """The cost of one configuration for a million samples: seconds and worker-hours, bounds None with fewer than 3
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
        """The interval of money where there is a price, else worker-hours."""
        if self.low is None or self.high is None:
            return None
        return self.low * (self.price or 1.0), self.high * (self.price or 1.0)


@once
def costs(results: Results) -> list[Cost]:
    """The cost of every configuration whose speed may be compared, in the order of results.configurations."""
    given = prices(results)
    return [
        _cost(row, *given.get(row["configuration"], (None, NO_PRICE)))
        for row in results.rows
        if row["n"] and not row["oversubscribed"] and not row["not_comparable"]
    ]


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


def _cost(row: ConfigurationRow, price: float | None, why: str) -> Cost:
    hours = int(row["workers"]) * SAMPLES / 3600
    speed, low, high = row["samples_per_second"], row["interval_low"], row["interval_high"]
    least, most = (hours / high, hours / low) if known(low) and low > 0 else (None, None)
    return Cost(row, SAMPLES / speed, hours / speed, least, most, price, why)


def cheapest(among: list[Cost]) -> Cost | None:
    """The one with the least money; where one has no price, the fewest worker-hours."""
    return min(among, key=_counted_in(among), default=None)


def _counted_in(among: Sequence[Cost]) -> Callable[[Cost], float]:
    """What these are compared by: money where all have a price, else worker-hours."""
    if all(cost.money is not None for cost in among):
        return lambda cost: cost.money or 0.0
    return lambda cost: cost.worker_hours


# One is beaten by another that is neither slower nor dearer, and better in one. Means decide who is on the front; who
# is beaten only by such as are too close to call (the 95 % interval of their ratio of throughputs holds 1) may be too.

ON, PERHAPS, BEATEN = "on the front", "perhaps on the front", "beaten"


@dataclass(frozen=True)
class CostPoint:
    """One configuration of a model: `cost` in money where all of its model have a price, else in worker-hours."""

    of: Cost
    cost: float
    place: str  # ON, PERHAPS or BEATEN
    by: str = ""  # the series and batch of one that beats it

    @property
    def row(self) -> ConfigurationRow:
        return self.of.row


def points(results: Results, model: str) -> list[CostPoint]:
    """Every configuration of a model, the fastest first; of one that does several kinds of work, the most frequent."""
    ours = {str(cost.row["configuration"]): cost for cost in costs(results) if cost.row["model"] == model}
    same = next(iter(ranking.by_work(candidate.row for candidate in ours.values())), [])
    return placed([ours[str(row["configuration"])] for row in same])


def placed(among: Sequence[Cost]) -> list[CostPoint]:
    """The fastest first. With a price for some only, all are counted in worker-hours."""
    cost_of = _counted_in(among)
    front: list[CostPoint] = []  # ascending seconds, descending cost
    made = []
    for candidate in sorted(among, key=lambda candidate: (candidate.seconds, cost_of(candidate))):
        point = CostPoint(candidate, cost_of(candidate), ON)
        if beating := [other for other in front if other.cost <= point.cost]:
            sure = next((other for other in beating if _surely(other, point)), None)
            point = replace(point, place=BEATEN if sure else PERHAPS, by=_name(sure or beating[-1]))
        else:
            front.append(point)
        made.append(point)
    return made


def _surely(better: CostPoint, worse: CostPoint) -> bool:
    """True where it is faster and cheaper beyond doubt: by more than what another number of workers costs."""
    dearer = (better.cost / better.of.worker_hours) / (worse.cost / worse.of.worker_hours)
    needed = max(1.0, dearer * int(better.row["workers"]) / int(worse.row["workers"]))
    ratio = over(better.row, worse.row)
    return ratio.low is not None and ratio.low > needed


def _of_all(results: Results) -> list[CostPoint]:
    """The points of all models."""
    return [point for model in results.models for point in points(results, model)]


def table(results: Results) -> pd.DataFrame:
    """A row for each configuration, for a million samples; money where there is a price."""
    rows = [
        {
            **{key: point.row[key] for key in notes.ABOUT},
            "seconds_per_million": point.of.seconds,
            "worker_hours_per_million": point.of.worker_hours,
            "worker_hours_low": point.of.low,
            "worker_hours_high": point.of.high,
            "price_per_worker_hour": point.of.price,
            "money_per_million": point.of.money,
            "pareto": point.place,
            "beaten_by": point.by,
            "why": point.of.why,
        }
        for point in _of_all(results)
    ]
    return pd.DataFrame(rows, dtype=object)


def listing(results: Results) -> Listing | None:
    """Every comparable configuration, the fastest of each model first."""
    every = _of_all(results)
    if not every:
        return None
    priced = any(point.of.price is not None for point in every)
    rows = [
        {
            "configuration": notes.series_and_batch(point.row, results)[0],
            "batch": str(point.row["batch"]),
            "time": f"{number(point.of.seconds)} s",
            "worker-hours": with_interval(point.of.worker_hours, point.of.low, point.of.high),
            **({"money": point.of.why if point.of.money is None else number(point.of.money)} if priced else {}),
            "cost against time": f"{point.place} by {point.by}" if point.place == BEATEN else point.place,
        }
        for point in every
    ]
    lines = [
        "For a million samples. Worker-hours: workers x time, with the 95 % interval between repeats. Beaten: another "
        "is faster and cheaper (p < 0.05); perhaps on the front: what beats it is too close to call (95 %).",
    ]
    if not priced:
        lines.append(
            "No price is set (price_per_worker_hour in a machine file): every worker is assumed to cost the same."
        )
    return notes.study_listing(results, "Cost of a million samples", rows, lines)


MOST_LABELS = 14
ROOM = 6  # names, beyond which lines to them would cross
UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
LOGARITHMIC_FROM = 8  # largest over smallest


def draw(results: Results) -> Figure | None:
    """The figure, or None where no model has two configurations to choose between, or where cost is time."""
    of_model = {model: points(results, model) for model in results.models}
    panels = [(model, ours) for model, ours in of_model.items() if _differ(ours)]
    if not panels:
        return None
    most = max(point.cost for _, ours in panels for point in ours)
    labels = [[_name(point) for point in _labelled(ours)] for _, ours in panels]
    return style.figure_of(
        f"Cost against time: {results.study.name}",
        [
            style.Panel(
                model,
                partial(_panel, ours=ours),
                x=f"{_unit(ours)[1]} for a million samples",
                y="money" if all(point.of.money is not None for point in ours) else "worker-hours",
                labels=named,
            )
            for (model, ours), named in zip(panels, labels, strict=True)
        ],
        _footnote(panels, results),
        panel_width=2.5,
        panel_height=max(2.1, (max(map(len, labels)) + 1) * 1.3 * style.GAP),
        left=style.left_of([f"{most:,.4g}0"]),
        below=0.46,
    )


def _differ(ours: Sequence[CostPoint]) -> bool:
    """True where a second costs more in one configuration than in another: otherwise the fastest is the cheapest."""
    rates = [point.cost / point.of.seconds for point in ours]
    return len(rates) > 1 and max(rates) > (1 + 1e-9) * min(rates)


def _panel(axis: Axes, layout: style.Layout, ours: Sequence[CostPoint]) -> None:
    blue = style.style_colours(1)[0]
    scale, _ = _unit(ours)
    times = [point.of.seconds / scale for point in ours]
    front = [point for point in ours if point.place == ON]
    x, y = [point.of.seconds / scale for point in front], [point.cost for point in front]
    axis.plot(x, y, color=blue, linewidth=1.0, drawstyle="steps-post", zorder=2)
    for place in (BEATEN, PERHAPS, ON):
        beaten, here = place == BEATEN, [index for index, point in enumerate(ours) if point.place == place]
        axis.plot(
            [times[index] for index in here],
            [ours[index].cost for index in here],
            marker="o",
            linestyle="",
            markeredgecolor=style.GREY if beaten else blue,
            markerfacecolor=blue if place == ON else "white",
            markersize=4.0 if beaten else 5.5,
            zorder=4 if place == ON else 3,
        )
    _scale(axis, "x", times)
    _scale(axis, "y", [point.cost for point in ours])
    ends = [EndLabel(point.of.seconds / scale, point.cost, _name(point), blue) for point in _labelled(ours)]
    style.end_labels(axis, ends, layout.panel_height)


def _unit(ours: Sequence[CostPoint]) -> tuple[float, str]:
    """(seconds, name) of the unit in which the slowest has at least 2."""
    slowest = max(point.of.seconds for point in ours)
    return next((unit for unit in UNITS if slowest >= 2 * unit[0]), UNITS[-1])


def _scale(axis: Axes, which: Literal["x", "y"], values: Sequence[float]) -> None:
    """From 0, unless that would press the best together."""
    least, most = min(values), max(values)
    logarithmic = most > LOGARITHMIC_FROM * least
    limits = (0.8 * least, 1.25 * most) if logarithmic else (0, 1.07 * most)
    style.value_axis(axis, which, logarithmic, limits, 6 if logarithmic else 5)


def _labelled(ours: Sequence[CostPoint]) -> list[CostPoint]:
    """The front, and who may be on it where names have room beside each other."""
    front, perhaps = ([point for point in ours if point.place == place] for place in (ON, PERHAPS))
    return (front + perhaps if len(front) + len(perhaps) <= ROOM else front)[:MOST_LABELS]


def _name(point: CostPoint) -> str:
    return f"{point.row['series']}, batch {point.row['batch']}"


def _footnote(panels: Sequence[tuple[str, Sequence[CostPoint]]], results: Results) -> list[str]:
    places = {point.place for _, ours in panels for point in ours}
    unpriced = any(point.of.price is None for _, ours in panels for point in ours)
    unnamed = any(sum(point.place != BEATEN for point in ours) > len(_labelled(ours)) for _, ours in panels)
    return notes.under_figure(
        results,
        "Of a million samples. Filled, with the line: nothing is both faster and cheaper.",
        (PERHAPS in places, "Hollow and blue: another may be faster and cheaper, which is not proven (95 %)."),
        (BEATEN in places, "Small and grey: another is faster and cheaper."),
        (unpriced, "No price is set: cost is in worker-hours."),
        (unnamed, "Not all are named; tables/cost has all."),
    )


VIEW = View(
    "What does speed cost?",
    (StudyTable("cost", listing, table, section="next"),),
    (
        Drawing(
            "pareto",
            draw,
            gap=Gap(
                "No figure of cost against time",
                "it needs two comparable configurations, in which a second does not cost the same",
            ),
        ),
    ),
)
