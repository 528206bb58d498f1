"""Records -> tables and figures. Never imports torch and never starts a trial: a laptop without either can do it.

    python -m analysis results/<study>

The imports are inside the functions, because `python -m analysis --help` and the sweep's start pay for this one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def write(results: Path, processes: int = 1, console: Console | None = None) -> list[Path]:
    """Write results.csv, configurations.csv, tables/ and figures/ into `results`; return their paths.

    With a `console`, print the tables there too: every record is read once for all.

    `processes`: how many may read and draw at once, of many trials (process_pool.available_processes()).
    Raises analysis.frames.study.NotResults if `results` is no results folder, OSError if it cannot be written to.
    Warns analysis.frames.trials.SkippedRecord, with its name, of each record that cannot be read.
    """
    from analysis import outputs
    from analysis.tables import terminal

    whole = outputs.read_folder(results, processes)
    paths = outputs.write(results, processes=processes, whole=whole)
    if console:
        terminal.show(whole[0], console)
    return paths


def print_tables(results: Path, console: Console | None = None) -> None:
    """Print the throughput and speed-up tables of every model. Raises and warns as write() does."""
    from rich.console import Console

    from analysis.frames import results as reading
    from analysis.tables import terminal

    terminal.show(reading.read(results), console or Console())
