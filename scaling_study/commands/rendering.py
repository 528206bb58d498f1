"""What the command line takes from the analysis, which is imported when it is needed: pandas alone takes a second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console


def render(folder: Path, console: Console | None) -> None:
    """Write the tables and figures of results/<study>, and print the tables on `console`, if there is one."""
    import analysis

    analysis.write(folder, console=console)


def commands() -> dict[str, Callable[..., int]]:
    """The analysis's own commands, by name."""
    from analysis.commands import compare, export, predict, report, tables

    return {
        "tables": tables.tables, "report": report.report, "compare": compare.compare, "predict": predict.predict,
        "export": export.export,
    }  # fmt: skip
