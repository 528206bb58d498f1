"""Results folder -> results.csv, configurations.csv, tables/ and figures/, replacing what an earlier run left.

A reader never meets half a file (execution.py). Files of ours that this run no longer makes (a model taken
out of the study) are deleted; anybody else's are left alone.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pandas as pd

from analysis.execution import NOTHING, LostPart, Salvage, write_csv, write_text
from analysis.frames import results
from analysis.frames.results import Results
from analysis.report.origins import Origins
from analysis.show import layout
from analysis.show.layout import Listing, Table
from analysis.views import catalog, figures
from analysis.views.view import ModelTable

MOST_TRIALS = 500  # whose report a sweep writes at its end
GONE = ("extrapolation",)  # tables that earlier versions wrote


def read_folder(folder: Path) -> tuple[Results, Origins]:
    """All that is written of a results folder, from one read of its records. Raises and warns as results.read."""
    origins = Origins.of(folder)
    return results.read(folder, origins.add), origins


def write(read: Results, origins: Origins, folder: Path, page: bool | None, named: str, full: bool) -> list[Path]:
    """Write everything and return the paths. Raises OSError; warns LostPart.

    `page`: whether to write the report too; None: where the study is small enough for that to take no time. `named`:
    what the user called these results. `full`: whether report.md has every table.
    """
    salvage = Salvage()
    paths = [write_csv(folder / "results.csv", read.trials)]
    shown = read.configurations.drop(columns=["series_order", "batch"])
    paths.append(write_csv(folder / "configurations.csv", shown))
    paths += write_tables(read, folder / "tables", salvage)
    drawn = figures.write(read, folder / "figures", salvage)
    paths += figures.paths(drawn)
    if page or (page is None and len(read.trials) <= MOST_TRIALS):
        from analysis.report import sections

        paths += sections.write(read, origins, folder, drawn, salvage, named, full)
    made_here = ours()
    for place in ("tables", "figures"):
        for path in (folder / place).glob("*"):
            if made_here.fullmatch(path.name) and path not in paths:
                path.unlink()
    for part in salvage.lost:
        warnings.warn(part, LostPart, stacklevel=2)
    return paths


def write_tables(read: Results, folder: Path, salvage: Salvage = NOTHING) -> list[Path]:
    """Every table that a view has of this study: in Markdown, the numbers in CSV."""
    paths: list[Path] = []
    for view in catalog.VIEWS:
        for kind in view.tables:
            for what, make in kind.each(read):
                if shown := salvage.made(f"table: {what}", make, None):
                    listing = shown.listing if "md" in kind.files else None
                    paths += write_table(folder, shown.file, listing, shown.table if "csv" in kind.files else None)
    return paths


def write_table(folder: Path, name: str, listing: Table | Listing | None, numbers: pd.DataFrame | None) -> list[Path]:
    """name.md and name.csv, or the one of them that there is."""
    paths = []
    if listing is not None:
        paths.append(write_text(folder / f"{name}.md", layout.markdown(listing)))
    if numbers is not None:
        paths.append(write_csv(folder / f"{name}.csv", numbers))
    return paths


def ours() -> re.Pattern[str]:
    """Matches the names of files in tables/ and figures/ that some study has."""
    tables = [kind.name for view in catalog.VIEWS for kind in view.tables]
    of_models = [kind.name for view in catalog.VIEWS for kind in view.tables if isinstance(kind, ModelTable)]
    drawings = [drawing for view in catalog.VIEWS for drawing in view.figures]
    several = [name for drawing in drawings if drawing.several for name in drawing.beginnings]
    alone = "|".join([*GONE, *tables, *(drawing.name for drawing in drawings)])
    return re.compile(rf"({alone}|({'|'.join([*of_models, *several])})-.+)\.(md|csv|png|svg)")
