"""What trainings came to as published, beside what they came to here, and the flaws that each published one earned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from analysis.frames.baseline import known
from analysis.frames.results import Results
from analysis.frames.rows import as_rows
from analysis.published import trained_side_by_side
from analysis.published.trainings import ACCURACY, EPOCH_SECONDS, EPOCHS, LOSS, SECONDS, TOP5, Training, of_study
from analysis.tables import notes
from analysis.tables.layout import Listing

table = trained_side_by_side.table
HEADER = (
    "published training",
    "figure",
    "published",
    "measured here [95 %]",
    "difference",
    "trained by",
    "differs here",
)
NAMES = {
    ACCURACY: "test accuracy, %", TOP5: "test accuracy, top 5, %", LOSS: "test loss", SECONDS: "seconds of training",
    EPOCH_SECONDS: "seconds an epoch", EPOCHS: "epochs",
}  # fmt: skip
AS_TEXT: Mapping[str, Callable[[float], str]] = {
    ACCURACY: lambda share: f"{100 * share:.2f}", TOP5: lambda share: f"{100 * share:.2f}", LOSS: "{:.4f}".format,
    SECONDS: "{:,.0f}".format, EPOCH_SECONDS: "{:.2f}".format, EPOCHS: "{:.4g}".format,
}  # fmt: skip


def listing(results: Results) -> Listing | None:
    """A row for each published figure and configuration; None where no published study of trainings has this name."""
    trainings = of_study(results.study.name)
    if not trainings:
        return None
    rows = as_rows(table(results))
    before = [(None, None), *((row["training"], row["configuration"]) for row in rows)]
    cells = tuple(
        _cells(row, first=(row["training"], row["configuration"]) != last)
        for row, last in zip(rows, before, strict=False)
    )
    title = f"Published trainings beside measured ones ({results.heading})"
    return Listing(title, HEADER, cells, tuple(_lines(results, trainings, rows)))


def _cells(row: Mapping[Any, Any], first: bool) -> tuple[str, ...]:
    show = AS_TEXT[row["figure"]]
    low, high = row["measured_low"], row["measured_high"]
    bounds = f" [{show(low)}, {show(high)}]" if known(low) and known(high) else ""
    gain = row["difference"]
    scale, places = (100, 2) if row["figure"] in (ACCURACY, TOP5) else (1, 4)
    why = row["differs"] or row["decides"] or "nothing that was published"
    return (
        str(row["training"]), NAMES[row["figure"]], show(row["published"]) if known(row["published"]) else "",
        show(row["measured"]) + bounds if known(row["measured"]) else "",
        f"{scale * gain:+.{places}f}" if known(gain) else "",
        str(row["series"] or ""), why if first else "",
    )  # fmt: skip


def _lines(results: Results, trainings: tuple[Training, ...], rows: list[dict[Any, Any]]) -> Iterator[str]:
    machines = ", ".join(dict.fromkeys(training.machine for training in trainings))
    yield (
        f"Seconds are never compared: theirs are of {machines}, of whole runs; ours of "
        f"{results.study.machine_text}, of training alone. Measured: means over the seeds; published: single runs."
    )
    here = [row["decides"] for row in rows if row["configuration"] and row["decides"]]
    deciding = dict.fromkeys(text for texts in here for text in texts.split(trained_side_by_side.SEPARATOR))
    if deciding:
        yield (
            "No difference is taken where what decides accuracy is another than published: "
            f"{'; '.join(deciding)}. Such rows show that it runs, not what it would reach."
        )
    yield from _selection(results, trainings)
    beside = {row["configuration"] for row in rows}
    yield from notes.how_it_differs(results.configurations[results.configurations.configuration.isin(beside)])
    for training in trainings:
        if training.flaws:
            reasons = "; ".join(f"{flaw}: {why}" for flaw, why in training.flaws.items())
            yield f"Flaws of the published {training.name}: {reasons}."
    yield notes.source(results)


def _selection(results: Results, trainings: tuple[Training, ...]) -> Iterator[str]:
    """What it changes that a validation split selects (F18)."""
    if not any("F18" in training.flaws for training in trainings):
        return
    said = {
        (each.selected_on, sum(each.splits.get("validation", {}).values()), sum(each.splits["train"].values()))
        for fact in as_rows(results.details.facts)
        for each in fact["training"][:1]
        if each.splits.get("train")
    }
    ours = "; ".join(
        f"{100 * held / (held + left):.0f} % of the training images ({held:,}) were held out"
        + (f", {split} data selected" if split else ", and nothing was selected")
        for split, held, left in sorted(said)
    )
    yield (
        "The test set selected the published model (F18): its accuracy is the best of many looks at that set, and so "
        f"biased upwards. Here {ours or 'a part of the training images is held out'}, the test set is read once, after "
        "that, and fewer images are trained on: expect less than published."
    )
