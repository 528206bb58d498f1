"""Provenance: how to get every one of these numbers again, and every sample that they are made of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from analysis.findings.finding import count
from analysis.report.content import Bullets, Code, Files, Fold, Grid, Heading, Listing, Part, Section, Text, missing
from analysis.report.grids import of_rows
from analysis.report.material import Material
from analysis.report.origins import SAMPLES, STUDY_FILE, Origins, Table
from scaling_study.quoting import shortened
from scaling_study.records import pack

MOST_VALUES, MOST_LETTERS = 8, 300


def section(material: Material) -> Section:
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
    yield Listing("commands", "Command lines", ("configuration", "command"), (names, lines), "trials/")


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
