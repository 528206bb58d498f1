"""python -m analysis predict RESULTS --workers 4,8,64,512: what more workers would give, as table and figure.

Exit codes: 0 done; 2 not a results folder, nothing to predict from, or no network known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analysis.commands.messages import OK, Out, Quiet, ResultsFolder, exit_code, files_written, parsed
from analysis.prediction import quantities
from analysis.prediction.network import CannotPredict, Link, Network

if TYPE_CHECKING:
    from analysis.prediction.forecast import Asked
    from analysis.tables.layout import Listing

WITHOUT_BRACKETS = "Intervals are in tables/prediction.md and .csv: 95 %"  # a terminal has no room for them
ALGORITHMS = ("ring", "tree", "halving_doubling", "hierarchical")  # collectives.ALGORITHMS, for --help
NETWORK = "The network (default: what a network_probe in the study measured)"
REDUCTION = "How gradients are reduced (default: as the study's frameworks did)"
CROWDING = "How many times as long workers compute that share a host (default: as measured in the study, else 1)."
CHECK = "Compare with what the study measured with several workers (always done where it measured its network too)."


def _option(metavar: str, help: str, group: str | None = None) -> Any:
    return typer.Option(metavar=metavar, help=help, rich_help_panel=group, show_default=False)


@dataclass(frozen=True)
class LinkOptions:
    """What the command line says of the network, each in its unit: bytes per second, seconds."""

    bandwidth: float | None = None
    latency: float | None = None
    per_host: int | None = None
    local_bandwidth: float | None = None
    local_latency: float | None = None


def predict(
    results: ResultsFolder,
    workers: Annotated[str, _option("N,N,…", "Up to 100,000.")],
    bandwidth: Annotated[str | None, _option("RATE", "Between hosts, e.g. 25Gbit.", NETWORK)] = None,
    latency: Annotated[str | None, _option("TIME", "Of a message, e.g. 5us.", NETWORK)] = None,
    per_host: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=quantities.MOST_WORKERS,
            metavar="N",
            help="Workers on a host; default: 1.",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    local_bandwidth: Annotated[str | None, _option("RATE", "Within a host.", NETWORK)] = None,
    local_latency: Annotated[str | None, _option("TIME", "Within a host.", NETWORK)] = None,
    algorithm: Annotated[str | None, _option("NAME,…", f"{', '.join(ALGORITHMS)}.", REDUCTION)] = None,
    allreduce: Annotated[str | None, _option("NAME,…", "Precision on the wire, e.g. fp32,fp16.", REDUCTION)] = None,
    fusion_bytes: Annotated[str | None, _option("SIZE", "Of one call at most, e.g. 64MiB.", REDUCTION)] = None,
    cycle: Annotated[str | None, _option("TIME", "Of Horovod, e.g. 1ms.", REDUCTION)] = None,
    no_stragglers: Annotated[bool, typer.Option("--no-stragglers", help="Do not wait for the slowest worker.")] = False,
    crowding: Annotated[str | None, _option("FACTOR", CROWDING)] = None,
    check: Annotated[bool, typer.Option("--check", help=CHECK)] = False,
    quiet: Quiet = False,
    out: Out = None,
) -> int:
    """Predict throughput, efficiency and exposed communication of more workers.

    From a study's runs with one worker, and a network that it measured or that is given.
    """
    link = LinkOptions(
        parsed("--bandwidth", quantities.bandwidth, bandwidth), parsed("--latency", quantities.duration, latency),
        per_host, parsed("--local-bandwidth", quantities.bandwidth, local_bandwidth),
        parsed("--local-latency", quantities.duration, local_latency),
    )  # fmt: skip
    counts = parsed("--workers", quantities.workers, workers) or ()
    algorithms = parsed("--algorithm", _algorithms, algorithm) or ()
    precisions = parsed("--allreduce", _precisions, allreduce) or ()
    fusion = parsed("--fusion-bytes", quantities.size, fusion_bytes)
    cycle_seconds = parsed("--cycle", quantities.duration, cycle)
    factor = parsed("--crowding", _crowding, crowding)

    def command() -> int:
        from analysis.prediction.forecast import Asked

        asked = Asked(
            counts, algorithms, precisions, network(link), fusion, cycle_seconds, not no_stragglers, factor, check
        )
        paths, table, to_target = run(results, asked, out)
        if not quiet:
            show(table)
            if to_target:
                show_to_target(to_target)
        print(files_written(paths))
        return OK

    return exit_code(command, f"{out or results} cannot be written to", (CannotPredict,))


def run(results: Path, asked: Asked, out: Path | None = None) -> tuple[list[Path], Listing, Listing | None]:
    """(files written, the table, that of seconds to a target where the study trained to one). Raises NotResults,
    CannotPredict, OSError."""
    from analysis.frames.source import opened

    with opened(results, out) as source:
        return _run(source.folder, asked, source.out)


def _run(folder: Path, asked: Asked, out: Path) -> tuple[list[Path], Listing, Listing | None]:
    from analysis.execution import atomic_files, process_pool
    from analysis.figures import drawing
    from analysis.figures import prediction as figure
    from analysis.frames import results
    from analysis.prediction import frame, to_target
    from analysis.prediction.forecast import forecast
    from analysis.tables import layout, prediction, prediction_to_target

    read = results.read(folder, process_pool.available_processes())
    predictions = forecast(read, folder, asked)
    table = prediction.listing(predictions, read)
    paths = [atomic_files.write_text(out / "tables" / "prediction.md", layout.markdown(table))]
    paths.append(atomic_files.write_csv(out / "tables" / "prediction.csv", frame.table(predictions)))
    figures = figure.draw(predictions, read).items()
    drawn = [drawing.save(name, picture, out / "figures") for name, picture in figures]
    paths += drawing.paths(drawn)
    expected = to_target.expected(read, predictions.predictions)
    if not expected:
        return paths, table, None
    seconds = prediction_to_target.listing(expected, read)
    paths.append(atomic_files.write_text(out / "tables" / "prediction-to-target.md", layout.markdown(seconds)))
    numbers = prediction_to_target.table(expected, read)
    paths.append(atomic_files.write_csv(out / "tables" / "prediction-to-target.csv", numbers))
    return paths, table, seconds


def show(table: Listing) -> None:
    """The table in the terminal: algorithms side by side, and what it stands on below."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from analysis.tables.prediction import BRACKETS

    place = {name: index for index, name in enumerate(table.header)}
    algorithms = list(dict.fromkeys(row[place["algorithm"]] for row in table.rows))
    terminal = Table(title=Text(table.title), title_justify="left", title_style="bold")
    terminal.add_column("configuration")
    for name in ("workers", *(f"{name}: samples/s, efficiency" for name in algorithms)):
        terminal.add_column(name, justify="right")
    groups: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for row in table.rows:
        way = (row[0], row[place["allreduce"]])
        speed, share = (row[place[name]].split(" [")[0] for name in ("samples/s", "efficiency"))
        groups.setdefault(way, {}).setdefault(row[place["workers"]], {})[row[place["algorithm"]]] = f"{speed}, {share}"
    for way, counts in groups.items():
        for index, (count, cells) in enumerate(counts.items()):
            configuration = Text(", ".join(way) if index == 0 else "")
            terminal.add_row(configuration, count, *(cells.get(algorithm, "") for algorithm in algorithms))
        terminal.add_section()
    console = Console(highlight=False)
    console.print(terminal)
    for note in table.notes:
        plain = note.replace(BRACKETS, WITHOUT_BRACKETS).replace("**", "")
        console.print(Text(f"  {plain}", style="dim"))


def show_to_target(listing: Listing) -> None:
    """In the terminal: workers, global batch and seconds, and what is best."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = Table(title=Text(listing.title), title_justify="left", title_style="bold")
    places = [listing.header.index(name) for name in ("configuration", "workers", "global batch", "seconds", "error")]
    for place in places:
        terminal.add_column(listing.header[place], justify="left" if place == 0 else "right")
    for row in listing.rows:
        terminal.add_row(*(Text(row[place]) for place in places))
    console = Console(highlight=False)
    console.print(terminal)
    for note in listing.notes:
        console.print(Text(f"  {note}", style="dim"))


def network(given: LinkOptions) -> Network | None:
    """The network that the command line describes; None where it says nothing. Raises CannotPredict for half of one."""
    between = _link(given.bandwidth, given.latency, "--bandwidth", "--latency")
    within = _link(given.local_bandwidth, given.local_latency, "--local-bandwidth", "--local-latency")
    if between is None:
        if within or given.per_host:
            raise CannotPredict("hosts need a link between them: --bandwidth and --latency are missing")
        return None
    if within is None and (given.per_host or 1) > 1:
        raise CannotPredict(
            f"{given.per_host} workers a host need a link of their own: --local-bandwidth and --local-latency are "
            "missing"
        )
    if within and given.per_host is None:
        raise CannotPredict("a link within hosts needs to know how many workers share one: --per-host is missing")
    return Network(between, within, given.per_host or 1)


def _link(bandwidth: float | None, latency: float | None, *flags: str) -> Link | None:
    if bandwidth is None and latency is None:
        return None
    if bandwidth is None or latency is None:
        raise CannotPredict(
            f"a link has both a bandwidth and a latency: {flags[0 if bandwidth is None else 1]} is missing"
        )
    return Link(latency, 1 / bandwidth)


def _named(text: str, known: Sequence[str], what: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"{unknown[0] or 'nothing'} is no {what}: {', '.join(known)}")
    return names


_algorithms = partial(_named, known=ALGORITHMS, what="allreduce algorithm known here")
_precisions = partial(_named, known=("fp32", "fp16", "bf16"), what="precision of an allreduce")


def _crowding(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 10:
        raise ValueError(f"{text} is no factor between 0.1 and 10")
    return value
