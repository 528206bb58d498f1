"""Networks that a study probed: latency and bandwidth of each, and a row for each size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from analysis.frames.configurations import known
from analysis.frames.results import Results
from analysis.frames.rows import as_rows, bounded
from analysis.statistics.scaling_laws import hosts_of
from scaling_study.stats.intervals import FEWEST_REPEATS, between_repeats
from scaling_study.stats.network import COLLECTIVES, GLOO, AlphaBeta, Point, bus_factor, sent_share
from scaling_study.stats.network import fit as fit_line

Key = tuple[str, bool]  # (collective, cores busy)


@dataclass(frozen=True)
class Probe:
    """One configuration of a network probe. `fits` has no collective that was measured at fewer than two sizes.

    Alpha and beta are those of the collective on as many workers as the probe had. Their intervals are the wider of
    two: of the line through the means, where sizes are off it, and, with three repeats or more, of the repeats' own
    lines, since processes that are started again find another network.
    """

    configuration: str
    name: str  # `torch.distributed (gloo), 2 workers`
    launcher: str
    controller: str | None
    workers: int
    hosts: int
    device: str
    fits: dict[Key, AlphaBeta]

    def bus_factor(self, collective: str) -> float:
        """Of nccl-tests, by the algorithm of this probe's library."""
        return bus_factor(collective, self.workers, algorithms(self.launcher, self.device))


def probes(results: Results) -> list[Probe]:
    """Every probe of the study that was measured, in the order of their names."""
    probes, trials = [], results.probes.drop_duplicates("configuration").set_index("configuration")
    for name, ours in probes_table(results).groupby("configuration", sort=False):
        configuration, about = str(name), ours.iloc[0]
        fits = {
            (str(collective), bool(busy)): _fitted(group, results, configuration)
            for (collective, busy), group in ours.groupby(["collective", "busy"], sort=False)
            if group.bytes.nunique() > 1
        }
        controller = None if pd.isna(about.controller) else str(about.controller)
        hosts = hosts_of({"hosts": trials.hosts[configuration]})
        where = str(about.launcher), controller, int(about.workers), hosts, str(about.device)
        probes.append(Probe(configuration, str(about.probe), *where, fits))
    return probes


def _fitted(sizes: pd.DataFrame, results: Results, configuration: str) -> AlphaBeta:
    """`sizes`: the rows of `probes_table` of one probe, collective and state of the cores."""
    rows = results.details.network
    rows = rows[(rows.configuration == configuration) & (rows.collective == sizes.collective.iloc[0])]
    rows = rows[rows.busy == sizes.busy.iloc[0]]
    if rows.repeat.nunique() < FEWEST_REPEATS:
        return _line(sizes)
    each = rows.assign(seconds_error=(rows.seconds_high - rows.seconds_low) / 4).groupby("repeat")
    return _widened(_line(sizes), [_line(ours) for _, ours in each])


def _widened(whole: AlphaBeta, each: Sequence[AlphaBeta]) -> AlphaBeta:
    """The line through all repeats, with intervals that hold for the repeats' own lines too."""
    alpha = between_repeats([fitted.alpha_seconds for fitted in each]).half_width or 0.0
    beta = between_repeats([fitted.beta_seconds_per_byte for fitted in each]).half_width or 0.0
    a, b = whole.alpha_seconds, whole.beta_seconds_per_byte
    return replace(
        whole,
        alpha_low=max(0.0, min(a - alpha, a if whole.alpha_low is None else whole.alpha_low)),
        alpha_high=max(a + alpha, whole.alpha_high or 0.0),
        beta_low=max(0.0, min(b - beta, b if whole.beta_low is None else whole.beta_low)),
        beta_high=max(b + beta, whole.beta_high or 0.0),
    )


def _line(sizes: pd.DataFrame) -> AlphaBeta:
    """Through the mean seconds of each size."""
    known = zip(sizes.bytes, sizes.seconds, sizes.seconds_error, strict=True)
    return fit_line(
        [Point(int(size), float(mean), None if pd.isna(error) else float(error)) for size, mean, error in known]
    )


BETWEEN, WITHIN = "between repeats", "within the run"
LIBRARIES: Mapping[str, str] = {"torchrun": "torch.distributed", "horovodrun": "Horovod", "mpirun": "mpi4py"}
COLUMNS = (
    "configuration",
    "probe",
    "launcher",
    "controller",
    "device",
    "workers",
    "collective",
    "busy",
    "bytes",
    "repeats",
    "calls",
    "seconds",
    "seconds_low",
    "seconds_high",
    "seconds_error",
    "interval",
    "seconds_min",
    "seconds_max",
    "algorithm_bytes_per_second",
    "bus_bytes_per_second",
    "algorithm_bytes",
    "sent_bytes",
)


def probes_table(results: Results) -> pd.DataFrame:
    """COLUMNS of every probe that is ok, by probe, state of the cores, collective and size.

    Intervals are 95 %: between the repeats with three or more, else within the runs, as `interval` says. Bytes are of
    one call and rank, mean over the ranks: by the library's algorithm, and as the TCP sockets counted them.
    """
    trials = results.probes[results.probes.status == "ok"].drop_duplicates("configuration")
    about = {row["configuration"]: row for row in as_rows(trials)}
    names = _names(about)
    sizes = results.details.network
    rows = []
    for _, ours in sizes[sizes.configuration.isin(about)].groupby(
        ["configuration", "busy", "collective", "bytes"], sort=False
    ):
        first = ours.iloc[0]
        trial, n, seconds = about[first.configuration], len(ours), float(ours.seconds.mean())
        by = first.collective, int(trial["workers"]), algorithms(trial["launcher"], trial["device"])
        if n >= FEWEST_REPEATS:
            mean, error, interval = between_repeats(ours.seconds.to_numpy()), ours.seconds.std() / n**0.5, BETWEEN
            low, high = mean.low, mean.high
        else:  # of each run, independent of the others
            half, interval = ((ours.seconds_high - ours.seconds_low).pow(2).sum(skipna=False)) ** 0.5 / 2 / n, WITHIN
            low, high, error = max(0.0, seconds - half), seconds + half, half / 2
        rows.append(
            {
                "configuration": first.configuration,
                "probe": names[first.configuration],
                **{key: trial[key] for key in ("launcher", "controller", "device")},
                "workers": int(trial["workers"]),
                "collective": first.collective,
                "busy": first.busy,
                "bytes": first.bytes,
                "repeats": n,
                "calls": int(ours.calls.sum()),
                **bounded("seconds", seconds, low, high),
                "seconds_error": error,
                "interval": interval,
                "seconds_min": ours.seconds_min.min(),
                "seconds_max": ours.seconds_max.max(),
                "algorithm_bytes_per_second": first.bytes / seconds,
                "bus_bytes_per_second": bus_factor(*by) * (first.bytes / seconds),
                "algorithm_bytes": (sent_share(*by) or 0.0) * first.bytes,
                "sent_bytes": ours.sent_bytes.mean(),
            }
        )
    rows.sort(
        key=lambda row: (
            row["probe"],
            row["configuration"],
            row["busy"],
            COLLECTIVES.index(row["collective"]),
            row["bytes"],
        )
    )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _names(trials: Mapping[str, Mapping[Any, Any]]) -> dict[str, str]:
    """Configuration -> `Horovod (gloo), 2 workers`, with its hash's digits where two would be called alike."""
    names = {configuration: _name(trial) for configuration, trial in trials.items()}
    every = list(names.values())
    return {c: name if every.count(name) == 1 else f"{name}, {c.rpartition('-')[2]}" for c, name in names.items()}


def algorithms(launcher: object, device: object) -> str:
    """The library whose algorithms carried a probe, where they are not the usual ones (`sent_share`)."""
    return GLOO if launcher == "torchrun" and device == "cpu" else ""


def _name(trial: Mapping[Any, Any]) -> str:
    library = LIBRARIES.get(str(trial["launcher"]), str(trial["launcher"]))
    carrier = str(trial["controller"]) if known(trial["controller"]) else ""
    if library == "torch.distributed":
        carrier = algorithms(trial["launcher"], trial["device"]) or "NCCL"
    cycle = f", cycle of {1000 * trial['cycle_seconds']:g} ms" if known(trial["cycle_seconds"]) else ""
    over = f" on {hosts} hosts" if (hosts := hosts_of(trial)) > 1 else ""
    return f"{library}{f' ({carrier})' if carrier else ''}{cycle}, {trial['workers']} workers{over}"
