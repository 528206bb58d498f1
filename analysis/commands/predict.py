"""python -m analysis predict RESULTS --workers 4,8,64,512: what more workers would give, as table and figure.

Exit codes: 0 done; 2 not a results folder, nothing to predict from, or no network known.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.prediction import quantities
from analysis.prediction.network import CannotPredict, Link, Network

if TYPE_CHECKING:
    from analysis.tables.layout import Listing

WITHOUT_BRACKETS = "Intervals are in tables/prediction.md and .csv: 95 %"  # a terminal has no room for them
ALGORITHMS = ("ring", "tree", "halving_doubling", "hierarchical")  # collectives.ALGORITHMS, for --help


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m analysis predict",
        description="Predict throughput, efficiency and exposed communication of more workers, from a study's runs "
        "with one worker and a network that it measured or that is given.",
    )
    made.add_argument("results", type=Path, metavar="RESULTS", help="a results folder, such as results/<study>")
    made.add_argument("--workers", type=_as(quantities.workers), required=True, metavar="N,N,...", help="up to 100,000")
    network = made.add_argument_group("the network (default: what a network_probe in the study measured)")
    network.add_argument("--bandwidth", type=_as(quantities.bandwidth), metavar="RATE", help="between hosts: 25Gbit")
    network.add_argument("--latency", type=_as(quantities.duration), metavar="TIME", help="of a message: 5us")
    network.add_argument("--per-host", type=int, metavar="N", help="workers on a host (default: 1)")
    network.add_argument("--local-bandwidth", type=_as(quantities.bandwidth), metavar="RATE", help="within a host")
    network.add_argument("--local-latency", type=_as(quantities.duration), metavar="TIME", help="within a host")
    how = made.add_argument_group("how gradients are reduced (default: as the study's frameworks did)")
    how.add_argument("--algorithm", type=_as(_algorithms), metavar="NAME,...", help=", ".join(ALGORITHMS))
    how.add_argument("--allreduce", type=_as(_precisions), metavar="NAME,...", help="precision on the wire: fp32,fp16")
    how.add_argument("--fusion-bytes", type=_as(quantities.size), metavar="SIZE", help="of one call at most: 64MiB")
    how.add_argument("--cycle", type=_as(quantities.duration), metavar="TIME", help="of Horovod: 1ms")
    made.add_argument("--no-stragglers", action="store_true", help="do not wait for the slowest worker")
    made.add_argument(
        "--crowding", type=_as(_crowding), metavar="FACTOR",
        help="how many times as long workers compute that share a host (default: as measured in the study, else 1)",
    )  # fmt: skip
    made.add_argument(
        "--check", action="store_true",
        help="set beside what the study measured with several workers (always done where it measured its network too)",
    )  # fmt: skip
    made.add_argument("-q", "--quiet", action="store_true", help="write the files, print no table")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    made = parser()
    asked = made.parse_args(argv)
    if asked.per_host is not None and not 1 <= asked.per_host <= quantities.MOST_WORKERS:
        made.error(f"argument --per-host: {asked.per_host} is not between 1 and {quantities.MOST_WORKERS:,}")

    from analysis.frames.study import NotResults
    from analysis.frames.trials import SkippedRecord

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SkippedRecord)
        try:
            written, table = run(asked)
        except (NotResults, CannotPredict) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except OSError as error:
            print(f"error: {asked.results} cannot be written to: {error}", file=sys.stderr)
            return 2
    for message in dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, SkippedRecord)):
        print(f"warning: {message}", file=sys.stderr)
    if not asked.quiet:
        show(table)
    folders = ", ".join(sorted({str(path.parent) for path in written}))
    print(f"{len(written)} files in {folders}")
    return 0


def run(asked: argparse.Namespace) -> tuple[list[Path], Listing]:
    """(files written, the table). Raises NotResults, CannotPredict, OSError."""
    from analysis.execution import atomic_files, process_pool
    from analysis.figures import drawing
    from analysis.figures import prediction as figure
    from analysis.frames import results
    from analysis.prediction import frame as table
    from analysis.prediction.forecast import Asked, forecast
    from analysis.tables import layout, prediction

    read = results.read(asked.results, process_pool.available_processes())
    made = forecast(read, asked.results, Asked(
        asked.workers, asked.algorithm or (), asked.allreduce or (), given(asked), asked.fusion_bytes, asked.cycle,
        not asked.no_stragglers, asked.crowding, asked.check,
    ))  # fmt: skip
    said = prediction.listing(made, read)
    folder = asked.results / "tables"
    written = [atomic_files.write_text(folder / "prediction.md", layout.markdown(said))]
    written.append(atomic_files.write_csv(folder / "prediction.csv", table.table(made)))
    pictures = figure.draw(made, read).items()
    drawn = [drawing.save(name, picture, asked.results / "figures") for name, picture in pictures]
    return written + drawing.paths(drawn), said


def show(table: Listing) -> None:
    """The table in the terminal: algorithms side by side, and what it stands on below."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from analysis.tables.prediction import BRACKETS

    place = {name: index for index, name in enumerate(table.header)}
    algorithms = list(dict.fromkeys(row[place["algorithm"]] for row in table.rows))
    made = Table(title=Text(table.title), title_justify="left", title_style="bold")
    made.add_column("configuration")
    for name in ("workers", *(f"{name}: samples/s, efficiency" for name in algorithms)):
        made.add_column(name, justify="right")
    groups: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for row in table.rows:
        way = (row[0], row[place["allreduce"]])
        speed, share = (row[place[name]].split(" [")[0] for name in ("samples/s", "efficiency"))
        groups.setdefault(way, {}).setdefault(row[place["workers"]], {})[row[place["algorithm"]]] = f"{speed}, {share}"
    for way, counts in groups.items():
        for index, (count, cells) in enumerate(counts.items()):
            said = Text(", ".join(way) if index == 0 else "")
            made.add_row(said, count, *(cells.get(algorithm, "") for algorithm in algorithms))
        made.add_section()
    console = Console(highlight=False)
    console.print(made)
    for note in table.notes:
        told = note.replace(BRACKETS, WITHOUT_BRACKETS).replace("**", "")
        console.print(Text(f"  {told}", style="dim"))


def given(asked: argparse.Namespace) -> Network | None:
    """The network that the command line describes; None where it says nothing. Raises CannotPredict for half of one."""
    between = _link(asked.bandwidth, asked.latency, "--bandwidth", "--latency")
    within = _link(asked.local_bandwidth, asked.local_latency, "--local-bandwidth", "--local-latency")
    if between is None:
        if within or asked.per_host:
            raise CannotPredict("hosts need a link between them: --bandwidth and --latency are missing")
        return None
    if within is None and (asked.per_host or 1) > 1:
        raise CannotPredict(
            f"{asked.per_host} workers a host need a link of their own: --local-bandwidth and --local-latency are "
            "missing"
        )
    if within and asked.per_host is None:
        raise CannotPredict("a link within hosts needs to know how many workers share one: --per-host is missing")
    return Network(between, within, asked.per_host or 1)


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


def _as(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """An argparse type that says what `parse` says."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed
