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
from analysis.text.number_formats import binary_size, duration, giga
from scaling_study.records.store import BUSY_CORES
from scaling_study.stats.alpha_beta import AlphaBeta, bounded
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
    rows = [_cells(probe, key, fitted, sizes) for probe in probes for key, fitted in probe.fits.items()]
    lines = [*_crooked(probes), *_failed(results), *_disturbed(results), *_legend(sizes), f"{notes.source(results)}."]
    return Listing(f"The network ({results.study.name})", HEADER, tuple(rows), tuple(lines))


def brief(results: Results) -> Listing | None:
    """The same in few words, for a terminal."""
    whole = listing(results)
    if whole is None:
        return None
    at = [HEADER.index(name) for name in ("latency (µs)", "bandwidth (GB/s)")]
    rows = tuple((", ".join(filter(None, row[:3])), *(row[i] for i in at)) for row in whole.rows)
    loud = tuple(note for note in whole.notes if note.startswith("**") or not note.endswith("."))
    return Listing(whole.title, ("network", *(HEADER[i] for i in at)), rows, loud)


def _cells(probe: Probe, key: fit.Key, fitted: AlphaBeta, sizes: pd.DataFrame) -> tuple[str, ...]:
    collective, busy = key
    ours = sizes[(sizes.configuration == probe.configuration) & (sizes.collective == collective) & (sizes.busy == busy)]
    smallest, largest = ours.iloc[0], ours.iloc[-1]
    bounds = None if fitted.alpha_low is None or fitted.alpha_high is None else (fitted.alpha_low, fitted.alpha_high)
    return (
        probe.name, collective.replace("_", "-"), state_text(probe, busy),
        bounded(fitted.alpha_seconds, bounds, 1e6),
        bounded(fitted.bytes_per_second, fitted.bytes_per_second_bounds, 1e-9),
        giga(bus_factor(collective, probe.workers) * fitted.bytes_per_second),
        f"{100 * fitted.misfit:.0f} %", f"{100 * fitted.worst:+.0f} % at {binary_size(fitted.worst_bytes)}",
        binary_size(int(smallest.bytes)), duration(smallest.seconds),
        binary_size(int(largest.bytes)), duration(largest.seconds),
    )  # fmt: skip


def state_text(probe: Probe, busy: bool) -> str:
    """Whether the cores computed meanwhile, where that was told apart."""
    return "busy" if busy else "idle" if any(key[1] for key in probe.fits) else ""


def _crooked(probes: Sequence[Probe]) -> Iterator[str]:
    """One sentence for those whose sizes are no line, worst first."""
    every = [(fitted.misfit, probe, key) for probe in probes for key, fitted in probe.fits.items()]
    names = [
        f"{probe.name}, {key[0].replace('_', '-')}{f', {state}' if (state := state_text(probe, key[1])) else ''}"
        for misfit, probe, key in sorted(every, key=lambda item: -item[0])
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
