"""The networks of a study as a table: latency and bandwidth, and how well the fit holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from analysis.frames.results import Results
from analysis.network import fit
from analysis.network.fit import Probe
from analysis.network.frame import table
from analysis.tables import notes
from analysis.tables.layout import Listing
from scaling_study.records.store import BUSY_CORES
from scaling_study.stats.alpha_beta import AlphaBeta, bounded, three_digits
from scaling_study.stats.collectives import bus_factor

STRAIGHT = 0.1  # sizes further off the line than this are said to be no line
HEADER = (
    *("network", "collective", "cores", "latency (µs)", "bandwidth (GB/s)", "of the bus (GB/s)"),
    *("off the line by", "at most", "smallest size", "takes", "largest size", "takes"),
)


def listing(results: Results) -> Listing | None:
    """A row for each probe, collective and state of the cores; None where the study probed no network."""
    if results.probes.empty:
        return None
    probes = fit.probes(results)
    sizes = table(results)
    rows = [_cells(probe, key, made, sizes) for probe in probes for key, made in probe.fits.items()]
    said = [*_crooked(probes), *_failed(results), *_disturbed(results), *_legend(sizes), f"{notes.source(results)}."]
    return Listing(f"The network ({results.study.name})", HEADER, tuple(rows), tuple(said))


def brief(results: Results) -> Listing | None:
    """The same in few words, for a terminal."""
    whole = listing(results)
    if whole is None:
        return None
    at = [HEADER.index(name) for name in ("latency (µs)", "bandwidth (GB/s)")]
    rows = tuple((", ".join(filter(None, row[:3])), *(row[i] for i in at)) for row in whole.rows)
    loud = tuple(note for note in whole.notes if note.startswith("**") or not note.endswith("."))
    return Listing(whole.title, ("network", *(HEADER[i] for i in at)), rows, loud)


def _cells(probe: Probe, key: fit.Key, made: AlphaBeta, sizes: pd.DataFrame) -> tuple[str, ...]:
    collective, busy = key
    ours = sizes[(sizes.configuration == probe.configuration) & (sizes.collective == collective) & (sizes.busy == busy)]
    smallest, largest = ours.iloc[0], ours.iloc[-1]
    bounds = None if made.alpha_low is None or made.alpha_high is None else (made.alpha_low, made.alpha_high)
    return (
        probe.name, collective.replace("_", "-"), state_text(probe, busy),
        bounded(made.alpha_seconds, bounds, 1e6), bounded(made.bytes_per_second, made.bytes_per_second_bounds, 1e-9),
        three_digits(bus_factor(collective, probe.workers) * made.bytes_per_second / 1e9),
        f"{100 * made.misfit:.0f} %", f"{100 * made.worst:+.0f} % at {size_text(made.worst_bytes)}",
        size_text(int(smallest.bytes)), duration_text(smallest.seconds),
        size_text(int(largest.bytes)), duration_text(largest.seconds),
    )  # fmt: skip


def state_text(probe: Probe, busy: bool) -> str:
    """Whether the cores computed meanwhile, where that was told apart."""
    return "busy" if busy else "idle" if any(key[1] for key in probe.fits) else ""


def size_text(bytes: int) -> str:
    """`1 KiB`, `256 MiB`, `1008 B`."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if bytes >= size and bytes % size == 0:
            return f"{bytes // size} {unit}"
    return f"{bytes} B"


def duration_text(seconds: float) -> str:
    """`31.2 µs`, `4.5 ms`, `0.41 s`."""
    for unit, scale in (("µs", 1e6), ("ms", 1e3)):
        if seconds * scale < 999.5:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def rate_text(bytes_per_second: float) -> str:
    """`1.24 GB/s`, `57.3 MB/s`, `10 kB/s`."""
    for unit, scale in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if bytes_per_second >= 0.9995 * scale:
            return f"{bytes_per_second / scale:.3g} {unit}"
    return f"{bytes_per_second:.3g} B/s"


def _crooked(probes: Sequence[Probe]) -> Iterator[str]:
    """One sentence for those whose sizes are no line, worst first."""
    every = [(made.misfit, probe, key) for probe in probes for key, made in probe.fits.items()]
    names = [
        f"{probe.name}, {key[0].replace('_', '-')}{f', {state}' if (state := state_text(probe, key[1])) else ''}"
        for misfit, probe, key in sorted(every, key=lambda one: -one[0])
        if misfit > STRAIGHT
    ]
    if names:
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        yield (
            f"**No straight line**: sizes are off it by more than {100 * STRAIGHT:.0f} % beyond their noise, as where "
            f"a protocol changes with the size, or a cache ends ({'; '.join(names[:4])}{more}). The two numbers are a "
            "summary there; network.csv has each size."
        )


def _failed(results: Results) -> Iterator[str]:
    bad = results.probes[results.probes.status != "ok"].drop_duplicates("configuration")
    for row in bad.itertuples():
        yield f"{row.status}: {row.reason} ({row.configuration})."


def _disturbed(results: Results) -> Iterator[str]:
    others = results.probes.busy_elsewhere_cores.dropna()
    if len(busy := others[others > BUSY_CORES]):
        yield (
            f"**The machine was not quiet**: during {len(busy)} of {len(others)} probes other processes kept more than "
            f"{BUSY_CORES} cores busy, {busy.max():.1f} at most."
        )


def _legend(sizes: pd.DataFrame) -> Iterator[str]:
    yield (
        "Seconds of a call = latency + size / bandwidth, by least squares of relative errors over the sizes [95 %]. "
        "Size, and bandwidth of the bus, as in nccl-tests: of an all-gather and a reduce-scatter the whole; times "
        "2(n-1)/n of an allreduce, (n-1)/n of those two, 1 of a broadcast."
    )
    yield (
        "A call takes as long as its slowest rank, from a barrier on; every result was checked on every rank. Cores "
        "busy: they multiplied matrices meanwhile, as training does while gradients travel."
    )
    if kinds := " and ".join(sorted(set(sizes.interval))):
        yield f"Off the line by: beyond what the sizes' noise ({kinds}) explains; at most: the largest residual."
