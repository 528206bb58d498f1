"""Results folder -> results.csv, configurations.csv, tables/ and figures/, replacing what an earlier run left.

A reader never meets half a file (execution/atomic_files.py). Files of ours that this run no longer makes (a model taken
out of the study) are deleted; anybody else's are left alone.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import execution
from analysis.execution import NOTHING, LostPart, Salvage, write_csv, write_text
from analysis.frames import results
from analysis.frames.results import Results
from analysis.published import outcomes
from analysis.report.origins import Origins
from analysis.show import layout
from analysis.text import file_name
from analysis.views import (
    allreduce_gain,
    averaging_rounds,
    batch_efficiency,
    communication,
    cost,
    epochs,
    figures,
    maps,
    memory,
    network,
    next_measurement,
    pipelines,
    reasons,
    same_training,
    scaling,
    target,
    throughput,
    transfer,
)

MOST_TRIALS = 500  # whose report a sweep writes at its end
OURS = re.compile(
    r"((throughput|speedup|memory|communication|frameworks|allreduce-gain|pipeline|epochs|network|drift|timelines?"
    r"|waterfall|steps|target|training|transfer|efficiency|distributions|scaling-law|published-outcomes|maps|pointing)(-.+)?"
    r"|attribution|bottleneck|remedies|utilisation|frontier|scaling-laws|extrapolation|returns|cost|next|roofline|pareto"
    r"|recognition|rounds)"
    r"\.(md|csv|png|svg)"
)


Made = tuple[str, layout.Table | layout.Listing | None, pd.DataFrame | None]  # file name, table, the numbers behind it
OfStudy = Callable[[Results], layout.Listing | None]
NumbersOf = Callable[[Results], pd.DataFrame]


def read_folder(folder: Path, processes: int = 1) -> tuple[Results, Origins]:
    """All that is written of a results folder, from one read of its records. Raises and warns as results.read."""
    origins = Origins.of(folder)
    return results.read(folder, processes, origins), origins


def write(
    folder: Path,
    page: bool | None = None,
    processes: int = 1,
    whole: tuple[Results, Origins] | None = None,
    named: str | None = None,
) -> list[Path]:
    """Write everything and return the paths. Raises NotResults or OSError; warns SkippedRecord and LostPart.

    `page`: whether to write the report too; None: where the study is small enough for that to take no time.
    `processes`: how many may read trials and draw figures at once, where there are many. `whole`: what read_folder
    returned, where it has been called already. `named`: what the user called these results, where not `folder`.
    """
    read, origins = read_folder(folder, processes) if whole is None else whole
    salvage = Salvage()
    paths = [write_csv(folder / "results.csv", read.trials)]
    shown = read.configurations.drop(columns=["series_order", "batch"])
    paths.append(write_csv(folder / "configurations.csv", shown))
    paths += write_tables(read, folder / "tables", salvage)
    drawn = figures.write(read, folder / "figures", salvage, processes)
    paths += figures.paths(drawn)
    if page or (page is None and len(read.trials) <= MOST_TRIALS):
        from analysis.report import sections

        paths += sections.write(read, origins, folder, drawn, salvage, named)
    for place in ("tables", "figures"):
        for path in (folder / place).glob("*"):
            if OURS.fullmatch(path.name) and path not in paths:
                path.unlink()
    for part in salvage.lost:
        warnings.warn(part, LostPart, stacklevel=2)
    return paths


def write_tables(read: Results, folder: Path, salvage: Salvage = NOTHING) -> list[Path]:
    """throughput-<model>, speedup-<model> where there is a baseline, memory-<model> and communication-<model> where
    they were counted, pipeline and epochs where there were some, and so on: in Markdown, the numbers in CSV."""
    with execution.ignored():
        return _write_tables(read, folder, salvage)


def _write_tables(read: Results, folder: Path, salvage: Salvage) -> list[Path]:
    paths, none = [], list[Made]()
    for what, make in _kinds(read):
        for name, table, numbers in salvage.made(f"tables of {what}", partial(_all, make), none):
            if table is not None:
                paths.append(write_text(folder / f"{name}.md", layout.markdown(table)))
            if numbers is not None:
                paths.append(write_csv(folder / f"{name}.csv", numbers))
    return paths


def _all(make: Callable[[], Iterable[Made]]) -> list[Made]:
    return list(make())


def _kinds(read: Results) -> Iterator[tuple[str, Callable[[], Iterable[Made]]]]:
    """What is made together, and how."""
    for model in read.models:
        yield f"speed of {model}", partial(_speeds, read, model)
        for kind, of_model in (("memory", memory), ("communication", communication)):
            yield f"{kind} of {model}", partial(_of_model, read, model, kind, of_model)
    wholes: tuple[tuple[str, OfStudy, NumbersOf], ...] = (
        ("pipeline", pipelines.listing, pipelines.table),
        ("rounds", averaging_rounds.listing, averaging_rounds.table),
        ("epochs", epochs.listing, epochs.table),
        ("target", target.listing, target.trained_configurations),
        ("training", target.resources_listing, target.resources_table),
        ("target-pairs", same_training.listing, same_training.table),
        ("transfer", transfer.listing, transfer.table),
        ("efficiency", batch_efficiency.listing, batch_efficiency.table),
        ("recognition", transfer.recognition_listing, transfer.recognition_table),
        ("maps", maps.listing, maps.table),
        ("network", network.listing, network.table),
        ("published-outcomes", outcomes.listing, outcomes.table),
    )
    for name, listing, numbers in wholes:
        yield name, partial(_whole, read, name, listing, numbers)
    yield "the why", lambda: _named(reasons.named(read), reasons.frames(read))
    yield "what comes next", partial(_next, read)
    yield "what 16 bits gain", partial(_gains, read)


def _speeds(read: Results, model: str) -> Iterator[Made]:
    name = file_name(model)
    yield f"throughput-{name}", throughput.throughput(read, model), throughput.long(read, model)
    if read.study.baseline is not None:
        yield f"speedup-{name}", throughput.speedup(read, model), None


def _of_model(read: Results, model: str, kind: str, part: Any) -> Iterator[Made]:
    if (listing := part.listing(read, model)) is not None:
        yield f"{kind}-{file_name(model)}", listing, part.measured(read, model)


def _whole(read: Results, name: str, list_of: OfStudy, numbers_of: NumbersOf) -> Iterator[Made]:
    if (listing := list_of(read)) is not None:
        yield name, listing, numbers_of(read)


def _named(listings: Mapping[str, layout.Listing], numbers: Mapping[str, pd.DataFrame]) -> Iterator[Made]:
    for name, listing in listings.items():
        yield name, listing, numbers.get(name)


def _next(read: Results) -> Iterator[Made]:
    tables: tuple[
        tuple[str, Callable[[Results], layout.Listing | None], Callable[[Results], pd.DataFrame] | None], ...
    ] = (
        ("scaling-laws", scaling.laws_listing, scaling.laws_table),
        ("returns", scaling.returns_listing, scaling.returns_table),
        ("cost", cost.listing, cost.table),
        ("next", next_measurement.listing, None),
    )
    for name, make, behind in tables:
        if (listing := make(read)) is not None:
            yield name, listing, behind(read) if behind else None


def _gains(read: Results) -> Iterator[Made]:
    pairs = allreduce_gain.gains(read)
    if len(pairs):
        yield "allreduce-gain", None, pairs
