"""The sections of a report beside the answer and the trust in it, and the report made of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from analysis import execution
from analysis.execution import Salvage
from analysis.findings import count, name_of
from analysis.frames.results import Results
from analysis.published import outcomes, ratios, references
from analysis.report import answer, page, trust, worth
from analysis.report.origins import SAMPLES, STUDY_FILE, Counts, Origins
from analysis.report.page import (
    Bullets,
    Code,
    Files,
    Fold,
    Grid,
    LongListing,
    Material,
    Part,
    Picture,
    Report,
    Section,
    Text,
    drawings_of,
    figures_of,
    folded,
    lost,
    note_gap,
    of_listing,
    of_rows,
    of_table,
)
from analysis.report.rendering import html, markdown
from analysis.show import notes
from analysis.show.layout import Listing, Table
from analysis.statistics.scaling_laws import comparisons
from analysis.text import first_of
from analysis.views import catalog, view
from analysis.views.attribution import in_words, losers
from analysis.views.bottleneck import UNKNOWN, bottlenecks
from analysis.views.figures import DrawnFigure
from analysis.views.next_steps import suggestions
from analysis.views.view import ModelTable, StudyTable
from scaling_study.errors import printable, shortened
from scaling_study.records import pack
from scaling_study.records.store import replaced
from scaling_study.stats.intervals import FEWEST_REPEATS

MOST_LOSERS = 3  # models, whose losses stand before the tables of why
MEANT = {"SYNTHETIC DATA": "SYNTHETIC DATA: the samples are generated; speeds may hold for real ones, losses do not"}
LEFT_OUT = (  # tables that report.md has with --full only
    *("communication", "remedies", "utilisation", "frontier", "returns", "cost", "scaling-laws"),
    *("training", "network"),
)
GROUPS = {  # key of a fold -> its summary, and the beginnings of the names of its figures
    "gain": ("Gain of 16-bit gradients", ("allreduce-gain",)),
    "timelines": ("A step of each pipeline", ("timelines",)),
    "batch": ("The cost of a larger batch", ("efficiency",)),
}


def _tables(material: Material, section: view.Section) -> list[Part]:
    """A section's tables of the whole study, each folded with the figures that it explains."""
    parts: list[Part] = []
    for kind in (kind for each in catalog.VIEWS for kind in each.tables if kind.section == section):
        if isinstance(kind, StudyTable):
            parts += material.parts(kind.title or f"table: {kind.name}", partial(_table, kind, material))
    return parts


def _table(kind: StudyTable, material: Material) -> Iterator[Part]:
    shown = kind.of(material.results)
    if shown is None or not isinstance(shown.listing, Listing):
        note_gap(kind.gap, material)
        return
    beside = [drawing for drawing in drawings_of(kind.section) if drawing.beside == kind.name]
    pictures = [picture for drawing in beside for picture in material.drawn(*drawing.beginnings)]
    grid, summary = of_listing(shown.listing, shown.csv, shown.table), _summary(shown.listing.title)
    if shown.listing.nothing:
        material.gaps.append(f"{summary}: {shown.listing.nothing}.")
    elif kind.name in LEFT_OUT:
        yield Fold(summary, (grid,), full=True, key=kind.name)
    else:
        yield Fold(summary, (grid, *pictures), key=kind.name)
        return
    yield from folded(f"{summary}, drawn", pictures, "figures")


def _summary(title: str) -> str:
    """A table's title without the study that stands in brackets at its end."""
    return title.rpartition(" (")[0] or title


def figures_section(material: Material) -> Section | None:
    """The study as pictures, each also a file for a paper, but for the one beside the answer."""
    first, parts = answer.picture(material), list[Part]()
    rest = [picture for picture in figures_of(material, "figures") if picture != first]
    for key, (summary, names) in GROUPS.items():
        ours = [picture for picture in material.drawn(*names) if picture in rest]
        rest = [picture for picture in rest if picture not in ours]
        parts += folded(summary, ours, key)
    parts += folded("More figures", rest, "figures")
    if not parts:
        return None
    lead = f"Intervals are 95 %, between {material.results.repeats_word} unless a caption says otherwise."
    return Section("figures", "Figures", lead, tuple(parts), about_parts=True)


def why_section(material: Material) -> Section | None:
    """The section of bottlenecks, with the evidence and the change that would help most."""
    lead, parts = material.text("the bottlenecks", lambda: _bottlenecks(material.results)), _tables(material, "why")
    return Section("why", "Why", lead, tuple(parts), about_parts=not lead) if lead or parts else None


def _bottlenecks(results: Results) -> str:
    """Of each model what loses most of linear speed-up, and where; then the largest share of a step, by number of
    configurations. Empty where nothing is known."""
    kinds = Counter(bottleneck.kind for bottleneck in bottlenecks(results) if bottleneck.shares)
    most = {str(one.row["model"]): one for one in reversed(losers(results))}
    lost = [f"{name_of(most[model].row)} loses {in_words(most[model])}." for model in results.models if model in most]
    each = ", ".join(f"{kind} {number}" for kind, number in kinds.most_common())
    counted = f"The largest share of a step, by number of configurations: {each}."
    if len(kinds) == 1:
        ((kind, number),) = kinds.items()
        counted = f"The largest share of a step: {kind} ({'all ' * (number > 1)}{count(number, 'configuration')})."
    return " ".join([*lost[:MOST_LOSERS], *([counted] if {*kinds} - {UNKNOWN} else [])])


def next_section(material: Material) -> Section | None:
    """What to measure, what more workers would bring, and what that costs."""
    worth = material.parts("what is most worth measuring", lambda: _worth(material.results))
    pictures = [picture for drawing in drawings_of("next") for picture in material.drawn(*drawing.beginnings)]
    parts = [*worth, *folded("Scaling laws, drawn", pictures, "laws"), *_tables(material, "next")]
    lead = "`scaling-study predict` predicts worker counts that were not run."
    return Section("next", "What next", lead, tuple(parts), about_parts=True) if parts else None


def _worth(results: Results) -> Iterator[Part]:
    worth = [f"{suggestion.rule}: {suggestion.sentence}" for suggestion in suggestions(results, comparisons(results))]
    if worth:
        yield Text("**Most worth measuring next**, in this order:")
        yield Bullets(tuple(worth))


def published_section(material: Material) -> Section | None:
    """Speeds that were published of such devices; the ratios and outcomes that five public studies claim; and the same
    ones here."""
    parts, results, leads = _tables(material, "published"), material.results, list[str]()
    if held := len(references.beside(results)):
        leads.append(f"Published speeds of the same class of device stand beside {count(held, 'configuration')}.")
    if len(claimed := ratios.claims_table(results)):
        names = list(dict.fromkeys(claimed.study))
        whose = (
            f"the public study {names[0]}" if len(names) == 1 else f"{len(names)} public studies ({', '.join(names)})"
        )
        same = "stands beside the same ratio" if len(claimed) == 1 else "stand beside the same ratios"
        leads.append(f"{count(len(claimed), 'ratio')} of {whose} {same} here.")
    elif outcomes.of_study(results.study.name):
        leads.append("What the published trainings came to, beside those here: accuracies and losses, never seconds.")
    return Section("published", "Published beside measured", " ".join(leads), tuple(parts)) if parts else None


def tables_section(material: Material) -> Section | None:
    """Tables in the published layout, model by model, with the numbers behind each; and two lists of everything."""
    results = material.results
    parts: list[Part] = []
    of_models = [kind for each in catalog.VIEWS for kind in each.tables if isinstance(kind, ModelTable)]
    for model in results.models:
        for kind in of_models:
            parts += material.parts(f"{kind.title} of {model}", partial(_model_table, kind, material, model))
    parts += _tables(material, "tables")
    if not parts:
        return None
    for what, make in (("All configurations", page.configurations), ("All trials", page.trials)):
        parts += material.parts(what.lower(), partial(_list, what, make, results))
    lead = (
        f"Means of {results.repeats}. **Bold**: the fastest of its row; ≈: the highest, too close to call; ▼: slowest "
        'of its row, and slower; unmarked: behind, with its verdict in "Beside the highest mean of each row"; ★: '
        "the row of the fastest."
    )
    if (results.configurations.n < FEWEST_REPEATS).all():
        lead = f"Means of {results.repeats}, too few to rank. **Bold**: the highest of its row."
    return Section("tables", "Tables", lead, tuple(parts), about_parts=True)


def _list(what: str, make: Callable[[Results], LongListing], results: Results) -> list[Part]:
    return folded(what, [make(results)], "lists", full=True)


def _model_table(kind: ModelTable, material: Material, model: str) -> Iterator[Part]:
    shown = kind.of(material.results, model)
    if shown is None or shown.listing is None:
        note_gap(kind.gap, material)
        return
    summary = _summary(shown.listing.title)
    if shown.listing.nothing:
        material.gaps.append(f"{summary}: {shown.listing.nothing}.")
        return
    if isinstance(shown.listing, Table):
        grid = of_table(shown.listing, material.results, model, kind.bars, shown.table, shown.csv)
    else:
        grid = of_listing(shown.listing, shown.csv, shown.table)
    yield Fold(summary, (grid,), kind.name in LEFT_OUT, key=kind.name)


MOST_VALUES, MOST_LETTERS = 8, 300


def provenance_section(material: Material) -> Section:
    results, origins = material.results, material.origins
    lead = (
        f"Study {results.study.name} on {results.study.machine_text}; {results.dates or 'no date'}; {origins.trials:,} "
        "records."
    )
    return Section("provenance", "Provenance", lead, tuple(_parts(material, origins)))


def _parts(material: Material, origins: Origins) -> Iterator[Part]:
    yield Bullets(
        (
            f"This page, all tables, figures and raw samples: `scaling-study report {material.folder}`; every table on "
            "this page: `--full`",
            f"Every trial: {_again(material.folder)} (finished trials are skipped)",
        )
    )
    for title, table, file in (
        ("Machine, code and data, as recorded", origins.about, "about.csv"),
        ("Versions", origins.versions, "versions.csv"),
        ("Environment variables that affect speed", origins.environment, "environment.csv"),
    ):
        yield from folded(title, _grid(title, table, file), "origins", full=True)
    yield from folded(STUDY_FILE, [Code(origins.study)] if origins.study else [], "study", full=True)
    lines = {str(name): origins.commands.get(str(name)) for name in material.results.configurations.configuration}
    if kept := [(name, line) for name, line in lines.items() if line]:
        columns = tuple(zip(*kept, strict=True))
        listing = LongListing("commands", "Command lines", ("configuration", "command"), columns, "trials/")
        yield from folded("Command lines, one of each configuration", [listing], "commands", full=True)
    yield from _samples(origins)
    gaps = tuple(dict.fromkeys(material.gaps))
    yield from folded("Not shown, and why", [Bullets(gaps)] if gaps else [], "gaps")


def _again(named: str) -> str:
    """The commands that run a study again; of a packed one, once it is a folder."""
    if not named.endswith(".zip"):
        return f"`scaling-study run {named}/{STUDY_FILE}`"
    return f"`scaling-study unpack {named}`, then `scaling-study run {pack.folder_of(Path(named))}/{STUDY_FILE}`"


def _grid(title: str, table: Counts, file: str) -> Iterator[Grid]:
    """A row for each thing; where trials differ in it, each value with its number of trials."""
    rows = []
    for name, values in table.items():
        differ = len(values) > 1
        cells = [
            shortened(text, MOST_LETTERS) + f" ({count(number, 'trial')})" * differ
            for text, number in values.most_common()
        ]
        rows.append((name, "; ".join(first_of(cells, MOST_VALUES))))
    if rows:
        yield of_rows(title, ("what", "value"), rows, file=file)


def _samples(origins: Origins) -> Iterator[Part]:
    if origins.samples:
        text = Text(
            f"{SAMPLES} beside this page has all {origins.samples:,} step times of every rank, in seconds: "
            f'`numpy.load("{SAMPLES}")["ID OF A TRIAL"]` is an array of (ranks, steps). Everything else of one is in '
            "trials/ID/record.json."
        )
        yield from folded("Raw samples", [text], "samples", full=True)
    if origins.profiles:
        traces = Text("Traces of single trials, for chrome://tracing or ui.perfetto.dev:")
        yield from folded("Traces", [traces, Files(origins.profiles)], "traces")


SECTIONS: dict[str, Callable[[Material], Section | None]] = {
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
    """All sections that the study has, with configurations named by what varies in it."""
    results = material.results
    counted = results.configurations.n > 0
    planned = len(counted) + len(results.unseen)
    same = f"Unless a name says otherwise: {', '.join(results.constants)}" if results.constants else ""
    facts = (
        results.study.machine_text,
        results.dates,
        f"{int(counted.sum())} of {planned} configurations measured, {len(results.runs):,} trials",
        same,
        *(MEANT.get(mark, mark) for mark in results.marks),
    )
    made = [
        material.salvage.or_else(title, partial(make, material), partial(_lost, title))
        for title, make in SECTIONS.items()
    ]
    names, said = page.short_names(results), (notes.source(results), "Parity: all frameworks passed", "**Bold**: ")
    sections = tuple(
        replace(each, lead=names(each.lead), parts=tuple(page.tidied(part, names, said) for part in each.parts))
        for each in made
        if each is not None
    )
    asked = answer.facts_of(material)
    whole = Report(results.study.name, tuple(filter(None, facts)), sections, tuple(material.salvage.lost))
    return worth.fitted(whole, worth.asked(asked) if asked else ())


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
    salvage: Salvage,
    named: str,
    full: bool,
) -> list[Path]:
    """`origins`: collected while `results` were read; `drawn`: the figures whose files are in `folder`/figures;
    `salvage`: what could not be made so far; `named`: the results on the command line; `full`: every table in report.md
    too. Returns the paths. Raises OSError."""
    samples = replaced(folder / SAMPLES, origins.write_samples, durable=False)
    pictures = {figure.name: Picture(figure.name, figure.title, figure.text) for figure in drawn}
    material = Material(results, printable(named), pictures, origins, salvage)
    content = report(material)
    images = {name: image(folder / "figures", name) for name in pictures}
    page = execution.write_text(folder / PAGE, html(content, images))
    return [samples, page, execution.write_text(folder / WORDS, markdown(content, full))]


def image(folder: Path, name: str) -> bytes:
    """Lines where there are not too many of them, else pixels if those are fewer bytes."""
    svg, png = (folder / f"{name}.{kind}" for kind in ("svg", "png"))
    if svg.stat().st_size <= max(MOST_SVG_BYTES, png.stat().st_size):
        return svg.read_bytes().replace(FONT, WIDE_FONTS)
    return png.read_bytes()
