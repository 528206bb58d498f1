"""The table of predictions, and under it their assumptions."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.frames.results import Results
from analysis.prediction import against
from analysis.prediction.against import Checked
from analysis.prediction.forecast import Forecast
from analysis.prediction.fusion import BUCKETS, CYCLES, MIB, Fusion
from analysis.prediction.network import Link, Network
from analysis.prediction.predict import Bounds, Prediction
from analysis.tables import notes
from analysis.tables.layout import Listing
from analysis.text.number_formats import milliseconds, number

HEADER = (
    *("configuration", "allreduce", "algorithm", "workers", "samples/s", "efficiency", "step ms"),
    *("exposed ms", "waiting ms", "on the wire ms"),
)
BRACKETS = "Brackets: 95 %"  # where the table shows them; the terminal's does not (commands/predict.py)
INTERVALS = (
    ", from the spread between the repeats of the one-worker run and the fit of the network. They do not include the "
    "error of the model."
)
MEASURED = ("measured samples/s", "error", "noise")


def listing(forecast: Forecast, results: Results) -> Listing:
    """A row each, in the order given; with columns of what was measured where anything was."""
    known = {id(check.prediction): check for check in forecast.checked if check.as_shown}
    models = {prediction.target.row["model"] for prediction in forecast.predictions}
    rows = []
    for prediction in forecast.predictions:
        name = (f"{prediction.target.row['model']}, " if len(models) > 1 else "") + prediction.target.label
        cells = [name, prediction.allreduce, prediction.algorithm.replace("_", " and "), f"{prediction.workers:,}"]
        cells += [
            bounded(prediction.samples_per_second),
            bounded(prediction.efficiency, 100, " %"),
            milliseconds(prediction.step_seconds),
        ]
        cells += [bounded(prediction.exposed_seconds, 1000), milliseconds(prediction.waiting_seconds)]
        cells += [
            milliseconds(prediction.communication_seconds),
            *(_measured(known.get(id(prediction))) if known else ()),
        ]
        rows.append(tuple(cells))
    header = (*HEADER, *(MEASURED if known else ()))
    lines = (*sentences(forecast), f"{notes.source(results)}.")
    return Listing(f"Predicted throughput ({results.heading})", header, tuple(rows), lines)


def sentences(forecast: Forecast) -> list[str]:
    """What every number of the table rests on."""
    predictions = forecast.predictions
    targets = list({id(prediction.target): prediction.target for prediction in predictions}.values())
    lines = networks(predictions)
    lines += [f"{text}: {', '.join(sorted(names))}." for text, names in _fusions(predictions).items()]
    lines.append(
        "Weak scaling: the batch per worker is constant. Exposed: what communication adds to a step; waiting: for the "
        "slowest worker; on the wire: seconds of a step with a collective in flight."
    )
    if any(target.alone.repeats >= 3 for target in targets):
        lines.append(f"{BRACKETS}{INTERVALS}")
    if few := [target.label for target in targets if target.alone.repeats < 3]:
        lines.append(f"No interval with fewer than 3 repeats of one worker: {'; '.join(dict.fromkeys(few))}.")
    if guessed := [target.label for target in targets if not target.alone.noted]:
        lines.append(
            "**Gradient arrival times were not recorded** (older records): assumed evenly spread over backward. "
            f"{'; '.join(dict.fromkeys(guessed))}."
        )
    unsaid = [f"Not predicted: {sentence}." for sentence in forecast.wrong]
    return lines + _computing(forecast) + _checks(forecast.checked) + unsaid


def networks(predictions: Sequence[Prediction]) -> list[str]:
    """`Network: given. Between workers 5 us and 25 Gbit/s.`, with whose it is where there are several."""
    whose: dict[str, dict[str, None]] = {}
    for prediction in predictions:
        text = f"{prediction.network.source}. {network_text(prediction.network)}"
        whose.setdefault(text, {})[str(prediction.target.row["framework"])] = None
    several = len(whose) > 1
    return [
        f"Network of {', '.join(names)}: {text}." if several else f"Network: {text}." for text, names in whose.items()
    ]


def _computing(forecast: Forecast) -> list[str]:
    lines = [
        "Stragglers: steps of different workers vary independently, as one worker's did from step to step (normal)."
        if forecast.straggle
        else "Stragglers are left out: every worker takes the mean step."
    ]
    if forecast.crowding != 1.0:
        where = f", by {forecast.crowding_pairs} pair(s) of runs in this study" if forecast.crowding_pairs else ""
        lines.append(f"Workers that share a host compute {forecast.crowding:.2f} x as long as one alone{where}.")
    if any(
        prediction.target.row["device"] == "cpu" and not prediction.network.busy for prediction in forecast.predictions
    ):
        lines.append(
            "Communication is assumed to use no computing cores. On a CPU it does: a network probe in the study "
            "measures how much."
        )
    return lines


def _checks(checked: Sequence[Checked]) -> list[str]:
    if not checked:
        return []
    by_algorithm = {check.prediction.algorithm: 0 for check in checked}
    lines = [
        f"{name.replace('_', ' and ')}: {against.summary([c for c in checked if c.prediction.algorithm == name])}"
        for name in by_algorithm
    ]
    return [
        f"Against measurements of this study: {'; '.join(lines)}. No prediction uses the run that it is compared with. "
        "Noise: half of the 95 % interval of the measured speed-up over one worker."
    ]


def _fusions(predictions: Sequence[Prediction]) -> dict[str, set[str]]:
    """How gradients are fused, in words -> of whom."""
    fusions: dict[str, set[str]] = {}
    for prediction in predictions:
        fusions.setdefault(fusion_text(prediction.target.fusion), set()).add(str(prediction.target.row["framework"]))
    return fusions


def fusion_text(fusion: Fusion) -> str:
    """`Fused in cycles of 1 ms, at most 128 MiB`."""
    most = f"{fusion.most_bytes / MIB:g} MiB"
    if fusion.kind == CYCLES:
        return f"Fused in cycles of {1000 * fusion.cycle_seconds:g} ms, at most {most} a call"
    if fusion.kind == BUCKETS:
        first = f", the first {fusion.first_bytes / MIB:g} MiB" if fusion.first_bytes else ""
        return f"Fused in buckets of {most}{first}"
    return f"Sent when backward is over, at most {most} a call"


def network_text(network: Network) -> str:
    """`Between hosts 5 us and 25 Gbit/s; within a host of 4 workers 3 us and 80 Gbit/s`."""
    if network.within is None:
        text = f"Between workers {link_text(network.between)}"
    else:
        within = f"within a host of {network.workers_per_host} workers {link_text(network.within)}"
        text = f"Between hosts {link_text(network.between)}; {within}"
    if network.busy:
        text += f" (while the cores compute: {link_text(network.busy.between)})"
    return text


def link_text(link: Link) -> str:
    rate = f"{8e-9 / link.seconds_per_byte:.3g} Gbit/s" if link.seconds_per_byte else "no limit of bandwidth"
    return f"{1e6 * link.latency_seconds:.3g} us and {rate}"


def bounded(bounds: Bounds, unit: float = 1.0, sign: str = "") -> str:
    """`4,657 [4,500, 4,800]`."""
    text = f"{number(unit * bounds.mean)}{sign}"
    if bounds.low is None or bounds.high is None:
        return text
    return f"{text} [{number(unit * bounds.low)}, {number(unit * bounds.high)}]"


def _measured(checked: Checked | None) -> tuple[str, ...]:
    if checked is None:
        return ("", "", "")
    noise = "" if checked.noise is None else f"±{100 * checked.noise:.1f} %"
    return (number(checked.samples_per_second), f"{100 * checked.error:+.1f} %", noise)
