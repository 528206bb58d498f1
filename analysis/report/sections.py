"""The sections of a report beside the answer and the trust in it, and the report made of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from analysis import execution
from analysis.execution import NOTHING, Salvage
from analysis.findings import count
from analysis.frames.results import Results
from analysis.published import outcomes, ratios, references
from analysis.report import answer, page, trust
from analysis.report.origins import SAMPLES, STUDY_FILE, Counts, Origins
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
    drawings_of,
    gap_part,
    lost,
    missing,
    of_listing,
    of_rows,
    of_table,
)
from analysis.report.rendering import html, markdown
from analysis.show.layout import Listing, Table
from analysis.statistics.scaling_laws import comparisons
from analysis.text import first_of
from analysis.views import catalog, view
from analysis.views.bottleneck import bottlenecks
from analysis.views.figures import DrawnFigure
from analysis.views.scaling import suggestions
from analysis.views.view import ModelTable, StudyTable
from scaling_study.errors import printable, shortened
from scaling_study.records import pack
from scaling_study.records.store import replaced


def _tables(material: Material, section: view.Section, headings: bool = False) -> list[Part]:
    """A section's tables of the whole study, each with the figures that it explains, or why there is none."""
    parts: list[Part] = []
    for kind in (kind for each in catalog.VIEWS for kind in each.tables if kind.section == section):
        if isinstance(kind, StudyTable):
            parts += material.parts(kind.title or f"table: {kind.name}", partial(_table, kind, material, headings))
    return parts


def _table(kind: StudyTable, material: Material, headings: bool) -> Iterator[Part]:
    shown = kind.of(material.results)
    if shown is None or not isinstance(shown.listing, Listing):
        yield from gap_part(kind.gap, material)
        return
    if headings:
        yield Heading(shown.listing.title.split(" (")[0])
    yield of_listing(shown.listing, shown.csv, shown.table)
    for drawing in drawings_of(kind.section):
        if drawing.beside == kind.name:
            yield from material.drawn(*drawing.beginnings)


def figures_section(material: Material) -> Section:
    """The study as pictures, each also a file for a paper."""
    drawings = drawings_of("figures")
    pictures = [picture for drawing in drawings for picture in material.drawn(*drawing.beginnings)]
    gaps: list[Part] = []
    for drawing in drawings:
        if not material.drawn(drawing.name):
            gaps += gap_part(drawing.gap, material)
    lead = (
        "Intervals are 95 %, between repeats. Each figure is also in figures/, as PNG and SVG."
        if pictures
        else "No figures: nothing was measured."
    )
    return Section("figures", "Figures", lead, (*pictures, *gaps))


def why_section(material: Material) -> Section:
    """The section of bottlenecks, with the evidence and the change that would help most."""
    lead = material.text("the bottlenecks", lambda: _bottlenecks(material.results))
    return Section("why", "Why", lead, tuple(_tables(material, "why")))


def _bottlenecks(results: Results) -> str:
    """How many configurations are held back by what."""
    kinds = Counter(bottleneck.kind for bottleneck in bottlenecks(results) if bottleneck.shares)
    if not kinds:
        return "Nothing can be said: no phases were measured."
    counted = [f"{kind}: {number}" for kind, number in kinds.most_common()]
    return f"Bottlenecks, by number of configurations: {', '.join(counted)}."


def next_section(material: Material) -> Section:
    """Laws over worker counts, what they say of more workers, what that costs, what to measure."""
    parts = material.parts("what is most worth measuring", lambda: _worth(material.results))
    for drawing in drawings_of("next"):
        parts += material.drawn(*drawing.beginnings)
    parts += _tables(material, "next")
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
        yield missing("Nothing to measure next", "no rule has a suggestion (docs/guide/read-a-report.md)")


def published_section(material: Material) -> Section:
    """Speeds that were published of such devices; the ratios and outcomes that five public studies claim; and the same
    ones here."""
    parts, results, leads = _tables(material, "published"), material.results, list[str]()
    if held := len(references.beside(results)):
        leads.append(f"Published speeds of the same class of device stand beside {count(held, 'configuration')}.")
    if verdicts := Counter(ratios.claims_table(results).verdict):
        counted = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.most_common())
        leads.append(f"Of the five studies ratios are compared, not speeds: the machines differ. {counted}.")
    elif outcomes.of_study(results.study.name):
        leads.append("What the published trainings came to, beside those here: accuracies and losses, never seconds.")
    lead = " ".join(leads) or "This study measured no published configuration."
    return Section("published", "Published beside measured", lead, tuple(parts))


def tables_section(material: Material) -> Section:
    """Tables in the published layout, model by model, with the numbers behind each; and two lists of everything."""
    results = material.results
    parts: list[Part] = []
    of_models = [kind for each in catalog.VIEWS for kind in each.tables if isinstance(kind, ModelTable)]
    for model in results.models:
        parts += [Heading(model)]
        for kind in of_models:
            parts += material.parts(f"{kind.title} of {model}", partial(_model_table, kind, material, model))
    parts += _tables(material, "tables", headings=True)
    if not parts:
        parts.append(missing("No table", results.nothing_yet or "nothing was measured"))
    parts += [Heading("Everything")]
    parts += material.parts("all configurations", lambda: [page.configurations(results)])
    parts += material.parts("all trials", lambda: [page.trials(results)])
    lead = (
        f"Means of {results.repeats}. ▲: the fastest of its row; ≈: tied with it (95 %); ▼: the slowest of its row, "
        "slower than the fastest. What is not tied is slower (p < 0.05, corrected for all rows of the study) or, with "
        "fewer than 3 repeats, not tested. ★: the row of the fastest of all. Bars: shares of the largest value of the "
        "table. A failed configuration shows its status."
    )
    return Section("tables", "Tables", lead, tuple(parts))


def _model_table(kind: ModelTable, material: Material, model: str) -> Iterator[Part]:
    """A table in the published layout, or a folded listing."""
    shown = kind.of(material.results, model)
    if shown is None:
        yield from gap_part(kind.gap, material)
    elif isinstance(shown.listing, Table):
        yield of_table(shown.listing, material.results, model, kind.bars, shown.table, shown.csv)
    elif shown.listing is not None:
        yield Fold(f"{kind.title.capitalize()} of {model}", (of_listing(shown.listing, shown.csv, shown.table),))


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
    yield Heading("The study file")
    yield Fold(STUDY_FILE, (Code(origins.study),)) if origins.study else missing(STUDY_FILE, "not in this folder")
    yield Heading("Command lines")
    lines = {str(name): origins.commands.get(str(name)) for name in material.results.configurations.configuration}
    if kept := [(name, line) for name, line in lines.items() if line]:
        columns = tuple(zip(*kept, strict=True))
        yield LongListing("commands", "Command lines", ("configuration", "command"), columns, "trials/")
    else:
        yield missing("Command lines", "no record holds one")
    yield from _samples(origins)


def _again(named: str) -> str:
    """The commands that run a study again; of a packed one, once it is a folder."""
    if not named.endswith(".zip"):
        return f"`python run_sweep.py {named}/{STUDY_FILE}`"
    return f"`scaling-study unpack {named}`, then `python run_sweep.py {pack.folder_of(Path(named))}/{STUDY_FILE}`"


def _grid(title: str, table: Counts, file: str) -> Grid | None:
    """A row for each thing; where trials differ in it, each value with its number of trials."""
    rows = []
    for name, values in table.items():
        of_how_many = (lambda number: f" ({count(number, 'trial')})") if len(values) > 1 else lambda number: ""
        cells = [shortened(text, MOST_LETTERS) + of_how_many(number) for text, number in values.most_common()]
        rows.append((name, "; ".join(first_of(cells, MOST_VALUES))))
    return of_rows(title, ("what", "value"), rows, file=file) if rows else None


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


PAGE, WORDS = "report.html", "report.md"
FONT, WIDE_FONTS = b"font-family: 'DejaVu Sans'", b"font-family: 'DejaVu Sans', Verdana, sans-serif"  # as wide
MOST_SVG_BYTES = 600_000  # beyond, a figure of thousands of points is smaller, and shown sooner, as PNG


def write(
    results: Results,
    origins: Origins,
    folder: Path,
    drawn: Sequence[DrawnFigure],
    salvage: Salvage = NOTHING,
    named: str | None = None,
) -> list[Path]:
    """`origins`: collected while `results` were read; `drawn`: the figures whose files are in `folder`/figures;
    `salvage`: what could not be made so far; `named`: the results on the command line. Returns the paths. Raises
    OSError."""
    samples = replaced(folder / SAMPLES, origins.write_samples, durable=False)
    pictures = {figure.name: Picture(figure.name, figure.title, figure.text) for figure in drawn}
    material = Material(results, printable(named or str(folder)), pictures, origins, salvage)
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
