"""Records -> tables and figures. Never imports torch and never starts a trial: a laptop without either can do it.

    python -m analysis results/<study>          or a packed study, X.study.zip

The imports are inside the functions, because `python -m analysis --help` and the sweep's start pay for this one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def write(
    results: Path,
    console: Console | None = None,
    out: Path | None = None,
    page: bool | None = None,
    references: Path | None = None,
    full: bool = False,
    answer_only: bool = False,
) -> list[Path]:
    """Write results.csv, configurations.csv, tables/ and figures/ of a results folder or a packed study.

    Returns their paths: in `out`, else in the folder, or in X/ beside a file X.study.zip. With a `console`, print the
    tables there too, with `answer_only` the answer alone: every record is read once for all. `page`: also the report;
    None: of a study that is not large. `references`: a file of published figures beside those shipped
    (analysis.published.references). `full`: report.md has every table, as report.html has.

    Raises analysis.frames.study.NotResults if `results` is neither, StudyError for what is wrong with `references`,
    OSError where it cannot be written to.
    Warns analysis.frames.trials.SkippedRecord, with its name, of each record that cannot be read.
    """
    from analysis import outputs, terminal
    from analysis.frames.study import opened
    from analysis.published.references import published

    published(references)  # whatever is wrong with it, before anything is written
    with opened(results, out) as source:
        read, origins = outputs.read_folder(source.folder)
        read = replace(read, skipped=tuple(map(source.text, read.skipped)), references=references)
        paths = outputs.write(read, origins, source.out, page, str(source.named), full)
        if console:
            (terminal.answer if answer_only else terminal.show)(read, console)
    return paths
