"""The sentences under a table: what the numbers are, how sure, what failed and why, where and when it was measured."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.frames import configurations
from analysis.frames.configurations import is_pipeline, known
from analysis.frames.measured import of_peers
from analysis.frames.results import Results, carried, once, unit, without_kind, words
from analysis.frames.rows import ConfigurationRow, grouped
from analysis.show.layout import Listing
from analysis.statistics import estimates
from analysis.text import first_few, span
from scaling_study.frameworks import COMMAND
from scaling_study.records.schema import BUSY_CORES
from scaling_study.study import defaults
from scaling_study.study.rules import MATCHMAKING_SECONDS
from scaling_study.trial import Trial

ABOUT = ("configuration", "model", "series", "batch", "workers")  # first columns of tables in numbers
MOST_REASONS = 6  # lines of reasons under one table; the rest are counted
MOST_REPEATS = 100  # that a target may need; more are no advice
NO_BASELINE = re.compile(  # as configurations.find says it
    r"no baseline trial with .+ and (batch_per_worker|global_batch)=\S+ that is otherwise the same was run"
)


def under_throughput(results: Results, model: str) -> list[str]:
    """Notes under one model's throughput table: comparability, precision, failures, trainings."""
    ours = results.frame_of(model)
    how = how_it_differs(ours)
    return [*_compared(ours), *how, *_sure(ours, results), *_carried(ours), *_failed(ours, "status"), *_trained(ours)]


def under_speedup(results: Results, model: str) -> list[str]:
    """Notes under one model's speed-up table: configurations without a speed-up, each with the reason."""
    ours = results.frame_of(model)
    without = ours[(ours.status == "ok") & ours.speedup.isna() & (ours.not_comparable.fillna("") == "")]
    without = without.assign(speedup_reason=no_speedup(without, results))
    differs = how_it_differs(ours)
    return [*_compared(ours), *differs, *_failed(without, "speedup_reason"), *_failed(ours, "status")]


def no_speedup(rows: pd.DataFrame, results: Results) -> pd.Series[str]:
    """The reason why each of these has no speed-up, in the same words at every batch size."""

    def said(reason: str) -> str:
        lacks = NO_BASELINE.fullmatch(reason)
        if lacks is None:
            return reason or "no reason given"
        batch = lacks[1].replace("_", " ")
        return f"no baseline ({results.study.baseline_text}) with the same {batch}, otherwise the same, was run"

    return rows.speedup_reason.fillna("").map(said)


def how_it_differs(rows: pd.DataFrame) -> list[str]:
    """One note where peers that step by rounds stand beside workers that step together; else none. `rows`: those
    of results.configurations that a table shows."""
    by_rounds = rows.framework.map(of_peers).astype(bool)
    if not by_rounds.any():  # as in most studies, and a frame of all columns costs
        return []
    peers, others = rows[by_rounds & (rows.n > 0)], rows[~by_rounds & (rows.n > 0)]
    apart = peers.updates.isin(list(configurations.UPDATES))
    peers = peers if apart.all() else peers[~apart]
    if peers.empty or others.empty:
        return []
    names = ", ".join(dict.fromkeys(peers.framework))
    achieved, blocked = peers.achieved_over_target.dropna(), peers.matchmaking_blocked_seconds.dropna()
    read = f" ({_span(achieved, '.2f')} times as many were read)" if len(achieved) else ""
    kept = f"; {_span(blocked, '.2g')} s blocked a round here" if len(blocked) else ""
    looked = peers.matchmaking_seconds.fillna(MATCHMAKING_SECONDS)
    theirs = dict.fromkeys(others.framework)
    whose = " and ".join(theirs) if len(theirs) < 3 else "the others"
    return [
        f"{names}: a step is a round, which ends once peers together have {_span(peers.global_batch, ',.0f')} "
        f"samples{read}. Meanwhile peers look for each other for about {_span(looked, 'g')} s{kept}. It is hidden "
        f"only while batches compute. A step of {whose} has {_span(others.batch_per_worker, ',.0f')} samples a worker."
    ]


def listing(
    results: Results,
    title: str,
    header: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    lines: Sequence[str],
    signs: bool = False,
) -> Listing:
    """A table of this study: `lines` stand below it, after how its configurations differ and before the source.

    `signs`: the rows carry the signs of configurations that may not be compared, which are explained first.
    """
    data = results.configurations
    explained = configurations.sentences(data) if signs else []
    below = (*explained, *how_it_differs(data), *lines, f"{source(results)}.")
    return Listing(f"{title} ({results.heading})", header, tuple(rows), below)


def study_listing(
    results: Results, title: str, rows: Sequence[Mapping[str, str]], lines: Sequence[str], signs: bool = False
) -> Listing:
    """listing() of rows that map each column's header to its text."""
    return listing(results, title, tuple(rows[0]), [tuple(row.values()) for row in rows], lines, signs)


def model_listing(
    results: Results, model: str, title: str, rows: Sequence[Mapping[str, str]], lines: Sequence[str]
) -> Listing:
    """A table of what one model's configurations do, whether or not their speed may be compared."""
    ours = results.frame_of(model)
    parity = [*configurations.sentences(ours, configurations.FAILED_SIGN), *configurations.checked(ours)]
    below = (*parity, *how_it_differs(ours), *lines, source(results))
    return Listing.from_rows(f"{title} ({results.heading})", rows, below)


def series_and_batch(row: ConfigurationRow, results: Results) -> tuple[str, str]:
    """The first two cells of a row: the series, with its model where there are several and with its sign; the batch."""
    model = f"{row['model']}, " if len(results.models) > 1 else ""
    sign = configurations.sign(row) if known(row["not_comparable"]) else ""
    return f"{model}{row['series']} {sign}".rstrip(), str(row["batch"])


def signed_names(results: Results, rows: Sequence[Mapping[Any, Any]]) -> list[str]:
    """The first cells of rows, `resnet8, horovod, 2 workers, batch 64 †`: with the model where these rows have several,
    and with the sign of what may not be compared."""
    names = named_with_batch(results, rows)
    signs = [configurations.sign(results.by_name[row["configuration"]]) for row in rows]
    return [f"{name} {sign}".rstrip() for name, sign in zip(names, signs, strict=True)]


def named_with_batch(results: Results, rows: Sequence[Mapping[Any, Any]]) -> list[str]:
    """`horovod, 2 workers, batch 32 per worker (64 global)` of each row of trainings or of timed epochs; with the model
    where these rows have several."""
    several = len({row["model"] for row in rows}) > 1
    batches = [configurations.batch_words(results.by_name[row["configuration"]]) for row in rows]
    names = [f"{without_kind(str(row['series']))}, {batch}" for row, batch in zip(rows, batches, strict=True)]
    return [f"{row['model']}, {name}" if several else name for row, name in zip(rows, names, strict=True)]


def _span(values: pd.Series[Any], form: str) -> str:
    """`3`, or `1 to 3`."""
    return span(*(format(float(end), form) for end in (values.min(), values.max())))


def legend(results: Results) -> list[str]:
    """How every throughput table of the study is to be read."""
    lines = [
        f"Samples per second over all workers, mean of {results.repeats} ± margin: half of the 95 % interval between "
        f"{results.repeats_word} (Student t); with fewer than 3 {results.repeats_word} no interval is claimed.",
        "**Bold**: the fastest of its row, where all others of the same work are slower; ≈: its highest mean, and "
        "means too close to it to call (95 %, corrected for all rows of the study); unmarked: slower, probably slower, "
        f"untested (fewer than 3 {results.repeats_word}); ★: the row of the highest mean, if none of another row is ≈.",
    ]
    if disturbed := busy(results.runs):
        lines.append(
            f"**The machine was not quiet**: {disturbed}. Their load is in these numbers; run again with --retry ok "
            "on a quiet machine."
        )
    if results.older:
        lines.append(f"{results.older} measured configuration(s) are no longer in the study, and not in this table.")
    return [*lines, source(results)]


def busy(trials: pd.DataFrame, what: str = "runs") -> str:
    """How long others used the machine: it is in the numbers, and no statistics on them can tell. Empty: not at all."""
    others = trials.busy_elsewhere_cores.dropna()
    over = others[others > BUSY_CORES]
    if not len(over):
        return ""
    return (
        f"during {len(over)} of {len(others)} {what} other processes kept more than {BUSY_CORES} cores busy, "
        f"{over.max():.1f} at most"
    )


@once
def legend_of_speedup(results: Results) -> list[str]:
    """How every speed-up table of the study is to be read."""
    others = results.study.batch_key != "global_batch"  # of pipelines, against the rest
    pipelines = ", a pipeline's the same global_batch," if others and any(map(is_pipeline, results.rows)) else ""
    but = ", but for what is at unlike work," if configurations.unlike(results.configurations) else ""
    return [
        f"Speed-up [95 % interval {interval_of_speedups(results)}], and efficiency: speed-up over (workers / workers "
        "of the baseline). The baseline has the "
        f"same {results.study.batch_key} ({results.study.scaling} scaling){pipelines}{but} and is otherwise the same.",
        source(results),
    ]


@once
def interval_of_speedups(results: Results) -> str:
    """In words, what they are of."""
    by_id = {row["configuration"]: row for row in results.rows}
    pairs = [(row, by_id[row["baseline"] or ""]) for row in results.rows if row["speedup_low"] == row["speedup_low"]]
    return configurations.interval_of((row, base) for row, base in pairs if row is not base)


@once
def source(results: Results) -> str:
    """Study, machine, date, kernels, data: `cifar10-scaling; 2 cores of Xeon, no GPU; 2026-01-31; SYNTHETIC DATA`."""
    data = "" if results.synthetic else data_names(results)
    machine = (results.study.machine_text, results.dates, of_device(results))
    parts = [f"Study {results.study.name}", *machine, data, *results.marks]
    return "; ".join(part for part in parts if part)


def of_device(results: Results) -> str:
    """Values of keys that follow a GPU, where no label has them: `precision bf16, channels_last (resnet50), compiled`.

    Those that differ from a CPU's, of what was measured on a GPU; with the models that have them, unless all do.
    """
    rows = [row for row in results.rows if row["device"] == "cuda" and row["n"]]
    keys = [key for key in defaults.KEYS if key not in results.series_keys and hasattr(Trial, key)]
    values = ((row, key) for key in keys for row in rows if known(row[key]) and row[key] != getattr(Trial, key))
    said = grouped(values, lambda value: " ".join(words(value[0], [value[1]])))
    of = {text: dict.fromkeys(str(row["model"]) for row, _ in ours) for text, ours in said.items()}
    models = {row["model"] for row in rows}
    return ", ".join(text if len(some) == len(models) else f"{text} ({', '.join(some)})" for text, some in of.items())


def holding(*said: tuple[Any, str]) -> list[str]:
    """The texts whose condition holds."""
    return [sentence for holds, sentence in said if holds]


def under_figure(results: Results, what: str, *further: tuple[Any, str]) -> list[str]:
    """The sentences under a figure: `what` it shows, those `further` ones whose condition holds, and the source."""
    return [" ".join([what, *holding(*further)]), f"{source(results)}."]


def data_names(results: Results) -> str:
    """`cifar10 data`; the records also say where it came from."""
    runs = results.runs
    sources = runs.data_source[runs.framework != COMMAND].dropna()  # what a command reads, nobody has seen
    names = sorted({str(origin).split()[0].rstrip(":;,") for origin in sources if origin})
    return f"{' and '.join(names)} data" if names else ""


def _sure(ours: pd.DataFrame, results: Results) -> list[str]:
    """The widest interval against the target, with what the target would cost; and runs too short for their own."""
    lines = []
    target = results.study.target_interval
    shown = set(ours.configuration)
    widths = [width for width in estimates.widths(results) if width.row["configuration"] in shown]
    if wide := [width for width in widths if width.half > target]:
        worst = max(wide, key=lambda width: width.half)
        what = "launches" if worst.of_ratio else "repeats"
        needed = worst.repeats_needed
        needs = f"; to reach it, this would need {needed} {what}" if needed else ""
        if needed and needed > MOST_REPEATS:
            needs = f"; the target cannot be reached here: it would need more than {MOST_REPEATS} {what}"
        name = f"{worst.row['series']}, {configurations.batch_words(worst.row)}"
        lines.append(
            f"{len(wide)} of {len(widths)} intervals{estimates.said_of(widths)} are wider than the target of "
            f"±{100 * target:.2g} %. Widest: ±{100 * worst.half:.1f} % ({name}){needs}."
        )
    by_itself = ours[ours.repeat_launches.fillna("") == ""]  # blocks of a shared launch are no series of steps
    if short := int(by_itself.too_short.sum()):
        lines.append(
            f"{short} of {int(by_itself.n.sum())} trials are too short for a reliable interval of their own; the "
            f"intervals above are between {results.repeats_word}."
        )
    return lines


def _compared(ours: pd.DataFrame) -> list[str]:
    """Sentences naming the configurations that may not be compared, and saying that the others passed parity."""
    return [*configurations.sentences(ours), *configurations.checked(ours), *configurations.unlike(ours)]


def _trained(ours: pd.DataFrame) -> list[str]:
    """Parameters and gradient bytes beside the numbers: two models that are one, or a half-sent gradient, show here."""
    counts = [f"{count:,}" for count in sorted(set(ours.parameters.dropna()))]
    if not counts:
        return []
    sent = ours[(ours.allreduce_bytes > 0) & (ours.allreduce != "none")].groupby("allreduce").allreduce_bytes.max()
    wire = [f"{size / 1e6:,.2f} MB {carried(wire)}" for wire, size in sent.items()]
    reduced = f"; each worker reduces {', '.join(wire)} in one step" if wire else ""
    kind = unit(ours).removesuffix("s")
    tokens = f" A sample is a {kind}; tokens/s stands beside it." if kind != "sample" else ""
    return [
        ("DIFFERENT parameter counts: " if len(counts) > 1 else "Parameters: ")
        + " and ".join(counts)
        + reduced
        + "."
        + tokens
    ]


def _carried(ours: pd.DataFrame) -> list[str]:
    """Where they differ, whose gradients went which way."""
    by_way = {str(way): group for way, group in ours[ours.carrier.fillna("") != ""].groupby("carrier", sort=False)}
    if len(by_way) < 2:
        return []
    ways = "; ".join(f"{way} ({configurations.names(group, ours)})" for way, group in by_way.items())
    return [f"Gradients travel by different transports: {ways}."]


def _failed(ours: pd.DataFrame, column: str) -> list[str]:
    """One line for each status, or speed-up that is missing, and its reason: with the configurations it befell."""
    if column == "status":
        ours = ours[ours.status != "ok"]
        reasons = ours.status + ours.reason.fillna("").map(lambda reason: f" ({reason})" if reason else "")
    else:
        reasons = "no speed-up: " + ours[column].fillna("")
    lines = []
    for text, group in ours.groupby(reasons, sort=False):
        where = [f"{series}, batch {batch}" for series, batch in zip(group.series, group.batch, strict=True)]
        lines.append(f"{text}: {first_few(where, 4)}.")
    unsaid = len(lines) - MOST_REASONS
    return lines[:MOST_REASONS] + ([f"{unsaid} more reasons."] if unsaid > 0 else [])
