"""What next, as tables: scaling laws, predictions for more workers, the knee, the cost, what to measure."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.frames.results import Results
from analysis.scaling import knee, pareto
from analysis.scaling.extrapolate import Extrapolated, extrapolations
from analysis.scaling.fit import Comparison, comparisons
from analysis.scaling.frame import MOST_FAMILIES, extrapolated
from analysis.scaling.knee import SHARE, Returned
from analysis.scaling.next import suggestions
from analysis.tables import notes
from analysis.tables.layout import Listing
from analysis.text.number_formats import number

MOST_DECLINED = 6  # sentences; the rest are counted


def named(results: Results) -> dict[str, Listing]:
    """File name -> table; those that this study has nothing to say of are left out."""
    makers = {
        "scaling-laws": laws(results), "extrapolation": predictions(results), "returns": returns(results),
        "cost": cost(results), "next": next_ones(results),
    }  # fmt: skip
    return {name: listing for name, listing in makers.items() if listing is not None}


def listing(results: Results) -> list[Listing]:
    """All of them, in the order in which they are read."""
    return list(named(results).values())


def declined(results: Results) -> list[str]:
    """Why families have no law: a sentence for each reason, with the first that it is true of."""
    series_of: dict[str, list[str]] = {}
    for comparison in comparisons(results):
        if comparison.why:
            series_of.setdefault(comparison.why, []).append(f"{comparison.family.model}, {comparison.family.label}")
    lines = [
        f"No scaling law of {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {why}."
        for why, names in series_of.items()
    ]
    more = len(lines) - MOST_DECLINED
    return lines[:MOST_DECLINED] + ([f"{more} more reasons: see scaling-laws.csv."] if more > 0 else [])


def laws(results: Results) -> Listing | None:
    """Every law of every family that has four worker counts; without any, the reasons."""
    every = comparisons(results)
    if not every:
        return None
    rows = []
    for comparison in (comparison for comparison in every if isinstance(comparison, Comparison)):
        for place, fit in enumerate(comparison.fits):
            name = f"{comparison.family.model}, {comparison.family.label}" if place == 0 else ""
            verdict = "best" if place == 0 else "tied (95 %)" if place < comparison.alike else ""
            errors = (f"{100 * fit.error:.1f} %", f"{100 * fit.held_out[-1]:+.1f} %", f"{100 * fit.misfit:.1f} %")
            counts = ", ".join(f"{count:.0f}" for count in comparison.family.workers) if place == 0 else ""
            rows.append((name, counts, fit.law.name, verdict, *errors, fit.formula))
    lines = [
        "Worker-seconds of a sample as a sum of terms in the worker count n, fitted to relative errors with no "
        "coefficient below zero. Held-out error: each count in turn predicted from the others (mean of its size; that "
        "of the largest count, which is an extrapolation). Misfit: what residuals have beyond the noise.",
        "Tied: a held-out error larger by no more than the noise of a measured mean (95 %). alpha-beta: "
        "compute, and an allreduce of latency and bytes. USL: universal scalability law. Extra-P: one term "
        "n^i log2(n)^j, chosen anew for each fit.",
        *declined(results),
    ]
    header = (
        "family",
        "workers",
        "law",
        "verdict",
        "held-out error",
        "at the largest",
        "misfit",
        "worker-seconds of a sample",
    )
    return _listing("Scaling laws", header, rows, lines, results)


def predictions(results: Results) -> Listing | None:
    """Throughput and efficiency at counts that were not run."""
    points = extrapolated(results)
    rows = [
        (f"{law.family.model}, {law.family.label}", f"{at.workers:,}", law.best.law.name, _bounded(at), _efficiency(at))
        for law, every, _ in points for at in every
    ]  # fmt: skip
    if not rows:
        return None
    lines = [
        "By the best law. Brackets: 95 %, over the tied laws, the spread between repeats and the held-out errors. An "
        "extrapolation: it does not know of a second host or a saturated switch.",
        "`python -m analysis predict` predicts independently: it simulates one worker's steps on a network, gradient "
        "by gradient. The two should agree.",
    ]
    if len(extrapolations(results)) > MOST_FAMILIES:
        lines.append(f"The first {MOST_FAMILIES} families.")
    header = ("family", "workers", "law", "samples/s", "efficiency")
    return _listing("Predicted worker counts", header, rows, lines, results)


def returns(results: Results) -> Listing | None:
    """What each further worker returned as measured, and the knee where there is a law."""
    every = comparisons(results)
    knees = {id(extrapolation.family): turn for extrapolation, _, turn in extrapolated(results)}
    rows = []
    for extrapolation in every:
        steps = knee.returns(extrapolation.family)
        if steps or id(extrapolation.family) in knees:
            turn = knees.get(id(extrapolation.family))
            text = turn.text if turn else "no law"
            rows.append(
                (f"{extrapolation.family.model}, {extrapolation.family.label}", "; ".join(map(_step, steps)), text)
            )
    if not rows:
        return None
    lines = [
        "Marginal efficiency: the throughput that each worker between two measured counts added, as a share of that of "
        f"one worker, with its 95 % interval. Knee: the last count with a marginal efficiency of at least "
        f"{100 * SHARE:.0f} %, by the tied laws.",
        *declined(results),
    ]
    header = ("family", "marginal efficiency", f"knee at {100 * SHARE:.0f} %")
    return _listing("Marginal efficiency of workers", header, rows, lines, results)


def cost(results: Results) -> Listing | None:
    """Every comparable configuration, the fastest of each model first."""
    rows = []
    priced, several = False, len(results.models) > 1
    for model in results.models:
        for point in pareto.points(results, model):
            costing = point.of
            priced |= costing.price is not None
            hours = number(costing.worker_hours) + (
                "" if costing.low is None else f" [{number(costing.low)}, {number(costing.high or 0.0)}]"
            )
            money = number(costing.money) if costing.money is not None else costing.why
            place = point.place + (f" by {point.by}" if point.by and point.place == pareto.BEATEN else "")
            name = f"{model}, {costing.row['series']}" if several else str(costing.row["series"])
            rows.append((name, str(costing.row["batch"]), f"{number(costing.seconds)} s", hours, money, place))
    if not rows:
        return None
    lines = [
        "For a million samples. Worker-hours: workers x time, with the 95 % interval between repeats. Beaten: another "
        "is faster and cheaper (p < 0.05); perhaps on the front: what beats it is tied with it (95 %).",
    ]
    if not priced:
        lines.append(
            "No price is set (price_per_worker_hour in a machine file): every worker is assumed to cost the same."
        )
    header = ("configuration", "batch", "time", "worker-hours", "money", "cost against time")
    return _listing("Cost of a million samples", header, rows, lines, results)


def next_ones(results: Results) -> Listing | None:
    """What is most worth measuring."""
    suggested = suggestions(results, comparisons(results))
    if not suggested:
        return None
    lines = [
        "First what decides the winner of a model, if at most 30 repeats do; then the worker count that reduces most "
        "the uncertainty at four times the largest count measured; where no family has four counts, the next count.",
    ]
    rows = [(suggestion.rule, suggestion.sentence) for suggestion in suggested]
    return _listing("Most worth measuring next", ("what for", "what"), rows, lines, results)


def _bounded(at: Extrapolated) -> str:
    bounds = "" if at.low is None or at.high is None else f" [{number(at.low)}, {number(at.high)}]"
    return number(at.samples_per_second) + bounds


def _efficiency(at: Extrapolated) -> str:
    low, high = at.efficiency_low, at.efficiency_high
    bounds = "" if low is None or high is None else f" [{100 * low:.0f}, {100 * high:.0f}]"
    return f"{100 * at.efficiency:.0f} %{bounds}"


def _step(step: Returned) -> str:
    bounds = "" if step.low is None or step.high is None else f" [{100 * step.low:.0f}, {100 * step.high:.0f}]"
    return f"{step.before} to {step.after}: {100 * step.share:.0f} %{bounds}"


def _listing(
    title: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]], lines: list[str], results: Results
) -> Listing:
    below = (*notes.how_it_differs(results.configurations), *lines, f"{notes.source(results)}.")
    return Listing(f"{title} ({results.heading})", header, tuple(rows), below)
