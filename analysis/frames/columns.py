"""The columns of results.csv and configurations.csv: name, type, unit, folds over ranks and repeats, heading, meaning.

One `Column` here is all that a new column needs: the two files, their order and types, the lists of the report and
docs/reference/columns.md come from TRIALS, BEFORE and AFTER. `python -m environment.reference` writes that page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import pandas as pd

from analysis.frames.measured import (
    COLLECTIVES,
    COMMUNICATION_COLUMNS,
    MEMORY,
    MEMORY_COLUMNS,
    PHASE_COLUMNS,
    PHASES,
    algorithm_bytes,
    bytes_sent,
    carrier,
    energy_of_devices,
    mesh_bytes,
)
from scaling_study.records.schema import RankReport, busy_elsewhere_cores
from scaling_study.trial import Trial

# Folds: of the values that are known, at least one, the one that stands for all. `alike`: they do not differ.


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def alike(values: Sequence[Any]) -> Any:
    return values[0]


def different(texts: Iterable[Any]) -> str:
    """`cifar10; synthetic`: each text once, unknown and empty ones left out."""
    return "; ".join(dict.fromkeys(text for text in texts if not pd.isna(text) and text))


Fold = Callable[[list[Any]], Any]
FOLDS: dict[Any, str] = {max: "maximum", mean: "mean", sum: "sum", min: "minimum", different: "all different ones"}
DTYPES: dict[type, str] = {int: "Int64", bool: "boolean", str: "string", float: "float64"}
TYPES: dict[type, str] = {int: "integer", bool: "true or false", str: "text", float: "number"}


OF_TRIALS, OF_CONFIGURATIONS = ("trials",), ("configurations",)  # the report's lists, by their slugs


class Listed(NamedTuple):
    """A column of those `lists` of the report: its heading, and its numbers times `factor`, in `unit`."""

    name: str
    lists: tuple[str, ...] = OF_TRIALS + OF_CONFIGURATIONS
    unit: str = ""
    factor: float = 1.0

    @property
    def heading(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name


@dataclass(frozen=True)
class Column:
    """`ranks`: the fold of a trial's ranks; in words where trials.py works the value out itself, or `together` does.
    `repeats`: the fold of a configuration's repeats that are ok; None: the column is no column of configurations.csv.
    """

    name: str
    type: type
    unit: str = ""
    ranks: Fold | str | None = None
    repeats: Fold | None = None
    read: Callable[[RankReport], Any] | None = None  # from one rank's report; None: its field of that name
    together: Callable[[Sequence[RankReport]], Any] | None = None  # from all ranks' reports at once
    listed: Listed | None = None
    doc: str = ""

    @property
    def dtype(self) -> str:
        return DTYPES[self.type]

    @property
    def read_from_ranks(self) -> bool:
        return self.together is not None or callable(self.ranks)

    def of_ranks(self, ranks: Sequence[RankReport]) -> Any:
        """The value of a trial; None where no rank knows one."""
        if self.together is not None:
            return self.together(ranks)
        assert callable(self.ranks), self.name
        read = self.read or attrgetter(self.name)
        known = [value for rank in ranks if (value := read(rank)) is not None]
        return self.ranks(known) if known else None


average = partial(Column, type=float, ranks=mean, repeats=mean)
largest = partial(Column, type=int, ranks=max, repeats=max)
slowest = partial(Column, type=float, ranks="slowest")


def _phase(name: str) -> Callable[[RankReport], float | None]:
    return lambda rank: getattr(rank.phases, f"{name}_seconds", None)


def _memory(kind: str) -> Callable[[RankReport], int | None]:
    return lambda rank: rank.memory.get(kind)


def _trial_keys() -> Iterable[Column]:
    kinds = {kind.__name__: kind for kind in DTYPES}
    for f in fields(Trial):
        if f.name != "window":
            kind = kinds[str(f.type).removesuffix(" | None")]
            repeats = None if f.name == "repeat" else alike
            yield Column(f.name, kind, repeats=repeats, doc=f.metadata["help"])
    yield Column("global_batch", int, repeats=alike, doc="samples of all workers in one step")


TRIAL_KEYS = tuple(_trial_keys())
STUDY = Column("study", str, repeats=alike, doc="the study's name")
CONFIGURATION = Column("configuration", str, repeats=alike, doc="id of the configuration")
PARITY = Column(
    "parity",
    str,
    repeats=alike,
    listed=Listed("parity", OF_CONFIGURATIONS),
    doc="of a parity check: its own verdict. Of any other trial: that of the checks behind it: `passed`, the fault, "
    "`not checked`; empty of a command of your own, which has none",
)
PARITY_GATES = Column("parity_gates", str, repeats=alike, doc="ids of these checks, separated by `;`")

TRIALS: tuple[Column, ...] = (  # results.csv
    STUDY,
    Column("trial", str, doc="id of the trial"),
    CONFIGURATION,
    *TRIAL_KEYS,
    Column("status", str, doc="how it ended (statuses of the [record](record.md#status))"),
    Column(
        "reason",
        str,
        doc="why it is not ok; of a trial that is: `too short` where its interval within the run should not be relied "
        "on",
    ),
    Column(
        "samples_per_second",
        float,
        "1/s",
        ranks="sum / slowest",
        listed=Listed("samples/s"),
        doc="samples of all ranks in the window / seconds of the rank whose window was longest; never a mean of rates",
    ),
    Column("tokens_per_second", float, "1/s", ranks="sum / slowest", repeats=mean, doc="where samples have tokens"),
    slowest(
        "interval_low",
        unit="1/s",
        listed=Listed("low, within"),
        doc="95 % interval of `samples_per_second` **within this run**",
    ),
    slowest("interval_high", unit="1/s", listed=Listed("high, within"), doc="its upper end"),
    slowest("steps", type=int, listed=Listed("steps"), doc="timed steps"),
    slowest(
        "step_seconds_mean",
        unit="s",
        repeats=mean,
        listed=Listed("step", OF_CONFIGURATIONS, "ms", 1000.0),
        doc="mean timed step",
    ),
    slowest(
        "step_seconds_median", unit="s", listed=Listed("median step", unit="ms", factor=1000.0), doc="median timed step"
    ),
    slowest(
        "step_trend",
        doc="median of the last third of the timed steps over that of the first, less 1: below 0, steps were still "
        "becoming faster. Empty for fewer than 6 steps",
    ),
    *(
        average(
            name,
            unit="s",
            read=_phase(phase),
            doc=f"{phase}, a step, in the instrumented window ([phases](record.md#phases))",
        )
        for phase, name in zip(PHASES, PHASE_COLUMNS, strict=True)
    ),
    average(
        "launch_seconds",
        unit="s",
        ranks="rank 0",
        listed=Listed("launch", OF_TRIALS, "s"),
        doc="from starting the launcher to the first step",
    ),
    largest(
        "parameters",
        read=lambda rank: rank.parameters or None,
        listed=Listed("parameters", OF_CONFIGURATIONS),
        doc="trainable parameters of the model",
    ),
    Column("samples_seen", int, ranks=sum, doc="in the timed window"),
    average(
        "achieved_over_target",
        ranks="sum",
        listed=Listed("achieved / target"),
        doc="of decentralised training: samples of all peers in a round over `target_batch_size`, mean of the timed "
        "rounds",
    ),
    Column(
        "rounds_failed",
        int,
        ranks="any",
        listed=Listed("failed rounds"),
        doc="of decentralised training: rounds that some peer did not average with all others; also of a trial that "
        "failed for it",
    ),
    largest(
        "allreduce_bytes",
        unit="B",
        listed=Listed("reduced", OF_CONFIGURATIONS, "MB", 1e-6),
        doc="gradients that one worker hands to reductions in one step",
    ),
    largest(
        "communication_bytes", unit="B", read=bytes_sent, doc="of one worker in one step, all kinds of collectives"
    ),
    Column(
        "algorithm_bytes",
        float,
        "B",
        ranks="mean",
        repeats=mean,
        together=algorithm_bytes,
        doc="that one worker sends in one step by the algorithms of its library for what it hands to collectives. "
        "Empty where one is not known",
    ),
    average(
        "sent_bytes",
        unit="B",
        doc="that the TCP sockets of one worker sent in that step: 0 where shared memory or a GPU's links carried them",
    ),
    Column(
        "communication_groups",
        str,
        together=mesh_bytes,
        repeats=different,
        doc="communication_bytes of rank 0 by dimension of its mesh and kind: `shard (2): all_gather 1.2 MB; replicate "
        "(2): allreduce 0.3 MB`. Empty where all collectives are of all workers",
    ),
    Column(
        "carrier",
        str,
        together=carrier,
        repeats=different,
        listed=Listed("transport", OF_CONFIGURATIONS),
        doc="library of the collectives, and which way their bytes were seen to go: `MPI over shared memory`, "
        "`Gloo over TCP`. Empty where none were sent, or too few to tell",
    ),
    average(
        "overlap",
        listed=Listed("overlap", OF_CONFIGURATIONS),
        doc="of the time with a collective in flight, the share in which a rank computed",
    ),
    *(
        largest(
            name,
            unit="B",
            read=partial(bytes_sent, kind=kind),
            doc=f"of one worker in one step: {'any other kind' if kind == 'other' else kind}",
        )
        for kind, name in zip(COLLECTIVES, COMMUNICATION_COLUMNS, strict=True)
    ),
    largest(
        "peak_memory_bytes",
        unit="B",
        listed=Listed("peak memory", OF_CONFIGURATIONS, "MB", 1e-6),
        doc="peak memory of one worker ([which](record.md#rankreport))",
    ),
    *(
        largest(name, unit="B", read=_memory(kind), doc=f"memory of one worker: {kind}")
        for kind, name in zip(MEMORY, MEMORY_COLUMNS, strict=True)
    ),
    average("gpu_utilization_percent", unit="%", doc="of the GPU, in the timed window"),
    average(
        "energy_joules",
        unit="J",
        ranks="sum over devices",
        together=energy_of_devices,
        doc="two ranks on one device count once: GPUs by their UUIDs, CPUs by their hosts. Empty where one device's is "
        "unknown",
    ),
    average("loss_first", doc="of the first warm-up step"),
    average("loss_last", listed=Listed("last loss", OF_TRIALS), doc="of the last timed step"),
    Column("data_source", str, ranks=different, repeats=different, doc="the data, and where they came from"),
    PARITY,
    PARITY_GATES,
    Column("started_at", str, listed=Listed("started"), doc="ISO 8601, UTC"),
    Column("launch", str, doc="that it shared with other configurations, as in the record"),
    Column("error", str, doc="the message behind `reason`"),
    Column("planned_repeats", int, doc="how many repeats were asked for before any was seen"),
    Column(
        "busy_elsewhere_cores",
        float,
        "cores",
        ranks="busiest host",
        together=lambda ranks: busy_elsewhere_cores(list(ranks)),
        listed=Listed("busy elsewhere"),
        doc="cores that other processes kept busy during the timed window",
    ),
    Column("max_batch", int, doc="of `find: max_batch`"),
    Column(
        "throttled_seconds",
        float,
        "s",
        ranks=max,
        repeats=max,
        doc="of the timed window, in which a CPU quota stopped a rank's processes or others of their groups",
    ),
)
BEFORE = (  # configurations.csv: what stands before the folds of TRIALS over repeats
    STUDY,
    CONFIGURATION,
    *(key for key in TRIAL_KEYS if key.repeats),
    Column("status", str, doc="`ok` if any repeat is; else that of the first"),
    Column("reason", str, doc="empty if any repeat is ok; else that of the first"),
    Column("repeats", int, doc="repeats that are finished"),
    Column("n", int, listed=Listed("n"), doc="of these, ok"),
    Column("planned", int, doc="of the `n`, planned before any was seen: intervals rest on the spread of these"),
    Column("samples_per_second", float, "1/s", listed=Listed("samples/s"), doc="mean over the `n` repeats"),
    Column("interval_low", float, "1/s", listed=Listed("low"), doc="95 % interval **between repeats**, Student t"),
    Column("interval_high", float, "1/s", listed=Listed("high"), doc="its upper end"),
    Column(
        "relative_half_width", float, doc="margin (half of the interval) / the mean, to compare with `target_interval`"
    ),
    Column(
        "repeats_needed",
        int,
        doc="repeats that this spread of its throughput would need for `target_interval`; needs `n` >= 3. Interleaved, "
        "the target is one of ratios, and the page says how many launches these need",
    ),
    Column("speedup", float, listed=Listed("speed-up"), doc="throughput / that of the baseline"),
    Column(
        "speedup_low",
        float,
        doc="95 % interval between repeats: Welch, on the logarithm; within launches that both shared",
    ),
    Column("speedup_high", float, doc="its upper end"),
    Column(
        "efficiency",
        float,
        listed=Listed("efficiency"),
        doc="speed-up / (workers / workers of the baseline). Empty at unlike work: a command whose batch of a worker "
        "and global batch both differ from the baseline's",
    ),
    Column("efficiency_low", float, doc="its 95 % interval"),
    Column("efficiency_high", float, doc="its upper end"),
    Column("baseline", str, doc="the configuration it is compared with"),
    Column("speedup_reason", str, doc="why there is no speed-up"),
    PARITY,
    Column("not_comparable", str, doc="why its speed is compared with nothing"),
    Column("oversubscribed", bool, doc="it did run more workers than there are cores or GPUs"),
    Column("too_short", int, doc="how many of the `n` runs are labelled `too short`"),
)
LAUNCHES = (  # of configurations that shared launches (configurations.add)
    Column(
        "launch_spread",
        float,
        doc="how far it differs from launch to launch by itself, beside what is common to all; a relative standard "
        "deviation",
    ),
    Column("launch_freedom", float, doc="its degrees of freedom"),
    Column("processes_spread", float, doc="the same of all that its processes measure together"),
    Column("processes_freedom", float, doc="its degrees of freedom"),
    Column("launch_members", int, doc="how many configurations its processes measure"),
)
AFTER = (  # configurations.csv: what stands behind the folds of TRIALS over repeats
    Column("started_at", str, doc="the earliest start"),
    Column("failures", str, doc="`oom: 1, failed: 2, oom (implied): 3`"),
    Column(
        "repeat_values", str, doc="samples per second of each of the `n`, in the order of the repeats, separated by `;`"
    ),
    Column("repeat_launches", str, doc="the launch of each, where they were interleaved"),
    *LAUNCHES,
    PARITY_GATES,
    Column("series", str, doc="the label of its column in the tables, of its line in the figures"),
)
SHOWN = (  # what rows of configurations hold beside the file's columns (results.add)
    Column("series_order", int, doc="the place of its series, from 0"),
    Column("batch", int, doc="the batch size that the study holds fixed: of one worker, or the global one"),
)


def folded() -> list[Column]:
    """The columns of trials that configurations.csv has as folds over repeats, in its order: maxima, means, others."""
    order = list(FOLDS)
    return sorted((column for column in TRIALS if column.repeats in order), key=lambda c: order.index(c.repeats))


def number_folds() -> dict[str, str]:
    """Column of numbers -> the name of its fold over repeats, which is what pandas calls it."""
    return {c.name: str(getattr(c.repeats, "__name__", "")) for c in folded() if c.type is not str}


def text_folds() -> dict[str, Fold]:
    """Column of texts -> the function that folds it over repeats."""
    return {c.name: c.repeats for c in folded() if c.type is str and c.repeats is not None}


def of_configurations() -> list[Column]:
    """Every column of configurations.csv, in its order."""
    return [*BEFORE, *folded(), *AFTER]


def dtypes(of: Iterable[Column]) -> dict[str, str]:
    """Name -> pandas type, the same whichever rows there are."""
    return {column.name: column.dtype for column in of}


def fold_in_words(fold: Fold | str | None) -> str:
    """The name of a fold over ranks or repeats, for people; empty for none."""
    return fold if isinstance(fold, str) else FOLDS.get(fold, "")
