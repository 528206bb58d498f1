"""The sections of a report beside the answer and the trust in it, and the report made of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from analysis import execution
from analysis.execution import NOTHING, Salvage
from analysis.findings import count
from analysis.frames.results import Results
from analysis.published import outcomes as published_outcomes
from analysis.published import ratios
from analysis.report import answer, page, trust
from analysis.report.html import html
from analysis.report.markdown import markdown
from analysis.report.origins import SAMPLES, STUDY_FILE, Origins, Table
from analysis.report.page import (
    Bullets,
    Code,
    Files,
    Fold,
    Grid,
    Heading,
    LongListing,
    Material,
    Part,
    Picture,
    Report,
    Section,
    Text,
    lost,
    missing,
    of_listing,
    of_rows,
    of_table,
)
from analysis.show.layout import Listing
from analysis.statistics.scaling_laws import comparisons
from analysis.text import file_name
from analysis.views import (
    averaging_rounds,
    batch_efficiency,
    communication,
    cost,
    epochs,
    maps,
    memory,
    network,
    pipelines,
    reasons,
    same_training,
    scaling,
    target,
    throughput,
    transfer,
)
from analysis.views.bottleneck import bottlenecks
from analysis.views.figures import Drawn
from analysis.views.next_measurement import suggestions
from scaling_study.errors import shortened
from scaling_study.records import pack
from scaling_study.records.store import replaced

# Figures: the study as pictures, each also a file for a paper.

ORDER = (
    *("maps", "pointing"),  # what a model looks at comes before how fast it learned to
    *("throughput", "frameworks", "speedup", "allreduce-gain", "distributions", "steptimes", "waterfall"),
    *("frontier", "pareto", "timelines", "timeline", "network"),
)
ELSEWHERE = ("drift", "steps", "roofline", "scaling")  # beside what they explain
FIGURE_GAPS = {
    "speedup": ("No speed-up figure", "no configuration of more than one worker has a speed-up"),
    "allreduce-gain": ("No figure of the 16-bit gain", "no pair of configurations differs in its allreduce alone"),
    "waterfall": ("No waterfall of efficiency", "phases of a configuration with a speed-up were not measured"),
    "frontier": ("No figure of memory against batch", "peak memory was not measured at several batch sizes"),
    "pareto": ("No figure of cost against time", "it needs two comparable configurations"),
}


def figures_section(material: Material) -> Section:
    known = material.drawn(*ORDER)
    others = [
        picture
        for name, picture in material.pictures.items()
        if picture not in known and not name.startswith(ELSEWHERE)
    ]
    parts: list[Part] = [*known, *others]
    parts += [missing(what, why) for name, (what, why) in FIGURE_GAPS.items() if not material.drawn(name)]
    lead = (
        "Intervals are 95 %, between repeats. Each figure is also in figures/, as PNG and SVG."
        if known or others
        else "No figures: nothing was measured."
    )
    return Section("figures", "Figures", lead, tuple(parts))


# What next: laws over worker counts, what they say of more workers, what that costs, what to measure.

NEXT_TABLES = {
    "returns": (scaling.returns_listing, scaling.returns_table),
    "cost": (cost.listing, cost.table),
    "scaling-laws": (scaling.laws_listing, scaling.laws_table),
}


def next_section(material: Material) -> Section:
    results = material.results
    parts = material.parts("what is most worth measuring", lambda: _worth(results))
    parts += material.drawn("scaling")
    for name, (make, behind) in NEXT_TABLES.items():
        parts += material.parts(f"table: {name}", partial(_table, name, make, behind, results))
    lead = (
        "Scaling laws, fitted to at least 4 worker counts and compared by their held-out error; the knee; the "
        "configurations most worth measuring next. `scaling-study predict` predicts worker counts that were not run."
    )
    return Section("next", "What next", lead, tuple(parts))


def _worth(results: Results) -> Iterator[Part]:
    worth = [f"{suggestion.rule}: {suggestion.sentence}" for suggestion in suggestions(results, comparisons(results))]
    if worth:
        yield Text("**Most worth measuring next**, in this order:")
        yield Bullets(tuple(worth))
    else:
        yield missing("Nothing to measure next", "no rule has a suggestion (docs/report.md)")


def _table(
    name: str, make: Callable[[Results], Listing | None], behind: Callable[[Results], pd.DataFrame], results: Results
) -> Iterator[Part]:
    frame = make(results)
    if frame is not None:
        yield of_listing(frame, f"{name}.csv", behind(results))


# Provenance: how to get every one of these numbers again, and every sample that they are made of.

MOST_VALUES, MOST_LETTERS = 8, 300


def provenance_section(material: Material) -> Section:
    results, origins = material.results, material.origins
    lead = (
        f"Study {results.study.name} on {results.study.machine_text}; {results.dates or 'no date'}; {origins.trials:,} "
        "records."
    )
    return Section("provenance", "Provenance", lead, tuple(_parts(material, origins)))


def _parts(material: Material, origins: Origins) -> Iterator[Part]:
    yield Heading("Reproduce")
    yield Bullets(
        (
            f"This page, its tables and figures: `python -m analysis report {material.folder}`",
            f"Every trial: {_again(material.folder)} (finished trials are skipped)",
            "One trial by hand: its command line below, which is also `command` in its record",
        )
    )
    yield Heading("Environment")
    grid = _grid("Machine, code and data, as recorded", origins.about, "about.csv")
    yield grid or missing("Not known", "no record could be read")
    for title, table, file in (
        ("Versions", origins.versions, "versions.csv"),
        ("Environment variables that affect speed", origins.environment, "environment.csv"),
    ):
        grid_of = _grid(title, table, file)
        yield Fold(title, (grid_of,)) if grid_of else missing(title, "none is recorded")
    yield from _study(origins)
    yield from _commands(material)
    yield from _samples(origins)


def _again(named: str) -> str:
    """The commands that run a study again; of a packed one, once it is a folder."""
    if not named.endswith(".zip"):
        return f"`python run_sweep.py {named}/{STUDY_FILE}`"
    return f"`scaling-study unpack {named}`, then `python run_sweep.py {pack.folder_of(Path(named))}/{STUDY_FILE}`"


def _grid(title: str, table: Table, file: str) -> Grid | None:
    """A row for each thing; where trials differ in it, each value with its number of trials."""
    rows = []
    for name, values in table.items():
        common = values.most_common(MOST_VALUES)
        several = len(values) > 1
        cells = [
            shortened(text, MOST_LETTERS) + (f" ({count(number, 'trial')})" if several else "")
            for text, number in common
        ]
        more = [f"and {len(values) - MOST_VALUES} more"] if len(values) > MOST_VALUES else []
        rows.append((name, "; ".join([*cells, *more])))
    return of_rows(title, ("what", "value"), rows, file=file) if rows else None


def _study(origins: Origins) -> Iterator[Part]:
    yield Heading("The study file")
    if origins.study:
        yield Fold(STUDY_FILE, (Code(origins.study),))
    else:
        yield missing(STUDY_FILE, "not in this folder")


def _commands(material: Material) -> Iterator[Part]:
    yield Heading("Command lines")
    rows = material.results.configurations
    known = [(str(name), material.origins.commands.get(str(name), "")) for name in rows.configuration]
    kept = [(name, line) for name, line in known if line]
    if not kept:
        yield missing("Command lines", "no record holds one")
        return
    names, lines = zip(*kept, strict=True)
    yield LongListing("commands", "Command lines", ("configuration", "command"), (names, lines), "trials/")


def _samples(origins: Origins) -> Iterator[Part]:
    yield Heading("Raw samples and traces")
    if origins.samples:
        yield Text(
            f"{SAMPLES} beside this page has all {origins.samples:,} step times of every rank, in seconds: "
            f'`numpy.load("{SAMPLES}")["ID OF A TRIAL"]` is an array of (ranks, steps). Everything else of one is in '
            "trials/ID/record.json."
        )
    else:
        yield missing("Raw samples", "no trial is ok")
    if origins.profiles:
        yield Text("Traces of single trials, for chrome://tracing or ui.perfetto.dev:")
        yield Files(origins.profiles)
    else:
        yield missing("Traces", "none; `python run_sweep.py STUDY --profile TRIAL` records one")


# Published beside measured: the ratios and outcomes that five public studies claim, and the same ones here.


def published_section(material: Material) -> Section:
    claims = ratios.side_by_side_table(material.results)
    grids = ratios.listing(material.results)
    outcomes = published_outcomes.listing(material.results)
    parts: list[Part] = []
    if outcomes:
        parts.append(
            of_listing(
                outcomes, "published-outcomes.csv", published_outcomes.published_outcomes_table(material.results)
            )
        )
        grids = [grid for grid in grids if grid.rows]
    parts += [of_listing(grid, "published.csv", claims) for grid in grids if grid.rows]
    parts += [Text(note, "note") for grid in grids if not grid.rows for note in grid.notes]
    verdicts = claims.verdict.value_counts().to_dict() if len(claims) else {}
    verdict_text = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())
    lead = (
        f"Ratios are compared, not speeds: the machines differ. {verdict_text}."
        if verdict_text
        else "This study measured no published configuration."
    )
    if outcomes and not verdict_text:
        lead = "What the published trainings came to, beside those here: accuracies and losses, never seconds."
    return Section("published", "Published beside measured", lead, tuple(parts))


# Tables in the published layout, model by model, with the numbers behind each; and two lists of everything.


def tables_section(material: Material) -> Section:
    results = material.results
    parts: list[Part] = []
    for model in results.models:
        parts += [Heading(model)]
        for what, make in (("throughput", _throughput), ("speed-up", _speedup), ("bytes", _bytes)):
            parts += material.parts(f"{what} of {model}", partial(make, results, model))
    for name, listing, numbers in (
        ("pipeline", pipelines.listing, pipelines.table),
        ("rounds", averaging_rounds.listing, averaging_rounds.table),
        ("epochs", epochs.listing, epochs.table),
        ("training to a result", target.listing, target.trained_configurations),
        ("what a training took", target.resources_listing, target.resources_table),
        ("the same training in unlike ways", same_training.listing, same_training.table),
        ("what pre-training and freezing change", transfer.listing, transfer.table),
        ("efficiency", batch_efficiency.listing, batch_efficiency.table),
        ("recognition", transfer.recognition_listing, transfer.recognition_table),
        ("maps", maps.listing, maps.table),
        ("network", network.listing, network.table),
    ):
        parts += material.parts(f"table: {name}", partial(_whole, results, name, listing, numbers))
    if not parts:
        parts.append(missing("No table", results.nothing_yet or "nothing was measured"))
    parts += [Heading("Everything")]
    for what, everything in (("all configurations", page.configurations), ("all trials", page.trials)):
        parts += material.parts(what, partial(_listed, everything, results))
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


def _listed(make: Callable[[Results], LongListing], results: Results) -> list[Part]:
    return [make(results)]


def _whole(
    results: Results,
    name: str,
    list_of: Callable[[Results], Listing | None],
    numbers_of: Callable[[Results], pd.DataFrame],
) -> Iterator[Part]:
    if (listing := list_of(results)) is not None:
        yield Heading(listing.title.split(" (")[0])
        yield of_listing(listing, f"{name}.csv", numbers_of(results))


# Why: what holds each configuration back, with the evidence, and what would help most.

GAPS = {
    "bottleneck": ("Bottlenecks", "no configuration has phases, or a failure, to tell by"),
    "attribution": ("Lost efficiency", "no configuration of more than one worker has an efficiency and phases"),
    "remedies": ("What would help", "no configuration has phases to tell by"),
    "utilisation": ("Model FLOP/s and utilisation", "no record counts its FLOPs"),
    "frontier": ("Memory against batch", "peak memory was not measured at several batch sizes"),
}
TABLES = {
    "attribution": reasons.attribution, "bottleneck": reasons.bottleneck, "remedies": reasons.remedy,
    "utilisation": reasons.utilisation, "frontier": reasons.frontier,
}  # fmt: skip
LISTINGS = {
    "attribution": reasons.reasons_attribution,
    "bottleneck": reasons.reasons_bottleneck,
    "remedies": reasons.reasons_remedy,
    "utilisation": reasons.reasons_utilisation,
    "frontier": reasons.reasons_frontier,
}
PICTURES = {"bottleneck": ("steps",), "utilisation": ("roofline",)}


def why_section(material: Material) -> Section:
    parts: list[Part] = []
    for name in GAPS:
        parts += material.parts(GAPS[name][0], partial(_part, name, material))
    return Section("why", "Why", material.text("the bottlenecks", lambda: lead(material)), tuple(parts))


def _part(name: str, material: Material) -> Iterator[Part]:
    listing = LISTINGS[name](material.results)
    if listing is None:
        yield missing(f"{GAPS[name][0]}: not known", GAPS[name][1])
        return
    yield of_listing(listing, f"{name}.csv", TABLES[name](material.results))
    yield from material.drawn(*PICTURES.get(name, ()))


def lead(material: Material) -> str:
    """How many configurations are held back by what."""
    kinds = Counter(bottleneck.kind for bottleneck in bottlenecks(material.results) if bottleneck.shares)
    if not kinds:
        return "Nothing can be said: no phases were measured."
    counted = [f"{kind}: {number}" for kind, number in kinds.most_common()]
    return f"What takes most of a step, by number of configurations: {', '.join(counted)}."


# Material -> a report: the sections in the order in which a reader wants them.

SECTIONS: dict[str, Callable[[Material], Section]] = {
    "The answer": answer.section,
    "Can you trust it": trust.section,
    "Tables": tables_section,
    "Figures": figures_section,
    "Why": why_section,
    "What next": next_section,
    "Published beside measured": published_section,
    "Provenance": provenance_section,
}


def report(material: Material) -> Report:
    results = material.results
    counted = results.configurations.n > 0
    planned = len(counted) + len(results.unseen)
    facts = (
        results.study.machine_text,
        results.dates,
        f"{int(counted.sum())} of {planned} configurations measured, {len(results.runs):,} trials",
        *results.marks,
    )
    sections = tuple(
        material.salvage.or_else(title, partial(make, material), partial(_lost, title))
        for title, make in SECTIONS.items()
    )
    return Report(results.study.name, tuple(filter(None, facts)), sections, tuple(material.salvage.lost))


def _lost(title: str, why: str) -> Section:
    return Section(title.lower().replace(" ", "-"), title, "", (lost(title, why),))


# A report on disk: report.html, report.md, and the raw samples beside them.

PAGE, WORDS = "report.html", "report.md"
FONT, WIDE_FONTS = b"font-family: 'DejaVu Sans'", b"font-family: 'DejaVu Sans', Verdana, sans-serif"  # as wide
MOST_SVG_BYTES = 600_000  # beyond, a figure of thousands of points is smaller, and shown sooner, as PNG


def write(
    results: Results,
    origins: Origins,
    folder: Path,
    drawn: Sequence[Drawn],
    salvage: Salvage = NOTHING,
    named: str | None = None,
) -> list[Path]:
    """`origins`: collected while `results` were read; `drawn`: the figures whose files are in `folder`/figures;
    `salvage`: what could not be made so far; `named`: the results on the command line. Returns the paths. Raises
    OSError."""
    samples = replaced(folder / SAMPLES, origins.write_samples, durable=False)
    pictures = {figure.name: Picture(figure.name, figure.title, figure.text) for figure in drawn}
    material = Material(results, named or str(folder), pictures, origins, salvage)
    content = report(material)
    images = {name: image(folder / "figures", name) for name in pictures}
    page = execution.write_text(folder / PAGE, html(content, images))
    return [samples, page, execution.write_text(folder / WORDS, markdown(content))]


def image(folder: Path, name: str) -> bytes:
    """Lines where there are not too many of them, else pixels if those are fewer bytes."""
    svg, png = (folder / f"{name}.{kind}" for kind in ("svg", "png"))
    if svg.stat().st_size <= max(MOST_SVG_BYTES, png.stat().st_size):
        return svg.read_bytes().replace(FONT, WIDE_FONTS)
    return png.read_bytes()
