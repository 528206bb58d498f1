"""Memory of a worker: by kind, what sharding saves of it, and against batch size until it ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.findings import grouped
from analysis.frames import configurations
from analysis.frames.configurations import BATCH_KEYS, KEYS, known, over, same, usual_batch, values_of
from analysis.frames.measured import MEMORY_COLUMNS
from analysis.frames.results import Results, once
from analysis.frames.rows import ConfigurationRow, as_rows, bounded
from analysis.show import notes, style
from analysis.show.layout import Listing
from analysis.show.style import EndLabel, Failure, SeriesLook
from analysis.text import change, file_name, megabytes, number, percent
from analysis.views.view import Drawing, Gap, ModelTable, StudyTable, View
from scaling_study.frameworks import FRAMEWORKS, POWERSGD
from scaling_study.stats.intervals import Interval

# What a worker holds of parameters P, gradients G and optimiser state O with n workers (Rajbhandari et al., "ZeRO:
# Memory Optimizations Toward Training Trillion Parameter Models", arXiv 1910.02054):
#
#     replicated   P + G + O            DDP, Horovod
#     ZeRO-1       P + G + O/n          the optimiser state is sharded
#     ZeRO-2       P + (G + O)/n        and the gradients
#     ZeRO-3       (P + G + O)/n        and the parameters: FSDP

STATE = ("parameters_bytes", "gradients_bytes", "optimizer_bytes")
REFERENCES = ("torch_ddp", "horovod", "single")  # the first that was measured; none of them shards anything
LEAST_SAVED = 0.005  # of the state, from which on it is sharded
OF_STATE = ("precision", "freeze", "vocabulary", "classes")  # keys that decide how large the whole state is
COLUMNS = (
    "configuration",
    "series",
    "series_order",
    "framework",
    "zero_stage",
    "workers",
    "batch",
    *MEMORY_COLUMNS,
    "peak_memory_bytes",
    "state_bytes",
    "reference",
    "saved",
    "theory",
    "parity",
)


def stage_of(row: ConfigurationRow) -> int | None:
    """The ZeRO stage of a configuration, 0 to 3: as asked for, or its framework's own; None where unknown."""
    if known(row["zero_stage"]):
        return int(row["zero_stage"])
    framework = FRAMEWORKS.get(str(row["framework"]))
    if framework is None or framework.cuts_model or "tensor_parallel" in framework.axes:
        return None
    return framework.shards


def state_bytes(row: ConfigurationRow) -> int:
    """Parameters, gradients and optimiser state of a worker, as far as they are known."""
    return sum(int(row[kind]) for kind in STATE if known(row[kind]))


def held(state: Sequence[float], stage: int, workers: int) -> float:
    """Bytes of `state` (parameters, gradients, optimiser) that a worker holds, in theory."""
    return sum(size / workers if index >= 3 - stage else size for index, size in enumerate(state))


@once
def measured(results: Results, model: str) -> pd.DataFrame:
    """One row of COLUMNS for each configuration of one model that was measured.

    `state_bytes` are parameters, gradients and optimiser; `saved` is their share that is missing against those of
    `reference`, and `theory` what that share should be. Both are None where there is nothing to compare with.
    """
    measured = [row for row in as_rows(results.frame_of(model)) if row["n"] and known(row[MEMORY_COLUMNS[0]])]
    for row in measured:
        row["state_bytes"] = state_bytes(row)
    frame = pd.DataFrame([row | _saved(row, measured) for row in measured], columns=list(COLUMNS), dtype=object)
    return frame.sort_values(["series_order", "batch"], kind="stable", ignore_index=True)


def one_batch(frame: pd.DataFrame) -> pd.DataFrame:
    """Each series once: at the batch size that most have (the largest of several), else at its own largest."""
    usual = frame.assign(usual=frame.batch == usual_batch(as_rows(frame)))
    nearest = usual.sort_values(["usual", "batch"], ascending=False, kind="stable").drop_duplicates("series")
    return nearest.sort_values("series_order", ignore_index=True).drop(columns="usual")


def _saved(row: ConfigurationRow, among: Sequence[ConfigurationRow]) -> dict[str, Any]:
    right = [r for r in among if not configurations.failed(r) and all(same(r[key], row[key]) for key in OF_STATE)]
    name = next((name for name in REFERENCES if any(r["framework"] == name for r in right)), None)
    if name is None:
        return {"reference": None, "saved": None, "theory": None}
    near = ("workers", "batch_per_worker", "allreduce", "accumulation", "compile")
    reference = max(
        (r for r in right if r["framework"] == name), key=lambda other: [same(other[key], row[key]) for key in near]
    )
    whole, stage = reference["state_bytes"], stage_of(row)
    state = [float(reference[kind]) for kind in STATE]
    group = row["shard_group"] if known(row["shard_group"]) else row["workers"]
    should = None if stage is None else 1 - held(state, stage, int(group)) / whole
    return {"reference": name, "saved": 1 - row["state_bytes"] / whole, "theory": should}


@once
def listing(results: Results, model: str) -> Listing | None:
    """A row for each series, at one batch size where it was measured; None where memory was not counted. Without kinds
    that no row has, and without what sharding saves where nothing is sharded."""
    every = measured(results, model)
    kept = one_batch(every)
    if kept.empty:
        return None
    kinds = [kind for kind in (*MEMORY_COLUMNS[:-1], "peak_memory_bytes", "resident_bytes") if kept[kind].notna().any()]
    sharded = bool((kept[["saved", "theory"]].astype(float).abs() > LEAST_SAVED).any(axis=None))
    rows = [
        {
            "configuration (MB a worker)": series_name(row, results),
            "batch": str(row["batch"]),
            **{kind.removesuffix("_bytes").removesuffix("_memory"): megabytes(row[kind]) for kind in kinds},
            **{name: percent(row[name], 0) for name in ("saved", "theory") if sharded},
        }
        for row in as_rows(kept)
    ]
    legend = ["Largest over the ranks. Peak: on a GPU the allocator's, on a CPU the sum of the kinds."]
    if "resident_bytes" in kinds:
        legend[0] += (
            " Resident: the growth of the process beside them (in older records: all of it, libraries included)."
        )
    if left := sorted({*every.batch} - {*kept.batch}):
        legend.append(
            f"At the batch that most configurations have; tables/memory-{file_name(model)}.csv also has batch "
            f"{', '.join(map(str, left))}."
        )
    if sharded:
        references = [str(name) for name in kept.reference.dropna().unique()]
        against = f"against {' or '.join(references)}" if references else "no reference was measured"
        legend.append(
            f"Saved: share of parameters + gradients + optimiser state not held, {against}. Theory: with n workers "
            "ZeRO-1 holds P + G + O/n, ZeRO-2 P + (G + O)/n, ZeRO-3 and FSDP (P + G + O)/n (Rajbhandari et al., arXiv "
            "1910.02054). "
            "Counted between steps: parameters that FSDP gathers for a layer (ZeRO-3), or from forward to backward "
            "(ZeRO-2), are extra."
        )
    if any(row["allreduce"] in POWERSGD or known(row["outer"]) for row in results.rows_of(model)):
        legend.append(
            "Peak has what PowerSGD left out, with its Q; of DiLoCo the weights averaged last, with its momentum."
        )
    return notes.model_listing(results, model, f"Memory of {model} by kind", rows, legend)


def series_name(row: ConfigurationRow, results: Results) -> str:
    """`horovod, 2 workers †`, where parity failed."""
    return f"{row['series']} {configurations.sign_of_work(results.by_name[row['configuration']])}".rstrip()


# Memory against batch, and where it ends:
#
#     bytes |            x  x     out of memory: measured, or implied by a smaller batch (not run)
#           |        o'
#           |    o'               measured peaks lie on a line: bytes = fixed + per sample x batch
#           | o'
#           +---------------- batch of a worker
#
# The device's limit is only known as a bracket: the line at the largest batch that fitted is below it, and at the
# smallest that did not, above. How full a device may be is nowhere recorded, and allocators lose some of it.

OOM, FIND_MAX = "oom", "max_batch"
ALIKE = tuple(key for key in KEYS if key not in (*BATCH_KEYS, "find"))
AS_LARGE = tuple(key for key in ALIKE if key != "warm")  # a search has launches to itself; what fits is the same


@dataclass(frozen=True)
class BatchFamily:
    """Configurations that differ in the size of the batch only. Batches are of one worker, in ascending order."""

    rows: tuple[ConfigurationRow, ...]  # measured, with a peak
    out: tuple[int, ...]  # batches that were out of memory
    implied: tuple[int, ...]  # batches that were not run for it
    searched: int | None  # the largest that fits, where it was looked for (find: max_batch)
    about: ConfigurationRow  # the keys that all have

    @property
    def series(self) -> str:
        return str(self.about["series"])

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(int(row["batch_per_worker"]) for row in self.rows)

    @property
    def peaks(self) -> tuple[int, ...]:
        """Bytes of one worker, the largest of its repeats."""
        return tuple(row["peak_memory_bytes"] or 0 for row in self.rows)

    @property
    def largest(self) -> int | None:
        """That fitted; None where none was seen to."""
        return max(filter(None, (*self.batches, self.searched)), default=None)

    @property
    def smallest_out(self) -> int | None:
        """The smallest that did not fit though nothing larger did."""
        beyond = [batch for batch in self.out if batch > (self.largest or 0)]
        return min(beyond, default=None)

    @property
    def line(self) -> tuple[float, float] | None:
        """(fixed bytes, bytes of a sample), by least squares of relative errors; None of one size or no growth."""
        if len(set(self.batches)) < 2:
            return None
        slope, fixed = np.polyfit(self.batches, self.peaks, 1, w=1 / np.array(self.peaks))  # relative errors
        return (float(fixed), float(slope)) if slope > 0 else None

    def bytes_at(self, batch: int) -> float | None:
        """By the line."""
        return None if self.line is None else self.line[0] + self.line[1] * batch

    @property
    def growth(self) -> tuple[int, int, Interval] | None:
        """(from, to, ratio of throughputs) of the two largest batches that were measured."""
        if len(self.rows) < 2:
            return None
        before, last = self.rows[-2:]
        return self.batches[-2], self.batches[-1], over(last, before)


@once
def families(results: Results, model: str | None = None) -> list[BatchFamily]:
    """Families of one model or all, in the order of their series; those without a known memory are left out."""
    rows = results.rows if model is None else results.rows_of(model)
    ordered = sorted(rows, key=lambda row: (row["series_order"], row["batch_per_worker"]))
    searches = as_rows(results.trials[(results.trials["find"] == FIND_MAX) & (results.trials.status == "ok")])
    groups = grouped(ordered, lambda row: values_of(row, ALIKE)).values()
    return [family for family in (_family(ours, searches) for ours in groups) if family.rows or family.out]


@once
def family_of(results: Results) -> dict[str, BatchFamily]:
    """Configuration -> its family, of those with a known peak."""
    return {str(row["configuration"]): family for family in families(results) for row in family.rows}


def _family(rows: Sequence[ConfigurationRow], searches: Sequence[ConfigurationRow]) -> BatchFamily:
    about = rows[0]
    out = [row for row in rows if not row["n"] and row["status"] == OOM]
    alike = [trial["max_batch"] for trial in searches if values_of(trial, AS_LARGE) == values_of(about, AS_LARGE)]
    return BatchFamily(
        tuple(row for row in rows if row["n"] and known(row["peak_memory_bytes"])),
        tuple(int(row["batch_per_worker"]) for row in out if not configurations.implied(row)),
        tuple(int(row["batch_per_worker"]) for row in out if configurations.implied(row)),
        max(filter(None, alike), default=None),
        about,
    )


MOST_LABELS = 16
LOGARITHMIC_FROM = 25  # largest over smallest peak of a panel
FEWEST_SIZES = 3  # for a line that could be wrong: through two points there always is one


def _drawn_line(family: BatchFamily) -> tuple[float, float] | None:
    return family.line if len(set(family.batches)) >= FEWEST_SIZES else None


def draw(results: Results) -> Figure | None:
    """The figure, or None where no series has a line (FEWEST_SIZES) and memory was never exhausted."""
    of_models = {model: families(results, model) for model in results.models}
    every = {
        model: ours
        for model, ours in of_models.items()
        if any(family.rows for family in ours) and any(_drawn_line(family) or family.out for family in ours)
    }
    if not every:
        return None
    look = style.series_looks(results.configurations)
    named = {model: _named(of_model) for model, of_model in every.items()}
    return style.figure_of(
        f"Memory against batch: {results.study.name}",
        [
            style.Panel(
                model,
                partial(_panel, families=of_model, look=look, named=named[model]),
                x="batch per worker (samples)",
                y="peak memory of a worker (MB)",
                labels=named[model],
                failures=_failures(of_model, look),
            )
            for model, of_model in every.items()
        ],
        _footnote(every, results),
        panel_width=2.5,
        panel_height=max(2.2, (max(map(len, named.values())) + 1) * 1.3 * style.GAP),
        left=style.left_of(["100,000"]),
    )


def _panel(
    axis: Axes, layout: style.Layout, families: Sequence[BatchFamily], look: dict[str, SeriesLook], named: list[str]
) -> None:
    batches = sorted({batch for family in families for batch in (*family.batches, *family.out, *family.implied)})
    span = max(math.log2(batches[-1] / batches[0]), 1.0)
    axis.set_xlim(math.log2(batches[0]) - 0.12 * span, math.log2(batches[-1]) + 0.12 * span)
    labels = []
    shown = [family for family in families if family.rows]
    for index, family in enumerate(shown):
        ours = look[family.series]
        dodge = (index - (len(shown) - 1) / 2) * min(0.02, 0.12 / len(shown)) * span  # many hold the same
        x, peaks = np.log2(np.array(family.batches, dtype=float)), np.array(family.peaks) / 1e6
        if line := _drawn_line(family):
            ahead = max(family.batches[-1], family.smallest_out or 0)
            along = np.geomspace(family.batches[0], ahead, 60)
            axis.plot(
                np.log2(along) + dodge,
                (line[0] + line[1] * along) / 1e6,
                color=ours.colour,
                linewidth=1.0,
                linestyle=ours.dashes,
                zorder=2,
            )
        axis.plot(
            x + dodge,
            peaks,
            linestyle="",
            marker=ours.marker,
            color=ours.colour,
            zorder=3,
            markerfacecolor="white" if ours.hollow else ours.colour,
            markeredgecolor=ours.colour,
        )
        if family.smallest_out is not None and line:
            needed = (line[0] + line[1] * family.smallest_out) / 1e6
            style.cross(axis, math.log2(family.smallest_out) + dodge, needed, ours.colour, False)
        if family.series in named:
            labels.append(EndLabel(float(x[-1] + dodge), float(peaks[-1]), family.series, ours.colour))
    _scale(axis, shown)
    axis.grid(False, axis="x")
    style.ticks(axis, [math.log2(batch) for batch in batches], [str(batch) for batch in batches], layout.panel_width)
    style.end_labels(axis, labels, layout.panel_height)


def _scale(axis: Axes, shown: Sequence[BatchFamily]) -> None:
    """From 0, unless that would press the small ones together."""
    out = [(family, family.smallest_out) for family in shown if family.smallest_out and _drawn_line(family)]
    needed = [family.bytes_at(batch) or 0.0 for family, batch in out]
    most = max([peak for family in shown for peak in family.peaks] + needed) / 1e6
    least = min(peak for family in shown for peak in family.peaks) / 1e6
    logarithmic = most > LOGARITHMIC_FROM * least
    limits = (0.7 * least, 1.3 * most) if logarithmic else (0, 1.06 * most)
    style.value_axis(axis, "y", logarithmic, limits, 8 if logarithmic else 6)


def _named(families: Sequence[BatchFamily]) -> list[str]:
    """Series that are labelled: all, or those of most and least memory."""
    names = [family.series for family in families if family.rows]
    if len(names) <= MOST_LABELS:
        return names
    by_peak = sorted((family.peaks[-1], family.series) for family in families if family.rows)
    return [by_peak[0][1], by_peak[-1][1]]


def _failures(families: Sequence[BatchFamily], look: dict[str, SeriesLook]) -> list[Failure]:
    failures = []
    for family in families:
        places = [(OOM, math.log2(batch), batch) for batch in family.out]
        places += [(configurations.IMPLIED, math.log2(batch), batch) for batch in family.implied]
        if places:
            failures.append(style.failure(family.series, look[family.series].colour, places))
    return failures


def _footnote(every: dict[str, list[BatchFamily]], results: Results) -> list[str]:
    shown = [family for families in every.values() for family in families]
    lines = [family for family in shown if _drawn_line(family)]
    return notes.under_figure(
        results,
        "Points: the largest peak of a worker over the repeats.",
        (lines, f"Lines: fixed + per sample x batch, fitted to {FEWEST_SIZES} sizes or more."),
        (any(family.out for family in shown), "Crosses: out of memory."),
        (
            any(family.smallest_out is not None for family in lines),
            "A cross on a line: what it would have needed. Memory ends between the last point and that cross.",
        ),
        (any(family.implied for family in shown), "Hollow: not run, as a smaller batch was out of memory."),
    )


def frontier_table(results: Results) -> pd.DataFrame:
    """A row for each family of batch sizes: what fits, what did not, the line through the peaks."""
    rows = []
    for family in families(results):
        out, grown = family.smallest_out, family.growth[2] if family.growth else None
        fixed, slope = family.line or (None, None)
        rows.append(
            {
                **{key: family.about[key] for key in ("configuration", "model", "series", "workers")},
                "measured_batches": ";".join(map(str, family.batches)),
                "largest_batch": family.largest,
                "smallest_out_of_memory": out,
                "out_of_memory": ";".join(map(str, family.out)),
                "implied": ";".join(map(str, family.implied)),
                "fixed_bytes": fixed,
                "bytes_per_sample": slope,
                "peak_memory_bytes": max(family.peaks, default=None),
                "bytes_at_out_of_memory": None if out is None else family.bytes_at(out),
                **bounded("growth", *((grown.mean, grown.low, grown.high) if grown else (None,) * 3)),
            }
        )
    return pd.DataFrame(rows, dtype=object)


def frontier_listing(results: Results) -> Listing | None:
    """Memory by batch of each family that has several sizes, or of which something was out of memory."""
    rows = []
    for family in (family for model in results.models for family in families(results, model)):
        if len(family.batches) < 2 and not family.out:
            continue
        fixed, slope = (number(part / 1e6) for part in family.line) if family.line else ("", "")
        ends = [family.bytes_at(batch) for batch in (family.largest, family.smallest_out) if batch]
        searched = " (searched)" if family.searched and family.searched == family.largest else ""
        rows.append(
            {
                "configuration": notes.series_and_batch(family.about, results)[0],
                "largest batch that fits": f"{family.largest or 'none'}{searched}",
                "smallest out of memory": str(family.smallest_out or "none"),
                "fixed MB": fixed,
                "MB a sample": slope,
                "limit, MB": " to ".join(number(end / 1e6) for end in ends if end) if len(ends) == 2 else "",
                "throughput": _growth_text(family),
            }
        )
    if not rows:
        return None
    lines = [
        "Peak bytes of one worker = fixed + per sample x batch, by the line through the sizes that were run. What a "
        "worker's memory can hold lies between the line at the largest batch that fitted and at the smallest that did "
        "not. Throughput: what the last step up in batch still brought.",
    ]
    return notes.study_listing(results, "Memory against batch", rows, lines, signs=True)


def _growth_text(family: BatchFamily) -> str:
    """`+39 % [+35, +43] from 64 to 128`; empty of one size."""
    if family.growth is None:
        return ""
    before, after, ratio = family.growth
    return f"{change(ratio.mean, ratio.low, ratio.high)} from {before} to {after}"


VIEW = View("What fills a worker's memory?", (ModelTable("memory", listing, measured, "memory"),))


NO_BATCHES = "peak memory was not measured at several batch sizes"
NO_LINE = f"it needs peak memory at {FEWEST_SIZES} batch sizes, or one that was out of memory"
FRONTIER = View(
    "Which batch sizes fit into memory?",
    (
        StudyTable(
            "frontier",
            frontier_listing,
            frontier_table,
            "Memory against batch",
            "why",
            Gap("Memory against batch: not known", NO_BATCHES),
        ),
    ),
    (Drawing("frontier", draw, gap=Gap("No figure of memory against batch", NO_LINE)),),
)
