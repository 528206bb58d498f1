"""Tables in the published layout, model by model, with the numbers behind each; and two lists of everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from analysis.frames.results import Results
from analysis.report import everything
from analysis.report.content import Fold, Heading, Listing, Part, Section, missing
from analysis.report.grids import of_listing, of_table
from analysis.report.material import Material
from analysis.tables import (
    communication,
    efficiency,
    epochs,
    maps,
    memory,
    recognition,
    rounds,
    target,
    target_pairs,
    throughput,
    training,
    transfer,
)
from analysis.tables import network as networks
from analysis.tables import pipeline as pipelines
from analysis.text.file_names import file_name


def section(material: Material) -> Section:
    results = material.results
    parts: list[Part] = []
    for model in results.models:
        parts += [Heading(model)]
        for what, make in (("throughput", _throughput), ("speed-up", _speedup), ("bytes", _bytes)):
            parts += material.parts(f"{what} of {model}", partial(make, results, model))
    for name, part in (
        ("pipeline", pipelines),
        ("rounds", rounds),
        ("epochs", epochs),
        ("training to a result", target),
        ("what a training took", training),
        ("the same training in unlike ways", target_pairs),
        ("what pre-training and freezing change", transfer),
        ("efficiency", efficiency),
        ("recognition", recognition),
        ("maps", maps),
        ("network", networks),
    ):
        parts += material.parts(f"table: {name}", partial(_whole, results, name, part))
    if not parts:
        parts.append(missing("No table", results.nothing_yet or "nothing was measured"))
    parts += [Heading("Everything")]
    for what, listing in (("all configurations", everything.configurations), ("all trials", everything.trials)):
        parts += material.parts(what, partial(_listed, listing, results))
    lead = (
        f"Means of {results.repeats}. ▲: the fastest of its row; ≈: tied with it (95 %); ▼: the slowest of its row, "
        "slower than the fastest. What is not tied is slower (p < 0.05, corrected for all rows of the study) or, with "
        "fewer than 3 repeats, not tested. ★: the row of the fastest of all. Bars: shares of the largest value of the "
        "table. A failed configuration shows its status."
    )
    return Section("tables", "Tables", lead, tuple(parts))


def _throughput(results: Results, model: str) -> Iterator[Part]:
    table, numbers = throughput.throughput(results, model), throughput.long(results, model)
    yield of_table(table, results, model, "samples_per_second", numbers, f"throughput-{file_name(model)}.csv")


def _speedup(results: Results, model: str) -> Iterator[Part]:
    if results.study.baseline is None:
        yield missing("No speed-ups", "the study declares no baseline")
        return
    ours = results.frame_of(model)
    columns = [column for column in ours.columns if column.startswith(("speedup", "efficiency"))]
    behind = ours[["configuration", "series", "batch", *columns]]
    table = throughput.speedup(results, model)
    yield of_table(table, results, model, "speedup", behind, f"speedup-{file_name(model)}.csv")


def _bytes(results: Results, model: str) -> Iterator[Part]:
    name = file_name(model)
    for kind, part in (("memory", memory), ("communication", communication)):
        if (listing := part.listing(results, model)) is not None:
            grid = of_listing(listing, f"{kind}-{name}.csv", part.measured(results, model))
            yield Fold(f"{kind.capitalize()} of {model}", (grid,))


def _listed(make: Callable[[Results], Listing], results: Results) -> list[Part]:
    return [make(results)]


def _whole(results: Results, name: str, part: Any) -> Iterator[Part]:
    if (listing := part.listing(results)) is not None:
        yield Heading(listing.title.split(" (")[0])
        yield of_listing(listing, f"{name}.csv", part.table(results))
